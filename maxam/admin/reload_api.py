"""Routes of reloading: have it done, see what became of it, list the topics that no rule covers any more."""

from dataclasses import asdict
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, RouteSpec, Rows, flag_of, limit_of
from maxam.admin.description import AFTER, COUNT, LIMIT, TEXT, TIME, described, flag, listed, one_of, page, record
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.gateway.reload import REFUSED, RELOADED, UNCHANGED
from maxam.records import Identity

ROWS_PER_SLICE: Final = 100
SLICES_MAX: Final = 100  # of topics that one page of orphans looks at, so that a page without any cannot last


@described(
    "Have changed files put into force, and wait until they are",
    record(
        items=listed(
            record("Outcome", item=TEXT, outcome=one_of(UNCHANGED, RELOADED, REFUSED), detail=TEXT, files=listed(TEXT))
        )
    ),
    (flag("allow_orphans", "new schemas may take the rule from topics with a value, this once"),),
)
async def _reload(view: View, request: Request, caller: Identity) -> Response:
    outcomes = await view.reloader.reload(f"admin:{caller.principal}", flag_of(request, "allow_orphans"))
    return Answer({"items": [asdict(outcome) for outcome in outcomes]})


@described(
    "Since when each item is in force, and what cannot be used",
    record(
        items=listed(
            record(
                "ReloadItem", item=TEXT, loaded_at=TIME, reloaded=COUNT, refused=COUNT, failure=TEXT, files=listed(TEXT)
            )
        ),
        degraded=listed(TEXT),
    ),
)
async def _status(view: View, _request: Request, _caller: Identity) -> Response:
    rows = [
        {
            "item": item,
            "loaded_at": iso_time(int(state.loaded_at_s * 1e6)),
            "reloaded": state.reloaded,
            "refused": state.refused,
            "failure": state.failure,
            "files": view.reloader.files(item),
        }
        for item, state in view.reloader.items.items()
    ]
    return Answer({"items": rows, "degraded": view.degraded_reasons()})


@described(
    "Topics with a value that no rule covers",
    page(
        "orphans",
        record(
            "Orphan",
            destination=TEXT,
            revision=COUNT,
            accepted_at=TIME,
            publisher=TEXT,
            schema=TEXT,
            schema_version=TEXT,
        ),
    ),
    (AFTER, LIMIT),
)
async def _orphans(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    after = request.query_params.get("after")
    cursor = None if after is None else after.encode()
    rows = Rows("orphans")
    for _ in range(SLICES_MAX):
        changes, cursor = view.orphans_slice(cursor, min(limit - len(rows), ROWS_PER_SLICE))
        found: list[dict[str, object]] = [
            {
                "destination": change.destination.decode(),
                "revision": change.revision,
                "accepted_at": iso_time(change.accepted_at_us),
                "publisher": change.publisher.principal,
                "schema": change.judgement.schema,
                "schema_version": change.judgement.schema_version,
            }
            for change in changes
        ]
        rows.add(found)
        if cursor is None or len(rows) == limit:
            break
        await trio.lowlevel.checkpoint()
    return rows.answer(None if cursor is None else cursor.decode())


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("POST", "/v1/reload", "write", _reload),
    ("GET", "/v1/reload", "read", _status),
    ("GET", "/v1/orphans", "read", _orphans),
)
