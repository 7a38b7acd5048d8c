"""The route of topics that are older than their rule allows."""

from typing import Final

from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.description import COUNT, FLAG, NUMBER, SECONDS, TEXT, TIME, described, page, record
from maxam.api.parameters import AFTER, GLOB, LIMIT
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.freshness import Overdue

LOOKED_AT_PER_SLICE: Final = 250  # before the event loop runs other tasks: less than 1 ms
ROWS_PER_SLICE: Final = 50  # made likewise


@Description(
    "Topics that are older than their rule allows, in byte order of their destinations",
    page(
        "overdue",
        record(
            "OverdueTopic",
            destination=TEXT,
            accepted_at=TIME,
            age_s=SECONDS,
            fresh_within_s=described(NUMBER, "age that its rule allows, in seconds"),
            overdue_s=described(NUMBER, "seconds that it is older"),
            publisher=TEXT,
            revision=COUNT,
        ),
        count=described(COUNT, "overdue topics, of all topics"),
        settled=FLAG,
    ),
    (GLOB, AFTER, LIMIT),
    text="`settled` is false while topics are still to be checked: for some seconds after a start, and after a reload that changed "
    "contracts. Listed topics are overdue, but more may be.",
)
async def _overdue(call: Call) -> Response:
    freshness = call.gateway.freshness

    async def read(cursor: bytes | None, most: int) -> tuple[list[dict[str, object]], bytes | None]:
        found, following = freshness.overdue_batch(call[GLOB], cursor, LOOKED_AT_PER_SLICE, most)
        return [_row(one) for one in found], following

    rows = Rows("overdue")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[AFTER], read)
    return rows.answer(following, count=freshness.count, settled=freshness.settled)


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


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/overdue", "read", _overdue),)
