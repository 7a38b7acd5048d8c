"""The present value of each metric. `api/routes/metrics` declares name, kind, labels and help of each, in any order."""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from maxam import __version__
from maxam.compiled import core
from maxam.gateway.commit_times import SHOWN_BOUNDS_S
from maxam.gateway.connect_problems import KINDS
from maxam.gateway.differences import COMPARED
from maxam.gateway.reload import REFUSED, RELOADED
from maxam.gateway.server import Gateway
from maxam.link_config import ClusterSettings
from maxam.metrics import Histogram
from maxam.records import REJECTION_RESULTS

if TYPE_CHECKING:
    from maxam.gateway.member import ClusterMember

# Name of a metric, values of its labels, present value.
Measure = tuple[str, tuple[str, ...], float | Histogram]

ROLES: Final = (
    "serving",
    "observer",
    "recovering",
    "placing",
    "copying",
    "following",
    "claiming",
    "leading",
    "leaving",
)
_NO_LEADER: Final = "none"  # the label while no leader is known
_NO_MEMBER: Final[dict[tuple[str, tuple[str, ...]], float]] = {
    ("term", ()): 0,
    ("suspended", ()): 0,
    ("proof_age_seconds", ()): 0,
    ("log_index", ()): 0,
    ("applied_index", ()): 0,
    ("synced_index", ()): 0,
    ("lag_seconds", ()): 0,
    ("members", ("live",)): 0,
    ("members", ("silent",)): 0,
    ("forked", ()): 0,
    ("copies", ()): 0,
    ("copies_min", ()): 0,
    ("log_bytes", ()): 0,
    ("log_limit_bytes", ()): 0,
    ("log_retries_total", ()): 0,
    ("handovers_total", ()): 0,
    ("superseded_total", ()): 0,
    ("engine_nodes", ("up",)): 0,
    ("engine_nodes", ("down",)): 0,
    ("engine_bytes", ()): 0,
    ("engine_quota_bytes", ()): 0,
}


def measures(gateway: Gateway) -> Iterator[Measure]:
    """Iterate over all measures but whether the broker is ready; what `traffic` and `staleness` gather is as of their last time."""
    yield "maxam_build_info", (__version__, core()), 1
    yield "maxam_start_time_seconds", (), gateway.started_at_us / 1e6
    yield "maxam_web_connections", (), gateway.web_open
    tickets = gateway.tickets
    for outcome, count in (("made", tickets.made), ("used", tickets.used), ("refused", tickets.refused)):
        yield "maxam_tickets_total", (outcome,), count
    yield from _resources(gateway)
    yield from _connections(gateway)
    yield from _state(gateway)
    yield from _outcomes(gateway)
    yield from _files(gateway)
    yield from _cluster(gateway)
    yield from _fronts(gateway)


def _cluster(gateway: Gateway) -> Iterator[Measure]:
    observer, links = gateway.role.observer, gateway.links
    states = () if links is None else tuple(links.states.values())
    for name in ROLES:
        yield "maxam_cluster_role", (name,), int(gateway.role.name == name)
    yield from _member(gateway)
    follower = None if observer is None else observer.follower
    yield "maxam_follow_linked", (), int(follower is not None and follower.status.linked_at_s is not None)
    yield "maxam_follow_refused", (), int(follower is not None and follower.status.refused != "")
    yield "maxam_follow_lag_seconds", (), 0 if follower is None else follower.lag_s()
    yield "maxam_follow_lag_changes", (), 0 if observer is None else observer.lag_changes()
    yield "maxam_follow_lag_bytes", (), 0 if observer is None else observer.lag_bytes()
    yield "maxam_follow_received_bytes_total", (), 0 if follower is None else follower.bytes
    yield "maxam_follow_links_lost_total", (), 0 if follower is None else follower.restarts
    for wish in ("feed", "copy", "front"):
        yield "maxam_links", (wish,), sum(state.wish == wish for state in states)


