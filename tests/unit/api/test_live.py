"""Live views over a real broker on a simulated clock: what is sent, how often, how much, to whom."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from maxam.api import view as view_module
from maxam.api.live import shared
from maxam.api.live import views as live
from maxam.api.live.rows import CACHE_BYTES_MAX, ROWS_MAX, RowCache
from maxam.api.live.shared import STREAMS_OF_PRINCIPAL_MAX
from maxam.api.live.views import BYTES_PER_S_MAX, Stream
from maxam.api.view import View
from maxam.avro.registry import load_registry
from maxam.broker.policy import load_policy
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.gateway.server import Gateway
from maxam.globs import compile_glob
from maxam.records import Identity
from maxam.stomp.events import Send
from tests.unit.api.test_api import ADMIN, POLICY, READER, World, datum

PERSON = {
    "type": "record",
    "name": "P_v1",
    "namespace": "p",
    "fields": [{"name": "name", "type": "string", "pii": True}, {"name": "points", "type": "long"}],
}
PERSONAL = {
    "registry.toml": b'[[rule]]\ndestination = "X/**"\nschema = "p.P_v1"\nencoding = "datum"\n',
    "p/P_v1/1.0.avsc": json.dumps(PERSON).encode(),
}
HOSTILE = "</script><script>alert(1)</script>\r\n\r\nevent: changes\rdata: {}\n\n\u2028\u202e\x00\x1b[2J\"'&"

Event = tuple[str, Any]


class Reader:
    """A reader of one live view, as fast or slow as a test wants."""

    def __init__(self, world: World, **how: Any) -> None:
        self.view = how.pop("view", None) or View(cast("Gateway", world))
        who = how.pop("who", ADMIN)
        principal = self.view.principal_of(who) or ""
        asked = {"glob": "**", "after": None, "rows_max": 50, "every_s": 1.0, "with_pii": False} | how
        asked["glob"] = compile_glob(asked["glob"], Limits())
        self.stream = Stream(self.view, Identity(principal, who), (), **asked)
        self.principal = principal
        self.data = b""
        self.writes: list[tuple[float, int]] = []
        self.open = trio.Event()
        self.open.set()

    async def write(self, data: bytes) -> None:
        """Take what is sent."""
        self.data += data
        self.writes.append((trio.current_time(), len(data)))
        await trio.lowlevel.checkpoint()

    async def taken(self) -> None:
        """Wait while the reader takes nothing."""
        await self.open.wait()

    async def run(self) -> None:
        """Read until the end."""
        with self.view.live.place(self.principal):
            await self.stream.run(self.write, self.taken)

    def events(self) -> list[Event]:
        """Read what has come as a browser does: lines end with CR, LF or both."""
        found: list[Event] = []
        kind, data = "", ""
        for line in re.split("\r\n|\r|\n", self.data.decode()):
            name, _, value = line.partition(": ")
            assert name in {"", "event", "data", "retry"}, line
            if name == "event":
                kind = value
            elif name == "data":
                data = value
            elif not name and kind:
                found.append((kind, json.loads(data)))
                kind = ""
        return found

    def rows(self) -> dict[str, dict[str, Any]]:
        """Put together what a page would show."""
        shown: dict[str, dict[str, Any]] = {}
        for kind, told in self.events():
            if kind == "rows":
                shown = {name: shown.get(name, {}) for name in told["destinations"]}
            for row in told.get("rows", []):
                name = row["destination"]
                assert name in shown
                shown[name] = row if "value_state" in row else shown[name] | row
        return shown


def scene(test: Callable[[trio.Nursery], Any]) -> None:
    """Run a test on a clock that goes on when nothing else does; what it has started ends with it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await test(nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


def test_only_what_changed_is_sent_and_only_its_newest_value(world: World) -> None:
    """First the window, then on each tick the rows whose value is new, however often they changed in between; silence has pings."""
    for name in ("X/A.1", "X/A.2", "X/B.1"):
        world.send(name, datum("v"))
    reader = Reader(world, glob="X/A.*")

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        await trio.sleep(0.5)
        for number in range(5):
            world.send("X/A.2", datum(f"v{number}"))
        world.send("X/B.1", datum("w"))
        await trio.sleep(15)
        events = [event for event in reader.events() if event[0] != "count"]
        assert [kind for kind, _ in events] == ["rows", "changes", "ping"]
        first, changed, _ = [told for _, told in events]
        counted = [told for kind, told in reader.events() if kind == "count"][-1]
        assert first["destinations"] == [row["destination"] for row in first["rows"]] == ["X/A.1", "X/A.2"]
        assert (first["next"], first["more"], first["complete"]) == (None, False, True)
        assert counted == {"count": 2, "count_complete": True, "topics": 3}
        assert [(row["destination"], row["value"], row["updates"]) for row in changed["rows"]] == [
            ("X/A.2", {"text": "v4"}, 6)
        ]
        assert {"publisher", "schema", "value_state"}.isdisjoint(changed["rows"][0])
        assert reader.rows()["X/A.2"]["schema"] == "t.T_v1"

    scene(test)


def test_the_window_follows_what_comes_and_goes(world: World) -> None:
    """Topics that are made or deleted in the window are noticed within two seconds, and so is the row after them."""
    for number in range(1, 8):
        world.send(f"X/A.{number}", datum("v"))
    reader = Reader(world, rows_max=3, after=b"X/A.1", every_s=60.0)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        steps: list[tuple[list[str], Callable[[], None]]] = [
            (["X/A.2", "X/A.3", "X/A.4"], lambda: world.send("X/A.3", b"")),
            (["X/A.2", "X/A.4", "X/A.5"], lambda: world.send("X/A.20", datum("v"))),
            (["X/A.2", "X/A.20", "X/A.4"], lambda: world.send("X/A.0", datum("v"))),
            (["X/A.2", "X/A.20", "X/A.4"], lambda: None),
        ]
        for expected, change in steps:
            await trio.sleep(2)
            assert list(reader.rows()) == expected
            assert all("value" in row for row in reader.rows().values())
            change()
        last = [told for kind, told in reader.events() if kind == "rows"][-1]
        assert (last["next"], last["more"]) == ("X/A.4", True)
        assert [told["count"] for kind, told in reader.events() if kind == "count"][-1] == world.broker.store.live

    scene(test)


def test_a_slow_reader_is_skipped(world: World) -> None:
    """While what was written has not left nothing is made; then the newest values go out, once."""
    world.send("X/A.1", datum("v"))
    reader = Reader(world, every_s=0.25)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        await trio.sleep(1)
        reader.open = trio.Event()
        await trio.sleep(1)
        before = len(reader.data)
        for number in range(100):
            world.send("X/A.1", datum(f"v{number}"))
            await trio.sleep(0.1)
        assert len(reader.data) == before
        reader.open.set()
        await trio.sleep(1)
        assert [told["rows"][0]["value"] for kind, told in reader.events() if kind == "changes"] == [{"text": "v99"}]

    scene(test)


@pytest.mark.slow
def test_a_stream_stays_within_its_bytes_and_starves_nobody(world: World) -> None:
    """In no second more than 64 KiB, whatever changes; everything that changed once gets through though others always do."""
    large = bytes([0x80, 0x40]) + b"x" * 4096
    names = [f"X/A.{number:03}" for number in range(100)]
    reader = Reader(world, rows_max=200, every_s=0.25)

    async def test(nursery: trio.Nursery) -> None:
        for name in names:
            world.send(name, large)
        nursery.start_soon(reader.run)
        for number in range(60):
            await trio.sleep(0.5)
            for name in names[:99]:
                world.send(name, large)
            if number == 30:
                world.send(names[99], datum("once"))
        rows = reader.rows()
        assert list(rows) == names
        assert all("value" in row for row in rows.values())
        assert rows[names[99]]["value"] == {"text": "once"}

    scene(test)
    for at, (begin_s, _) in enumerate(reader.writes):
        assert sum(size for when_s, size in reader.writes[at:] if when_s < begin_s + 1.0) <= BYTES_PER_S_MAX
    assert len(reader.data) > 20 * BYTES_PER_S_MAX  # and what there is is used


def test_values_are_shown_within_the_receive_right_of_this_moment(world: World) -> None:
    """Without the right to receive a topic its row has no value, and when the right goes, what was shown is taken back."""
    for name in ("X/A.1", "X/B.1"):
        world.send(name, datum("v"))
    reader = Reader(world, who=READER)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        await trio.sleep(0.5)
        assert {name: row["value_state"] for name, row in reader.rows().items()} == {
            "X/A.1": "decoded",
            "X/B.1": "withheld",
        }
        world.broker.replace_policy(
            load_policy(POLICY.replace('receive = ["X/A.**"]', 'receive = ["X/B.**"]').encode(), "", Limits())
        )
        await trio.sleep(1)
        rows = reader.rows()
        assert {name: row["value_state"] for name, row in rows.items()} == {"X/A.1": "withheld", "X/B.1": "decoded"}
        assert "value" not in rows["X/A.1"]

    scene(test)


def test_who_may_not_read_any_more_is_told_and_ended(world: World) -> None:
    """A stream ends within a beat when the right, the principal or the certificate is gone, whatever its tick is."""

    async def ended(change: Callable[[], None]) -> Any:
        reader = Reader(world, every_s=60.0, who=READER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await trio.sleep(0.5)
            change()
            await trio.sleep(1.5)
            assert not nursery.child_tasks
        assert not reader.view.live.views.count
        return reader.events()[-1]

    def policy(text: str) -> Callable[[], None]:
        def change() -> None:
            world.broker.replace_policy(load_policy(text.encode(), "policy", Limits()))

        return change

    def revoke() -> None:
        world.refusal = ProtocolError("certificate revoked", "on the list")

    async def test(_nursery: trio.Nursery) -> None:
        kind, told = await ended(policy(POLICY.replace('admin = ["read"]', "")))
        assert (kind, told["error"]) == ("ended", "forbidden")
        assert "read" in told["detail"]
        policy(POLICY)()
        kind, told = await ended(policy(POLICY.replace(READER, "9" * 64)))
        assert (kind, told["error"]) == ("ended", "forbidden")
        policy(POLICY)()
        kind, told = await ended(revoke)
        assert (kind, told["error"]) == ("ended", "certificate-refused")
        assert "on the list" in told["detail"]

    scene(test)


def test_hostile_text_stays_text(world: World) -> None:
    """With any destinations, principals, headers and values, the stream has the events that we sent and no others."""
    hostile = "<script>alert(1)</script>\"'&\u00ad\u2066"[:24]
    world.send("X/A.<img>&\"'", datum(HOSTILE[:60]))
    publisher = world.connect(f"sender{hostile}", "c")
    world.broker.send(publisher, Send(b"X/A.2", datum(HOSTILE[:60]), ((b"h", HOSTILE.encode()),), None), 1)
    world.committer.schedule_commit()
    reader = Reader(world)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        await trio.sleep(3)
        assert [kind for kind, _ in reader.events()] == ["rows", *["count"] * (len(reader.events()) - 1)]
        assert reader.rows()["X/A.<img>&\"'"]["value"] == {"text": HOSTILE[:60]}
        assert not re.search(rb"[\x00-\x09\x0b-\x1f]", reader.data)

    scene(test)


def test_what_is_personal_is_left_out_unless_it_is_asked_for(world: World) -> None:
    """Marked fields show only with `pii`; whole numbers that a browser would round come as text. A value that cannot be shown has the reason."""
    world.broker.replace_registry(load_registry(PERSONAL))
    number = 2**62 + 1
    encoded = bytearray()
    rest = number << 1
    while rest > 127:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    world.send("X/A.1", b"\x06Eve" + bytes(encoded))
    world.send("X/A.2", bytes([0x80, 0x90, 1]) + b"x" * 9216 + b"\2")
    shy = Reader(world)
    open_ = Reader(world, view=shy.view, with_pii=True)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(shy.run)
        nursery.start_soon(open_.run)
        await trio.sleep(0.5)
        masked, whole = [one.rows()["X/A.1"] for one in (shy, open_)]
        assert (masked["value"], masked["pii_masked"]) == ({"points": str(number)}, True)
        assert whole["value"] == {"name": "Eve", "points": str(number)}
        assert "pii_masked" not in whole
        assert b"Eve" not in shy.data
        assert shy.rows()["X/A.2"]["value_state"] == "undecoded"
        assert "longer than 8192 bytes" in shy.rows()["X/A.2"]["problem"]
        world.broker.replace_registry(load_registry({"registry.toml": b""}))
        shy.view.live.rows.clear()
        world.broker.replace_policy(load_policy(POLICY.encode(), "policy", Limits()))
        await trio.sleep(1)
        assert shy.rows()["X/A.1"]["value_state"] == "undecoded"  # not as bytes, which would hold what is marked
        assert "in force" in shy.rows()["X/A.1"]["problem"]

    scene(test)


def test_tabs_share_what_was_decoded(world: World) -> None:
    """A value is decoded once for all tabs, and nothing is kept when the last one closes."""
    world.send("X/A.1", datum("v"))
    view = View(cast("Gateway", world))
    readers = [Reader(world, view=view) for _ in range(5)]

    async def test(nursery: trio.Nursery) -> None:
        for reader in readers:
            nursery.start_soon(reader.run)
        await trio.sleep(0.5)
        assert view.live.rows.made == 1
        world.send("X/A.1", datum("w"))
        await trio.sleep(2)
        assert view.live.rows.made == 2
        assert all(reader.rows()["X/A.1"]["value"] == {"text": "w"} for reader in readers)
        assert len(world.broker.store.events) == 1
        nursery.cancel_scope.cancel()

    scene(test)
    assert (view.live.views.count, len(view.live.rows), view.live.rows.bytes) == (0, 0, 0)
    assert not len(world.broker.store.events)


def test_the_cache_is_bounded(world: World) -> None:
    """With any number of topics, of any size."""
    view, cache = View(cast("Gateway", world)), RowCache()
    large = bytes([0x80, 0x40]) + b"x" * 4096
    for number in range(1200):
        world.send(f"X/A.{number}", large)
        change = view.topic(f"X/A.{number}".encode())
        assert change is not None
        cache.row(view.registry, view.schema_text, change, False)
        assert cache.bytes <= CACHE_BYTES_MAX
        assert len(cache) <= ROWS_MAX
    assert len(cache) < 1200


@pytest.mark.slow
def test_a_filter_that_matches_little_says_how_far_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are shown before the scan ends. A stream whose events were lost scans again."""
    for number in range(3000):
        world.send(f"X/A.{number:04}", datum("v"))
    reader = Reader(world, glob="X/*[0-2][0-9]99")
    monkeypatch.setattr(live, "SCAN_S", 0.0)  # each pass of the loop reports
    monkeypatch.setattr(live, "SLICE_NAMES", 500)
    monkeypatch.setattr(view_module, "SLICE_NAMES", 500)
    monkeypatch.setattr(live, "PROGRESS_S", 0.0)

    async def test(nursery: trio.Nursery) -> None:
        nursery.start_soon(reader.run)
        await trio.sleep(10)
        told = [told for kind, told in reader.events() if kind == "rows"]
        assert [one["complete"] for one in told] == [False] * (len(told) - 1) + [True]
        assert len(told) > 3
        assert [one["looked_at"] for one in told] == sorted(one["looked_at"] for one in told)
        assert len(told[0]["destinations"]) < len(told[-1]["destinations"]) == 30
        counts = [told for kind, told in reader.events() if kind == "count"]
        assert counts[-1] == {"count": 30, "count_complete": True, "topics": 3000}
        for number in range(17_000):  # more than are remembered: each twice, there and back
            world.send(f"X/B.{number}", datum("v"))
            world.send(f"X/B.{number}", b"")
        world.send("X/A.0099", b"")
        await trio.sleep(10)
        assert len(reader.rows()) == 29
        assert [told["count"] for kind, told in reader.events() if kind == "count"][-1] == 29

    scene(test)


def test_streams_are_few(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One principal, and all together, have a limited number of live views. Each that ends makes room."""
    view = View(cast("Gateway", world))
    scopes = []

    def full() -> bool:
        return view.live.views.full

    async def test(nursery: trio.Nursery) -> None:
        async def read(who: str) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await Reader(world, view=view, who=who).run()

        for _ in range(STREAMS_OF_PRINCIPAL_MAX):
            assert view.live.views.denial("admin") is None
            nursery.start_soon(read, ADMIN)
            await trio.sleep(1)
        assert "close one" in (view.live.views.denial("admin") or "")
        assert view.live.views.denial("reader") is None
        assert not full()
        monkeypatch.setattr(shared, "STREAMS_MAX", STREAMS_OF_PRINCIPAL_MAX)
        assert full()
        scopes[0].cancel()
        await trio.sleep(1)
        assert view.live.views.denial("admin") is None
        assert not full()

    scene(test)


def test_however_many_look_one_looks_at_a_time(world: World) -> None:
    """In one pass of the event loop at most one batch of topics is read, for all windows together."""
    slices = Counter[int]()

    class Passes(trio.abc.Instrument):
        number = 0

        def before_io_wait(self, _timeout: float) -> None:
            self.number += 1

    passes = Passes()
    view = View(cast("Gateway", world))
    look = view.find_slice

    def find_slice(*what: Any) -> Any:
        slices[passes.number] += 1
        return look(*what)

    view.find_slice = find_slice  # type: ignore[method-assign, assignment]
    for number in range(20):
        world.send(f"X/A.{number:02}", datum("v"))
    readers = [Reader(world, view=view, rows_max=200) for _ in range(STREAMS_OF_PRINCIPAL_MAX)]

    async def test(nursery: trio.Nursery) -> None:
        trio.lowlevel.add_instrument(passes)
        for reader in readers:
            nursery.start_soon(reader.run)
        await trio.sleep(2)
        assert all(len(reader.rows()) == 20 for reader in readers)

    scene(test)
    assert slices.total() >= len(readers)
    assert max(slices.values()) == 1


def test_a_window_that_changes_is_told_however_much_changes_in_it(world: World) -> None:
    """Values that always take nearly all the bytes there are do not keep a topic that comes or goes from the reader."""
    names = [f"X/A.{number:03}{'n' * 90}" for number in range(200)]
    large = bytes([0x80, 0x10]) + b"x" * 1024
    reader = Reader(world, rows_max=200, every_s=0.25)

    async def test(nursery: trio.Nursery) -> None:
        for name in names:
            world.send(name, datum("v"))
        nursery.start_soon(reader.run)
        await trio.sleep(2.1)
        for number in range(40):
            for name in names[1:13]:
                world.send(name, large)
            if number == 8:
                world.send(names[0], b"")
            await trio.sleep(0.25)
        assert names[0] not in reader.rows()
        assert reader.rows()[names[1]]["updates"] > 38

    scene(test)
