"""Pings to silent WebSockets.

Browsers answer them by themselves, also for a page that sleeps and sends its heart-beats late. The answer counts as a heart-beat.
"""

from collections.abc import Mapping
from typing import Final

import trio

from maxam.gateway.transport import Transport
from maxam.gateway.web_socket import WebSocket

_CHECK_S: Final = 2.5
_PING_S: Final = 30.0  # silence after which a client without heart-beats is sent a ping
_SILENT_S: Final = 90.0  # silence after which it is gone, though it was sent some
_PER_BATCH: Final = 500  # connections checked before other tasks run: less than 1 ms


async def keep_alive(web_sockets: Mapping[Transport, WebSocket]) -> None:
    """Send pings to silent clients, and cut off those that do not answer. Until cancelled.

    Heart-beats end a client that agreed on some, so here only the others are cut off.
    """
    while True:
        await trio.sleep(_CHECK_S)
        for at, (connection, web_socket) in enumerate(list(web_sockets.items()), 1):
            _check(connection, web_socket, trio.current_time())
            if at % _PER_BATCH == 0:
                await trio.lowlevel.checkpoint()


def _check(connection: Transport, web_socket: WebSocket, now_s: float) -> None:
    peer = connection.peer
    heard_at_s = None if peer is None else peer.heard_at_s
    if peer is None or heard_at_s is None:
        return  # CONNECT has a deadline
    silent_s = now_s - heard_at_s
    interval_s = peer.heart_beat_s or _PING_S
    if not peer.heart_beat_s and silent_s > _SILENT_S and web_socket.pinged_at_s > heard_at_s:
        connection.cut("did not answer pings")
    elif silent_s >= interval_s and now_s - web_socket.pinged_at_s >= interval_s:
        connection.ping(web_socket)
