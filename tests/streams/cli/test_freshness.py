"""Overdue topics and rates as operators see them: over HTTPS and with `maxam-admin`, of a running gateway."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.gateway.rates import Rates
from tests.support.living_gateway import Living, Site, cli, living, until

HOUR_US = 3_600_000_000
CONTRACTS = """
[[rule]]
destination = "X/EGM.*"
encoding = "none"
{ages}
[[rule]]
destination = "X/**"
encoding = "none"
"""


class Operator:
    """A caller of the admin API."""

    def __init__(self, alive: Living) -> None:
        self.alive = alive

    async def says(self, *arguments: str) -> str:
        """Run `maxam-admin`; return what it prints."""
        result = await cli(self.alive, *arguments)
        assert result.exit_code == 0, result.output
        return result.output

    async def asks(self, path: str) -> Any:
        """GET a path; return the JSON of its answer."""
        return json.loads(await self.reads(path))

    async def reads(self, path: str) -> str:
        """GET a path; return the text of its answer."""
        transport = await trio.open_tcp_stream("127.0.0.1", self.alive.admin_port)
        request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        async with trio.SSLStream(transport, self.alive.site.context("operator"), https_compatible=True) as stream:
            await stream.send_all(request.encode())
            answer = b"".join([bytes(part) async for part in stream])
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), answer
        return body.decode()


@asynccontextmanager
async def venue(folder: Path, ages: str = "fresh_within_s = 60") -> AsyncIterator[tuple[Living, Operator]]:
    """Run a gateway whose machines must report in time."""
    site = Site(folder, "pub", "sub")
    (site.schemas / "registry.toml").write_text(CONTRACTS.format(ages=ages))
    async with living(site) as alive:
        yield alive, Operator(alive)


def let_an_hour_pass(alive: Living) -> None:
    """Set the clock by which topics age."""
    alive.gateway.freshness._wall_us = lambda: time.time_ns() // 1000 + HOUR_US  # type: ignore[misc]  # for a test


def test_what_is_overdue_is_listed_counted_and_told(tmp_path: Path) -> None:
    """It is in pages, by glob, in a table, in health and metrics. With the update it is gone from all of them. A reload changes it."""

    async def run() -> None:
        async with venue(tmp_path) as (alive, operator), alive.client("pub") as publisher:
            for number in range(5):
                await publisher.send(f"X/EGM.{number}", b"value")
            await publisher.send("X/other", b"value")
            freshness = alive.gateway.freshness
            await until(lambda: freshness.settled)
            assert (await operator.asks("/v1/overdue")) == {"overdue": [], "next": None, "count": 0, "settled": True}
            let_an_hour_pass(alive)
            await until(lambda: freshness.count == 5)
            page = await operator.asks("/v1/overdue?limit=3")
            assert [row["destination"] for row in page["overdue"]] == ["X/EGM.0", "X/EGM.1", "X/EGM.2"]
            row = page["overdue"][0]
            assert (row["publisher"], row["revision"], row["fresh_within_s"], page["count"]) == ("pub", 1, 60, 5)
            assert row["age_s"] >= 3600
            assert row["overdue_s"] == pytest.approx(row["age_s"] - 60, abs=0.01)
            page = await operator.asks(f"/v1/overdue?limit=3&after={page['next']}")
            assert [row["destination"] for row in page["overdue"]] == ["X/EGM.3", "X/EGM.4"]
            assert page["next"] is None
            shown = await operator.says("topics", "overdue", "X/EGM.[13]", "--json")
            assert [json.loads(line)["destination"] for line in shown.splitlines()] == ["X/EGM.1", "X/EGM.3"]
            assert "X/EGM.4" in await operator.says("topics", "overdue")
            assert (await operator.asks("/v1/health"))["figures"]["topics_overdue"] == 5
            assert freshness.breaches == 5
            await publisher.send("X/EGM.1", b"")
            page = await operator.asks("/v1/overdue")
            assert [row["destination"] for row in page["overdue"]] == ["X/EGM.0", "X/EGM.2", "X/EGM.3", "X/EGM.4"]
            assert page["count"] == 4
            (alive.site.schemas / "registry.toml").write_text(CONTRACTS.format(ages="fresh_within_s = 7200"))
            await alive.reload()
            await until(lambda: freshness.settled)
            assert (await operator.asks("/v1/overdue")) == {"overdue": [], "next": None, "count": 0, "settled": True}

    trio.run(run)


def test_a_topic_that_expires_is_deleted_for_everybody(tmp_path: Path) -> None:
    """A subscriber gets the delete with its reason, and the journal has it: it is gone after a restart, and counted."""

    async def run() -> None:
        async with (
            venue(tmp_path, "fresh_within_s = 60\nexpire_after_s = 1800") as (alive, operator),
            alive.client("pub") as publisher,
            alive.client("sub") as reader,
        ):
            await reader.subscribe("X/**")
            await publisher.send("X/EGM.1", b"value")
            await publisher.send("X/other", b"value")
            assert await reader.values(2) == {"X/EGM.1": b"value", "X/other": b"value"}
            let_an_hour_pass(alive)
            frame = await reader.frame()
            assert (frame.headers[b"destination"], frame.headers[b"reason"], frame.body) == (
                b"X/EGM.1",
                b"expired",
                b"",
            )
            row = (await operator.asks("/v1/topics"))["topics"]
            assert [topic["destination"] for topic in row] == ["X/other"]
            assert "\nmaxam_topics_expired_total 1" in await operator.reads("/metrics")
            await until(lambda: alive.gateway.freshness.count == 0)
        async with living(alive.site) as again:
            assert {name for name, topic in again.gateway.broker.store.topics.items() if not topic.change.deleted} == {
                b"X/other"
            }

    trio.run(run)


def test_rates_tell_of_sessions_and_topics(tmp_path: Path) -> None:
    """The senders and receivers, and their values. The counts of a topic are in its row."""

    async def run() -> None:
        async with (
            venue(tmp_path) as (alive, operator),
            alive.client("pub", "p") as publisher,
            alive.client("sub", "s") as reader,
        ):
            await reader.subscribe("X/**")
            rates = Rates(alive.gateway.broker, alive.gateway.connections)  # one that the test triggers
            await rates.measure_sessions()
            for number in range(20):
                await publisher.send("X/EGM.1", b"%d" % number)
            await reader.values(1)
            await rates.measure_sessions()
            busy = {session.principal: session for session in rates.busy_sessions}
            assert (busy["pub"].client_id, busy["pub"].messages_per_s, busy["sub"].sends_per_s) == ("p", 0, 0)
            assert busy["pub"].sends_per_s > 0
            assert busy["sub"].messages_per_s > 0
            found = {
                client.peer.client_id: rates.of(client.number) for client in alive.gateway.connections if client.peer
            }
            assert found == {
                "p": (round(busy["pub"].sends_per_s, 1), 0),
                "s": (0, round(busy["sub"].messages_per_s, 1)),
            }
            row = (await operator.asks("/v1/connections"))["connections"][0]
            assert {"sends_per_s", "messages_per_s"} <= row.keys()
            answer = await operator.asks("/v1/rates")
            assert set(answer) == {
                *("as_of", "interval_s", "sends_per_s", "messages_per_s", "acks_per_s", "rejects_per_s"),
                *("hot_topics", "busy_sessions", "history"),
            }
            assert (await operator.asks("/v1/topics/X/EGM.1"))["updates"] == 20
            assert (await operator.asks("/v1/topics"))["topics"][0]["updates"] == 20

    trio.run(run)
