"""The admin API over a real broker: rights, listings, values, deletes and sessions."""

import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin

import httpx
import pytest
import trio

from maxam.api import application, view
from maxam.api.answers import problem
from maxam.api.application import ROUTES, make_application
from maxam.api.http1 import CARRIER, Carrier
from maxam.api.listener import CHAIN, FINGERPRINT
from maxam.api.routes import sessions, topics, wills
from maxam.api.routing import ANY_CERTIFICATE, ANY_PRINCIPAL
from maxam.api.view import View
from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.operations import Operation
from maxam.broker.outbox import Outbox
from maxam.broker.policy import load_policy
from maxam.config import AdminSettings, AuditSettings, JournalSettings, Limits, ListenerSettings
from maxam.errors import ProtocolError
from maxam.gateway.audit import Audit
from maxam.gateway.backups import Backups
from maxam.gateway.bridge_links import BridgeLinks
from maxam.gateway.clock import WallClock
from maxam.gateway.commit_times import CommitTimes
from maxam.gateway.freshness import Freshness
from maxam.gateway.quarantine import Quarantine, take_rejected
from maxam.gateway.rates import Rates
from maxam.gateway.role import Alone
from maxam.gateway.seen_certificates import SeenCertificates
from maxam.gateway.server import Gateway
from maxam.gateway.shadow import Shadows
from maxam.gateway.staleness import Staleness
from maxam.gateway.watermarks import Watermarks
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal
from maxam.records import Identity, SessionEndRecord, UnsubscriptionRecord
from maxam.stomp.events import VERSION_1_2, Connect, Send, Subscribe, Will

ADMIN, READER, SENDER, SCRAPER, STRANGER = (digit * 64 for digit in "12345")
POLICY = f"""
[capabilities.all]
send = ["X/**"]
receive = ["X/**"]
[capabilities.some]
send = ["X/A.**"]
receive = ["X/A.**"]
[capabilities.read]
admin = ["read"]
[capabilities.write]
admin = ["write"]
[capabilities.metrics]
admin = ["metrics"]
[capabilities.enrol]
admin = ["enrol", "ticket"]
[[principals]]
name = "admin"
fingerprints = ["{ADMIN}"]
capabilities = ["all", "read", "write", "metrics", "enrol"]
[[principals]]
name = "reader"
fingerprints = ["{READER}"]
capabilities = ["some", "read", "write"]
[[principals]]
name = "sender"
fingerprints = ["{SENDER}"]
capabilities = ["all"]
[[principals]]
name = "scraper"
fingerprints = ["{SCRAPER}"]
capabilities = ["metrics"]
"""
SCHEMA = {"type": "record", "name": "T_v1", "namespace": "t", "fields": [{"name": "text", "type": "string"}]}
REGISTRY = {
    "registry.toml": b"""
[[rule]]
destination = "X/*.Raw"
encoding = "none"
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "datum"
""",
    "t/T_v1/1.0.avsc": json.dumps(SCHEMA).encode(),
}


