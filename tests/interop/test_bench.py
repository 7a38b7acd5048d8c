"""`maxam-bench` runs and its sums are right. No test measures time; one measures memory, as `make web-bench` does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from maxam.bench.bodies import SCHEMAS
from maxam.compiled import child_environment
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.web import KIB_MAX, idle_kib
from tests.support.patience import PATIENCE_S


@pytest.fixture(name="broker", scope="module")
def _broker() -> Iterator[Broker]:
    with gateway({min(os.sched_getaffinity(0))}, durability="none") as running:
        yield running


def _bench(*arguments: str, program: Sequence[str] = ("-m", "maxam.bench")) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *program, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=dict(child_environment())
    )


def _run(broker: Broker, *arguments: str, good: bool = True) -> dict[str, Any]:
    files = broker.target.publisher
    assert files is not None
    where = ["--broker", f"{broker.target.host}:{broker.target.port}", "--certificates", str(files.ca.parent)]
    times = ["--seconds", "1", "--warm-up-s", "0.2"]
    done = _bench("run", *where, *times, "--json", *arguments)
    result: dict[str, Any] = json.loads(done.stdout)
    late = [
        problem for problem in result["problems"] if problem.startswith("the rate was not reached")
    ]  # on a busy machine
    assert done.returncode == (1 if result["problems"] else 0), done.stderr
    assert (result["problems"] == late) is good, done.stderr
    return result


def test_at_maximum_rate_the_sums_are_right(broker: Broker) -> None:
    """Every SEND is accepted, no subscriber sees more than was sent, and all end on the last value: quick, slow, counted or read."""
    result = _run(
        broker, "--publishers", "3", "--subscribers", "2", "--slow-subscribers", "1", "--topics", "50",
        "--schemas", str(SCHEMAS), "--body-bytes", "120",
    )  # fmt: skip
    assert result["problems"] == []
    assert result["accepted"] == result["sends"] > 50
    assert result["rejected"] == {}
    assert result["unanswered"] == 0
    assert 0 < sum(result["sends_by_second"]) <= result["sends"]
    quick, slow = result["groups"]
    assert quick["values_possible"] == 2 * result["sends"]
    assert slow["values_possible"] == result["sends"]
    for group in quick, slow:
        assert 50 * group["connections"] <= group["messages"] <= group["values_possible"]
        assert group["conflated"] == pytest.approx(1 - group["messages"] / group["values_possible"])
        assert group["ended_on_last_value"]
    assert result["messages_per_s"] == pytest.approx(quick["messages_per_s"] + slow["messages_per_s"])


def test_at_a_rate_each_due_value_is_sent_and_read(broker: Broker) -> None:
    """1.2 s at 500 a second are 600 SENDs; a subscriber of half the topics could see half of them."""
    result = _run(
        broker, "--rate", "500", "--topics", "20", "--glob", "X/EGM.Q.00000?.*", "--ack", "client",
        "--schemas", str(SCHEMAS),
    )  # fmt: skip
    assert result["sends"] == result["accepted"] == 600
    assert result["groups"][0]["values_possible"] == 300
    assert result["groups"][0]["observed"] <= result["groups"][0]["messages"] <= 300
    assert result["groups"][0]["staleness_ms"]["p50"] <= result["groups"][0]["staleness_ms"]["max"]


def test_durable_subscriptions_are_gone_after_the_run(broker: Broker) -> None:
    """A run with durable eager subscribers ends well, so the broker has confirmed that they are removed."""
    result = _run(
        broker, "--rate", "500", "--topics", "20", "--durable", "--eager", "--ack", "client-individual",
        "--schemas", str(SCHEMAS),
    )  # fmt: skip
    assert result["groups"][0]["ended_on_last_value"]


def test_a_round_trip_is_seen_by_subscribers_alone(broker: Broker) -> None:
    """Over a simulated link of 40 ms no value is younger than 20 ms, the relay's cost is reported, and receipts are as usual."""
    result = _run(
        broker, "--rate", "500", "--topics", "20", "--round-trip-ms", "40", "--jitter-ms", "2", "--ack", "client",
        "--connect-header", "window:50", "--schemas", str(SCHEMAS),
    )  # fmt: skip
    group = result["groups"][0]
    assert group["ended_on_last_value"]
    assert group["staleness_ms"]["p50"] >= 20
    assert result["receipt_ms"]["p50"] < group["staleness_ms"]["p50"]
    assert "relays" in {process["name"] for process in result["load_processes"]}


def test_rejected_sends_are_told_and_fail_the_run(broker: Broker) -> None:
    """Bodies that are no Avro are all rejected. The run shows their number and the reason, and exits with 1."""
    result = _run(broker, "--subscribers", "0", "--rate", "100", good=False)
    assert result["accepted"] == 0
    ((disposition, rejected),) = result["rejected"].items()
    assert disposition.startswith("rejected")
    assert rejected["count"] == result["sends"] == 120
    assert rejected["reason"]
    assert any(disposition in problem for problem in result["problems"])


def test_a_certificate_of_another_authority_is_named(broker: Broker, tmp_path: Path) -> None:
    """The error shows the CA's file that did not sign the broker's certificate."""
    made = subprocess.run(
        [sys.executable, "-c", "from maxam.cli.main import main; main()", "dev-certs", str(tmp_path / "others")],
        check=True, capture_output=True, env=dict(child_environment()),
    )  # fmt: skip
    assert made.returncode == 0
    where = ["--broker", f"{broker.target.host}:{broker.target.port}", "--certificates", str(tmp_path / "others")]
    done = _bench("run", *where, "--json")
    assert done.returncode == 4
    assert str(tmp_path / "others" / "ca.pem") in done.stderr
    assert "not signed by this CA" in done.stderr


def test_one_to_one_is_measured() -> None:
    """The benchmark `suite --only one-to-one --json` prints an object with positive rates and what a SEND costs."""
    arguments = ("suite", "--only", "one-to-one", "--runs", "1", "--seconds", "1", "--json")
    done = _bench(*arguments, program=[benchmarks.__file__])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["measurement"] == "one-to-one"
    assert result["sends_per_s"] > 0
    assert result["figures"]["broker: processor us/SEND"] > 0


def test_a_start_is_measured_from_segments_and_from_a_snapshot_with_changes_after_it() -> None:
    """Each start is on the journal that was asked for."""
    few = ("--topics", "1000", "--durable", "0", "--changes", "500", "--runs", "1")
    done = _bench("recovery", *few, program=(str(benchmarks.__file__),))
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        "from segments alone",
        "snapshot built in",
        "from a snapshot",
    ]


def test_an_idle_websocket_costs_60_kib_or_less() -> None:
    """The memory of a gateway grows by this for each of 100 pages with a ticket, after 100 others."""
    assert idle_kib("WebSocket", 200) <= KIB_MAX
