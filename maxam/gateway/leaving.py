"""The end of a cluster member's process: its clients get an ERROR or are cut off, its files are closed, and it exits."""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from maxam.errors import ProtocolError
from maxam.gateway.audit import FOLLOWING

if TYPE_CHECKING:
    from maxam.gateway.server import Gateway

_CUT_OFF_S: Final = 1.0  # for clients to take their ERROR before the process ends
_HANDED_OVER_S: Final = (
    0.1  # likewise when another member serves already: a client whose SEND has no outcome waits for the end
)
_CLOSE_S: Final = 1.0  # for the journal and the audit log to be closed
_CHECK_S: Final = 0.01  # between checks whether all connections have ended
_CUT_OFF: Final = ProtocolError("gateway cut off", "this gateway has lost its cluster; connect to another address")
_STOPPING: Final = ProtocolError("broker is stopping", "another gateway serves now; connect to another address")


async def leave(
    gateway: "Gateway", status: int, code: str, end_log: Callable[[], None], close: Callable[[], None]
) -> None:
    """End the process. Changes without an answer are not in the log, or their outcome stays unknown to the client.

    Args:
        gateway: The gateway of this member.
        status: Exit status of the process.
        code: Why it ends: `superseded`, `cut-off`, or another for a handover.
        end_log: Called when no connection is left, to end the calls of the log.
        close: Closes the journal, on a thread.
    """
    gateway.audit.record(FOLLOWING, code, revision=gateway.broker.committed_revision)
    gateway.clients.closed = True
    if code == "superseded":  # what waits for its clients may be wrong
        _cut(gateway)
    else:
        cut_off = code == "cut-off"
        await _expel(gateway, _CUT_OFF if cut_off else _STOPPING, _CUT_OFF_S if cut_off else _HANDED_OVER_S)
    end_log()
    with trio.move_on_after(_CLOSE_S):
        await trio.to_thread.run_sync(close, abandon_on_cancel=True)
        await trio.to_thread.run_sync(gateway.audit.close, abandon_on_cancel=True)
    logging.shutdown()
    os._exit(status)


async def _expel(gateway: "Gateway", error: ProtocolError, within_s: float) -> None:
    """End all connections of clients with an ERROR, which they get some time to read."""
    for connection in list(gateway.connections):
        connection.expel(error)
    if gateway.fronts is not None:
        gateway.fronts.dismiss(error, lasting=False)  # the others go on with the next leader
    with trio.move_on_after(within_s):
        while gateway.connections_open:  # noqa: ASYNC110  # a dictionary has no event
            await trio.sleep(_CHECK_S)
    _cut(gateway)


def _cut(gateway: "Gateway") -> None:
    """End all connections of clients at once. They need not wait for the end of the process."""
    for connection in list(gateway.connections):
        connection.cut("the gateway ends")