class CommitLoop:
    """Stands in for the gateway's: everything appended is durable at once."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.full = False
        self.stuck = False
        self.committed: list[Operation] = []
        self.times = CommitTimes(0.0)

    @property
    def group(self) -> "CommitLoop":
        """Stand in for the group commit too."""
        return self

    @property
    def disk_full(self) -> bool:
        """Whether the disk is full."""
        return self.full

    def schedule_commit(self) -> None:
        """Commit, refuse, or do nothing."""
        if not self.stuck and self.broker.pending:
            batch = self.broker.take_batch()
            self.committed += [] if self.full else batch
            (self.broker.roll_back_batch if self.full else self.broker.apply_batch)(batch)


class World:
    """A broker, a stand-in gateway around it, and the API on top."""

    def __init__(self) -> None:
        limits = Limits()
        self.broker = Broker(limits, load_policy(POLICY.encode(), "policy", limits), load_registry(REGISTRY))
        self.committer = CommitLoop(self.broker)
        self.role = Alone(cast("Journal", None))
        self.fronts = None
        self.links = None
        self.clients = SimpleNamespace(connected={})
        self.seen = SeenCertificates(lambda: 0)
        self.access = SimpleNamespace(valid_until=lambda _chain: None)
        self.address = ("127.0.0.1", 61614)
        self.settings = self
        self.listener = ListenerSettings()
        self.refusal: ProtocolError | None = None
        self.started_at_us = 1_700_000_000_000_000
        self.quarantine = Quarantine(limits.quarantine_records_max, limits.quarantine_bytes_max, "run")
        self.shadows = Shadows(limits.shadow_bytes_per_s_max, self.broker.counters, lambda: self.broker.registry)
        self.watermarks = Watermarks(self.broker, lambda: None, Path(), 1_000_000, 1000)
        self.freshness = Freshness(self.broker, lambda: self.wall_us)
        self.wall_us = 0
        self.bridge_links = BridgeLinks(self.broker, self.freshness, lambda: self.wall_us)
        self.clock = WallClock(0, 3600, 0.0)
        self.staleness = Staleness(self.broker, 5.0, lambda: self.wall_us)
        self.rates = Rates(self.broker, [])
        self.journal = JournalSettings(Path("/no/journal"))
        self.backups = Backups(self.journal.folder, AdminSettings())
        self.audit = Audit(AuditSettings(files_max=0), Path(), OsDisk())
        self.broker.publishing.on_rejected = take_rejected(self.broker, self.quarantine, None)
        self.broker.watch_shadows(self.shadows.record)
        self.application = make_application(View(cast("Gateway", self)))
        self.publisher = self.connect("sender", "publisher")

    @property
    def disk_full(self) -> bool:
        """Whether the disk is full."""
        return self.committer.full

    def degraded_reasons(self) -> list[str]:
        """Report no problem."""
        return []

    def denial(self, _chain: object) -> ProtocolError | None:
        """Refuse a certificate that was revoked meanwhile."""
        return self.refusal

    def connect(self, principal: str, client_id: str, address: str | None = None) -> Outbox:
        """Connect a client."""
        event = Connect(VERSION_1_2, b"MAXVAPI", client_id, None, (0, 0))
        connection = self.broker.connect(event, Identity(principal, SENDER), "-", lambda: None, 0.0)
        if address is not None:
            self.clients.connected[connection] = _Client(address)
        return connection

    def send(self, destination: str, body: bytes) -> None:
        """Publish a value, committed on return."""
        self.broker.send(self.publisher, Send(destination.encode(), body, ((b"h", b"1"),), None), 1_700_000_000_000_000)
        self.committer.schedule_commit()

    def subscribe(self, connection: Outbox, glob: str, durable: bool = False, id_: str = "s1") -> None:
        """Subscribe with acks, committed on return."""
        self.broker.subscribe(connection, Subscribe(id_.encode(), glob.encode(), True, durable, False, None), 0)
        self.committer.schedule_commit()

    async def ask(
        self,
        method: str,
        path: str,
        who: str | None = ADMIN,
        marked: bool = True,
        headers: dict[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Send one request as the holder of a certificate."""

        async def application(scope: Any, receive: Any, send: Any) -> None:
            stopping = trio.Event()
            stopping.set()  # or live views would never end
            carrier = Carrier(trio.lowlevel.checkpoint, stopping)
            state = {} if who is None else {FINGERPRINT: who, CHAIN: (), CARRIER: carrier}
            await self.application({**scope, "state": state}, receive, send)

        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://admin") as client:
            given = {"maxam-admin": "1"} if marked and method != "GET" else {}
            return await client.request(method, path, headers=given | (headers or {}), content=content)

    async def json(self, path: str, who: str = ADMIN) -> Any:
        """Get what must be there."""
        response = await self.ask("GET", path, who)
        assert response.status_code == 200, response.text
        return response.json()


class _Client:
    """Stands in for the gateway's side of a connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.opened_at_us = 1_700_000_000_000_000


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on trio."""
    trio.run(test)


def datum(text: str) -> bytes:
    """Encode a value of the schema."""
    return bytes([2 * len(text)]) + text.encode()


PATHS = {
    "{name}/{minor}": "t.T_v1/1.0",
    "{destination:path}": "X/A.1",
    "{key:path}": "sender/publisher",
}


def concrete(path: str) -> str:
    """Fill in the parameters of a route."""
    for parameter, value in PATHS.items():
        path = path.replace(parameter, value)
    return path