def _member(gateway: Gateway) -> Iterator[Measure]:
    member, settings = gateway.role.member, gateway.settings.cluster
    if member is None or settings is None:
        found, times = _NO_MEMBER, Histogram(SHOWN_BOUNDS_S)
        yield "maxam_cluster_leader", (_NO_LEADER,), 0
    else:
        found, times = _figures(member, settings), member.facts.write_times
        head = member.machine.head
        leader = _NO_LEADER if head is None or not head.leader else head.leader
        for name in member.announcer.members.keys() | {_NO_LEADER}:
            yield "maxam_cluster_leader", (name,), int(name == leader)
    for item in COMPARED:
        yield "maxam_cluster_differs", (item,), 0 if member is None else member.differences.count(item)
    for (name, labels), value in found.items():
        yield f"maxam_cluster_{name}", labels, value
    yield "maxam_cluster_log_append_seconds", (), times


def _figures(member: "ClusterMember", settings: ClusterSettings) -> dict[tuple[str, tuple[str, ...]], float]:
    machine, announcer, place, size = member.machine, member.announcer, member.logged.place, member.announcer.size
    head = machine.head
    live = sum(map(announcer.is_live, announcer.members))
    up = 0 if size is None else sum(bool(release) for _, release in size.nodes)
    values = (
        0 if head is None else head.term,
        int(member.suspended),
        time.monotonic() - machine.proof_s if member.leads else 0,
        max(place.index, 0 if head is None else head.index),
        member.applied,
        member.keeper.synced_index,
        member.lag_s,
        live,
        len(announcer.members) - live,
        sum(one.role == "forked" for one in announcer.members.values()),
        announcer.in_step(),
        settings.copies_min,
        place.held_bytes,
        settings.log_bytes_max,
        announcer.failures,
        place.handovers,
        place.supersessions,
        up,
        0 if size is None else len(size.nodes) - up,
        0 if size is None else size.bytes,
        0 if size is None else size.quota,
    )
    return dict(zip(_NO_MEMBER, values, strict=True))


def _resources(gateway: Gateway) -> Iterator[Measure]:
    watermarks, counters, journal = gateway.watermarks, gateway.broker.counters, gateway.journal_size.found
    yield "maxam_disk_full", (), int(gateway.disk_full)
    yield "maxam_disk_slow", (), int(watermarks.slow)
    yield "maxam_disk_low", (), int(watermarks.free_low)
    yield "maxam_disk_free_bytes", (), watermarks.free_bytes
    yield "maxam_disk_size_bytes", (), watermarks.disk_bytes
    yield "maxam_archive_limit_bytes", (), gateway.snapshots.retention_bytes_max
    for part, size in journal.bytes_of.items():
        yield "maxam_journal_bytes", (part,), size
    yield "maxam_journal_segments", (), journal.segments
    yield "maxam_snapshot_timestamp_seconds", (), journal.snapshot_at_s
    yield "maxam_snapshots_total", ("built",), counters.snapshots_built
    yield "maxam_snapshots_total", ("failed",), counters.snapshots_failed
    yield "maxam_backups_total", ("made",), gateway.backups.made
    yield "maxam_backups_total", ("failed",), gateway.backups.failed
    if gateway.backups.on:
        newest = gateway.backups.newest
        yield "maxam_backup_timestamp_seconds", (), 0 if newest is None else newest.begun_at_us / 1e6
        yield "maxam_backup_bytes", (), 0 if newest is None else newest.bytes or 0
        yield "maxam_backup_verified", (), int(newest is not None and newest.verified is True)
    if gateway.backups.hook is not None:
        yield (
            "maxam_backup_copied",
            (),
            int(gateway.backups.newest is not None and gateway.backups.newest.copied is True),
        )
    yield "maxam_bridges", (), gateway.bridges.count
    yield "maxam_bridges_running", (), len(gateway.bridges.running)
    yield "maxam_memory_low", (), int(watermarks.memory_low)
    yield "maxam_memory_limit_bytes", (), watermarks.memory_bytes_max
    for task, restarts in gateway.supervisor.restarts.items():
        yield "maxam_task_restarts_total", (task,), restarts
    yield "maxam_tasks", (), trio.lowlevel.current_statistics().tasks_living
    yield "maxam_event_loop_lag_seconds", (), gateway.loop_lag.histogram
    yield "maxam_journal_commit_seconds", (), gateway.committer.times.histogram


