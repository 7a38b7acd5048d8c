"""The process of a bridge in a simulation: the real relay, the real frames, and lines that lose their tail."""

import random
from collections.abc import Callable
from typing import Final

from maxam.bridge.relay import Relay
from maxam.bridge.wishes import (
    CENTRE,
    GUEST,
    Ack,
    Close,
    End,
    Log,
    Open,
    Plan,
    Send,
    Subscribe,
    Unsubscribe,
    Wish,
)
from maxam.config import Limits
from maxam.gateway.server_connection import ServerConnection
from maxam.stomp import encoder
from maxam.stomp.answers import SESSION_TAKEN_OVER
from maxam.stomp.events import VERSION_1_2, SubscribeOptions
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.simulation.bridge_site import Site
from tests.simulation.model import Violation
from tests.support.sans_io import fingerprint_of

RECONNECT_S: Final = 1.0
SOCKET_BYTES: Final = 3000  # that the network takes without being read


class Line:
    """One connection to a gateway, with what is under way in both directions."""

    def __init__(self, site: Site, principal: str, client_id: str | None, window: int, name: str) -> None:
        self.site = site
        self.starts = site.starts  # of the process at the other end
        self.woken = True
        self.there = bytearray()  # on its way to the gateway
        self.back = bytearray()  # on its way to the bridge
        self.connected = False
        self.handles: dict[bytes, int] = {}  # subscription -> handle that its messages have
        self.coming: dict[bytes, list[int]] = {}  # subscription -> handles after the next UNSUBSCRIBE
        self.asked: dict[bytes, tuple[str, int, bytes]] = {}  # receipt -> what, handle or ticket, subscription
        self.reader = Decoder(Limits(frame_body_bytes_max=2**30), SERVER_COMMANDS)
        self.peer: ServerConnection = site.machine.peer("anna", fingerprint_of(principal), name, self._wake)
        self.there += encoder.connect("MAXVAPI", (VERSION_1_2,), (0, 0), client_id, window, incarnation=True)

    def _wake(self) -> None:
        self.woken = True

    @property
    def live(self) -> bool:
        """True if the gateway's process has not ended since."""
        return self.starts == self.site.starts

    def carry_there(self, size: int) -> bool:
        """Bring bytes to the gateway."""
        peer, clock = self.peer, self.site.clock
        if not self.there or not self.live or not peer.receiving:
            return False
        size = min(size, peer.receive_bytes_max)
        data = bytes(self.there[:size])
        del self.there[:size]
        peer.receive_data(data, clock.now_s, self.site.machine.clock.at(clock.now_s))
        self.site.touch()
        return True

    def fetch(self) -> bool:
        """Do what the gateway's writer does in one pass."""
        peer, now_s = self.peer, self.site.clock.now_s
        if not self.live or len(self.back) >= SOCKET_BYTES:
            return False
        due_s = peer.next_due_s
        if due_s is not None and due_s <= now_s:
            peer.tick(now_s)
            self.woken = True
        if not self.woken:
            return False
        parts = peer.data_to_send(now_s)
        self.back += b"".join(parts)
        self.woken = bool(parts)
        return bool(parts)

    def end(self) -> None:
        """Have the gateway notice that the connection is gone."""
        if self.live:
            self.peer.closed(self.site.clock.now_s, "lost")
            self.site.touch()


