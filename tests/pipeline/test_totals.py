"""The totals of machines and venues on Spark: what a journal holds, against the naive model."""

import csv
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from maxam.content import pack
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.spark.reading import read_journal
from maxam.records import Change, Validation
from tests.examples.meter_readings import HOUR_US, NOON_US, REGISTRY, SCHEMAS, Reading, alphabet, body_of, model, table
from tests.support.journal_records import ALICE, SYNC, change
from venue.command import main
from venue.meters import MARKS, METER_READING, METERS
from venue.periods import GAMING_DAY, HOUR, Kind, Periods
from venue.running import VenueTotals
from venue.totals import meter_deltas, meter_readings, meter_totals, newest_totals, period_sums

pytestmark = pytest.mark.slow

MACHINES = 12
READINGS = 1500
VERSION = REGISTRY.versions(METER_READING)[0]
DATUM = Validation("datum", METER_READING, VERSION.minor, VERSION.crc_64)
Run = Callable[..., Result]
Histories = dict[str, list[tuple[int, Reading]]]


def histories() -> Histories:
    """Return readings by machine, each with its revision: all that machines do, in random order."""
    chance = random.Random(17)  # noqa: S311  # no secret
    kinds = alphabet()
    found: Histories = {str(10_000 + n): [] for n in range(MACHINES)}
    for revision in range(1, READINGS + 1):
        one = chance.choice(kinds)
        if one.undated:
            one = replace(one, time_us=accepted_us(revision))
        found[chance.choice(list(found))].append((revision, one))
    return found


def accepted_us(revision: int) -> int:
    """Return when a revision was accepted: after all that the readings report."""
    return NOON_US + 8 * HOUR_US + revision * 1000


def changes(machines: Histories) -> Iterator[Change]:
    """Return the changes that a gateway would have accepted, with others among them, by revision."""
    readings = sorted((revision, machine, one) for machine, history in machines.items() for revision, one in history)
    for revision, machine, one in readings:
        destination = f"X/EGM.{one.protocol}.{machine}.EGMMeterReading".encode()
        yield Change(
            revision, accepted_us(revision), destination, False, ALICE, DATUM, *pack((), body_of(machine, one))
        )


