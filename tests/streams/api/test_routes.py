"""All routes of the admin API over real TLS: described, guarded, and right while what they list comes and goes."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from maxam.api import openapi
from maxam.api.answers import Rows
from maxam.api.application import ROUTES
from maxam.api.routes import console
from maxam.api.routes.health import CODES
from maxam.api.routing import ANY_CERTIFICATE, ANY_PRINCIPAL, Described, RouteSpec
from maxam.config import Limits
from maxam.gateway.connect_problems import OFTEN
from maxam.gateway.listings import STATES
from maxam.gateway.reload import RELOADED
from tests.benchmarks.holds import counted_steps
from tests.support.living_gateway import ANYTHING_GOES, Living, Site, TestClient, cli, living, run, until
from tests.support.patience import PATIENCE_S

RIGHTS = ("read", "write", "metrics", "enrol")
ENDLESS = ("/v1/live", "/v1/values/live")  # streams: their own tests read them


@asynccontextmanager
async def operator(gateway: Living, name: str = "operator") -> AsyncIterator[httpx.AsyncClient]:
    """Speak to the admin listener with a certificate, over one connection."""
    base = f"https://127.0.0.1:{gateway.admin_port}"
    headers = {"maxam-admin": "1"}
    async with httpx.AsyncClient(
        verify=gateway.site.context(name), base_url=base, headers=headers, timeout=PATIENCE_S
    ) as client:
        yield client


async def told(client: httpx.AsyncClient, path: str, **parameters: str | int) -> Any:
    """Return what there is under a path."""
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


# The description.


def test_every_route_is_described_and_nothing_else() -> None:
    """The OpenAPI description has each method of each path, except the console's pages, and no other. Each has its right."""
    pages = {spec[:2] for spec in console.ROUTES}
    described = [spec for spec in ROUTES if spec[:2] not in pages]
    assert not [spec[:2] for spec in described if not isinstance(spec[3], Described)]
    assert not [spec[:2] for spec in ROUTES if spec[:2] in pages and isinstance(spec[3], Described)]
    document = openapi.document(ROUTES)
    found = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert len(found) == len(described)
    for method, path, right, _ in described:
        shown = next(one for one in sorted(found) if one[0] == method and _alike(one[1], path))
        operation = document["paths"][shown[1]][method.lower()]
        assert operation["summary"]
        assert right in operation["description"].lower() or right == ANY_CERTIFICATE
        found.remove(shown)
    assert not found
    identifiers = [one["operationId"] for operations in document["paths"].values() for one in operations.values()]
    assert len(identifiers) == len(set(identifiers))


def _alike(shown: str, path: str) -> bool:
    plain = path.replace(":path}", "}")
    folder, key, _ = plain.partition("{key}")
    names = shown.removeprefix(folder).split("/")  # what the key is made of: `{principal}/{client_id}`, or more
    return shown == plain or (bool(key) and shown.startswith(folder) and len(names) > 1)


# Rights.


def _concrete(path: str) -> str:
    for name in ("{key:path}", "{destination:path}", "{file:path}"):
        path = path.replace(name, "a/b")
    while "{" in path:
        path = path[: path.index("{")] + "x" + path[path.index("}") + 1 :]
    return path


def _allowed(spec: RouteSpec, rights: Iterable[str] | None) -> bool:
    """Return True if a principal with these admin rights may ask. None is a certificate without a principal."""
    right = spec[2]
    return right == ANY_CERTIFICATE or (rights is not None and (right == ANY_PRINCIPAL or right in rights))