class Process:
    """A bridge that runs until it ends by itself or is killed.

    Attributes:
        relay: The core.
        ended: Why it has ended by itself; empty before.
        sent: SENDs of values and deletes to either side.
        inventories: SUBSCRIBEs to routes with all their values.
        told: Names of the events that it has logged.
    """

    def __init__(
        self, plan: Plan, venue: Site, centre: Site, rng: random.Random, wall_s: Callable[[], float], number: int
    ) -> None:
        self.relay = Relay(plan)
        self.plan = plan
        self.venue = venue
        self.centre = centre
        self.ended = ""
        self.sent = 0
        self.inventories = 0
        self.told: set[str] = set()
        self.lines: dict[int, Line] = {}
        self.orphans: list[Line] = []  # the gateway has not noticed that these are gone
        self.wan_up = self.local_up = True
        self.stalled = False
        self._rng = rng
        self._number = number
        self._opened = 0
        self._lanes: dict[int, float] = {}  # lanes to keep connected, and when to connect them next
        self._began_s, self._wall_s = venue.clock.now_s, wall_s()  # its clock never runs backwards
        self._ticked_s = 0.0
        self.relay.start(self._now_s)
        self._obey()

    @property
    def _now_s(self) -> float:
        return self._wall_s + self.venue.clock.now_s - self._began_s

    def _up(self, lane: int) -> bool:
        return self.wan_up if lane in (CENTRE, GUEST) else self.local_up

    # Lines.

    def connect(self) -> None:
        """Open the lanes that are due."""
        for lane, due_s in list(self._lanes.items()):
            if lane not in self.lines and due_s <= self.venue.clock.now_s and self._up(lane):
                self._opened += 1
                name = f"made-{self._number}-{self._opened}"
                if lane == GUEST:
                    line = Line(self.centre, f"bridge-{self.plan.venue}", None, self.plan.window, name)
                elif lane == CENTRE:
                    identity = f"bridge-{self.plan.venue}"
                    line = Line(self.centre, identity, identity, self.plan.window, name)
                else:
                    line = Line(self.venue, "bridge", f"bridge-{lane}", self.plan.window, name)
                self.lines[lane] = line

    def cut(self, lane: int, *, noticed: bool) -> None:
        """Lose a connection: a beginning of what is under way may arrive, its tail is lost. The gateway may notice later."""
        line = self.lines.pop(lane)
        if line.there and line.live:
            size = self._rng.randrange(len(line.there) + 1)
            while size > 0 and line.there and line.peer.receiving:
                before = len(line.there)
                line.carry_there(size)
                size -= before - len(line.there)
        line.there.clear()
        if noticed:
            line.end()
        else:
            self.orphans.append(line)
        if lane in self._lanes:
            self._lanes[lane] = max(self._lanes[lane], self.venue.clock.now_s + RECONNECT_S)
        if line.connected:
            self.relay.lost(self._now_s, lane)
            self._obey()

    def kill(self) -> None:
        """End the process. The gateways notice now or later."""
        for line in self.lines.values():
            line.there = line.there[: self._rng.randrange(len(line.there) + 1)]
            self.orphans.append(line)
        self.lines.clear()
        self.ended = self.ended or "killed"

    def step(self, size: int) -> bool:
        """Carry some bytes on all lines, and act on what has come; return True if anything moved."""
        moved = False
        if self.ended:
            return False
        for lane, line in list(self.lines.items()):
            if self.lines.get(lane) is not line:
                continue
            if not line.live or not self._up(lane) or line.peer.finished:
                moved = True
                self._lose(lane, line)
                continue
            if self.stalled and line.site is self.centre:
                continue
            moved = line.carry_there(size) or moved
            moved = line.fetch() or moved
            if line.back:
                moved = True
                self._receive(lane, line, size)
        self._tick()
        return moved

    def _tick(self) -> None:
        """Open lanes, and let the relay do what is due."""
        if self.ended:
            return
        self.connect()
        if self.venue.clock.now_s >= self._ticked_s + 1:
            self._ticked_s = self.venue.clock.now_s
            self.relay.tick(self._now_s)
            self._obey()

    def _lose(self, lane: int, line: Line) -> None:
        """Have a line end that is down, or whose gateway has ended it: what came before may be read."""
        if line.live or self._rng.random() < 0.5:
            self._receive(lane, line, len(line.back))
        if self.lines.get(lane) is line:
            self.cut(lane, noticed=True)

    def notice_orphans(self) -> None:
        """Have the gateways notice connections that are gone."""
        for line in self.orphans:
            while line.there and line.carry_there(len(line.there)):
                pass
            line.end()
        self.orphans.clear()

    def _receive(self, lane: int, line: Line, size: int) -> None:
        data = bytes(line.back[:size])
        del line.back[:size]
        for frame in line.reader.feed(data):
            if self.lines.get(lane) is not line or self.ended:
                return
            self._heed(lane, line, frame)
            self._obey()

    def _heed(self, lane: int, line: Line, frame: Frame) -> None:
        now_s, relay, headers = self._now_s, self.relay, frame.headers
        if frame.command == b"CONNECTED":
            line.connected = True
            line.reader.expect(SERVER_COMMANDS, VERSION_1_2)
            relay.connected(now_s, lane, headers[b"incarnation"].decode())
        elif frame.command == b"ERROR":
            if headers[b"message"].decode() == SESSION_TAKEN_OVER:
                self.ended = "taken over"
                self.kill()
            else:
                self.cut(lane, noticed=True)
        elif frame.command == b"RECEIPT":
            self._answer(line, frame)
        else:
            handle = line.handles.get(headers[b"subscription"])
            if handle is None:
                return
            kind = headers.get(b"kind")
            if headers[b"destination"] == b"$marker":
                if b"position" in headers:
                    relay.position(now_s, handle, int(headers[b"position"].split(b".")[1]))
                if kind == b"complete":
                    relay.complete(now_s, handle)
            elif headers[b"message-id"] == b"0":
                if kind == b"left":
                    relay.left(now_s, handle)
            else:
                texts = {name.decode(): value.decode() for name, value in headers.items()}
                revision = int(headers[b"message-id"])
                relay.message(now_s, handle, revision, texts["destination"], frame.body, texts)

    def _answer(self, line: Line, frame: Frame) -> None:
        now_s, relay, headers = self._now_s, self.relay, frame.headers
        what, number, id_ = line.asked.pop(headers[b"receipt-id"])
        result = headers.get(b"result", b"").decode()
        if what == "subscribe":
            relay.subscribed(now_s, number, result == "resumed", b"filtered" in headers)
        elif what == "unsubscribe":
            coming = line.coming.get(id_)
            if coming:
                line.handles[id_] = coming.pop(0)
            else:
                line.handles.pop(id_, None)
            relay.unsubscribed(now_s, number, result in {"paused", "removed"})
        else:
            reason = headers.get(b"reason", b"").decode()
            relay.receipt(now_s, number, headers[b"disposition"].decode(), result, reason)

    # Wishes.

    def _obey(self) -> None:
        while not self.ended and (wishes := self.relay.take_wishes()):
            for wish in wishes:
                self._do(wish)

    def _do(self, wish: Wish) -> None:
        if isinstance(wish, Open):
            self._lanes.setdefault(wish.lane, self.venue.clock.now_s)
        elif isinstance(wish, Close):
            if wish.wait_s is None:
                self._lanes.pop(wish.lane, None)
            else:
                self._lanes[wish.lane] = self.venue.clock.now_s + wish.wait_s
            if wish.lane in self.lines:
                self.cut(wish.lane, noticed=self._rng.random() < 0.8)
        elif isinstance(wish, Log):
            self.told.add(wish.event)
        elif isinstance(wish, End):
            self.ended = "refused"
            self.kill()
        elif isinstance(wish, Ack):
            for line in self.lines.values():
                for id_, handle in line.handles.items():
                    if handle == wish.handle:
                        line.there += encoder.ack(VERSION_1_2, id_, b"%d" % wish.revision)
        elif wish.lane in self.lines and self.lines[wish.lane].connected:
            self._write(self.lines[wish.lane], wish)

    def _check(self, line: Line, wish: Send) -> None:
        """Count a SEND of a value or delete, and check its form.

        Raises:
            Violation: It has neither a source nor a condition, or is beyond the window.
        """
        if wish.topic.startswith("B/"):
            return
        self.sent += 1
        if wish.source is None and wish.if_revision is None:
            raise Violation(f"the SEND to {wish.topic} has no source and no condition")
        if sum(what == "value" for what, _, _ in line.asked.values()) >= self.plan.window:
            raise Violation(f"the SEND to {wish.topic} is beyond the window {self.plan.window}")

    def _write(self, line: Line, wish: Subscribe | Unsubscribe | Send) -> None:
        if isinstance(wish, Send):
            self._check(line, wish)
            headers = [(name.encode(), value.encode()) for name, value in wish.headers.items()]
            if wish.source is not None:
                headers += [(b"source", wish.source[0].encode()), (b"source-revision", b"%d" % wish.source[1])]
            if wish.if_revision is not None:
                headers.append((b"if-revision", b"%d" % wish.if_revision))
            receipt = b"t%d" % wish.ticket
            line.asked[receipt] = ("link" if wish.topic.startswith("B/") else "value", wish.ticket, b"")
            line.there += encoder.send(VERSION_1_2, wish.topic.encode(), wish.body, tuple(headers), receipt)
            return
        id_, receipt = wish.id.encode(), b"h%d" % wish.handle
        if isinstance(wish, Unsubscribe):
            line.asked[receipt] = ("unsubscribe", wish.handle, id_)
            line.coming.setdefault(id_, [])
            line.there += encoder.unsubscribe(VERSION_1_2, id_, wish.for_good, receipt)
            return
        line.asked[receipt] = ("subscribe", wish.handle, id_)
        leaving = any(what == "unsubscribe" and which == id_ for what, _, which in line.asked.values())
        if leaving:
            line.coming[id_].append(wish.handle)
        else:
            line.handles[id_] = wish.handle
        options = SubscribeOptions(None, True, wish.durable, wish.min_interval_ms)
        self.inventories += wish.durable and wish.eager
        mode = b"client" if wish.durable else b"auto"
        line.there += encoder.subscribe(
            VERSION_1_2, id_, wish.glob.encode(), mode, wish.durable, wish.eager, receipt, options
        )
