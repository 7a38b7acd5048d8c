"""The console: a page and its files, served as they were when the gateway started.

The page has exactly the rights of its user's certificate, and calls the same routes as all clients.
"""

from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple, final

from starlette.responses import RedirectResponse, Response

from maxam.api.answers import cacheable
from maxam.api.routing import Call, RouteSpec, not_found

CONSOLE_PATH: Final = "/console/"
INDEX: Final = "index.html"
# Only these are served: a stray file in the folder stays where it is.
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
class ConsoleFile(NamedTuple):
    """One file of the console."""

    body: bytes
    tag: str  # entity tag, without its quotes
    content_type: str


@cache
def console_files() -> dict[str, ConsoleFile]:
    """Return the files by their paths below `/console/`, as they were at the first call; reads them."""
    found: dict[str, ConsoleFile] = {}
    folders: list[tuple[str, Traversable]] = [("", files("maxam.api") / "console")]
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
                found[prefix + entry.name] = ConsoleFile(body, sha256(body).hexdigest()[:32], content_type)
    return found


async def _file(call: Call) -> Response:
    # A path is a name to look up, never one to open: whatever it holds, it leads out of nothing.
    found = console_files().get(call.segment("file") or INDEX)
    if found is None:
        raise not_found("the console has no such file")
    # Browsers revalidate it at each use, so a new gateway's page never runs with an old one's script.
    return cacheable(call.request, *found, caching="no-cache")


async def _to_console(_call: Call) -> Response:
    return RedirectResponse(CONSOLE_PATH, HTTPStatus.TEMPORARY_REDIRECT, {"cache-control": "no-store"})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/", "read", _to_console),
    ("GET", CONSOLE_PATH.rstrip("/"), "read", _to_console),
    ("GET", CONSOLE_PATH + "{file:path}", "read", _file),
)
