"""`/metrics`: what the broker counts and holds, for Prometheus. What each means: docs/metrics.md."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import RouteSpec
from maxam.admin.view import View
from maxam.records import Identity


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric.

    Attributes:
        name: As it is scraped.
        kind: What may become of its value.
        help: One line.
        labels: Their names; the values of each are few, whatever clients do.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: Final = (
    Declared("maxam_build_info", "gauge", "Always 1; the labels say what runs.", ("version", "core")),
    Declared("maxam_start_time_seconds", "gauge", "When the gateway started, seconds since the epoch."),
    Declared("maxam_ready", "gauge", "1 while the broker is in service, as /readyz says."),
    Declared("maxam_disk_full", "gauge", "1 while SENDs are refused because the journal has no room."),
    Declared("maxam_disk_slow", "gauge", "1 while the journal's disk has not answered for five seconds."),
    Declared("maxam_disk_low", "gauge", "1 while the journal's disk has less room than free_bytes_min."),
    Declared("maxam_disk_free_bytes", "gauge", "Room on the journal's disk; -1 before it is known."),
    Declared("maxam_memory_low", "gauge", "1 while SENDs are refused because more than memory_bytes_max is in use."),
    Declared("maxam_memory_limit_bytes", "gauge", "What may be in use before SENDs are refused."),
    Declared("maxam_connections", "gauge", "STOMP connections, by state: connected or connecting.", ("state",)),
    Declared("maxam_tasks", "gauge", "Tasks of the event loop: a few, and three for each connection."),
    Declared("maxam_sessions", "gauge", "Sessions, with a connection or waiting for their client."),
    Declared("maxam_topics", "gauge", "Topics that hold a value."),
    Declared("maxam_tombstones", "gauge", "Deleted topics of which somebody may still be owed the delete."),
    Declared("maxam_head_revision", "gauge", "Revision of the newest accepted change."),
    Declared("maxam_committed_revision", "gauge", "Revision of the newest change that is on disk and visible."),
    Declared("maxam_operations_waiting", "gauge", "Operations accepted and not on disk yet."),
    Declared("maxam_changes_total", "counter", "Values and deletes that were committed."),
    Declared("maxam_messages_total", "counter", "MESSAGE frames handed to connections."),
    Declared("maxam_acks_total", "counter", "ACK frames, by what became of them: taken or ignored.", ("outcome",)),
    Declared("maxam_sends_rejected_total", "counter", "SENDs that were rejected, by disposition.", ("disposition",)),
    Declared("maxam_sends_superseded_total", "counter", "SENDs accepted without effect: their source had sent newer."),
    Declared("maxam_takeovers_total", "counter", "Sessions taken over by a newer connection."),
    Declared("maxam_sessions_expired_total", "counter", "Sessions ended because their client stayed away."),
    Declared(
        "maxam_rejects_total", "counter", "Rejected SENDs for their journal, by what became of them.", ("outcome",)
    ),
    Declared("maxam_quarantine_records", "gauge", "Rejected SENDs that can be looked at."),
    Declared("maxam_shadow_trials_total", "counter", "SENDs on which a candidate version was tried."),
    Declared("maxam_shadow_rejections_total", "counter", "Of these, what the candidate would have rejected."),
    Declared("maxam_audit_lines_total", "counter", "Lines of the audit log that were written."),
    Declared("maxam_audit_lost_total", "counter", "Events that could not be written to the audit log."),
    Declared("maxam_audit_failed", "gauge", "1 while the audit log cannot be written."),
    Declared(
        "maxam_reloads_total", "counter", "Reloads of an item, by outcome: reloaded or refused.", ("item", "outcome")
    ),
    Declared(
        "maxam_reload_last_success_timestamp_seconds",
        "gauge",
        "When what is in force was loaded, seconds since the epoch.",
        ("item",),
    ),
    Declared(
        "maxam_reload_failed", "gauge", "1 while what is on disk cannot be used and the old is in force.", ("item",)
    ),
    Declared("maxam_certificate_expiry_timestamp_seconds", "gauge", "Until when the server's certificate is valid."),
    Declared(
        "maxam_crl_expiry_timestamp_seconds",
        "gauge",
        "When an authority's next revocation list is due.",
        ("authority",),
    ),
)


@final
class _Metrics(Collector):
    """Reads all values at the moment of a scrape: nothing is counted twice, and nothing is written for it meanwhile."""

    def __init__(self, view: View) -> None:
        self._view: Final = view

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry need not ask for values when it is made."""
        return [_family(declared) for declared in METRICS]

    def collect(self) -> Iterable[Metric]:
        """Give all metrics with their present values."""
        families = {declared.name: _family(declared) for declared in METRICS}
        for name, labels, value in self._view.measures():
            families[name].add_metric(list(labels), value)
        return families.values()


def _family(declared: Declared) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    return kind(declared.name, declared.help, labels=declared.labels)


async def _metrics(view: View, request: Request, _caller: Identity) -> Response:
    registry = CollectorRegistry()
    registry.register(_Metrics(view))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    headers = {"content-type": content_type, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(encode(registry), headers=headers)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/metrics", "metrics", _metrics),)
