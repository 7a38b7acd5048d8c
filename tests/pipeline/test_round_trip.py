"""Live: publishers, gateway, Spark stream, totals published back, and a subscriber of somebody else's make."""

import datetime as dt
import io
import json
import os
import random
import signal
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fastavro
import pytest
import trio
from click.testing import CliRunner
from pyspark.sql import SparkSession

from maxam.client import ClientError, connect
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.java import find_java
from tests.examples.meter_readings import REGISTRY, SCHEMAS, Reading, body_of, model
from tests.interop.third_party import LIBRARIES, ThirdPartyClient
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from venue.command import main
from venue.meters import METERS
from venue.periods import GAMING_DAY, Periods
from venue.running import VENUE_METER_TOTALS, destination_of

pytestmark = [pytest.mark.slow, pytest.mark.interop]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "venue"
VENUE = "VENUE-7"
DESTINATION = f"X/Venue.{VENUE}.VenueMeterTotals"
POLICY = Path(__file__).parents[2] / "certs-dev" / "policy-dev.template.toml"
FIELDS = ("moneyIn", "moneyOut", "turnover", "wins", "gamesPlayed")
SCHEMA = fastavro.parse_schema(json.loads(REGISTRY.versions(VENUE_METER_TOTALS)[0].schema.text))


class TotalsProcess:
    """The example with `--publish --follow` as a process of its own. A context manager: leaving kills it."""

    def __init__(self, gateway: GatewayProcess, state: Path, periods: Periods) -> None:
        """Start it; `wait_for` knows when it is there."""
        files = gateway.certificates
        self._said = threading.Condition()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(EXAMPLE), "--publish", "--follow"),
                *("--journal", str(gateway.folder / "journal"), "--schemas", str(SCHEMAS), "--state", str(state)),
                *("--gateway", f"127.0.0.1:{gateway.port}", "--ca", str(files / "ca.pem")),
                *("--certificate", str(files / "pipeline.pem"), "--key", str(files / "pipeline.key")),
                *("--timezone", periods.zone.key, "--day-start", f"{periods.day_start:%H:%M}"),
                *("--master", "local[2]", "--conf", "spark.driver.memory=512m"),
                *("--conf", "spark.sql.shuffle.partitions=2"),
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str, since: int = 0) -> str:
        """Wait for the line that it prints after a number of lines, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        with self._said:
            while True:
                for line in self.lines[since:]:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise AssertionError(f"it never said {text!r}:\n" + "".join(self.lines))
                self._said.wait(min(left, 1.0))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to stop and give its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


class Subscriber:
    """stomp.py on the totals of all venues, which checks that none ever goes back."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, tuple[int, ...]]] = {}

    def take(self, client: ThirdPartyClient) -> dict[str, Any]:
        """Wait for the next totals."""
        message = client.message()
        value = decoded(message.body)
        current = value["current"]
        now = (
            int(message.headers["message-id"]),
            value["asOfRevision"],
            tuple(current[field] for field in ("readings", *FIELDS)),
        )
        destination = message.headers["destination"]
        before = self._seen.get(destination, (0, 0, (0,) * 6))
        assert now[0] >= before[0]
        assert now[1] >= before[1]
        assert all(new >= old for new, old in zip(now[2], before[2], strict=True)), (before, now)
        self._seen[destination] = now
        return value

    def until(self, client: ThirdPartyClient, as_of: int) -> dict[str, Any]:
        """Wait for totals that count up to a revision."""
        while True:
            value = self.take(client)
            if value["asOfRevision"] >= as_of:
                return value


def decoded(body: bytes) -> dict[str, Any]:
    """Return the value of a single-object body."""
    value = fastavro.schemaless_reader(io.BytesIO(body[10:]), SCHEMA, None)
    assert isinstance(value, dict)
    return value


