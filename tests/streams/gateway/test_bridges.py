"""Bridges as operators see them: a living gateway, a bridge that is a plain client, and `maxam-admin bridges`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from maxam.audit_chain import Checker, read_folder
from maxam.gateway.audit import audit_folder
from maxam.links import CENTRE, PAUSED, UP, Link, LinkDrill, LinkRoute, decode_wanted, link_topic, wanted_topic
from tests.streams.cli.test_reload_admin import get
from tests.support.living_gateway import Living, Site, TestClient, cli, living, run, until

VENUE = "V0071"
RULES = "".join([f'[[rule]]\ndestination = "{glob}"\nencoding = "none"\n' for glob in ("B/*", "V0071/**", "X/**")])
RIGHTS = {"send": ["B/*", "V0071/**"], "receive": ["**"], "bridge": "true"}


def link(state: str = UP, drill: LinkDrill | None = None, timeout_s: int = 60) -> Link:
    """Return a value of the link."""
    routes = (LinkRoute("UP", "X/EGM.**", VENUE), LinkRoute("DOWN", "V0071/Config.*", "X"))
    because = "" if state == UP else "works"
    return Link(VENUE, "centre", CENTRE, state, because, 1, 2, "pc-7", timeout_s, "a", "b", routes, 0, (), 0, 0, drill)


async def publish(client: TestClient, value: Link) -> None:
    """Publish the state of a link."""
    assert await client.send(link_topic(VENUE).decode(), value.encoded()) == (b"accepted", b"")


@asynccontextmanager
async def centre(folder: Path, may_request: bool = True) -> AsyncIterator[tuple[Living, TestClient]]:
    """Run a gateway with a link that is up, and one topic of it."""
    site = Site(folder, "bridge")
    (site.schemas / "registry.toml").write_text(RULES)
    site.policy({"bridge": RIGHTS})
    text = site.policy_file.read_text().replace("bridge = 'true'", "bridge = true")
    if may_request:
        text = text.replace("admin = [", 'send = ["B/*.Wanted"]\nadmin = [')
    site.policy_file.write_text(text)
    async with living(site) as gateway, gateway.client("bridge", "bridge") as client:
        await publish(client, link())
        await client.send(f"{VENUE}/EGM.1", b"v")
        await until(lambda: VENUE in gateway.gateway.bridge_links.links)
        yield gateway, client


def test_what_operators_see(tmp_path: Path) -> None:
    """List, show, health, metrics, topics: all of them agree, while the link is up and while it is down."""

    async def test() -> None:
        async with centre(tmp_path) as (gateway, client):
            links = gateway.gateway.bridge_links
            for state in (UP, PAUSED, UP):
                down = state != UP
                await publish(client, link(state))
                await until(lambda down=down: bool(links.links[VENUE].down) == down)  # type: ignore[misc]
                (row,) = [
                    json.loads(line)
                    for line in (await cli(gateway, "bridges", "list", "-o", "json")).output.splitlines()
                ]
                assert (row["venue"], row["up"], row["state"], row["host"]) == (VENUE, not down, state, "pc-7")
                assert row["down"] == ("paused" if down else None)
                assert (row["unknown_since"] is not None) == down
                assert [one["mapped"] for one in row["routes"]] == ["V0071/EGM.**", "X/Config.*"]
                assert json.loads((await cli(gateway, "bridges", "show", VENUE, "--json")).output)["state"] == state
                shown = await cli(gateway, "bridges", "show", VENUE)
                assert shown.exit_code == 0
                assert (("works" in shown.output), ("V0071/EGM.**" in shown.output)) == (down, True)
                listed = json.loads((await get(gateway, "/v1/bridges?down=true")).decode())["bridges"]
                assert len(listed) == down
                ready = json.loads(await get(gateway, "/readyz"))
                assert len([one for one in ready.get("degraded", ()) if VENUE in one]) == down
                metrics = (await get(gateway, "/metrics")).decode()
                assert f'maxam_bridge_link_up{{venue="{VENUE}"}} {0.0 if down else 1.0}' in metrics
                topic = json.loads(await get(gateway, f"/v1/topics/{VENUE}/EGM.1"))
                assert ("unknown_since" in topic) == down
                table = await cli(gateway, "topics", "list", f"{VENUE}/**", "-o", "wide")
                assert ("1970" in table.output) == down

    run(test)


def test_requests_reach_the_bridge(tmp_path: Path) -> None:
    """Each keeps what was requested before, is audited with its reason, and outlives the gateway."""

    async def test() -> None:
        async with centre(tmp_path) as (gateway, client):
            await client.subscribe("B/*.Wanted")

            async def wanted() -> tuple[bool, str, bool]:
                (body,) = (await client.values(1)).values()
                found = decode_wanted(body)
                assert found is not None
                return found.paused, found.because, found.drill is not None

            for arguments, expected in (
                (("pause", VENUE, "--because", "new cable"), (True, "new cable", False)),
                (("drill", VENUE, "--because", "monthly", "--no-wait"), (True, "monthly", True)),
                (("resume", VENUE), (False, "", True)),
            ):
                done = await cli(gateway, "bridges", *arguments, "-o", "json")
                assert done.exit_code == 0, done.output
                answer = json.loads(done.output)
                assert (answer["venue"], answer["paused"], answer["drill"] is not None) == (
                    VENUE,
                    expected[0],
                    expected[2],
                )
                assert await wanted() == expected
        site = gateway.site
        reasons = [str(line.facts.get("reason")) for line in read_folder(audit_folder(site.settings), Checker())]
        assert [reason for reason in reasons if "because" in reason] == ["because: new cable", "because: monthly"]
        async with living(site) as again:
            topic = again.gateway.broker.store.topics[wanted_topic(VENUE)]
            assert decode_wanted(topic.change.body) is not None
            await until(lambda: VENUE in again.gateway.bridge_links.links)

    run(test)


@pytest.mark.parametrize(("differences", "code"), [(0, 0), (3, 1)])
def test_a_drill_waits_for_its_result(tmp_path: Path, differences: int, code: int) -> None:
    """The bridge answers in its link; topics that differ are a failure."""

    async def test() -> None:
        async with centre(tmp_path) as (gateway, client), trio.open_nursery() as nursery:
            await client.subscribe("B/*.Wanted")

            async def answer() -> None:
                (body,) = (await client.values(1)).values()
                found = decode_wanted(body)
                assert found is not None
                assert found.drill is not None
                other = LinkDrill("of-before", 1, True, 9, 9, 9)
                running = LinkDrill(found.drill.id, found.drill.seconds, False, 0, 0, 0)
                ended = LinkDrill(found.drill.id, found.drill.seconds, True, 17, 2500, differences)
                for drill in (other, running, ended):
                    await publish(client, link(UP, drill))
                    await trio.sleep(0.05)

            nursery.start_soon(answer)
            done = await cli(gateway, "bridges", "drill", VENUE, "--duration", "5s", "--because", "monthly", "--json")
            assert done.exit_code == code, done.output
            found = json.loads(done.output)
            assert (found["seconds"], found["moved"], found["differences"]) == (5, 17, differences)

    run(test)


def test_requests_that_are_refused(tmp_path: Path) -> None:
    """Each has a code: no such venue, no right to send, a link that is down, a body that is none."""

    async def test() -> None:
        async with centre(tmp_path, may_request=False) as (gateway, client):
            for arguments, code in (
                (("show", "V9"), "not-found"),
                (("pause", "V9", "--because", "x"), "not-found"),
                (("resume", VENUE), "unauthorised"),
                (("pause", VENUE, "--because", ""), "invalid-request"),
                (("pause", VENUE, "--because", "x" * 1001), "invalid-request"),
                (("drill", VENUE, "--because", "x"), "unauthorised"),
            ):
                done = await cli(gateway, "bridges", *arguments)
                assert done.exit_code != 0
                assert f"[{code}]" in done.output
                assert code != "unauthorised" or f"B/{VENUE}.Wanted" in done.output  # the right to grant
            await publish(client, link(PAUSED))
            await until(lambda: bool(gateway.gateway.bridge_links.links[VENUE].down))
            assert "[link-down]" in (await cli(gateway, "bridges", "drill", VENUE, "--because", "x")).output

    run(test)


def test_notices_reach_clients(tmp_path: Path) -> None:
    """Over TLS: a stale notice while the link is silent, and the fresh one when the bridge is back."""

    async def test() -> None:
        async with centre(tmp_path) as (gateway, client), gateway.client("bridge", "reader") as reader:
            await reader.write(
                f"SUBSCRIBE\nid:s\ndestination:{VENUE}/**\nack:auto\neager:true\nmarkers:true\n\n\0".encode()
            )
            await publish(client, link(timeout_s=1))
            kinds: list[tuple[bytes, bytes, bytes]] = []
            while len(kinds) < 2:
                frame = await reader.frame()
                if frame.headers.get(b"reason", b"").startswith(b"link"):
                    kinds.append((frame.headers[b"kind"], frame.headers[b"reason"], frame.headers[b"destination"]))
                    await publish(client, link())
            topic = f"{VENUE}/EGM.1".encode()
            assert kinds == [(b"stale", b"link-down", topic), (b"fresh", b"link-up", topic)]

    run(test)