def test_each_route_wants_its_right_and_no_other(tmp_path: Path) -> None:
    """A client without a right is answered 403 by every route but those that files.md leaves open. One right opens its routes alone.

    `metrics` opens only /metrics and /readyz, `enrol` only enrolment, `read` no route that writes. A client without a certificate, or
    with one of another authority, does not get as far as a route.
    """
    holders: dict[str, tuple[str, ...] | None] = {right: (right,) for right in RIGHTS} | {
        "nothing": (),
        "unknown": None,
    }
    site = Site(tmp_path, *holders)
    site.policy({name: {"admin": list(rights)} for name, rights in holders.items() if rights is not None})
    opened: dict[str, set[str]] = {}

    async def test() -> None:
        async with living(site) as gateway:
            for name, rights in holders.items():
                async with operator(gateway, name) as client:
                    for spec in ROUTES:
                        method, path = spec[:2]
                        if path in ENDLESS and _allowed(spec, rights):
                            continue
                        answer = await client.request(method, _concrete(path))
                        refused = answer.status_code == 403 and answer.json()["error"] == "forbidden"
                        assert refused is not _allowed(spec, rights), (name, method, path, answer.text)
                        if not refused and rights is not None and spec[2] not in (ANY_CERTIFICATE, ANY_PRINCIPAL):
                            opened.setdefault(name, set()).add(path)
            assert opened["metrics"] == {"/metrics", "/readyz"}
            assert {path.split("/")[2].partition("-")[0] for path in opened["enrol"]} == {"enrolment", "enrolments"}
            assert not any(spec[0] != "GET" and spec[2] == "read" for spec in ROUTES)
            assert "nothing" not in opened
            with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
                async with httpx.AsyncClient(verify=site.context(None), timeout=PATIENCE_S) as client:
                    await client.get(f"https://127.0.0.1:{gateway.admin_port}/livez")

    run(test)


# Connections and health.


def test_connections_are_told_from_their_first_byte_on(tmp_path: Path) -> None:
    """The listing has connections in order of opening, with their state, operators too. A figure that is not known yet is null.

    The states are: only opened, certificate shown, connected, being closed.
    """
    site = Site(tmp_path, "anna")

    async def test() -> None:
        async with living(site) as gateway, AsyncExitStack() as open_:
            raw = await open_.enter_async_context(await trio.open_tcp_stream(*gateway.gateway.address))
            await until(lambda: len(gateway.gateway.connections) == 1)
            await open_.enter_async_context(await gateway.dial("anna"))
            anna = await open_.enter_async_context(gateway.client("anna", "a"))
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            await anna.subscribe("X/**", ack=b"client", eager=True)
            assert await anna.values(1)
            client = await open_.enter_async_context(operator(gateway))
            page = await told(client, "/v1/connections")
            assert page["next"] is None
            first, second, third, fourth = page["connections"]
            assert [row["id"] for row in page["connections"]] == sorted({row["id"] for row in page["connections"]})
            assert [row["state"] for row in page["connections"]] == [*STATES[:3], "connected"]
            assert [row["kind"] for row in page["connections"]] == ["stomp", "stomp", "stomp", "admin"]
            assert (first["fingerprint"], first["tls"], first["frames"]) == (None, None, None)
            assert second["fingerprint"] == third["fingerprint"] == site.fingerprints["anna"]
            assert (second["principal"], second["stomp"], second["heard_s"]) == (None, None, None)
            assert (third["principal"], third["client_id"], third["stomp"]) == ("anna", "a", "1.2")
            assert (third["frames"], third["sends"], third["messages"], third["in_flight"]) == (3, 1, 1, 1)
            assert third["bytes_in"] > 0 < third["bytes_out"]
            assert third["tls"].startswith("TLSv1.3/")
            assert third["receipts_waiting"] == 0 < third["window"]
            assert 0 <= third["heard_s"] <= third["open_s"]
            assert (fourth["principal"], fourth["client_id"]) == ("operator", None)
            listed = [
                row["id"] for row in (await told(client, "/v1/connections", after=first["id"], limit=1))["connections"]
            ]
            assert listed == [second["id"]]
            shown = await cli(gateway, "connections", "--limit", "3")
            assert (shown.exit_code, shown.stdout.count("\n")) == (0, 5), shown.output
            assert "handshake" in shown.stdout
            assert (await client.get("/v1/connections?after=x")).status_code == 400
            await raw.aclose()
            await until(lambda: len(gateway.gateway.connections) == 2)
            assert (await told(client, "/v1/connections"))["connections"][0]["id"] == second["id"]

    run(test)


