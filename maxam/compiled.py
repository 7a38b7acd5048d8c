"""Which modules mypyc compiles, and what this installation runs: machine code or Python.

`deploy/build_backend.py` compiles them into the wheel where there is a C compiler. In the source tree they are always Python.
"""

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from maxam import __version__

MODULES: Final = (
    "maxam.content",
    "maxam.errors",
    "maxam.globs",
    "maxam.metrics",
    "maxam.records",
    "maxam.avro.compatibility",
    "maxam.avro.data",
    "maxam.avro.envelope",
    "maxam.avro.fingerprint",
    "maxam.avro.registry",
    "maxam.avro.resolution",
    "maxam.avro.rule",
    "maxam.avro.schema",
    "maxam.avro.silent",
    "maxam.avro.walker",
    "maxam.avro.witness",
    "maxam.bench.histogram",
    "maxam.bench.scanner",
    "maxam.broker.broker",
    "maxam.broker.delivery",
    "maxam.broker.destinations",
    "maxam.broker.marks",
    "maxam.broker.policy",
    "maxam.broker.session",
    "maxam.broker.store",
    "maxam.broker.window",
    "maxam.gateway.commit",
    "maxam.gateway.peer",
    "maxam.journal.decoding",
    "maxam.journal.encoding",
    "maxam.journal.newest",
    "maxam.journal.scan",
    "maxam.journal.splice",
    "maxam.stomp.encoder",
    "maxam.stomp.events",
    "maxam.stomp.frames",
    "maxam.stomp.protocol",
)
"""The core, and what the load tool reads with: compiled all together, so that their classes call each other without Python between
them, or not at all."""


def core() -> Literal["compiled", "interpreted"]:
    """Say what runs, or would run if it were imported now.

    Raises:
        RuntimeError: Some modules are machine code and some are not; the two were not built of the same source.
    """
    interpreted = [name for name in MODULES if _origin(name).suffix == ".py"]
    if interpreted and len(interpreted) < len(MODULES):
        raise RuntimeError(
            f"{Path(__file__).parent} holds a core that is compiled but for {', '.join(interpreted)}: its parts are not of one"
            f" build; remove that folder and install maxam again"
        )
    return "interpreted" if interpreted else "compiled"


def version() -> str:
    """Say version, core and interpreter, such as `0.1.0 (compiled core, CPython 3.11.7)`."""
    return f"{__version__} ({core()} core, {platform.python_implementation()} {platform.python_version()})"


def child_environment() -> dict[str, str]:
    """Give the environment for a Python process that is to run this same maxam.

    Without it, one that is started in a clone's folder finds the source tree there, whatever its parent runs.
    """
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def _origin(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{Path(__file__).parent} has no module {name}: install maxam again")
    return Path(spec.origin)


if __name__ == "__main__":
    sys.stdout.write(f"{core()}\n")
