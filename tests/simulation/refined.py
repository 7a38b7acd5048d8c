"""Clients with refined subscriptions beside one broker, and what must hold for each frame that they read.

A `Reader` is a client program that keeps what it has received and the newest position. It may be cut after any frame, and returns
with any state that it has ever kept. `Field` is the broker, its journal and the truth about all topics. Neither knows how the broker works:
the rules are those of docs/protocol.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from unittest.mock import patch

from maxam.avro.registry import load_registry
from maxam.broker import subscribing
from maxam.broker.broker import Broker
from maxam.broker.outbox import VALUES_BYTES_MAX
from maxam.broker.policy import Policy
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Change
from maxam.stomp.frames import Frame
from tests.simulation import selected
from tests.simulation.model import Violation
from tests.support.sans_io import UNCHECKED, Client, World, forget_target, policy

TOPICS = ("X/a", "X/b", "X/c")
GLOB = "X/*"
INCARNATION = "0123456789abcdef"
PADDING = b"." * VALUES_BYTES_MAX  # one drain hands out one value
LIMITS = Limits(takeovers_per_minute_max=1_000_000)
REGISTRY = load_registry(UNCHECKED)
_SKIPS_MAX = 100  # drains in sequence that hand out nothing and ask to be called again at once
MARKER_S = 5.0  # a position that has moved is reported within this time

Topics = frozenset[str]
Row = tuple[str, int | None, bool, str]  # state, level, without a level at all, and colour of a value with fields
State = dict[str, tuple[int, bytes]]  # topic -> revision and body, which is empty if it was deleted


@dataclass(frozen=True)
class Asks:
    """The headers of a SUBSCRIBE.

    Attributes:
        json: Ask for JSON.
        fields: With `json`: the fields to get. Empty for all.
    """

    ack: str = "auto"
    durable: bool = False
    eager: bool = True
    markers: bool = True
    metadata: bool = False
    changes_only: bool = False
    interval_ms: int = 0
    selector: str = ""
    json: bool = False
    fields: str = ""

    def __str__(self) -> str:
        flags = [
            name for name in ("durable", "eager", "markers", "metadata", "changes_only", "json") if getattr(self, name)
        ]
        every = [f"every{self.interval_ms}"] if self.interval_ms else []
        return "-".join([self.ack, *flags, *every, *([self.selector] if self.selector else []), self.fields])


@dataclass(frozen=True)
class Kept:
    """The state that a client keeps.

    Attributes:
        state: The newest change of each topic that it has received.
        position: The newest position, empty for none.
        base: Changes up to this revision were not asked for.
        rights: Topics that it might receive when the position came.
    """

    state: State = field(default_factory=dict)
    position: str = ""
    base: int = 0
    rights: Topics = frozenset()


@cache
def policy_of(rights: Topics) -> Policy:
    """Make a policy in which `anna` may receive these topics and `bert` may send all."""
    return policy(anna={"receive": sorted(rights)}, bert={"send": ["X/**"]})


class Field:
    """One broker without I/O, its journal, and the truth about its topics. With `typed` its values have fields."""

    def __init__(self, rights: Topics = frozenset(TOPICS), padding: bytes = PADDING, *, typed: bool = False) -> None:
        self.rights = rights
        self.padding = padding
        self.registry = selected.registry() if typed else REGISTRY
        self.typed = typed
        self.world = World(Broker(LIMITS, policy_of(rights), self.registry), World.make().settings)
        self.incarnation = self.world.broker.incarnation = INCARNATION
        self.restores = 0
        self.snapshot = (0, 0, 0)  # the newest: its records, its revision, and the floor
        self.fields: dict[int, selected.Fields] = {}  # of values with fields, by revision
        self.truth: dict[str, list[tuple[int, bytes, int]]] = {}  # revision, body and time of each change, in order
        self.void: dict[
            int, int
        ] = {}  # revision and time of deletes of topics that had no value: a restart may remember them
        self.noted = 0  # records of the journal
        self.count = 0
        self.readers: list[Reader] = []
        self.digests: dict[str, Topics] = {}  # of the rights that were in force
        self._note_rights()
        self._publish()

    @property
    def head(self) -> int:
        """The revision of the newest committed change."""
        return self.world.broker.committed_revision

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a commit or a scan."""
        return not (self.world.broker.pending or self.world.broker.scanning)

    def send(self, topic: str, *, equal: bool = False, delete: bool = False, row: Row = ("ON", 1, False, "")) -> None:
        """Send a value, the same body as before, or a delete. An equal value with fields has the body of the one before the newest."""
        self.count += not equal
        state, level, old, colour = row
        value = b"%d%b" % (self.count, self.padding)
        if self.typed:
            value = selected.encode(self.count, state, level, self.padding, old=old)
        body = b"" if delete else value
        if equal and not delete:
            before = [b for _, b, _ in self.truth.get(topic, []) if b]
            body = before[-2:][0] if before and self.typed else (before or [body])[-1]
        self.publisher.send(topic, body, **({"colour": colour} if colour else {}))

    def commit(self) -> None:
        """Commit all that was appended."""
        self.world.commit()
        self._note()

    def settle(self) -> None:
        """Commit and scan until nothing is left to do."""
        self.world.settle()
        self._note()

    def grant(self, rights: Topics) -> None:
        """Put another policy in force."""
        self.rights = rights
        self.world.broker.replace_policy(policy_of(rights))
        self._note_rights()
        for reader in self.readers:
            reader.regranted()

    def restart(self, *, snapshot: bool = False) -> None:
        """Crash: lose all connections and what was not committed, and start again from the journal or from a snapshot of it."""
        for reader in self.readers:
            reader.cut()
            if reader.shaken:  # the journal does not have what a policy granted
                reader.begin_again()
        if snapshot:
            self.world = self._recovered(self.head)
            broker = self.world.broker
            self.world.journal[:] = list(broker.snapshot())
            self.noted = len(self.world.journal)
            self.snapshot = (self.noted, self.head, broker.snapshot_floor())
        self.world = self._recovered(self.head)
        self._publish()

    def restore(self, lost: int) -> None:
        """Start with a backup that lacks the newest records. Positions of the journal before cannot be used."""
        for reader in self.readers:
            reader.cut()
            if reader.asks.durable:
                reader.begin_again()  # the backup may not have its subscription
        journal = self.world.journal
        del journal[max(self.snapshot[0], len(journal) - lost) :]
        self.noted = len(journal)
        head = max([self.snapshot[1], *(record.revision for record in journal if type(record) is Change)])
        self.truth = {topic: [one for one in known if one[0] <= head] for topic, known in self.truth.items()}
        self.void = {revision: time_us for revision, time_us in self.void.items() if revision <= head}
        self.restores += 1
        self.incarnation = f"{self.restores:016x}"
        self.world = self._recovered(head)
        self._publish()

    def newest(self, topic: str, until: int | None = None) -> tuple[int, bytes]:
        """Return revision and body of a topic's newest change, up to a revision; 0 and nothing if there is none."""
        for revision, body, _ in reversed(self.truth.get(topic, [])):
            if until is None or revision <= until:
                return revision, body
        return 0, b""

    def _note_rights(self) -> None:
        digest = self.world.broker.policy.rights("anna").receive_digest
        if self.digests.setdefault(digest, self.rights) != self.rights:
            raise Violation(f"{sorted(self.rights)} and {sorted(self.digests[digest])} have one digest")

    def _recovered(self, head: int) -> World:
        broker = Broker(LIMITS, policy_of(self.rights), self.registry)
        for record in self.world.journal:
            broker.replay(forget_target(record))
        broker.recovered(self.world.now_s, head, 0, self.snapshot[2])
        broker.incarnation = self.incarnation
        world = World(broker, self.world.settings, self.world.now_s, self.world.wall_us, self.world.sessions)
        world.journal = self.world.journal
        return world

    def _publish(self) -> None:
        self.publisher = self.world.client("bert", client_id="publisher")

    def _note(self) -> None:
        journal = self.world.journal
        for record in journal[self.noted :]:
            if type(record) is Change:
                known = self.truth.setdefault(record.destination.decode(), [])
                self.fields.pop(record.revision, None)  # of a journal before
                if self.typed and record.body:
                    colour = dict(record.headers).get(b"colour", b"").decode()
                    self.fields[record.revision] = selected.decode(record.body, colour)
                if record.body or (known and known[-1][1]):  # the delete of a deleted topic is no change of it
                    known.append((record.revision, record.body, record.accepted_at_us))
                else:
                    self.void[record.revision] = record.accepted_at_us
        self.noted = len(journal)