def test_health_says_what_an_operator_asks_first(tmp_path: Path) -> None:
    """It is ready, degraded with what is wrong in the files, or not ready and why.

    The command exits with 0, and with 1 if it is not ready, or degraded and the command is strict.
    """
    site = Site(tmp_path, "anna")

    async def test() -> None:
        async with living(site) as gateway, operator(gateway) as client, gateway.client("anna") as anna:
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            answer = await told(client, "/v1/health")
            assert (answer["status"], answer["reasons"], answer["degraded"]) == ("ready", [], [])
            assert (answer["figures"]["topics"], answer["overdue"], answer["behind"]) == (1, 0, 0)
            most = gateway.gateway.clients.connections_max
            counted = {"connected": 1, "connecting": 0, "operators": 1, "max": most, "problems": 0}
            assert answer["connections"] == counted
            assert {row["what"] for row in answer["expiries"]} == {"certificate", "authority", "crl"}
            assert [row["expires_s"] for row in answer["expiries"]] == sorted(
                row["expires_s"] for row in answer["expiries"]
            )
            assert {row["failure"] for row in answer["reload"]} == {""}
            assert 0 < answer["uptime_s"] < 60
            assert answer["commit"]["count"] >= 1
            shown = await cli(gateway, "health", "--strict")
            assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, "ready"), shown.output
            site.policy_file.write_text("nonsense")
            await gateway.reload()
            answer = await told(client, "/v1/health")
            assert (answer["status"], answer["reasons"]) == ("degraded", [])
            assert "policy" in answer["degraded"][0]
            assert [(await cli(gateway, "health", *options)).exit_code for options in ([], ["--strict"])] == [0, 1]

    run(test)


def test_who_cannot_connect_is_listed_with_the_reason_and_a_remedy(tmp_path: Path) -> None:
    """A client that the policy does not know, one without a certificate and two that share a client-id are in listing, health and metrics."""
    site = Site(tmp_path, "anna", "stranger")
    site.policy({"anna": {"send": ["X/**"]}})

    async def test() -> None:
        async with living(site) as gateway, operator(gateway) as client:
            for _ in range(OFTEN):
                assert (await gateway.refusal("stranger"))[0] == b"unknown client"
                async with gateway.client("anna", "shared") as first, gateway.client("anna", "shared"):
                    assert (await first.error())[0] == b"session taken over by a newer connection"
            with suppress(trio.BrokenResourceError):
                async with await gateway.dial(None) as nobody:
                    await nobody.receive_some()
            await until(lambda: len(gateway.gateway.connect_problems.rows()) >= 3)
            answer = await told(client, "/v1/connect-problems")
            rows = {(row["kind"], row["principal"], row["reason"]): row for row in answer["problems"]}
            stranger = rows["refused", None, "error: unknown client"]
            assert (stranger["count"], stranger["often"]) == (OFTEN, True)
            assert stranger["fingerprint"] == site.fingerprints["stranger"]
            assert "policy" in stranger["advice"]
            assert rows["refused", None, "the client sent no certificate"]["count"] == 1
            [taken] = [row for row in answer["problems"] if row["kind"] == "taken-over"]
            assert (taken["principal"], taken["client_id"], taken["count"]) == ("anna", "shared", OFTEN)
            assert len((await told(client, "/v1/connect-problems", limit=1))["problems"]) == 1
            health = await told(client, "/v1/health")
            assert health["connections"]["problems"] == answer["count"]
            codes = {line.partition(":")[0] for line in health["degraded"]}
            assert {"clients-refused", "takeovers"} <= codes
            scraped = (await client.get("/metrics")).text
            degraded = dict(re.findall(r'^maxam_degraded\{code="([\w-]+)"\} (\S+)$', scraped, re.MULTILINE))
            assert {code for code, value in degraded.items() if float(value)} == codes
            assert set(degraded) == set(CODES)
            shown = await cli(gateway, "connections", "problems")
            assert shown.exit_code == 0, shown.output
            assert "shared" in shown.stdout

    run(test)


def test_health_says_why_it_is_not_ready(tmp_path: Path) -> None:
    """With less memory than a process takes, SENDs are refused. The answer and the command report it, and the command exits with 1."""
    site = Site(tmp_path, "anna")

    async def test() -> None:
        async with living(site, limits=replace(Limits(), memory_bytes_max=1)) as gateway, operator(gateway) as client:
            await until(lambda: gateway.gateway.watermarks.memory_low)
            answer = await told(client, "/v1/health")
            assert answer["status"] == "not ready"
            assert "memory-low" in answer["reasons"][0]
            assert (answer["memory"]["low"], answer["memory"]["limit_bytes"]) == (True, 1)
            shown = await cli(gateway, "health")
            assert shown.exit_code == 1
            assert shown.stdout.startswith("not ready\n  not ready  memory-low")

    run(test)


# Listings while what they list comes and goes.

KEPT = [f"{number:02}" for number in range(0, 60, 3)]  # what stays; others come and go between them
CONTRACT = '[[rule]]\ndestination = "X/F.**"\nencoding = "none"\nfresh_within_s = 0.001\n' + ANYTHING_GOES
NO_RULES = '[[rule]]\ndestination = "Z/**"\nencoding = "none"\n'


