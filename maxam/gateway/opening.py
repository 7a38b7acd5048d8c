"""Open a gateway: lock its journal, recover what the journal holds, and put the parts together.

A gateway with `[follow]` is an observer, and one with `[cluster]` a member of a cluster. Their journals keep the incarnation of the
journal that they follow. A copy that was made of that journal is put into its place first. Every other gateway may serve clients at
once.
"""

import gc
import logging
import secrets
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from maxam.broker.broker import Broker
from maxam.config import Settings
from maxam.errors import JournalError
from maxam.gateway.audit import FOLLOWING, PROMOTED
from maxam.gateway.disk_budget import disk_bytes, segment_bytes_max
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.notify import StartProgress
from maxam.gateway.role import Alone, GatewayRole
from maxam.gateway.server import Gateway
from maxam.journal.decisions import forget_decisions, read_decisions
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import MEMBERSHIP, PROMOTION, RENEW

_AHEAD_BYTES: Final = 1 << 20  # room of an open segment beyond its blocks: half a thousand small blocks and more
_LINKED_BLOCK_BYTES: Final = 4_194_304  # without a limit, a slow disk makes blocks that are too large for an entry


def open_gateway(settings: Settings, loaded: LoadedConfig) -> Gateway:
    """Open the journal and recover what it holds. Blocks; must be called inside the event loop that will serve.

    Raises:
        JournalError: The journal cannot be used, or is damaged; nothing was changed but a torn tail cut off.
    """
    started_s = time.monotonic()
    stored = settings.journal
    following = settings.follow is not None or settings.cluster is not None
    if following:
        _prepare_to_follow(stored.folder)
    if settings.cluster is None and (stored.folder / MEMBERSHIP).exists():
        raise JournalError(
            f"{stored.folder} is the journal of a member of a cluster. Add the section [cluster], or use another folder"
        )
    how = JournalSettings(
        segment_bytes_max(stored, disk_bytes(stored.folder)),
        stored.segment_age_s_max,
        stored.durability == "fsync",
        stored.reserve_bytes,
        0 if settings.link is None else _LINKED_BLOCK_BYTES,
        ahead_bytes=0 if following else _AHEAD_BYTES,
    )
    sync_marker = secrets.token_bytes(15) + b"\xff"  # room is allocated ahead only if it does not end in a zero
    journal = Journal.open(stored.folder, OsDisk(), how, sync_marker, "" if following else secrets.token_hex(8))
    broker = Broker(settings.limits, loaded.policy, loaded.registry)
    progress = StartProgress(time.monotonic)
    gc.collect()
    gc.disable()  # what recovery makes stays: to search it for garbage again and again would take a third of the time
    try:
        progress.report("reading the journal")
        for records in journal.recover_blocks(following, broker.store.topics):
            broker.replay_block(records)
            progress.report(f"recovering: revision {broker.committed_revision}")
        broker.backfills.run(broker.store, partial(progress.report, "recovering: durable subscriptions"))
    finally:
        gc.enable()
    for tail in journal.torn_tails:
        log_event(logging.WARNING, "torn-tail-cut", **asdict(tail))
    for damage in journal.damaged_snapshots:
        log_event(logging.ERROR, "snapshot-damaged", error=damage, action="an older one was used")
    # A snapshot may leave out the newest record; time runs on from there.
    broker.recovered(trio.current_time(), journal.head, journal.accepted_at_us, journal.floor)
    broker.incarnation = journal.incarnation
    if not following:
        journal.keep_schemas(loaded.registry.texts())
    gc.freeze()  # recovered objects stay: a full collection that scans a million topics stops the loop for 50 ms
    log_event(
        logging.INFO,
        "recovered",
        folder=stored.folder,
        incarnation=journal.incarnation,
        revision=broker.committed_revision,
        topics=broker.store.live,
        sessions=len(broker.sessions),
        seconds=f"{time.monotonic() - started_s:.3f}",
    )
    gateway = Gateway(settings, loaded, broker, journal, _open_role(settings, loaded, broker, journal))
    gateway.on_started = partial(_record_decisions, gateway)
    return gateway


def _open_role(settings: Settings, loaded: LoadedConfig, broker: Broker, journal: Journal) -> GatewayRole:
    """Return the role of a gateway. Only the modules of that role are loaded. Raises ConfigurationError or JournalError."""
    if settings.cluster is not None:
        from maxam.gateway.member import open_member  # noqa: PLC0415

        return open_member(settings, settings.cluster, journal)
    if settings.follow is not None:
        from maxam.gateway.observer import Observer  # noqa: PLC0415

        return Observer(settings, loaded, broker, journal)
    return Alone(journal)


def _prepare_to_follow(folder: Path) -> None:
    """Put a copy of the source's journal into its place; refuse to follow with a journal that was promoted."""
    from maxam.cluster.copying import place_copy  # noqa: PLC0415  # only what is wanted is loaded

    place_copy(str(folder.absolute()), OsDisk())
    if (folder / RENEW).exists():
        raise JournalError(
            f"{folder} was promoted, restored or repaired, so it is not a copy of another journal. Remove [follow] or [cluster] to serve clients"
            " with it, or set it aside (`maxam-admin cluster rejoin`) to follow"
        )


def _record_decisions(gateway: Gateway) -> None:
    """Write what operators decided about the journal, while it was stopped, into the audit log, once."""
    folder = str(gateway.settings.journal.folder)
    if gateway.role.serves and Path(folder, PROMOTION).exists():
        _record_promotion(gateway)
    decisions = read_decisions(folder)
    for facts in decisions:
        gateway.audit.record(FOLLOWING, facts.pop("decision"), **facts)
    if decisions:
        forget_decisions(folder)


def _record_promotion(gateway: Gateway) -> None:
    """Write the decision of `maxam-admin cluster promote` into the audit log, once."""
    from maxam.cluster.promotion import forget_promotion, read_promotion  # noqa: PLC0415

    folder = str(gateway.settings.journal.folder)
    found = read_promotion(folder, OsDisk())
    if found is None:
        return
    followed = found.followed
    facts: dict[str, Any] = {
        "revision": found.revision,
        "accepted_at_us": found.accepted_at_us,
        "decided_at_us": found.at_us,
        "incarnation": gateway.broker.incarnation,
        "source": "" if followed is None else followed.source,
        "source_revision": 0 if followed is None else followed.revision,
        "heard_at_us": 0 if followed is None else followed.heard_at_us,
    }
    gateway.audit.record(PROMOTED, "promoted", reason=found.because, **facts)
    log_event(logging.WARNING, "promoted", because=found.because, **facts)
    forget_promotion(folder, OsDisk())