def write_journal(folder: Path, some: Sequence[Change]) -> None:
    """Write changes as a gateway does, in blocks of 100, the last ones in the open segment."""
    journal = Journal.open(folder, OsDisk(), JournalSettings(segment_bytes_max=60_000), SYNC)
    assert list(journal.recover()) == []
    journal.keep_schemas(REGISTRY.texts())
    for at in range(0, len(some), 100):
        journal.write(journal.encode(list(some[at : at + 100])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a journal of readings, a delete, a value of another type and one whose schema is lost."""
    folder = tmp_path_factory.mktemp("totals") / "journal"
    others = [
        change(
            READINGS + 1, b"X/EGM.Q.10000.EGMMeterReading", b"", DATUM, deleted=True, at_us=accepted_us(READINGS + 1)
        ),
        change(READINGS + 2, at_us=accepted_us(READINGS + 2)),
        change(
            READINGS + 3,
            b"X/EGM.Q.10001.EGMMeterReading",
            b"?",
            Validation("datum", METER_READING, "9.9", b"........"),
            at_us=accepted_us(READINGS + 3),
        ),
    ]
    write_journal(folder, [*changes(histories()), *others])
    return folder


def expected(periods: Periods) -> dict[tuple[str, str, int], list[int]]:
    """Return the sums by venue, machine and period as the model has them."""
    sums: dict[tuple[str, str, int], list[int]] = {}
    for machine, history in histories().items():
        for told, (_, one) in zip(model([one for _, one in history], periods), history, strict=True):
            venue, _, start, _, *numbers = told
            known = one.problem is None or one.venue
            at = sums.setdefault((str(venue) if known else "", machine, int(str(start))), [0] * len(numbers))
            for n, number in enumerate(numbers):
                at[n] += int(str(number))
    return sums


CUTS = [(HOUR, "Asia/Kathmandu", "00:00"), (GAMING_DAY, "Australia/Sydney", "02:30")]


@pytest.mark.parametrize(("kind", "zone", "day_start"), CUTS)
def test_spark_counts_as_the_model_does(
    spark: SparkSession, folder: Path, kind: Kind, zone: str, day_start: str
) -> None:
    """The sums by machine, venue and period are those of the model; what cannot be read is counted, without a machine."""
    periods = Periods.read(kind, zone, day_start)
    readings = meter_readings(read_journal(spark, folder), Catalogue.load(folder, None))
    sums = period_sums(meter_deltas(readings, periods)).persist()
    rows = [row.asDict() for row in meter_totals(sums, periods).collect()]
    unread = [row for row in rows if row["venue"] is None]
    assert [(row["machine"], row["unusable"]) for row in unread] == [(None, 1)]
    found = {}
    for row in rows:
        if row["venue"] is not None:
            start_us = int(row["period_start"].timestamp()) * 1_000_000
            assert row["date"] == periods.around(start_us + 1).date
            assert int(row["period_end"].timestamp()) * 1_000_000 == periods.around(start_us + 1).end
            # a reading with a problem names another machine
            found[row["venue"], row["machine"], start_us] = [row[name] for name in (*METERS, *MARKS)]
    wanted = by_told_machine(expected(periods))
    assert found == wanted

    # by venue
    of_venues = {
        (row["venue"], int(row["period_start"].timestamp()) * 1_000_000): row.asDict()
        for row in meter_totals(sums, periods, "venue").collect()
        if row["venue"] is not None
    }
    assert {key[0::2] for key in wanted} == set(of_venues)
    for (venue, start_us), row in of_venues.items():
        parts = [(key[1], numbers) for key, numbers in wanted.items() if (key[0], key[2]) == (venue, start_us)]
        assert [row[name] for name in (*METERS, *MARKS)] == [
            sum(column) for column in zip(*(n for _, n in parts), strict=True)
        ]
        assert row["machines"] == len({machine for machine, numbers in parts if numbers[len(METERS)]})

    # and the values to publish are those of the running totals
    running = VenueTotals(periods)
    running.take(readings.toArrow().cast(table([]).schema).combine_chunks().to_batches()[0], READINGS + 3)
    assert newest_totals(sums, periods, READINGS + 3).values() == running.values()
    sums.unpersist()


def by_told_machine(sums: dict[tuple[str, str, int], list[int]]) -> dict[tuple[str, str, int], list[int]]:
    """Move what unusable readings are counted for to the machine that they name."""
    found: dict[tuple[str, str, int], list[int]] = {}
    unusable = len(METERS) + MARKS.index("unusable")
    for (venue, machine, start), numbers in sums.items():
        kept, moved = list(numbers), [0] * len(numbers)
        kept[unusable], moved[unusable] = 0, numbers[unusable]
        for name, part in ((machine, kept), ("another", moved)):
            if any(part):
                at = found.setdefault((venue, name, start), [0] * len(part))
                found[venue, name, start] = [a + b for a, b in zip(at, part, strict=True)]
    return found


@pytest.fixture
def run(spark: SparkSession, folder: Path) -> Run:
    """Return what calls the command in the session of the tests."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["--journal", str(folder), "--quiet", *arguments])

    assert spark is not None
    return call


def test_the_verb_gives_rows(run: Run, tmp_path: Path) -> None:
    """JSON and CSV hold the same rows, by period, venue and machine; --per venue has their sums."""
    machines = run("--by", "hour", "--format", "json")
    assert machines.exit_code == 0, machines.output
    rows = [json.loads(line) for line in machines.stdout.splitlines()]
    order = [(row["period_start"], row["venue"] or "", row["machine"] or "") for row in rows]
    assert order == sorted(order)
    assert list(rows[0]) == ["date", "period_start", "period_end", "venue", "machine", *METERS, *MARKS]
    assert run("--by", "hour", "--out", str(tmp_path / "totals.csv")).exit_code == 0
    with (tmp_path / "totals.csv").open(newline="") as file:
        assert [row["turnover_cents"] for row in csv.DictReader(file)] == [str(row["turnover_cents"]) for row in rows]
    venues = run("--by", "hour", "--per", "venue", "--format", "json")
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["venue"]] += row["turnover_cents"]
    told: Counter[str] = Counter()
    for line in venues.stdout.splitlines():
        row = json.loads(line)
        told[row["venue"]] += row["turnover_cents"]
    assert told == sums
    assert sum(sums.values()) > 0
    assert run().stdout.count("\n") > 10


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["--timezone", "Mars/Olympus"], 2, "no time zone 'Mars/Olympus'"),
        (["--day-start", "6am"], 2, "'6am' is no time of day"),
        (["--by", "week"], 2, "'week' is not one of"),
        (["--follow"], 2, "--follow needs --publish and --state"),
        (["--follow", "--publish"], 2, "--follow needs --publish and --state"),
        (["--state", "state"], 2, "--state is for --follow"),
        (["--publish"], 2, "--publish needs --schemas"),
        (["--publish", "--schemas", str(SCHEMAS)], 2, "Error [usage]: no CA certificate of the gateway is given"),
        (["--publish", "--schemas", "/nonesuch"], 1, "/nonesuch is not a schema folder"),
    ],
)
def test_wrong_arguments_are_named(run: Run, arguments: list[str], code: int, problem: str) -> None:
    """Each mistake has its exit code and a line with the expected form."""
    result = run(*arguments)
    assert result.exit_code == code
    assert problem in result.stderr
