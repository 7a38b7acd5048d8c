"""Keep web pages from using an operator's browser, which presents the operator's certificate for any page that asks it to.

Theory of operation. A page of another site can make a browser send requests here, with the certificate. It cannot read the answers
(nothing here allows it to, and `Cross-Origin-Resource-Policy` forbids embedding them). It cannot send the header that writes need.
Browsers mark each request with its origin (`Sec-Fetch-Site`, `Origin`), and no page can change that. A request of another site is
refused before anything is done for it, except for a link that leads to the console.

If a name of the attacker's suddenly means this address (DNS rebinding), its page would become one of ours. So the names by which we
may be called are listed. An address needs no listing: pages that have an address for origin were served from that address.
"""

import ipaddress
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final, final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maxam.api.answers import Answer, ApiError, problem

ANY_HOST: Final = "*"
HOST_SHOWN_CHARACTERS_MAX: Final = 80
# Pages that a link of another site may lead to.
ENTRANCES: Final = frozenset({"/", "/console", "/console/"})
CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # text of clients cannot become markup, not even by mistake
        "trusted-types 'none'",
    ]
)
# On every answer: JSON of today may be opened in a tab tomorrow. No Strict-Transport-Security: it holds for a host with all its ports,
# so it would cut off other services of the machine. And nothing here is served without TLS that could be asked instead.
SECURITY_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_SECURITY_LINES: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


@final
class KnownByName:
    """An ASGI application that is served only under our own names, with security headers for browsers on every answer."""

    def __init__(self, application: ASGIApp, names: Callable[[], Collection[str]]) -> None:
        """Wrap an application.

        Args:
            application: The application to serve.
            names: Returns the names by which it may be called, in lower case, besides addresses: `*.example.org` stands for one
                label more, `*` for any name.
        """
        self._application: Final = application
        self._names: Final = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [line for line in _SECURITY_LINES if line[0] not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            # HTTP/1.0 needs none; no browser speaks it.
            if hosts and not is_known(hosts[0], self._names()):
                await _misdirected(hosts[0])(scope, receive, send_with_headers)
                return
        await self._application(scope, receive, send_with_headers)


def is_known(host: str, names: Collection[str]) -> bool:
    """Return True if a `Host` header is ours: any address, `localhost`, or one of `names`."""
    name = host_name(host)
    if name == "localhost" or ANY_HOST in names or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        _, dot, domain = name.partition(".")
        return bool(dot) and f"*.{domain}" in names
    return True


def host_name(host: str) -> str:
    """Return the name in a `Host` header, in lower case, without its port and a final dot."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or not (port.isdigit() or not port):
        name = host.strip()
    return name.lower().removesuffix(".")


def _misdirected(host: str) -> Answer:
    shown = host if len(host) <= HOST_SHOWN_CHARACTERS_MAX else host[:HOST_SHOWN_CHARACTERS_MAX] + "..."
    return Answer(
        problem(
            "unknown-host",
            f"this gateway is not known as {shown!r}. Call it by an address or by a name in its certificate, or"
            " list the name in [admin] hosts of its configuration",
        ),
        HTTPStatus.MISDIRECTED_REQUEST,
    )


def check_site(request: Request, writes: bool) -> None:
    """Refuse requests that a page of another site makes a browser send. Raises ApiError.

    Clients that are no browsers send no site, and pass.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site", "none")
    origin = headers.get("origin")
    ours = f"https://{headers.get('host', '')}".lower()
    foreign = site not in {"same-origin", "none"} or (origin is not None and origin.lower() != ours)
    if not foreign:
        return
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if followed and origin is None and not writes and request.scope["path"] in ENTRANCES:
        return
    raise ApiError(
        HTTPStatus.FORBIDDEN, "cross-site", "a page of another site asked for this; only the console's own pages may"
    )
