"""The figures of the report, computed from the archive: small tables, however large the archive is.

Time is cut into at most INTERVALS_MAX equal intervals of a round length; everything over time is per interval.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from maxam.journal.listing import Problem

INTERVALS_MAX: Final = 240  # of a chart: more could not be distinguished
TYPES_MAX: Final = 8  # shown by name; the others together
TOPICS_MAX: Final = 15
SUBSCRIPTIONS_MAX: Final = 6
UNTYPED: Final = "(no schema)"
OTHERS: Final = "(others)"
COLUMNS: Final = ("revision", "accepted_at", "kind", "destination", "publisher", "schema", "body")
REJECTED_COLUMNS: Final = ("accepted_at", "publisher", "disposition", "result")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_LENGTHS_S: Final = (  # round ones, so that people can read the axis
    *(1, 2, 5, 10, 15, 30),
    *(n * _MINUTE_S for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR_S for n in (1, 2, 3, 6, 12)),
    *(n * _DAY_S for n in (1, 7, 28)),
)
_AGES_S: Final = (
    0.1,
    1,
    10,
    _MINUTE_S,
    10 * _MINUTE_S,
    _HOUR_S,
    6 * _HOUR_S,
    _DAY_S,
    7 * _DAY_S,
)  # upper ends, the last one open
_AGE_NAMES: Final = (
    "< 0.1 s",
    "< 1 s",
    "< 10 s",
    "< 1 min",
    "< 10 min",
    "< 1 h",
    "< 6 h",
    "< 1 day",
    "< 7 days",
    "older",
)

Line = dict[str, list[float]]  # name -> one figure per interval


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    """Age in seconds of values when a durable subscription acknowledged them, per interval. None where it took none."""

    name: str
    median_s: list[float | None]
    p99_s: list[float | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is shown.

    Attributes:
        folder: The journal.
        made_at: Time of the report.
        first_at: Of the oldest change; None in an empty archive, where all else is empty.
        last_at: Of the newest record.
        interval_s: Length of an interval.
        starts: Of each interval, UTC.
        changes: How many there are.
        deletes: How many of them delete.
        topics: With a value at the end.
        publishers: Changes by principal, the most first.
        body_bytes: Of all changes together.
        rates: Changes a second by message type.
        live: Topics with a value at the end of each interval.
        seen: Topics that had one until then.
        growth_bytes: Sum of the bodies until the end of each interval.
        ages: Topics with a value by the age of that value at the end of the archive.
        hot: Topics with the most changes.
        silent: Topics whose value is the oldest, in seconds.
        week: Changes by weekday (0 is Monday) and hour, UTC; None when the archive is shorter than two days.
        delivery: Of durable subscriptions, those that took most.
        rejected: A second, by result code.
        rejected_by: By principal and disposition, the most first.
        problems: Of the archive.
    """

    folder: str
    made_at: datetime
    first_at: datetime | None = None
    last_at: datetime | None = None
    interval_s: int = 1
    starts: list[datetime] = field(default_factory=list)
    changes: int = 0
    deletes: int = 0
    topics: int = 0
    publishers: list[tuple[str, int]] = field(default_factory=list)
    body_bytes: int = 0
    rates: Line = field(default_factory=dict)
    live: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    growth_bytes: list[int] = field(default_factory=list)
    ages: list[tuple[str, int]] = field(default_factory=list)
    hot: list[tuple[str, int]] = field(default_factory=list)
    silent: list[tuple[str, float]] = field(default_factory=list)
    week: list[list[int]] | None = None
    delivery: list[DeliveryLine] = field(default_factory=list)
    rejected: Line = field(default_factory=dict)
    rejected_by: list[tuple[str, str, int]] = field(default_factory=list)
    problems: "Sequence[Problem]" = ()


def interval_for(first_at: datetime, last_at: datetime) -> int:
    """Return the shortest round length in seconds of which INTERVALS_MAX cover both times."""
    for length_s in _LENGTHS_S:
        first = int(first_at.timestamp()) // length_s
        last = int(last_at.timestamp()) // length_s
        if last - first < INTERVALS_MAX:
            return length_s
    return _LENGTHS_S[-1]


