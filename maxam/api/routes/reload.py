"""Routes of reloads: request one, show the results, list the topics that no rule covers any longer."""

from dataclasses import asdict
from itertools import islice
from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer, Rows
from maxam.api.description import COUNT, TEXT, TIME, listed, one_of, page, record, row_of
from maxam.api.parameters import AFTER, LIMIT, flag
from maxam.api.routes.health import degraded_reasons
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.broker.broker import Broker
from maxam.gateway.reload import REFUSED, RELOADED, UNCHANGED
from maxam.records import Change

RELOAD_PATH: Final = "/v1/reload"
ROWS_PER_SLICE: Final = 100
LOOKED_AT_PER_SLICE: Final = 250  # topics, each with its rule, before the event loop runs other tasks
_ALLOW_ORPHANS: Final = flag("allow_orphans", "new schemas may take the rule from topics with a value, this once")
_ITEM: Final = record(
    "ReloadItem", item=TEXT, loaded_at=TIME, reloaded=COUNT, refused=COUNT, failure=TEXT, files=listed(TEXT)
)


@Description(
    "Reload changed files, and wait until they are in force",
    record(
        items=listed(
            record(
                "Outcome",
                item=TEXT,
                outcome=one_of(UNCHANGED, RELOADED, REFUSED),
                detail=TEXT,
                files=listed(TEXT),
                loaded_at=TIME,
            )
        )
    ),
    (_ALLOW_ORPHANS,),
)
async def _reload(call: Call) -> Response:
    outcomes = await call.gateway.reloader.reload(f"admin:{call.caller.principal}", call[_ALLOW_ORPHANS])
    since = {item: iso_time(int(state.loaded_at_s * 1e6)) for item, state in call.gateway.reloader.items.items()}
    return Answer({"items": [asdict(outcome) | {"loaded_at": since[outcome.item]} for outcome in outcomes]})


@Description(
    "State of each item: when it was loaded, and why the files on disk cannot be used",
    record(items=listed(_ITEM), degraded=listed(TEXT)),
)
async def _status(call: Call) -> Response:
    reloader = call.gateway.reloader
    rows = [
        row_of(_ITEM, state, item=item, loaded_at=iso_time(int(state.loaded_at_s * 1e6)), files=reloader.files(item))
        for item, state in reloader.items.items()
    ]
    return Answer({"items": rows, "degraded": degraded_reasons(call.gateway)})


@Description(
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
async def _orphans(call: Call) -> Response:
    async def read(cursor: bytes | None, most: int) -> tuple[list[dict[str, object]], bytes | None]:
        changes, following = _orphans_after(call.gateway.broker, cursor, most)
        return [_orphan_row(change) for change in changes], following

    rows = Rows("orphans")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[AFTER], read)
    return rows.answer(following)


def _orphans_after(broker: Broker, after: bytes | None, most: int) -> tuple[list[Change], bytes | None]:
    """Return the next topics with a value and without a rule, and where to go on. None at the end."""
    topics, rule_for = broker.store.topics, broker.registry.rule_for
    orphans: list[Change] = []
    looked_at = 0
    for name in islice(broker.store.names_after(b"", after), LOOKED_AT_PER_SLICE):
        looked_at += 1
        after = name
        topic = topics[name]
        if not topic.change.deleted and rule_for(topic.name) is None:
            orphans.append(topic.change)
            if len(orphans) == most:
                return orphans, name
    return orphans, after if looked_at == LOOKED_AT_PER_SLICE else None


def _orphan_row(change: Change) -> dict[str, object]:
    return {
        "destination": change.destination.decode(),
        "revision": change.revision,
        "accepted_at": iso_time(change.accepted_at_us),
        "publisher": change.publisher.principal,
        "schema": change.validation.schema,
        "schema_version": change.validation.schema_version,
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("POST", RELOAD_PATH, "write", _reload),
    ("GET", RELOAD_PATH, "read", _status),
    ("GET", "/v1/orphans", "read", _orphans),
)
