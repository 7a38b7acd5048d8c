"""Routes of backups: make one in the configured folder, list them, show one."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer, ApiError
from maxam.api.description import COUNT, FLAG, TEXT, TIME, described, nullable, one_of, page, record
from maxam.api.parameters import LIMIT, text
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.avro.json.decoding import iso_time
from maxam.gateway.backups import BackupRow, BackupRunningError, BackupsOffError

BACKUPS_PATH: Final = "/v1/backups"
_AFTER: Final = text("after", "`next` of the page before. Without it, begin")
_ROW: Final = record(
    "Backup",
    name=TEXT,
    state=one_of("running", "done", "failed"),
    begun_at=TIME,
    revision=nullable(COUNT),
    bytes=nullable(COUNT),
    files=nullable(COUNT),
    verified=nullable(described(FLAG, "every file was read again and found whole after it was made")),
    copied=nullable(described(FLAG, "`[admin] backup_hook` has copied it; null without a hook")),
    reason=nullable(TEXT),
)
_OFF: Final = "`backup-off`: `[admin] backups` is not set"


@Description(
    "List the backups, newest first",
    page(
        "backups",
        _ROW,
        folder=TEXT,
        kept=COUNT,
        next_at=nullable(described(TIME, "when the timer `[admin] backup_timer` asks for the next one")),
    ),
    (_AFTER, LIMIT),
    errors={409: _OFF},
    text="A `failed` one is none: `reason` has the last failures of this run, and the remains of crashes.",
)
async def _backups(call: Call) -> Response:
    limit, after = call[LIMIT], call[_AFTER]
    rows = [row for row in await _rows(call) if after is None or row.name < after]
    more = len(rows) > limit
    next_at_us = await call.gateway.backups.timer.next_at_us()
    return Answer(
        {
            "folder": str(call.gateway.backups.folder),
            "kept": call.gateway.backups.kept,
            "next_at": None if next_at_us is None else iso_time(next_at_us),
            "backups": [_row(row) for row in rows[:limit]],
            "next": rows[limit - 1].name if more else None,
        }
    )


@Description("Show one backup", _ROW, errors={404: "There is none of this name", 409: _OFF})
async def _backup(call: Call) -> Response:
    name = call.segment("name")
    for row in await _rows(call):
        if row.name == name:
            return Answer(_row(row))
    raise not_found(f"there is no backup {name}")


@Description(
    "Make a backup",
    _ROW,
    errors={409: f"{_OFF}; `backup-running` if one is under way"},
    text="Answered at once, while it is `running`; `GET` of its name shows when it is `done` or has `failed`. It is `running` until `[admin] backup_hook` has ended.",
)
async def _begin(call: Call) -> Response:
    try:
        return Answer(_row(await call.gateway.backups.begin()))
    except BackupsOffError as error:
        raise _off(error) from error
    except BackupRunningError as error:
        raise ApiError(HTTPStatus.CONFLICT, "backup-running", str(error)) from error


async def _rows(call: Call) -> list[BackupRow]:
    try:
        return await call.gateway.backups.rows()
    except BackupsOffError as error:
        raise _off(error) from error


def _off(error: BackupsOffError) -> ApiError:
    return ApiError(HTTPStatus.CONFLICT, "backup-off", str(error))


def _row(row: BackupRow) -> dict[str, object]:
    fields = asdict(row)
    begun_at_us = fields.pop("begun_at_us")
    return fields | {"begun_at": iso_time(begun_at_us), "reason": row.reason or None}


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", BACKUPS_PATH, "read", _backups),
    ("POST", BACKUPS_PATH, "write", _begin),
    ("GET", BACKUPS_PATH + "/{name}", "read", _backup),
)
