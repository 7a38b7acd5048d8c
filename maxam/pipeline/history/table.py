"""The folder of a history table: everything in it is whole and there once, whenever its writer is killed.

```
<type>/date=YYYY-MM-DD/<first>-<last>.parquet   rows; revisions of the first and the last one, 20 digits each
untyped/date=.../...                            rows whose value no schema is known for
_maxam/lock                                     held by the process that writes
_maxam/state.json                               how far the journal was read
_maxam/types/<type>.json                        the minors that the columns of a type hold
_maxam/commit.json                              only while files are put in their places
_maxam/work/...                                 what is being made
<type>/_delta_log/...                           the log of a table of the format Delta
```

A commit lists, durably, the targets of the finished files and the state after the commit. Then each file is renamed. Delta logs, if
there are any, are written next, then the state. Last, the list is removed. A start that finds a list carries it out: every step can be
done twice. A reader of `<type>` sees files appear, or be replaced by one of the same rows, one by one, and never a row twice. Names
that begin with `_` are hidden from Spark and pyarrow.
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, final

from maxam.durable_files import replace_durably, sync
from maxam.pipeline.errors import OtherFilesError, PipelineError

if TYPE_CHECKING:
    from maxam.pipeline.history.delta import DeltaLog

UNTYPED: Final = "untyped"
_FORMAT: Final = 1


@final
@dataclass(frozen=True, slots=True)
class State:
    """How far a table is.

    Attributes:
        revision: All changes up to it are in the table; -1 before the first commit.
        types: Which types the table is of; None for all, and what has none.
        segment: First revision of the segment that was read in part, -1 for none.
        offset: Of the block there that comes next.
        chain: Check of the block before it.
        place_revision: Of the change before it.
        lost: First and last revision of each stretch that could not be read.
        end_chain: Check of the last block of the segment that was read to its end last; 0 if that is not known.
        incarnation: Of the journal; empty if it had none, or if a release wrote the table that did not keep it.
        delta: Whether each type has a Delta log.
    """

    revision: int = -1
    types: tuple[str, ...] | None = None
    segment: int = -1
    offset: int = 0
    chain: int = 0
    place_revision: int = 0
    lost: tuple[tuple[int, int], ...] = field(default=())
    end_chain: int = 0
    incarnation: str = ""
    delta: bool = False


Minors = list[tuple[str, str]]  # version and text of each, in the order in which they were merged


def delta_log(folder: Path) -> "DeltaLog":
    """Return the Delta log of the folder of a type, which may have none yet.

    Raises:
        PipelineError: The library is not installed.
    """
    from maxam.pipeline.history.delta import DeltaLog  # noqa: PLC0415 - an extra of its own

    return DeltaLog(folder)


def current_files(folder: Path) -> list[Path]:
    """List the files of a type's table: those in its folder, or those of the newest version of its Delta log.

    Raises:
        PipelineError: The log cannot be read, or the library for it is not installed.
    """
    return delta_log(folder).files() if _has_log(folder) else sorted(folder.glob("date=*/*.parquet"))


def _require_empty(folder: Path) -> None:
    """Refuse what is no folder, and a folder that has more than what tables have before their first commit.

    Raises:
        PipelineError: It cannot become a table.
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder} is no folder. Give another one")
    there = min((path.name for path in folder.iterdir() if path.name != "_maxam"), default=None)
    if there is not None:
        raise PipelineError(f"{folder} is no history table, and not empty: {there}. Give another folder")


def _has_log(folder: Path) -> bool:
    return (folder / "_delta_log").is_dir()


