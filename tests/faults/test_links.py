"""Links between real processes: what a follower keeps equals its source, through cuts, refusals, damage and slow lines."""

import contextlib
import datetime as dt
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from cryptography import x509

from maxam.cluster import keeper, wire
from maxam.cluster.copying import place_copy
from maxam.cluster.entry import block_entry, read_entry
from maxam.cluster.follower import CopiedError
from maxam.cluster.link import Link, LinkLostError, connect
from maxam.config import Limits
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import START, Encoder
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.retention import Rules, expire
from maxam.journal.verify import verify
from maxam.pki.certificates import Authority
from tests.faults.network import Relay
from tests.support.journal_records import SYNC, change
from tests.support.linked import FollowedJournal, client_context, linked_gateway, policy_of, segments, serves_too
from tests.support.observed_site import Site, until
from tests.support.patience import PATIENCE_S
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.slow


def send(client: RawClient, first: int, count: int, size: int = 20) -> None:
    """Send values to some topics, and wait until the last one is committed."""
    for number in range(first, first + count):
        receipt = {"receipt": "last"} if number == first + count - 1 else {}
        client.write("SEND", {"destination": f"X/a{number % 50}", **receipt}, b"%d" % number * size)
    while client.read().headers.get("receipt-id") != "last":
        pass


async def reaches(followed: FollowedJournal, revision: int) -> None:
    """Wait until a revision is applied and journalled."""
    with trio.fail_after(PATIENCE_S):
        while followed.revision < revision or followed.keeper.synced.revision < revision:  # noqa: ASYNC110  # a thread's
            await trio.sleep(0.01)


def test_a_follower_keeps_the_same_bytes(tmp_path: Path, certificates: Path) -> None:
    """From the beginning, live, and again after both were restarted."""
    source, port = linked_gateway(
        tmp_path / "a", certificates, policy_of(certificates), "journal.segment_bytes_max = 65536"
    )

    def follow(upto: int) -> None:
        with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
            trio.run(follow_until, followed, upto)

    with source, RawClient(source, "operator") as client:
        send(client, 0, 2000)
        follow(2000)
        send(client, 2000, 1000)
        follow(3000)
    there = segments(tmp_path / "a" / "journal")
    here = segments(tmp_path / "b")
    assert len(there) > 3
    assert {name: data for name, data in here.items() if "open" not in name}.items() <= there.items()
    with source:
        with RawClient(source, "operator") as client:
            send(client, 3000, 1)
        follow(3001)
        there, here = segments(tmp_path / "a" / "journal"), segments(tmp_path / "b")
        assert here == there


async def follow_until(followed: FollowedJournal, revision: int) -> None:
    """Follow until a revision is journalled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.run)
        await reaches(followed, revision)
        nursery.cancel_scope.cancel()


async def refusal(followed: FollowedJournal) -> str:
    """Follow until the source refuses; return the code."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.run)
        with trio.fail_after(PATIENCE_S):
            while not followed.follower.status.refused:  # noqa: ASYNC110  # a thread's
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return followed.follower.status.refused


def test_a_line_that_is_cut_at_any_byte_loses_nothing(tmp_path: Path, certificates: Path) -> None:
    """Through a relay that resets and delays, the journal of the follower ends with the same bytes."""
    source, port = linked_gateway(
        tmp_path / "a", certificates, policy_of(certificates), "journal.segment_bytes_max = 65536"
    )
    with source, RawClient(source, "operator") as client, Relay(port, 7, 0.01) as relay:
        send(client, 0, 300)
        with FollowedJournal(tmp_path / "b", certificates, [relay.port]) as followed:

            async def run() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(followed.run)
                    sent = 300
                    while relay.resets < 5:
                        await trio.to_thread.run_sync(send, client, sent, 50)
                        sent += 50
                    await reaches(followed, sent)
                    nursery.cancel_scope.cancel()

            trio.run(run)
        assert segments(tmp_path / "b") == segments(tmp_path / "a" / "journal")


