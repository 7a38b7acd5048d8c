"""Rules for the changes that the broker makes itself: last wills, the topics of presence, and values that expire.

`Attendance` gets the events of clients and machine, and each such change when it is appended and when it is on the disk. The rules are
those of docs/protocol.md. After a crash or a full disk several of the wills that a client has set may be in the journal. A RECEIPT
shows which one it is. So a session has a set of *possible* wills, which is one will as long as nothing fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from maxam.records import Change
from tests.simulation import files
from tests.simulation.files import EXPIRE_S, EXPIRING, Bound, Granted
from tests.simulation.model import Violation

GATEWAY = "$gateway"
HEART_BEAT_S = 2.0  # within which clients must come back after a start
SHOWN_S = 1.5  # by then a session is shown as it is
LATE_S = 1.5  # within which a will that is due is sent, and a value that has expired is deleted


@dataclass(eq=False)
class Will:
    """The last will that one CONNECT has set. Those of one policy have the same `mark`."""

    bound: Bound

    @property
    def mark(self) -> int:
        """The header `mark` of its SEND."""
        return self.bound.mark


@dataclass(eq=False)
class Session:
    """The state of the session of a client.

    Attributes:
        address: Of the connection that has it; empty if none has.
        since_s: When that was the last to change.
        possible: The wills that it may have now; None stands for no will.
        stored: Those that the journal may have.
        back_by_s: Until when it may come back after a crash.
        own: The will of the connection that has it.
        left: That has sent DISCONNECT.
        fired: Those that were appended, and are not on the disk.
    """

    address: str = ""
    since_s: float = 0.0
    possible: set[Will | None] = field(default_factory=lambda: {None})
    stored: set[Will | None] = field(default_factory=lambda: {None})
    back_by_s: float = 0.0
    own: Will | None = None
    left: bool = False
    fired: list[Will] = field(default_factory=list)


class Attendance:
    """The rules for one venue."""

    def __init__(self) -> None:
        self.sessions = {client: Session() for client in files.CLIENTS}
        self.minors: dict[
            tuple[int, bytes], str | None
        ] = {}  # of what was appended here: the version that was to judge it
        self.shown: dict[str, bytes] = {}  # presence on the disk, empty if it was deleted
        self.expiring = (
            0,
            b"",
            0,
        )  # the newest change of the topic that expires: revision, body, and when it was accepted
        self.undoing = False  # the disk has refused a block, and the broker does not know that yet
        self.fired = self.rejected = self.expired = 0

    # Events of clients.

    @staticmethod
    def is_valid(bound: Bound, granted: Granted, rules: int) -> bool:
        """Return True if the SEND of a will would be accepted."""
        if not granted.known or bound.topic not in granted.send:
            return False
        return not bound.text or files.verdict(rules, bound.topic, bound.form) is not None

    def connected(self, client: str, address: str, bound: Bound | None, now_s: float) -> None:
        """Record that the broker reads a CONNECT that it accepts."""
        session = self.sessions[client]
        will = None if bound is None else Will(bound)
        session.address, session.since_s = address, now_s
        session.own, session.left, session.back_by_s = will, False, 0.0
        session.stored.add(will)
        session.possible = set(session.stored) if self.undoing else {will}

    def disconnected(self, client: str, address: str) -> None:
        """Record that the broker reads a DISCONNECT."""
        session = self.sessions[client]
        if session.address == address:
            session.left = True
            session.stored.add(None)
            session.possible = set(session.stored) if self.undoing else {None}

    def ended(self, client: str, address: str, now_s: float) -> None:
        """Record that a connection has ended."""
        session = self.sessions[client]
        if session.address == address:
            session.address, session.since_s = "", now_s

    def answered(self, client: str, address: str, *, disconnected: bool, accepted: bool) -> None:
        """Record that a RECEIPT left on a connection.

        It shows that the will of the CONNECT is stored. The end of an earlier will is stored with the DISCONNECT, or with a value.

        Args:
            client: Its client.
            address: Of its connection.
            disconnected: It is that of a DISCONNECT.
            accepted: It is that of an accepted SEND.
        """
        session = self.sessions[client]
        if session.address == address and (session.own is not None or disconnected or accepted):
            session.stored = {None} if disconnected else {session.own, None} if session.left else {session.own}
            session.possible = session.possible & session.stored or set(session.stored)

    # Events of the machine.

    def refused(self) -> None:
        """Record that the disk has refused a block: all that was appended since is undone."""
        self.undoing = True
        for session in self.sessions.values():
            session.possible = set(session.stored)
            session.fired.clear()

    def crashed(self, now_s: float) -> None:
        """Record that all connections are lost, with what is not on the disk."""
        self.refused()
        self.undoing = False
        for session in self.sessions.values():
            session.address, session.since_s = "", now_s
            session.back_by_s = now_s + HEART_BEAT_S

    # Changes that the broker makes.

    def appended(
        self, change: Change, grants: Mapping[str, Granted], rules: int, now_s: float, *, overtaking: bool
    ) -> None:
        """Check a change that was made now; `overtaking` if another one of its topic is not on the disk yet."""
        topic, headers = change.destination.decode(), dict(change.headers)
        publisher = change.publisher.principal
        if publisher != GATEWAY:
            self._check_will(change, int(headers[b"mark"]), grants[publisher], rules, now_s)
        elif topic == EXPIRING:
            revision, body, accepted_at_us = self.expiring
            expired = not change.body and headers == {b"reason": b"expired"}
            if overtaking or not expired or not body or rules == files.UNCOVERED:
                raise Violation(f"the broker has sent {change.body[:10]!r} to {topic}, which has {body[:10]!r}")
            if change.accepted_at_us <= accepted_at_us + int(EXPIRE_S * 1e6):
                raise Violation(f"{revision} of {topic} expired after {change.accepted_at_us - accepted_at_us} us")
            self.minors[change.revision, b""] = ""
        else:
            self._check_presence(change, topic, now_s)
            self.minors[change.revision, change.body] = "1.0" if change.body else ""

    def _check_will(self, change: Change, mark: int, granted: Granted, rules: int, now_s: float) -> None:
        client = change.publisher.principal
        session, what = self.sessions[client], f"the will {mark} of {client}"
        found = [will for will in session.possible if will is not None and will.mark == mark]
        found = [will for will in found if will not in session.fired]
        if not found:
            raise Violation(f"{what} was sent, and is not one that the session has")
        bound = found[0].bound
        if session.address:
            raise Violation(f"{what} was sent while it is connected")
        if now_s < session.since_s + bound.delay_s:
            raise Violation(f"{what} was sent after {now_s - session.since_s} s, and not {bound.delay_s}")
        if (change.destination.decode(), change.body) != (bound.topic, bound.body):
            raise Violation(f"{what} was sent as {change.body[:10]!r} to {change.destination!r}")
        if not self.is_valid(bound, granted, rules):
            raise Violation(f"{what} was sent in spite of rights or schemas")
        session.fired.append(found[0])
        self.minors[change.revision, change.body] = files.verdict(rules, bound.topic, bound.form) if bound.text else ""

    def _check_presence(self, change: Change, topic: str, now_s: float) -> None:
        client = topic.removeprefix("S/").partition(".")[0]
        if topic != f"S/{client}.{client}" or client not in self.sessions:
            raise Violation(f"the broker has made {topic}")
        session = self.sessions[client]
        address = connected_address(change.body)
        if address != session.address:
            raise Violation(f"{topic} shows {address!r}, and the connection is {session.address!r}")
        before = connected_address(self.shown.get(topic, b""))
        if before and not address and now_s < session.back_by_s:
            raise Violation(f"{client} could still come back, and {topic} shows that it has gone")

    def rejected_will(self, client: str, mark: int, grants: Mapping[str, Granted], rules: int) -> None:
        """Check a will that was rejected when it was due."""
        session = self.sessions[client]
        found = [will for will in session.possible if will is not None and will.mark == mark]
        if not found or self.is_valid(found[0].bound, grants[client], rules):
            raise Violation(f"the will {mark} of {client} was rejected")
        self.rejected += 1
        session.possible = {None}
        session.stored.add(None)

    def committed(self, change: Change) -> None:
        """Record that a change of anybody's is on the disk."""
        topic, mark = change.destination.decode(), dict(change.headers).get(b"mark")
        if topic.startswith("S/"):
            self.shown[topic] = change.body
        elif topic == EXPIRING and (change.body or self.expiring[1]):
            self.expired += change.publisher.principal == GATEWAY
            self.expiring = (change.revision, change.body, change.accepted_at_us)
        if mark is not None:
            self._note_fired(self.sessions[change.publisher.principal], int(mark))

    def _note_fired(self, session: Session, mark: int) -> None:
        self.fired += 1
        found = [will for will in session.stored if will is not None and will.mark == mark]
        if not found:
            raise Violation(f"the will {mark} was sent, and the journal cannot have it")
        of_mark = [will for will in session.fired if will.mark == mark]
        will = of_mark[0] if of_mark else found[0]  # after a crash
        if of_mark or len(found) == 1:
            session.stored.discard(will)
        session.stored.add(None)
        if will in session.possible:
            session.possible.discard(will)
            if of_mark:
                session.possible.clear()
            session.possible.add(None)
        session.fired = [other for other in session.fired if other is not will]

    # The end.

    def check_rest(self, rules: int, now_s: float, now_us: int) -> None:
        """Check that nothing is missing after a time without faults."""
        for client, session in self.sessions.items():
            passed_s = now_s - session.since_s
            due = [will for will in session.possible if will is None or passed_s < will.bound.delay_s + LATE_S]
            if not session.address and not due:
                raise Violation(
                    f"none of the wills {[will.mark for will in session.possible if will]} of {client} was sent"
                )
            if passed_s < HEART_BEAT_S + SHOWN_S:
                continue
            address = connected_address(self.shown.get(f"S/{client}.{client}", b""))
            if address != session.address:
                raise Violation(f"{client} is shown as connected from {address!r}, and not {session.address!r}")
        revision, body, accepted_at_us = self.expiring
        if body and rules != files.UNCOVERED and now_us - accepted_at_us > int((EXPIRE_S + LATE_S) * 1e6):
            raise Violation(f"{revision} of {EXPIRING} has not expired after {now_us - accepted_at_us} us")


def connected_address(body: bytes) -> str:
    """Return the address in a datum of `maxam.Presence_v1` that shows a connection; empty for any other, and for none."""
    if not body or body[0] == 0:
        return ""
    at = 1
    for _ in range(2):  # two times of some bytes each
        while body[at] > 127:
            at += 1
        at += 1
    size = body[at] >> 1  # a short text
    return body[at + 1 : at + 1 + size].decode()
