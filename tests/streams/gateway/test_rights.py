"""Rights over real TLS: on each SEND, on each delivery of any kind, and for operators. Nothing else is allowed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from maxam.errors import ConfigurationError
from maxam.gateway.reload import REFUSED, RELOADED
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.living_gateway import EVERYTHING, Living, Site, TestClient, encrypted, living, run, until

OPEN = {"send": ["X/**"], "receive": ["X/open.**"]}
SECRET = b"destination:X/secret"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with two clients."""
    return Site(tmp_path, "anna", "ben")


async def _publish(client: TestClient, topics: Sequence[str], body: bytes) -> None:
    for topic in topics:
        assert (await client.send(topic, body))[0] == b"accepted"


async def _marker(gateway: Living, client: TestClient) -> dict[str, bytes]:
    """Have a value published that the client may receive, and return all that it was sent before."""
    async with gateway.client("anna", "marks") as anna:
        assert (await anna.send("X/open.end", b"end"))[0] == b"accepted"
    found: dict[str, bytes] = {}
    while "X/open.end" not in found:
        found |= await client.values(1)
    return found


# Nothing is allowed but what a rule allows.


def test_an_empty_policy_lets_nobody_in(site: Site) -> None:
    """With an empty file no client connects and no operator has a right. A reload to it closes all connections."""

    async def test() -> None:
        good = site.policy_file.read_text()
        site.policy_file.write_text("")
        async with living(site) as gateway:
            for name in ("anna", "operator"):
                assert (await gateway.refusal(name))[0] == b"unknown client"
            site.policy_file.write_text(good)
            await gateway.reload()
            async with gateway.client("anna") as anna:
                site.policy_file.write_text("# nothing\n")
                assert (await gateway.reload())["policy"].outcome == RELOADED
                assert (await anna.error())[0] == b"unknown client"

    run(test)


def test_who_has_no_capability_may_do_nothing(site: Site) -> None:
    """A principal without capabilities is connected, and that is all. A subscription to everything gets nothing, in any way.

    Every SEND is unauthorised with the same answer, whether it would be valid or not and whether the topic exists or not.
    """
    site.policy({"anna": EVERYTHING, "ben": {}})

    async def test() -> None:
        with encrypted(b"destination:X/") as delivered:
            async with living(site) as gateway, gateway.client("anna") as anna, gateway.client("ben", "b") as ben:
                await _publish(anna, ["X/a"], b"v")
                await ben.subscribe("**", durable=True, eager=True)
                for topic in ("X/a", "X/none", "Y/no rule", "X//", "X/*"):
                    answers = {await ben.send(topic, body) for body in (b"v", b"", bytes(100))}
                    assert len(answers) == 1
                    assert (await ben.send("X/a", b"v")) == (b"rejected-unauthorised", b"unauthorised")
                await _publish(anna, ["X/a", "X/b"], b"w")
                assert not gateway.gateway.broker.scanning
                (subscription,) = gateway.gateway.broker.sessions["ben", "b"].subscriptions.values()
                await until(lambda: subscription.applied)
                assert delivered.marked == 0

    run(test)


def test_one_certificate_of_two_principals_is_a_load_error(site: Site) -> None:
    """A fingerprint under two principals keeps a gateway from starting, and is refused by a reload, which shows both."""
    good = site.policy_file.read_text()
    anna = site.fingerprints["anna"]
    twice = f'{good}\n[[principals]]\nname = "second"\nfingerprints = ["{anna}"]\ncapabilities = []\n'

    async def test() -> None:
        site.policy_file.write_text(twice)
        with pytest.raises(ConfigurationError, match=r"a certificate of one principal.*'anna'"):
            async with living(site):
                raise AssertionError("it must not start")
        site.policy_file.write_text(good)
        async with living(site) as gateway, gateway.client("anna") as anna:
            site.policy_file.write_text(twice)
            outcome = (await gateway.reload())["policy"]
            assert (outcome.outcome, "'anna'" in outcome.detail) == (REFUSED, True)
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"

    run(test)


# SEND.


def test_send_globs_and_owns_decide_on_each_send(site: Site) -> None:
    """A SEND needs a send glob, and where the principal is narrowed an own one; what it may receive has no part in it. After a reload the
    next SEND of the same connection is judged again, for topics that it has sent to and for others.
    """
    ben = {"send": ["X/open.*", "X/both.?"], "receive": ["X/**"]}
    site.policy({"anna": EVERYTHING, "ben": ben})
    owner = site.policy_file.read_text().replace(
        'capabilities = ["ben"]', 'capabilities = ["ben"]\nowns = ["X/*.a", "X/other.*"]'
    )

    async def allowed(client: TestClient, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if (await client.send(topic, b"v"))[0] == b"accepted"]

    async def test() -> None:
        topics = [
            "X/open.a",
            "X/open.b",
            "X/open.a.b",
            "X/both.a",
            "X/both.ab",
            "X/other.a",
            "X/open",
            "X/opena",
            "Y/open.a",
        ]
        async with living(site) as gateway, gateway.client("ben") as client:
            assert await allowed(client, topics) == ["X/open.a", "X/open.b", "X/open.a.b", "X/both.a"]
            site.policy_file.write_text(owner)
            await gateway.reload()
            assert await allowed(client, topics) == ["X/open.a", "X/both.a"]
            site.policy({"anna": EVERYTHING, "ben": {"send": ["X/open.b"]}})
            await gateway.reload()
            assert await allowed(client, topics) == ["X/open.b"]
            site.policy({"anna": EVERYTHING, "ben": {"receive": ["X/**"]}})
            await gateway.reload()
            assert await allowed(client, topics) == []

    run(test)


# Every delivery.