@pytest.mark.parametrize(("method", "path", "right"), [(m, p, r) for m, p, r, _ in ROUTES])
def test_every_route_wants_its_right(world: World, method: str, path: str, right: str) -> None:
    """Without the route's right the answer is 403, known to the policy or not; without certificate it is 401."""
    holders = {
        "read": {ADMIN, READER},
        "write": {ADMIN, READER},
        "metrics": {ADMIN, SCRAPER},
        "enrol": {ADMIN},
        "ticket": {ADMIN},
        ANY_PRINCIPAL: {ADMIN, READER, SENDER, SCRAPER},
        ANY_CERTIFICATE: {ADMIN, READER, SENDER, SCRAPER, STRANGER},
    }[right]
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        for who in (ADMIN, READER, SENDER, SCRAPER, STRANGER):
            response = await world.ask(method, concrete(path), who)
            refused = response.status_code == 403 and response.json()["error"] == "forbidden"
            assert refused is (who not in holders), (who, response.text)
        response = await world.ask(method, concrete(path), None)
        assert (response.status_code, response.json()["error"]) == (401, "unauthenticated")

    run(test)


def test_a_refused_caller_cannot_tell_what_exists(world: World) -> None:
    """Without the right, present and absent topics give the same answer."""
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        for pair in (("/v1/topics/X/A.1", "/v1/topics/X/A.2"), ("/v1/sessions/sender/publisher", "/v1/sessions/x/y")):
            there, absent = [await world.ask("GET", path, SENDER) for path in pair]
            assert (there.status_code, there.content) == (absent.status_code, absent.content) == (403, there.content)

    run(test)


@pytest.mark.parametrize(("method", "path"), [(m, p) for m, p, r, _ in ROUTES if r == "write"])
def test_a_write_needs_the_header_that_no_foreign_page_can_send(world: World, method: str, path: str) -> None:
    """A request that changes something without our header changes nothing."""
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        response = await world.ask(method, concrete(path), marked=False)
        assert (response.status_code, response.json()["error"]) == (403, "missing-header")
        assert world.broker.head_revision == 1
        assert len(world.broker.sessions) == 1

    run(test)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/console/nothing", 404, "not-found"),
        ("GET", "/v1/nothing", 404, "not-found"),
        ("POST", "/v1/topics", 405, "method-not-allowed"),
        ("GET", "/v1/topics/X/B", 404, "not-found"),
        ("DELETE", "/v1/topics/X/B", 404, "not-found"),
        ("GET", "/v1/topics?glob=X%2F[", 400, "invalid-glob"),
        ("GET", "/v1/topics?limit=0", 400, "invalid-parameter"),
        ("GET", "/v1/topics?limit=201", 400, "invalid-parameter"),
        ("GET", "/v1/topics?limit=1e2", 400, "invalid-parameter"),
        ("GET", "/v1/topics?values=yes", 400, "invalid-parameter"),
        ("GET", "/v1/topics?golb=X/*", 400, "invalid-parameter"),
        ("GET", "/v1/sessions?principle=x", 400, "invalid-parameter"),
        ("GET", "/v1/orphans?glob=X/*", 400, "invalid-parameter"),
        ("GET", "/v1/shadow?destination=X/*", 400, "invalid-parameter"),
        ("GET", "/v1/sessions/x/y", 404, "not-found"),
        ("GET", "/v1/sessions/x", 404, "not-found"),
        ("GET", "/v1/sessions/x/y/z", 404, "not-found"),
        ("DELETE", "/v1/sessions/x/y", 404, "not-found"),
        ("POST", "/v1/sessions/x/y/kick", 404, "not-found"),
        ("POST", "/v1/sessions/x/y", 405, "method-not-allowed"),
        ("GET", "/v1/schemas/t.T_v1/9.9", 404, "not-found"),
        ("GET", "/v1/schemas/..%2f..%2fetc/passwd", 404, "not-found"),
    ],
)
def test_errors_have_one_form(world: World, method: str, path: str, status: int, code: str) -> None:
    """Every error is JSON with a code and a text, and is not cached."""

    async def test() -> None:
        response = await world.ask(method, path)
        assert response.status_code == status
        assert response.json()["error"] == code
        assert response.json()["detail"]
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"

    run(test)