class Reader:
    """A client program with one subscription, and the rules for what it reads.

    Attributes:
        kept: Its states, oldest first: one for each frame that it has processed.
        client: Its connection, or None.
        to_ack: Messages that it has read and not acknowledged, oldest first.
        shaken: Its rights have changed while it had a durable subscription.
        doubtful: Topics that were withdrawn from it, which a client without markers cannot know.
    """

    def __init__(self, place: Field, name: str, asks: Asks, window: str = "50") -> None:
        self.place = place
        self.name = name
        self.asks = asks
        self.window = window
        self.kept = [Kept()]
        self.client: Client | None = None
        self.to_ack: list[Frame] = []
        self.stored = False  # the broker has its durable subscription, as far as it knows
        self.shaken = False
        self.doubtful: set[str] = set()
        self.completes = self.subscribes = 0
        place.readers.append(self)

    # Its steps.

    def come(self) -> None:
        """Connect, or take over its own session, and subscribe."""
        self.cut()
        self.client = self.place.world.client(client_id=self.name, window=self.window)
        self.awake = self.client.woken - 1
        self.subscribe()

    def take_over(self) -> None:
        """Connect and subscribe while the connection before is still there."""
        before, self.client = self.client, None
        assert before is not None
        if self.asks.durable and self.asks.markers:
            self._drop_withdrawn()
        self.to_ack.clear()
        self.client = self.place.world.client(client_id=self.name, window=self.window)
        self.awake = self.client.woken - 1
        before.lose()
        self.subscribe()

    def subscribe(self) -> None:
        """Send the SUBSCRIBE; with the newest position, if it has one."""
        asks, place = self.asks, self.place
        assert self.client is not None
        self.since = self.kept[-1].position
        lines = [
            "id:s",
            f"destination:{GLOB}",
            f"ack:{asks.ack}",
            f"receipt:subscribed-{self.subscribes + 1}",
            *(f"{name}:true" for name in ("durable", "eager", "markers", "metadata") if getattr(asks, name)),
            *(["changes-only:true"] if asks.changes_only else []),
            *([f"min-interval:{asks.interval_ms}"] if asks.interval_ms else []),
            *([f"since:{self.since}"] if self.since else []),
            *([f"selector:{asks.selector}"] if asks.selector else []),
            *(["accept-format:json"] if asks.json else []),
            *([f"fields:{asks.fields}"] if asks.fields else []),
        ]
        kept = self.kept[-1]
        self.subscribes += 1
        # Usable, as the position is of the rights in force and no delete after it was forgotten.
        self.usable = bool(self.since) and kept.rights == place.rights and not self._unknown(self.since)
        self.read_at = place.head  # the newest committed change when the broker reads it
        self.applied_at = place.world.broker.head_revision  # the same when it takes effect
        self.resumed: bool | None = None  # until the RECEIPT comes
        self.came: dict[str, tuple[int, bytes, float]] = {}  # on this SUBSCRIBE: with the time
        self.value_s: dict[str, float] = {}  # when the last value was handed out
        self.held: dict[str, bool] = {}  # whether it has a value of a topic, as far as this SUBSCRIBE has shown that
        self.sent = self.completes = 0
        self.reported = -1  # the newest position
        self.skips = 0  # drains without frames, since the last one with frames
        # The rights have changed, or a scan for what an earlier policy granted may still go on.
        self.moved = self.shaken and not place.idle
        self.client.write(("SUBSCRIBE\n" + "".join(f"{line}\n" for line in lines) + "\n\0").encode())
        if not asks.durable and not asks.markers:
            self.kept = [Kept()]  # it cannot resume
        elif asks.durable and not asks.eager and not self.stored and not self.usable:
            self.kept.append(Kept(kept.state, kept.position, self.applied_at, kept.rights))

    def pause(self) -> None:
        """UNSUBSCRIBE and SUBSCRIBE again on the same connection."""
        assert self.client is not None
        self.client.unsubscribe("s")
        self.to_ack.clear()
        if self.asks.markers:
            self._drop_withdrawn()
        self.subscribe()

    def move(self) -> None:
        """Come back as another client, with the state if it can resume from its position."""
        kept = self.kept[-1]
        self.begin_again()
        if kept.position and kept.rights == self.place.rights and not self._unknown(kept.position):
            self.kept = [kept]
        self.come()

    def _unknown(self, position: str) -> bool:
        incarnation, revision, _ = position.split(".")
        return incarnation != self.place.incarnation or int(revision) < self.place.world.broker.store.floor

    def read(self) -> bool:
        """Take what one drain hands out, if the broker has woken the writer or asked to be called by now; return whether it was anything."""
        client, world = self.client, self.place.world
        if client is None:
            return False
        due_s = client.peer.next_due_s
        if due_s is not None and due_s <= world.now_s:
            client.peer.tick(world.now_s)
        elif client.woken == self.awake:
            return False
        woken = client.woken
        frames = client.read_some()
        for frame in frames:
            self.take(frame)
        self.awake = woken - 1 if frames else woken
        due_s = client.peer.next_due_s
        if not frames and due_s is not None and due_s <= world.now_s and self.skips < _SKIPS_MAX:
            self.skips += 1
            return True  # it has skipped values, and goes on
        self.skips = 0
        if not frames:
            self._check_rest()
        return bool(frames)

    def ack(self, index: int = -1) -> None:
        """Acknowledge a message that was read, and in mode client those before it."""
        assert self.client is not None
        message = self.to_ack[index]
        if self.asks.ack == "client":
            del self.to_ack[: self.to_ack.index(message) + 1]
        else:
            self.to_ack.remove(message)
        self.client.ack(message, receipt=f"acked-{self.subscribes}")

    def cut(self, back: int = 0) -> None:
        """Lose the connection, having processed all frames but the last few."""
        if self.client is not None:
            self.client.lose()
            self.client = None
            if self.asks.durable and self.asks.markers:
                self._drop_withdrawn()
        self.to_ack.clear()
        if back and not self.asks.durable:
            del self.kept[max(1, len(self.kept) - back) :]
        del self.kept[:-1000]

    def regranted(self) -> None:
        """Record that the policy has changed."""
        self.moved = self.client is not None
        self.shaken = self.asks.durable
        if not self.asks.markers:
            self.doubtful |= frozenset(TOPICS) - self.place.rights
        elif self.asks.durable and not self.moved:
            self._drop_withdrawn()

    def begin_again(self) -> None:
        """Become another client, without any state."""
        self.cut()
        self.name += "'"
        self.kept = [Kept()]
        self.stored = self.shaken = False
        self.doubtful.clear()

    def _drop_withdrawn(self) -> None:
        """Drop the topics that may not be received now. A durable subscription that is away is not sent notices of that."""
        kept, rights = self.kept[-1], self.place.rights
        if not rights.issuperset(kept.state):
            state = {topic: pair for topic, pair in kept.state.items() if topic in rights}
            self.kept.append(Kept(state, "", kept.base, kept.rights))

    # The rules.

    def take(self, frame: Frame) -> None:
        """Check one frame, and process it as a client does."""
        if frame.command == b"RECEIPT":
            self._take_receipt(frame)
        elif frame.command == b"MESSAGE" and frame.headers[b"destination"] == b"$marker":
            self._take_marker(frame)
        elif frame.command == b"MESSAGE" and frame.headers.get(b"reason") == b"rights":
            self._take_withdrawn(frame)
        elif frame.command == b"MESSAGE":
            self._take_message(frame)
        else:
            raise Violation(f"{self.name} got {frame.command!r} {frame.headers}")

    def _take_receipt(self, frame: Frame) -> None:
        if frame.headers[b"receipt-id"].startswith(b"subscribed"):
            if frame.headers[b"receipt-id"] != b"subscribed-%d" % self.subscribes:
                self.stored = self.asks.durable
                return
            result = frame.headers.get(b"result", b"")
            self.resumed = result == b"resumed"
            if self.stored and self.asks.durable and not self.resumed:
                raise Violation(f"{self.name} had a durable subscription, and the RECEIPT says {result!r}")
            unavailable = bool(self.since) and not self.usable and not self.resumed
            if (result == b"since-unavailable") is not unavailable:
                raise Violation(
                    f"{self.name} gave {self.since}, usable: {self.usable}, and the RECEIPT says {result!r}"
                )
            self.stored = self.asks.durable
            return
        position = frame.headers.get(b"position", b"").decode()
        if position and not self.asks.markers:
            raise Violation(f"{self.name} did not ask for the position of an ACK")
        if position and frame.headers[b"receipt-id"] == b"acked-%d" % self.subscribes:
            self._take_position(position)

    def _take_marker(self, frame: Frame) -> None:
        headers = frame.headers
        if not self.asks.markers or headers[b"message-id"] != b"0" or b"ack" in headers or frame.body:
            raise Violation(f"{self.name} got the marker {headers}")
        complete = headers[b"kind"] == b"complete"
        if complete:
            self.completes += 1
            if self.completes > 1:
                raise Violation(f"{self.name} got a second `complete`")
            if int(headers[b"count"]) != self.sent:
                raise Violation(f"{self.name} got {headers[b'count']!r} for {self.sent} MESSAGEs")
            self._complete(headers.get(b"result") == b"since-unavailable")
        elif headers[b"kind"] != b"position":
            raise Violation(f"{self.name} got the marker {headers}")
        if b"position" in headers:
            self._take_position(headers[b"position"].decode())
        elif not complete:
            raise Violation(f"{self.name} got a position without one")

    def _take_withdrawn(self, frame: Frame) -> None:
        """Drop a topic that the client may no longer receive."""
        headers, kept = frame.headers, self.kept[-1]
        topic = headers[b"destination"].decode()
        marks = (headers[b"kind"], headers[b"message-id"], frame.body, b"ack" in headers)
        if not self.asks.markers or marks != (b"left", b"0", b"", False):
            raise Violation(f"{self.name} got the notice {headers}")
        if topic in self.place.rights:
            raise Violation(f"{self.name} got a notice that it may not receive {topic}")
        if not kept.position.endswith(".0"):
            raise Violation(f"{self.name} dropped {topic}, and could resume from {kept.position}")
        self.held[topic] = False
        state = {other: pair for other, pair in kept.state.items() if other != topic}
        self.kept.append(Kept(state, kept.position, kept.base, kept.rights))

    def _complete(self, unavailable: bool) -> None:
        """Act on the end of the initial state, and check that all of it has come."""
        kept = self.kept[-1]
        fresh = (not self.since and not self.resumed) or unavailable
        base = kept.base
        if fresh:
            kept = Kept({topic: pair for topic, pair in kept.state.items() if topic in self.came})
            base = 0 if self.asks.eager else self.applied_at
        self.kept.append(Kept(kept.state, kept.position if not fresh else "", base, kept.rights))
        if not self.moved:
            place = self.place
            unchanged = frozenset(topic for topic in place.rights if place.newest(topic)[0] <= self.read_at)
            later = self.asks.durable or self.asks.selector  # what has changed since may come later, or not at all
            self._check_covered(self.applied_at, "complete", unchanged if later else place.rights)

    def _take_position(self, text: str) -> None:
        """Check that it is safe to resume from a position with what the client has now."""
        place = self.place
        incarnation, number, digest = text.split(".")
        if digest == "0":  # it cannot be used: notices follow, and then another one
            self.kept.append(replace(self.kept[-1], position=text, rights=frozenset("none")))
            return
        revision = int(number)
        if incarnation != place.incarnation or revision > place.head:
            raise Violation(f"{self.name} got the position {text} at {place.head}")
        if revision < self.reported and not self.moved:  # what is granted again is missing again
            raise Violation(f"{self.name} got the position {revision} after {self.reported}")
        if not self.completes and text != self.since:
            raise Violation(f"{self.name} got the position {text} before `complete`")
        self.reported = revision
        kept = self.kept[-1]
        before = kept.position if self.moved else ""  # a position that is repeated asserts nothing new
        rights = place.digests[digest]
        self.kept.append(Kept(kept.state, text, kept.base, rights))
        for message in self.to_ack:
            due = int(message.headers[b"message-id"]) <= revision and text not in {self.since, before}
            if due and message.headers[b"destination"].decode() in rights:
                raise Violation(f"{self.name} got the position {revision} and has not acknowledged {message.headers}")
        if text != self.since:
            # A topic that has changed after the position comes in any case.
            unchanged = frozenset(topic for topic in rights if place.newest(topic)[0] <= revision)
            self._check_covered(revision, f"position {revision}", unchanged)

    def _check_covered(self, revision: int, what: str, rights: Topics) -> None:
        kept = self.kept[-1]
        for topic in rights:
            due, body = self._wanted(topic, revision)
            has, value = kept.state.get(topic, (0, b""))
            if has < due and due > kept.base and not (value == body and (self.asks.changes_only or not body)):
                raise Violation(f"{what} came to {self.name}, which has {has} of {topic} and not {due}")

    def _wanted(self, topic: str, until: int | None = None) -> tuple[int, bytes]:
        """Return the newest change of a topic as this client is to have it: without a body if the selector excludes it."""
        revision, body = self.place.newest(topic, until)
        return revision, body if self._selects(revision) else b""

    def _selects(self, revision: int) -> bool:
        return not self.asks.selector or selected.satisfies(self.asks.selector, self.place.fields.get(revision))

    def _check_selected(self, frame: Frame, topic: str, revision: int, what: str) -> None:
        """Check that a value satisfies the selector, and that the end of a value comes once, to a client that may have it."""
        if frame.body:
            if not self._selects(revision):
                raise Violation(f"{what} does not satisfy {self.asks.selector}")
        elif self.asks.selector:
            held = self.held.get(topic, self.resumed is not False or self.usable)
            if not held and (self.resumed or self.usable):  # the broker may have forgotten that it was deleted
                since = self.came.get(topic, (0,))[0]
                held = any(since <= other <= revision and not body for other, body, _ in self.place.truth[topic])
            if not held:
                raise Violation(f"{what} ends a value that it does not have")
        self.held[topic] = bool(frame.body)

    def _take_message(self, frame: Frame) -> None:
        place = self.place
        topic, revision = frame.headers[b"destination"].decode(), int(frame.headers[b"message-id"])
        what = f"{revision} of {topic} on {self.name}"
        if self.asks.json:
            frame = self._as_sent(frame, topic, revision, what)
        found = [
            time_us for known, body, time_us in place.truth.get(topic, []) if (known, body) == (revision, frame.body)
        ]
        left = False
        if not frame.body and not self._selects(revision):
            other = [time_us for known, body, time_us in place.truth.get(topic, []) if known == revision and body]
            left = bool(other)
            found += other
        if revision in place.void and not frame.body:
            found = [place.void[revision]]
        if not found:
            raise Violation(f"{what} is not what was accepted")
        if topic not in place.rights:
            raise Violation(f"{what} came without the right")
        before = self.came.get(topic)
        if before is not None and revision <= before[0] and not self.moved:
            raise Violation(f"{what} came after {before[0]}")
        if any(message.headers[b"destination"] == frame.headers[b"destination"] for message in self.to_ack):
            raise Violation(f"{what} came while one of its topic is un-acked")
        if before is not None and self.asks.changes_only and frame.body and before[1] == frame.body and not self.moved:
            raise Violation(f"{what} has the body of {before[0]}")
        self._check_selected(frame, topic, revision, what)
        now_s = place.world.now_s
        if frame.body:
            if now_s < self.value_s.get(topic, 0.0) + self.asks.interval_ms / 1000 - 1e-9:
                raise Violation(f"{what} came {now_s - self.value_s[topic]} s after the value before")
            self.value_s[topic] = now_s
        self._check_metadata(frame, topic, revision, found[0], "selector" if left else "deleted", what)
        self.sent += 1
        self.doubtful.discard(topic)
        self.came[topic] = (revision, frame.body, now_s)
        if self.asks.ack != "auto":
            self.to_ack.append(frame)
        kept = self.kept[-1]
        self.kept.append(Kept(kept.state | {topic: (revision, frame.body)}, kept.position, kept.base, kept.rights))

    def _as_sent(self, frame: Frame, topic: str, revision: int, what: str) -> Frame:
        """Check that a value is the JSON of what was accepted, and return the MESSAGE with that body."""
        headers = frame.headers
        if not frame.body:
            if b"content-type" in headers:
                raise Violation(f"{what} has no value, but the headers {headers}")
            return frame
        about = headers.get(b"content-type"), headers.get(b"schema", b"").split(b" ")[0]
        if about != (b"application/json", b"t.Reading_v1") or b"value-state" in headers:
            raise Violation(f"{what} has the headers {headers}")
        for known, body, _ in self.place.truth.get(topic, []):
            if known == revision and body and selected.is_json_of(frame.body, body, self.asks.fields):
                return Frame(frame.command, headers, body)
        raise Violation(f"{what} is {frame.body!r}, which is not the JSON of what was accepted")

    def _check_metadata(
        self, frame: Frame, topic: str, revision: int, accepted_at_us: int, reason: str, what: str
    ) -> None:
        headers = frame.headers
        left = not frame.body and reason == "selector"
        if not self.asks.metadata:
            if b"conflated" in headers or (b"kind" in headers) is not (left and self.asks.markers):
                raise Violation(f"{what} has metadata that it did not ask for, or lacks its kind")
            return
        expected = {
            b"kind": b"value" if frame.body else b"left" if left else b"delete",
            b"timestamp": b"%d" % (accepted_at_us // 1000),
            b"publisher": b"bert",
        } | ({} if frame.body else {b"reason": reason.encode()})
        if {name: headers.get(name) for name in expected} != expected or (frame.body and b"reason" in headers):
            raise Violation(f"{what} has the metadata {headers}, not {expected}")
        before = self.came.get(topic)
        revisions = [other for other, _, _ in self.place.truth.get(topic, []) if other < revision]
        if before is not None:
            least = most = sum(other > before[0] for other in revisions)
        else:
            least = sum(other > self.applied_at for other in revisions)
            most = sum(other > self.read_at for other in revisions) + 1  # it may have been owed an older one
        if self.moved:
            least, most = 0, len(revisions) + 1
        if self.asks.selector:
            least = 0  # the protocol leaves open whether it counts what the selector excludes
        if not least <= int(headers[b"conflated"]) <= most:
            raise Violation(f"{what} has conflated:{headers[b'conflated'].decode()}, not {least} to {most}")

    def _check_rest(self) -> None:
        """Check that nothing is held back without a reason, when the broker has nothing for the client now."""
        place, world = self.place, self.place.world
        if not place.idle or self.to_ack or self.resumed is None:
            return
        if self.completes != self.asks.markers:
            raise Violation(f"{self.name} has {self.completes} `complete`")
        kept = self.kept[-1]
        waits = False
        due_s = self.client.peer.next_due_s if self.client is not None else None
        for topic in place.rights:
            revision, body = self._wanted(topic)
            has, value = kept.state.get(topic, (0, b""))
            if has >= revision or revision <= kept.base or (value == body and (self.asks.changes_only or not body)):
                continue
            if not self.asks.markers and (revision <= self.applied_at or topic in self.doubtful):
                continue  # other tests cover what such a subscription is owed at first
            end_s = self.value_s.get(topic, 0.0) + self.asks.interval_ms / 1000
            urgent = (
                not body and not self.moved
            )  # what changes without the right is found by a scan, which does not hurry
            if urgent or end_s <= world.now_s:
                raise Violation(f"{revision} of {topic} has not come to {self.name}, but {has}")
            if due_s is None or due_s > end_s + 1e-9:
                raise Violation(f"{revision} of {topic} is due at {end_s} on {self.name}, which wakes at {due_s}")
            waits = True
        lags = self.asks.markers and not waits and self.reported < place.head
        if lags and (due_s is None or due_s > world.now_s + MARKER_S):
            raise Violation(f"{self.name} has {self.reported}, not the position {place.head}, and wakes at {due_s}")


def bring_up_to_date(place: Field) -> None:
    """Let commits, network and clients be at their best until nothing moves, and check that nothing is missing.

    Raises:
        Violation: A client differs from the broker.
    """
    for reader in place.readers:
        if reader.client is None:
            reader.come()
    longest_s = max((reader.asks.interval_ms for reader in place.readers), default=0) / 1000
    for _ in range(3):  # an interval, then a position
        _move_all(place)
        place.world.now_s += max(longest_s, MARKER_S)
    _move_all(place)
    for reader in place.readers:
        _check_end(reader)


def _move_all(place: Field) -> None:
    moved = True
    while moved:
        place.settle()
        moved = False
        for reader in place.readers:
            while reader.read():
                moved = True
            if reader.to_ack:
                reader.ack()
                moved = True
        place.world.broker.tick(place.world.now_s)
        moved = moved or not place.idle


def _check_end(reader: Reader) -> None:
    kept, place, asks = reader.kept[-1], reader.place, reader.asks
    if reader.resumed is None:
        raise Violation(f"{reader.name} has no RECEIPT for its SUBSCRIBE")
    if asks.markers and reader.reported != place.head:
        raise Violation(f"{reader.name} has the position {reader.reported} in the end, not {place.head}")
    if not asks.markers and not asks.durable:
        return  # the checks at rest cover it
    for topic in place.rights:
        revision, body = reader._wanted(topic)
        has, value = kept.state.get(topic, (0, b""))
        if value != body and revision > kept.base and topic not in reader.doubtful:
            raise Violation(f"{reader.name} has {has} of {topic} in the end, not {revision}")
    for topic, (_, value) in kept.state.items():
        if value and asks.markers and not asks.durable and topic not in place.rights:
            raise Violation(f"{reader.name} has {topic} in the end, and may not receive it")


@contextmanager
def known_globs() -> Iterator[None]:
    """Compile each glob once. Without effect on compiled modules."""
    try:
        with patch.object(subscribing, "compile_glob", cache(compile_glob)):
            yield
    except TypeError:
        yield
