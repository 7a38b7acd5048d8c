"""The answers of all routes of the admin API: JSON, pages of rows, and errors."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, TypeVar, final
from urllib.parse import quote

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

BATCHES_MAX: Final = 100  # that one page reads: a page whose filter matches little is short, and has a `next`
DISPOSITION_STATUS: Final = {
    "rejected-unauthorised": HTTPStatus.FORBIDDEN,
    "rejected-invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "rejected-unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}
JSON_TYPE: Final = "application/json"
# Private, as rights were checked: a cache that several share must not answer others.
REVALIDATED: Final = "private, no-cache"
IMMUTABLE: Final = "private, max-age=31536000, immutable"  # a year, the most that caches take
_ETAG: Final = re.compile(r'(?:W/)?("[^"]*")')
_Cursor = TypeVar("_Cursor")
_Row = TypeVar("_Row")


@final
class ApiError(Exception):
    """End a request with an error.

    Args:
        status: Of the answer.
        code: One of `maxam.error_codes`, or the result of a rejected SEND.
        detail: Cause and remedy.
        more: Further fields of the answer.
    """

    def __init__(self, status: HTTPStatus, code: str, detail: str, **more: str | int) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.body: Final[dict[str, str | int]] = {**problem(code, detail), **more}


def problem(code: str, detail: str) -> dict[str, str]:
    """Return the body of an error. `error` is the former name of `code`."""
    return {"code": code, "error": code, "detail": detail}


class Answer(JSONResponse):
    """JSON that no cache keeps and no browser takes for anything else. Bytes are JSON that was written before."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 as starlette declares it
        """Return the content as JSON."""
        return content if isinstance(content, bytes) else super().render(content)

    def init_headers(self, headers: Any = None) -> None:  # noqa: ANN401 as starlette declares it
        """Add the headers that forbid caches to keep the answer, and browsers to guess its type."""
        super().init_headers(headers)
        self.headers["cache-control"] = "no-store"
        self.headers["x-content-type-options"] = "nosniff"


@final
class Rows:
    """The rows of one page, written as JSON batch by batch: to write all at once would hold the event loop for too long."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._parts: Final[list[bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write further rows: at most as many as may be written before the event loop runs other tasks."""
        if rows:
            self._parts.append(_json(rows)[1:-1])
            self._count += len(rows)

    def add_texts(self, rows: Sequence[bytes]) -> None:
        """Add rows that are JSON already."""
        self._parts.extend(rows)
        self._count += len(rows)

    async def add_all(self, rows: Sequence[_Row], batch: int, row_of: Callable[[_Row], Mapping[str, object]]) -> None:
        """Write all rows of a list, `batch` of them before the event loop runs other tasks."""
        for start in range(0, len(rows), batch):
            self.add([row_of(one) for one in rows[start : start + batch]])
            await trio.lowlevel.checkpoint()

    async def fill(
        self,
        limit: int,
        batch: int,
        cursor: _Cursor | None,
        read: Callable[[_Cursor | None, int], Awaitable[tuple[list[dict[str, object]], _Cursor | None]]],
    ) -> _Cursor | None:
        """Read batches until the page is full, the listing ends, or BATCHES_MAX were read.

        Args:
            limit: Rows of the page.
            batch: Rows that are made before the event loop runs other tasks.
            cursor: Place where the page before ended. None begins.
            read: Reads the next rows after a cursor, at most the given number. It returns them and their end, None at the end of all.

        Returns:
            Where the next page begins. None at the end of all.
        """
        for _ in range(BATCHES_MAX):
            found, cursor = await read(cursor, min(limit - len(self), batch))
            self.add(found)
            if cursor is None or len(self) >= limit:
                break
            await trio.lowlevel.checkpoint()
        return cursor

    def answer(self, following: object, **more: object) -> Response:
        """Return the page. `following` is the cursor where the next one begins, None at the end."""
        return self.within(next=None if following is None else cursor_text(following), **more)

    def within(self, *others: "Rows", **more: object) -> Response:
        """Return an object that has the rows, all of them, beside those of others and other fields."""
        members = [b'"%s":[%s]' % (one._name.encode(), b",".join(one._parts)) for one in (self, *others)]  # noqa: SLF001 our own
        if more:
            members.append(_json(more)[1:-1])
        return Answer(b"{%s}" % b",".join(members))


def cursor_text(cursor: object) -> str:
    """Return a cursor as clients send it back: a destination, a number, or a tuple of texts that hold any character."""
    if isinstance(cursor, tuple):
        return "/".join([quote(part, safe="") for part in cursor])
    return cursor.decode() if isinstance(cursor, bytes) else str(cursor)


def cacheable(
    request: Request,
    content: bytes,
    tag: str,
    media_type: str = JSON_TYPE,
    caching: str = REVALIDATED,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer with content that a client may keep, or with 304 if the client has it already.

    Args:
        request: The request.
        content: The whole body.
        tag: Distinguishes this content from others of the same path, without quotes.
        media_type: Media type of the content.
        caching: REVALIDATED or IMMUTABLE.
        headers: Further headers.
    """
    etag = f'"{tag}"'
    known = request.headers.get("if-none-match", "")
    common = {"etag": etag, "cache-control": caching, "x-content-type-options": "nosniff"} | (headers or {})
    if known.strip() == "*" or etag in _ETAG.findall(known):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=common)
    return Response(content, media_type=media_type, headers=common)


def rendered(document: object) -> tuple[bytes, str]:
    """Return a document as JSON, and its tag."""
    content = _json(document)
    return content, sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


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