def _connections(gateway: Gateway) -> Iterator[Measure]:
    traffic = gateway.clients.traffic
    yield "maxam_connections", ("connected",), traffic.connected
    yield "maxam_connections", ("connecting",), traffic.connecting
    yield "maxam_connections_accepted_total", (), traffic.accepted
    for stage, refused in traffic.refused.items():
        yield "maxam_connections_refused_total", (stage,), refused
    for over, refused in gateway.clients.connect_rates.refused.items():
        yield "maxam_connects_over_rate_total", (over,), refused
    problems = [row.kind for row in gateway.connect_problems.rows()]
    for kind in KINDS:
        yield "maxam_connect_problems", (kind,), problems.count(kind)
    yield "maxam_accept_failures_total", (), gateway.clients.accept_failures.count
    yield "maxam_received_bytes_total", (), traffic.bytes_received
    yield "maxam_sent_bytes_total", (), traffic.bytes_sent
    yield "maxam_frames_received_total", (), traffic.frames
    yield "maxam_conflated_total", (), traffic.conflated
    holdings, (frames_bytes, receipts_bytes) = gateway.holdings, gateway.held_bytes()
    yield "maxam_frames_unfinished_bytes", (), frames_bytes
    yield "maxam_frames_abandoned_total", ("size",), holdings.frames_closed
    yield "maxam_frames_abandoned_total", ("pace",), holdings.frames_slow
    yield "maxam_receipts_pending_bytes", (), receipts_bytes
    for name, used, limit, _ in gateway.limits_used():
        yield "maxam_limit_used_ratio", (name,), used / limit


def _fronts(gateway: Gateway) -> Iterator[Measure]:
    fronts = gateway.fronts
    yield "maxam_fronts", (), 0 if fronts is None else sum(front.ready for front in fronts.running)
    yield "maxam_front_restarts_total", (), 0 if fronts is None else fronts.restarts
    for front in () if fronts is None else fronts.running:
        yield "maxam_front_connections", (str(front.slot),), front.open
        behind = gateway.broker.committed_revision - front.figures.revision
        yield "maxam_front_lag_changes", (str(front.slot),), max(0, behind) if front.figures.revision else 0
        taken = 0 if front.ordered is None else front.ordered.order.taken
        yield "maxam_front_operations", (str(front.slot),), taken


def _state(gateway: Gateway) -> Iterator[Measure]:
    broker = gateway.broker
    yield "maxam_sessions", (), len(broker.sessions)
    report = gateway.staleness.last
    for state, number in report.counts.items():
        yield "maxam_subscriptions", (state,), number
    for state, largest_s in report.largest_s.items():
        yield "maxam_subscription_lag_seconds", (state,), largest_s
    yield "maxam_subscriptions_behind", (), report.behind
    yield "maxam_topics", (), broker.store.live
    yield "maxam_topics_overdue", (), gateway.freshness.count
    links = gateway.bridge_links
    for venue, one in links.links.items():
        yield "maxam_bridge_link_up", (venue,), 0 if one.down else 1
        yield "maxam_bridge_behind_seconds", (venue,), one.behind_s(links.now_us)
        yield "maxam_bridge_quarantined", (venue,), 0 if one.link is None else one.link.quarantined
    yield "maxam_freshness_breaches_total", (), gateway.freshness.breaches
    yield "maxam_topics_expired_total", (), gateway.broker.counters.topics_expired
    yield "maxam_wills", (), len(broker.last_wills.wills)
    yield "maxam_wills_fired_total", (), broker.counters.wills_fired
    yield "maxam_wills_rejected_total", (), broker.counters.wills_rejected
    yield "maxam_tombstones", (), len(broker.store.tombstones)
    yield "maxam_deletes_retained", (), len(broker.store.retained)
    yield "maxam_head_revision", (), broker.head_revision
    yield "maxam_committed_revision", (), broker.committed_revision
    yield "maxam_operations_waiting", (), broker.appended_seq - broker.applied_seq
    age_us = gateway.clock.now_us() - broker.accepted_at_us
    yield "maxam_last_change_age_seconds", (), age_us / 1e6 if broker.accepted_at_us else 0
    yield "maxam_clock_ahead_seconds", (), gateway.clock.ahead_s()
    yield "maxam_last_change_timestamp_seconds", (), broker.accepted_at_us / 1e6


