"""The report's figures, against a naive count of the same changes."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from maxam.pipeline.jobs.figures import OTHERS, TYPES_MAX, Figures, compute
from maxam.pipeline.spark.rows import CHANGE_COLUMNS, REJECTED_COLUMNS, SESSION_COLUMNS

START = datetime(2026, 11, 19, 23, 30, tzinfo=UTC)
Row = dict[str, object]


def changes(seed: int, count: int = 3000) -> list[Row]:
    """Make changes of sixty topics over three days, a fifth of them deletes."""
    random = Random(seed)  # noqa: S311  # data
    rows = []
    for revision in range(1, count + 1):
        topic = random.randrange(60)
        deleted = random.random() < 0.2
        body = None if deleted else bytes(random.randrange(40))
        rows.append(
            {
                "revision": revision,
                "accepted_at": START + timedelta(days=3) * revision / count,
                "kind": "delete" if deleted else "value",
                "destination": f"X/EGM.Q.{topic}.T{topic % 11}",
                "publisher": f"venue-{topic % 3}",
                "schema": "" if topic % 11 == 0 else f"egm.T{topic % 11}_v1",
                "body": body or b"",
            }
        )
    return rows


def frame(spark: SparkSession, rows: list[Row], columns: StructType) -> DataFrame:
    """Make a frame of all columns, those not given null."""
    names = columns.fieldNames()
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], columns)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Return the changes of all tests here."""
    return changes(7)


@pytest.fixture(scope="module")
def figures(spark: SparkSession, rows: list[Row]) -> Figures:
    """Compute the figures once."""
    acks: list[Row] = [
        {
            "revision": row["revision"],
            "accepted_at": row["accepted_at"] + timedelta(seconds=2),  # type: ignore[operator]  # a datetime
            "kind": "acknowledgement",
            "principal": "wall",
            "client_id": "c",
            "subscription": "s",
            "positions": [(row["destination"], row["revision"])],
        }
        for row in rows[::10]
    ]
    refused: list[Row] = [
        {
            "revision": n,
            "accepted_at": START + timedelta(hours=n),
            "publisher": "stranger" if n % 3 else "venue-0",
            "disposition": "rejected-unauthorised" if n % 3 else "rejected-invalid",
            "result": "unauthorised" if n % 3 else "no-rule",
        }
        for n in range(1, 10)
    ]
    return compute(
        frame(spark, rows, CHANGE_COLUMNS),
        frame(spark, acks, SESSION_COLUMNS),
        frame(spark, refused, REJECTED_COLUMNS),
        "/var/journal",
        START,
    )


def test_sums_agree_with_the_changes(rows: list[Row], figures: Figures) -> None:
    """Every change is counted once: in all, by type over time, by publisher, by topic, by hour of the week, in bytes."""
    assert figures.changes == len(rows)
    assert figures.deletes == sum(row["kind"] == "delete" for row in rows)
    assert figures.body_bytes == sum(len(body) for row in rows if isinstance(body := row["body"], bytes))
    assert figures.growth_bytes[-1] == figures.body_bytes
    total = sum(sum(line) for line in figures.rates.values()) * figures.interval_s
    assert round(total) == len(rows)
    assert len(figures.rates) == TYPES_MAX + 1
    assert list(figures.rates)[-1] == OTHERS
    assert dict(figures.publishers) == Counter(row["publisher"] for row in rows)
    assert dict(figures.hot).items() <= Counter(row["destination"] for row in rows).items()
    assert figures.week is not None
    assert sum(map(sum, figures.week)) == len(rows)
    assert len(figures.starts) == len(figures.live) == len(figures.seen)


def test_topics_come_and_go_as_they_did(rows: list[Row], figures: Figures) -> None:
    """At the end of each interval as many topics have a value, and had one ever, as when the changes are replayed."""
    values: set[object] = set()
    ever: set[object] = set()
    place = 0
    expected: list[tuple[int, int]] = []
    length = timedelta(seconds=figures.interval_s)
    for row in rows:
        while row["accepted_at"] >= figures.starts[place] + length:  # type: ignore[operator]  # a datetime
            expected.append((len(values), len(ever)))
            place += 1
        if row["kind"] == "value":
            values.add(row["destination"])
            ever.add(row["destination"])
        else:
            values.discard(row["destination"])
    expected.append((len(values), len(ever)))
    assert list(zip(figures.live, figures.seen, strict=True)) == expected
    assert figures.topics == len(values) == sum(number for _, number in figures.ages)
    end = rows[-1]["accepted_at"]
    newest = {row["destination"]: row["accepted_at"] for row in rows}
    for name, age_s in figures.silent:
        assert age_s == pytest.approx((end - newest[name]).total_seconds())  # type: ignore[operator]  # datetimes


def test_staleness_is_that_of_the_acknowledgements(figures: Figures) -> None:
    """Values acknowledged two seconds after they were accepted are two seconds old, wherever there were any."""
    (line,) = figures.delivery
    assert line.name == "wall / c / s"
    ages = [age_s for age_s in line.median_s + line.p99_s if age_s is not None]
    assert ages
    assert all(age_s == pytest.approx(2) for age_s in ages)


def test_rejects_are_counted_by_result_and_principal(figures: Figures) -> None:
    """Each rejected SEND is in the line of its result code and in the bar of its principal."""
    assert {name: round(sum(line) * figures.interval_s) for name, line in figures.rejected.items()} == {
        "no-rule": 3,
        "unauthorised": 6,
    }
    assert figures.rejected_by == [("stranger", "rejected-unauthorised", 6), ("venue-0", "rejected-invalid", 3)]


def test_an_empty_archive_has_empty_figures(spark: SparkSession) -> None:
    """Without a change or a rejection there is no time and nothing else."""
    changes, sessions, rejected = (
        frame(spark, [], columns) for columns in (CHANGE_COLUMNS, SESSION_COLUMNS, REJECTED_COLUMNS)
    )
    assert compute(changes, sessions, rejected, "/var/journal", START) == Figures("/var/journal", START)
