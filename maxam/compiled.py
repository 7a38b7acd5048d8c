"""The modules that mypyc compiles, and whether this installation runs machine code or Python.

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
    "maxam.glob_sets",
    "maxam.globs",
    "maxam.metrics",
    "maxam.records",
    "maxam.token_bucket",
    "maxam.avro.compatibility",
    "maxam.avro.data",
    "maxam.avro.envelope",
    "maxam.avro.explainer",
    "maxam.avro.fingerprint",
    "maxam.avro.json.texts",
    "maxam.avro.meaning",
    "maxam.avro.registry",
    "maxam.avro.registry_file",
    "maxam.avro.resolution",
    "maxam.avro.rule",
    "maxam.avro.schema",
    "maxam.avro.silent",
    "maxam.avro.source",
    "maxam.avro.walker",
    "maxam.avro.witness",
    "maxam.bench.histogram",
    "maxam.bench.scanner",
    "maxam.broker.acknowledgements",
    "maxam.broker.admission",
    "maxam.broker.backfill",
    "maxam.broker.bound_wills",
    "maxam.broker.broker",
    "maxam.broker.conditions",
    "maxam.broker.connecting",
    "maxam.broker.expiry",
    "maxam.broker.following",
    "maxam.broker.fronting",
    "maxam.broker.glob_trie",
    "maxam.broker.intake",
    "maxam.broker.ledger",
    "maxam.broker.json_sends",
    "maxam.broker.json_values",
    "maxam.broker.last_wills",
    "maxam.broker.late_routes",
    "maxam.broker.outbox",
    "maxam.broker.destinations",
    "maxam.broker.positions",
    "maxam.broker.producer_sequences",
    "maxam.broker.notices",
    "maxam.broker.operations",
    "maxam.broker.origins",
    "maxam.broker.policy",
    "maxam.broker.publishing",
    "maxam.broker.quotas",
    "maxam.broker.receipt_waits",
    "maxam.broker.recovery",
    "maxam.broker.refined_delivery",
    "maxam.broker.refinement",
    "maxam.broker.refinement_table",
    "maxam.broker.selected_routes",
    "maxam.broker.rollback",
    "maxam.broker.routing",
    "maxam.broker.scans",
    "maxam.broker.session",
    "maxam.broker.session_table",
    "maxam.broker.store",
    "maxam.broker.subscribing",
    "maxam.broker.topic_events",
    "maxam.broker.unknown",
    "maxam.broker.upkeep",
    "maxam.broker.wills",
    "maxam.broker.window",
    "maxam.broker.wire_cache",
    "maxam.cluster.entry",
    "maxam.cluster.operations",
    "maxam.cluster.wire",
    "maxam.gateway.commit",
    "maxam.gateway.handshake",
    "maxam.gateway.holdings",
    "maxam.gateway.server_connection",
    "maxam.journal.decoding",
    "maxam.journal.encoding",
    "maxam.journal.layout",
    "maxam.journal.newest",
    "maxam.journal.scan",
    "maxam.journal.splice",
    "maxam.selectors.checking",
    "maxam.selectors.expressions",
    "maxam.selectors.fields",
    "maxam.selectors.like",
    "maxam.selectors.parser",
    "maxam.selectors.selected_fields",
    "maxam.selectors.selector",
    "maxam.selectors.syntax",
    "maxam.selectors.tokens",
    "maxam.stomp.encoder",
    "maxam.stomp.events",
    "maxam.stomp.frames",
    "maxam.stomp.head",
    "maxam.stomp.heart_beat",
    "maxam.stomp.last_will",
    "maxam.stomp.protocol",
)
"""The core, and the modules with which the load tool reads. All are compiled together or not at all, so that their classes call
each other directly."""


def core() -> Literal["compiled", "interpreted"]:
    """Return the kind of core that runs, or would run if it were imported now.

    Raises:
        RuntimeError: Some modules are machine code and some are not; the two were not built of the same source.
    """
    interpreted = [name for name in MODULES if _origin(name).suffix == ".py"]
    if interpreted and len(interpreted) < len(MODULES):
        raise RuntimeError(
            f"{Path(__file__).parent} holds a core that is compiled except {', '.join(interpreted)}: its parts are not of one"
            f" build. Remove that folder and install maxam again"
        )
    return "interpreted" if interpreted else "compiled"


def version() -> str:
    """Return version, core and interpreter, such as `0.1.0 (compiled core, CPython 3.11.7)`."""
    return f"{__version__} ({core()} core, {platform.python_implementation()} {platform.python_version()})"


def child_environment() -> dict[str, str]:
    """Return the environment for a Python process that must run this same maxam.

    Without it, a process that is started in a clone's folder runs the source tree there, whatever its parent runs.
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