@pytest.mark.parametrize("headers", [{"content-length": "65537"}, {"transfer-encoding": "chunked"}])
def test_a_large_request_is_refused_unread(world: World, headers: dict[str, str]) -> None:
    """A body over the limit or of unknown length is refused by its headers."""

    async def test() -> None:
        response = await world.ask("POST", "/v1/sessions/sender/publisher/kick", headers=headers)
        assert (response.status_code, response.json()["error"]) == (413, "too-large")

    run(test)


def test_a_topic_shows_its_value(world: World) -> None:
    """Metadata, headers and the value decoded by its schema."""
    world.send("X/A.1", datum("v"))
    expected = {
        "destination": "X/A.1",
        "revision": 1,
        "accepted_at": "2023-11-14T22:13:20.000000Z",
        "publisher": "sender",
        "fingerprint": SENDER,
        "encoding": "datum",
        "schema": "t.T_v1",
        "schema_version": "1.0",
        "schema_fingerprint": world.broker.registry.versions("t.T_v1")[0].crc_64.hex(),
        "body_bytes": 2,
        "updates": 1,
        "value_state": "decoded",
        "headers": [["h", "1"]],
        "value": {"text": "v"},
    }

    async def test() -> None:
        assert await world.json("/v1/topics/X/A.1") == expected
        assert (await world.json("/v1/topics?values=true"))["topics"] == [expected]

    run(test)


def test_a_body_without_schema_shows_as_base64(world: World) -> None:
    """A value that was not checked is shown as it was sent."""
    world.send("X/A.Raw", b"\0\xff")

    async def test() -> None:
        topic = await world.json("/v1/topics/X/A.Raw")
        assert (topic["value_state"], topic["body"]) == ("raw", "AP8=")
        assert "without a schema" in topic["problem"]

    run(test)


def test_a_large_value_is_left_to_the_caller(world: World) -> None:
    """A value that would hold the event loop comes as body with the place of its datum."""
    length = topics.DECODED_BYTES_MAX + 1
    world.send(
        "X/A.1", bytes([length * 2 & 0x7F | 0x80, length * 2 >> 7 & 0x7F | 0x80, length * 2 >> 14]) + b"x" * length
    )

    async def test() -> None:
        topic = await world.json("/v1/topics/X/A.1")
        assert topic["value_state"] == "raw"
        assert (topic["value_offset"], topic["value_length"]) == (0, -1)

    run(test)