def test_an_observer_is_followed_like_its_source(tmp_path: Path) -> None:
    """A third site that follows the second one has the same bytes, what was there before it came and what comes later."""
    site = Site(tmp_path, "journal.segment_bytes_max = 65536")
    before, after = serves_too(site.certificates, "site-b")
    for gateway in (site.source, site.observer):
        policy = gateway.folder / "policy.toml"
        policy.write_text(policy.read_text("utf-8").replace(before, after), "utf-8")
    try:
        site.source.start()
        site.send({f"X/A.{number}": b"v" * 900 for number in range(200)})
        site.observer.start()
        site.caught_up()
        with FollowedJournal(tmp_path / "c", site.certificates, [site.ports[1]], "site-a") as followed:
            trio.run(follow_until, followed, 200)
            assert followed.follower.status.role == "following"
        site.send({f"X/A.{number}": b"w" * 900 for number in range(200)})
        with FollowedJournal(tmp_path / "c", site.certificates, [site.ports[1]], "site-a") as followed:
            trio.run(follow_until, followed, 400)
        assert len(segments(tmp_path / "c")) > 3
        assert segments(tmp_path / "c") == segments(site.source.folder / "journal")
    finally:
        site.stop()


def test_only_a_principal_with_the_right_may_follow(tmp_path: Path, certificates: Path) -> None:
    """Another certificate is refused, and a link ends when the right is withdrawn."""
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    with source, RawClient(source, "operator") as client:
        send(client, 0, 10)
        with FollowedJournal(tmp_path / "b", certificates, [port], "publisher") as followed:
            assert trio.run(refusal, followed) == "unauthorised"
        with FollowedJournal(tmp_path / "c", certificates, [port]) as followed:

            async def run() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(followed.run)
                    await reaches(followed, 10)
                    policy = policy_of(certificates, "publisher")
                    (source.folder / "policy.toml").write_text(policy, encoding="utf-8")
                    source.reload()
                    with trio.fail_after(PATIENCE_S):
                        while followed.follower.status.refused != "unauthorised":  # noqa: ASYNC110  # a thread's
                            await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()

            trio.run(run)


def revoke(certificates: Path, crl: Path, name: str) -> None:
    """Replace a CRL by a newer one, with one certificate on it."""
    revoked = x509.load_pem_x509_certificate((certificates / f"{name}.pem").read_bytes())
    later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    new = crl.with_suffix(".new")
    new.write_bytes(Authority.read(certificates).revocation_list_pem([revoked], later))
    new.replace(crl)


@pytest.mark.parametrize("section", ["tls", "link"])
def test_a_link_ends_when_its_certificate_is_revoked(tmp_path: Path, certificates: Path, section: str) -> None:
    """Within 5 s, by the CRL of `[link]` or of `[tls]`. A CRL that cannot be used changes nothing."""
    crl = tmp_path / "crl.pem"
    shutil.copy(certificates / "crl.pem", crl)
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    text = (source.folder / "maxam.toml").read_text("utf-8")
    if section == "tls":
        text = text.replace(f"{certificates}/crl.pem", str(crl))
    else:
        text = "\n".join([f'link.ca = "{certificates}/ca.pem"', f'link.crl = "{crl}"', text])
    (source.folder / "maxam.toml").write_text(text, "utf-8")
    with source, RawClient(source, "operator") as client:
        send(client, 0, 10)
        with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:

            async def run() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(followed.run)
                    await reaches(followed, 10)
                    crl.write_bytes(b"no CRL")
                    await trio.to_thread.run_sync(send, client, 10, 10)
                    await reaches(followed, 20)
                    revoke(certificates, crl, "operator")
                    with trio.fail_after(5):
                        while followed.follower.status.refused != "unauthorised":  # noqa: ASYNC110  # a thread's
                            await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()

            trio.run(run)


