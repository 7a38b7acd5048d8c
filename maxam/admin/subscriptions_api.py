"""The routes of subscriptions: all of them, and who is behind."""

from http import HTTPStatus
from math import inf
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import ApiError, RouteSpec, Rows, limit_of
from maxam.admin.description import (
    AFTER,
    COUNT,
    FLAG,
    LIMIT,
    NUMBER,
    SECONDS,
    TEXT,
    TIME,
    Parameter,
    described,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.admin.values import iso_time
from maxam.admin.view import SessionRow, View
from maxam.gateway.staleness import SubscriptionRow
from maxam.records import Identity

SUBSCRIPTIONS_PATH: Final = "/v1/subscriptions"
ROWS_PER_SLICE: Final = 25  # looked at before the event loop has its turn: about 1 ms if each is owed very much
CAUSES: Final = ("", "detached", "paused", "unacknowledged", "unread", "catching-up")

SUBSCRIPTION: Final = record(
    "Subscription",
    principal=TEXT,
    client_id=TEXT,
    id={"type": "string", "description": "of the SUBSCRIBE"},
    glob=TEXT,
    ack={**one_of("auto", "client", ""), "description": "empty while nothing is delivered"},
    durable=FLAG,
    delivering={**FLAG, "description": "false: it waits for its re-SUBSCRIBE, or is paused"},
    connected=FLAG,
    owed={**COUNT, "description": "topics of which it was not sent the newest change"},
    unacked={**COUNT, "description": "messages sent and not acknowledged"},
    oldest_owed_s=SECONDS,
    oldest_unacked_s=SECONDS,
    staleness_s={
        **NUMBER,
        "description": "the larger of both: how long it has lacked something; 0.0: it has everything",
    },
    behind={**FLAG, "description": "staleness_s is above behind_after_s; what is lacked for less is on its way"},
    conflated={**COUNT, "description": "changes that were replaced before it was sent them"},
    window=nullable({"type": "integer", "description": "un-acked messages that its connection may have now"}),
    cause={**one_of(*CAUSES), "description": "why it lacks something, as far as the broker can tell"},
)


@described(
    "Subscriptions in order of principal, client-id and id",
    page("subscriptions", SUBSCRIPTION),
    (
        Parameter("principal", TEXT, "only those of this principal"),
        Parameter("client_id", TEXT, "only those of sessions with this client-id"),
        AFTER,
        LIMIT,
    ),
)
async def _subscriptions(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    text = request.query_params.get("after")
    cursor = None if text is None else _cursor(text)
    principal, client_id = request.query_params.get("principal"), request.query_params.get("client_id")
    rows = Rows("subscriptions")
    more = True
    while more and len(rows) < limit:
        found, cursor, more = view.subscriptions_after(
            cursor, min(limit - len(rows), ROWS_PER_SLICE), principal, client_id
        )
        rows.add([fields_of(row) for row in found])
        await trio.lowlevel.checkpoint()
    following = (
        "/".join(quote(part, safe="") for part in cursor if part is not None) if more and cursor is not None else None
    )
    return rows.answer(following)


@described(
    "Subscriptions that are behind, the one that has lacked something for longest first",
    record(as_of=TIME, behind=COUNT, looked_at=COUNT, behind_after_s=SECONDS, subscriptions=listed(SUBSCRIPTION)),
    (
        LIMIT,
        Parameter(
            "min_s",
            {**NUMBER, "minimum": 0},
            "those whose staleness is at least so many seconds, behind or not; 0: whoever lacks anything at this moment",
        ),
    ),
    text="""Behind is who has lacked something for longer than `behind_after_s`, the limit `staleness_behind_s` of the configuration; `behind` says how many they are.
Found at most a second ago, or, where there are very many, 20 times what it takes to look at all.""",
)
async def _slow(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    min_s = _seconds(request)
    look = await view.staleness.look()
    worst = [row for row in look.worst[:limit] if (row.behind if min_s is None else row.staleness_s >= min_s)]
    rows = Rows("subscriptions")
    for start in range(0, len(worst), ROWS_PER_SLICE):
        rows.add([fields_of(row) for row in worst[start : start + ROWS_PER_SLICE]])
        await trio.lowlevel.checkpoint()
    return rows.within(
        as_of=iso_time(look.at_us),
        behind=look.behind,
        looked_at=look.looked_at,
        behind_after_s=view.staleness.behind_after_s,
    )


def fields_of(row: SubscriptionRow | SessionRow) -> dict[str, Any]:
    """Return the fields of a row, whose values are plain: `asdict` copies them, and takes four times as long."""
    return {name: getattr(row, name) for name in row.__slots__}


def _seconds(request: Request) -> float | None:
    text = request.query_params.get("min_s")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "min_s must be a number of seconds, 0 or more")
    return seconds


def _cursor(text: str) -> tuple[str, str, str | None]:
    parts = [unquote_to_bytes(part).decode(errors="replace") for part in text.split("/")]
    if len(parts) not in {2, 3}:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "after must be the `next` of the page before")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", SUBSCRIPTIONS_PATH, "read", _subscriptions),
    ("GET", SUBSCRIPTIONS_PATH + "/slow", "read", _slow),
)
