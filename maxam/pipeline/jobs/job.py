"""The common parts of all commands of `maxam-pipeline`: options, session, progress, remarks and output."""

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final, overload

import click

from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode
from maxam.pipeline.errors import MissingError, PipelineError, not_installed, unusable
from maxam.pipeline.examining import examine
from maxam.pipeline.spark.progress import ProgressBar
from maxam.terminal.groups import Failure
from maxam.terminal.options import Pair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from maxam.journal.archive import Archive
    from maxam.journal.listing import Problem
    from maxam.pipeline.jobs.output import Format, Result

_OUR_ERROR: Final = re.compile(r"^maxam\.[\w.]+Error: ")
MISSING_NAMED_MAX: Final = 20  # stretches of revisions that a message names
_FORMATS: Final = ("table", "json", "csv", "parquet")


@final
class Job:
    """One run of a command; `job_options` makes it, and closes it when the command returns or raises.

    Attributes:
        schemas: The schema folder, if one was named; absolute, as Java may stand elsewhere than we.
        incomplete: Part of the archive could not be read; the command will exit with ExitCode.PARTIAL.
    """

    def __init__(
        self,
        journal: Path | None,
        schemas: Path | None = None,
        form: "Format" = "table",
        out: str | None = None,
        master: str | None = None,
        remote: str | None = None,
        conf: dict[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        self._journal: Final = None if journal is None else journal.absolute()
        self.schemas: Final = None if schemas is None else schemas.absolute()
        self.incomplete = False
        self._form: Final = form
        self._out: Final = out
        self._where: Final = (master, remote, conf or {})
        self._quiet: Final = quiet
        self._owned = False
        self._spark: SparkSession | None = None
        self._bar: Final = ProgressBar(quiet)

    @property
    def journal(self) -> Path:
        """The journal folder, absolute.

        Raises:
            PipelineError: There is no such folder, or it is not a journal's.
        """
        if self._journal is None:
            raise PipelineError("this needs a journal: name its folder with --journal")
        try:
            segments = self._journal / "segments"
            if not self._journal.is_dir():
                raise MissingError(f"{self._journal}: no such folder")
            if not segments.is_dir():
                raise PipelineError(f"{self._journal} is not the folder of a journal: it has no folder `segments`")
            next(segments.iterdir(), None)
        except OSError as error:
            raise PipelineError(f"{self._journal} cannot be read: {error.strerror}") from error
        return self._journal

    @property
    def spark(self) -> "SparkSession":
        """The session: opened when it is first asked for, unless this process has one already."""
        if self._spark is None:
            from maxam.pipeline.spark.session import open_session, running_session  # noqa: PLC0415  # needs pyspark

            master, remote, conf = self._where
            self._owned = running_session() is None
            with self.progress("starting Spark"):
                self._spark = self._bar.spark = open_session(master, remote, conf)
        return self._spark

    @property
    def workers(self) -> "SparkSession | None":
        """The session whose workers do the pieces of a job. None for processes of this machine, unless the options name a Spark."""
        master, remote, _ = self._where
        here = master is None and remote is None and "PYSPARK_GATEWAY_PORT" not in os.environ  # of spark-submit
        return None if here else self.spark

    @property
    def shows_table(self) -> bool:
        """Whether the result becomes a table for people, of which part may be enough."""
        return self._form == "table"

    @property
    def writes_folder(self) -> bool:
        """Whether the result becomes a folder of files, in no order."""
        return self._out is not None and self._out.endswith("/")

    def examine(self, **prune: Any) -> "Archive":  # noqa: ANN401  # as of examining.examine
        """Check the part of the archive that will be read, and report its problems.

        Args:
            **prune: As of `examining.examine`: records, from_revision, to_revision, since, until, destinations.
        """
        with self.progress("checking the archive"):
            archive = examine(None, self.journal, **prune)
        self.report_problems(archive.problems)
        return archive

    def changes(self, **prune: Any) -> "DataFrame":  # noqa: ANN401  # as of reading.read_journal
        """Return what the journal holds, after its problems were reported.

        Args:
            **prune: As of `reading.read_journal`; `records="rejected"` gives rejected SENDs instead. With `archive`, which
                `examine` gave, nothing is checked and reported again.
        """
        from maxam.pipeline.spark.reading import read_journal  # noqa: PLC0415  # needs pyspark

        if "archive" not in prune:
            prune["archive"] = self.examine(**{name: value for name, value in prune.items() if name != "columns"})
        return read_journal(self.spark, self.journal, problems="skip", **prune)

    def report_problems(self, problems: "Iterable[Problem]") -> None:
        """Report each problem on standard error, --quiet or not; one that lost something makes the job incomplete."""
        for problem in problems:
            self.incomplete = self.incomplete or problem.lost
            self._bar.say(f"{'problem' if problem.lost else 'note'}: {problem}")

    def report_missing(self, stretches: "Sequence[tuple[int, int]]") -> None:
        """Report which revisions a result lacks, --quiet or not; it makes the job incomplete.

        Args:
            stretches: First and last revision of each; at least one.
        """
        self.incomplete = True
        count = sum(last - first + 1 for first, last in stretches)
        named = [f"{first}-{last}" if first < last else f"{first}" for first, last in stretches[:MISSING_NAMED_MAX]]
        more = f" and {len(stretches) - len(named):,} stretches more" if len(stretches) > len(named) else ""
        what = "revision is" if count == 1 else "revisions are"
        self._bar.say(f"problem: {count:,} {what} missing from this table ({', '.join(named)}{more})")

    def emit(self, frame: "DataFrame | Result", expendable: tuple[str, ...] = ()) -> None:
        """Write a result in the format and to the place of the options.

        Args:
            frame: The result, in its order.
            expendable: Columns that a table on a narrow terminal does without, the first ones first.

        Raises:
            PipelineError: It cannot be written there.
        """
        from maxam.pipeline.jobs.output import TABLE_ROWS_MAX, first_rows, print_rows, write_frame  # noqa: PLC0415  # 100 ms

        if self._form == "table":
            with self.progress("computing"):
                rows = first_rows(frame)
            print_rows(rows, expendable)
            if rows[2]:
                self.remark(f"only the first {TABLE_ROWS_MAX} rows are shown: --format json, csv or parquet give all")
            return
        onto_terminal = self._out is None and sys.stdout.isatty()  # where a bar would stand between the rows
        with nullcontext() if onto_terminal else self.progress("writing"):
            write_frame(frame, self._form, self._out)
        if self._out is not None:
            self.remark(f"written: {self._out}")

    def warn(self, text: str) -> None:
        """Print a remark on standard error that a result must not be read without, --quiet or not."""
        self._bar.say(f"note: {text}")

    def remark(self, text: str) -> None:
        """Print a remark on standard error, unless --quiet."""
        if not self._quiet:
            self._bar.say(text)

    def progress(self, text: str) -> AbstractContextManager[None]:
        """Show on standard error, if that is a terminal, what is going on and how far Spark is, until the block ends.

        Inside another such block the text stands for the other's meanwhile.
        """
        return self._bar.during(text)

    def counted(self, done: int, total: int) -> None:
        """Show how many pieces of the work are done."""
        self._bar.count(done, total)

    def close(self) -> None:
        """Stop the session, if the job has opened it."""
        if self._spark is not None and self._owned:
            self._spark.stop()
        self._spark = self._bar.spark = None


_PATH: Final = click.Path(path_type=Path)
_OUTPUT_OPTIONS: Final = (
    click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(_FORMATS),
        help="[default: by the suffix of --out, else table] JSON is one object a line.",
    ),
    click.option(
        "--out",
        metavar="PATH",
        help="Write one file, put in place when it is whole. Parquet with PATH/ writes a folder of files, in parallel.",
    ),
)

Verb = Callable[..., None]


@overload
def job_options(verb: Verb) -> Verb: ...
@overload
def job_options(*, journal: bool = ..., output: bool = ...) -> Callable[[Verb], Verb]: ...
def job_options(
    verb: Verb | None = None, *, journal: bool = True, output: bool = True
) -> Verb | Callable[[Verb], Verb]:
    """Give a command the options that all have, and a `Job` as its first argument.

    Args:
        verb: The function of the command.
        journal: The command needs a journal.
        output: The command writes a table with `Job.emit`; else it has no --format and no --out but its own.
    """
    if verb is None:
        return lambda verb: _with_job(verb, journal, output)
    return _with_job(verb, journal, output)


def _with_job(decorated: Verb, journal: bool, output: bool) -> Verb:
    journal_required = journal

    @functools.wraps(decorated)
    def run(
        journal: Path | None,
        schemas: Path | None,
        master: str | None,
        remote: str | None,
        conf: tuple[tuple[str, str], ...],
        quiet: bool,
        **options: Any,  # noqa: ANN401  # the command's own
    ) -> None:
        out: str | None = options.pop("out") if output else None
        form: Format = (options.pop("form") if output else None) or _format_of(out)
        if master is not None and remote is not None:
            raise click.UsageError("--master and --remote exclude each other")
        if form == "table" and out is not None:
            raise click.UsageError("--out takes json, csv or parquet: name one with --format, or by the file's suffix")
        if form == "parquet" and out is None:
            raise click.UsageError("--format parquet needs a file: --out PATH")
        job = Job(journal, schemas, form, out, master, remote, dict(conf), quiet)
        try:
            with _explained_errors(out or options.get("out") or "standard output"):
                decorated(job, **options)
        except MaxamError as error:
            raise Failure(str(error), error, form == "json") from error
        finally:
            job.close()
        if job.incomplete:
            click.get_current_context().exit(ExitCode.PARTIAL)

    options = [
        click.option(
            "-j",
            "--journal",
            type=_PATH,
            metavar="FOLDER",
            required=journal_required,
            help="Folder of the journal. A gateway may be writing it.",
        ),
        click.option(
            "--schemas", type=_PATH, metavar="FOLDER", help="Schema folder, for facts that the journal does not have."
        ),
        *(_OUTPUT_OPTIONS if output else ()),
        click.option(
            "--master", metavar="URL", help="Address of the Spark master. [default: local[*], or that of spark-submit]"
        ),
        click.option("--remote", metavar="URL", help="Spark Connect server to use instead, sc://HOST:PORT."),
        click.option(
            "--conf",
            type=Pair("KEY=VALUE", "="),
            multiple=True,
            help="Setting of Spark, such as spark.driver.memory=4g. Repeatable.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print neither progress nor remarks. Problems are printed."),
    ]
    for option in reversed(options):
        run = option(run)
    return run


def _format_of(out: str | None) -> "Format":
    """Return the format of a path's suffix."""
    if out is None:
        return "table"
    if out.endswith("/"):
        return "parquet"
    match Path(out).suffix.lower():
        case ".json" | ".jsonl" | ".ndjson":
            return "json"
        case ".csv":
            return "csv"
        case ".parquet":
            return "parquet"
        case _:
            return "table"


@contextmanager
def _explained_errors(out: str | Path) -> Iterator[None]:
    """Make an error of Spark or of the file system one line with its cause.

    Args:
        out: Where the command writes; reported when an error of the file system has no file.

    Raises:
        PipelineError: Instead of such an error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    except _spark_errors() as error:
        raise PipelineError(explained(error)) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of the output has gone: click ends the command without a message
            raise
        raise unusable(out, error) from error


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's errors: none if no part of Spark was loaded, which takes 0.2 s."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError  # noqa: PLC0415  # as above
    from pyspark.errors import PySparkException  # noqa: PLC0415  # as above

    return PySparkException, Py4JError


def explained(error: Exception) -> str:
    """Return the one line of an error of Spark's with the cause, without stacks of Java and Python."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    python = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if python:  # of a worker: its last line has the exception, and a message may run on
        stack = [line for line in str(error).splitlines() if not line.startswith("\tat ")]
        raised = [line for line in stack if re.match(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b", line)]
        if raised:
            return _OUR_ERROR.sub("", raised[-1])
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = causes[-1] if causes else lines[0]
    return re.sub(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ", "", said)
