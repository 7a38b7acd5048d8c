"""`maxam-admin top`: what stands on the screen, on terminals of any size."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from maxam.cli.screens.top import WHY, Report, bars, screen
from maxam.https_client import RemoteError
from maxam.terminal.units import duration


def report(behind: int, hot: int, busy: int, name: str = "signage", degraded: tuple[str, ...] = ()) -> Report:
    """Return what a gateway might have answered."""
    row: dict[str, Any] = {"principal": "floor", "glob": "X/EGM.*", "connected": True, "conflated": 12_345_678}
    return Report(
        health={
            "server": "maxam/1",
            "core": "compiled",
            "uptime_s": 90_000.0,
            "status": "degraded" if degraded else "ready",
            "reasons": [],
            "degraded": list(degraded),
            "figures": {"topics": 100_000, "sessions": 1000, "revision": 123_456_789},
            "connections": {"connected": 1000, "problems": 3},
            "overdue": 7,
        },
        rates={
            "sends_per_s": 350_000.4,
            "messages_per_s": 2_400_000.0,
            "acks_per_s": 3.0,
            "rejects_per_s": 0.0,
            "history": [["2026-11-22T00:00:00Z", n % 7, n % 5] for n in range(180)],
            "hot_topics": [{"destination": f"X/EGM.{n}.{name}", "updates_per_s": 12.5} for n in range(hot)],
            "busy_sessions": [{"principal": "floor", "client_id": name, "sends_per_s": 1.0, "messages_per_s": 2.0}]
            * busy,
        },
        behind={
            "behind": behind,
            "subscriptions": [
                row | {"client_id": f"{n} {name}", "staleness_s": 10.0 - n % 9, "owed": n, "unacked": 1, "cause": cause}
                for n, cause in zip(range(behind), itertools.cycle(WHY), strict=False)
            ],
        },
    )


def shown(seen: Report, width: int, height: int) -> list[str]:
    """Return the lines that a terminal would show."""
    out = Console(width=width, height=height, force_terminal=True, color_system=None, highlight=False)
    with out.capture() as captured:
        out.print(screen(seen, "localhost:8643", "q ends", width, height))
    return captured.get().split("\n")[:-1]


@pytest.mark.parametrize("width", [60, 74, 75, 109, 110, 119, 120, 250])
@pytest.mark.parametrize("height", [20, 24, 60])
def test_it_fits_and_names_who_is_behind(width: int, height: int) -> None:
    """For any number of rows no line is too long or folded, all fit, and the subscription that is furthest behind is shown whole."""
    for behind, others in itertools.product((0, 1, 50), (0, 20)):
        lines = shown(report(behind, others, others), width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert lines[-1].startswith("q ends")
        assert any(line.startswith("floor 0 signage") for line in lines) == (behind > 0)
        assert any("no subscription" in line for line in lines) == (behind == 0)


@pytest.mark.slow
@given(name=st.text(max_size=300), width=st.integers(60, 200))
def test_any_name_stays_in_its_place(name: str, width: int) -> None:
    """Names of clients are cut and escaped, whatever is in them."""
    lines = shown(report(2, 2, 2, name), width, 24)
    assert len(lines) <= 24
    assert all(line.isprintable() for line in lines)


def test_why_is_told_and_what_is_degraded() -> None:
    """The cause in words, and the first reasons."""
    lines = shown(report(5, 1, 1, degraded=("a: b", "c", "d", "e")), 120, 40)
    assert any("slow to acknowledge" in line for line in lines)
    assert [line.rstrip() for line in lines[1:4]] == ["a: b", "c", "d"]
    assert "degraded" in lines[0]


def test_what_is_old_is_called_old() -> None:
    """A missing answer is shown, with the age of the figures. Before the first answer there is nothing else."""
    seen = report(1, 1, 1)
    seen.error = RemoteError("nothing listens")
    seen.answered_s -= 100
    assert "1 m 40 s" in shown(seen, 100, 30)[1]
    assert shown(Report(error=RemoteError("nothing listens")), 100, 30)[1].rstrip() == "nothing listens"


def test_trends_are_scaled_to_what_is_shown() -> None:
    """The largest is the highest, nothing is the lowest, and the newest stands last."""
    assert bars([0, 1, 2, 4], 10) == "▁▂▄█"[:1] + "▃▅█"
    assert bars([9, 0, 0], 2) == "▁▁"
    assert bars([], 5) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (9.994, "9.99 s"),
        (10, "10 s"),
        (99.4, "99 s"),
        (100, "1 m 40 s"),
        (5999, "99 m 59 s"),
        (6000, "1 h 40 m"),
        (172_799, "47 h 59 m"),
        (172_800, "2 d 0 h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """Two units at most."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("backup", "text"),
    [(None, None), ({"age_s": None}, "no backup"), ({"age_s": 7200.0}, f"backup {duration(7200)} old")],
)
def test_the_age_of_the_newest_backup_is_shown(backup: dict[str, Any] | None, text: str | None) -> None:
    """A gateway that makes backups shows the age of the newest one, or that there is none."""
    seen = report(0, 0, 0)
    seen.health["backup"] = backup
    lines = "\n".join(shown(seen, 250, 24))
    assert ("backup" in lines) == (text is not None)
    assert text is None or text in lines


def test_reasons_without_room_are_counted() -> None:
    """Of many reasons three are shown, and how many more there are."""
    lines = shown(report(0, 0, 0, degraded=tuple(f"reason-{n}: text" for n in range(5))), 120, 24)
    assert sum("reason-" in line for line in lines) == 3
    assert any("2 more" in line for line in lines)
