"""What all families of the admin API's routes share: how they answer, which rights they name, how they read parameters."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maxam.admin.view import View
from maxam.errors import GlobError
from maxam.globs import Glob
from maxam.records import Identity

PAGE_MAX: Final = 200  # rows of one page: to make and write them takes 2 ms
PAGE_DEFAULT: Final = 100
DISPOSITION_STATUS: Final = {
    "rejected-unauthorised": HTTPStatus.FORBIDDEN,
    "rejected-invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "rejected-unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}
NAME_SHOWN_CHARACTERS_MAX: Final = 60
ANY_CERTIFICATE: Final = "any certificate"
ANY_PRINCIPAL: Final = "any principal"


@final
class ApiError(Exception):
    """End a request with an error."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, **more: str) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.body: Final = {"error": code, "detail": detail, **more}


class Answer(JSONResponse):
    """JSON that no cache keeps and no browser takes for anything else."""

    def init_headers(self, headers: Any = None) -> None:  # noqa: ANN401 as starlette declares it
        """Add what keeps caches and browsers from making something else of it."""
        super().init_headers(headers)
        self.headers["cache-control"] = "no-store"
        self.headers["x-content-type-options"] = "nosniff"


class _Written(Answer):
    """JSON that was written before."""

    def render(self, content: bytes) -> bytes:
        """Return it as it is."""
        return content


@final
class Rows:
    """The rows of one page, written as JSON as they come: all at once would hold the event loop for longer than to make them."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._parts: Final[list[bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write further rows: as many as may be written before the event loop has its turn."""
        if rows:
            self._parts.append(_json(rows)[1:-1])
            self._count += len(rows)

    def answer(self, following: str | None, **more: object) -> Response:
        """Return the page; `following` is where the next one begins, None at the end."""
        return self.within(next=following, **more)

    def within(self, *others: "Rows", **more: object) -> Response:
        """Return an object that has the rows, all of them, beside those of others and other fields."""
        members = [b'"%s":[%s]' % (one._name.encode(), b",".join(one._parts)) for one in (self, *others)]  # noqa: SLF001 our own
        if more:
            members.append(_json(more)[1:-1])
        return _Written(b"{%s}" % b",".join(members))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


Handler = Callable[[View, Request, Identity], Awaitable[Response]]
# Method, path, right (an admin right of the policy, or one of the two ANY_), handler.
RouteSpec = tuple[str, str, str, Handler]


def only_parameters(request: Request, *known: str) -> None:
    """Refuse a parameter that a route does not have: passed over, a misspelt filter would list everything; raises ApiError."""
    for name in request.query_params:
        if name not in known:
            shown = name if len(name) <= NAME_SHOWN_CHARACTERS_MAX else name[:NAME_SHOWN_CHARACTERS_MAX] + "..."
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "invalid-parameter",
                f"unknown parameter {shown!r}; {request.scope['path']} has {', '.join(known)}",
            )


def limit_of(request: Request) -> int:
    """Read how many rows a page shall have at most; raises ApiError."""
    text = request.query_params.get("limit", str(PAGE_DEFAULT))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= PAGE_MAX):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"limit must be a number from 1 to {PAGE_MAX}")
    return int(text)


def flag_of(request: Request, name: str, *, default: bool = False) -> bool:
    """Read a parameter that is `true` or `false`; raises ApiError."""
    text = request.query_params.get(name, "true" if default else "false")
    if text not in {"true", "false"}:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"{name} must be true or false")
    return text == "true"


def glob_of(view: View, text: str) -> Glob:
    """Compile a glob under the broker's limits; raises ApiError."""
    try:
        return view.glob(text)
    except GlobError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-glob", str(error)) from error


def require_accepted(answer: Mapping[str, str]) -> None:
    """Pass a SEND that was accepted; raises ApiError, with its disposition, for one that was not."""
    disposition = answer["disposition"]
    if disposition != "accepted":
        raise ApiError(
            DISPOSITION_STATUS[disposition],
            answer.get("result", disposition),
            answer.get("reason", disposition),
            disposition=disposition,
        )
