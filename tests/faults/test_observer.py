"""A gateway that follows another one, as processes: it holds what its source holds, and becomes a source when a person decides so."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maxam.cli.main import main
from maxam.config import Limits
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.disk import OsDisk
from maxam.journal.names import list_snapshots, sealed_segments
from tests.support.gateway_process import GatewayProcess, admin_environment
from tests.support.observed_site import Site, sealed, until

pytestmark = pytest.mark.slow

SMALL = "journal.segment_bytes_max = 65536"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A gateway and an observer that have never run."""
    site = Site(tmp_path, SMALL)
    yield site
    site.stop()


def values(prefix: str, count: int, size: int = 200) -> dict[str, bytes]:
    """Return values that differ, for as many topics."""
    return {f"X/A.{number}": f"{prefix}{number}".encode().ljust(size, b".") for number in range(count)}


def require_equal(site: Site) -> None:
    """Let the observer catch up; it must show the topics and sessions of the source, and have its sealed segments."""
    site.caught_up()
    assert site.values(site.observer) == site.values(site.source)
    names = [
        [(row["principal"], row["client_id"]) for row in site.ask(gateway, "/v1/sessions?limit=200").json["sessions"]]
        for gateway in (site.source, site.observer)
    ]
    assert names[0] == names[1]
    until(lambda: sealed(site.observer).keys() >= sealed(site.source).keys(), site.observer)
    assert sealed(site.observer) == sealed(site.source)


async def subscribe(client: Any) -> None:
    """Leave a durable subscription behind, with a value that is not acknowledged."""
    async with client.subscribe("X/**", id="all", durable=True, eager=True):
        assert (await client.send("X/A.0", b"first")).accepted


def test_an_observer_shows_what_its_source_has_and_takes_no_changes(site: Site) -> None:
    """Reads have the role and the time of the state; writes, readiness and clients are refused."""
    site.source.start()
    site.client(site.source, subscribe, "subscriber", "durable")
    site.send(values("a", 100))
    site.observer.start()
    for number in range(4):
        site.send(values(f"b{number}-", 100, 1000))
    require_equal(site)
    assert site.observer.port == 0
    assert len(sealed(site.source)) > 2

    read = site.ask(site.observer, "/v1/topics/X/A.7")
    assert (read.status, read.headers["maxam-role"]) == (200, "observer")
    assert read.headers["maxam-as-of"] >= read.json["accepted_at"]
    assert "maxam-role" not in site.ask(site.source, "/v1/topics/X/A.7").headers

    written = site.ask(site.observer, "/v1/topics/X/A.7", "DELETE")
    assert (written.status, written.json["code"]) == (503, "following")
    assert str(site.ports[0]) in written.json["source"]
    assert site.ask(site.observer, "/v1/reload", "POST").status == 200
    assert site.ask(site.observer, "/v1/topics/X/A.7").status == 200

    ready = site.ask(site.observer, "/readyz")
    assert (ready.status, ready.json["reasons"][0].partition(":")[0]) == (503, "following")
    metrics = site.ask(site.observer, "/metrics").body.decode()
    assert 'maxam_cluster_role{role="observer"} 1.0' in metrics
    assert "maxam_follow_linked 1.0" in metrics
    assert "maxam_follow_lag_changes 0.0" in metrics

    shown = site.ask(site.observer, "/v1/cluster").json
    assert (shown["role"], shown["source"]["state"], shown["source"]["lag_changes"]) == ("observer", "following", 0)
    followers = site.ask(site.source, "/v1/cluster").json["followers"]
    assert [(row["principal"], row["wish"]) for row in followers] == [("site-b", "feed")]
    for gateway, words in ((site.observer, ("observer", "following")), (site.source, ("serving", "site-b"))):
        environment = admin_environment(gateway.admin_port, site.certificates)
        table = CliRunner().invoke(main, ["cluster", "status"], env=environment)
        assert table.exit_code == 0, table.output
        assert all(word in table.stdout for word in words)
    known = site.ask(site.source, "/v1/cluster").json["incarnation"]
    until(lambda: site.ask(site.observer, "/v1/cluster").json["incarnation"] == known, site.observer)


