"""Answers of a front to questions of operators: the connections, sessions and subscriptions that it has."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.delivery_state import delivery_state
from maxam.broker.session import Session
from maxam.errors import ProtocolError
from maxam.gateway.clients import Clients
from maxam.gateway.listings import connection_row, is_found, session_row, subscriptions_after
from maxam.gateway.rates import Rates
from maxam.gateway.staleness import Pace, Staleness, refinement_row
from maxam.gateway.transport import Transport

_SLICE: Final = 50  # rows that are made before the event loop runs other tasks
_KICKED: Final = ("closed by an operator", "an operator closed this connection")


@final
class Answers:
    """Answers questions. Each method with the name of a question takes its facts, and returns JSON."""

    def __init__(
        self,
        slot: int,
        broker: Broker,
        connections: Mapping[Transport, None],
        clients: Clients,
        rates: Rates,
        staleness: Staleness,
        committed: Callable[[], Awaitable[None]],
    ) -> None:
        """Make it.

        Args:
            slot: Number of the front.
            broker: Its replica.
            connections: Its connections, oldest first.
            clients: Those that are connected.
            rates: Of its connections.
            staleness: Of its subscriptions.
            committed: Waits until all is committed that the front has appended.
        """
        self.slot = slot
        self._broker: Final = broker
        self._connections: Final = connections
        self._clients: Final = clients
        self._rates: Final = rates
        self._staleness: Final = staleness
        self._committed: Final = committed
        self._known: Final[dict[str, Callable[[dict[str, Any]], Awaitable[object]]]] = {
            "connections": self._of_connections,
            "sessions": self._of_sessions,
            "session": self._of_session,
            "subscriptions": self._of_subscriptions,
            "look": self._of_look,
            "explain": self._of_explain,
            "kick": self._kick,
            "end_subscription": self._end_subscription,
        }

    async def answer(self, asked: dict[str, Any]) -> object:
        """Return the answer to a question."""
        return await self._known[asked["what"]](asked)

    async def _of_connections(self, asked: dict[str, Any]) -> object:
        rows: list[dict[str, object]] = []
        numbered = sorted((one.number, one) for one in self._connections if one.number > asked["after"])
        for looked_at, (number, client) in enumerate(numbered, 1):
            if client in self._connections:
                row = connection_row(client, self._rates.of(number), trio.current_time())
                if is_found(row, asked["find"]):
                    rows.append({"front": self.slot, **row})
            if len(rows) == asked["most"]:
                break
            if looked_at % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        return rows

    async def _of_sessions(self, asked: dict[str, Any]) -> object:
        rows = []
        pace = Pace()
        for principal, client_id in asked["keys"]:
            session = self._session(principal, client_id)
            if session is not None:
                rows.append(await self._row(session, pace))
        return rows

    async def _of_session(self, asked: dict[str, Any]) -> object:
        session = self._session(*asked["key"])
        if session is None:
            return None
        pace = Pace()
        row = await self._row(session, pace)
        subscriptions = []
        for subscription in list(session.subscriptions.values()):
            await pace.step()
            if not subscription.removed:
                subscriptions.append(asdict(self._staleness.row(session, subscription)))
        return row, subscriptions

    async def _of_subscriptions(self, asked: dict[str, Any]) -> object:
        cursor = None if asked["cursor"] is None else tuple(asked["cursor"])
        principal, client_id = asked["only"]
        rows: list[object] = []
        most = asked["most"]
        while True:
            found, cursor = subscriptions_after(
                self._staleness, self._broker.sessions, cursor, min(_SLICE, most - len(rows)), principal, client_id
            )
            rows += [asdict(one) for one in found]
            if cursor is None or len(rows) >= most:
                return rows, cursor
            await trio.lowlevel.checkpoint()

    async def _of_look(self, _asked: dict[str, Any]) -> object:
        return asdict(await self._staleness.report())

    async def _of_explain(self, asked: dict[str, Any]) -> object:
        session = self._session(*asked["key"])
        subscription = None if session is None else session.subscriptions.get(asked["id"].encode())
        if subscription is None:
            return None
        name, broker = asked["destination"].encode(), self._broker
        topic, scans = broker.store.topics.get(name), broker.scans_of(subscription)
        state = delivery_state(subscription, name, topic, scans, trio.current_time(), asked["may_receive"])
        refinement = refinement_row(subscription)
        return {
            "state": asdict(state),
            "glob": subscription.glob.text,
            "refinement": None if refinement is None else asdict(refinement),
        }

    async def _kick(self, asked: dict[str, Any]) -> object:
        session = self._session(*asked["key"])
        if session is None or session.connection is None:
            return False
        message, detail = _KICKED
        session.connection.expel(ProtocolError(asked.get("message", message), asked.get("detail", detail)))
        return True

    async def _end_subscription(self, asked: dict[str, Any]) -> object:
        session = self._session(*asked["key"])
        subscription = None if session is None else session.subscriptions.get(asked["id"].encode())
        if subscription is None:
            return None
        if subscription.connection is not None:
            return False
        self._broker.upkeep.end_subscription(subscription)
        await self._committed()
        return True

    def _session(self, principal: str, client_id: str) -> Session | None:
        """Return a session that has its connection here."""
        session = self._broker.sessions.get((principal, client_id))
        return None if session is None or session.connection is None else session

    async def _row(self, session: Session, pace: Pace) -> dict[str, object]:
        client = None if session.connection is None else self._clients.connected.get(session.connection)
        largest_s = await self._staleness.of_session(*session.key, pace)
        behind = largest_s > self._staleness.behind_after_s
        return session_row(session, client) | {"staleness_s": largest_s, "behind": behind}
