"""The program `maxam-bridge` between two real gateways over mutual TLS."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.bridge.main import bridge
from maxam.exit_codes import ExitCode
from maxam.journal import backup as journal
from maxam.journal.disk import OsDisk
from maxam.links import DRILL, UP, Wanted, WantedDrill
from tests.interop.bridge.estate import RULES, BridgeProcess, Estate, estate, sent, until
from tests.interop.bridge.line import Line
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.interop]


def test_the_log_of_a_bridge_is_json(tmp_path: Path, certificates: Path) -> None:
    """With `[log] format = "json"` each line is one object with time, level and event."""
    with estate(tmp_path, certificates) as world:
        config = world.bridge.config
        config.write_text(f'[log]\nformat = "json"\n{config.read_text()}')
        world.send(world.venue, {"X/a": b"1"})
        world.bridge.start()
        world.until_complete()
        lines = [json.loads(line) for line in world.bridge.log.read_text().splitlines()]
        assert all({"at", "level", "event"} <= line.keys() for line in lines)
        assert "bridge-state" in {line["event"] for line in lines}


def test_values_and_deletes_cross(tmp_path: Path, certificates: Path) -> None:
    """Values cross with their provenance, and deletes do, also during an outage of either gateway or of the bridge."""
    with estate(tmp_path, certificates) as world:
        world.send(world.venue, {"X/a": b"1", "X/b": b"1", "X/c": b"1"})
        world.bridge.start()
        world.until_complete()
        assert world.equal()
        _, headers = world.messages(world.centre, "V/a")["V/a"]
        assert (headers["origin-gateway"], headers["origin-publisher"], headers["via"]) == ("V7", "publisher", "V7")
        assert headers["content-type"] == "text/plain"
        world.send(world.venue, {"X/a": b"2", "X/b": b""})
        world.until_equal()
        world.centre.kill()
        world.send(world.venue, {"X/a": b"", "X/c": b"2", "X/d": b"1"})
        world.centre.start()
        world.until_equal()
        world.bridge.kill()
        world.send(world.venue, {"X/d": b"", "X/e": b"1"})
        world.bridge.start()
        world.until_equal()
        world.venue.kill()
        world.venue.start()
        world.send(world.venue, {"X/e": b"2"})
        world.until_equal()


def test_restores_leave_no_ghosts(tmp_path: Path, certificates: Path) -> None:
    """A venue and a centre that are restored from backups end equal again, whatever changed since."""
    with estate(tmp_path, certificates) as world:
        world.send(world.venue, {f"X/t{number}": b"1" for number in range(20)})
        world.bridge.start()
        world.until_complete()
        old = {gateway: back_up(gateway) for gateway in (world.venue, world.centre)}
        world.send(world.venue, {"X/t1": b"", "X/t2": b"2", "X/new": b"1"})
        world.until_equal()
        before = world.until_complete()
        for gateway in (world.centre, world.venue):
            restore(gateway, old[gateway])
            world.until_equal()
            assert world.until_complete().quarantined == 0
        after = world.until_complete()
        assert "V/new" not in world.values(world.centre, "V/**")
        assert after.venue_incarnation != before.venue_incarnation
        assert after.centre_incarnation != before.centre_incarnation


def test_a_second_bridge_takes_the_place_of_the_first(tmp_path: Path, certificates: Path) -> None:
    """Of two bridges of one venue the older one ends with a code of its own, and the newer one forwards."""
    with estate(tmp_path, certificates) as world:
        world.bridge.start()
        world.until_complete()
        second = BridgeProcess(world.bridge.config, tmp_path / "second.log")
        second.start()
        try:
            assert world.bridge.wait() == ExitCode.REPLACED
            world.send(world.venue, {"X/a": b"1"})
            world.until_equal()
        finally:
            second.kill()


def test_renamed_routes_and_routes_down(tmp_path: Path, certificates: Path) -> None:
    """With another store the old topics go. A route down carries values and deletes to the venue."""
    with estate(tmp_path, certificates) as world:
        world.send(world.venue, {"X/a": b"1"})
        world.send(world.centre, {"C/config": b"1", "V/own": b"1"})
        world.bridge.start()
        world.until_complete()
        world.bridge.kill()
        world.configure(
            '[[route]]\nglob = "X/**"\nstore = "W"\npriority = "low"\n[[route]]\nglob = "C/**"\nstore = "C"\ndirection = "down"'
        )
        world.bridge.start()
        until(lambda: world.equal("X", "W") and world.values(world.venue, "C/**") == {"C/config": b"1"})
        until(lambda: world.values(world.centre, "V/**") == {"V/own": b"1"})
        world.send(world.centre, {"C/config": b"", "C/other": b"2"})
        until(lambda: world.values(world.venue, "C/**") == {"C/other": b"2"})


def test_bad_types_do_not_block(tmp_path: Path, certificates: Path) -> None:
    """A value that the centre rejects is counted and shown. Others pass, and it crosses once the centre accepts it."""
    bad = '[[rule]]\ndestination = "V/bad*"\nencoding = "datum"\nschema = "maxam.Wanted_v1"\n'
    with estate(tmp_path, certificates, more={"registry.toml": bad + RULES}) as world:
        world.bridge.start()
        world.until_complete()
        world.send(world.venue, {"X/bad1": b"v", "X/bad2": b"v", "X/good": b"v"})
        until(lambda: (link := world.link(world.centre)) is not None and link.quarantined == 2)
        assert world.values(world.centre, "V/**") == {"V/good": b"v"}
        assert checked(world) >= {("error", "schema-mismatch")}
        (world.centre.folder / "schemas/registry.toml").write_text(RULES)
        world.centre.stop()
        world.centre.start()
        world.until_equal()
        until(lambda: (link := world.link(world.centre)) is not None and link.quarantined == 0)
        assert checked(world) == {("ok", "connected"), ("ok", "rights"), ("ok", "schemas")}


def test_values_above_a_limit_of_the_centre_do_not_block(tmp_path: Path, certificates: Path) -> None:
    """A body or headers for which the centre ends the connection are quarantined, and everything else passes."""
    with estate(tmp_path, certificates) as world:
        world.centre.stop()
        path = world.centre.folder / "maxam.toml"
        limits = "limits.frame_body_bytes_max = 2000\nlimits.frame_headers_max = 20\n"
        path.write_text(limits + path.read_text("utf-8"), "utf-8")
        world.centre.start()
        many = {f"h{number}": "1" for number in range(18)}
        world.send(world.venue, {"X/many": b"1"}, many)
        world.send(world.venue, {"X/large": b"1" * 2001, "X/a": b"1"})
        world.bridge.start()
        until(lambda: (link := world.link(world.centre)) is not None and link.quarantined == 2 and link.state == UP)
        until(lambda: world.values(world.centre, "V/**") == {"V/a": b"1"})
        connections = world.bridge.log.read_text().count("bridge-connected")
        for size in (2002, 3000):
            world.send(world.venue, {"X/many": b"2"}, many)
            world.send(world.venue, {"X/large": b"2" * size, "X/a": b"%d" % size})
            until(lambda size=size: world.values(world.centre, "V/**") == {"V/a": b"%d" % size})  # type: ignore[misc]
        assert world.bridge.log.read_text().count("bridge-connected") == connections
        world.send(world.venue, {"X/large": b"3", "X/many": b"3"})
        world.until_equal()


def test_pause_and_drill(tmp_path: Path, certificates: Path) -> None:
    """A pause at the venue stops the flow. A drill cuts the line, converges, and finds no difference."""
    with estate(tmp_path, certificates) as world:
        world.send(world.venue, {"X/a": b"1"})
        world.bridge.start()
        world.until_complete()
        headers = {"schema-version": "1.0"}
        world.send(world.venue, {"B/V7.Wanted": Wanted(True, "stock-taking").encoded()}, headers)
        until(lambda: (link := world.link(world.centre)) is not None and link.because == "stock-taking")
        world.send(world.venue, {"X/a": b"2"})
        world.send(world.venue, {"B/V7.Wanted": Wanted().encoded()}, headers)
        world.until_equal()
        world.send(world.centre, {"B/V7.Wanted": Wanted(drill=WantedDrill("d1", 1)).encoded()}, headers)
        until(lambda: (link := world.link(world.venue)) is not None and link.state == DRILL)
        world.send(world.venue, {"X/a": b"3", "X/b": b"1"})
        until(lambda: (link := world.link(world.centre)) is not None and link.drill is not None and link.drill.done)
        link = world.link(world.centre)
        assert link is not None
        assert link.drill is not None
        assert (link.drill.seconds, link.drill.differences) == (1, 0)
        world.until_equal()


def test_a_line_cut_again_and_again(tmp_path: Path, certificates: Path) -> None:
    """Under load and with a line that is cut after random bytes, nothing is lost, nothing goes back, no ghost stays.

    In the first half few inventories end before a cut. In the second half most cuts come after one.
    """
    cuts = int(os.environ.get("CUTS", "6"))
    with estate(tmp_path, certificates) as world, Line(world.centre.port, cut_bytes=60_000, seed=cuts) as line:
        world.configure(centre_port=line.port)
        world.send(world.venue, {f"X/t{number}": b"0" for number in range(200)})
        world.bridge.start()
        newest: dict[str, int] = {}
        number = 0
        began_s = time.monotonic()
        while line.cuts < cuts:
            line.cut_bytes = 60_000 if line.cuts < cuts // 2 else 400_000
            number += 1
            values = {f"X/t{(number * 7 + each) % 200}": b"%d" % number for each in range(20)}
            values[f"X/t{number % 200}"] = b"" if number % 3 else b"%d" % number
            world.send(world.venue, values)
            for topic, body in world.values(world.centre, "V/**").items():
                assert int(body) >= newest.get(topic, 0)
                newest[topic] = int(body)
        line.cut_bytes = 0
        line.cut()
        seconds = world.until_equal()
        world.until_complete()
        log = world.bridge.log.read_text()
        sys.stdout.write(
            f"{line.cuts} cuts in {time.monotonic() - began_s:.0f} s, {number * 21} changes, {sent(world)} SENDs,"
            f" {log.count('state=running')} runs, {log.count('state=marking')} inventories begun, equal after {seconds:.1f} s\n"
        )


def test_renewed_certificates_are_picked_up(tmp_path: Path, certificates: Path) -> None:
    """The files of the certificate are read at each connection: a wrong one that is replaced is no reason to end."""
    with estate(tmp_path, certificates) as world:
        good = (certificates / "subscriber.pem").read_bytes(), (certificates / "subscriber.key").read_bytes()
        own = tmp_path / "own.pem", tmp_path / "own.key"
        for path in own:
            path.write_text("being written")
        text = world.bridge.config.read_text()
        text = text.replace(f"{certificates}/subscriber.pem", "own.pem").replace(
            f"{certificates}/subscriber.key", "own.key"
        )
        world.bridge.config.write_text(text)
        world.bridge.start()
        until(lambda: "bridge-disconnected" in world.bridge.log.read_text())
        for path, content in zip(own, good, strict=True):
            path.write_bytes(content)
        world.send(world.venue, {"X/a": b"1"})
        world.until_equal()


def checked(world: Estate) -> set[tuple[str, str]]:
    """Return level and code of each finding of `maxam-bridge --check`."""
    done = CliRunner().invoke(bridge, ["--config", str(world.bridge.config), "--check", "-o", "json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == any(row["level"] == "error" for row in rows), done.output
    return {(row["level"], row["code"]) for row in rows}


def back_up(gateway: GatewayProcess) -> Path:
    """Return a backup of a gateway that runs."""
    folder = gateway.folder / "backups"
    journal.back_up(str(gateway.folder / "journal"), str(folder), "20260101T000000.000000Z", OsDisk())
    return folder / "20260101T000000.000000Z"


def restore(gateway: GatewayProcess, backup: Path) -> None:
    """Restore a gateway to a backup."""
    gateway.kill()
    (gateway.folder / "journal").rename(gateway.folder / "journal-lost")
    journal.restore(str(backup), str(gateway.folder / "journal"), OsDisk())
    gateway.start()


def test_a_gateway_runs_its_bridges(tmp_path: Path, certificates: Path) -> None:
    """The bridge is started with the gateway, again after it was killed, and ended with the gateway."""
    with estate(tmp_path, certificates) as world:
        world.venue.stop()
        with (world.venue.folder / "maxam.toml").open("a") as file:
            file.write(f'\n[bridge]\nconfigs = ["{world.bridge.config}"]\n')
        world.venue.start()
        world.until_complete()
        first = bridge_of(world)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: bridge_of(world) not in (None, first))
        world.send(world.venue, {"X/a": b"1"})
        world.until_equal()
        assert "bridge-ended" in world.venue.log()
        second = bridge_of(world)
        world.venue.stop()
        assert not Path(f"/proc/{second}").exists()
        other = BridgeProcess(world.bridge.config, tmp_path / "other.log")
        before_ms = world.until_complete().updated_ms
        world.venue.start()
        until(lambda: (link := world.link(world.centre)) is not None and link.updated_ms > before_ms)
        try:
            other.start()
            until(lambda: bridge_of(world) is None)
            health = world.readiness(world.venue)
            assert "bridge-down" in {line.partition(":")[0] for line in health["degraded"]}
        finally:
            other.kill()


def bridge_of(world: Estate) -> int | None:
    """Return the process id of the bridge that the venue's gateway runs."""
    tasks = Path(f"/proc/{world.venue.pid}/task").glob("*/children")
    for child in [child for one in tasks for child in one.read_text().split()]:
        with contextlib.suppress(OSError):
            if b"maxam.bridge" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def test_a_thin_line_brings_high_priorities_first(tmp_path: Path, certificates: Path) -> None:
    """Over 0.5 Mbit/s, values of a high priority do not wait for many of a low one, and an interval thins out its route."""
    routes = """
[[route]]
glob = "X/low*"
store = "V"
priority = "low"
[[route]]
glob = "X/high*"
store = "V"
priority = "high"
[[route]]
glob = "X/slow"
store = "V"
min_interval_ms = 3600000
"""
    with estate(tmp_path, certificates, routes) as world, Line(world.centre.port, bits_per_s=5e5) as line:
        world.configure(centre_port=line.port, bridge="window = 20")
        world.bridge.start()
        world.until_complete()
        world.send(world.venue, {"X/slow": b"1"})
        until(lambda: "V/slow" in world.values(world.centre, "V/slow"))
        world.send(world.venue, {"X/slow": b"2"})
        world.send(world.venue, {f"X/low{number}": b"x" * 1000 for number in range(200)})
        world.send(world.venue, {f"X/high{number}": b"x" for number in range(20)})
        until(lambda: len(world.values(world.centre, "V/*")) == 221)
        found = world.messages(world.centre, "V/*")
        high = [int(headers["message-id"]) for topic, (_, headers) in found.items() if "high" in topic]
        low = [int(headers["message-id"]) for topic, (_, headers) in found.items() if "low" in topic]
        assert len([one for one in low if one > max(high)]) > 50
        assert found["V/slow"][0] == b"1"