def test_an_observer_leaves_a_source_whose_certificate_is_revoked(tmp_path: Path) -> None:
    """Also one that it follows already."""
    site = Site(tmp_path)
    crl = tmp_path / "crl.pem"
    shutil.copy(site.certificates / "crl.pem", crl)
    port = f"port = {site.ports[1]}\n"
    site.reconfigure(site.observer, port, f'{port}ca = "{site.certificates}/ca.pem"\ncrl = "{crl}"\n')
    try:
        site.source.start()
        site.observer.start()
        site.send({"X/A.1": b"1"})
        site.caught_up()
        revoke(site.certificates, crl, "server")
        found = {}

        def left() -> bool:
            found.update(site.ask(site.observer, "/v1/cluster").json["source"])
            return "is on the CRL" in found["problem"]

        until(left, site.observer, within_s=5)
        assert found["linked_s"] is None
    finally:
        site.stop()


def test_other_histories_are_refused(tmp_path: Path, certificates: Path) -> None:
    """A source that lost changes is behind; one that went on otherwise is a fork. Neither is followed."""
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    with source, RawClient(source, "operator") as client:
        send(client, 0, 100)
        with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
            trio.run(follow_until, followed, 100)
    shutil.rmtree(source.folder / "journal")
    with source, RawClient(source, "operator") as client:
        for sent, code in ((50, "ahead"), (100, "forked")):
            send(client, sent, 50)
            with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
                assert trio.run(refusal, followed) == code
                assert followed.revision == 0


def test_a_journal_is_copied_when_the_archive_begins_later(tmp_path: Path, certificates: Path) -> None:
    """Through cuts, the copy is completed, put into place at the next start, and followed on."""
    source, port = linked_gateway(
        tmp_path / "a", certificates, policy_of(certificates), "journal.segment_bytes_max = 65536"
    )
    journal = source.folder / "journal"
    for first in (0, 1000):
        with source, RawClient(source, "operator") as client:
            send(client, first, 1000, 100)
        assert build_snapshot(str(journal), OsDisk(), Limits()) is not None
    assert expire(str(journal), OsDisk(), Rules(0.0, 1), 0) is not None
    here = str(tmp_path / "b")
    with source, RawClient(source, "operator") as client, Relay(port, 3, 0.002) as relay:
        send(client, 2000, 10)
        with FollowedJournal(Path(here), certificates, [relay.port]) as followed, pytest.raises(CopiedError):
            trio.run(followed.run)
        assert place_copy(here, OsDisk())
        assert not place_copy(here, OsDisk())
        with FollowedJournal(Path(here), certificates, [port]) as followed:
            assert 1000 < followed.follower.steps.position.revision <= 2000
            trio.run(follow_until, followed, 2010)
        there = segments(journal)
        copied = segments(Path(here))
        assert copied == {name: there[name] for name in copied}
        assert "open" in max(copied)
    assert not [report for report in verify(here, OsDisk()) if report.problem]


