"""The console: a page and its files, served as they were when the gateway started.

The page has no more rights than the certificate of whoever looks at it, and asks the same routes as everybody else.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from maxam.admin.answers import ApiError, RouteSpec
from maxam.admin.view import View
from maxam.records import Identity

CONSOLE_PATH: Final = "/console/"
INDEX: Final = "index.html"
# What is not here is not served: a stray file in the folder stays where it is.
CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}


@final
@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file of the console."""

    body: bytes
    content_type: str
    tag: str  # entity tag, in its quotes


@cache
def console_files() -> dict[str, ConsoleFile]:
    """Return the files by their paths below `/console/`, as they were at the first call; reads them."""
    found: dict[str, ConsoleFile] = {}
    folders: list[tuple[str, Traversable]] = [("", files("maxam.admin") / "console")]
    while folders:
        prefix, folder = folders.pop()
        if not folder.is_dir():
            continue
        for entry in folder.iterdir():
            content_type = CONTENT_TYPES.get("." + entry.name.rpartition(".")[2])
            if entry.is_dir():
                folders.append((f"{prefix}{entry.name}/", entry))
            elif content_type is not None:
                body = entry.read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                found[prefix + entry.name] = ConsoleFile(body, content_type, tag)
    return found


async def _file(_view: View, request: Request, _caller: Identity) -> Response:
    # A path is a name to look up, never one to open: whatever it holds, it leads out of nothing.
    name: str = request.path_params["file"] or INDEX
    found = console_files().get(name)
    if found is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", "the console has no such file")
    # Asked for again at each use, so that a new gateway's page never runs with an old one's script.
    headers = {"cache-control": "no-cache", "etag": found.tag}
    known = request.headers.get("if-none-match", "")
    if known.strip() == "*" or found.tag in [one.strip().removeprefix("W/") for one in known.split(",")]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(found.body, headers=headers | {"content-type": found.content_type})


async def _to_console(_view: View, _request: Request, _caller: Identity) -> Response:
    return RedirectResponse(CONSOLE_PATH, HTTPStatus.TEMPORARY_REDIRECT, {"cache-control": "no-store"})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/", "read", _to_console),
    ("GET", CONSOLE_PATH.rstrip("/"), "read", _to_console),
    ("GET", CONSOLE_PATH + "{file:path}", "read", _file),
)
