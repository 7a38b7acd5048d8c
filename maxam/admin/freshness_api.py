"""The route of topics that are older than their rule allows."""

from http import HTTPStatus
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import RouteSpec, Rows, glob_of, limit_of
from maxam.admin.description import AFTER, COUNT, FLAG, GLOB, LIMIT, SECONDS, TEXT, TIME, described, page, record
from maxam.admin.live import EVERY_TOPIC
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.gateway.freshness import Overdue
from maxam.records import Identity

OVERDUE_PATH: Final = "/v1/overdue"
LOOKED_AT_PER_SLICE: Final = 250  # before the event loop has its turn: less than 1 ms
ROWS_PER_SLICE: Final = 50  # made likewise
SLICES_MAX: Final = 100  # of one page: it may be short, even empty

OVERDUE: Final = record(
    "OverdueTopic",
    destination=TEXT,
    accepted_at=TIME,
    age_s=SECONDS,
    fresh_within_s={"type": "number", "description": "what its rule allows, in seconds"},
    overdue_s={"type": "number", "description": "seconds that it is older"},
    publisher=TEXT,
    revision=COUNT,
)


@described(
    "Topics that are older than their rule allows, in byte order of their destinations",
    page(
        "overdue",
        OVERDUE,
        count={"type": "integer", "minimum": 0, "description": "how many are, of all topics"},
        settled=FLAG,
    ),
    (GLOB, AFTER, LIMIT),
    errors={HTTPStatus.BAD_REQUEST: "`invalid-glob`."},
    text="`settled` is false while topics are still to be looked at, for some seconds after a start and after a reload that changed "
    "contracts: what is listed is overdue, but more may be.",
)
async def _overdue(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    glob = glob_of(view, request.query_params.get("glob", EVERY_TOPIC))
    after = request.query_params.get("after")
    cursor = None if after is None else after.encode()
    rows = Rows("overdue")
    for _ in range(SLICES_MAX):
        matches_max = min(limit - len(rows), ROWS_PER_SLICE)
        found, cursor = view.freshness.overdue_slice(glob, cursor, LOOKED_AT_PER_SLICE, matches_max)
        rows.add([_row(one) for one in found])
        if cursor is None or len(rows) == limit:
            break
        await trio.lowlevel.checkpoint()
    following = None if cursor is None else cursor.decode()
    return rows.answer(following, count=view.freshness.count, settled=view.freshness.settled)


def _row(one: Overdue) -> dict[str, object]:
    change = one.change
    return {
        "destination": change.destination.decode(),
        "accepted_at": iso_time(change.accepted_at_us),
        "age_s": round(one.age_s, 3),
        "fresh_within_s": one.fresh_within_s,
        "overdue_s": round(one.age_s - one.fresh_within_s, 3),
        "publisher": change.publisher.principal,
        "revision": change.revision,
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", OVERDUE_PATH, "read", _overdue),)