@final
class Table:
    """A history table that this process writes. Use as a context manager: leaving it lets others write.

    Attributes:
        folder: Where it is.
        state: As of the last commit.
        minors: Versions that the columns of each type hold, as of the last commit.
    """

    def __init__(self, folder: Path) -> None:
        """Lock the table, finish or undo what a killed writer left, and read its state. A folder without one becomes an empty one.

        Raises:
            PipelineError: Another process writes it, or what is there is not a table that this version can continue.
            OSError: The folder cannot be written.
        """
        self.folder: Final = folder
        self._own: Final = folder / "_maxam"
        if folder.exists() and not self._own.is_dir():
            _require_empty(folder)  # before anything is written: it may be a journal
        self._own.mkdir(parents=True, exist_ok=True)
        # held until the process ends, whichever way
        self._lock: Final = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another process is writing the table {folder}: wait until it is done") from None
            self._finish()
            self.state = self._read_state()
            self.minors: Final = self._read_minors()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def work_folder(self) -> Path:
        """Make an empty folder for unfinished files. No other process uses it, and a later start removes it."""
        folder = self._own / "work" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def files(self, name: str) -> list[Path]:
        """List the files of a type's table."""
        return current_files(self.folder / name)

    def commit(
        self,
        files: Iterable[tuple[Path, str]],
        state: State,
        minors: Mapping[str, Minors],
        *,
        replaced: Iterable[Path] = (),
    ) -> None:
        """Put finished files in their places and make a state the table's, all or, after a kill, at the next start.

        Args:
            files: Path of each, in the work folder, and its path in the table; one that is there is replaced.
            state: State of the table with them.
            minors: Types whose columns hold other minors now.
            replaced: All files of the type, if `files` are in place of them.

        Raises:
            OtherFilesError: The type has other files meanwhile. Nothing of this commit is done.
            PipelineError: A Delta log cannot be written. The next start does it.
            OSError: The next start does what is left to do, or nothing of it.
        """
        moves = [(str(path.relative_to(self.folder)), place) for path, place in files]
        folders: set[Path] = set()
        for source, _ in moves:
            sync(self.folder / source)
            folders |= {parent for parent in (self.folder / source).parents if parent.is_relative_to(self._own)}
        for each in folders:
            sync(each)
        plan = {"format": _FORMAT, "files": moves, "state": asdict(state), "minors": minors}
        plan["replaced"] = [str(path) for path in replaced]
        self._write(self._own / "commit.json", plan)
        self._finish()
        self.state = state
        self.minors.update(minors)

    def _finish(self) -> None:
        """Carry out a commit's list, if there is one, and remove files that are in no list."""
        plan = self._read(self._own / "commit.json")
        if plan is not None:
            folders = {self.folder}
            for source, place in plan["files"]:
                target = self.folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                folders |= {target.parent, target.parent.parent}
                try:
                    (self.folder / source).replace(target)
                except FileNotFoundError:
                    if not target.exists():
                        problem = (
                            f"{target}: a commit was begun, but the file is neither there nor in {self._own / 'work'}"
                        )
                        raise PipelineError(f"{problem}; build a new table in another folder") from None
            for each in folders:
                sync(each)
            if plan["state"].get("delta"):
                try:
                    self._log(plan)
                except OtherFilesError:
                    (self._own / "commit.json").unlink()
                    raise
            (self._own / "types").mkdir(exist_ok=True)
            for name, minors in plan["minors"].items():
                self._write(self._own / "types" / f"{name}.json", {"minors": minors})
            self._write(self._own / "state.json", {"format": _FORMAT} | plan["state"])
            (self._own / "commit.json").unlink()
            sync(self._own)
        shutil.rmtree(self._own / "work", ignore_errors=True)

    def _log(self, plan: Mapping[str, Any]) -> None:
        """Enter the files of a commit into the Delta logs. A type without a log gets one, with all files that it has."""
        places: dict[str, list[Path]] = {}
        for _, place in plan["files"]:
            places.setdefault(place.partition("/")[0], []).append(self.folder / place)
        for folder in sorted(path for path in self.folder.iterdir() if path != self._own):
            files = places.get(folder.name, [])
            if not _has_log(folder):
                delta_log(folder).add(sorted(folder.glob("date=*/*.parquet")), plan["state"]["revision"])
            elif files and (replaced := plan.get("replaced")):
                number = len(plan["minors"][folder.name])
                delta_log(folder).replace(files, number, [Path(path) for path in replaced])
            else:
                delta_log(folder).add(files, plan["state"]["revision"])

    def _read_state(self) -> State:
        kept = self._read(self._own / "state.json")
        if kept is None:
            _require_empty(self.folder)
            return State()
        del kept["format"]
        kept["lost"] = tuple((first, last) for first, last in kept["lost"])
        kept["types"] = None if kept["types"] is None else tuple(kept["types"])
        return State(**kept)

    def _read_minors(self) -> dict[str, Minors]:
        minors: dict[str, Minors] = {}
        for path in sorted((self._own / "types").glob("*.json")):
            kept = self._read(path) or {"minors": []}
            minors[path.name.removesuffix(".json")] = [(version, text) for version, text in kept["minors"]]
        return minors

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise PipelineError(f"{path} is damaged: {error}. Build a new table in another folder") from error
        if kept.get("format", _FORMAT) != _FORMAT:
            raise PipelineError(f"{path} is of another version of maxam: build a new table in another folder")
        return kept

    def _write(self, path: Path, value: object) -> None:
        """Write a JSON file that is there whole and durably, or as it was."""
        replace_durably(path, json.dumps(value).encode())
