"""Times, durations and globs as options of jobs."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from maxam.pipeline.spark.selection import GlobType, Selection
from maxam.terminal.moments import Duration, Moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T18:30:00Z", datetime(2026, 11, 21, 18, 30, tzinfo=UTC)),
        ("2026-11-21T18:30:00+10:00", datetime(2026, 11, 21, 8, 30, tzinfo=UTC)),
        ("2026-11-21 18:30:00.000001-01:30", datetime(2026, 11, 21, 20, 0, 0, 1, UTC)),
        ("20261121T1830Z", datetime(2026, 11, 21, 18, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_iso_8601_with_a_zone(text: str, moment: datetime) -> None:
    """A time with Z or an offset is that moment."""
    assert Moment().convert(text, None, None) == moment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-11-21T18:30:00", "add Z for UTC, or an offset"),
        ("2026-11-21", "add Z for UTC, or an offset"),
        ("yesterday", "nor a time in ISO 8601"),
        ("2026-13-01T00:00:00Z", "nor a time in ISO 8601"),
        ("9999-12-31T23:59:59.999999Z", "out of range"),
        ("0001-01-01T00:00:00+23:00", "out of range"),
    ],
)
def test_another_time_is_refused(text: str, says: str) -> None:
    """A time without a zone, or none at all, is a usage error with the fault."""
    with pytest.raises(click.BadParameter, match=says):
        Moment().convert(text, None, None)


def test_a_duration_has_a_unit() -> None:
    """Durations are a number and one of five units."""
    lengths = [Duration().convert(text, None, None) for text in ("500ms", "90s", "1.5m", "2h", "1d")]
    assert [length.total_seconds() for length in lengths] == [0.5, 90, 90, 7200, 86_400]


@pytest.mark.parametrize("text", ["", "5", "0s", "-1s", "1w", "1h30m", "99999999999d"])
def test_another_duration_is_refused(text: str) -> None:
    """A value that is no duration above zero is a usage error."""
    with pytest.raises(click.BadParameter, match="duration"):
        Duration().convert(text, None, None)


def test_a_malformed_glob_is_refused() -> None:
    """A glob that the broker would refuse is a usage error with its reason."""
    with pytest.raises(click.BadParameter, match="']' is missing"):
        GlobType().convert("X/[a", None, None)


def test_only_what_is_selected_prunes() -> None:
    """A selection prunes by what it has."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert Selection().prune() == {}
    assert Selection(since=moment, until=moment + timedelta(1), to_revision=5).prune() == {
        "since": moment,
        "until": moment + timedelta(1),
        "to_revision": 5,
    }