def test_either_is_killed_at_any_time(site: Site) -> None:
    """After each kill the observer goes on where it was, through segments that the source sealed and rolled meanwhile."""
    site.source.start()
    site.observer.start()
    for number in range(3):
        site.send(values(f"a{number}-", 300, 400))
        site.observer.kill()
        site.send(values(f"b{number}-", 400, 400))
        site.observer.start()
        site.send(values(f"c{number}-", 200, 400))
        site.source.kill()
        site.source.start()
        site.send(values(f"d{number}-", 100, 400))
        require_equal(site)
    assert site.observer.stop() == 0
    site.source.stop()
    site.source.start()
    site.send(values("e", 10))
    site.observer.start()
    require_equal(site)


def require_same_files(site: Site, running: bool = True) -> None:
    """The observer must come to have the sealed segments of the source, all of them and no other, by SHA-256."""
    there = sealed(site.source)
    if running:
        until(lambda: sealed(site.observer) == there, site.observer)
    assert sealed(site.observer) == there


def open_segments(gateway: GatewayProcess) -> list[str]:
    """Return the names of a gateway's open segments."""
    return [path.name for path in (gateway.folder / "journal" / "segments").glob("*.open.avro")]


def test_a_graceful_stop_seals_the_same_segment_at_both(site: Site) -> None:
    """The observer has the last segment of its source before the source has ended, with what the stop itself wrote."""
    site.source.start()
    site.observer.start()
    for number in range(3):
        site.client(site.source, subscribe, "subscriber", f"durable-{number}")
        site.send(values(f"a{number}-", 50, 400))
        site.caught_up()  # so it has a link again
        assert site.source.stop() == 0
        assert open_segments(site.source) == []
        require_same_files(site)
        assert open_segments(site.observer) == []
        site.source.start()
    names = sealed(site.source)
    assert len(names) >= 3
    assert site.observer.stop() == 0
    require_same_files(site, running=False)


def test_a_seal_that_an_observer_missed_reaches_it_later(site: Site) -> None:
    """It was away when its source stopped. It seals when it is back, though no change follows."""
    site.source.start()
    site.observer.start()
    for restart in (site.observer.stop, site.observer.kill):
        site.send(values(f"{restart.__name__}-", 60, 400))
        site.caught_up()
        restart()
        assert site.source.stop() == 0
        assert sealed(site.observer).keys() < sealed(site.source).keys()
        site.source.start()
        site.observer.start()
        require_same_files(site)
        assert open_segments(site.observer) == []


@pytest.mark.parametrize("seed", range(2))
def test_sealed_segments_are_equal_through_stops_and_kills(site: Site, seed: int) -> None:
    """Either side is stopped or killed, in any order, under changes. At each graceful stop of the source the files are equal."""
    chance = random.Random(seed)  # noqa: S311  # to be repeatable
    site.source.start()
    site.observer.start()
    observing = True
    for number in range(6):
        site.send(values(f"v{number}-", chance.randrange(1, 200), chance.choice([50, 900])))
        act = chance.choice(["observer", "source", "both"])
        if act != "source" and observing:
            chance.choice([site.observer.stop, site.observer.kill])()
            observing = False
        if act != "observer":
            chance.choice([site.source.stop, site.source.kill])()
            site.source.start()
        if not observing and chance.random() < 0.7:
            site.observer.start()
            observing = True
    if not observing:
        site.observer.start()
    site.send(values("last", 5))
    site.caught_up()
    assert site.source.stop() == 0
    require_same_files(site)
    assert len(sealed(site.source)) > 3


def test_an_observer_copies_what_its_source_no_longer_has_one_by_one(site: Site) -> None:
    """If the archive of the source begins later, the observer copies its journal, and opens again by itself."""
    site.source.start()
    for number in range(4):
        site.send(values(f"a{number}-", 100, 1000))
    assert site.source.stop() == 0
    folder = site.source.folder / "journal"
    build_snapshot(str(folder), OsDisk(), Limits())
    ((snapshot, _),) = list_snapshots(str(folder / "snapshots"), OsDisk())
    old = [segment for segment in sealed_segments(str(folder), OsDisk()) if segment.last <= snapshot]
    for segment in old:
        Path(segment.path).unlink()
    assert old
    site.source.start()
    site.observer.keep_port("admin")
    site.observer.start()
    until(lambda: site.observer.log().count(" ready ") == 2, site.observer)
    site.send(values("b", 100, 1000))
    site.caught_up()
    assert site.values(site.observer) == site.values(site.source)
    assert site.observer.stop() == 0
    assert [line["outcome"] for line in audited(site.observer) if line["event"] == "following"][:1] == ["copied"]


