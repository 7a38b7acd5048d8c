"""When memory and disk count as short, and when no longer."""

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.config import Limits
from maxam.gateway import heap
from maxam.gateway.heap import Heap, Slack
from maxam.gateway.watermarks import Watermarks, memory_bytes, resident_bytes, unwritable

GIB = 2**30


@pytest.fixture
def broker() -> Broker:
    """An empty one."""
    limits = Limits()
    return Broker(limits, Policy({}, {}, limits), load_registry({"registry.toml": b""}))


@pytest.fixture
def watermarks(broker: Broker) -> Watermarks:
    """1,000 bytes of memory, of the disk 100 to be free."""
    return Watermarks(broker, lambda: None, Path("/journal"), 1000, 100)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events that were logged."""
    return [record.getMessage().split()[0] for record in caplog.records if record.name == "maxam"]


def test_memory_is_short_above_the_limit_until_it_is_well_below(
    broker: Broker, watermarks: Watermarks, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit itself is fine. A shortage lasts down to 95 %. Each change is logged once, and operators see it meanwhile."""
    states = []
    for used in (999, 1000, 1001, 1500, 1000, 950, 949, 1000, 1001):
        watermarks.check_memory(used)
        states.append(broker.memory_low)
        assert watermarks.memory_low == broker.memory_low == bool(watermarks.unready())
    assert states == [False, False, True, True, True, True, False, False, True]
    assert events(caplog) == ["memory-low", "memory-low-ended", "memory-low"]
    assert "1001 bytes" in watermarks.unready()[0]
    assert watermarks.degraded() == []


def test_the_disk_is_low_below_the_least_until_it_is_well_above(
    watermarks: Watermarks, caplog: pytest.LogCaptureFixture
) -> None:
    """With less free than wanted the gateway serves on, degraded, until there is a tenth more than wanted."""
    states = []
    for free in (100, 99, 0, 105, 110, 111, 100):
        watermarks.check_disk(free)
        states.append(watermarks.free_low)
        assert bool(watermarks.degraded()) == watermarks.free_low
        assert watermarks.unready() == []
    assert states == [False, True, True, True, True, False, False]
    assert events(caplog) == ["disk-low", "disk-low-ended"]


def test_a_disk_is_slow_that_does_not_answer_for_five_seconds(
    watermarks: Watermarks, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once for each block that takes too long. The next block is counted again."""
    states = []
    for since, now in ((None, 0.0), (1.0, 5.9), (1.0, 6.0), (1.0, 60.0), (60.0, 60.1), (60.0, 65.0), (None, 66.0)):
        watermarks.check_writing(since, now)
        states.append(watermarks.slow)
        assert bool(watermarks.unready()) == watermarks.slow
    assert states == [False, False, True, True, False, True, False]
    assert events(caplog) == ["disk-slow", "disk-slow-ended"] * 2


def test_without_a_least_nobody_is_warned(broker: Broker) -> None:
    """0 free bytes are fine when 0 are wanted."""
    watermarks = Watermarks(broker, lambda: None, Path("/journal"), 1000, 0)
    watermarks.check_disk(0)
    assert watermarks.degraded() == []


def test_the_default_is_a_share_of_what_there_is(broker: Broker) -> None:
    """Room for as much again is left, as a snapshot is built in another process."""
    there = memory_bytes()
    assert resident_bytes() < there
    assert 0.4 * there < Watermarks(broker, lambda: None, Path("/journal"), 0, 0).memory_bytes_max < 0.5 * there


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {"memory.max": "1000\n"}, 1000),
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": "2000\n"}, 2000),
        ("0::/a/b", {"a/b/memory.max": "1500\n", "a/memory.max": "2000\n"}, 1500),
        ("0::/not/seen", {"memory.max": "1000\n"}, 1000),
        ("4:cpu,memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": "700\n"}, 700),
        ("4:cpu:/a", {"memory/memory.limit_in_bytes": "700\n"}, None),
        ("0::/", {}, None),
        ("0::/", {"memory.max": "max\n"}, None),
    ],
)
def test_a_control_group_bounds_what_there_is(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int | None
) -> None:
    """The least of all groups around the process counts, in either version of control groups; without one, the machine's."""
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    (tmp_path / "membership").write_text(membership + "\n")
    machine = memory_bytes(tmp_path / "none", tmp_path / "none")
    assert machine > 100 * 2**20
    assert memory_bytes(groups, tmp_path / "membership") == (machine if expected is None else expected)


def test_who_cannot_open_a_file_looks_again(watermarks: Watermarks, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no descriptor left the memory in use cannot be read. That ends nothing, and the next successful reading counts."""
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 3)

    def look() -> int:
        for failure in failures:
            raise failure
        return 10

    async def run() -> None:
        with trio.move_on_after(3):
            await watermarks.run()

    monkeypatch.setattr("maxam.gateway.watermarks.resident_bytes", look)
    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.01))
    assert watermarks.memory_used_bytes == 10


def test_while_memory_is_short_all_that_was_deleted_is_looked_through(
    broker: Broker, watermarks: Watermarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little memory there is, a client that is refused deletes nothing. While there is enough memory it waits."""
    used = [10]
    monkeypatch.setattr("maxam.gateway.watermarks.resident_bytes", lambda: used[0])

    async def run() -> None:
        with trio.move_on_after(3):
            await watermarks.run()

    for used[0], due in ((10, False), (2000, True)):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.01))
        assert broker.store.sweep_due() is due


