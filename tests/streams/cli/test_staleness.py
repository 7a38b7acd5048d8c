"""An operator finds the subscriber that is slow on purpose, by its name, with one command."""

import json
from dataclasses import replace
from pathlib import Path

import trio

from maxam.exit_codes import ExitCode
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2, SubscribeOptions
from tests.streams.cli.test_freshness import Operator
from tests.support.errors import code_in
from tests.support.living_gateway import EVERYTHING, Living, Site, TestClient, cli, living, until


def impatient(folder: Path, *clients: str) -> Site:
    """Return a site where a subscription that lacks anything for longer than a microsecond is behind."""
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
    """Have one subscriber that is slow beside some that are not, and find it as operators do."""

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
    """It was sent something and does not acknowledge it."""
    found_first(tmp_path, "unacknowledged", "slow to acknowledge", never_acknowledges)


def test_who_does_not_read_is_named_first(tmp_path: Path) -> None:
    """Its sockets are full."""
    found_first(tmp_path, "unread", "slow to read", never_reads)


def test_who_is_away_is_named_first(tmp_path: Path) -> None:
    """A durable subscription whose client has gone; with its return and an ACK no subscription is behind."""

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
                assert "away" not in await operator.says("subscriptions", "slow")

    trio.run(run)


def test_the_cause_is_explained_from_one_state_to_the_next(tmp_path: Path) -> None:
    """The command follows a topic from `older` over `unacknowledged` and `superseded` to what the ACK and the end leave."""

    async def run() -> None:
        async with (
            living(Site(tmp_path, "pub", "sub")) as alive,
            alive.client("pub", "machine") as publisher,
            alive.client("sub", "board 7") as client,
        ):
            operator = Operator(alive)
            place = ("subscriptions", "explain", "sub", "board 7", "s", "X/a")

            async def explained(code: str, *more: str) -> str:
                row = json.loads(await operator.says(*place, "--json"))
                assert row["code"] == code, row
                text = await operator.says(*place, *more)
                assert text.startswith(f"{code}: ")
                return text

            result = await cli(alive, *place)
            assert (result.exit_code, code_in(result.output)) == (ExitCode.NOT_FOUND, "not-found")
            await publisher.send("X/a", b"0")
            await client.subscribe("X/**", b"client", durable=False)
            await explained("older")
            await publisher.send("X/a", b"1")
            frame = await client.frame()
            assert "revision 2 " in await explained("unacknowledged")
            await publisher.send("X/a", b"2")
            text = await explained("superseded")
            assert "revision 2 " in text
            assert "revision 3 " in text
            await client.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))
            newest = await client.frame()
            await client.write(encoder.ack(VERSION_1_2, b"s", newest.headers[b"message-id"], receipt_id=b"r"))
            await client.frame()
            await explained("acknowledged")

    trio.run(run)


def test_a_refined_subscription_is_explained(tmp_path: Path) -> None:
    """An interval, a selector and what refines the subscription, over the real gateway and by the real command."""

    async def run() -> None:
        options = SubscribeOptions(interval_ms=3_600_000, selector="header('level') = 'high'")
        site = Site(tmp_path, "pub", "sub")
        site.policy({"pub": EVERYTHING, "sub": {**EVERYTHING, "admin": ["read"]}})
        async with (
            living(site) as alive,
            alive.client("pub", "machine") as publisher,
            alive.client("sub", "board 7") as client,
        ):
            operator = Operator(alive)

            async def row(topic: str, who: str = "sub") -> dict[str, object]:
                place = ("subscriptions", "explain", "sub", "board 7", "s", topic, "-o", "json")
                found: dict[str, object] = json.loads((await cli(alive, *place, who=who)).stdout)
                return found

            async def send(topic: str, level: bytes) -> None:
                frame = encoder.send(VERSION_1_2, topic.encode(), b"1", ((b"level", level),), b"sent")
                await publisher.write(frame)
                assert (await publisher.frame()).headers[b"disposition"] == b"accepted"

            await client.subscribe("X/**", options=options)
            await send("X/a", b"high")
            await client.values(1)
            await send("X/a", b"high")
            await send("X/b", b"low")
            # The operator of this site may receive nothing. So it does not learn what the selector finds.
            assert (await row("X/a", "operator"))["code"] == "undisclosed"
            held = await row("X/a")
            assert (held["code"], held["revision"]) == ("held", 2)
            assert isinstance(held["left_s"], float)
            assert 0 < held["left_s"] <= 3600
            assert (
                held["refinement"] == json.loads(await operator.says("subscriptions", "list", "--json"))["refinement"]
            )
            assert (await row("X/b"))["code"] == "filtered"
            assert "held by min-interval" in await operator.says("subscriptions", "list")

    trio.run(run)


def test_what_is_on_its_way_makes_nobody_behind(tmp_path: Path) -> None:
    """A subscription that lacks something for less than the limit is not listed as behind and has no cause. It is shown on request."""

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
            assert "board 7" not in await operator.says("subscriptions", "slow")
            assert "board 7" not in await operator.says("top", "--count", "1")
            (line,) = (await operator.says("subscriptions", "slow", "--min", "0", "--json")).splitlines()
            row = json.loads(line)
            assert (row["client_id"], row["behind"], row["cause"]) == ("board 7", False, "unacknowledged")
            for asked in (["subscriptions", "list"], ["subscriptions", "slow", "--min", "0"], ["sessions", "show"]):
                said = await operator.says(*asked, *(["sub", "board 7"] if asked[0] == "sessions" else []))
                assert "X/**" in said
                assert "slow to" not in said
            assert "slow to acknowledge" in await operator.says("subscriptions", "slow", "--min", "1e-6")
            assert "board 7" not in await operator.says("subscriptions", "slow", "--min", "3000")

    trio.run(run)
