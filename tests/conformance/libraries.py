"""The libraries that are certified, and how their drivers are started."""

import sys
from pathlib import Path
from typing import Final, NamedTuple

from maxam.conformance.running import PROMISES
from maxam.conformance.server import Transport
from tests.interop.third_party import PROGRAMS

DRIVERS: Final = Path(__file__).parent / "drivers"
_PYTHON: Final = (sys.executable, "-m", "tests.conformance.drivers.python_client")
PYTHON: Final = (*_PYTHON, "trio")
_NODE: Final = str(DRIVERS / "typescript.mjs")


class Library(NamedTuple):
    """One library over one transport.

    Attributes:
        command: Starts its driver.
        transport: How it connects.
        unclaimed: Codes of promises that it does not claim.
        broken: Codes of promises that it breaks.
        blocked: Codes of promises that cannot be judged, because they need one that it breaks.
    """

    command: tuple[str, ...]
    transport: Transport
    unclaimed: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()

    @property
    def kept(self) -> list[str]:
        """Codes of promises that it keeps."""
        return [code for code in PROMISES if code not in self.unclaimed | self.broken | self.blocked]


LIBRARIES: Final = {
    "python": Library(PYTHON, "tls"),
    "python-web": Library((*_PYTHON, "asyncio"), "wss"),
    "typescript": Library(("node", _NODE), "tls", frozenset(("sends-again",))),
    # Node reads further authorities at its start only. Before Node 22 it has a WebSocket only with this flag.
    "typescript-web": Library(
        ("sh", "-c", f'NODE_EXTRA_CA_CERTS="$MAXAM_CONFORMANCE_CA" exec node --experimental-websocket {_NODE}'),
        "wss",
        frozenset(("sends-again",)),
    ),
}

_RESUMING: Final = frozenset(code for code, one in PROMISES.items() if one.level in {"resumer", "map"})
_STOMPJS: Final = Library(
    ("node", "--import", str(PROGRAMS / "packages.mjs"), str(DRIVERS / "stompjs.mjs")),
    "tls",
    frozenset(("sends-again", "refused-subscription")) | _RESUMING,
    frozenset(("sends-exactly", "headers-unescaped")),
)
# Libraries of others. tests/interop judges the promises that they keep.
OTHERS: Final = {
    "stompjs": _STOMPJS,
    "stompjs-web": _STOMPJS._replace(transport="wss"),
    "stomp.py": Library(
        (sys.executable, str(DRIVERS / "stomp_py.py")),
        "tls",
        _RESUMING,
        frozenset(("reconnects", "sends-exactly", "acks-after-value")),
        frozenset(code for code, one in PROMISES.items() if "reconnects" in one.needs or "resubscribes" in one.needs)
        - _RESUMING,
    ),
}


def broken(name: str) -> tuple[str, ...]:
    """Return the command of the driver of a broken client."""
    return (sys.executable, "-m", "tests.conformance.drivers.broken", name)
