"""`/metrics`: declares each metric, and serves the values of `gateway/measures` to Prometheus.

docs/operate/metrics.md has a row for each. A test compares it with `METRICS`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Literal, final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from maxam.api.description import TEXT
from maxam.api.routes.health import CODES, codes_in_force, unready_reasons
from maxam.api.routing import Call, Description, RouteSpec
from maxam.gateway.measures import measures
from maxam.metrics import Histogram


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric.

    Attributes:
        name: As it is scraped.
        kind: Type of the metric in Prometheus.
        help: One line.
        labels: Their names; the values of each are few, whatever clients do.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


_CURRENT: Final = (
    Declared("maxam_build_info", "gauge", "Always 1. The labels have version and core.", ("version", "core")),
    Declared("maxam_start_time_seconds", "gauge", "When the gateway started, seconds since the epoch."),
    Declared("maxam_ready", "gauge", "1 while the broker is in service, as in /readyz."),
    Declared("maxam_degraded", "gauge", "1 while health has a line with this code, 0 otherwise.", ("code",)),
    Declared(
        "maxam_cluster_role",
        "gauge",
        "1 for the role of this gateway: serving, observer, or the role of a member of a cluster.",
        ("role",),
    ),
    Declared("maxam_cluster_term", "gauge", "Term of the leader that this member knows; 0 without a cluster."),
    Declared("maxam_cluster_suspended", "gauge", "1 while this member leads without an answer of the log for lease_s."),
    Declared(
        "maxam_cluster_proof_age_seconds",
        "gauge",
        "Time since this leader began the last write that the log took; 0 at a follower.",
    ),
    Declared("maxam_cluster_log_index", "gauge", "Index of the newest entry of the log that this member knows."),
    Declared("maxam_cluster_applied_index", "gauge", "Index of the last entry that the broker of this member has."),
    Declared(
        "maxam_cluster_synced_index", "gauge", "Index of the last entry that is durable in the journal of this member."
    ),
    Declared(
        "maxam_cluster_lag_seconds", "gauge", "Time since this member had all of the log that it knew; 0 at the leader."
    ),
    Declared("maxam_cluster_members", "gauge", "Members of the cluster by state: live or silent.", ("state",)),
    Declared("maxam_cluster_forked", "gauge", "Members whose journal is forked, as they announced when they ended."),
    Declared(
        "maxam_cluster_leader", "gauge", "1 for the member that leads, or for `none` if none is known.", ("member",)
    ),
    Declared(
        "maxam_cluster_differs",
        "gauge",
        "Live members that differ from this leader in an item: policy, schemas, client_ca, crl or memory.",
        ("item",),
    ),
    Declared("maxam_cluster_copies", "gauge", "Journals of live members that have what the log had ten seconds ago."),
    Declared("maxam_cluster_copies_min", "gauge", "Setting copies_min; 0 without a cluster."),
    Declared("maxam_cluster_log_bytes", "gauge", "Bytes of the entries that the log holds."),
    Declared("maxam_cluster_log_limit_bytes", "gauge", "Setting log_bytes_max; 0 without a cluster."),
    Declared(
        "maxam_cluster_log_append_seconds", "histogram", "Time until the log has taken an entry or a sign of life."
    ),
    Declared("maxam_cluster_log_retries_total", "counter", "Requests to which a node of etcd gave no answer."),
    Declared("maxam_cluster_handovers_total", "counter", "Handovers that this member has seen in the log."),
    Declared(
        "maxam_cluster_superseded_total",
        "counter",
        "Leaders that another member replaced without a handover, as this member has seen in the log.",
    ),
    Declared("maxam_cluster_engine_nodes", "gauge", "Nodes of etcd by state: up or down.", ("state",)),
    Declared("maxam_cluster_engine_bytes", "gauge", "Size of the data of etcd."),
    Declared("maxam_cluster_engine_quota_bytes", "gauge", "Quota of etcd; 0 if it is not known."),
    Declared("maxam_follow_linked", "gauge", "1 while an observer has a link to its source."),
    Declared("maxam_follow_refused", "gauge", "1 if the source refuses this observer, such as a forked journal."),
    Declared(
        "maxam_follow_lag_seconds",
        "gauge",
        "How long the source has had a change that this observer lacks; without a link, since it was heard.",
    ),
    Declared("maxam_follow_lag_changes", "gauge", "Changes of the source that this observer has not applied."),
    Declared("maxam_follow_lag_bytes", "gauge", "Bytes received from the source, not applied or not stored yet."),
    Declared("maxam_follow_received_bytes_total", "counter", "Bytes received from sources."),
    Declared("maxam_follow_links_lost_total", "counter", "Links to sources that ended or could not be made."),
    Declared("maxam_links", "gauge", "Links of other gateways to this one, by wish: feed, copy or front.", ("wish",)),
    Declared("maxam_web_connections", "gauge", "Connections of the listener of pages; 0 without [web]."),
    Declared("maxam_tickets_total", "counter", "Tickets, by outcome: made, used or refused.", ("outcome",)),
    Declared("maxam_fronts", "gauge", "Fronts that serve clients; 0 without [fronts]."),
    Declared("maxam_front_restarts_total", "counter", "Fronts that ended by themselves and were replaced."),
    Declared("maxam_front_connections", "gauge", "Connections that a front has.", ("front",)),
    Declared("maxam_front_operations", "gauge", "Operations that a front has handed over since it began.", ("front",)),
    Declared(
        "maxam_front_lag_changes", "gauge", "Changes that a front had not applied when it last reported.", ("front",)
    ),
    Declared("maxam_disk_full", "gauge", "1 while SENDs are refused because the journal has no room."),
    Declared("maxam_disk_slow", "gauge", "1 while the journal's disk has not answered for five seconds."),
    Declared("maxam_disk_low", "gauge", "1 while the journal's disk has less room than free_bytes_min."),
    Declared("maxam_disk_free_bytes", "gauge", "Room on the journal's disk; -1 before it is known."),
    Declared("maxam_disk_size_bytes", "gauge", "Size of the journal's disk; -1 before it is known."),
    Declared(
        "maxam_archive_limit_bytes",
        "gauge",
        "Bytes that the archive may have on this disk. 0 if there is no limit, or it is not known yet.",
    ),
    Declared("maxam_memory_low", "gauge", "1 while SENDs are refused because more than memory_bytes_max is in use."),
    Declared("maxam_memory_limit_bytes", "gauge", "Memory in use above which SENDs are refused."),
    Declared("maxam_connections", "gauge", "STOMP connections, by state: connected or connecting.", ("state",)),
    Declared("maxam_connections_accepted_total", "counter", "Connections whose CONNECT was answered CONNECTED."),
    Declared(
        "maxam_connections_refused_total",
        "counter",
        "Connections that ended before, by the stage reached: accept, handshake (TLS) or connect.",
        ("stage",),
    ),
    Declared(
        "maxam_connects_over_rate_total",
        "counter",
        "Connections refused because their address or principal connected too often.",
        ("over",),
    ),
    Declared(
        "maxam_accept_failures_total", "counter", "Accepts, of all listeners, that failed because no sockets were left."
    ),
    Declared("maxam_received_bytes_total", "counter", "Bytes from clients, after decryption."),
    Declared("maxam_sent_bytes_total", "counter", "Bytes to clients, before encryption."),
    Declared("maxam_frames_received_total", "counter", "Frames from clients."),
    Declared(
        "maxam_frames_unfinished_bytes", "gauge", "Bytes held of frames that clients have begun and not finished."
    ),
    Declared(
        "maxam_frames_abandoned_total",
        "counter",
        "Connections closed for an unfinished frame, by cause: size (of all such frames) or pace.",
        ("cause",),
    ),
    Declared("maxam_receipts_pending_bytes", "gauge", "Bytes of RECEIPTs that wait for their clients or for the disk."),
    Declared(
        "maxam_limit_used_ratio",
        "gauge",
        "Share of a limit on totals that is used; of a principal's limit, by the principal that uses most.",
        ("limit",),
    ),
    Declared("maxam_event_loop_lag_seconds", "histogram", "How late the event loop is, measured ten times a second."),
    Declared(
        "maxam_journal_commit_seconds", "histogram", "How long the journal's disk took to write and sync a block."
    ),
    Declared("maxam_tasks", "gauge", "Tasks of the event loop: a few, and three for each connection."),
    Declared("maxam_task_restarts_total", "counter", "Advisory tasks that failed and were restarted.", ("task",)),
    Declared("maxam_sessions", "gauge", "Sessions, with a connection or waiting for their client."),
    Declared(
        "maxam_subscriptions", "gauge", "Subscriptions, by whether their session is connected or detached.", ("state",)
    ),
    Declared(
        "maxam_subscription_lag_seconds",
        "gauge",
        "How long a subscription has lacked something, the longest.",
        ("state",),
    ),
    Declared("maxam_subscriptions_behind", "gauge", "Subscriptions that lack something longer than lag_threshold_s."),
    Declared("maxam_topics", "gauge", "Topics that hold a value."),
    Declared(
        "maxam_bridge_link_up",
        "gauge",
        "1 while the link of a venue is up, 0 while its topics are unknown.",
        ("venue",),
    ),
    Declared(
        "maxam_bridge_behind_seconds",
        "gauge",
        "Age of the oldest change that may be missing on this side of a bridge.",
        ("venue",),
    ),
    Declared(
        "maxam_bridge_quarantined", "gauge", "Topics of a bridge whose newest value the other side rejects.", ("venue",)
    ),
    Declared("maxam_topics_overdue", "gauge", "Topics that are older than fresh_within_s of their rule."),
    Declared("maxam_freshness_breaches_total", "counter", "Topics that became so, each time; at the start too."),
    Declared("maxam_topics_expired_total", "counter", "Deletes by the gateway of topics older than expire_after_s."),
    Declared("maxam_wills", "gauge", "Sessions with a last will, connected or not."),
    Declared("maxam_wills_fired_total", "counter", "Last wills that were sent."),
    Declared(
        "maxam_wills_rejected_total",
        "counter",
        "Last wills that were refused at CONNECT, or rejected when they were due.",
    ),
    Declared(
        "maxam_tombstones", "gauge", "Deleted topics, kept while the delete is owed or a source's number is kept."
    ),
    Declared("maxam_deletes_retained", "gauge", "Deleted topics that are remembered for clients that resume."),
    Declared("maxam_head_revision", "gauge", "Revision of the newest accepted change."),
    Declared("maxam_committed_revision", "gauge", "Revision of the newest change that is on disk and visible."),
    Declared("maxam_operations_waiting", "gauge", "Operations accepted and not on disk yet."),
    Declared(
        "maxam_last_change_age_seconds",
        "gauge",
        "Seconds since the newest change was accepted, by the gateway's time. 0 if never.",
    ),
    Declared(
        "maxam_clock_ahead_seconds",
        "gauge",
        "How far the machine's clock is ahead of the gateway's time, below 0 if behind. Near 0 unless the clock jumped.",
    ),
    Declared(
        "maxam_last_change_timestamp_seconds",
        "gauge",
        "When the newest change was accepted, seconds since the epoch. 0 if never.",
    ),
    Declared(
        "maxam_journal_bytes",
        "gauge",
        "Size of the journal: segments, snapshots, rejected SENDs, other files.",
        ("part",),
    ),
    Declared("maxam_journal_segments", "gauge", "Segments of the journal, the archive and the open one included."),
    Declared(
        "maxam_snapshot_timestamp_seconds",
        "gauge",
        "When the newest snapshot was written, seconds since the epoch. 0 if there is none.",
    ),
    Declared(
        "maxam_snapshots_total", "counter", "Snapshots that were begun, by outcome: built or failed.", ("outcome",)
    ),
    Declared(
        "maxam_backups_total", "counter", "Backups that operators asked for, by outcome: made or failed.", ("outcome",)
    ),
    Declared(
        "maxam_backup_timestamp_seconds",
        "gauge",
        "When the newest whole backup was begun, seconds since the epoch. 0 if there is none. Absent without `[admin] backups`.",
    ),
    Declared("maxam_backup_bytes", "gauge", "Size of the newest whole backup; absent without `[admin] backups`."),
    Declared(
        "maxam_backup_verified",
        "gauge",
        "1 if the newest whole backup was verified when it was made; absent without `[admin] backups`.",
    ),
    Declared(
        "maxam_backup_copied",
        "gauge",
        "1 if `[admin] backup_hook` has copied the newest whole backup to another place; absent without it.",
    ),
    Declared("maxam_bridges", "gauge", "Bridges that the gateway is to run, as `[bridge] configs` lists them."),
    Declared("maxam_bridges_running", "gauge", "Processes of these bridges that run."),
    Declared("maxam_changes_total", "counter", "Values and deletes that were committed."),
    Declared("maxam_messages_total", "counter", "MESSAGE frames handed to connections."),
    Declared("maxam_conflated_total", "counter", "Changes that were replaced before a subscription read them."),
    Declared("maxam_acks_total", "counter", "ACK frames, by outcome: taken or ignored.", ("outcome",)),
    Declared(
        "maxam_sends_rejected_total",
        "counter",
        "SENDs that were rejected, by disposition and by the code of their result.",
        ("disposition", "result"),
    ),
    Declared("maxam_sends_superseded_total", "counter", "SENDs accepted without effect: their source had sent newer."),
    Declared(
        "maxam_connect_problems",
        "gauge",
        "Clients of the last hour that could not connect, or did not stay connected, by kind.",
        ("kind",),
    ),
    Declared("maxam_takeovers_total", "counter", "Sessions taken over by a newer connection."),
    Declared("maxam_sessions_expired_total", "counter", "Sessions ended because their client stayed away."),
    Declared(
        "maxam_subscriptions_expired_total",
        "counter",
        "Durable subscriptions ended because their client came back and did not use them.",
    ),
    Declared(
        "maxam_rejected_journal_total",
        "counter",
        "Rejected SENDs for their journal, by outcome.",
        ("outcome",),
    ),
    Declared("maxam_quarantine_records", "gauge", "Rejected SENDs that operators can read."),
    Declared("maxam_shadow_trials_total", "counter", "SENDs on which a candidate version was tried."),
    Declared("maxam_shadow_rejections_total", "counter", "Bodies of trials that the candidate would have rejected."),
    Declared("maxam_audit_lines_total", "counter", "Lines of the audit log that were written."),
    Declared("maxam_audit_lost_total", "counter", "Events that could not be written to the audit log."),
    Declared("maxam_audit_failed", "gauge", "1 while the audit log cannot be written."),
    Declared(
        "maxam_reloads_total", "counter", "Reloads of an item, by outcome: reloaded or refused.", ("item", "outcome")
    ),
    Declared(
        "maxam_reload_last_success_timestamp_seconds",
        "gauge",
        "When the item in force was loaded, seconds since the epoch.",
        ("item",),
    ),
    Declared(
        "maxam_reload_failed",
        "gauge",
        "1 while the files on disk cannot be used and the old ones are in force.",
        ("item",),
    ),
    Declared("maxam_certificate_expiry_timestamp_seconds", "gauge", "Until when the server's certificate is valid."),
    Declared(
        "maxam_authority_expiry_timestamp_seconds",
        "gauge",
        "Until when an authority that signs clients is valid.",
        ("authority",),
    ),
    Declared(
        "maxam_client_certificate_expiry_timestamp_seconds",
        "gauge",
        "Earliest end of validity of the connected clients' certificates. 0 if no client is connected.",
    ),
    Declared(
        "maxam_crl_expiry_timestamp_seconds",
        "gauge",
        "When an authority's next revocation list is due.",
        ("authority",),
    ),
)


# Names of the release before, by the name that has replaced each. Both are exported for one release.
_RENAMED: Final = {
    "maxam_event_loop_lag_seconds": "maxam_loop_lag_seconds",
    "maxam_journal_commit_seconds": "maxam_commit_seconds",
    "maxam_subscription_lag_seconds": "maxam_staleness_seconds",
    "maxam_rejected_journal_total": "maxam_rejects_total",
}
METRICS: Final = (
    *_CURRENT,
    *(
        replace(one, name=_RENAMED[one.name], help=f"Deprecated: use {one.name}.")
        for one in _CURRENT
        if one.name in _RENAMED
    ),
)


@final
class _Page(Collector):
    """The measurements of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families: Final = tuple(families)

    def describe(self) -> Iterable[Metric]:
        """Name nothing, so that the registry need not ask for values when it is made."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Give all metrics with their values."""
        return self._families


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_KINDS: Final[dict[str, type[_Family]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(declared: Declared) -> _Family:
    return _KINDS[declared.kind](declared.name, declared.help, labels=declared.labels)


def _add(family: _Family, labels: tuple[str, ...], value: float | Histogram) -> None:
    if isinstance(family, HistogramMetricFamily) and isinstance(value, Histogram):
        bounds = [*(str(bound) for bound in value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    elif not isinstance(family, HistogramMetricFamily) and not isinstance(value, Histogram):
        family.add_metric(labels, value)
    else:
        raise TypeError(f"{family.name} is a {family.type}; it was measured as {value!r}")


@Description(
    "Counters and gauges of the broker, for Prometheus",
    TEXT,
    dialect="lenient",
    media_type="text/plain",
    text="In the format of Prometheus, or in OpenMetrics where `Accept` asks for it (docs/operate/metrics.md).",
)
async def _metrics(call: Call) -> Response:
    gateway = call.gateway
    families = {declared.name: _family(declared) for declared in METRICS}
    await gateway.clients.traffic.gather()
    await gateway.staleness.report()
    _add(families["maxam_ready"], (), 0 if unready_reasons(gateway) else 1)
    codes = codes_in_force(gateway)
    for code in CODES:
        _add(families["maxam_degraded"], (code,), int(code in codes))
    for name, labels, value in measures(gateway):
        _add(families[name], labels, value)
        if name in _RENAMED:
            _add(families[_RENAMED[name]], labels, value)
    await trio.lowlevel.checkpoint()
    registry = CollectorRegistry()
    registry.register(_Page(families.values()))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(call.request.headers.get("accept", ""))
    headers = {"content-type": content_type, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    # 3 ms of Python in one go: in a thread, so that the event loop runs other tasks meanwhile
    return Response(await trio.to_thread.run_sync(encode, registry), headers=headers)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/metrics", "metrics", _metrics),)
