"""Routes of backups: have one made in the folder of the configuration, and see what became of all of them."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, ApiError, RouteSpec, limit_of
from maxam.admin.description import AFTER, COUNT, LIMIT, TEXT, TIME, described, nullable, one_of, page, record
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.gateway.backups import BackupRow, BackupRunningError, BackupsOffError
from maxam.records import Identity

BACKUPS_PATH: Final = "/v1/backups"
_ROW: Final = record(
    "Backup",
    name=TEXT,
    state=one_of("running", "done", "failed"),
    begun_at=TIME,
    revision=nullable(COUNT),
    bytes=nullable(COUNT),
    files=nullable(COUNT),
    reason=nullable(TEXT),
)
_OFF: Final = "`backup-off`: `[admin] backups` is not set"


@described(
    "List the backups, newest first",
    page("backups", _ROW, folder=TEXT, kept=COUNT),
    (AFTER, LIMIT),
    errors={409: _OFF},
    text="A `failed` one is none: of the last failures of this run, and of what crashes left, `reason` tells.",
)
async def _backups(view: View, request: Request, _caller: Identity) -> Response:
    limit, after = limit_of(request), request.query_params.get("after")
    rows = [row for row in await _rows(view) if after is None or row.name < after]
    more = len(rows) > limit
    return Answer(
        {
            "folder": str(view.backups.folder),
            "kept": view.backups.kept,
            "backups": [_row(row) for row in rows[:limit]],
            "next": rows[limit - 1].name if more else None,
        }
    )


@described("Show one backup", _ROW, errors={404: "There is none of this name", 409: _OFF})
async def _backup(view: View, request: Request, _caller: Identity) -> Response:
    name: str = request.path_params["name"]
    for row in await _rows(view):
        if row.name == name:
            return Answer(_row(row))
    raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"there is no backup {name}")


@described(
    "Have a backup made",
    _ROW,
    errors={409: f"{_OFF}; `backup-running`: one is under way"},
    text="Answered at once, while it is `running`; `GET` of its name tells when it is `done` or has `failed`.",
)
async def _begin(view: View, _request: Request, _caller: Identity) -> Response:
    try:
        return Answer(_row(await view.backups.begin()))
    except BackupsOffError as error:
        raise _off(error) from error
    except BackupRunningError as error:
        raise ApiError(HTTPStatus.CONFLICT, "backup-running", str(error)) from error


async def _rows(view: View) -> list[BackupRow]:
    try:
        return await view.backups.rows()
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
