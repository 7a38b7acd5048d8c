"""An operator finds the subscriber that is slow on purpose, by its name, with one command."""

import json
from dataclasses import replace
from pathlib import Path

import trio

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.streams.test_freshness import Operator
from tests.support.living_gateway import Living, Site, TestClient, living, until


def impatient(folder: Path, *clients: str) -> Site:
    """Return a site where whoever lacks anything for longer than a microsecond is behind."""
    site = Site(folder, *clients)
    site.settings = replace(site.settings, limits=replace(site.settings.limits, lag_threshold_s=1e-6))
    return site


async def never_acknowledges(alive: Living, client: TestClient, publisher: TestClient) -> None:
    """Subscribe, read one value, and acknowledge nothing."""
    await client.subscribe("X/**", b"client")
    await publisher.send("X/first", b"1")
    await client.values(1)
    await until(lambda: alive.gateway.broker.sessions["sub", "board 7"].subscriptions[b"s"].unacked != {})


async def never_reads(alive: Living, client: TestClient, publisher: TestClient) -> None:
    """Subscribe, and let come what the sockets hold."""
    await client.subscribe("X/**")
    (subscription,) = alive.gateway.broker.sessions["sub", "board 7"].subscriptions.values()
    number = 0
    while subscription.conflated < 10:
        number += 1
        await publisher.send(f"X/large.{number % 8}", b"%d" % number + bytes(300_000))


def found_first(tmp_path: Path, why: str, text: str, slow: object) -> None:
    """Have one subscriber that is slow beside some that are not, and look for it as operators do."""

    async def run() -> None:
        site = impatient(tmp_path, "pub", "sub")
        async with (
            living(site) as alive,
            alive.client("pub", "machine") as publisher,
            alive.client("sub", "board 7") as client,
            alive.client("sub", "quick") as quick,
            alive.client("sub", "other") as other,
        ):
            operator = Operator(alive)
            await quick.subscribe("X/quick.*", b"auto")
            await other.subscribe("X/other", b"client")
            await (never_reads if slow is never_reads else never_acknowledges)(alive, client, publisher)
            await publisher.send("X/quick.1", b"1")
            await quick.values(1)
            first = (await operator.says("subscriptions", "slow", "--json")).splitlines()[0]
            row = json.loads(first)
            assert (row["principal"], row["client_id"], row["glob"], row["cause"]) == ("sub", "board 7", "X/**", why)
            assert row["staleness_s"] > 0
            line = (await operator.says("subscriptions", "slow")).splitlines()[2]
            assert line.startswith("sub")
            assert "board 7" in line
            assert text in line
            everybody = [
                json.loads(one) for one in (await operator.says("subscriptions", "list", "--json")).splitlines()
            ]
            assert {(one["client_id"], one["cause"]) for one in everybody} == {
                ("board 7", why),
                ("quick", ""),
                ("other", ""),
            }
            assert "board 7" in await operator.says("sessions", "list")
            assert text in await operator.says("sessions", "show", "sub", "board 7")
            metrics = await operator.reads("/metrics")
            (measured,) = [
                one
                for one in metrics.splitlines()
                if one.startswith('maxam_subscription_lag_seconds{state="connected"}')
            ]
            assert float(measured.split()[-1]) > 0

    trio.run(run)


def test_who_does_not_acknowledge_is_named_first(tmp_path: Path) -> None:
    """It was sent something and says nothing of it."""
    found_first(tmp_path, "unacknowledged", "slow to acknowledge", never_acknowledges)


def test_who_does_not_read_is_named_first(tmp_path: Path) -> None:
    """Its sockets are full."""
    found_first(tmp_path, "unread", "slow to read", never_reads)


def test_who_is_away_is_named_first(tmp_path: Path) -> None:
    """A durable subscription whose client has gone; with its return and an ACK nobody is behind."""

    async def run() -> None:
        site = impatient(tmp_path, "pub", "sub")
        async with living(site) as alive, alive.client("pub", "machine") as publisher:
            operator = Operator(alive)
            async with alive.client("sub", "away") as client:
                await client.subscribe("X/**", b"client", durable=True)
            await until(lambda: alive.gateway.broker.sessions["sub", "away"].connection is None)
            await publisher.send("X/a", b"1")
            row = json.loads((await operator.says("subscriptions", "slow", "--json")).splitlines()[0])
            assert (row["client_id"], row["cause"], row["owed"]) == ("away", "detached", 1)
            async with alive.client("sub", "away") as client:
                await client.subscribe("X/**", b"client", durable=True)
                frame = await client.frame()
                while frame.command != b"MESSAGE":
                    frame = await client.frame()
                await client.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))
                await until(lambda: not alive.gateway.broker.sessions["sub", "away"].subscriptions[b"s"].unacked)
                alive.gateway.staleness._kept_until_s = 0.0
                assert "no subscription has lacked anything" in await operator.says("subscriptions", "slow")

    trio.run(run)


def test_what_is_on_its_way_makes_nobody_behind(tmp_path: Path) -> None:
    """Who lacks something for less than the limit is in no list of who is behind, nor has a cause, but is told when asked for."""

    async def run() -> None:
        site = Site(tmp_path, "pub", "sub")
        site.settings = replace(site.settings, limits=replace(site.settings.limits, lag_threshold_s=3600.0))
        async with (
            living(site) as alive,
            alive.client("pub", "machine") as publisher,
            alive.client("sub", "board 7") as client,
        ):
            operator = Operator(alive)
            await never_acknowledges(alive, client, publisher)
            assert await operator.says("subscriptions", "slow", "--json") == ""
            assert await operator.says("subscriptions", "slow") == (
                "no subscription has lacked anything for more than 3600 s, of 1 subscription\n"
            )
            assert "nobody is behind" in await operator.says("top", "--count", "1")
            (line,) = (await operator.says("subscriptions", "slow", "--min", "0", "--json")).splitlines()
            row = json.loads(line)
            assert (row["client_id"], row["behind"], row["cause"]) == ("board 7", False, "unacknowledged")
            for asked in (["subscriptions", "list"], ["subscriptions", "slow", "--min", "0"], ["sessions", "show"]):
                said = await operator.says(*asked, *(["sub", "board 7"] if asked[0] == "sessions" else []))
                assert "X/**" in said
                assert "slow to" not in said
            assert "slow to acknowledge" in await operator.says("subscriptions", "slow", "--min", "1e-6")
            assert "no subscription lacks anything for 3000 s" in await operator.says(
                "subscriptions", "slow", "--min", "3000"
            )

    trio.run(run)
