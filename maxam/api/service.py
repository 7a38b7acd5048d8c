"""The admin listener, and the enrolment listener where one is wanted, as a service of the gateway."""

import ipaddress
import logging
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

import h11
import trio

from maxam.api.application import make_application
from maxam.api.browsers import KnownByName, is_known
from maxam.api.est import make_est
from maxam.api.listener import Upgradable, serve_https
from maxam.api.listener_limits import ListenerLimits
from maxam.api.places import Standing
from maxam.api.view import View
from maxam.api.web_values import values_of
from maxam.enrolment.enrolment import Enrolment
from maxam.errors import ConfigurationError
from maxam.gateway.listener import address_text
from maxam.gateway.log import LogLimit, log_event
from maxam.gateway.revocation import Chain
from maxam.gateway.server import Gateway
from maxam.gateway.tls_credentials import server_context
from maxam.gateway.web_socket import WebSocket
from maxam.gateway.web_upgrade import STOMP_PATH, Refusal, Upgrade, path_of, validate

# Unauthenticated clients may connect here, and each of them has one thing to ask.
_ENROLMENT_LIMITS: Final = ListenerLimits(
    request_head_timeout_s=5.0,
    request_head_bytes_max=8192,
    connections_per_address_max=8,
    oldest_makes_room=True,
    name="enrolment",
)


async def serve_admin(gateway: Gateway, *, task_status: trio.TaskStatus[list[str]]) -> None:
    """Serve the admin API of a gateway, and enrolment, until cancelled. Report `host:port` of each once it listens.

    Raises:
        ConfigurationError: An address cannot be listened on, or the authority of enrolment cannot be used.
    """
    settings = gateway.settings
    enrolment: Enrolment | None = None
    if settings.enrolment.folder is not None:
        enrolment = await trio.to_thread.run_sync(Enrolment, gateway)
    listeners = await _listen("admin", settings.admin.host, settings.admin.port)
    host, port = listeners[0].socket.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        log_event(logging.WARNING, "admin-listener-exposed", address=host, action="have a firewall in front of it")
    addresses = [address_text(host, port)]
    configured = {settings.admin.host.lower(), *(name.lower() for name in settings.admin.hosts)}

    def names() -> Collection[str]:
        return configured.union(gateway.reloader.loaded.certificate.dns_names)

    application = KnownByName(make_application(View(gateway, enrolment)), names)
    if gateway.web is not None:
        gateway.web.values = values_of(gateway, gateway.web)
    async with trio.open_nursery() as nursery:
        if enrolment is not None:
            addresses.append(await nursery.start(_serve_enrolment, gateway, enrolment))
        task_status.started(addresses)
        await serve_https(
            application,
            listeners,
            lambda: gateway.tls,
            ListenerLimits(handshake_bytes_max=settings.limits.tls_handshake_bytes_max),
            admin_connections=gateway.access.admin_connections,
            refused=gateway.audit.refused,
            failures=gateway.clients.accept_failures,
            standing=partial(_standing, gateway),
            upgrade=partial(_upgrade, gateway, names),
        )


async def _upgrade(gateway: Gateway, names: Callable[[], Collection[str]], asking: Upgradable) -> None:
    """Answer a request for a WebSocket: STOMP for a client with a certificate, and for pages that this listener served."""
    outcome = _validate(gateway, names(), asking.request)
    if isinstance(outcome, Refusal):
        with trio.move_on_after(1.0), suppress(trio.BrokenResourceError):
            await asking.tls.send_all(outcome.answer())
            await asking.transport.send_eof()
            while await asking.transport.receive_some():
                pass
        gateway.audit.refused("admin", address_text(*asking.peer), f"HTTP {outcome.status:d} {outcome.code}")
        return
    try:
        await asking.tls.send_all(outcome.answer)
    except trio.BrokenResourceError:
        return
    client = asking.client
    tls = asking.take(gateway.settings.limits)
    web_socket = WebSocket(tls, outcome.frames, asking.held, trio.current_time)
    gateway.clients.adopt(web_socket, *asking.peer, client.fingerprint, client.chain, client.tls_version)


def _validate(gateway: Gateway, names: Collection[str], request: h11.Request) -> Upgrade | Refusal:
    host = next((value.decode("latin-1") for name, value in request.headers if name == b"host"), "")
    if path_of(request) != STOMP_PATH:
        return Refusal(HTTPStatus.NOT_FOUND, "not-found", "no WebSocket has this path; there is /stomp")
    if not is_known(host, names):
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "unknown-host", "list the name in [admin] hosts")
    if not gateway.clients.adopts:
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "this process serves no clients, or none more, now")
    return validate(request, {f"https://{host.lower()}"})  # a page that was served from here has this origin


def _standing(gateway: Gateway, fingerprint: str, chain: Chain) -> Standing:
    """Return the standing of a certificate at the admin listener."""
    principal = gateway.policy.principal_of(fingerprint)
    if principal is None or gateway.denial(chain) is not None:
        return Standing()
    rights = gateway.policy.rights(principal).admin
    return Standing(principal, 3 if "write" in rights else 2 if rights else 1)


async def _serve_enrolment(gateway: Gateway, enrolment: Enrolment, *, task_status: trio.TaskStatus[str]) -> None:
    settings = gateway.settings.enrolment
    await enrolment.recover()
    listeners = await _listen("enrolment", settings.host, settings.port)
    host, port = listeners[0].socket.getsockname()[:2]
    enrolment.address = (settings.host, port)
    view = View(gateway)
    log_limit = LogLimit(gateway.settings.limits.log_lines_per_minute_max)
    est = make_est(enrolment, view.denial, settings.failures_per_minute_max, log_limit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(enrolment.run)
        task_status.started(address_text(host, port))
        await serve_https(
            est,
            listeners,
            _Contexts(gateway),
            replace(_ENROLMENT_LIMITS, handshake_bytes_max=gateway.settings.limits.tls_handshake_bytes_max),
            refused=gateway.audit.refused,
            failures=gateway.clients.accept_failures,
        )


class _Contexts:
    """Makes the context of enrolment connections: as the gateway's own, but clients without a certificate are allowed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway: Final = gateway
        self._made_of: tuple[object, object] = (None, None)
        self._context: ssl.SSLContext

    def __call__(self) -> ssl.SSLContext:
        """Return the one for the next connection."""
        loaded = self._gateway.reloader.loaded
        if self._made_of != (loaded.certificate, loaded.authorities):
            minimum = self._gateway.settings.tls.minimum
            self._context = server_context(loaded.certificate, loaded.authorities, minimum)
            self._context.verify_mode = ssl.CERT_OPTIONAL
            self._made_of = (loaded.certificate, loaded.authorities)
        return self._context


async def _listen(section: str, host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise ConfigurationError(
            f"[{section}] host and port: cannot listen on {address_text(host, port)}:"
            f" {error.strerror or error}; is another gateway running, or the address not of this machine?"
        ) from error