def promoted(site: Site) -> dict[str, Any]:
    """Promote the stopped observer, and have it serve clients; return what the command reported."""
    folder = str(site.observer.folder / "journal")
    done = CliRunner().invoke(main, ["cluster", "promote", folder, "--because", "drill", "--yes", "--json"])
    assert done.exit_code == 0, done.output
    site.reconfigure(site.observer, site.follow(0), "")
    site.observer.start()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rejoin(site: Site, *options: str) -> Any:
    """Run `cluster rejoin` for the journal of the former source, against the promoted gateway."""
    folder = str(site.source.folder / "journal")
    environment = admin_environment(site.observer.admin_port, site.certificates)
    done = CliRunner().invoke(main, ["cluster", "rejoin", folder, "--json", *options], env=environment)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def audited(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """Return the lines of a gateway's audit log."""
    lines: list[dict[str, Any]] = []
    for path in sorted((gateway.folder / "journal-audit").glob("*.jsonl")):
        lines += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines


def test_a_person_promotes_an_observer_and_the_former_source_comes_back(site: Site) -> None:
    """The promoted gateway serves what it had. The former source is refused as forked, its tail is listed, and it copies."""
    site.source.start()
    site.observer.start()
    site.client(site.source, subscribe, "subscriber", "durable")
    site.send(values("a", 50))
    site.caught_up()
    before = site.ask(site.observer, "/v1/cluster").json
    assert site.observer.stop() == 0
    site.send({"X/A.1": b"lost", "X/A.2": b"lost", "X/only-here": b"lost"})
    site.send({"X/A.1": b"lost again"})
    site.source.kill()

    found = promoted(site)
    assert found["revision"] == before["revision"] == 51
    assert found["followed"]["revision"] in range(52)
    after = site.ask(site.observer, "/v1/cluster").json
    assert after["role"] == "serving"
    assert after["incarnation"] != before["incarnation"]
    assert site.ask(site.observer, "/readyz").status == 200
    (line,) = [one for one in audited(site.observer) if one["event"] == "promoted"]
    assert (line["reason"], line["revision"], line["incarnation"]) == ("drill", 51, after["incarnation"])

    async def work(client: Any) -> None:
        for number in range(10):
            assert (await client.send(f"X/A.{number}", b"of the new site")).accepted

    site.client(site.observer, work)
    assert site.ask(site.observer, "/v1/cluster").json["revision"] == 61

    # the former source comes back, and must not follow by itself
    own = site.link(1).partition("certificate")[2]
    site.reconfigure(
        site.source, site.link(0), site.link(0) + "certificate" + own.replace("site-b", "site-a") + site.follow(1)
    )
    # the promoted gateway needs a certificate of a server on its link
    site.observer.stop()
    site.reconfigure(site.observer, site.link(1), site.link(1).partition("certificate")[0])
    site.observer.start()
    site.source.start()
    until(lambda: site.ask(site.source, "/v1/cluster").json["source"]["refused"] == "forked", site.source)
    assert site.ask(site.source, "/readyz").status == 503
    until(lambda: "follow-refused" in site.source.log(), site.source)
    site.source.stop()
    assert any(line["event"] == "following" and line["outcome"] == "forked" for line in audited(site.source))

    tail = rejoin(site)
    assert [(row["destination"], row["changes"]) for row in tail["topics"]] == [
        ("X/A.1", 2),
        ("X/A.2", 1),
        ("X/only-here", 1),
    ]
    assert (tail["after"], tail["last"], tail["aside"]) == (51, 55, None)
    assert rejoin(site, "--apply", "--yes")["aside"].endswith(".forked-1")
    site.source.start()
    (line,) = [one for one in audited(site.source) if one["outcome"] == "set-aside"]
    assert (line["event"], line["after"], line["last"]) == ("following", 51, 55)
    site.source, site.observer = site.observer, site.source
    site.send({"X/A.4": b"begins a segment"})
    require_equal(site)
