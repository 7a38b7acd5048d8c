"""Limits of the journal on its disk: the archive has a share of it, a segment a small part, and the next snapshot an estimate."""

from pathlib import Path

import pytest

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.config import JournalSettings, Limits
from maxam.gateway.disk_budget import SnapshotSize, disk_bytes, retention_bytes_max, segment_bytes_max, wanted_bytes
from maxam.gateway.watermarks import Watermarks
from tests.support.journal_records import change

GIB = 2**30


@pytest.mark.parametrize(
    ("archive", "share", "disk", "limit"),
    [
        (50 * GIB, 0.5, 200 * GIB, 50 * GIB),
        (50 * GIB, 0.5, 60 * GIB, 30 * GIB),
        (50 * GIB, 0.0, 60 * GIB, 50 * GIB),
        (0, 0.5, 60 * GIB, 0),
    ],
)
def test_the_archive_has_the_smaller_of_its_limit_and_its_share(
    archive: int, share: float, disk: int, limit: int
) -> None:
    """A share of 0 takes no account of the disk, and a limit of 0 keeps all."""
    assert (
        retention_bytes_max(JournalSettings(retention_bytes_max=archive, retention_disk_share_max=share), disk) == limit
    )


def test_a_segment_is_a_small_part_of_a_small_disk() -> None:
    """But never below the least that can be configured; on a large disk it is as configured."""
    settings = JournalSettings()
    assert segment_bytes_max(settings, 300 * 2**20) == 300 * 2**20 // 32
    assert segment_bytes_max(settings, 2**20) == 65_536
    assert segment_bytes_max(settings, 100 * GIB) == settings.segment_bytes_max


def test_a_folder_that_is_not_made_yet_has_the_disk_of_the_one_above(tmp_path: Path) -> None:
    """The size is known before the journal is made."""
    assert disk_bytes(tmp_path / "var" / "journal") == disk_bytes(tmp_path) > 0


def test_the_estimate_follows_the_topics_and_looks_at_few_of_them_at_a_time() -> None:
    """One call reads 1,000 topics at most; the estimate is above what the values take, and not below the newest snapshot."""
    limits = Limits()
    broker = Broker(limits, Policy({}, {}, limits), load_registry({"registry.toml": b""}))
    size = SnapshotSize(broker.store)
    assert size.look(0, 0) == 0
    assert size.look(1000, 0) >= 1000
    for n in range(1, 2501):
        broker.replay(change(n, b"X/%d" % n, body=b"x" * 500))
    broker.store.sort()
    assert size.look(0, 0) >= 2500 * 500
    assert size._topics == 1000
    size.look(0, 0)
    size.look(0, 0)
    assert size._topics == 2500


def test_a_disk_that_is_smaller_than_the_configuration_wants_is_told() -> None:
    """Health shows how large it is and what is needed."""
    limits = Limits()
    broker = Broker(limits, Policy({}, {}, limits), load_registry({"registry.toml": b""}))
    watermarks = Watermarks(broker, lambda: None, Path("/journal"), 1000, 0, wanted_bytes(JournalSettings()))
    assert watermarks.degraded() == []
    watermarks.disk_bytes = 20 * GIB
    [line] = watermarks.degraded()
    assert line.startswith("disk-small: ")
    watermarks.disk_bytes = 100 * GIB
    assert watermarks.degraded() == []