def subscribe(gateway: GatewayProcess) -> ThirdPartyClient:
    """Return a client of stomp.py that is not connected yet."""
    LIBRARIES["stomp.py"].require()
    return ThirdPartyClient(LIBRARIES["stomp.py"], "1.2", gateway, "subscriber")


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway with the development policy and the shipped schemas."""
    try:
        find_java()
    except PipelineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Java: {error}")
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())
    policy = string.Template(POLICY.read_text(encoding="utf-8")).substitute(fingerprints)
    (tmp_path / "gateway").mkdir()
    process = GatewayProcess(tmp_path / "gateway", certificates, policy, SCHEMAS)
    process.keep_port("listener")
    with process:
        yield process


@pytest.fixture
def periods() -> Periods:
    """Return gaming days of which none ends while the test runs."""
    began = dt.datetime.now(dt.UTC) - dt.timedelta(hours=12)
    return Periods.read(GAMING_DAY, "UTC", f"{began:%H:%M}")


class Floor:
    """Machines that go on counting, and what of their readings the gateway has accepted."""

    def __init__(self) -> None:
        self._chance = random.Random(9)  # noqa: S311  # no secret
        start = (99_990_000, 99_980_000, 99_970_000, 99_960_000, 1000)  # the amounts of protocol S roll over soon
        now_us = time.time_ns() // 1000
        self._newest = {
            f"1000{n}": Reading(now_us, start, protocol=letter, venue=VENUE, credit_cents=5 if letter == "S" else 1)
            for n, letter in enumerate("QSXQSX")
        }
        self.accepted: dict[str, list[Reading]] = {machine: [] for machine in self._newest}

    @property
    def machines(self) -> list[str]:
        """The machines."""
        return list(self._newest)

    def next(self, machine: str) -> tuple[str, bytes, Reading]:
        """Return the next reading of a machine, as destination and body."""
        last = self._newest[machine]
        now_us = time.time_ns() // 1_000_000 * 1000
        chance = self._chance
        rises = [chance.randrange(3000) for _ in range(4)] + [chance.randrange(10)]
        if self.accepted[machine] and chance.random() < 0.03:  # its meters are set to zero
            one = replace(last, time_us=now_us, counters=tuple(rises), reset_us=now_us)
        else:
            counters = [old + rise for old, rise in zip(last.counters, rises, strict=True)]
            if last.protocol == "S":
                counters[:4] = [counter % 100_000_000 for counter in counters[:4]]
            one = replace(last, time_us=max(now_us, last.time_us), counters=tuple(counters))
        self._newest[machine] = one
        return f"X/EGM.{one.protocol}.{machine}.EGMMeterReading", body_of(machine, one), one

    def expected(self, periods: Periods) -> dict[str, int]:
        """Return the totals of all that was accepted, and how many readings made them."""
        sums = dict.fromkeys(FIELDS, 0)
        for history in self.accepted.values():
            for _, _, _, _, *numbers in model(history, periods):
                for field, number in zip(FIELDS, numbers[: len(METERS)], strict=True):
                    sums[field] += int(str(number))
        return sums


async def publish(
    gateway: GatewayProcess, floor: Floor, machines: list[str], *, until: threading.Event | None
) -> float:
    """Publish readings of these machines until an event, or one of each; go on after any loss. Return when the last was accepted."""
    accepted_s = 0.0
    under_way: tuple[str, bytes, Reading] | None = None
    turn = 0
    while True:
        try:
            async with connect(
                "127.0.0.1",
                gateway.port,
                certificate=gateway.certificates / "publisher.pem",
                key=gateway.certificates / "publisher.key",
                ca=gateway.certificates / "ca.pem",
            ) as client:
                # the last one too is sent until it is known to be accepted: the gateway may count it
                while under_way is not None or until is None or not until.is_set():
                    machine = machines[turn % len(machines)]
                    under_way = under_way or floor.next(machine)  # again, when we do not know what became of it
                    receipt = await client.send(under_way[0], under_way[1])
                    assert receipt.accepted, receipt
                    accepted_s = time.monotonic()
                    floor.accepted[machine].append(under_way[2])
                    under_way = None
                    turn += 1
                    if until is None and turn == len(machines):
                        return accepted_s
                    if until is not None:
                        await trio.sleep(0.005)  # a venue's pace: 200 readings a second
                return accepted_s
        except* ClientError:
            await trio.sleep(0.1)  # the gateway is away


def newest_revision(gateway: GatewayProcess, machines: int) -> int:
    """Return the revision of the newest reading that the gateway has, when N machines have one and none sends."""

    async def ask() -> int:
        newest: dict[str, int] = {}
        files = gateway.certificates
        async with (
            connect(
                "127.0.0.1",
                gateway.port,
                certificate=files / "subscriber.pem",
                key=files / "subscriber.key",
                ca=files / "ca.pem",
            ) as client,
            client.subscribe("X/EGM.*.EGMMeterReading", eager=True) as readings,
        ):
            with trio.fail_after(PATIENCE_S):
                while len(newest) < machines:
                    message = await anext(readings)
                    newest[message.destination] = int(message.message_id)
        return max(newest.values())

    return trio.run(ask)


def test_totals_come_back(
    spark: SparkSession,
    gateway: GatewayProcess,
    tmp_path: Path,
    periods: Periods,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Values from publishers of two makes come back as the totals of their venue, to a subscriber of another make."""
    assert spark.version  # one for the command that runs in this process
    floor = Floor()
    subscriber = Subscriber()
    latencies_s = []
    value: dict[str, Any] = {}
    with (
        subscribe(gateway) as client,
        ThirdPartyClient(LIBRARIES["stomp.py"], "1.1", gateway, "publisher") as publisher,
        TotalsProcess(gateway, tmp_path / "state", periods) as totals,
    ):
        client.connect()
        client.subscribe("totals", "X/Venue.*", ack="auto")
        publisher.connect()
        totals.wait_for("following ")
        for _ in range(8):
            for machine in floor.machines[:2]:
                destination, body, one = floor.next(machine)
                assert publisher.send(destination, body)["disposition"] == "accepted"
                floor.accepted[machine].append(one)
            accepted_s = trio.run(lambda: publish(gateway, floor, floor.machines[2:], until=None))
            readings = sum(len(history) for history in floor.accepted.values())
            while True:
                value = subscriber.take(client)
                if value["current"]["readings"] + value["current"]["baselines"] == readings:
                    break
            latencies_s.append(time.monotonic() - accepted_s)
            current = value["current"]
            assert {field: current[field] for field in FIELDS} == floor.expected(periods)
            assert (current["baselines"], current["unusableReadings"], current["lateReadings"]) == (6, 0, 0)
        assert (value["venueId"], value["periodKind"], value["timeZone"]) == (VENUE, "GAMING_DAY", "UTC")
        assert destination_of(VENUE, periods) == DESTINATION
        assert totals.stop() == 0
        summary = totals.wait_for(" publications")

        # and the same, reckoned again from the whole journal
        files = gateway.certificates
        arguments = ["--journal", str(gateway.folder / "journal"), "--schemas", str(SCHEMAS), "--publish", "--quiet"]
        arguments += ["--gateway", f"127.0.0.1:{gateway.port}", "--ca", str(files / "ca.pem")]
        arguments += ["--certificate", str(files / "pipeline.pem"), "--key", str(files / "pipeline.key")]
        arguments += ["--day-start", f"{periods.day_start:%H:%M}", "--per", "venue", "--format", "json"]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        again = subscriber.take(client)
        assert again["asOfRevision"] > value["asOfRevision"]
        assert again | {"asOfRevision": value["asOfRevision"]} == value
        (row,) = map(json.loads, result.stdout.splitlines())
        assert [row[name] for name in ("venue", "machines", *METERS)] == [VENUE, 6, *floor.expected(periods).values()]
    with capsys.disabled():
        shown = ", ".join(f"{latency * 1000:.0f}" for latency in latencies_s)
        print(f"\nround trip, last RECEIPT to totals at the subscriber, ms: {shown}; {summary.strip()}")  # noqa: T201


