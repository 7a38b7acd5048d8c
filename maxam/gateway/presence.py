"""The topics that show who is connected: `S/<principal>.<client-id>` of each session, published by the gateway itself.

Theory of operation. The begin and the end of a connection make a *wish*: the value that the topic of its session should have. `step`
publishes a wish that is due, by the path of every SEND and under the schema of the topic's rule. It checks the topic again after
INTERVAL_S. If the topic does not have the value of the wish by then, it publishes again. So a session that connects often changes
its topic once in INTERVAL_S. A value for which there was no room is repeated. A session without a topic is shown once it has lasted for
INTERVAL_S. So a client that connects again and again under new names makes no topics.

The topics are the only state. A start reads them. If a topic shows a connection that began before the start, it is
published as away once the interval of heart-beats has passed. A session whose client-id the broker made is deleted when it ends, and
any other one `away_kept_s` after it ended. Of each principal as many are kept as it may have sessions, the newest.

While the gateway stops, nothing is published: the next start finds who has come back.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, final

import trio

from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Rights
from maxam.broker.session import Topic
from maxam.config import PresenceSettings
from maxam.content import long, read_long, read_text, text
from maxam.gateway.batches import run_batches
from maxam.globs import compile_glob, destination_problem
from maxam.records import GATEWAY
from maxam.stomp.events import Send

STORE: Final = b"S/"
INTERVAL_S: Final = 1.0  # between two values of one topic
BATCH_TOPICS: Final = 200  # handled before the event loop runs other tasks
_GLOB: Final = "S/*"
_AGAIN_S: Final = 60.0  # after a rejection
_FORGET_INTERVAL_S: Final = 5.0  # between two searches for topics that have been away for long enough
_IDLE_S: Final = 0.1
_MADE: Final = re.compile(r"[0-9a-f]{32}")  # a client-id that the broker made
_HEADERS: Final = ((b"schema-version", b"1.0"),)


@dataclass(frozen=True, slots=True)
class State:
    """The value of a topic; times are microseconds since the epoch.

    Attributes:
        connected: A connection has the session.
        since_us: When the connection began or ended.
        heard_us: When the client was last heard of before the value was made.
        address: Of the client's end of the connection.
    """

    connected: bool
    since_us: int
    heard_us: int
    address: str

    def encoded(self) -> bytes:
        """Return the datum of `maxam.Presence_v1`."""
        flag = b"\x01" if self.connected else b"\x00"
        return flag + long(self.since_us) + long(self.heard_us) + text(self.address.encode())


def decoded(datum: bytes) -> State | None:
    """Return the state in a datum of `maxam.Presence_v1`, None if it is none."""
    try:
        since_us, place = read_long(datum, 1)
        heard_us, place = read_long(datum, place)
        address, place = read_text(datum, place)
        state = State(datum[0] == 1, since_us, heard_us, address.decode())
    except (ValueError, IndexError):
        return None
    return state if place == len(datum) and state.encoded() == datum else None


def topic_of(principal: str, client_id: str, bytes_max: int) -> bytes:
    """Return the topic of a session. It has two tokens, unless its name would be too long: then it has the SHA-256 of the names.

    A character that a token cannot have, a dot and `=` are written as `=XX` for each of their bytes.
    """
    name = STORE + f"{_escaped(principal)}.{_escaped(client_id)}".encode()
    if len(name) > bytes_max:
        return STORE + b"=" + hashlib.sha256(f"{principal}\n{client_id}".encode()).hexdigest().encode()
    return name


def _escaped(name: str) -> str:
    found = [
        "".join([f"={byte:02X}" for byte in character.encode()]) if _is_special(character) else character
        for character in name
    ]
    return "".join(found)


def _is_special(character: str) -> bool:
    return character in "=." or destination_problem(f"S/{character}".encode(), 100) is not None


@dataclass(slots=True)
class _Wish:
    """The value that a topic should have.

    Attributes:
        body: Of the value; empty to have the topic deleted.
        due_s: When it is checked next, monotonic seconds.
        sent: It was published at least once, so that `due_s` keeps the interval.
    """

    body: bytes
    due_s: float
    sent: bool = False


@final
class Presence:
    """Publishes who is connected.

    Attributes:
        held: The gateway stops: nothing is published any longer.
        failure: Why values are rejected. Empty while they are not.
    """

    def __init__(
        self,
        broker: Broker,
        settings: PresenceSettings,
        heart_beat_s: float,
        wall_us: Callable[[], int],
        now_s: float,
        schedule_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Make one that has not read any topic yet.

        Args:
            broker: The broker.
            settings: Whether it publishes anything.
            heart_beat_s: After a start, the time within which a client must come back.
            wall_us: The gateway's time, microseconds since the epoch.
            now_s: Monotonic seconds.
            schedule_commit: Called after values were appended.
        """
        self._broker: Final = broker
        self._enabled: Final = settings.enabled
        self._kept_us: Final = int(settings.away_kept_s * 1e6)
        self._wall_us: Final = wall_us
        self._schedule_commit: Final = schedule_commit
        self._rights: Final = Rights((compile_glob(_GLOB, broker.limits),), (), frozenset(), None, broker.limits)
        self._started_us: Final = max(wall_us(), broker.accepted_at_us)
        self._back_by_s: Final = now_s + heart_beat_s
        self._wishes: Final[dict[bytes, _Wish]] = {}
        self._due: Final[list[tuple[float, bytes]]] = []  # a heap; an entry counts if its wish is due then
        # The topics that are away, by principal: when each is to be deleted, the first one first.
        self._away: Final[dict[bytes, dict[bytes, int]]] = {}
        self._away_max: Final = broker.limits.sessions_per_principal_max
        self._forget_at_s = now_s
        self._cursor: bytes | None = None  # of the scan after a start
        self._scanned = not settings.enabled
        self._refused_by: Registry | None = None
        self.held = False
        self.failure = ""

    # Events.

    def connected(self, principal: str, client_id: str, address: str, now_s: float) -> None:
        """Record that a connection has a session."""
        if self._enabled and not self.held:
            now_us = self._now_us()
            name = self._topic_of(principal, client_id)
            due_s = now_s if self._has_value(name) else now_s + INTERVAL_S
            self._want(name, State(True, now_us, now_us, address).encoded(), due_s)

    def ended(self, principal: str, client_id: str, address: str, heard_s: float | None, now_s: float) -> None:
        """Record that a connection has ended, after the broker has detached it; a successor may have its session."""
        if not self._enabled or self.held:
            return
        session = self._broker.sessions.get((principal, client_id))
        if session is not None and session.connection is not None:
            return
        name = self._topic_of(principal, client_id)
        wish = self._wishes.get(name)
        if wish is not None and not wish.sent and not self._has_value(name):
            del self._wishes[name]  # it was too short to be shown
            return
        now_us = self._now_us()
        heard_us = now_us if heard_s is None else min(now_us, now_us - int((now_s - heard_s) * 1e6))
        state = State(False, now_us, max(0, heard_us), address)
        body = b"" if _MADE.fullmatch(client_id) else state.encoded()
        self._want(name, body, now_s)

    # Work.

    async def run(self) -> None:
        """Publish until cancelled."""
        if self._enabled:
            await run_batches(self.step, _IDLE_S)
        await trio.sleep_forever()

    def step(self, now_s: float) -> bool:
        """Handle one batch of topics. Return True if more are due.

        Args:
            now_s: Monotonic seconds.
        """
        if self.held or not self._enabled:
            return False
        left = BATCH_TOPICS if self._scanned else self._scan(BATCH_TOPICS // 2)
        if self._refused_by is not self._broker.registry:
            self._refused_by, self.failure = None, ""
        head = self._broker.head_revision
        while left > 0 and self._due and self._due[0][0] <= now_s:
            due_s, name = heappop(self._due)
            wish = self._wishes.get(name)
            if wish is not None and wish.due_s == due_s:
                left -= 1
                self._check(name, wish, now_s)
        if self._scanned and now_s >= self._forget_at_s:
            self._forget_at_s = now_s + _FORGET_INTERVAL_S
            self._forget(now_s)
        if self._broker.head_revision != head:
            self._schedule_commit()
        return left <= 0 or not self._scanned

    def degraded(self) -> list[str]:
        """Return a line if values are rejected."""
        return [f"presence: {self.failure}"] if self.failure else []

    # Pieces.

    def _now_us(self) -> int:
        """Return the time, later than the start, so that a value shows in which run of the gateway it was made."""
        return max(self._wall_us(), self._started_us + 1)

    def _topic_of(self, principal: str, client_id: str) -> bytes:
        return topic_of(principal, client_id, self._broker.limits.destination_bytes_max)

    def _want(self, name: bytes, body: bytes, due_s: float) -> None:
        wish = self._wishes.get(name)
        if wish is None:
            wish = self._wishes[name] = _Wish(body, due_s)
        else:
            wish.body = body
            if wish.sent or wish.due_s <= due_s:
                return
            wish.due_s = due_s
        heappush(self._due, (wish.due_s, name))

    def _check(self, name: bytes, wish: _Wish, now_s: float) -> None:
        """Publish a wish, unless its topic has the value or another change of it is on its way to the disk."""
        broker = self._broker
        topic = broker.store.topics.get(name)
        deleted = topic is None or topic.change.deleted
        if broker.newest(name) != (0 if topic is None or deleted else topic.change.revision):
            self._again(name, wish, now_s + INTERVAL_S)
        elif wish.body == (b"" if topic is None or deleted else topic.change.body):
            del self._wishes[name]
            self._keep(name, topic, now_s)
        elif broker.registry.rule_for(name.decode()) is None and wish.body:
            self._fail("no rule of the schema registry covers S/*. Add that of the shipped schemas/registry.toml")
            self._again(name, wish, now_s + _AGAIN_S)
        else:
            event = Send(name, wish.body, _HEADERS if wish.body else (), None)
            rejection = broker.publishing.publish(GATEWAY, self._rights, event, self._now_us())
            wish.sent = True
            if rejection is None or rejection.result == "memory-low":
                self._again(name, wish, now_s + INTERVAL_S)
            else:
                self._fail(f"a value was rejected: {rejection.reason}. Correct the rule of S/*")
                self._again(name, wish, now_s + _AGAIN_S)

    def _again(self, name: bytes, wish: _Wish, due_s: float) -> None:
        wish.due_s = due_s
        heappush(self._due, (due_s, name))

    def _fail(self, failure: str) -> None:
        self._refused_by = self._broker.registry
        self.failure = failure

    def _scan(self, left: int) -> int:
        """Read that many topics after a start; return how many others the batch may still have."""
        store = self._broker.store
        names = store.names_slice(STORE, self._cursor, left)
        for name in names:
            topic = store.topics[name]
            state = self._state(topic)
            if state is None:
                continue
            if not state.connected:
                self._keep(name, topic, self._back_by_s)
            elif state.since_us <= self._started_us and name not in self._wishes:
                client_id = name.rpartition(b".")[2].decode()
                body = State(False, self._started_us, state.heard_us, state.address).encoded()
                self._want(name, b"" if _MADE.fullmatch(client_id) else body, self._back_by_s)
        self._cursor = names[-1] if names else None
        self._scanned = len(names) < left
        if self._scanned:
            for token, away in self._away.items():
                self._away[token] = dict(sorted(away.items(), key=lambda item: item[1]))
        return left

    def _keep(self, name: bytes, topic: Topic | None, now_s: float) -> None:
        """Record whether a topic is away. One too many of its principal is deleted."""
        token = name[len(STORE) :].partition(b".")[0]
        token = b"=" if b"." not in name else token
        away = self._away.setdefault(token, {})
        away.pop(name, None)
        state = None if topic is None else self._state(topic)
        if state is not None and not state.connected:
            away[name] = state.since_us + self._kept_us
            if len(away) > self._away_max:
                oldest = next(iter(away))
                del away[oldest]
                self._delete(oldest, now_s)
        if not away:
            del self._away[token]

    def _forget(self, now_s: float) -> None:
        """Have topics deleted that have been away for long enough."""
        now_us = self._wall_us()
        for token, away in list(self._away.items()):
            while away and next(iter(away.values())) <= now_us:
                oldest = next(iter(away))
                del away[oldest]
                self._delete(oldest, now_s)
            if not away:
                del self._away[token]

    def _delete(self, name: bytes, now_s: float) -> None:
        """Have a topic deleted, unless its session is about to be shown as connected."""
        if name not in self._wishes:
            self._want(name, b"", now_s)

    def _has_value(self, name: bytes) -> bool:
        topic = self._broker.store.topics.get(name)
        return topic is not None and not topic.change.deleted

    @staticmethod
    def _state(topic: Topic) -> State | None:
        """Return the value of a topic, None if it has none that a gateway published."""
        change = topic.change
        if change.deleted or change.publisher.principal != GATEWAY.principal:
            return None
        return decoded(change.body)