class Churn:
    """Something that is listed, of which some stay and others come and go.

    Attributes:
        path: Of the listing.
        kept: Keys of those that stay, once `begin` is through.
        falling: The listing begins with what came last.
    """

    path = ""
    falling = False

    def __init__(self, gateway: Living, client: TestClient, open_: AsyncExitStack) -> None:
        self.gateway = gateway
        self.client = client
        self.open = open_
        self.kept: list[Any] = []

    async def begin(self) -> None:
        """Make what stays, and some that will go."""
        for name in KEPT:
            await self.come(name, kept=True)
        for number in range(1, 60, 6):
            await self.come(f"{number:02}")

    async def turn(self, round_: int) -> None:
        """Let some go and others come, behind and before wherever a reader is."""
        for number in (round_ * 7 % 60, 59 - round_ * 5 % 60, round_ * 11 % 60):
            name = f"{number:02}"
            if name not in KEPT:
                await self.go(name)
                await self.come(f"{number:02}.{round_:03}")

    async def come(self, name: str, kept: bool = False) -> None:
        """Make one."""
        raise NotImplementedError

    async def go(self, name: str) -> None:
        """Take one away, if it is there."""
        raise NotImplementedError

    def key(self, row: dict[str, Any]) -> Any:
        """Return the key of a row, in the order of the listing."""
        return row["destination"].encode()


class Topics(Churn):
    """Topics with a value."""

    path = "/v1/topics"
    prefix = "X/T."

    async def come(self, name: str, kept: bool = False) -> None:
        """SEND."""
        assert (await self.client.send(self.prefix + name, b"v"))[0] == b"accepted"
        if kept:
            self.kept.append((self.prefix + name).encode())

    async def go(self, name: str) -> None:
        """SEND nothing."""
        await self.client.send(self.prefix + name, b"")


class OverdueTopics(Topics):
    """Topics that are older than their rule allows, as each is a moment after it came."""

    path = "/v1/overdue"
    prefix = "X/F."

    async def begin(self) -> None:
        """Wait until they are."""
        await super().begin()
        await until(lambda: self.gateway.gateway.freshness.count == self.gateway.gateway.broker.store.live)


class Orphans(Topics):
    """Topics whose rule is gone: no further ones come."""

    path = "/v1/orphans"

    async def begin(self) -> None:
        """Take the rule away."""
        await super().begin()
        (self.gateway.site.schemas / "registry.toml").write_text(NO_RULES)
        assert (await self.gateway.reload(allow_orphans=True))["schemas"].outcome == RELOADED

    async def turn(self, round_: int) -> None:
        """Delete some."""
        await self.go(f"{(1 + 6 * round_) % 60:02}")


class Rejects(Churn):
    """Rejected SENDs, of which only new ones come."""

    path = "/v1/rejects"
    falling = True

    async def come(self, name: str, kept: bool = False) -> None:
        """SEND to where there is no rule."""
        assert (await self.client.send("X2/" + name, b"v"))[0] != b"accepted"
        if kept:
            newest = next(iter(self.gateway.gateway.quarantine.before(None)))
            self.kept.append(newest.number)

    async def go(self, name: str) -> None:
        """Nothing goes but by room."""

    def key(self, row: dict[str, Any]) -> Any:
        """Return its number."""
        record = self.gateway.gateway.quarantine.get(row["id"])
        assert record is not None
        return record.number


class Sessions(Churn):
    """Sessions, each with a connection and one subscription."""

    path = "/v1/sessions"

    def __init__(self, gateway: Living, client: TestClient, open_: AsyncExitStack) -> None:
        super().__init__(gateway, client, open_)
        self.there: dict[str, AsyncExitStack] = {}

    async def come(self, name: str, kept: bool = False) -> None:
        """Connect and subscribe."""
        self.there[name] = await self.open.enter_async_context(AsyncExitStack())
        client = await self.there[name].enter_async_context(self.gateway.client("anna", name))
        await client.subscribe("X/none")
        if kept:
            self.kept.append(self.named(name))

    async def go(self, name: str) -> None:
        """Disconnect."""
        if name in self.there:
            await self.there.pop(name).aclose()
            await until(lambda: ("anna", name) not in self.gateway.gateway.broker.sessions)

    def named(self, name: str) -> Any:
        """Return the key of the one with this client-id."""
        return ("anna", name)

    def key(self, row: dict[str, Any]) -> Any:
        """Return its name."""
        return (row["principal"], row["client_id"])


