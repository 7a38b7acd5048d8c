"""Read a journal with Spark: healthy sealed segments by Spark's own Avro reader, what it fails on by the data source `maxam`."""

import functools
import json
import os
import re
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakSet

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses

from maxam.globs import Glob
from maxam.journal.archive import Archive
from maxam.journal.encoding import SCHEMA
from maxam.journal.listing import Records
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.examining import examine, globs_of
from maxam.pipeline.spark.glob_filter import matches
from maxam.pipeline.spark.native_avro import NATIVE_AVRO
from maxam.pipeline.spark.rows import CHANGE_COLUMNS, REJECTED_COLUMNS, SESSION_COLUMNS
from maxam.pipeline.spark.source import MaxamDataSource, require_nothing_lost

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_COLUMNS: Final[dict[Records, "StructType"]] = {
    "changes": CHANGE_COLUMNS,
    "sessions": SESSION_COLUMNS,
    "rejected": REJECTED_COLUMNS,
}
_KINDS: Final[dict[Records, tuple[str, ...]]] = {
    "changes": ("value", "delete"),
    "sessions": ("subscription", "unsubscription", "acknowledgement", "owed", "session_end", "will", "will_end"),
    "rejected": ("value", "delete"),
}
_PATTERN: Final = re.compile(r"[][{}*?\\]")  # what Hadoop reads as a pattern in a path
_ESCAPED: Final = r"\\\g<0>"
_SESSION_NAMES: Final = {
    "glob": "destination",
    "principal": "publisher",
}  # of columns -> as the journal's fields are called
_registered: "Final[WeakSet[SparkSession]]" = WeakSet()


def register(spark: "SparkSession") -> None:
    """Make `format("maxam")` known to a session, local or remote, and let it leave out segments by filters."""
    if spark not in _registered:  # Spark warns of a second time
        spark.dataSource.register(MaxamDataSource)
        _registered.add(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def read_journal(
    spark: "SparkSession",
    folder: str | os.PathLike[str],
    *,
    records: Records = "changes",
    archive: Archive | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    from_revision: int | None = None,
    to_revision: int | None = None,
    destinations: Iterable[str | Glob] | None = None,
    columns: Iterable[str] | None = None,
    problems: Literal["fail", "skip"] = "fail",
) -> "DataFrame":
    """Return the present records of a journal, as a DataFrame with the columns of `rows`.

    Later records are not part of it, even when the DataFrame is computed later: its last revision is `Archive.last`. When retention
    has removed a segment by then, computing it fails.

    Args:
        spark: The session; `register` is called for it.
        folder: The journal's, as seen from where tasks run.
        records: Kind of the records to read.
        archive: Result of `examine`, for the same records and a range that this one is within. None examines now.
        since: First `accepted_at`, with a zone.
        until: `accepted_at` before which; with a zone.
        from_revision: First revision.
        to_revision: Last revision.
        destinations: Globs; a row's destination matches one. Not for sessions.
        columns: Only these, in this order. None for all. Without bodies it is a third quicker.
        problems: `fail` when part of that cannot be read, or `skip` it. `Archive.problems` lists skipped parts.

    Raises:
        PipelineError: Something cannot be read, and is named with file, position and revisions; or arguments are wrong.
        GlobError: A glob is malformed.
    """
    globs = None if destinations is None else globs_of(destinations)
    if globs is not None and records == "sessions":
        raise PipelineError("sessions have no destinations to choose them by")
    if archive is None:
        archive = examine(
            spark,
            folder,
            records=records,
            from_revision=from_revision,
            to_revision=to_revision,
            since=since,
            until=until,
            destinations=globs,
        )
    elif archive.records != records:
        raise PipelineError(f"the archive was examined for {archive.records}, not for {records}")
    if problems == "fail":
        require_nothing_lost(archive.problems)
    register(spark)
    wanted = _COLUMNS[records].fieldNames() if columns is None else list(columns)
    if unknown := sorted(set(wanted) - set(_COLUMNS[records].fieldNames())):
        raise PipelineError(f"{records} have no column {', '.join(unknown)}")
    asked = {*wanted, "revision", "kind", *({"accepted_at"} if since or until else ())}
    if globs is not None:
        asked.add("destination")
    read = [name for name in _COLUMNS[records].fieldNames() if name in asked]
    frames = []
    if archive.sealed:
        frames.append(_native(spark, records, [one.path for one in archive.sealed], read))
    if archive.damaged or archive.open is not None or not frames:
        frames.append(_by_source(spark, archive).select(*read))
    frame = functools.reduce(lambda one, other: one.unionAll(other), frames)
    high = archive.last if to_revision is None else min(archive.last, to_revision)
    conditions = [F.col("revision") <= high]
    if low := max(archive.low, from_revision or 0):
        conditions.append(F.col("revision") >= low)
    if since is not None:
        conditions.append(F.col("accepted_at") >= F.lit(since))
    if until is not None:
        conditions.append(F.col("accepted_at") < F.lit(until))
    if globs is not None:
        conditions.append(matches(globs) if globs else F.lit(False))
    return frame.where(_all(conditions)).select(*wanted)


def _native(spark: "SparkSession", records: Records, paths: list[str], read: list[str]) -> "DataFrame":
    columns = _COLUMNS[records]
    names = _SESSION_NAMES if records == "sessions" else {}
    fields = [columns[name].jsonValue() | {"name": names.get(name, name)} for name in read]
    schema = type(columns).fromJson({"type": "struct", "fields": fields})
    # Avro's own reader makes an object of each field that its schema has, and skips the others.
    whole = json.loads(SCHEMA)
    there = {field["name"]: field for field in whole["fields"]}
    asked = json.dumps({**whole, "fields": [there[field["name"]] for field in fields]})
    # on disk, whatever the default file system is, and what is in its name is not a pattern
    names_as_they_are = [f"file:{_PATTERN.sub(_ESCAPED, path)}" for path in paths]
    reader = spark.read.format(NATIVE_AVRO).schema(schema).option("avroSchema", asked)
    frame = reader.load(names_as_they_are).where(F.col("kind").isin(*_KINDS[records]))
    return frame.withColumnsRenamed({field: name for name, field in names.items()})


def _by_source(spark: "SparkSession", archive: Archive) -> "DataFrame":
    parts = [one for one in (*archive.damaged, archive.open) if one is not None and one.bytes]  # else nothing is whole
    chosen = [
        (one.first, one.bytes if one is archive.open else None, [found.offset for found in one.problems if found.lost])
        for one in parts
    ]
    reader = spark.read.format("maxam").option("records", archive.records).option("segments", json.dumps(chosen))
    return reader.option("toRevision", str(archive.last)).load(archive.folder)


def _all(conditions: "list[Column]") -> "Column":
    return functools.reduce(lambda one, other: one & other, conditions)
