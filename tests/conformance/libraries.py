"""The libraries that are certified, and how their drivers are started."""

import sys
from pathlib import Path
from typing import Final, NamedTuple

from maxam.conformance.running import PROMISES
from maxam.conformance.server import Transport
from tests.interop.third_party import PROGRAMS

DRIVERS: Final = Path(__file__).parent / "drivers"
PYTHON: Final = (sys.executable, "-m", "tests.conformance.drivers.python_client")
_NODE: Final = str(DRIVERS / "typescript.mjs")


class Library(NamedTuple):
    """One library over one transport.

    Attributes:
        command: Starts its driver.
        transport: How it connects.
        unclaimed: Codes of promises that it does not claim.
        broken: Codes of promises that it breaks.
    """

    command: tuple[str, ...]
    transport: Transport
    unclaimed: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()


LIBRARIES: Final = {
    "python": Library(PYTHON, "tls"),
    "python-web": Library(PYTHON, "wss"),
    "typescript": Library(("node", _NODE), "tls", frozenset(("sends-again",))),
    # Node reads further authorities at its start only. Before Node 22 it has a WebSocket only with this flag.
    "typescript-web": Library(
        ("sh", "-c", f'NODE_EXTRA_CA_CERTS="$MAXAM_CONFORMANCE_CA" exec node --experimental-websocket {_NODE}'),
        "wss",
        frozenset(("sends-again",)),
    ),
}

_STOMPJS: Final = Library(
    ("node", "--import", str(PROGRAMS / "packages.mjs"), str(DRIVERS / "stompjs.mjs")),
    "tls",
    frozenset(("sends-again", "refused-subscription"))
    | {code for code, one in PROMISES.items() if one.level in {"resumer", "map"}},
    frozenset(("sends-exactly", "headers-unescaped")),
)
# Libraries of others. No run of the tests certifies them.
OTHERS: Final = {"stompjs": _STOMPJS, "stompjs-web": _STOMPJS._replace(transport="wss")}


def broken(name: str) -> tuple[str, ...]:
    """Return the command of the driver of a broken client."""
    return (sys.executable, "-m", "tests.conformance.drivers.broken", name)
