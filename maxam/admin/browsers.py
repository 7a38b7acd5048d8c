"""What keeps web pages from using an operator's browser, which presents the operator's certificate to whoever asks it to.

Theory of operation. A page of another site can make a browser send requests here, with the certificate, but cannot read the answers
(nothing here allows it to, and `Cross-Origin-Resource-Policy` forbids embedding them), cannot send the header that writes need, and
is told apart by what browsers say of each request (`Sec-Fetch-Site`, `Origin`), which no page can change: such a request is refused
before anything is done for it, but for a link that leads to the console. A name of the attacker's that suddenly means this address
(DNS rebinding) would make its page one of ours, so the names by which we may be called are listed. An address needs no listing:
whose pages have an address for origin were served from that address.
"""

import ipaddress
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final, final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maxam.admin.answers import Answer, ApiError

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
# On every answer: what is JSON today may be opened in a tab tomorrow. No Strict-Transport-Security: it holds for a host with all its
# ports, so it would cut off other services of the machine, and here nothing is served without TLS that could be asked instead.
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
    """An ASGI application that is served only under names that are ours, with what browsers need to be told on every answer."""

    def __init__(self, application: ASGIApp, names: Callable[[], Collection[str]]) -> None:
        """Wrap an application.

        Args:
            application: What is served.
            names: Gives the names by which it may be called, in lower case, besides addresses: `*.example.org` stands for one
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
    """Say whether a `Host` header names us: by any address, as `localhost`, or by one of `names`."""
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
    """Return what a `Host` header names without its port, in lower case and without the dot that may end it."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or not (port.isdigit() or not port):
        name = host.strip()
    return name.lower().removesuffix(".")


def _misdirected(host: str) -> Answer:
    shown = host if len(host) <= HOST_SHOWN_CHARACTERS_MAX else host[:HOST_SHOWN_CHARACTERS_MAX] + "..."
    return Answer(
        {
            "error": "unknown-host",
            "detail": f"this gateway is not known as {shown!r}: call it by an address or by a name in its certificate, or"
            " name it in [admin] hosts of its configuration",
        },
        HTTPStatus.MISDIRECTED_REQUEST,
    )


def check_site(request: Request, writes: bool) -> None:
    """Refuse what a page of another site makes a browser ask; raises ApiError.

    Clients that are no browsers say nothing of sites, and pass.
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