def test_what_is_free_is_given_back_when_it_is_much_and_more_than_before() -> None:
    """More than a quarter of the heap is free. Also, more memory is in use than after the last time, or more of the heap is free."""
    slack = Slack()
    assert not slack.worth(Heap(400, 100), 1000)
    assert slack.worth(Heap(400, 101), 1000)
    slack.given_back(Heap(400, 101), 900)
    assert not slack.worth(Heap(400, 101), 918)
    assert slack.worth(Heap(400, 101), 919)
    assert not slack.worth(Heap(400, 121), 900)
    assert slack.worth(Heap(400, 122), 900)
    slack.given_back(Heap(400, 300), 500)
    assert not slack.worth(Heap(400, 300), 500)
    assert not slack.worth(Heap(400, 100), 2000)


def test_what_is_given_back_is_not_resident_any_more() -> None:
    """Of 60 MiB in pieces of which every 50th stays, most is found free in the heap, and then is the system's."""
    if heap.look() is None:
        pytest.skip("the C library is not glibc 2.33 or later, and cannot be asked")
    pieces = [bytes(5000) for _ in range(12_000)]
    full = resident_bytes()
    kept = pieces[49::50]
    del pieces
    found = heap.look()
    assert found is not None
    assert 50_000_000 < found.free < found.size
    heap.give_back()
    assert resident_bytes() < full - 40_000_000
    assert len(kept) == 240


def test_a_folder_that_cannot_be_written_is_a_reason_until_it_can(
    watermarks: Watermarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, before the next segment fails, and its end too."""
    for name in ("segments", "snapshots"):
        (tmp_path / name).mkdir()
    assert unwritable(tmp_path) == ""
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, _: not str(path).endswith("segments"))
        watermarks.check_unwritable(unwritable(tmp_path))
        watermarks.check_unwritable(unwritable(tmp_path))
    [reason] = watermarks.unready()
    assert reason.startswith("journal-unwritable: ")
    assert str(tmp_path / "segments") in reason
    watermarks.check_unwritable(unwritable(tmp_path))
    assert watermarks.unready() == []
    assert events(caplog) == ["journal-unwritable", "journal-unwritable-ended"]
    (tmp_path / "snapshots").rmdir()
    assert str(tmp_path / "snapshots") in unwritable(tmp_path)