def test_a_value_is_decoded_by_the_schema_that_judged_it_only(world: World) -> None:
    """When another schema has taken the name since, the value is shown as it was sent.

    Read by the other schema it would be something else, or have no end, as some 10^18 items without bytes.
    """

    async def test() -> None:
        assert (await world.json("/v1/topics/X/A.1"))["value_state"] == "decoded"
        fields = [{"name": "number", "type": {"type": "array", "items": "null"}}]
        world.broker.replace_registry(load_registry(REGISTRY | {"t/T_v1/1.0.avsc": schema_of(fields)}))
        topic = await world.json("/v1/topics/X/A.1")
        assert (topic["value_state"], topic["body"]) == ("raw", "/v////////9/")
        assert "t.T_v1 1.0" in topic["problem"]

    def schema_of(fields: list[dict[str, Any]]) -> bytes:
        return json.dumps({**SCHEMA, "fields": fields}).encode()

    world.broker.replace_registry(
        load_registry(REGISTRY | {"t/T_v1/1.0.avsc": schema_of([{"name": "number", "type": "long"}])})
    )
    world.send("X/A.1", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")
    run(test)


def test_values_are_shown_within_the_receive_rights_only(world: World) -> None:
    """An operator sees that a topic exists, but neither value, body nor headers without the right to receive it."""
    for destination in ("X/A.1", "X/B.1"):
        world.send(destination, datum("secret"))

    async def test() -> None:
        rows = (await world.json("/v1/topics?values=true", READER))["topics"]
        assert [row["value_state"] for row in rows] == ["decoded", "withheld"]
        for row in (rows[1], await world.json("/v1/topics/X/B.1", READER)):
            assert row["value_state"] == "withheld"
            assert {"value", "body", "headers"} & set(row) == set()

    run(test)


def test_bodies_can_be_asked_for_as_they_were_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With values=raw nothing is decoded; a page ends where its bodies have enough bytes, and the next one goes on."""
    monkeypatch.setattr(topics, "RAW_PAGE_VALUE_BYTES_MAX", 10)
    for number in range(5):
        world.send(f"X/A.{number}", datum("vvvv"))
    world.send("X/B.1", datum("secret"))

    async def test() -> None:
        found: list[dict[str, Any]] = []
        following: str | None = ""
        while following is not None:
            after = f"&after={following}" if following else ""
            page = await world.json("/v1/topics?values=raw" + after, READER)
            assert len(page["topics"]) <= 2
            found += page["topics"]
            following = page["next"]
        assert [row["destination"] for row in found] == [f"X/A.{number}" for number in range(5)] + ["X/B.1"]
        assert [row["value_state"] for row in found] == ["raw"] * 5 + ["withheld"]
        assert b64decode(found[0]["body"]) == datum("vvvv")
        assert "body" not in found[-1]

    run(test)


def test_headers_count_to_what_a_page_may_hold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of one letter, its name and their lengths are more than this body: with it a page ends after three values, not six."""
    monkeypatch.setattr(topics, "RAW_PAGE_VALUE_BYTES_MAX", 6 * len(datum("vvvv")))
    for number in range(8):
        world.send(f"X/A.{number}", datum("vvvv"))

    async def test() -> None:
        assert len((await world.json("/v1/topics?values=raw", READER))["topics"]) == 3

    run(test)


def test_pages_follow_each_other_while_topics_come_and_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paging by destination shows each topic that stays exactly once, whatever is made and deleted meanwhile."""
    monkeypatch.setattr(view, "SLICE_TOPICS", 3)
    for number in range(20):
        world.send(f"X/A.{number:02}", datum("v"))
    for number in range(20):
        world.send(f"X/B.{number:02}", datum("v"))

    async def test() -> None:
        seen: list[str] = []
        path = "/v1/topics?glob=X/*5&limit=2"
        following: str | None = ""
        round_ = 0
        while following is not None:
            page = await world.json(path + (f"&after={following}" if following else ""))
            assert len(page["topics"]) <= 2
            seen += [row["destination"] for row in page["topics"]]
            following = page["next"]
            world.send(f"X/A.0{round_}", b"")  # deleted behind and before the cursor, but none that is wanted
            world.send(f"X/A.1{round_}.x", datum("v"))
            round_ += 1
        assert seen == ["X/A.05", "X/A.15", "X/B.05", "X/B.15"]

    run(test)


def test_one_page_looks_at_so_many_topics_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glob that matches little gives short pages, empty ones too, that still lead to the end."""
    monkeypatch.setattr(view, "SLICE_TOPICS", 2)
    monkeypatch.setattr(topics, "PAGE_SLICES_MAX", 2)
    for number in range(10):
        world.send(f"X/A.{number}", datum("v"))

    async def test() -> None:
        sizes: list[int] = []
        following: str | None = ""
        while following is not None:
            page = await world.json("/v1/topics?glob=X/*9" + (f"&after={following}" if following else ""))
            sizes.append(len(page["topics"]))
            following = page["next"]
        assert sizes == [0, 0, 1]

    run(test)


def test_deleted_topics_are_not_listed(world: World) -> None:
    """A tombstone is no topic."""
    world.subscribe(world.connect("admin", "a"), "X/**", durable=True)
    world.send("X/A.1", datum("v"))
    world.send("X/A.1", b"")

    async def test() -> None:
        assert await world.json("/v1/topics") == {"topics": [], "next": None}
        assert (await world.ask("GET", "/v1/topics/X/A.1")).status_code == 404

    run(test)


def test_delete_is_a_send_of_the_operator(world: World) -> None:
    """An accepted delete is a change by the operator's principal, answered after its commit; the errand leaves no trace."""
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        response = await world.ask("DELETE", "/v1/topics/X/A.1")
        assert (response.status_code, response.json()["disposition"]) == (200, "accepted")
        change = world.broker.store.topics[b"X/A.1"].change
        assert (change.deleted, change.publisher.principal, change.publisher.fingerprint) == (True, "admin", ADMIN)
        assert {key for key in world.broker.sessions if key[0] == "admin"} == set()

    run(test)


def test_every_write_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Each change through the API is one line of the log, with its operator, for any path. Reading is not logged."""
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        await world.ask("GET", "/v1/topics/X/A.1")
        await world.ask("DELETE", "/v1/topics/X/A.1%E2%80%AEforged")

    with caplog.at_level(logging.INFO, "maxam"):
        run(test)
    assert [record.getMessage() for record in caplog.records if record.name == "maxam"] == [
        rf'admin-write principal=admin fingerprint={ADMIN} method=DELETE path="/v1/topics/X/A.1\u202eforged"'
    ]


def test_delete_needs_the_send_right(world: World) -> None:
    """The admin right `write` alone deletes nothing."""
    world.send("X/B.1", datum("v"))

    async def test() -> None:
        response = await world.ask("DELETE", "/v1/topics/X/B.1", READER)
        assert response.status_code == 403
        assert response.json()["disposition"] == "rejected-unauthorised"
        assert not world.broker.store.topics[b"X/B.1"].change.deleted

    run(test)


def test_delete_is_not_answered_before_its_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be committed there is no answer but, in the end, that it took too long."""
    monkeypatch.setattr(application, "REQUEST_TIMEOUT_S", 0.05)
    world.send("X/A.1", datum("v"))
    world.committer.stuck = True

    async def test() -> None:
        response = await world.ask("DELETE", "/v1/topics/X/A.1")
        assert (response.status_code, response.json()["error"]) == (503, "too-slow")

    run(test)


def test_a_full_disk_refuses_a_delete_and_readiness(world: World) -> None:
    """The disposition of a SEND that cannot be stored is passed on, and readiness shows the reason."""
    world.send("X/A.1", datum("v"))

    async def test() -> None:
        assert await world.json("/readyz") == {"status": "ready", "degraded": []}
        world.committer.full = True
        response = await world.ask("DELETE", "/v1/topics/X/A.1")
        assert response.status_code == 503
        assert (response.json()["error"], response.json()["disposition"]) == ("disk-full", "rejected-unavailable")
        response = await world.ask("GET", "/readyz")
        assert response.status_code == 503
        assert "disk-full" in response.json()["reasons"][0]

    run(test)


def test_a_session_shows_what_it_owes(world: World) -> None:
    """Counts of owed and un-acked, the window, the peer and its subscriptions."""
    connection = world.connect("admin", "a b/c", "10.0.0.1:5")
    world.subscribe(connection, "X/A.*", durable=True)
    for number in range(70):
        world.send(f"X/A.{number}", datum("v"))
    world.send("X/A.11", datum("w"))
    connection.drain(0.0)
    window = connection.window.size
    world.wall_us = 1_700_000_003_500_000
    row = {
        "principal": "admin",
        "client_id": "a b/c",
        "connected": True,
        "durable": True,
        "peer": "10.0.0.1:5",
        "fingerprint": SENDER,
        "window": window,
        "unacked": window,
        "owed": 70 - window,
        "conflated": 1,
        "staleness_s": 3.5,
        "behind": False,
        "connected_at": "2023-11-14T22:13:20.000000Z",
    }
    subscription = {
        "principal": "admin",
        "client_id": "a b/c",
        "id": "s1",
        "glob": "X/A.*",
        "ack": "client",
        "durable": True,
        "delivering": True,
        "connected": True,
        "owed": 70 - window,
        "unacked": window,
        "oldest_owed_s": 3.5,
        "oldest_unacked_s": 3.5,
        "staleness_s": 3.5,
        "behind": False,
        "conflated": 1,
        "window": window,
        "cause": "unacknowledged",
        "refinement": None,
    }

    async def test() -> None:
        assert (await world.json("/v1/sessions"))["sessions"][0] == row | {"subscriptions": 1}
        path = "/v1/sessions/admin/" + quote("a b/c", safe="")
        assert await world.json(path) == row | {"subscriptions": [subscription]}
        world.broker.detach(connection, 1.0)
        world.clients.connected.clear()
        detached = await world.json(path)
        assert (detached["connected"], detached["peer"], detached["window"], detached["owed"]) == (
            False,
            None,
            None,
            70,
        )
        assert detached["subscriptions"][0]["delivering"] is False

    run(test)


def test_sessions_are_paged_by_key(world: World) -> None:
    """All sessions come in order of principal and client-id, each once."""
    keys = {("sender", "publisher"), ("sender", "a/b"), ("sender", "a b?&"), ("admin", "z"), ("admin", "kick")}
    for principal, client_id in keys - {("sender", "publisher")}:
        world.connect(principal, client_id)

    async def test() -> None:
        seen: list[tuple[str, str]] = []
        following: str | None = ""
        while following is not None:
            page = await world.json("/v1/sessions?limit=2" + (f"&after={quote(following)}" if following else ""))
            seen += [(row["principal"], row["client_id"]) for row in page["sessions"]]
            following = page["next"]
        assert seen == sorted(keys)
        for principal, client_id in keys:
            row = await world.json(f"/v1/sessions/{quote(principal, safe='')}/{quote(client_id, safe='')}")
            assert (row["principal"], row["client_id"]) == (principal, client_id)

    run(test)


def test_wills_are_paged_by_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All last wills come in order of principal and client-id, each once, and show when each is sent; a cancelled one does not."""
    monkeypatch.setattr(wills, "WILLS_PER_SLICE", 2)
    listed = world.broker.last_wills.wills
    keys = [(principal, client_id) for principal in ("admin", "sender") for client_id in ("a", "a/b", "c", "d", "e")]
    for principal, client_id in keys:
        will = Will(b"X/A.1", b"gone", ((b"x", b"y"),), 30)
        listed.connect((principal, client_id), Identity(principal, SENDER), will)
    listed.disconnect(keys.pop(3))

    async def pages(query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        following: str | None = ""
        while following is not None:
            page = await world.json(f"/v1/wills?{query}" + (f"&after={quote(following)}" if following else ""))
            rows += page["wills"]
            following = page["next"]
        return rows

    async def test() -> None:
        listed.lose(("sender", "a/b"), trio.current_time())
        rows = await pages("limit=1")
        assert rows
        for limit in (3, 100):
            again = await pages(f"limit={limit}")
            assert [(row["principal"], row["client_id"]) for row in again] == keys
        assert [(row["principal"], row["client_id"]) for row in rows] == keys
        assert [row["client_id"] for row in rows if row["armed"]] == ["a/b"]
        assert all((row["due_s"] is None) is not row["armed"] for row in rows)
        assert {(row["destination"], row["body_bytes"], row["delay_s"]) for row in rows} == {("X/A.1", 4, 30)}
        assert 29 < next(row["due_s"] for row in rows if row["armed"]) <= 30
        own = await pages("principal=admin&limit=2")
        assert [(row["principal"], row["client_id"]) for row in own] == keys[:4]
        assert await pages("principal=nobody") == []

    run(test)


def test_sessions_are_found_by_what_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By principal and client-id exactly, by a text anywhere in them or in the address; pages of what matches follow each other."""
    monkeypatch.setattr(sessions, "SLICE_SUBSCRIPTIONS", 2)
    for principal, client_id, address in (
        ("admin", "Desk-1", "10.0.0.7:1"),
        ("admin", "desk-2", None),
        ("reader", "desk-2", None),
        ("sender", "a/b", "10.0.0.7:2"),
    ):
        world.connect(principal, client_id, address)

    async def found(**parameters: str) -> list[tuple[str, str]]:
        keys: list[tuple[str, str]] = []
        following: str | None = ""
        while following is not None:
            after = {"after": following} if following else {}
            page = await world.json("/v1/sessions?" + urlencode({"limit": "1", **parameters, **after}))
            keys += [(row["principal"], row["client_id"]) for row in page["sessions"]]
            following = page["next"]
        return keys

    async def test() -> None:
        everyone = [("admin", "Desk-1"), ("admin", "desk-2"), ("reader", "desk-2"), ("sender", "a/b")]
        everyone.append(("sender", "publisher"))
        assert await found() == everyone
        assert await found(find="DESK") == everyone[:3]
        assert await found(find="sender") == everyone[3:]
        assert await found(find="10.0.0.7") == [everyone[0], everyone[3]]
        assert await found(find="nobody") == []
        assert await found(principal="admin") == everyone[:2]
        assert await found(principal="adm") == []
        assert await found(client_id="desk-2") == everyone[1:3]
        assert await found(principal="reader", client_id="desk-2") == everyone[2:3]
        assert await found(principal="admin", client_id="a/b", find="a") == []

    run(test)


def test_kick_closes_the_connection_and_nothing_else(world: World) -> None:
    """The connection fails with an ERROR of its own, and the session stays. To kick a session without a connection is a conflict."""
    connection = world.connect("admin", "a")
    world.subscribe(connection, "X/**", durable=True)

    async def test() -> None:
        assert (await world.ask("POST", "/v1/sessions/admin/a/kick")).json() == {"kicked": True}
        assert connection.failure is not None
        assert connection.failure.message == "closed by an operator"
        world.broker.detach(connection, 1.0)
        response = await world.ask("POST", "/v1/sessions/admin/a/kick")
        assert (response.status_code, response.json()["error"]) == (409, "not-connected")
        assert ("admin", "a") in world.broker.sessions

    run(test)


def test_drop_ends_a_session_for_good(world: World) -> None:
    """A dropped session is gone with its subscriptions, and the journal has a record."""
    connection = world.connect("admin", "a")
    world.subscribe(connection, "X/**", durable=True)
    world.committer.committed.clear()

    async def test() -> None:
        assert (await world.ask("DELETE", "/v1/sessions/admin/a")).json() == {"dropped": True}
        assert ("admin", "a") not in world.broker.sessions
        assert connection.failure is not None
        assert [type(operation) for operation in world.committer.committed] == [SessionEndRecord]
        assert (await world.ask("DELETE", "/v1/sessions/admin/a")).status_code == 404

    run(test)


def test_drop_ends_a_subscription_that_no_connection_uses(world: World) -> None:
    """One of its durable subscriptions is gone and the journal has a record; one in use is refused, the others stay."""
    connection = world.connect("admin", "a")
    for id_ in ("s/1", "t"):
        world.subscribe(connection, "X/**", durable=True, id_=id_)
    session = world.broker.sessions["admin", "a"]
    world.committer.committed.clear()

    async def test() -> None:
        path = "/v1/subscriptions/admin/a/s%2F1"
        response = await world.ask("DELETE", path)
        assert (response.status_code, response.json()["error"]) == (409, "in-use")
        world.broker.detach(connection, 1.0)
        world.connect("admin", "a")
        assert (await world.ask("DELETE", path)).json() == {"dropped": True}
        assert list(session.subscriptions) == [b"t"]
        assert [type(operation) for operation in world.committer.committed] == [UnsubscriptionRecord]
        assert (await world.ask("DELETE", path)).status_code == 404
        assert (await world.ask("DELETE", "/v1/subscriptions/admin/a")).status_code == 404

    run(test)


def test_about_names_the_stomp_listener(world: World) -> None:
    """A client learns where to subscribe, as whom it is seen, and what it may."""

    async def test() -> None:
        about = await world.json("/v1/about", READER)
        assert about["stomp"] == {"host": "127.0.0.1", "port": 61614, "virtual_host": "MAXVAPI"}
        assert (about["principal"], about["admin_rights"]) == ("reader", ["read", "write"])

    run(test)


def test_schemas_are_served_to_any_principal(world: World) -> None:
    """The rules and the self-contained text of each minor."""

    async def test() -> None:
        listing = await world.json("/v1/schemas", SENDER)
        assert listing["types"] == {"t.T_v1": ["1.0"]}
        assert [rule["encoding"] for rule in listing["rules"]] == ["none", "datum"]
        assert (await world.json("/v1/schemas/t.T_v1/1.0", SENDER))["name"] in {"T_v1", "t.T_v1"}

    run(test)


def test_a_bug_is_answered_as_internal_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unplanned error shows the caller only that there is one."""

    def broken(_self: View, _principal: str) -> frozenset[str]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(View, "admin_rights", broken)

    async def test() -> None:
        response = await world.ask("GET", "/v1/about")
        assert (response.status_code, response.json()) == (500, problem("internal", "internal error"))

    run(test)


def test_the_description_says_where_to_ask(world: World) -> None:
    """First the gateway that it came from, by a reference that holds for any name and port; then any other, with the usual port."""

    async def test() -> None:
        here, anywhere = (await world.json("/v1/openapi.json"))["servers"]
        assert here["url"] == "/"
        assert (
            urljoin("https://gateway.example.org:9443/v1/openapi.json", here["url"])
            == "https://gateway.example.org:9443/"
        )
        defaults = {name: one["default"] for name, one in anywhere["variables"].items()}
        assert anywhere["url"].format(**defaults) == "https://localhost:8643"

    run(test)