@pytest.mark.parametrize("glob", ["**", "X/**", "X/*.*", "X/secret.*", "X/secret.1", "X/[os]*.1"])
def test_no_glob_widens_a_right(site: Site, glob: str) -> None:
    """For any glob of a subscription, eager or not, only what a receive glob allows is encrypted for that client.

    That holds for present values, later values and deletions.
    """
    site.policy({"anna": EVERYTHING, "ben": OPEN})
    topics = [f"X/{kind}.{number}" for kind in ("open", "secret") for number in range(3)]

    async def test() -> None:
        with encrypted(SECRET) as secrets:
            async with living(site) as gateway, gateway.client("anna") as anna:
                await _publish(anna, topics, b"v")
                async with gateway.client("ben", "b") as ben:
                    await ben.write(encoder.subscribe(VERSION_1_2, b"end", b"X/open.end", b"auto"))
                    await ben.subscribe(glob, durable=True, eager=True)
                    await _publish(anna, topics, b"w")
                    await _publish(anna, topics[3:], b"")
                    found = await _marker(gateway, ben)
                    assert not [topic for topic in found if not topic.startswith("X/open")]
                assert secrets.marked == 0

    run(test)


@pytest.mark.parametrize("ack", [b"auto", b"client", b"client-individual"])
def test_what_was_owed_is_not_delivered_when_the_right_is_gone(site: Site, ack: bytes) -> None:
    """Once the right has been withdrawn, values that were owed are not sent. When it is granted again, the newest come.

    That holds for a durable subscription whose client was away, and an eager one that has not read them yet. It holds for the old
    connection and one that resumes or subscribes again.
    """
    topics = [f"X/{kind}.{number}" for kind in ("open", "secret") for number in range(20)]

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            async with gateway.client("ben", "b") as ben:
                await ben.subscribe("X/**", ack=ack, durable=True, eager=True)
            await until(lambda: gateway.gateway.broker.sessions["ben", "b"].connection is None)
            await _publish(anna, topics, b"v")
            with encrypted(SECRET) as secrets:
                site.policy({"anna": EVERYTHING, "ben": OPEN})
                await gateway.reload()
                async with gateway.client("ben", "b") as ben:
                    await ben.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", ack, durable=True, eager=True))
                    await ben.write(encoder.subscribe(VERSION_1_2, b"new", b"X/secret.*", ack, eager=True))
                    found = await _marker(gateway, ben)
                    assert not [topic for topic in found if not topic.startswith("X/open")]
                    assert len(found) == 21
                    assert secrets.marked == 0
                    site.policy({"anna": EVERYTHING, "ben": EVERYTHING})
                    await gateway.reload()
                    again: dict[str, bytes] = {}
                    while len(again) < 20:
                        again |= {key: body for key, body in (await ben.values(1)).items() if "secret" in key}
                    assert set(again.values()) == {b"v"}

    run(test)


def test_a_right_that_goes_while_subscribed_ends_the_delivery_and_nothing_else(site: Site) -> None:
    """A live subscription goes on with what is still allowed, without a word; the connection stays, and so do its other rights."""
    site.policy({"anna": EVERYTHING, "ben": EVERYTHING})

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna, gateway.client("ben") as ben:
            await ben.subscribe("X/**")
            await _publish(anna, ["X/secret.1"], b"1")
            assert await ben.values(1) == {"X/secret.1": b"1"}
            site.policy({"anna": EVERYTHING, "ben": OPEN})
            with encrypted(SECRET) as secrets:
                await gateway.reload()
                await _publish(anna, ["X/secret.1", "X/secret.2", "X/open.1"], b"2")
                assert await ben.values(1) == {"X/open.1": b"2"}
                assert secrets.marked == 0
            assert (await ben.send("X/secret.1", b"3"))[0] == b"accepted"  # the right to send is another one

    run(test)


# Operators.


def test_admin_rights_are_asked_for_at_each_request(site: Site) -> None:
    """Reading, writing and metrics are rights of their own, and values need the receive right too.

    A client without any learns nothing else about what exists and what does not.
    """
    site.policy(
        {
            "anna": {**EVERYTHING, "admin": ["read"], "receive": ["X/open.**"]},
            "ben": {**EVERYTHING, "admin": ["metrics"]},
        }
    )
    requests = {
        "GET /v1/topics": {"anna", "operator"},
        "GET /v1/topics/X/none": {"anna", "operator"},
        "DELETE /v1/topics/X/open.1": {"operator"},
        "POST /v1/reload": {"operator"},
        "GET /metrics": {"ben", "operator"},
        "GET /readyz": {"ben", "operator"},
        "GET /v1/sessions/anna/none": {"anna", "operator"},
        "POST /v1/sessions/anna/none/kick": {"operator"},
    }

    async def ask(gateway: Living, name: str, request: str) -> bytes:
        transport = await trio.open_tcp_stream("127.0.0.1", gateway.admin_port)
        async with trio.SSLStream(transport, site.context(name), https_compatible=True) as stream:
            head = f"{request} HTTP/1.1\r\nhost: localhost\r\nmaxam-admin: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            await stream.send_all(head.encode())
            answer = b""
            while data := await stream.receive_some():
                answer += data
            return answer

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as anna:
                await _publish(anna, ["X/open.1", "X/secret.1"], b"value")
            for request, entitled in requests.items():
                for name in ("anna", "ben", "operator"):
                    refused = b'"forbidden"' in await ask(gateway, name, request)
                    assert refused is (name not in entitled), (request, name)
            values = await ask(gateway, "anna", "GET /v1/topics?values=raw")
            assert (values.count(b"withheld"), b"X/secret.1" in values) == (1, True)

    run(test)
