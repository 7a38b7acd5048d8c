"""The last wills of sessions: which there are, which wait for their delay, and which of them are in the journal.

Theory of operation. A will is *set* by a CONNECT. It is *armed* when the connection ends without DISCONNECT, and due after its delay. A
DISCONNECT or a CONNECT of the same session cancels it, and a CONNECT with a will replaces it. A due will is *fired*: `last_wills` makes
its SEND, and the end of the will is appended with the change. Both are in one block of the journal. So a crash leaves the will, or its
change, and never both or neither. A restart arms all wills.

`stored` is the state as the journal has it, `current` the state after all that was appended. A batch that the disk refuses takes
`current` back, except that the end of a cancelled will stays pending.

Invariants:
* a will is in `_due` exactly while it is armed, and then it has a `current`;
* a session without a `stored` and a `current` will, and without a pending record of one, is not in `_wills`.
"""

from collections.abc import Iterator
from typing import Final, final

from sortedcontainers import SortedDict

from maxam.broker.operations import OperationLog, Refusal
from maxam.broker.quotas import largest_user
from maxam.content import pack
from maxam.records import Identity, WillEndRecord, WillRecord
from maxam.stomp.events import Will

_CONNECTED: Final = -1.0


@final
class SessionWill:
    """The will of one session.

    Attributes:
        key: Principal and client-id.
        stored: The will as the journal has it.
        current: The will after all records that were appended.
        due_s: When it is to be fired, monotonic seconds; negative while it is not armed.
        lost_s: When the connection of the session ended, monotonic seconds; negative while it has one.
        pending: Records of it that were appended and are not applied.
        cancelling: Those of them that end a will without a change.
    """

    __slots__ = ("cancelling", "current", "due_s", "key", "lost_s", "number", "pending", "stored")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key: Final = key
        self.number = 0  # of its arming, the order of wills that are due at the same time
        self.stored: WillRecord | None = None
        self.current: WillRecord | None = None
        self.due_s = _CONNECTED
        self.lost_s = _CONNECTED
        self.pending = 0
        self.cancelling = 0


