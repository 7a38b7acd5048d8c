"""The report's page: whole, self-contained, and safe whatever names clients chose."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("plotly", reason="plotly is part of maxam[pipeline]")

from maxam.pipeline.jobs.figures import INTERVALS_MAX, DeliveryLine, Figures, interval_for
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


def test_the_page_holds_a_figure_for_each_chart() -> None:
    """Each chart has its place and its data as JSON, with the figures that were computed."""
    page = render(figures())
    places = re.findall(r'<div class="chart" id="(chart-\d+)"', page)
    data = {
        name: json.loads(text)
        for name, text in re.findall(r'json" id="(chart-\d+)-data">(.*?)</script>', page, re.DOTALL)
    }
    assert len(places) == 11
    assert set(places) == set(data)
    assert data["chart-0"]["data"][0]["y"] == [1.0, 2.0, 3.0]
    assert data["chart-3"]["data"][0]["y"] == [0.1, None, 0.2]


def test_nothing_is_loaded_and_no_name_becomes_markup() -> None:
    """The page refers to no other resource, forbids any, and hostile names stay text, in HTML, JSON and plotly's labels."""
    page = render(figures())
    ours = re.sub(r"<script>/\*.*?</script>", "", page, flags=re.DOTALL)  # without plotly itself
    assert len(ours) < 100_000
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="', ours)
    assert "alert(1)</script>" not in page
    assert "<script>alert" not in page
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
    page = render(replace(figures(), hot=[(name, 1)], silent=[(name, 1.5)]))
    found = re.findall(r'"ticktext":(\["[^"]*"\])', page)
    labels = [label for text in found for label in json.loads(text) if "GameDetected" in label]
    assert labels == ["X/EGM.Q.10010.G…tle.GameDetectedConfig"] * 2
    assert '"tickangle":0' in page
    assert "displayModeBar: false" in page  # it would stand over the first bar
