"""Reload while clients are served: items that come into force, items that are refused, no leak, no dropped connection."""

import datetime as dt
import gc
import json
import logging
import math
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from maxam.avro.registry import load_registry
from maxam.broker.wills import SessionWill
from maxam.config import Limits, ReloadSettings, SchemaSettings, Settings
from maxam.content import pack
from maxam.errors import DiskFullError
from maxam.files import FileStamp
from maxam.gateway.file_watch import Debouncer
from maxam.gateway.loaded_config import ITEMS, LoadedConfig, reread_config
from maxam.gateway.orphans import OrphanSearch
from maxam.gateway.reload import REFUSED, RELOADED, UNCHANGED
from maxam.gateway.server import Gateway
from maxam.gateway.tls import TlsSocket, fingerprint, verified_chain
from maxam.gateway.transport import Transport
from maxam.pki.certificates import SERVER_NAMES, Authority
from maxam.records import UNJUDGED, Change, Identity
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.web_config import WebSettings
from tests.support.living_gateway import (
    ANYTHING_GOES,
    DAY,
    EVERYTHING,
    NOW,
    Living,
    Site,
    cli,
    encrypted,
    living,
    run,
    until,
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with three clients."""
    return Site(tmp_path, "anna", "ben", "carl")


def test_nothing_changed_is_no_reload(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """When all files are what is in force, each item is unchanged, nothing is logged, and who serves TLS stays the same."""

    async def test() -> None:
        async with living(site) as gateway:
            before = gateway.gateway.tls
            caplog.clear()
            outcomes = await gateway.reload()
            assert [one.outcome for one in outcomes.values()] == [UNCHANGED] * len(ITEMS)
            assert gateway.gateway.tls is before
            assert "reload" not in caplog.text

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


@pytest.mark.parametrize("item", ITEMS)
def test_a_bad_item_leaves_the_old_in_force_and_the_others_swap(
    site: Site, item: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One item is invalid and all others are new. Answer, log and health show the invalid one with its file until it is repaired.

    The old item stays in force meanwhile.
    """
    certificates = site.certificates
    paths = {
        "policy": site.policy_file,
        "schemas": site.schemas / "registry.toml",
        "certificate": certificates / "server.pem",
        "client_ca": certificates / "ca.pem",
        "crl": certificates / "crl.pem",
        "web": certificates / "web.pem",
    }
    site.authority.issue("web", NOW - DAY, NOW + 30 * DAY, SERVER_NAMES).write(certificates, "web")
    web = WebSettings("127.0.0.1:0", certificates / "web.pem", certificates / "web.key")

    async def test() -> None:
        async with living(site, web=web) as gateway, gateway.client("anna") as anna:
            site.policy({"anna": EVERYTHING, "ben": {"send": ["X/**"]}, "carl": EVERYTHING})
            site.authority.issue("web", NOW - DAY, NOW + 30 * DAY, SERVER_NAMES).write(certificates, "web")
            (site.schemas / "registry.toml").write_text("# other\n" + ANYTHING_GOES)
            site.authority.issue("localhost", NOW - DAY, NOW + 30 * DAY, SERVER_NAMES).write(certificates, "server")
            both = (certificates / "ca.pem").read_bytes() + Authority.create("second", NOW).issued.certificate_pem
            (certificates / "ca.pem").write_bytes(both)
            site.revoke("carl")
            good = paths[item].read_bytes()
            paths[item].write_bytes(b"nonsense = = \n")
            outcomes = await gateway.reload()
            assert {one.item: one.outcome for one in outcomes.values()} == dict.fromkeys(ITEMS, RELOADED) | {
                item: REFUSED
            }
            assert str(paths[item]) in outcomes[item].detail or paths[item].name in outcomes[item].detail
            assert [problem.partition(":")[0] for problem in gateway.gateway.degraded_reasons()] == [item]
            assert caplog.text.count("reload-refused item=") == 1
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            await gateway.gateway.reloader.watched()  # still bad: no news
            assert caplog.text.count("reload-refused item=") == 1
            assert gateway.gateway.reloader.items[item].refused == 1  # tried again, and the same
            paths[item].write_bytes(good)
            assert (await gateway.reload())[item].outcome == RELOADED
            assert gateway.gateway.degraded_reasons() == []

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


def test_what_is_restored_is_mended(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid file that gets the content in force again has no problem any longer. That is logged, though nothing was reloaded."""

    async def test() -> None:
        async with living(site) as gateway:
            good = site.policy_file.read_text()
            site.policy_file.write_text("nonsense")
            assert (await gateway.reload())["policy"].outcome == REFUSED
            site.policy_file.write_text(good)
            assert (await gateway.reload())["policy"].outcome == UNCHANGED
            assert gateway.gateway.degraded_reasons() == []
            assert "reload-repaired item=policy" in caplog.text
            assert "reloaded item" not in caplog.text

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


# Policy.


async def _publish(gateway: Living, name: str, topics: list[str], stop: trio.Event, counts: dict[str, int]) -> None:
    """Send to all topics again and again, and count the answers."""
    async with gateway.client(name) as client:
        number = 0
        while not stop.is_set():
            number += 1
            bodies = [encoder.send(VERSION_1_2, t.encode(), b"%d" % number, receipt_id=t.encode()) for t in topics]
            await client.write(b"".join(bodies))
            for _ in topics:
                frame = await client.frame()
                assert frame.command == b"RECEIPT", frame.headers
                counts[frame.headers[b"disposition"].decode()] = (
                    counts.get(frame.headers[b"disposition"].decode(), 0) + 1
                )


async def _subscribe(gateway: Living, name: str, ack: bytes, stop: trio.Event, **how: Any) -> None:
    """Read all messages until `stop` is set. An ERROR or an end is a failure."""
    async with gateway.client(name, f"{name}-{ack.decode()}" if how else None) as client:
        await client.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", ack, **how))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    while True:
                        frame = await client.frame()
                        assert frame.command == b"MESSAGE", (frame.headers, frame.body)
                        if ack == b"client":
                            await client.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"ack"]))

                nursery.start_soon(read)
                await stop.wait()
                scope.cancel()


def test_no_value_leaks_and_nobody_is_dropped_when_a_right_is_withdrawn_under_load(site: Site) -> None:
    """Rights, the server's certificate and the CRL change while values are published and delivered in every way.

    Once a reload has answered, no value without a right is encrypted, and no SEND without a right is admitted. No connection ends.
    """
    open_policy = {"anna": EVERYTHING, "ben": EVERYTHING, "carl": EVERYTHING}
    closed = {
        "anna": {"send": ["X/open.**"], "receive": ["X/open.**"]},
        "ben": {"send": ["X/**"], "receive": ["X/open.**"]},
        "carl": {"send": ["X/**"], "receive": ["X/open.**"]},
    }
    topics = [f"X/{kind}.{number}" for number in range(150) for kind in ("open", "secret")]

    async def test() -> None:
        stop = trio.Event()
        counts: dict[str, int] = {}
        with encrypted(b"destination:X/secret") as secrets:
            async with living(site) as gateway, trio.open_nursery() as nursery:
                nursery.start_soon(_publish, gateway, "anna", topics, stop, counts)
                for name in ("ben", "carl"):
                    nursery.start_soon(_subscribe, gateway, name, b"auto", stop)
                    nursery.start_soon(_subscribe, gateway, name, b"auto", stop)  # alike: they share bytes
                for ack in (b"auto", b"client"):
                    nursery.start_soon(partial(_subscribe, gateway, "ben", ack, stop, durable=True, eager=True))
                    nursery.start_soon(partial(_subscribe, gateway, "carl", ack, stop, eager=True))
                broker = gateway.gateway.broker

                def counted(least: int) -> bool:
                    return broker.counters.sends_unauthorised >= least

                for turn in range(8):
                    connections = len(gateway.gateway.connections)
                    secrets.marked = 0
                    await until(lambda: secrets.marked >= 20)  # load is on
                    site.policy(closed)
                    site.authority.issue("localhost", NOW - DAY, NOW + 30 * DAY, SERVER_NAMES).write(
                        site.certificates, "server"
                    )
                    site.revoke("operator", number=turn)
                    outcomes = await gateway.reload()
                    assert {item for item in outcomes if outcomes[item].outcome == RELOADED} == {
                        "policy",
                        "certificate",
                        "crl",
                    }
                    secrets.marked = 0
                    head = broker.head_revision
                    await until(partial(counted, broker.counters.sends_unauthorised + 300))
                    assert secrets.marked == 0
                    admitted = [
                        topic
                        for name, topic in broker.store.topics.items()
                        if name.startswith(b"X/secret") and topic.change.revision > head
                    ]
                    assert not admitted
                    site.policy(open_policy)
                    assert (await gateway.reload())["policy"].outcome == RELOADED
                    assert len(gateway.gateway.connections) >= connections
                    assert {one.reason for one in gateway.gateway.connections} == {""}
                stop.set()
        assert counts["accepted"] > 1000
        assert counts["rejected-unauthorised"] > 1000

    run(test)


def test_a_large_message_under_way_is_waited_for_or_cut(site: Site) -> None:
    """The right to a MESSAGE of megabytes goes while it is half encrypted.

    A client that reads gets all of it before the reload answers. A client that does not read is closed. After the answer, no part
    of the MESSAGE is encrypted.
    """
    body = bytes(4_000_000)

    async def test() -> None:
        with encrypted() as all_of_it:
            async with living(site) as gateway, gateway.client("anna") as anna:
                assert (await anna.send("X/large", body))[0] == b"accepted"
                for reading in (True, False):
                    async with gateway.client("ben") as ben:
                        await ben.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto", eager=True))
                        await until(lambda: any(one.message_under_way for one in gateway.gateway.connections))
                        site.policy({"anna": EVERYTHING, "ben": {"receive": ["X/small"]}, "carl": EVERYTHING})
                        async with trio.open_nursery() as nursery:
                            if reading:

                                async def read() -> None:
                                    frame = await ben.frame()
                                    assert (frame.command, len(frame.body)) == (b"MESSAGE", len(body))

                                nursery.start_soon(read)
                            await gateway.reload()
                            all_of_it.bytes = 0
                        assert not any(one.message_under_way for one in gateway.gateway.connections)
                        assert (await anna.send("X/small", b"v"))[0] == b"accepted"
                        if reading:
                            assert await ben.values(1) == {"X/small": b"v"}
                        assert all_of_it.bytes < 10_000
                    site.policy(dict.fromkeys(("anna", "ben", "carl"), EVERYTHING))
                    await gateway.reload()

    run(test)


def test_who_is_named_no_more_is_gone(site: Site) -> None:
    """A certificate that the policy drops, or gives to another principal, gets an ERROR with this reason.

    The durable subscriptions of its session stay for the principal's other certificates. Other clients notice nothing.
    """

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna", "a") as anna, gateway.client("ben", "b") as ben:
            await anna.subscribe("X/**", durable=True)
            async with gateway.client("carl") as carl:
                site.policy({"ben": EVERYTHING, "carl": EVERYTHING}, {"ben": "somebody else"})
                await gateway.reload()
                message, body = await anna.error()
                assert (message, body != b"") == (b"unknown client", True)
                message, body = await ben.error()
                assert (message, b"connect again" in body) == (b"policy changed, reconnect", True)
                assert (await carl.send("X/a", b"v"))[0] == b"accepted"
            assert (await gateway.refusal("anna"))[0] == b"unknown client"
            site.fingerprints["anna"], site.fingerprints["ben"] = site.fingerprints["ben"], site.fingerprints["anna"]
            site.policy(dict.fromkeys(("anna", "carl"), EVERYTHING))
            await gateway.reload()
            async with gateway.client("ben", "a") as renewed:  # the other certificate stands for anna now
                await renewed.subscribe("X/**", durable=True)
                assert await renewed.values(1) == {"X/a": b"v"}

    run(test)


# Certificates.


def test_new_connections_meet_the_new_certificate_on_both_listeners(site: Site) -> None:
    """After a reload handshakes show the new server certificate, to clients and operators; who is connected stays."""

    async def shown(port: int) -> str:
        transport = await trio.open_tcp_stream("127.0.0.1", port)
        async with trio.SSLStream(transport, site.context("operator"), https_compatible=True) as stream:
            await stream.do_handshake()
            der = stream.getpeercert(binary_form=True)
            assert der is not None
            return fingerprint(der)

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            ports = (gateway.gateway.address[1], gateway.admin_port)
            before = {await shown(port) for port in ports}
            renewed = site.authority.issue("localhost", NOW - DAY, NOW + DAY, SERVER_NAMES)
            renewed.write(site.certificates, "server")
            assert (await gateway.reload())["certificate"].outcome == RELOADED
            after = {await shown(port) for port in ports}
            assert len(before) == 1
            assert after == {renewed.fingerprint}
            assert after != before
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"

    run(test)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda site: (site.certificates / "server.key").write_bytes((site.certificates / "anna.key").read_bytes()),
            "do not work together",
        ),
        (
            lambda site: site.authority.issue("localhost", NOW - 2 * DAY, NOW - DAY, SERVER_NAMES).write(
                site.certificates, "server"
            ),
            "expired on",
        ),
        (
            lambda site: site.authority.issue("localhost", NOW + DAY, NOW + 2 * DAY, SERVER_NAMES).write(
                site.certificates, "server"
            ),
            "is not valid before",
        ),
        (lambda site: (site.certificates / "server.key").unlink(), "cannot read"),
        (lambda site: (site.certificates / "ca.pem").write_text(""), "holds none"),
        (
            lambda site: (site.certificates / "ca.pem").write_bytes((site.certificates / "anna.pem").read_bytes()),
            "no self-signed CA certificate",
        ),
        (lambda site: site.revoke("anna", number=-3600), "is older"),
        (
            lambda site: (site.certificates / "crl.pem").write_bytes(
                Authority.create("x", NOW).revocation_list_pem([], NOW)
            ),
            "is not in client_ca",
        ),
    ],
)
def test_files_of_tls_that_would_shut_everybody_out_are_refused(
    site: Site, spoil: Callable[[Site], None], told: str
) -> None:
    """A new file with a wrong key, a wrong time, no CA, or a CRL that is older or of another CA is refused."""

    async def test() -> None:
        async with living(site) as gateway:
            spoil(site)
            outcomes = await gateway.reload()
            assert [told in one.detail for one in outcomes.values() if one.outcome == REFUSED] == [True]
            async with gateway.client("ben") as ben:
                assert (await ben.send("X/a", b"v"))[0] == b"accepted"

    run(test)


def test_revocation_bites_at_once(site: Site) -> None:
    """A client on a newly loaded CRL gets an ERROR with the reason, on the live connection and at the next CONNECT.

    A client that does not read is closed. Operators are refused too, in the middle of a connection. Other clients notice nothing.
    """

    async def ask(stream: trio.SSLStream[trio.SocketStream]) -> bytes:
        """Ask over a connection that is kept; the status line, empty when the connection has ended."""
        try:
            await stream.send_all(b"GET /v1/reload HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}") and (received := await stream.receive_some()):
                answer += received
        except trio.BrokenResourceError:
            return b""
        return answer[:12]

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna, gateway.client("ben") as ben:
            operator = trio.SSLStream(
                await trio.open_tcp_stream("127.0.0.1", gateway.admin_port),
                site.context("operator"),
                https_compatible=True,
            )
            assert await ask(operator) == b"HTTP/1.1 200"
            stalled = await gateway.dial("ben")
            await stalled.send_all(encoder.connect("MAXVAPI", client_id="stalled"))
            await stalled.send_all(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto"))
            for _ in range(3):  # more than the kernel holds
                assert (await anna.send("X/large", bytes(4_000_000)))[0] == b"accepted"
            site.revoke("ben", "operator")
            outcome = (await gateway.reload())["crl"]
            assert outcome.outcome == RELOADED
            message, body = await ben.error()
            assert message == b"certificate revoked"
            assert b"of maxam development CA, is on the CRL of" in body
            assert (await gateway.refusal("ben")) == (message, body)
            assert await ask(operator) in (b"HTTP/1.1 403", b"")  # a slow machine comes to it when time was up
            await until(lambda: len(gateway.gateway.connections) == 1)
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            await trio.aclose_forcefully(stalled)
            await trio.aclose_forcefully(operator)

    run(test)


def test_the_will_of_a_revoked_certificate_is_rejected(site: Site) -> None:
    """Whether its session was connected or gone when the new CRL came into force. Other wills are sent."""

    def connect(client_id: str, delay_s: int) -> bytes:
        head = f"accept-version:1.2\nhost:MAXVAPI\nclient-id:{client_id}\nwill-destination:X/{client_id}\n"
        return f"CONNECT\n{head}will-delay:{delay_s}\nwill-body:lost\n\n\0".encode()

    def over(will: SessionWill) -> bool:
        return will.current is None

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            wills = gateway.gateway.broker.last_wills.wills
            streams = []
            for name, client_id, delay_s in (("ben", "there", 0), ("ben", "gone", 3600), ("carl", "other", 3600)):
                stream = await gateway.dial(name)
                await stream.send_all(connect(client_id, delay_s))
                await stream.receive_some()
                streams.append(stream)
            for stream in streams[1:]:
                await trio.aclose_forcefully(stream)
            await until(lambda: wills.armed == 2)
            shown = await cli(gateway, "sessions", "wills", "--principal", "ben", "--json")
            rows = [json.loads(line) for line in shown.stdout.splitlines()]
            assert [(row["client_id"], row["armed"]) for row in rows] == [("gone", True), ("there", False)]
            site.revoke("ben")
            await gateway.reload()
            await until(lambda: len(gateway.gateway.connections) == 1)
            while (found := wills.next_due(math.inf)) is not None:
                wills.put_off(found, 0)
                gateway.gateway.committer.schedule_commit()
                await until(partial(over, found))
            await trio.aclose_forcefully(streams[0])
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            counters = gateway.gateway.broker.counters
            assert (counters.wills_fired, counters.wills_rejected) == (1, 2)
            assert set(gateway.gateway.broker.store.topics) == {b"X/other", b"X/a"}

    run(test)


def test_an_authority_that_is_dropped_takes_its_clients_along(site: Site) -> None:
    """Clients of an authority that is added get in, and are gone once it is dropped, those in their handshake too."""
    other = Authority.create("other authority", NOW)
    client = other.issue("dora", NOW - DAY, NOW + DAY)
    client.write(site.certificates, "dora")
    site.fingerprints["dora"] = client.fingerprint
    site.policy(dict.fromkeys(("anna", "dora"), EVERYTHING))
    own = (site.certificates / "ca.pem").read_bytes()

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            with pytest.raises((EOFError, trio.BrokenResourceError)):
                await gateway.refusal("dora")
            (site.certificates / "ca.pem").write_bytes(own + other.issued.certificate_pem)
            assert (await gateway.reload())["client_ca"].outcome == RELOADED
            async with gateway.client("dora") as dora, await gateway.dial("dora") as late:
                assert (await dora.send("X/a", b"v"))[0] == b"accepted"
                await until(lambda: sum(one.peer is not None for one in gateway.gateway.connections) == 3)
                (site.certificates / "ca.pem").write_bytes(own)
                outcomes = await gateway.reload()
                assert (outcomes["client_ca"].outcome, outcomes["crl"].outcome) == (RELOADED, RELOADED)
                assert (await dora.error())[0] == b"certificate not trusted"
                await late.send_all(encoder.connect("MAXVAPI"))
                assert b"certificate not trusted" in await late.receive_some()
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"

    run(test)


def test_an_authority_may_renew_its_certificate(site: Site) -> None:
    """An authority's new certificate over the same key and name keeps all its clients."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    authority = site.authority.issued
    renewed = (
        x509.CertificateBuilder()
        .subject_name(authority.certificate.subject)
        .issuer_name(authority.certificate.subject)
        .public_key(authority.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 20 * DAY)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .sign(authority.key, hashes.SHA256())
    )

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            (site.certificates / "ca.pem").write_bytes(renewed.public_bytes(serialization.Encoding.PEM))
            assert (await gateway.reload())["client_ca"].outcome == RELOADED
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            async with gateway.client("ben") as ben:
                assert (await ben.send("X/a", b"v"))[0] == b"accepted"

    run(test)


def test_an_expelled_connection_that_has_ended_is_let_go(site: Site) -> None:
    """Nothing holds it until the next reload: with its TLS it takes 50 KiB."""

    def ended(gateway: Gateway) -> list[object]:
        gc.collect()
        found = [one for one in gc.get_objects() if type(one) is Transport]
        return [one for one in found if one not in gateway.connections]

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna"):
            async with gateway.client("ben"):
                site.revoke("ben")
                await gateway.reload()
            await until(lambda: len(gateway.gateway.connections) == 1)
            gateway.gateway.access._leaving.clear()  # as after `close_grace_s`
            assert not ended(gateway.gateway)

    run(test)


def test_a_connection_is_expelled_once(site: Site) -> None:
    """A client that does not take its ERROR is reported once, whatever is reloaded until it has gone."""
    expelled: list[str] = []

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            stalled = await gateway.dial("ben")
            await stalled.send_all(encoder.connect("MAXVAPI"))
            await stalled.send_all(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto"))
            for _ in range(3):  # more than the kernel holds
                assert (await anna.send("X/large", bytes(4_000_000)))[0] == b"accepted"
            gateway.gateway.access.on_expelled = lambda _one, failure: expelled.append(failure.message)
            connections = len(gateway.gateway.connections)
            site.revoke("ben")
            for number in range(3):
                site.policy({"anna": EVERYTHING, "ben": {**EVERYTHING, "send": [f"X/{number}"]}})
                await gateway.reload()
            await until(lambda: len(gateway.gateway.connections) < connections)
            assert expelled == ["certificate revoked"]
            await trio.aclose_forcefully(stalled)

    run(test)


@pytest.mark.parametrize("expired", ["warn", "refuse"])
def test_an_expired_list_warns_or_refuses(
    site: Site, expired: Literal["warn", "refuse"], caplog: pytest.LogCaptureFixture
) -> None:
    """Log and health show a CRL that is overdue. Clients of its CA are served, or refused if that is configured."""
    long_ago = NOW - dt.timedelta(days=4000)
    (site.certificates / "crl.pem").write_bytes(site.authority.revocation_list_pem([], long_ago))

    async def test() -> None:
        tls = replace(site.settings.tls, crl_expired=expired)
        async with living(site, tls=tls) as gateway:
            assert [reason.partition(" has expired")[0] for reason in gateway.gateway.degraded_reasons()] == [
                "crl: the CRL of maxam development CA"
            ]
            if expired == "warn":
                async with gateway.client("anna") as anna:
                    assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            else:
                message, body = await gateway.refusal("anna")
                assert (message, b"has expired" in body) == (b"revocation list expired", True)
            assert caplog.text.count("list-expired ") == 1

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


def test_a_chain_is_read_where_python_has_it(site: Site) -> None:
    """The verified chain of a client, its own certificate first and the trusted authority last, comes from the object we rely on."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna"):
            (connection,) = gateway.gateway.connections
            assert [one.issuer_name for one in connection.chain] == ["maxam development CA"] * 2
            assert connection.chain[0].subject != connection.chain[0].issuer
            assert connection.chain[1].subject == connection.chain[1].issuer == connection.chain[0].issuer
            assert isinstance(connection._tls, TlsSocket)
            assert fingerprint(verified_chain(connection._tls._tls)[0]) == connection.fingerprint

    run(test)


# Schemas.

RECORD: dict[str, object] = {
    "type": "record",
    "name": "A_v1",
    "namespace": "t",
    "fields": [{"name": "n", "type": "int"}],
}
TEXT: dict[str, object] = {
    "type": "record",
    "name": "B_v1",
    "namespace": "t",
    "fields": [{"name": "s", "type": "string"}],
}


def release(folder: Path, rule: str, schema: dict[str, object]) -> Path:
    """Write a schema folder with one type and one rule for all of X."""
    name = str(schema["name"])
    (folder / "t" / name).mkdir(parents=True)
    (folder / "t" / name / "1.0.avsc").write_text(json.dumps(schema))
    (folder / "registry.toml").write_text(f'[[rule]]\ndestination = "X/**"\nschema = "t.{name}"\nencoding = "{rule}"\n')
    return folder


def test_a_send_meets_one_registry_or_the_other_never_a_mixture(tmp_path: Path) -> None:
    """Two registries differ in the schema and in the encoding of one rule, so that each mixture accepts a body that neither does. While
    the link to the folder goes back and forth under load, each SEND is judged by the one or the other as a whole.
    """
    site = Site(tmp_path, "anna", "ben")
    shutil.rmtree(site.schemas)
    first = release(tmp_path / "releases" / "1", "datum", RECORD)
    release(tmp_path / "releases" / "2", "single-object", TEXT)
    site.schemas.symlink_to("releases/1")
    registries = [
        load_registry({path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")})
        for folder in (first, tmp_path / "releases" / "2")
    ]
    prints = [
        registry.versions(name)[0].crc_64 for registry, name in zip(registries, ("t.A_v1", "t.B_v1"), strict=True)
    ]
    number, text = b"\x02", b"\x04hi"
    bodies = {
        "X/one": number,  # a bare number: the first
        "X/two": b"\xc3\x01" + prints[1] + text,  # a marked text: the second
        "X/bare": text,  # a bare text: the first's encoding with the second's schema
        "X/marked": b"\xc3\x01" + prints[0] + number,  # a marked number: the second's encoding with the first's schema
    }
    answers = {True: ("X/one",), False: ("X/two",)}

    async def publish(gateway: Living, stop: trio.Event, seen: set[tuple[str, bytes]]) -> None:
        async with gateway.client("ben") as client:
            frames = [encoder.send(VERSION_1_2, t.encode(), body, receipt_id=t.encode()) for t, body in bodies.items()]
            while not stop.is_set():
                await client.write(b"".join(frames) * 5)
                for _ in range(5 * len(frames)):
                    frame = await client.frame()
                    seen.add((frame.headers[b"receipt-id"].decode(), frame.headers[b"disposition"]))

    async def test() -> None:
        stop = trio.Event()
        seen: set[tuple[str, bytes]] = set()
        async with living(site) as gateway, gateway.client("anna") as anna, trio.open_nursery() as nursery:
            nursery.start_soon(publish, gateway, stop, seen)
            for turn in range(20):
                is_first = turn % 2 == 1
                (tmp_path / "next").symlink_to("releases/1" if is_first else "releases/2")
                (tmp_path / "next").replace(site.schemas)
                assert (await gateway.reload())["schemas"].outcome == RELOADED
                for topic, body in bodies.items():
                    wanted = b"accepted" if topic in answers[is_first] else b"rejected-invalid"
                    assert (await anna.send(topic, body))[0] == wanted, (turn, topic)
            stop.set()
            judged = {
                (topic.name, topic.change.validation.encoding, topic.change.validation.schema)
                for topic in gateway.gateway.broker.store.topics.values()
            }
        assert judged == {("X/one", "datum", "t.A_v1"), ("X/two", "single-object", "t.B_v1")}
        assert seen == {
            ("X/one", b"accepted"),
            ("X/one", b"rejected-invalid"),
            ("X/two", b"accepted"),
            ("X/two", b"rejected-invalid"),
            ("X/bare", b"rejected-invalid"),
            ("X/marked", b"rejected-invalid"),
        }

    run(test)


ONLY_A = '[[rule]]\ndestination = "X/A.**"\nencoding = "none"\n'


def test_a_reload_takes_no_rule_from_values_unless_allowed(site: Site) -> None:
    """Schemas under which topics with a value would have no rule are refused, with the number and names of these topics.

    They come into force if that is allowed once, or by the settings. Orphans then stay readable, take no new value, and can be
    deleted. Topics without a value do not count.
    """

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            for topic in ("X/A.1", "X/B.1", "X/B.2", "X/C"):
                assert (await anna.send(topic, b"v"))[0] == b"accepted"
            assert (await anna.send("X/C", b""))[0] == b"accepted"
            (site.schemas / "registry.toml").write_text(ONLY_A)
            refused = (await gateway.reload())["schemas"]
            assert refused.outcome == REFUSED
            assert "2 topics with a value (such as X/B.1, X/B.2)" in refused.detail
            assert (await anna.send("X/B.1", b"w"))[0] == b"accepted"  # the old one is in force
            reloaded = (await gateway.reload(allow_orphans=True))["schemas"]
            assert (reloaded.outcome, reloaded.detail[:21]) == (RELOADED, "2 topics with a value")
            assert await anna.send("X/B.1", b"x") == (b"rejected-invalid", b"no-rule")
            async with gateway.client("ben") as ben:
                await ben.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto", eager=True))
                assert await ben.values(3) == {"X/A.1": b"v", "X/B.1": b"w", "X/B.2": b"v"}
            assert (await anna.send("X/B.1", b""))[0] == b"accepted"
            # The next reload takes nothing from a topic that is an orphan already.
            (site.schemas / "registry.toml").write_text(ONLY_A + "# again\n")
            assert (await gateway.reload())["schemas"].outcome == RELOADED
        schemas = SchemaSettings(site.schemas, allow_orphans=True)
        async with living(site, schemas=schemas) as gateway:
            (site.schemas / "registry.toml").write_text("")
            assert (await gateway.reload())["schemas"].outcome == RELOADED

    run(test)


def test_no_topic_is_missed_while_the_search_is_under_way(site: Site) -> None:
    """The search also finds values that arrive after it passed, revive a deleted topic, or are not committed at the swap."""
    texts = {"registry.toml": ONLY_A.encode()}

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            broker = gateway.gateway.broker
            for topic in ("X/A.1", "X/D.dead"):
                assert (await anna.send(topic, b"v"))[0] == b"accepted"
            assert (await anna.send("X/D.dead", b""))[0] == b"accepted"
            with OrphanSearch(broker, load_registry(texts)) as search:
                await search.run()
                search.finish()
                assert search.count == 0
            with OrphanSearch(broker, load_registry(texts)) as search:
                await search.run()
                for topic in ("X/A.2", "X/B.new", "X/D.dead"):
                    assert (await anna.send(topic, b"v"))[0] == b"accepted"
                search.finish()
                assert search.examples == ["X/B.new", "X/D.dead"]
            assert not len(broker.store.events)

    run(test)


def test_a_search_over_many_topics_leaves_the_loop_to_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over tens of thousands of topics counts to its limit. Other tasks run between its batches."""
    monkeypatch.setattr("maxam.gateway.orphans._BATCH_S", 0.0)

    async def test() -> None:
        async with living(site) as gateway:
            broker = gateway.gateway.broker
            nobody = Identity("p", "f" * 64)
            for number in range(1, 30_001):
                broker.replay(Change(number, number, b"X/B.%05d" % number, False, nobody, UNJUDGED, *pack((), b"v")))
            turns = 0
            ended = trio.Event()

            async def others() -> None:
                nonlocal turns
                while not ended.is_set():
                    await trio.lowlevel.checkpoint()
                    turns += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(others)
                with OrphanSearch(broker, load_registry({"registry.toml": ONLY_A.encode()})) as search:
                    await search.run()
                ended.set()
            assert search.count == 10_000
            assert turns >= 10_000 // 50 - 1

    run(test)


def test_topics_that_come_and_go_during_a_search_do_not_gather(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes the events of topics as it goes on, so that deleted topics do not stay in memory until its end."""
    monkeypatch.setattr("maxam.gateway.orphans._BATCH_S", 0.0)

    async def test() -> None:
        async with living(site) as gateway:
            broker = gateway.gateway.broker
            nobody = Identity("p", "f" * 64)

            def replay(destination: bytes, body: bytes) -> None:
                revision = broker.committed_revision + 1
                broker.replay(Change(revision, revision, destination, not body, nobody, UNJUDGED, *pack((), body)))

            for number in range(10_000):
                replay(b"X/B.%05d" % number, b"v")
            waiting: list[int] = []
            with OrphanSearch(broker, load_registry({"registry.toml": ONLY_A.encode()})) as search:
                async with trio.open_nursery() as nursery:

                    async def others() -> None:
                        while True:
                            for number in range(20):
                                replay(b"X/C.%d" % number, b"v")
                                replay(b"X/C.%d" % number, b"")
                            waiting.append(search._late)
                            await trio.lowlevel.checkpoint()

                    nursery.start_soon(others)
                    await search.run()
                    nursery.cancel_scope.cancel()
            assert len(waiting) > 100
            assert max(waiting) <= 100

    run(test)


# Watching.


def _loads(rest: Debouncer, looks: Iterable[tuple[FileStamp, float]]) -> list[float]:
    """Return the checks at which an item was loaded. All items are valid."""
    found = []
    for mark, at_s in looks:
        if rest.observe(mark, at_s):
            rest.loaded(True, at_s)
            found.append(at_s)
    return found


def test_rest_is_what_lasts() -> None:
    """A change is due after it has lasted. Each further change restarts the wait. A file that returns to the loaded state has no change."""
    rest = Debouncer(1.0)
    assert _loads(rest, [(("a",), at) for at in (0.0, 0.5, 1.0, 1.5)]) == [1.0]
    assert _loads(rest, ((("b",), 5.0), (("c",), 5.9), (("c",), 6.8), (("c",), 6.9))) == [6.9]
    assert _loads(rest, ((("gone",), 8.0), (("c",), 8.5), (("c",), 20.0))) == []
    assert rest.due_s == float("inf")
    assert not rest.observe(("d",), 30.0)
    assert rest.due_s == 31.0


def test_what_never_rests_is_loaded_now_and_then() -> None:
    """If a stamp changes ten times a second for two minutes, a new one is loaded once in 30 times the debounce time."""
    taken = _loads(Debouncer(1.0), [((str(at),), at / 10) for at in range(1200)])
    assert taken == [30.0, 60.1, 90.2]  # the next check sees the next change


@pytest.mark.parametrize(
    ("every_s", "reading_s", "debounce_s"),
    [(1.5, 0.6, 1.0), (2.0, 1.0, 1.0), (1.3, 0.3, 1.0), (0.1, 0.2, 0.0), (0.9, 0.5, 1.0)],
)
def test_what_never_rests_while_it_is_read_is_loaded_now_and_then(
    every_s: float, reading_s: float, debounce_s: float
) -> None:
    """A file that changes at even intervals for half an hour, so that it rests between two of them but changes while it is read."""
    rest, now_s, loads = Debouncer(debounce_s), 0.0, 0

    def mark() -> FileStamp:
        return (str(int(now_s / every_s)),)

    while now_s < 1800:
        seen = mark()
        if rest.observe(seen, now_s):
            at_rest = rest.rested(now_s)
            now_s += reading_s
            if at_rest and mark() != seen:
                rest.put_off(now_s)
            else:
                rest.loaded(True, now_s)
                loads += 1
        else:
            now_s = min(rest.due_s, (int(now_s / every_s) + 1) * every_s + 0.001)
    assert loads >= 1800 / (30 * debounce_s + 1 + every_s + reading_s) - 1


def test_what_was_put_off_is_due_again() -> None:
    """Files had another stamp after reading, and then the first one again. The same holds for a refused file that is tried again."""
    rest = Debouncer(1.0)
    assert _loads(rest, ((("a",), 0.0), (("a",), 1.0))) == [1.0]
    assert not rest.observe(("b",), 2.0)
    assert rest.observe(("b",), 3.0)
    rest.put_off(3.5)
    assert rest.observe(("b",), 3.6)
    rest.loaded(False, 4.0)
    assert rest.observe(("b",), rest.due_s)
    rest.put_off(10.0)
    assert 10.0 < rest.due_s < 60.0
    assert rest.observe(("b",), rest.due_s)


def test_what_was_loaded_unrested_and_is_as_it_was_then_is_due() -> None:
    """The content that was read may belong to another stamp. When the files have the first stamp again, and rest, they are loaded."""
    rest = Debouncer(1.0)
    looks = ((("b", "a")[tick % 2], tick / 10) for tick in range(1000))
    mark, at_s = next((mark, at_s) for mark, at_s in looks if rest.observe((mark,), at_s))
    assert not rest.rested(at_s)
    rest.loaded(True, at_s)
    assert _loads(rest, (((mark,), at_s + 0.1), ((mark,), at_s + 1.2))) == [at_s + 1.2]


def test_what_was_refused_is_due_again_less_and_less_often() -> None:
    """The wait doubles up to a limit. Another stamp is loaded as usual and restarts the wait. An item in force is not due again."""
    rest = Debouncer(0.0)
    assert rest.observe(("a",), 0.0)
    now_s, waits_s = 0.0, []
    for _ in range(9):
        rest.loaded(False, now_s)
        assert not rest.observe(("a",), rest.due_s - 0.1)
        waits_s.append(rest.due_s - now_s)
        now_s = rest.due_s
        assert rest.observe(("a",), now_s)
    assert waits_s == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert rest.observe(("b",), now_s)
    rest.loaded(False, now_s)
    assert rest.due_s == now_s + 5
    assert rest.observe(("b",), rest.due_s)
    rest.loaded(True, now_s)
    assert rest.due_s == float("inf")


def _rewritten(site: Site, text: str) -> None:
    (site.schemas / "registry.toml").write_text(text)


def _renamed(site: Site, text: str) -> None:
    (site.schemas / "registry.toml~").write_text(text)
    (site.schemas / "registry.toml~").replace(site.schemas / "registry.toml")


def _removed_first(site: Site, text: str) -> None:
    (site.schemas / "registry.toml").unlink()
    (site.schemas / "registry.toml").write_text(text)


def _link_led_elsewhere(site: Site, text: str) -> None:
    there = site.folder / f"release-{len(list(site.folder.iterdir()))}"
    there.mkdir()
    (there / "registry.toml").write_text(text)
    spare = site.folder / "spare"
    spare.symlink_to(there.name)
    if not site.schemas.is_symlink():
        shutil.rmtree(site.schemas)
    spare.replace(site.schemas)


def _in_a_new_folder(site: Site, text: str) -> None:
    release(site.schemas / "new", "datum", RECORD)
    (site.schemas / "new" / "registry.toml").unlink()
    (site.schemas / "new").rename(site.schemas / "old")
    shutil.rmtree(site.schemas / "t", ignore_errors=True)
    (site.schemas / "old" / "t").rename(site.schemas / "t")
    (site.schemas / "old").rmdir()
    _rewritten(site, text)


@pytest.mark.parametrize("watched", [True, False], ids=["told", "polled"])
@pytest.mark.parametrize(
    "change",
    [_rewritten, _renamed, _removed_first, _link_led_elsewhere, _in_a_new_folder],
    ids=lambda one: one.__name__[1:],
)
def test_changed_files_come_into_force_by_themselves(
    site: Site, change: Callable[[Site, str], None], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced file comes into force once it rests, twice in a row. The system reports the change, or a periodic check finds it."""
    if not watched:  # a network file system

        async def tells_nothing(*_: object, **__: object) -> AsyncIterator[None]:
            await trio.Event().wait()
            yield  # a generator, as the real one

        monkeypatch.setattr("maxam.gateway.file_watch.awatch", tells_nothing)
    how = ReloadSettings(True, debounce_s=0.02, poll_interval_s=600.0 if watched else 0.05)

    async def test() -> None:
        async with living(site, reload=how) as gateway, gateway.client("anna") as anna:
            for turn in range(2):
                change(site, ANYTHING_GOES + f"# {turn}\n")
                await until(partial(reloaded, gateway, "schemas", turn))
                site.policy({name: {"send": [f"X/{turn}"]} for name in ("anna", "ben", "carl")})
                await until(partial(reloaded, gateway, "policy", turn))
                assert (await anna.send(f"X/{turn}", b"v"))[0] == b"accepted"

    run(test)


def test_what_is_written_while_it_is_read_is_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files rest, and while they are read one is written again, in place. Empty for a moment, it would refuse all clients.

    The content that was read then never comes into force. The final content does.
    """
    original = reread_config
    met: list[Any] = []

    def meet(settings: Settings, before: LoadedConfig | None) -> Any:
        if not met and site.policy_file.read_text() == texts[0]:
            site.policy_file.write_text("")
            met.append(original(settings, before))
            site.policy_file.write_text(texts[1])
            return met[0]
        return original(settings, before)

    monkeypatch.setattr("maxam.gateway.reload.reread_config", meet)
    how = ReloadSettings(True, debounce_s=0.02, poll_interval_s=0.05)
    before = site.policy_file.read_text()
    texts = [before + "# first\n", before + "# second\n"]

    async def test() -> None:
        async with living(site, reload=how) as gateway, gateway.client("anna") as anna:
            site.policy_file.write_text(texts[0])
            await until(partial(reloaded, gateway, "policy", 0))
            assert len(met) == 1
            assert site.policy_file.read_text() == texts[1]
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            assert (await gateway.reload())["policy"].outcome == UNCHANGED

    run(test)


def reloaded(gateway: Living, item: str, before: int) -> bool:
    """Return True if an item was reloaded more often than before."""
    return gateway.gateway.reloader.items[item].reloaded > before


def test_a_bad_file_is_told_once_however_often_it_is_looked_at(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """While the watch checks a hundred times a second, a file that stays invalid is one line of log. Another mistake is another line."""
    how = ReloadSettings(True, debounce_s=0.0, poll_interval_s=0.01)

    def told(least: int) -> bool:
        return caplog.text.count("reload-refused item=") >= least

    async def test() -> None:
        async with living(site, reload=how) as gateway:
            for count, text in enumerate(("nonsense", "other nonsense"), 1):
                site.policy_file.write_text(text)
                await until(partial(told, count))
                for _ in range(5):
                    os.utime(site.policy_file)  # touched, and as bad as before
                    await gateway.gateway.reloader.watched()
                assert caplog.text.count("reload-refused item=") == count

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


def test_a_refusal_whose_cause_is_not_in_the_files_ends_with_its_cause(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Schemas for which the disk had no room come into force when there is room. No file changes again and no one requests a reload.

    Refused schemas come into force too, once the topics without a rule are deleted. Each problem is logged once and counted once.
    """
    monkeypatch.setattr("maxam.gateway.file_watch.RETRY_S_MIN", 0.01)
    monkeypatch.setattr("maxam.gateway.file_watch.RETRY_S_MAX", 0.02)
    how = ReloadSettings(True, debounce_s=0.0, poll_interval_s=0.01)
    asked = 0

    async def test() -> None:
        async with living(site, reload=how) as gateway, gateway.client("anna") as anna:
            reloader = gateway.gateway.reloader
            keep, state = reloader._keep_schemas, reloader.items["schemas"]

            def no_room(texts: Iterable[tuple[str, bytes]]) -> None:
                nonlocal asked
                asked += 1
                if asked < 5:
                    raise DiskFullError("no room")
                keep(texts)

            monkeypatch.setattr(reloader, "_keep_schemas", no_room)
            assert (await anna.send("X/A", b"v"))[0] == b"accepted"
            _renamed(site, ANYTHING_GOES + "# other\n")  # in place it would be empty for a moment, which may be read
            await until(partial(reloaded, gateway, "schemas", 0))
            assert asked == 5
            assert state.refused == 1
            _renamed(site, ANYTHING_GOES.replace("**", "B"))
            await until(lambda: state.refused == 2)
            looks = asked
            await until(lambda: asked > looks + 2)
            assert (await anna.send("X/A", b""))[0] == b"accepted"
            await until(partial(reloaded, gateway, "schemas", 1))
            assert state.refused == 2
            assert caplog.text.count("reload-refused item=") == 2

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)


def test_a_bug_in_a_reload_is_an_answer_and_the_next_reload_works(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered that every item was refused; the broker goes on, counts a restart, and reloads again."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            reloader, supervisor = gateway.gateway.reloader, gateway.gateway.supervisor
            with monkeypatch.context() as patch:

                def fails(*_: object) -> None:
                    raise ValueError("a bug")

                patch.setattr("maxam.gateway.reload.reread_config", fails)
                assert {one.outcome for one in await reloader.reload("test")} == {"refused"}
            assert {one.outcome for one in await reloader.reload("test")} == {"unchanged"}
            assert supervisor.restarts["reload"] == 1
            assert (await anna.send("X/A", b"v"))[0] == b"accepted"

    run(test)


def test_settings_of_limits_are_the_ones_documented() -> None:
    """A client without rights is closed within five seconds, because the wait for it is shorter."""
    assert Limits().close_grace_s + Limits().linger_timeout_s <= 5