def test_a_damaged_entry_is_not_applied(tmp_path: Path, certificates: Path) -> None:
    """A source that sends an entry with a flipped bit, a gap, or a repetition is left; nothing of it is stored."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    encoder = Encoder(START, SYNC)
    blocks = [encoder.encode([change(revision)]) for revision in (1, 2, 3)]
    entries = [block_entry(one.data, one.before, one.after, one is blocks[0]).encode() for one in blocks]
    flipped = bytearray(entries[1])
    flipped[200] ^= 4
    sent: list[list[bytes]] = [[entries[0], bytes(flipped)], [entries[2]], [entries[0]], [b"no entry"], entries[1:]]

    def serve(listening: socket.socket) -> None:
        for batch in sent:
            connected, _ = listening.accept()
            with contextlib.suppress(LinkLostError):
                link = Link(context.wrap_socket(connected, server_side=True))
                link.expect()
                link.send(wire.encode_welcome(wire.Welcome("a", "1", "serving", "", blocks[-1].after)))
                link.send(b"".join(wire.frame(wire.ENTRY, entry) for entry in batch))
                while batch is not sent[-1]:
                    link.expect()
                while link.beat is None or link.beat.position.revision < 3:
                    link.receive(0.1)
            link.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        with FollowedJournal(tmp_path / "b", certificates, [listening.getsockname()[1]]) as followed:
            trio.run(follow_until, followed, 3)
            assert followed.follower.restarts >= 4
        thread.join()
    (name,) = segments(tmp_path / "b")
    assert segments(tmp_path / "b")[name].endswith(b"".join(block.data for block in blocks))


@contextlib.contextmanager
def pretended_source(certificates: Path, role: str, now_us: Callable[[], int]) -> Iterator[int]:
    """Serve one link with one block, with signs of life of a given time; yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    block = Encoder(START, SYNC).encode([change(1)])

    def serve(listening: socket.socket) -> None:
        connected, _ = listening.accept()
        link = Link(context.wrap_socket(connected, server_side=True), lambda: block.after, now_us)
        with contextlib.suppress(LinkLostError):
            link.expect()
            link.send(wire.encode_welcome(wire.Welcome("a", "1", role, "", block.after)))
            link.send(wire.frame(wire.ENTRY, block_entry(block.data, block.before, block.after, True).encode()))
            link.expect()
        link.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


async def lag(followed: FollowedJournal, over_s: float) -> None:
    """Follow until the lag is above a time, on a link that lasts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.run)
        with trio.fail_after(PATIENCE_S):
            while followed.revision < 1 or followed.follower.lag_s() <= over_s:  # noqa: ASYNC110  # a thread's
                await trio.sleep(0.01)
        assert followed.follower.status.linked_at_s is not None
        nursery.cancel_scope.cancel()


def test_a_source_without_a_source_of_its_own_is_no_sign_of_life(tmp_path: Path, certificates: Path) -> None:
    """Of an observer whose time stands still, the follower knows that it is behind: two that follow each other know nothing."""
    with (
        pretended_source(certificates, "following", lambda: 1_700_000_000_000_000) as port,
        FollowedJournal(tmp_path / "b", certificates, [port]) as followed,
    ):
        trio.run(lag, followed, wire.SILENCE_S)


def test_a_full_disk_shows_as_lag(tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the link waits for the own disk, it reads no sign of life. So the lag is unknown, and not 0."""
    monkeypatch.setattr(keeper, "QUEUE_BYTES_MAX", -1)
    with (
        pretended_source(certificates, "serving", lambda: time.time_ns() // 1000) as port,
        FollowedJournal(tmp_path / "b", certificates, [port]) as followed,
    ):
        trio.run(lag, followed, wire.SILENCE_S)


def test_a_source_with_a_wrong_clock_shows_no_lag(tmp_path: Path, certificates: Path) -> None:
    """The time of a gateway that serves may stand still or go back: it is not compared."""
    times = iter(range(1_700_000_000_000_000, 0, -1))
    with (
        pretended_source(certificates, "serving", lambda: next(times)) as port,
        FollowedJournal(tmp_path / "b", certificates, [port]) as followed,
    ):

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed.run)
                await reaches(followed, 1)
                beats: set[int] = set()
                while len(beats) < 8:
                    beats.add(followed.follower.heard_at_us)
                    assert followed.follower.lag_s() < wire.SILENCE_S
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

        trio.run(run)


def test_a_block_of_a_slow_disk_passes(tmp_path: Path, certificates: Path) -> None:
    """A journal that was written without a link may have blocks of any size that arrived within one fsync."""
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    journal = Journal.open(source.folder / "journal", OsDisk(), JournalSettings(reserve_bytes=0), SYNC, "0" * 16)
    assert not list(journal.recover())
    journal.write(journal.encode([change(number, body=b"v" * 1_000_000) for number in range(1, 33)]))
    journal.close()
    with source, FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
        trio.run(follow_until, followed, 32)


