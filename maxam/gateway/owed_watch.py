"""Bound the memory that the subscriptions of one principal take for topics they are owed.

A subscription keeps one set entry per topic that it owes. No frame makes that expensive by itself, but a principal that may receive
everything can hold thousands of subscriptions that read nothing. The watch adds up the entries of each principal. Above the limit it
ends the session of that principal that owes most. A client gets the present state of all topics with its next eager SUBSCRIBE.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.session import Session
from maxam.errors import ProtocolError
from maxam.gateway.log import log_event

BYTES_PER_OWED: Final = 64  # of the set entry: 57 measured
_MEMORY_SHARE: Final = 0.5  # of memory_bytes_max, for one principal
_EVERY_S: Final = 5.0  # in which one principal can come to owe a few million topics
_SLICE: Final = 1000  # subscriptions added up before the event loop runs other tasks


@final
class OwedWatch:
    """Add up what each principal is owed, every few seconds.

    Attributes:
        limit: Topics that the subscriptions of one principal may be owed in all.
        most: Topics that the principal with most is owed, when it was last added up.
        principal: That principal. Empty if no subscription is owed anything.
        ended: Sessions that were ended since the start.
        fronts: Returns sessions by their key, with what their transient subscriptions on fronts are owed. None without fronts.
        expel: Has a front close the connection of a session with an ERROR.
    """

    def __init__(self, broker: Broker, memory_bytes_max: int, schedule_commit: Callable[[], None]) -> None:
        """Make the watch of a broker.

        Args:
            broker: Whose sessions are added up.
            memory_bytes_max: Limit of the gateway's memory, resolved to bytes.
            schedule_commit: Has the committer write what the broker appended.
        """
        self._broker: Final = broker
        self._schedule_commit: Final = schedule_commit
        limit = broker.limits.owed_per_principal_max
        self.limit: Final = limit or max(1, int(memory_bytes_max * _MEMORY_SHARE) // BYTES_PER_OWED)
        self.most = 0
        self.principal = ""
        self.ended = 0
        self.fronts: Callable[[], Iterable[tuple[tuple[str, str], int]]] | None = None
        self.expel: Callable[[Session, ProtocolError], None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await trio.sleep(_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Add up what all sessions are owed, and end those that owe most of principals above the limit."""
        owed_by: dict[str, dict[Session, int]] = {}
        counted = 0
        for session in list(self._broker.sessions.values()):
            owed = sum([subscription.kept for subscription in session.subscriptions.values()])
            if owed:
                owed_by.setdefault(session.principal, {})[session] = owed
            counted += 1 + len(session.subscriptions)
            if counted >= _SLICE:
                counted = 0
                await trio.lowlevel.checkpoint()
        for key, owed in () if self.fronts is None else self.fronts():
            transient = self._broker.sessions.get(key)
            if transient is not None:
                of_principal = owed_by.setdefault(transient.principal, {})
                of_principal[transient] = of_principal.get(transient, 0) + owed
        self.most, self.principal = 0, ""
        for principal, sessions in owed_by.items():
            total = sum(sessions.values()) + self._broker.late_topics(principal)
            for session in sorted(sessions, key=sessions.__getitem__, reverse=True):
                if total <= self.limit:
                    break
                self._end(session, sessions[session])
                total -= sessions[session]
                await trio.lowlevel.checkpoint()
            if total > self.most:
                self.most, self.principal = total, principal

    def _end(self, session: Session, owed: int) -> None:
        if self._broker.sessions.get(session.key) is not session:
            return  # it ended meanwhile
        self.ended += 1
        action = "have its clients subscribe to less, read faster, or raise owed_per_principal_max"
        log_event(
            logging.WARNING,
            "owed-too-much",
            principal=session.principal,
            client_id=session.client_id,
            owed=owed,
            owed_per_principal_max=self.limit,
            action=action,
        )
        explanation = (
            f"the subscriptions of this principal were owed more than {self.limit} topics (limit owed_per_principal_max). "
            f"Those of this session were owed {owed} of them. Subscribe to fewer topics, or read faster"
        )
        failure = ProtocolError("too much owed", explanation)
        if session.holder and self.expel is not None:
            self.expel(session, failure)
        self._broker.upkeep.end_session(session, failure)
        self._schedule_commit()
