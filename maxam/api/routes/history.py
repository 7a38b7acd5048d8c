"""The route of a topic's history: its changes out of the journal, newest first."""

import os
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer, ApiError
from maxam.api.description import (
    COUNT,
    FLAG,
    TEXT,
    described,
    extended,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.api.parameters import LIMIT, flag, whole
from maxam.api.routing import PII, Call, Description, RouteSpec, at_a_time, record_personal
from maxam.api.topic_schemas import TOPIC, VALUE_FIELDS
from maxam.api.view import View
from maxam.errors import ConfigurationError
from maxam.globs import destination_problem
from maxam.topic_history import HistoryRequest, history

AT_A_TIME: Final = 2  # processes that read the journal
_BEFORE: Final = whole("before", "only lower revisions: `next` of the page before", 1, 10**18 - 1, None)
_VALUES: Final = flag("values", "with their values", default=True)
_VALUE: Final = VALUE_FIELDS | {"value_state": one_of("decoded", "raw", "undecoded", "withheld", "deleted")}
_CHANGE: Final = extended(TOPIC, "Change", VALUE_FIELDS, deleted=FLAG, **_VALUE)
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


@Description(
    "The changes of one topic, newest first, out of the journal",
    record(
        "History",
        changes=listed(_CHANGE),
        next=nullable(COUNT),
        lost=FLAG,
        problems=listed(_PROBLEM),
        pii_given=described(FLAG, "whether the values may hold fields that schemas mark as personal"),
    ),
    (_BEFORE, LIMIT, _VALUES, PII),
    errors={
        400: "`invalid-destination`: no topic can have this name",
        409: "`journal-unreadable`: the journal's folder cannot be read",
        503: "`busy`: try again",
    },
    text="""Bounded by time and bytes: a page may have few changes, even none, and a `next`. `problems` lists the parts of the page's range that cannot be read
or were removed. `lost` means that an accepted change is missing, of this topic perhaps.""",
)
async def _history(call: Call) -> Response:
    destination = call.destination
    problem = destination_problem(destination.encode(), call.gateway.broker.limits.destination_bytes_max)
    if problem is not None:  # to search it would take as long as for any
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-destination", problem)
    try:
        async with at_a_time("history", AT_A_TIME):
            withheld = not call.may_receive(destination.encode())
            folder = os.fspath(call.gateway.settings.journal.folder)
            versions = _versions(call.view, destination) if call[_VALUES] else {}
            wanted = HistoryRequest(
                folder, destination, call[_BEFORE], call[LIMIT], call[_VALUES], withheld, call[PII], versions
            )
            content, personal = await history(wanted)
        if not withheld and not call.may_receive(destination.encode()):
            problem = "the right to receive this topic has gone; try again"
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", problem)
    except ConfigurationError as error:
        raise ApiError(HTTPStatus.CONFLICT, "journal-unreadable", str(error)) from error
    except OSError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", f"{error}; try again") from error
    if personal:
        record_personal(call, destination)
    return Answer(content)


def _versions(view: View, destination: str) -> dict[str, dict[str, str]]:
    """Return the schema texts of the types of the topic's rule and of its value, by version."""
    rule, change = view.registry.rule_for(destination), view.topic(destination.encode())
    names = {"" if rule is None else rule.schema, "" if change is None else change.validation.schema} - {""}
    return {name: {one.minor: one.schema.text.decode() for one in view.registry.versions(name)} for name in names}


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/history/{destination:path}", "read", _history),)
