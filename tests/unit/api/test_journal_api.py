"""The inventory of a journal's folder on a disk that does not answer."""

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from maxam.api.routes import journal as journal_api


def test_a_disk_that_does_not_answer_takes_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of callers may ask and give up. The next caller gets the answer, and a caller soon after gets the same."""
    asked: list[Path] = []
    answers = threading.Event()
    original = journal_api.read_inventory

    def read_inventory(folder: Path) -> object:
        asked.append(folder)
        answers.wait()
        return original(folder)

    monkeypatch.setattr(journal_api, "read_inventory", read_inventory)

    async def test() -> None:
        for _ in range(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal_api._inventory, tmp_path)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert len(asked) <= 1  # that thread may not have begun yet
        answers.set()
        found = await journal_api._inventory(tmp_path)
        assert found is await journal_api._inventory(tmp_path)
        assert (len(asked), found["disk"]["bytes"] > 0) == (1, True)

    with monkeypatch.context() as patch:
        patch.setattr(journal_api, "KEPT_S", 3600.0)
        trio.run(test)
