"""Routes of the admin API: a handler, the right that it needs, and the description of its input and output.

The description is checked at each request, and served as OpenAPI (`openapi`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar, final
from urllib.parse import unquote_to_bytes

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.api.answers import JSON_TYPE, ApiError
from maxam.api.description import Schema
from maxam.api.listener import CHAIN
from maxam.api.parameters import Parameter, flag, read_query
from maxam.api.values.reader import Reader
from maxam.api.view import View
from maxam.gateway.audit import ADMIN
from maxam.gateway.listener import address_text
from maxam.gateway.server import Gateway
from maxam.records import Identity

ANY_CERTIFICATE: Final = "any certificate"
ANY_PRINCIPAL: Final = "any principal"
_T = TypeVar("_T")


@final
class Call:
    """One request of an admitted caller.

    Attributes:
        view: The state of the gateway.
        request: The request.
        caller: Its sender.
        reader: The sender with its rights to receive.
    """

    def __init__(self, view: View, request: Request, caller: Identity, reader: Reader | None = None) -> None:
        """Make it; without a reader the rights are those of the caller's certificate."""
        self.view: Final = view
        self.request: Final = request
        self.caller: Final = caller
        self.reader: Final = self._by_certificate() if reader is None else reader
        self.values: Mapping[str, Any] = {}

    def _by_certificate(self) -> Reader:
        view, caller = self.view, self.caller
        chain = self.request.scope.get("state", {}).get(CHAIN)

        def denial() -> tuple[str, str] | None:
            problem = view.denial(chain)
            if problem is not None:
                return "certificate-refused", problem
            if view.principal_of(caller.fingerprint) != caller.principal:
                return "forbidden", "this certificate stands for another principal now, or for none"
            return None

        return Reader(caller, lambda: view.policy.rights(caller.principal), denial)

    @property
    def gateway(self) -> Gateway:
        """The gateway."""
        return self.view.gateway

    @property
    def destination(self) -> str:
        """The destination in the path."""
        return self.segment("destination")

    def segment(self, name: str) -> str:
        """Return a parameter of the path."""
        value: str = self.request.path_params[name]
        return value

    def segments(self, below: str, names: tuple[str, ...], action: str = "") -> tuple[str, ...]:
        """Return the segments of the path between `below` and `action`. Each may hold any character, `/` too, percent-encoded."""
        raw_path: bytes = self.request.scope["raw_path"]
        found = raw_path.removeprefix(below.encode() + b"/").removesuffix(action.encode()).split(b"/")
        if len(found) != len(names):
            raise not_found(f"expected {'/'.join([f'<{name}>' for name in names])}, each percent-encoded")
        return tuple([unquote_to_bytes(one).decode(errors="replace") for one in found])

    def __getitem__(self, parameter: Parameter[_T]) -> _T:
        """Return the value of a declared parameter of the query."""
        value: _T = self.values[parameter.name]
        return value

    def may_receive(self, destination: bytes) -> bool:
        """Return True if the caller may see values of a topic."""
        return self.view.may_receive(self.caller.principal, destination)

    def audit(self, outcome: str, reason: str) -> None:
        """Write a line about this request into the audit log."""
        request = self.request
        address = "" if request.client is None else address_text(*request.client)
        path = request.scope["path"]
        self.gateway.audit.record(ADMIN, outcome, self.caller, address, reason, method=request.method, path=path)


# Fields that schemas mark as personal. Without the parameter they are shown, within the receive rights, as to any subscriber. The
# console requests values without them.
PII: Final = flag(
    "pii",
    "`false`: without the fields that schemas mark as personal. If they are shown, the audit log has a line",
    default=True,
)


def record_personal(call: Call, what: str) -> None:
    """Write into the audit log that the caller was given personal fields of a destination, or of a glob of topics."""
    call.audit("done", f"with personal fields of {what}")


Handler = Callable[[Call], Awaitable[Response]]


@final
@dataclass(frozen=True, slots=True)
class Description:
    """The input and output of a route. It is the decorator of its handler.

    Attributes:
        summary: Effect of the route, one line.
        answer: Schema of the answer.
        query: All parameters of its query. Others are refused by our own API.
        path: Path in OpenAPI, where the route's own path matches more.
        body: Schema of the JSON body of a request. None if it has none.
        bodies: Schemas of bodies of other media types.
        errors: Texts of the statuses that it answers besides those that any route may.
        also: Answers of other statuses that are no errors, or not in their form.
        status: Status of the answer.
        media_type: Media type of the answer.
        text: Further explanation, Markdown.
        dialect: `confluent` gives errors the form of Confluent's registry, and skips unknown parameters as it does. `lenient` only
            skips unknown parameters, because probes and scrapers may add any.
    """

    summary: str
    answer: Schema
    query: tuple[Parameter[Any], ...] = ()
    path: str | None = None
    body: Schema | None = None
    bodies: Mapping[str, Schema] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    also: Mapping[int, tuple[str, Schema | None]] = field(default_factory=dict)
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = JSON_TYPE
    text: str = ""
    dialect: Literal["own", "confluent", "lenient"] = "own"

    def __call__(self, handler: Handler) -> "Described":
        """Describe a handler."""
        return Described(handler, self)


@final
class Described:
    """A handler with its description.

    Attributes:
        description: Input and output of the handler.
    """

    def __init__(self, handler: Handler, description: Description) -> None:
        self._handler: Final = handler
        self.description: Final = description

    async def __call__(self, call: Call) -> Response:
        """Handle a request, once its parameters are valid."""
        if self.description.dialect == "own":
            call.values = read_query(call.request, self.description.query, call.gateway.broker.limits)
        return await self._handler(call)


# Method, path, right (an admin right of the policy, or one of the two ANY_), handler.
RouteSpec = tuple[str, str, str, Handler]

_limiters: Final = trio.lowlevel.RunVar[dict[str, trio.CapacityLimiter]]("limiters of routes")


def at_a_time(name: str, most: int) -> trio.CapacityLimiter:
    """Return the limiter of an expensive step, common to all requests: at most `most` of them run it at a time."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {}
        _limiters.set(limiters)
    return limiters.setdefault(name, trio.CapacityLimiter(most))


def not_found(detail: str) -> ApiError:
    """Return the error of a request for a thing that does not exist."""
    return ApiError(HTTPStatus.NOT_FOUND, "not-found", detail)