@final
class Wills:
    """The wills of all sessions."""

    __slots__ = ("_due", "_log", "_number", "_of_principal", "_wills")

    def __init__(self, log: OperationLog) -> None:
        self._log: Final = log
        self._wills: Final[SortedDict[tuple[str, str], SessionWill]] = SortedDict()
        self._of_principal: Final[dict[str, int]] = {}
        self._due: Final[SortedDict[tuple[float, int], SessionWill]] = SortedDict()
        self._number = 0

    def __len__(self) -> int:
        """Count the sessions with a will."""
        return len(self._wills)

    @property
    def accepted_at_us(self) -> int:
        """When the newest change was accepted, microseconds since the epoch."""
        return self._log.accepted_at_us

    @property
    def armed(self) -> int:
        """How many wills wait for their delay."""
        return len(self._due)

    @property
    def due_s(self) -> float | None:
        """When the next will is due, monotonic seconds; None without an armed one."""
        return self._due.peekitem(0)[0][0] if self._due else None

    def count(self, principal: str) -> int:
        """Return the number of sessions of a principal with a will."""
        return self._of_principal.get(principal, 0)

    def used(self) -> tuple[str, int, str]:
        """Return the name of the limit on wills, how much of it the principal uses that uses most, and that principal."""
        return largest_user("wills_per_principal_max", self._of_principal)

    def has(self, key: tuple[str, str]) -> bool:
        """Return True if a session has a will."""
        return key in self._wills

    def from_key(self, start: tuple[str, str]) -> Iterator[SessionWill]:
        """Iterate over the wills in order of principal and client-id, from one key on. The iterator is void once a will comes or goes."""
        for key in self._wills.irange(start):
            yield self._wills[key]

    # Events of a session.

    def connect(self, key: tuple[str, str], identity: Identity, will: Will | None) -> int:
        """Set, replace or cancel the will of a session that connects. Return the position of the record, 0 if none was appended.

        An equal will of the same certificate stays as it is, so a client that connects often fills no journal.
        """
        found = self._wills.get(key)
        if found is not None:
            found.lost_s = _CONNECTED
        if will is None:
            return 0 if found is None else self._cancel(found)
        if found is None:
            found = self._open(key)
        self._disarm(found)
        content, body_at = pack(will.headers, will.body)
        current = found.current
        if (
            current is not None
            and current.publisher.fingerprint == identity.fingerprint
            and (current.destination, current.content, current.delay_s) == (will.destination, content, will.delay_s)
        ):
            return self._log.appended_seq if found.pending else 0
        record = WillRecord(
            self._log.accepted_at_us, key[1], identity, will.destination, content, body_at, will.delay_s
        )
        record.target = found
        found.current = record
        found.pending += 1
        return self._log.append(record)

    def disconnect(self, key: tuple[str, str]) -> int:
        """Cancel the will of a session that has sent DISCONNECT. Return the position of the record, 0 if none was appended."""
        found = self._wills.get(key)
        return 0 if found is None else self._cancel(found)

    def lose(self, key: tuple[str, str], now_s: float) -> None:
        """Arm the will of a session whose connection has ended, unless that is known."""
        found = self._wills.get(key)
        if found is not None and found.lost_s < 0:
            found.lost_s = now_s
            self._arm(found)

    def regained(self, key: tuple[str, str]) -> None:
        """Disarm the will of a session that has a connection again."""
        found = self._wills.get(key)
        if found is not None:
            found.lost_s = _CONNECTED
            self._disarm(found)

    # Firing.

    def next_due(self, now_s: float) -> SessionWill | None:
        """Return the will that is due first, if it is time."""
        if not self._due:
            return None
        (due_s, _), found = self._due.peekitem(0)
        return found if now_s >= due_s else None

    def put_off(self, found: SessionWill, due_s: float) -> None:
        """Have a due will fire later."""
        self._disarm(found)
        self._enter(found, due_s)

    def fired(self, found: SessionWill) -> None:
        """Append the end of a will, after the change that sends it."""
        self._end(found, fired=True)

    def rejected(self, found: SessionWill) -> None:
        """Append the end of a due will that cannot be sent."""
        self._cancel(found)

    # Records.

    def apply(self, record: WillRecord | WillEndRecord) -> None:
        """Apply a record that is durable, of this broker or of a recovery."""
        found = record.target
        if not isinstance(found, SessionWill):
            self._replay(record)
            return
        found.pending -= 1
        if isinstance(record, WillRecord):
            found.stored = record
            record.target = None
        else:
            if not record.fired:
                found.cancelling -= 1
            found.stored = None
        self._close_if_done(found)

    def refuse(self, refusal: Refusal) -> list[tuple[str, str]]:
        """Take back the records that the disk had no room for. Return the sessions whose new will was dropped."""
        dropped: list[tuple[str, str]] = []
        concerned: dict[SessionWill, None] = {}
        for record in refusal.wills:
            found = record.target
            if isinstance(found, SessionWill):
                found.pending -= 1
                concerned[found] = None
        for found in concerned:
            if found.current is not None and found.current is not found.stored:
                dropped.append(found.key)
            found.current = None if found.cancelling else found.stored
            self._disarm(found)
            if found.lost_s >= 0:
                self._arm(found)  # with the delay of the will that it has now
            self._close_if_done(found)
        return dropped

    def restored(self, now_s: float) -> None:
        """Arm all wills after a recovery: no session has a connection."""
        for key in list(self._wills):
            self.lose(key, now_s)

    def snapshot(self) -> Iterator[WillRecord]:
        """Yield the records of all wills."""
        for found in self._wills.values():
            if found.stored is not None:
                yield found.stored

    # Pieces.

    def _replay(self, record: WillRecord | WillEndRecord) -> None:
        key = (record.principal, record.client_id)
        found = self._wills.get(key)
        if isinstance(record, WillRecord):
            if found is None:
                found = self._open(key)
            found.stored = found.current = record
        elif found is not None:
            self._disarm(found)
            found.stored = found.current = None
            self._close_if_done(found)

    def _cancel(self, found: SessionWill) -> int:
        if found.stored is None and found.current is None:
            return 0  # its end is on the way
        found.cancelling += 1
        return self._end(found, fired=False)

    def _end(self, found: SessionWill, fired: bool) -> int:
        self._disarm(found)
        found.current = None
        found.pending += 1
        record = WillEndRecord(self._log.accepted_at_us, *found.key, fired)
        record.target = found
        return self._log.append(record)

    def _open(self, key: tuple[str, str]) -> SessionWill:
        found = self._wills[key] = SessionWill(key)
        self._of_principal[key[0]] = self._of_principal.get(key[0], 0) + 1
        return found

    def _close_if_done(self, found: SessionWill) -> None:
        if found.stored is None and found.current is None and not found.pending and found.key in self._wills:
            del self._wills[found.key]
            left = self._of_principal.pop(found.key[0]) - 1
            if left:
                self._of_principal[found.key[0]] = left

    def _arm(self, found: SessionWill) -> None:
        """Have a will fire when its delay is over, if there is one."""
        if found.current is not None:
            self._enter(found, found.lost_s + found.current.delay_s)

    def _enter(self, found: SessionWill, due_s: float) -> None:
        self._number += 1
        found.number = self._number
        found.due_s = due_s
        self._due[due_s, found.number] = found

    def _disarm(self, found: SessionWill) -> None:
        if found.due_s >= 0:
            del self._due[found.due_s, found.number]
            found.due_s = _CONNECTED