class Connections(Sessions):
    """Connections, in order of their opening."""

    path = "/v1/connections"

    def named(self, name: str) -> Any:
        """Return its number."""
        return next(one.number for one in self.gateway.gateway.connections if one.peer and one.peer.client_id == name)

    def key(self, row: dict[str, Any]) -> Any:
        """Return its number."""
        return row["id"]


class Subscriptions(Sessions):
    """Subscriptions, in order of session and id."""

    path = "/v1/subscriptions"

    def named(self, name: str) -> Any:
        """Return the key of the one of the session with this client-id."""
        return ("anna", name, "s")

    def key(self, row: dict[str, Any]) -> Any:
        """Return its name."""
        return (row["principal"], row["client_id"], row["id"])


@pytest.mark.parametrize("kind", [Topics, OverdueTopics, Orphans, Rejects, Sessions, Connections, Subscriptions])
def test_a_listing_is_right_while_things_come_and_go(tmp_path: Path, kind: type[Churn]) -> None:
    """Read page by page, an entry that stays is listed exactly once, and none twice, in the listing's order.

    Meanwhile other entries come and go, before and after the cursor.
    """
    site = Site(tmp_path, "anna")
    (site.schemas / "registry.toml").write_text(CONTRACT)

    async def test() -> None:
        async with AsyncExitStack() as open_:
            gateway = await open_.enter_async_context(living(site))
            client = await open_.enter_async_context(gateway.client("anna", "churn"))
            api = await open_.enter_async_context(operator(gateway))
            churn = kind(gateway, client, open_)
            await churn.begin()
            seen: list[Any] = []
            after: dict[str, str] = {}
            round_ = 0
            while True:
                page = await told(api, churn.path, limit=3, **after)
                rows = next(value for value in page.values() if isinstance(value, list))
                assert len(rows) <= 3
                seen += [churn.key(row) for row in rows]
                if page["next"] is None:
                    break
                after = {"after": page["next"]}
                await churn.turn(round_)
                round_ += 1
            assert round_ >= 7
            assert seen == sorted(set(seen), reverse=churn.falling)
            assert set(seen) >= set(churn.kept)
            assert len(churn.kept) == len(KEPT)

    run(test)


SLICED = {
    Topics: "maxam.api.routes.topics.ROWS_PER_SLICE",
    OverdueTopics: "maxam.api.routes.freshness.ROWS_PER_SLICE",
    Orphans: "maxam.api.routes.reload.ROWS_PER_SLICE",
    Rejects: "maxam.api.routes.rejects.ROWS_PER_SLICE",
    Sessions: "maxam.api.routes.sessions.SESSIONS_PER_SLICE",
    Connections: "maxam.api.routes.connections.ROWS_PER_SLICE",
    Subscriptions: "maxam.api.routes.subscriptions.ROWS_PER_SLICE",
}


@pytest.mark.parametrize("kind", SLICED)
def test_no_step_makes_more_rows_than_a_slice(
    tmp_path: Path, kind: type[Churn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a page of any length are made and written a batch at a time. Other tasks run in between."""
    site = Site(tmp_path, "anna")
    (site.schemas / "registry.toml").write_text(CONTRACT)
    monkeypatch.setattr(SLICED[kind], 4)
    written: list[tuple[int, int]] = []  # in which step, how many rows
    add = Rows.add

    async def test() -> None:
        async with AsyncExitStack() as open_:
            gateway = await open_.enter_async_context(living(site))
            client = await open_.enter_async_context(gateway.client("anna", "churn"))
            api = await open_.enter_async_context(operator(gateway))
            churn = kind(gateway, client, open_)
            await churn.begin()
            with counted_steps() as steps:

                def note(self: Rows, rows: Sequence[dict[str, object]]) -> None:
                    written.append((steps.count, len(rows)))
                    add(self, rows)

                monkeypatch.setattr(Rows, "add", note)
                page = await told(api, churn.path, limit=200)
            rows = next(value for value in page.values() if isinstance(value, list))
            assert len(rows) == sum(number for _, number in written) >= len(KEPT)
            assert max(number for _, number in written) <= 4
            assert len({step for step, _ in written}) == len(written) >= 5

    run(test)
