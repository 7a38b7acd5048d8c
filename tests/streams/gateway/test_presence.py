"""Presence of a running gateway over TLS: who is connected, after a stop and after a kill too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import trio

from maxam.config import PresenceSettings
from maxam.gateway.presence import State, decoded
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.gateway_folder import GatewayFolder
from tests.support.living_gateway import Living, Site, TestClient, living, run, until

SHIPPED = Path(__file__).parents[3] / "schemas"
RULE = '[[rule]]\ndestination = "S/*"\nschema = "maxam.Presence_v1"\nencoding = "datum"\n'
ON = PresenceSettings(enabled=True)


def site_with_presence(folder: Path) -> Site:
    """Make a site with the shipped rule of presence."""
    site = Site(folder, "pub", "sub")
    copytree(SHIPPED / "maxam", site.schemas / "maxam")
    with (site.schemas / "registry.toml").open("a") as file:
        file.write(RULE)
    site.policy({"pub": {"send": ["X/**"], "receive": []}, "sub": {"send": [], "receive": ["S/*"]}})
    return site


async def next_state(client: TestClient, topic: bytes, wanted: Callable[[State], bool]) -> State:
    """Read on to a value of a topic."""
    while True:
        frame = await client.frame()
        if frame.command == b"MESSAGE" and frame.headers[b"destination"] == topic:
            state = decoded(frame.body)
            assert state is not None
            if wanted(state):
                return state


def shown(alive: Living) -> dict[str, bool]:
    """Return the topics with a value."""
    found = {}
    for name, topic in alive.gateway.broker.store.topics.items():
        if not topic.change.deleted:
            state = decoded(topic.change.body)
            assert state is not None
            found[name.decode()] = state.connected
    return found


def test_who_may_receive_the_topics_sees_who_comes_and_goes(tmp_path: Path) -> None:
    """With the address; the right to receive decides. A stop changes nothing, and the next start finds who is away."""

    async def test() -> None:
        site = site_with_presence(tmp_path)
        async with living(site, presence=ON) as alive, alive.client("sub", "watch") as reader:
            await reader.subscribe("S/pub.*", eager=True)
            async with alive.client("pub", "pump.1"):
                state = await next_state(reader, b"S/pub.pump=2E1", lambda one: one.connected)
                (transport,) = [one for one in alive.gateway.connections if one.peer and one.peer.principal == "pub"]
                assert state.address == transport.address
            state = await next_state(reader, b"S/pub.pump=2E1", lambda one: not one.connected)
            assert state.heard_us <= state.since_us
            async with alive.client("pub", "left"):
                await next_state(reader, b"S/pub.left", lambda one: one.connected)
                alive.gateway.stop()
                await until(lambda: not alive.gateway.connections)
            assert shown(alive)["S/pub.left"]
        async with living(site, presence=ON) as alive:
            assert shown(alive)["S/pub.left"]
            alive.gateway.presence._back_by_s = trio.current_time()  # type: ignore[misc]  # for a test
            await until(lambda: not shown(alive)["S/pub.left"])

    run(test)


def test_health_shows_that_the_rule_is_missing(tmp_path: Path) -> None:
    """Without presence nothing is missing."""

    async def test() -> None:
        site = site_with_presence(tmp_path)
        (site.schemas / "registry.toml").write_text('[[rule]]\ndestination = "X/**"\nencoding = "none"\n')
        for settings, found in ((ON, True), (replace(ON, enabled=False), False)):
            async with living(site, presence=settings) as alive, alive.client("pub", "pump"):
                if found:
                    await until(lambda alive=alive: alive.gateway.presence.failure)  # type: ignore[misc]
                assert any("presence" in line for line in alive.gateway.degraded_reasons()) is found

    run(test)


@pytest.mark.slow
def test_after_a_kill_who_comes_back_stays_connected(tmp_path: Path) -> None:
    """The journal has the state from before."""
    files = GatewayFolder(tmp_path)
    copytree(SHIPPED / "maxam", files.folder / "schemas" / "maxam")
    with (files.folder / "schemas" / "registry.toml").open("a") as file:
        file.write(RULE)
    policy = files.folder / "policy.toml"
    policy.write_text(policy.read_text().replace('receive = ["X/**"]', 'receive = ["X/**", "S/*"]'))
    with files.config.open("a") as file:
        file.write("[presence]\nenabled = true\n")

    def states(count: int, *, kill: bool) -> dict[bytes, bool]:
        found: dict[bytes, bool] = {}
        with files.start() as gateway, gateway.client("subscriber", "watch") as reader:
            reader.write(encoder.subscribe(VERSION_1_2, b"s", b"S/publisher.*", b"auto", eager=True))
            with gateway.client("publisher", "pump"):
                for _ in range(count):
                    frame = reader.frame()
                    found[frame.headers[b"destination"]] = frame.body[:1] == b"\x01"
                if kill:
                    gateway.kill()
                else:
                    assert gateway.stop() == 0
        return found

    assert states(1, kill=True) == {b"S/publisher.pump": True}
    assert states(2, kill=False) == {b"S/publisher.pump": True}
