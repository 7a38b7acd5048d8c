"""A soak of seconds: the venue and its checks work, and what clients held is given back. Hours: `make soak`."""

from pathlib import Path

import pytest

from tests.soak.__main__ import run
from tests.soak.venue import Scale


@pytest.mark.slow
def test_what_clients_held_is_given_back(tmp_path: Path) -> None:
    """After all kinds of clients have come and gone, descriptors, tasks, connections, sessions and topics are as before."""
    scale = Scale(24, 4, 400, 60.0, stay_s=0.6, away_s=0.1, durable=5, silent=2, rivals=4)
    report = run(tmp_path, scale, 2.5, 0.5, seed=1)
    assert report.venue.tally.faults == []
    assert report.after.held == report.before.held
    for what in ("messages", "accepted", "disconnect", "close", "reset", "durable sessions resumed"):
        assert report.venue.tally.events[what] > 0, what