def _send_and_read_on(link: Link, data: bytes) -> None:
    """Send, and read until the link ends. On a busy machine `send` itself notices the end."""
    link.send(data)
    _read_on(link)


def _read_on(link: Link) -> None:
    while True:
        link.expect()


HOSTILE = [
    wire.frame(wire.ENTRY, bytes(70_000)),
    (2**32 - 1).to_bytes(4, "big") + bytes((wire.DATA,)),
    (70_000).to_bytes(4, "big") + bytes((wire.ENTRY,)),
    bytes((0, 0, 0, 0, 255)),
    wire.encode_hello(wire.Hello(wire.FEED, "again", "1", "", START)),
    wire.encode_beat(wire.Beat(START, 2**64 - 1)),
    wire.encode_piece(wire.Piece("../maxam.toml", 0, b"")),
    wire.encode_piece(wire.Piece("segments/none", 2**64 - 1, b"")),
    wire.encode_done("", bytes(32)),
]


@pytest.mark.parametrize("wish", [wire.FEED, wire.COPY])
def test_a_hostile_follower_ends_its_own_link_only(tmp_path: Path, certificates: Path, wish: int) -> None:
    """Even with the right `replicate`: its link ends, without a bug in the log, and others go on."""
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    with source, RawClient(source, "operator") as client:
        send(client, 0, 10)
        for frame in HOSTILE:
            link = connect("127.0.0.1", port, client_context(certificates), lambda: START, lambda: "")
            link.send(wire.encode_hello(wire.Hello(wish, "hostile", "1", "", START)))
            assert link.expect().type == wire.WELCOME
            with contextlib.closing(link), pytest.raises(LinkLostError):
                _send_and_read_on(link, frame)
        with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
            trio.run(follow_until, followed, 10)
        assert "internal-error" not in source.log()


def test_an_offset_after_the_end_of_a_file_ends_the_link(tmp_path: Path, certificates: Path) -> None:
    """Also one that no file can have."""
    source, port = linked_gateway(
        tmp_path / "a", certificates, policy_of(certificates), "journal.segment_bytes_max = 65536"
    )
    with source, RawClient(source, "operator") as client:
        send(client, 0, 2000)
        for beyond in (1, 2**62):
            link = connect("127.0.0.1", port, client_context(certificates), lambda: START, lambda: "")
            link.send(wire.encode_hello(wire.Hello(wire.COPY, "hostile", "1", "", START)) + wire.frame(wire.LIST, b""))
            assert link.expect().type == wire.WELCOME
            path, size = wire.read_files(link.expect().body)[0]
            with contextlib.closing(link), pytest.raises(LinkLostError):
                _send_and_read_on(link, wire.encode_piece(wire.Piece(path, size + beyond, b"")))
        assert "internal-error" not in source.log()


def test_a_follower_that_does_not_read_holds_nobody_up(tmp_path: Path, certificates: Path) -> None:
    """SENDs go on while a feed waits for its peer, and the peer gets all of them when it reads again."""
    source, port = linked_gateway(tmp_path / "a", certificates, policy_of(certificates))
    with source, RawClient(source, "operator") as client:
        link = connect("127.0.0.1", port, client_context(certificates), lambda: START, lambda: "")
        link.send(wire.encode_hello(wire.Hello(wire.FEED, "slow", "1", "", START)))
        assert link.expect().type == wire.WELCOME

        def idle(ended: threading.Event) -> None:
            while not ended.is_set():
                link.pause(0.05)

        ended = threading.Event()
        thread = threading.Thread(target=idle, args=(ended,))
        thread.start()
        for first in range(0, 500, 50):  # of 200 kB: more than all buffers on the way
            send(client, first, 50, 70_000)
        ended.set()
        thread.join()
        revision = 0
        while revision < 500:
            frame = link.expect()
            entry = read_entry(frame.body)
            assert entry.before.revision == revision
            revision = entry.after.revision
        link.close()
