"""The admin listener as a service of the gateway."""

import ipaddress
import logging
from typing import TYPE_CHECKING, cast

import trio

from maxam.admin.api import make_application
from maxam.admin.listener import serve_https
from maxam.admin.view import View
from maxam.errors import ConfigurationError
from maxam.gateway.listener import address_text
from maxam.gateway.log import log_event

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

    from maxam.gateway.server import Gateway


async def serve_admin(gateway: "Gateway", *, task_status: trio.TaskStatus[str]) -> None:
    """Serve the admin API of a gateway until cancelled; tells `host:port` once it listens.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """
    settings = gateway.settings.admin
    try:
        listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
    except OSError as error:
        raise ConfigurationError(
            f"[admin] host and port: cannot listen on {address_text(settings.host, settings.port)}:"
            f" {error.strerror or error}; is another gateway running, or the address not of this machine?"
        ) from error
    host, port = listeners[0].socket.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        log_event(logging.WARNING, "admin-listener-exposed", address=host, action="have a firewall in front of it")
    task_status.started(address_text(host, port))
    application = cast("ASGIFramework", make_application(View(gateway)))  # two spellings of ASGI's types
    await serve_https(application, listeners, lambda: gateway.tls)
