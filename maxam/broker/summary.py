"""Sum up the records of a journal in a broker without connections, of which a snapshot can be made."""

from collections.abc import Iterable

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy, Rights
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Record


def summed_up(records: Iterable[Record], limits: Limits) -> Broker:
    """Return a broker to which the records are applied.

    Every principal may receive everything there. A snapshot that owes too much loses nothing: rights are checked again when a value
    is written to a client.
    """
    everything = Rights((), (compile_glob("**", limits),), frozenset(), None, limits)
    broker = Broker(limits, Policy({}, {}, limits, unknown=everything), load_registry({"registry.toml": b""}))
    for record in records:
        broker.replay(record)
    broker.backfills.run(broker.store)
    broker.store.retire(broker.accepted_at_us, len(broker.store.retained))
    return broker
