"""The report's page: whole, self-contained, and safe whatever names clients chose."""

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="pyspark is part of maxam[pipeline]")

from maxam.pipeline.jobs.drawing import HALF, readable
from maxam.pipeline.jobs.figures import INTERVALS_MAX, SUBSCRIPTIONS_MAX, TYPES_MAX, DeliveryLine, Figures, interval_for
from maxam.pipeline.jobs.page import render

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EVIL = "X/EGM.</script><script>alert(1)</script>.\u202egnp"


def figures() -> Figures:
    """Give three hours of a small archive whose names are hostile."""
    return Figures(
        folder=EVIL,
        made_at=NOW,
        first_at=NOW - timedelta(hours=3),
        last_at=NOW,
        interval_s=3600,
        starts=[NOW - timedelta(hours=3 - n) for n in range(3)],
        changes=6,
        topics=2,
        publishers=[(EVIL, 6)],
        rates={EVIL: [1.0, 2.0, 3.0]},
        live=[1, 1, 2],
        seen=[1, 1, 2],
        growth_bytes=[10, 20, 30],
        ages=[("< 1 s", 2)],
        hot=[(EVIL, 4), ("X/EGM.Q.1.EGMStatus", 2)],
        silent=[(EVIL, 7.5)],
        week=[[n] * 24 for n in range(7)],
        delivery=[DeliveryLine(EVIL, [0.1, None, 0.2], [0.5, None, 0.6])],
        rejected={"no-rule": [0.0, 0.5, 0.0]},
        rejected_by=[(EVIL, "rejected-invalid", 1800)],
    )


def charts(page: str) -> dict[str, str]:
    """Return the drawing of each chart by its title."""
    found = re.findall(r'<div class="chart" role="img" aria-label="([^"]*)">(<svg.*?</svg>)</div>', page, re.DOTALL)
    return dict(found)


def told(drawing: str) -> list[str]:
    """Return what a browser shows while the pointer is over a mark."""
    return [html.unescape(text) for text in re.findall(r"<title>(.*?)</title>", drawing, re.DOTALL)]


def test_each_chart_shows_its_figures() -> None:
    """Each chart has marks, and the pointer finds the figures that were computed, also where a line has a gap."""
    found = charts(render(figures()))
    assert len(found) == 11
    assert all('class="mark"' in drawing for drawing in found.values())
    rates = told(found["Changes a second"])
    assert [text.splitlines()[0] for text in rates] == [f"{NOW - timedelta(hours=3 - n):%F %T}" for n in range(3)]
    assert [text.rpartition(": ")[2] for text in rates] == ["1/s", "2/s", "3/s"]
    stale = told(found["How stale values were when they were taken"])
    assert [[line.rpartition(": ")[2] for line in text.splitlines()[1:]] for text in stale] == [
        ["0.1 s", "0.5 s"],
        ["0.2 s", "0.6 s"],
    ]
    assert told(found["Who was rejected"])[0].endswith(": 1,800")
    assert "Sun 23:00 - 23:59: 6" in told(found["The week"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00042, "0.00042"),
        (0.000001234, "0.00000123"),
        (0.3858, "0.386"),
        (12.34, "12.3"),
        (999.7, "1,000"),
        (1834.4, "1,834"),
        (651_735, "651,735"),
        (12_345_678, "12.3 M"),
        (5.5e9, "5.5 G"),
    ],
)
def test_numbers_are_readable(value: float, text: str) -> None:
    """A number has three digits or all digits of a whole number, and never an exponent."""
    assert readable(value) == text


def test_a_full_page_is_small() -> None:
    """A page with the most intervals, types, topics and subscriptions, all with the longest names, is below 1 MB."""
    names = [f"{number:02}" * 40 for number in range(15)]
    values = [1234.5678] * INTERVALS_MAX
    whole = [123_456_789] * INTERVALS_MAX
    full = replace(
        figures(),
        starts=[NOW - timedelta(hours=n) for n in range(INTERVALS_MAX)][::-1],
        rates=dict.fromkeys(names[: TYPES_MAX + 1], values),
        live=whole,
        seen=whole,
        growth_bytes=whole,
        hot=[(name, 5) for name in names],
        silent=[(name, 5.0) for name in names],
        publishers=[(name, 5) for name in names],
        delivery=[DeliveryLine(name, list(values), list(values)) for name in names[:SUBSCRIPTIONS_MAX]],
        rejected=dict.fromkeys(names, values),
        rejected_by=[(name, "rejected-invalid", 5) for name in names],
    )
    assert len(render(full).encode()) < 1_000_000


def test_nothing_is_loaded_and_no_name_becomes_markup() -> None:
    """The page refers to no other resource, runs no script, forbids both, and hostile names stay text."""
    page = render(figures())
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="', page)
    assert "<script" not in page
    assert "\u202e" not in page
    assert "&lt;/script&gt;" in page


def test_an_empty_archive_says_so() -> None:
    """An archive without changes and rejections gives a page that shows it is empty, without charts."""
    page = render(Figures("/var/journal", NOW))
    assert "The archive is empty." in page
    assert 'class="chart"' not in page


@pytest.mark.parametrize("seconds", [0, 1, 59, 240, 3600, 86_400, 7 * 86_400, 400 * 86_400, 10 * 366 * 86_400])
def test_intervals_are_few_and_as_short_as_can_be(seconds: int) -> None:
    """A span of any length up to years has at most INTERVALS_MAX intervals, and more than a twelfth as many if it is long."""
    interval_s = interval_for(NOW - timedelta(seconds=seconds), NOW)
    count = int(NOW.timestamp()) // interval_s - int((NOW - timedelta(seconds=seconds)).timestamp()) // interval_s + 1
    assert count <= INTERVALS_MAX
    assert interval_s == 1 or count > INTERVALS_MAX // 12


def test_labels_leave_room_for_the_bars() -> None:
    """Beside a bar stands the beginning and the end of a long name; the pointer shows more."""
    name = "X/EGM.Q.10010." + "Golden-Wattle" * 9 + ".GameDetectedConfig"
    found = charts(render(replace(figures(), hot=[(name, 1)], silent=[(name, 1.5)])))
    for title in ("Hottest topics", "Longest without an update"):
        assert "X/EGM.Q.10010.G…tle.GameDetectedConfig" in found[title]
        assert len(told(found[title])[0]) > len("X/EGM.Q.10010.G…tle.GameDetectedConfig: 1")
        (bar,) = re.findall(r'<rect class="mark" [^>]* width="([\d.]+)"', found[title])
        assert float(bar) > HALF / 3
