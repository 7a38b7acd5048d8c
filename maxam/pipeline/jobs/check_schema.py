"""`maxam-pipeline check-schema`: would every stored body still be readable with this schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from maxam.avro.folder import read_registry
from maxam.avro.resolution import Failure, Resolution
from maxam.avro.schema import full_name, parse_schema
from maxam.avro.source import Source, read_source
from maxam.config import Limits
from maxam.exit_codes import ExitCode
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.spark.selection import Selection, selection_options

UNKNOWN_WRITER: Final = Failure("", "the schema of its writer is in neither folder: name its folder with --schemas")
_FOUND: Final = StructType(
    [
        StructField("schema_version", StringType()),
        StructField("path", StringType()),
        StructField("problem", StringType()),
        StructField("publisher", StringType()),
        StructField("revision", LongType()),
        StructField("accepted_at", TimestampType()),
        StructField("destination", StringType()),
    ]
)


def read_candidate(file: Path, schemas: Path | None = None) -> tuple[str, str]:
    """Read a schema that is not in force yet.

    Args:
        file: An `.avsc`, self-contained or with references to types of the schema folder.
        schemas: The schema folder.

    Returns:
        Its full type name, and its self-contained text.

    Raises:
        SchemaError: It is not a valid schema. The text has the place.
        PipelineError: It cannot be read.
    """
    try:
        source = read_source(str(file), file.read_bytes())
    except OSError as error:
        raise PipelineError(f"{file} cannot be read: {error.strerror}") from error
    return full_name(source), parse_schema(source, _sources(schemas)).text.decode()


def _sources(schemas: Path | None) -> dict[str, dict[str, Source]]:
    if schemas is None:
        return {}
    registry = read_registry(schemas, Limits())
    return {
        name: {
            version.minor: read_source(version.path, (schemas / version.path).read_bytes(), version.minor)
            for version in reversed(registry.versions(name))
        }
        for name in registry.types()
    }


def resolution(writer: str, reader: str) -> Resolution:
    """Return how one schema reads data of another. They match whatever their own names.

    Args:
        writer: Self-contained text.
        reader: Self-contained text.

    Raises:
        SchemaError: A text is not a valid schema.
    """
    written, readable = (parse_schema(read_source("schema", text.encode())).type for text in (writer, reader))
    return Resolution(written, readable, any_name=True)


def stored(changes: DataFrame, type_name: str) -> DataFrame:
    """Return the changes whose bodies hold a value of a type."""
    return changes.where((F.col("kind") == "value") & (F.col("schema") == type_name))


def writers(bodies: DataFrame) -> list[tuple[str, bytes, int]]:
    """Return minor and fingerprint of each schema that these bodies were written by, and how many there are of each."""
    counted = bodies.groupBy("schema_version", "schema_fingerprint").count().orderBy("schema_version")
    return [(row.schema_version, bytes(row.schema_fingerprint), row["count"]) for row in counted.collect()]


def failures(bodies: DataFrame, type_name: str, candidate: str, catalogue: Catalogue) -> DataFrame:
    """Find each body that a schema cannot read, and why. Reads every body.

    Args:
        bodies: Rows of `rows.CHANGE_COLUMNS` with values of the type, of `stored`.
        type_name: Full type name.
        candidate: Self-contained text of the schema that is to read them.
        catalogue: Knows what they were written by.

    Returns:
        A row for each body and reason: `schema_version` (of the writer), `path`, `problem`, `publisher`, `revision`, `accepted_at`,
        `destination`.
    """

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        resolutions: dict[tuple[str, bytes], Resolution | None] = {}
        for batch in batches:
            rows: list[int] = []
            paths: list[str] = []
            problems: list[str] = []
            looked_at = ("schema_version", "schema_fingerprint", "value_offset", "value_length", "body")
            columns = [batch.column(name).to_pylist() for name in looked_at]
            for number, (version, fingerprint, offset, length, body) in enumerate(zip(*columns, strict=True)):
                key = (version, fingerprint)
                if key not in resolutions:
                    text = catalogue.writer(type_name, version, fingerprint)
                    resolutions[key] = None if text is None else resolution(text, candidate)
                known = resolutions[key]
                datum = body[offset : offset + length]
                for failure in [UNKNOWN_WRITER] if known is None else known.failures(datum):
                    rows.append(number)
                    paths.append(failure.path)
                    problems.append(failure.problem)
            taken = batch.take(pa.array(rows, pa.int64()))
            texts = {"path": pa.array(paths, pa.string()), "problem": pa.array(problems, pa.string())}
            yield pa.RecordBatch.from_arrays(
                [texts[name] if name in texts else taken.column(name) for name in _FOUND.names], _FOUND.names
            )

    return bodies.mapInArrow(found, _FOUND)


def summary(found: DataFrame) -> DataFrame:
    """Sum up failures.

    Args:
        found: Of `failures`.

    Returns:
        The most frequent first: `schema_version` (of the writer), `path`, `problem`, `publisher`, `bodies`, `first_revision`,
        `first_at`, `last_revision`, `last_at`, `sample_destination` (of the last one).
    """
    keys = ["schema_version", "path", "problem", "publisher"]
    return (
        found.groupBy(*keys)
        .agg(
            F.count("*").alias("bodies"),
            F.min("revision").alias("first_revision"),
            F.min("accepted_at").alias("first_at"),
            F.max("revision").alias("last_revision"),
            F.max("accepted_at").alias("last_at"),
            F.max_by("destination", "revision").alias("sample_destination"),
        )
        .orderBy(F.desc("bodies"), *keys)
    )


@click.command("check-schema")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@job_options
@selection_options
@click.option("--type", "type_name", metavar="NAME", help="Check the bodies of this type. [default: the one in FILE]")
def check_schema_command(job: Job, file: Path, selection: Selection, type_name: str | None) -> None:
    """Check whether every stored body would be readable with the schema in FILE, an .avsc.

    References in FILE to other types are looked up in --schemas. If Avro's rules of schema resolution prove that all data of
    the stored versions are readable, no body is read. Otherwise each body is checked. Unreadable ones are shown by the path of the field,
    with how many bodies, from whom, first and last seen. Exits with 1 when there is such a body.

    \b
    maxam-pipeline check-schema next/1.2.avsc --journal var/journal --schemas schemas
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    name, candidate = read_candidate(file, job.schemas)
    type_name = type_name or name
    catalogue = Catalogue.load(job.journal, job.schemas)
    bodies = stored(job.changes(**selection.prune()), type_name)
    with job.progress("counting"):
        counts = writers(bodies)
    total = sum(count for _, _, count in counts)
    if not total:
        known = ", ".join(catalogue.types()) or "none"
        job.warn(f"the journal has no body of {type_name}. It has these types: {known}")
        return
    uncertain = []
    for version, fingerprint, count in counts:
        text = catalogue.writer(type_name, version, fingerprint)
        if text is None or not resolution(text, candidate).certain:
            uncertain.append(fingerprint)
        else:
            job.remark(f"{type_name} {version}: readable, whatever was written by it ({count:,} bodies)")
    if not uncertain:
        click.echo(f"{type_name}: all {total:,} bodies are readable with {file}")
        return
    looked_at = bodies.where(F.col("schema_fingerprint").isin(uncertain))
    found = failures(looked_at, type_name, candidate, catalogue).localCheckpoint()
    with job.progress("reading every body"):
        bad = found.select("revision").distinct().count()
    if not bad:
        click.echo(f"{type_name}: all {total:,} bodies are readable with {file}")
        return
    job.emit(summary(found), expendable=("first_at", "first_revision", "last_revision"))
    job.warn(f"{bad:,} of {total:,} bodies of {type_name} are not readable with {file}")
    click.get_current_context().exit(ExitCode.CHECK_FAILED)
