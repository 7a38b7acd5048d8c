"""A live bar on standard error: what is going on, and how far Spark is with it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from maxam.terminal.escaping import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.25


@final
class ProgressBar:
    """Shown while a block of `during` runs, where standard error is a terminal.

    Attributes:
        spark: The session whose tasks are counted, once there is one.
    """

    def __init__(self, quiet: bool) -> None:
        self.spark: SparkSession | None = None
        self._console: Final = Console(stderr=True)
        self._quiet: Final = quiet or not self._console.is_terminal
        self._bar: Progress | None = None

    def say(self, text: str) -> None:
        """Print a line on standard error, above the bar if one is shown."""
        if self._bar is not None:
            self._bar.console.print(shown(text), markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(shown(text), err=True)

    def count(self, done: int, total: int) -> None:
        """Show how many of the tasks are done; without any the bar only moves."""
        if self._bar is not None:
            text = f"{done}/{total} tasks" if total else ""
            self._bar.update(self._bar.task_ids[0], total=total or None, completed=done, done=text)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Show the bar until the block ends; a block inside another one shows its own text meanwhile."""
        if self._quiet:
            yield
        elif self._bar is not None:
            (task,) = self._bar.tasks
            before = task.description
            self._bar.update(task.id, description=text)
            try:
                yield
            finally:
                self._bar.update(task.id, description=before)
        else:
            with self._shown(text):
                yield

    @contextmanager
    def _shown(self, text: str) -> Iterator[None]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
        )
        ended = threading.Event()
        with Progress(
            *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as bar:
            self._bar = bar
            bar.add_task(text, total=None, done="")
            watcher = threading.Thread(target=self._watch, args=(ended,), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()
                self._bar = None

    def _watch(self, ended: threading.Event) -> None:
        """Copy Spark's counts of tasks to the bar."""
        remote: _RemoteTasks | None = None
        while not ended.wait(_POLL_S):
            if self.spark is None:
                continue
            if _is_remote(self.spark):
                remote = remote or _RemoteTasks(self.spark)
                self.count(remote.done, remote.total)
            else:
                self.count(*_tasks(self.spark))
        if remote is not None:
            remote.close()


@final
class _RemoteTasks:
    """Counts of the tasks of what a Spark Connect server runs for us."""

    def __init__(self, spark: "SparkSession") -> None:
        self.done = 0
        self.total = 0
        self._spark: Final = spark
        spark.registerProgressHandler(self)  # type: ignore[arg-type]  # their class only declares the call

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ANN401, ARG002  # theirs
        found = [] if done or stages is None else list(stages)
        self.done = sum(stage.num_completed_tasks for stage in found)
        self.total = sum(stage.num_tasks for stage in found)

    def close(self) -> None:
        self._spark.removeProgressHandler(self)  # type: ignore[arg-type]  # as above


def _is_remote(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _tasks(spark: "SparkSession") -> tuple[int, int]:
    """Return how many tasks of the jobs under way are done, and how many there are."""
    done = total = 0
    with suppress(Exception):  # a session that is being stopped; the bar is no reason to fail
        tracker = spark.sparkContext.statusTracker()
        for job_id in tracker.getActiveJobsIds():
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
    return done, total