def test_totals_are_right_whatever_dies(
    gateway: GatewayProcess, tmp_path: Path, periods: Periods, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stream and gateway killed with -9 again and again, batches in flight: the totals never go back and are right in the end."""
    floor = Floor()
    subscriber = Subscriber()
    over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            trio.run(lambda: publish(gateway, floor, floor.machines, until=over))
        except BaseException as error:  # noqa: BLE001  # the test's own thread asks
            failures.append(error)

    publisher = threading.Thread(target=work)
    publisher.start()
    try:
        for round_number in range(2):
            with subscribe(gateway) as client, TotalsProcess(gateway, tmp_path / "state", periods) as totals:
                client.connect()
                client.subscribe("totals", "X/Venue.*", ack="auto", eager="true")
                begun = totals.wait_for("following ")
                assert ("from revision 1;" in begun) == (round_number == 0)  # else from what was saved
                totals.wait_for("as of revision")
                subscriber.take(client)
                if round_number == 1:  # and the gateway while the stream runs
                    gateway.kill()
                    gateway.start()
                    totals.wait_for("as of revision", len(totals.lines))
                    totals.wait_for("as of revision", len(totals.lines))
                totals.kill()  # the next batch is under way: the publisher never pauses
            if round_number == 1:  # and once more while there is no stream
                gateway.kill()
                gateway.start()
    finally:
        over.set()
        publisher.join()
    assert failures == []
    newest = newest_revision(gateway, sum(bool(history) for history in floor.accepted.values()))
    with subscribe(gateway) as client, TotalsProcess(gateway, tmp_path / "state", periods) as totals:
        client.connect()
        client.subscribe("totals", "X/Venue.*", ack="auto", eager="true")
        value = subscriber.until(client, newest)
        assert totals.stop() == 0
    assert {field: value["current"][field] for field in FIELDS} == floor.expected(periods)
    assert value["current"]["rollOvers"] > 0
    with capsys.disabled():
        readings = sum(len(history) for history in floor.accepted.values())
        text = f"{readings} readings accepted, {value['current']['readings']} counted"
        print(f"\n{text}; 2 kills of the stream, 2 of the gateway")  # noqa: T201