def compute(
    changes: "DataFrame",
    sessions: "DataFrame",
    rejected: "DataFrame",
    folder: str,
    made_at: datetime,
    problems: "Sequence[Problem]" = (),
) -> Figures:
    """Compute everything; reads `changes` once and keeps a narrow copy of it, on disk where memory does not do.

    Args:
        changes: With COLUMNS.
        sessions: Of `rows.SESSION_COLUMNS`.
        rejected: With REJECTED_COLUMNS.
        folder: The journal, to be named.
        made_at: Now.
        problems: Of the archive.
    """
    slim = changes.select(
        "revision",
        "accepted_at",
        sql.unix_micros("accepted_at").alias("at_us"),
        (sql.col("kind") == "delete").alias("deleted"),
        "destination",
        "publisher",
        sql.when(sql.col("schema") == "", UNTYPED).otherwise(sql.col("schema")).alias("type"),
        sql.length("body").alias("bytes"),
    ).persist()
    try:
        return _compute(slim, sessions, rejected, Figures(folder, made_at, problems=problems))
    finally:
        slim.unpersist()


def _compute(slim: "DataFrame", sessions: "DataFrame", rejected: "DataFrame", empty: Figures) -> Figures:
    (whole,) = slim.agg(
        sql.min("at_us"), sql.max("at_us"), sql.count("*"), sql.count_if("deleted"), sql.sum("bytes")
    ).collect()
    (refused,) = rejected.agg(
        sql.unix_micros(sql.min("accepted_at")), sql.unix_micros(sql.max("accepted_at"))
    ).collect()
    starts_us = [at for at in (whole[0], refused[0]) if at is not None]
    if not starts_us:
        return empty
    first_at = _moment(min(starts_us))
    last_at = _moment(max(at for at in (whole[1], refused[1]) if at is not None))
    length_s = interval_for(first_at, last_at)
    origin = int(first_at.timestamp()) // length_s
    count = int(last_at.timestamp()) // length_s - origin + 1
    place = (sql.floor(sql.col("at_us") / (length_s * 1_000_000)) - sql.lit(origin)).cast("int").alias("place")

    per_place = (
        slim.groupBy(place, "type").agg(sql.count("*").alias("changes"), sql.sum("bytes").alias("bytes")).collect()
    )
    totals: defaultdict[str, int] = defaultdict(int)
    grown = [0] * count
    for row in per_place:
        totals[row.type] += row.changes
        grown[row.place] += row.bytes
    named = set(sorted(totals, key=lambda name: -totals[name])[:TYPES_MAX])
    rates: Line = {name: [0.0] * count for name in sorted(named, key=lambda name: -totals[name])}
    for row in per_place:
        line = rates.setdefault(row.type if row.type in named else OTHERS, [0.0] * count)
        line[row.place] += row.changes / length_s

    topics = (
        slim.groupBy("destination")
        .agg(
            sql.count("*").alias("changes"),
            sql.max(sql.struct("revision", "at_us", "deleted")).alias("newest"),
            sql.min(sql.when(~sql.col("deleted"), sql.col("at_us"))).alias("at_us"),  # of the first value
            sql.count_if("deleted").alias("deletes"),
        )
        .persist()
    )
    try:
        live, seen = _growth(slim, topics, place, count)
        ages, silent = _ages(topics, whole[1])
        hot = [
            (row.destination, row.changes)
            for row in topics.orderBy(sql.desc("changes"), "destination").head(TOPICS_MAX)
        ]
    finally:
        topics.unpersist()
    publishers = slim.groupBy("publisher").count().orderBy(sql.desc("count"), "publisher").head(TOPICS_MAX)
    return Figures(
        folder=empty.folder,
        made_at=empty.made_at,
        first_at=first_at,
        last_at=last_at,
        interval_s=length_s,
        starts=[_moment((origin + n) * length_s * 1_000_000) for n in range(count)],
        changes=whole[2],
        deletes=whole[3],
        topics=sum(number for _, number in ages),
        publishers=[(row.publisher, row["count"]) for row in publishers],
        body_bytes=whole[4] or 0,
        rates=rates,
        live=live,
        seen=seen,
        growth_bytes=_summed(grown),
        ages=ages,
        hot=hot,
        silent=silent,
        week=_week(slim) if last_at - first_at >= timedelta(days=2) else None,
        delivery=_delivery(slim, sessions, place, count),
        rejected=_rejected(rejected, place, count, length_s),
        rejected_by=[
            (row.publisher, row.disposition, row["count"])
            for row in rejected.groupBy("publisher", "disposition").count().orderBy(sql.desc("count")).head(TOPICS_MAX)
        ],
        problems=empty.problems,
    )


