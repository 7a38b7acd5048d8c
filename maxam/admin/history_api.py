"""The route of a topic's history: its changes out of the journal, newest first."""

import os
from http import HTTPStatus
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, ApiError, RouteSpec, flag_of, limit_of
from maxam.admin.description import (
    ANYTHING,
    BASE64,
    COUNT,
    FLAG,
    LIMIT,
    TEXT,
    WHOLE,
    Parameter,
    described,
    extended,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.admin.history_process import HistoryRequest, history
from maxam.admin.personal import PII, tell_given, wants_personal
from maxam.admin.topic_schemas import TOPIC
from maxam.admin.view import View
from maxam.errors import ConfigurationError
from maxam.globs import destination_problem
from maxam.records import Identity

AT_A_TIME: Final = 2  # processes that read the journal
_DIGITS_MAX: Final = 18
_CHANGE: Final = extended(
    TOPIC,
    "Change",
    ("value_state", "headers", "value", "pii_masked", "problem", "value_offset", "value_length", "body"),
    deleted=FLAG,
    value_state=one_of("decoded", "raw", "undecoded", "withheld", "deleted"),
    headers=listed(listed(TEXT)),
    value=ANYTHING,
    pii_masked=FLAG,
    problem=TEXT,
    value_offset=COUNT,
    value_length=WHOLE,
    body=BASE64,
)
_PROBLEM: Final = record(
    "JournalProblem",
    kind=one_of("damaged", "missing", "expired", "unreadable"),
    file=TEXT,
    offset=COUNT,
    first=nullable(COUNT),
    last=nullable(COUNT),
    text=TEXT,
    lost=FLAG,
)


class _Rendered(Answer):
    """JSON that is there already: to read it, and write it again, would take the event loop its time."""

    def render(self, content: bytes) -> bytes:
        """Take it as it is."""
        return content


@described(
    "The changes of one topic, newest first, out of the journal",
    record(
        "History",
        changes=listed(_CHANGE),
        next=nullable(COUNT),
        lost=FLAG,
        problems=listed(_PROBLEM),
        pii_given={**FLAG, "description": "whether the values may hold fields that schemas mark as personal"},
    ),
    (
        Parameter("before", {"type": "integer", "minimum": 1}, "only lower revisions: `next` of the page before"),
        LIMIT,
        Parameter("values", {"type": "string", "enum": ["true", "false"], "default": "true"}, "with their values"),
        PII,
    ),
    errors={
        400: "`invalid-destination`: no topic can be called so",
        409: "`journal-unreadable`: the journal's folder cannot be read",
        503: "`busy`: try again",
    },
    text="""Bounded by time and bytes: a page may have few changes, even none, and a `next`. `problems` tells what of the range of the page cannot be read
or was removed; `lost`: something that was accepted is missing, of this topic perhaps.""",
)
async def _history(view: View, request: Request, caller: Identity) -> Response:
    destination: str = request.path_params["destination"]
    problem = destination_problem(destination.encode(), view.destination_bytes_max)
    if problem is not None:  # to look for it would take as long as for any
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-destination", problem)
    values, with_pii = flag_of(request, "values", default=True), wants_personal(request)
    before, limit = _before(request), limit_of(request)
    try:
        async with _reading():
            withheld = not view.may_receive(caller.principal, destination.encode())
            folder = os.fspath(view.journal_settings.folder)
            wanted = HistoryRequest(folder, destination, before, limit, values, withheld, with_pii)
            content, personal = await history(wanted)
        if not withheld and not view.may_receive(caller.principal, destination.encode()):
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE, "busy", "the right to receive this topic has gone; try again"
            )
    except ConfigurationError as error:
        raise ApiError(HTTPStatus.CONFLICT, "journal-unreadable", str(error)) from error
    except OSError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", f"{error}; try again") from error
    if personal:
        tell_given(view, request, caller, destination)
    return _Rendered(content)


_limiter: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("readers of history")


def _reading() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(AT_A_TIME)
        _limiter.set(limiter)
        return limiter


def _before(request: Request) -> int | None:
    text = request.query_params.get("before")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text)):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "before must be a revision, 1 or more")
    return int(text)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/history/{destination:path}", "read", _history),)
