"""Changes of the broker on behalf of an operator: each is one frame of a connection inside the process."""

import secrets
import time
from collections.abc import Sequence
from typing import Final, final

import trio

from maxam.broker.session import Session
from maxam.errors import ProtocolError
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.quarantine import Quarantined
from maxam.gateway.server import Gateway
from maxam.records import Identity
from maxam.stomp.events import CONTENT_TYPE, VERSION_1_2, Condition, Connect, JsonSend, Send, is_json
from maxam.stomp.frames import SERVER_COMMANDS, Decoder

SENDS_PER_SLICE: Final = 50  # before the event loop runs other tasks: about 0.5 ms
RESUBMISSIONS_MAX: Final = 10  # of one rejected SEND that are remembered, the last ones


async def send(gateway: Gateway, caller: Identity, event: Send) -> dict[str, str]:
    """Send as the caller, with a receipt. Return the headers of the RECEIPT, and `revision` if the SEND has changed the topic.

    If it is cancelled, the SEND may take effect or not, as with a client that leaves before its RECEIPT.

    Raises:
        ProtocolError: The caller's principal has too many sessions.
    """
    with _Errand(gateway, caller) as errand:
        return await errand.send(event)


async def send_all(gateway: Gateway, caller: Identity, events: Sequence[Send]) -> list[dict[str, str]]:
    """Send values as the caller, in order, each with a receipt. Return the headers of their RECEIPTs.

    If it is cancelled, each SEND may take effect or not.

    Raises:
        ProtocolError: The caller's principal has too many sessions.
    """
    with _Errand(gateway, caller) as errand:
        return await errand.send_all(events)


async def resubmit(gateway: Gateway, caller: Identity, record: Quarantined) -> dict[str, str]:
    """Send a rejected SEND again as the caller. Return the headers of its RECEIPT.

    It keeps the number of its source, so it does not undo what that source has sent since. Its `if-revision` is not checked again. It
    is admitted before this function first yields, so the caller's own checks still hold.

    Raises:
        ProtocolError: The caller's principal has too many sessions.
    """
    condition = record.condition
    if condition is not None and not condition.problem:
        source = condition.source
        if source is not None or condition.provenance:
            condition = Condition(source, condition.number, -1, provenance=condition.provenance)
        else:
            condition = None
    kind = JsonSend if is_json(dict(reversed(record.headers)).get(CONTENT_TYPE, b"")) else Send
    answer = await send(gateway, caller, kind(record.destination, record.body, record.headers, b"resubmit", condition))
    record.resubmitted.append((caller.principal, time.time_ns() // 1000, answer))
    del record.resubmitted[:-RESUBMISSIONS_MAX]
    return answer


async def kick(gateway: Gateway, session: Session) -> bool:
    """Close the live connection of a session with an ERROR. Return False if it has none.

    Raises:
        FrontSilentError: The front that has the connection does not answer.
    """
    if session.holder and gateway.fronts is not None:
        return bool(await gateway.fronts.asks.holder(session, "kick"))
    if session.connection is None:
        return False
    session.connection.expel(ProtocolError("closed by an operator", "an operator closed this connection"))
    return True


async def end_session(gateway: Gateway, caller: Identity, session: Session) -> None:
    """End a session and its live connection, and wait until that is in the journal.

    If it is cancelled, the session is ended nevertheless, but a crash may bring it back.
    """
    if session.holder and gateway.fronts is not None:
        gateway.fronts.asks.expel(session, ProtocolError("session dropped", "an operator ended this session"))
    with _Errand(gateway, caller) as errand:
        gateway.broker.upkeep.end_session(session)
        await errand.committed()


async def end_subscription(gateway: Gateway, caller: Identity, key: tuple[str, str], id_: str) -> bool | None:
    """End a durable subscription, and wait until that is in the journal. Return False if a connection uses it, None if it is unknown.

    If it is cancelled, the subscription is ended nevertheless, but a crash may bring it back.

    Raises:
        FrontSilentError: The front that has the session does not answer. The subscription may be ended.
    """
    session = gateway.broker.sessions.get(key)
    if session is not None and session.holder and gateway.fronts is not None:
        ended: bool | None = await gateway.fronts.asks.holder(session, "end_subscription", id=id_)
        return ended
    subscription = session.subscriptions.get(id_.encode()) if session is not None else None
    if subscription is None:
        return None
    if subscription.connection is not None:
        return False
    with _Errand(gateway, caller) as errand:
        gateway.broker.upkeep.end_subscription(subscription)
        await errand.committed()
    return True


@final
class _Errand:
    """A connection inside the process, of the caller's own principal, for one frame or a few, and their RECEIPTs."""

    def __init__(self, gateway: Gateway, caller: Identity) -> None:
        self._gateway: Final = gateway
        self._broker: Final = gateway.broker
        self._wakeup: Final = AutoResetEvent()
        event = Connect(VERSION_1_2, b"", None, None, (0, 0))
        name = f"admin-{secrets.token_hex(16)}"
        self._clock: Final = gateway.clock
        self._connection: Final = gateway.broker.connect(event, caller, name, self._wakeup.set, trio.current_time())

    def __enter__(self) -> "_Errand":
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.detach(self._connection, trio.current_time())

    async def send(self, event: Send) -> dict[str, str]:
        """Send with a receipt. Return the RECEIPT's headers, and `revision` of an accepted change though it was not requested."""
        head = self._broker.head_revision
        now_us = self._clock.now_us()
        if isinstance(event, JsonSend):
            self._broker.send_json(self._connection, event, now_us)
        else:
            self._broker.send(self._connection, event, now_us)
        revision = self._broker.head_revision
        answer = await self._receipt()
        if revision > head and answer["disposition"] == "accepted":
            answer["revision"] = str(revision)
        return answer

    async def committed(self) -> None:
        """Wait until all that was appended so far is committed or refused."""
        self._connection.position = self._broker.appended_seq
        self._connection.promise(b"committed", ())
        await self._receipt()

    async def send_all(self, events: Sequence[Send]) -> list[dict[str, str]]:
        """Send values, each with a receipt. Return the headers of the RECEIPTs, in the same order."""
        found: list[dict[str, str]] = []
        for start in range(0, len(events), SENDS_PER_SLICE):
            batch = events[start : start + SENDS_PER_SLICE]
            now_us = self._clock.now_us()
            for event in batch:
                self._broker.send(self._connection, event, now_us)
            found += await self._receipts(len(batch))
        return found

    async def _receipt(self) -> dict[str, str]:
        return (await self._receipts(1))[0]

    async def _receipts(self, count: int) -> list[dict[str, str]]:
        """Wait for this many RECEIPTs."""
        self._broker.end_of_input(self._connection)
        self._gateway.committer.schedule_commit()
        decoder = Decoder(self._broker.limits, SERVER_COMMANDS)
        found: list[dict[str, str]] = []
        while True:
            frames = decoder.feed(b"".join(self._connection.drain(trio.current_time())))
            found += [{name.decode(): value.decode() for name, value in frame.headers.items()} for frame in frames]
            if len(found) >= count:
                return found
            await self._wakeup.wait()