def _outcomes(gateway: Gateway) -> Iterator[Measure]:
    counters = gateway.broker.counters
    yield "maxam_changes_total", (), counters.changes
    yield "maxam_messages_total", (), counters.messages
    yield "maxam_acks_total", ("taken",), counters.acks
    yield "maxam_acks_total", ("ignored",), counters.acks_ignored
    for result, disposition in REJECTION_RESULTS.items():
        yield "maxam_sends_rejected_total", (disposition, result), counters.rejected.get(result, 0)
    yield "maxam_sends_superseded_total", (), counters.sends_superseded
    yield "maxam_takeovers_total", (), counters.takeovers
    yield "maxam_sessions_expired_total", (), counters.sessions_expired
    yield "maxam_subscriptions_expired_total", (), counters.subscriptions_expired
    yield "maxam_rejected_journal_total", ("stored",), counters.rejects_stored
    yield "maxam_rejected_journal_total", ("failed",), counters.rejects_failed
    yield "maxam_rejected_journal_total", ("over-rate",), counters.rejects_over_rate
    yield "maxam_rejected_journal_total", ("over-queue",), counters.rejects_over_queue
    yield "maxam_quarantine_records", (), len(gateway.quarantine)
    yield "maxam_shadow_trials_total", (), counters.shadow_trials
    yield "maxam_shadow_rejections_total", (), counters.shadow_rejections
    yield "maxam_audit_lines_total", (), gateway.audit.written
    yield "maxam_audit_lost_total", (), gateway.audit.lost
    yield "maxam_audit_failed", (), 1 if gateway.audit.failure else 0


def _files(gateway: Gateway) -> Iterator[Measure]:
    loaded = gateway.reloader.loaded
    for item, state in gateway.reloader.items.items():
        yield "maxam_reloads_total", (item, RELOADED), state.reloaded
        yield "maxam_reloads_total", (item, REFUSED), state.refused
        yield "maxam_reload_last_success_timestamp_seconds", (item,), state.loaded_at_s
        yield "maxam_reload_failed", (item,), 1 if state.failure else 0
    yield "maxam_certificate_expiry_timestamp_seconds", (), loaded.certificate.valid_until.timestamp()
    for authority, valid_until_s in _earliest(loaded.authorities.validity).items():
        yield "maxam_authority_expiry_timestamp_seconds", (authority,), valid_until_s
    yield "maxam_client_certificate_expiry_timestamp_seconds", (), gateway.clients.traffic.first_expiry_s
    due = [(one.name, one.expires_at.timestamp()) for one in loaded.revocations.lists if one.expires_at is not None]
    for authority, expires_s in _earliest(due).items():
        yield "maxam_crl_expiry_timestamp_seconds", (authority,), expires_s


def _earliest(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the earliest time of each name: an authority with two keys has two certificates, and two lists."""
    earliest: dict[str, float] = {}
    for name, at_s in times:
        earliest[name] = min(at_s, earliest.get(name, at_s))
    return earliest
