"""The folder of a history table: a writer killed at any of its steps leaves what the next one finishes or forgets."""

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.table import State, Table

STEPS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
ROUNDS = 2


def kill_at(step: int) -> None:
    """Have this process killed, as by `kill -9`, when it is about to do a step of its kind in the file system."""
    left = [step]

    def hook(event: str, _: tuple[object, ...]) -> None:
        if event in STEPS:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def write_killed(folder: Path, step: int) -> None:
    """Write until killed."""
    kill_at(step)
    write_rounds(folder)


def write_rounds(folder: Path) -> None:
    """Write some rounds, from where the table is: each adds a file to two types and replaces one of the round before."""
    with Table(folder) as table:
        for number in range(table.state.revision + 1, ROUNDS):
            work = table.work_folder()
            files = []
            for name in ("t.A_v1", "t.B_v1"):
                for file in (number - 1, number):
                    if file >= 0:
                        path = work / f"{name}-{file}"
                        path.write_text(f"{name} {file} as of {number}")
                        files.append((path, f"{name}/date=2026-10-01/{file}.parquet"))
            minors = {"t.A_v1": [("1.0", f"text {number}")]}
            table.commit(files, replace(table.state, revision=number), minors)


def rows(folder: Path) -> dict[str, str]:
    """Read what a reader of the types sees."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.glob("t.*/*/*.parquet")}


def expected(last: int) -> dict[str, str]:
    """Return the content of a table after a round."""
    return {
        f"{name}/date=2026-10-01/{number}.parquet": f"{name} {number} as of {min(number + 1, last)}"
        for name in ("t.A_v1", "t.B_v1")
        for number in range(last + 1)
    }


@pytest.mark.slow
def test_a_writer_killed_at_any_step_is_continued(tmp_path: Path) -> None:
    """A writer is killed before each change of the file system, then again at once.

    The next writer finds one of the states that were committed, with exactly its files. It ends where one that was never killed does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["maxam.pipeline.history.table"])
    killed = 0
    for step in range(1, 500):
        folder = tmp_path / str(step)
        process = context.Process(target=write_killed, args=(folder, step))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        if folder.exists():
            seen = rows(folder)
            assert all(name in expected(ROUNDS - 1) and f" {Path(name).stem} " in text for name, text in seen.items())
        if step % 3 == 0:  # killed a second time, while it finishes what the first one began
            process = context.Process(target=write_killed, args=(folder, 2))
            process.start()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        with Table(folder) as table:
            assert rows(folder) == expected(table.state.revision)
            number = table.state.revision
            assert table.minors == ({"t.A_v1": [("1.0", f"text {number}")]} if number >= 0 else {})
            assert not (folder / "_maxam" / "work").exists()
        write_rounds(folder)
        assert rows(folder) == expected(ROUNDS - 1)
    assert killed > 20


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of its fields."""
    state = State(7, ("t.A_v1",), 5, 100, 0xFFFFFFFF, 6, ((2, 3), (5, 5)))
    with Table(tmp_path) as table:
        table.commit([], state, {})
    with Table(tmp_path) as table:
        assert table.state == state


def test_a_table_is_locked_until_it_is_left(tmp_path: Path) -> None:
    """A second writer has to wait."""
    with Table(tmp_path), pytest.raises(PipelineError, match=str(tmp_path)):
        Table(tmp_path)
    with Table(tmp_path):
        pass


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    """A foreign folder, a damaged state, that of another version, a commit whose file is gone: each text shows the path."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").touch()
    with pytest.raises(PipelineError, match=r"foreign .*photo\.jpg"):
        Table(tmp_path / "foreign")
    own = tmp_path / "table" / "_maxam"
    own.mkdir(parents=True)
    (own / "state.json").write_text("{")
    with pytest.raises(PipelineError, match=r"state\.json is damaged"):
        Table(tmp_path / "table")
    (own / "state.json").write_text('{"format": 99}')
    with pytest.raises(PipelineError, match="another version"):
        Table(tmp_path / "table")
    plan = {"format": 1, "files": [["_maxam/work/x", "t.A_v1/date=2026-10-01/x.parquet"]], "state": {}, "minors": {}}
    (own / "commit.json").write_text(json.dumps(plan))
    with pytest.raises(PipelineError, match=r"x\.parquet: "):
        Table(tmp_path / "table")