def _growth(slim: "DataFrame", topics: "DataFrame", place: "Column", count: int) -> tuple[list[int], list[int]]:
    """Return how many topics have a value, and how many ever had one, at the end of each interval."""
    seen = [0] * count
    for row in topics.where("at_us is not null").groupBy(place).count().collect():
        seen[row.place] += row["count"]
    turns = list(seen)
    # Only topics that were ever deleted need all their changes read, in order.
    in_order = Window.partitionBy("destination").orderBy("revision")
    mortal = slim.join(topics.where("deletes > 0").select("destination"), "destination", "left_semi")
    before = sql.lag("deleted", 1).over(in_order)
    first = sql.min(sql.when(~sql.col("deleted"), sql.col("revision"))).over(in_order)  # of its values; until here
    later = (
        mortal.withColumns({"before": before, "first": first})
        .where("before != deleted and (deleted or revision != first)")  # the first value was counted above
        .groupBy(place)
        .agg(sql.sum(sql.when(sql.col("deleted"), -1).otherwise(1)).alias("turn"))
    )
    for row in later.collect():
        turns[row.place] += row.turn
    return _summed(turns), _summed(seen)


def _ages(topics: "DataFrame", end_us: int | None) -> tuple[list[tuple[str, int]], list[tuple[str, float]]]:
    """Return how many values are how old at the end, and the oldest ones."""
    if end_us is None:
        return [], []
    present = topics.where("not newest.deleted").select(
        "destination", ((sql.lit(end_us) - sql.col("newest.at_us")) / 1_000_000).alias("age_s")
    )
    box = sql.lit(len(_AGES_S))
    for place, limit_s in reversed(list(enumerate(_AGES_S))):
        box = sql.when(sql.col("age_s") < limit_s, place).otherwise(box)
    boxes = {row.box: row["count"] for row in present.groupBy(box.alias("box")).count().collect()}
    oldest = present.orderBy(sql.desc("age_s"), "destination").head(TOPICS_MAX)
    return (
        [(name, boxes.get(place, 0)) for place, name in enumerate(_AGE_NAMES)],
        [(row.destination, row.age_s) for row in oldest],
    )


def _week(slim: "DataFrame") -> list[list[int]]:
    week = [[0] * 24 for _ in range(7)]
    found = slim.groupBy(sql.weekday("accepted_at").alias("day"), sql.hour("accepted_at").alias("hour")).count()
    for row in found.collect():
        week[row.day][row.hour] = row["count"]
    return week


def _delivery(slim: "DataFrame", sessions: "DataFrame", place: "Column", count: int) -> list[DeliveryLine]:
    """Return how old values were when they were acknowledged."""
    acknowledged = sessions.where("kind = 'acknowledgement'").select(
        sql.concat_ws(" / ", "principal", "client_id", "subscription").alias("name"),
        sql.unix_micros("accepted_at").alias("acked_us"),
        sql.explode("positions").alias("position"),
    )
    aged = acknowledged.join(
        slim.select("revision", sql.col("at_us").alias("accepted_us")),
        sql.col("position.revision") == sql.col("revision"),
    ).select(
        "name",
        sql.col("acked_us").alias("at_us"),
        ((sql.col("acked_us") - sql.col("accepted_us")) / 1e6).alias("age_s"),
    )
    age = sql.percentile_approx("age_s", [0.5, 0.99]).alias("age_s")
    rows = aged.groupBy("name", place).agg(age, sql.count("*").alias("values")).collect()
    taken: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        taken[row.name] += row["values"]
    lines = {
        name: DeliveryLine(name, [None] * count, [None] * count)
        for name in sorted(taken, key=lambda name: (-taken[name], name))[:SUBSCRIPTIONS_MAX]
    }
    for row in rows:
        line = lines.get(row.name)
        if line is not None and 0 <= row.place < count:  # an acknowledgement may come after the last change
            line.median_s[row.place], line.p99_s[row.place] = row.age_s
    return list(lines.values())


def _rejected(rejected: "DataFrame", place: "Column", count: int, length_s: int) -> Line:
    found = rejected.withColumn("at_us", sql.unix_micros("accepted_at")).groupBy(place, "result").count().collect()
    lines: Line = {}
    for row in sorted(found, key=lambda row: str(row.result)):
        lines.setdefault(row.result or "?", [0.0] * count)[row.place] += row["count"] / length_s
    return lines


def _summed(steps: Sequence[int]) -> list[int]:
    total = 0
    return [total := total + step for step in steps]


def _moment(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
