"""Tell systemd what state the service is in."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send `state`, such as `READY=1`, to the service manager that started us, if one did."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(state.encode())
