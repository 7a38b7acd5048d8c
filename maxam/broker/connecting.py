"""The way of connections in and out: each is attached to a session, which it may take over, and is detached when it is gone."""

from collections.abc import Callable
from typing import Final, final

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.fronting import Fronting
from maxam.broker.last_wills import LastWills
from maxam.broker.operations import OperationLog
from maxam.broker.outbox import Outbox
from maxam.broker.policy import Rights
from maxam.broker.session_table import SessionTable
from maxam.broker.window import Window
from maxam.broker.wire_cache import WireCache
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.metrics import Counters
from maxam.records import Identity
from maxam.stomp.events import Connect


@final
class Connecting:
    """Attaches connections to sessions and detaches them.

    Attributes:
        fronting: On a front, the way of sessions back to the broker that keeps the order. None elsewhere.
    """

    __slots__ = ("_acknowledgements", "_counters", "_last_wills", "_limits", "_log", "_table", "_wires", "fronting")

    def __init__(
        self,
        limits: Limits,
        log: OperationLog,
        table: SessionTable,
        wires: WireCache,
        acknowledgements: Acknowledgements,
        last_wills: LastWills,
        counters: Counters,
    ) -> None:
        self.fronting: Fronting | None = None
        self._limits: Final = limits
        self._log: Final = log
        self._table: Final = table
        self._wires: Final = wires
        self._acknowledgements: Final = acknowledgements
        self._last_wills: Final = last_wills
        self._counters: Final = counters

    def connect(
        self,
        event: Connect,
        identity: Identity,
        session_id: str,
        wake: Callable[[], None],
        now_s: float,
        rights: Rights | None,
    ) -> Outbox:
        """Attach a connection to the session that its CONNECT specifies, or to a new one. The arguments are those of the broker.

        Raises:
            ProtocolError: Too many takeovers or sessions, the will is refused, or the session is not for a ticket. Nothing has
                changed.
        """
        principal = identity.principal
        client_id = event.client_id or session_id
        if event.will is not None:
            self._last_wills.check((principal, client_id), identity, event.will)
        session = self._table.sessions.get((principal, client_id))
        if rights is not None and session is not None and session.durable:
            raise ProtocolError(
                "session is durable",
                f"the session {client_id} has durable subscriptions of a certificate; connect with another client-id",
            )
        if session is not None and session.connection is not None:
            self._table.take_over(session, session.connection, now_s)
        elif session is None:
            self._table.quotas.check_session(principal)
            session = self._table.open(principal, client_id)
        if rights is not None or session.granted:  # nothing is left of the connection from which it was taken
            session.granted = rights is not None
            session.rights = self._table.rights_of(principal) if rights is None else rights
        limit = self._limits.window
        window = Window(limit, False, now_s) if event.window is None else Window(min(event.window, limit), True, now_s)
        connection = Outbox(
            self._log,
            self._wires,
            self._acknowledgements,
            self._counters,
            identity,
            session,
            event.version,
            window,
            wake,
            event.rejections_end,
        )
        session.connection = connection
        session.connected_at_s = now_s
        self._table.attached(session)
        if self.fronting is not None:
            self.fronting.connected(connection)
        self._last_wills.connected(connection, event.will)
        return connection

    def detach(self, connection: Outbox, now_s: float) -> None:
        """Detach a connection that is gone: transient subscriptions end, durable ones owe again what is un-acked."""
        session = connection.session
        connection.quiet = True
        connection.lost()
        if session.connection is connection:
            session.connection = None
            self._table.release_all(session)
            if self.fronting is not None:
                self.fronting.release(session)
            self._table.detach(session, now_s)
        self._last_wills.detached(self._table.sessions.get(session.key), session.key, now_s)
