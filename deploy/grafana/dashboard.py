"""Write the Grafana dashboard of a gateway to standard output: `python deploy/grafana/dashboard.py > deploy/grafana/maxam.json`.

Declared here, because a dashboard's JSON repeats everything twenty times. It is Grafana's classic model, which all versions from 10 on
import; data source and instances are chosen on the page.
"""

import json
import sys
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

_SCHEMA_VERSION: Final = 39  # of Grafana 10.2; newer ones bring it up to date when they import it
_WIDTH: Final = 24  # of the grid
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ON: Final = 'instance=~"$instance"'
_STATES: Final = "disk_full", "disk_slow", "disk_low", "memory_low", "audit_failed"


@dataclass(frozen=True)
class Line:
    """One query: the expression, in which `$on` stands for the chosen instances, and its legend."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel; `thresholds` are (from, colour), rising, above green."""

    title: str
    description: str
    unit: str
    lines: tuple[Line, ...]
    thresholds: tuple[tuple[float, str], ...] = ()
    kind: str = "timeseries"
    width: int = 8
    maximum: float | None = None
    mappings: dict[str, tuple[str, str]] = field(default_factory=dict)  # value -> text, colour


def _rate(metric: str, labels: str = "") -> str:
    selector = f"{_ON}, {labels}" if labels else _ON
    return f"rate({metric}{{{selector}}}[$__rate_interval])"


def _quantiles(metric: str) -> tuple[Line, ...]:
    return tuple(
        Line(
            f"histogram_quantile({q}, sum by (instance, le) ({_rate(metric + '_bucket')}))",
            f"{{{{instance}}}} p{q * 100:g}",
        )
        for q in (0.5, 0.99)
    )


def _gauge(metric: str, legend: str = "{{instance}}", labels: str = "") -> Line:
    return Line(f"{metric}{{{_ON}{', ' + labels if labels else ''}}}", legend)


def _until(metric: str, legend: str) -> Line:
    return Line(f"{metric}{{{_ON}}} - time()", legend)


ROWS: Final = {
    "Overview": (
        Panel(
            "In service",
            "As /readyz: whether SENDs are accepted. `maxam-admin health` shows the reasons if not.",
            "none",
            (_gauge("maxam_ready"),),
            ((0, "red"), (1, "green")),
            "stat",
            4,
            mappings={"0": ("not ready", "red"), "1": ("ready", "green")},
        ),
        Panel(
            "Since the newest change",
            "How long nothing has been published, by anybody.",
            "s",
            (Line(f"maxam_last_change_age_seconds{{{_ON}}}", "{{instance}}"),),
            ((60, "orange"), (300, "red")),
            "stat",
            5,
        ),
        Panel(
            "Subscriptions behind",
            "Older than the configured bound. `maxam-admin subscriptions slow` lists them.",
            "none",
            (_gauge("maxam_subscriptions_behind"),),
            ((1, "orange"),),
            "stat",
            5,
        ),
        Panel(
            "Topics overdue",
            "Their publishers have not kept fresh_within_s. `maxam-admin topics overdue` lists them.",
            "none",
            (_gauge("maxam_topics_overdue"),),
            ((1, "red"),),
            "stat",
            5,
        ),
        Panel(
            "Running",
            "Version and core of each instance.",
            "none",
            (_gauge("maxam_build_info", "{{instance}}: {{version}}, {{core}}"),),
            (),
            "stat",
            5,
        ),
    ),
    "Who is behind": (
        Panel(
            "Staleness",
            "Age of the oldest change that somebody does not have: of clients that are connected, and of those that are away.",
            "s",
            (_gauge("maxam_subscription_lag_seconds", "{{instance}} {{state}}"),),
            ((30, "red"),),
            width=12,
        ),
        Panel(
            "Overdue topics and breaches",
            "Topics beyond fresh_within_s now, and how often a topic has become so.",
            "short",
            (
                _gauge("maxam_topics_overdue", "{{instance}} overdue"),
                Line(_rate("maxam_freshness_breaches_total"), "{{instance}} breaches a second"),
            ),
            ((1, "red"),),
            width=12,
        ),
        Panel(
            "Links of bridges",
            "1 while the link of a venue is up. While it is 0, the topics of the venue are unknown.",
            "none",
            (_gauge("maxam_bridge_link_up", "{{instance}} {{venue}}"),),
            (),
            width=12,
        ),
        Panel(
            "Bridges behind",
            "Age of the oldest change that may be missing on this side of a bridge.",
            "s",
            (_gauge("maxam_bridge_behind_seconds", "{{instance}} {{venue}}"),),
            ((300, "red"),),
            width=12,
        ),
    ),
    "Traffic": (
        Panel(
            "Changes and messages",
            "Values and deletes that were committed, MESSAGEs handed out, ACKs taken.",
            "ops",
            (
                Line(_rate("maxam_changes_total"), "{{instance}} changes"),
                Line(_rate("maxam_messages_total"), "{{instance}} messages"),
                Line(_rate("maxam_acks_total", 'outcome="taken"'), "{{instance}} acks"),
            ),
        ),
        Panel(
            "Bytes",
            "Plaintext from clients and to clients.",
            "Bps",
            (
                Line(_rate("maxam_received_bytes_total"), "{{instance}} in"),
                Line(_rate("maxam_sent_bytes_total"), "{{instance}} out"),
            ),
        ),
        Panel(
            "Conflation",
            "Changes a second that were replaced before a subscription read them: what slow consumers are spared.",
            "ops",
            (Line(_rate("maxam_conflated_total"), "{{instance}}"),),
        ),
        Panel(
            "Frames from clients",
            "Frames of all kinds.",
            "ops",
            (Line(_rate("maxam_frames_received_total"), "{{instance}}"),),
        ),
        Panel(
            "Topics",
            "That hold a value, and deleted ones that somebody may still be owed.",
            "short",
            (_gauge("maxam_topics"), _gauge("maxam_tombstones", "{{instance}} tombstones")),
        ),
        Panel(
            "Superseded SENDs",
            "Accepted without effect: their source had sent newer.",
            "ops",
            (Line(_rate("maxam_sends_superseded_total"), "{{instance}}"),),
        ),
    ),
    "Rejected SENDs": (
        Panel(
            "By result",
            "Codes of docs/protocol.md. `maxam-admin rejects list` shows whose they are.",
            "ops",
            (
                Line(
                    f"sum by (instance, disposition, result) ({_rate('maxam_sends_rejected_total')}) > 0",
                    "{{instance}} {{result}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Journal of rejected SENDs",
            "Stored, and lost: over the rate of a principal, over the queue, or failed.",
            "ops",
            (Line(_rate("maxam_rejected_journal_total"), "{{instance}} {{outcome}}"),),
        ),
        Panel(
            "Quarantine",
            "Rejected SENDs that can be shown and sent again.",
            "short",
            (_gauge("maxam_quarantine_records"),),
            width=4,
        ),
    ),
    "Latency": (
        Panel(
            "Commit",
            "From the hand-over of a block to the disk's answer: every RECEIPT and MESSAGE waits for it.",
            "s",
            _quantiles("maxam_journal_commit_seconds"),
            ((0.2, "red"),),
        ),
        Panel(
            "Event loop",
            "How late the loop is: every frame waits for that at least.",
            "s",
            _quantiles("maxam_event_loop_lag_seconds"),
            ((0.1, "red"),),
        ),
        Panel(
            "Operations waiting",
            "Accepted and not on disk yet.",
            "short",
            (_gauge("maxam_operations_waiting"),),
            ((10_000, "red"),),
        ),
    ),
    "Disk": (
        Panel(
            "Free",
            "Room on the journal's disk.",
            "bytes",
            (_gauge("maxam_disk_free_bytes"),),
        ),
        Panel(
            "Journal",
            "Segments (archive included), snapshots, other files.",
            "bytes",
            (_gauge("maxam_journal_bytes", "{{instance}} {{part}}"),),
        ),
        Panel(
            "Age of snapshot and backup",
            "Of the newest ones. A start reads the journal from the snapshot on; none is built while nothing changes.",
            "s",
            (
                Line(f"time() - (maxam_snapshot_timestamp_seconds{{{_ON}}} > 0)", "{{instance}} snapshot"),
                Line(f"time() - (maxam_backup_timestamp_seconds{{{_ON}}} > 0)", "{{instance}} backup"),
            ),
        ),
    ),
    "Process": (
        Panel(
            "Memory",
            "In use, and what may be in use before SENDs are refused.",
            "bytes",
            (
                Line(f'process_resident_memory_bytes{{job="maxam", {_ON}}}', "{{instance}}"),
                _gauge("maxam_memory_limit_bytes", "{{instance}} limit"),
            ),
        ),
        Panel(
            "Processor",
            "Of one processor: the event loop takes one at most.",
            "percentunit",
            (Line(_rate("process_cpu_seconds_total", 'job="maxam"'), "{{instance}}"),),
            ((0.9, "red"),),
        ),
        Panel(
            "Open files",
            "And the limit.",
            "short",
            (
                Line(f'process_open_fds{{job="maxam", {_ON}}}', "{{instance}}"),
                Line(f'process_max_fds{{job="maxam", {_ON}}}', "{{instance}} limit"),
            ),
        ),
    ),
    "Connections": (
        Panel(
            "Connections and sessions",
            "Sessions wait for their client when there are more of them than connections.",
            "short",
            (
                _gauge("maxam_connections", "{{instance}} {{state}}"),
                _gauge("maxam_sessions", "{{instance}} sessions"),
            ),
        ),
        Panel(
            "Coming and refused",
            "Connections that were accepted, and those that ended before, by the stage that they had reached.",
            "ops",
            (
                Line(_rate("maxam_connections_accepted_total"), "{{instance}} accepted"),
                Line(_rate("maxam_connections_refused_total"), "{{instance}} refused at {{stage}}"),
            ),
        ),
        Panel(
            "Takeovers and expiries",
            "Sessions taken over by a newer connection, and sessions whose client stayed away for good.",
            "ops",
            (
                Line(_rate("maxam_takeovers_total"), "{{instance}} takeovers"),
                Line(_rate("maxam_sessions_expired_total"), "{{instance}} expired"),
            ),
        ),
    ),
    "Certificates, reload, audit": (
        Panel(
            "Certificates",
            "Until when they are valid: the server's, the authorities' that sign clients, and the first to expire of the connected clients'.",
            "s",
            (
                _until("maxam_certificate_expiry_timestamp_seconds", "{{instance}} server"),
                _until("maxam_authority_expiry_timestamp_seconds", "{{instance}} {{authority}}"),
                Line(
                    f"(maxam_client_certificate_expiry_timestamp_seconds{{{_ON}}} > 0) - time()",
                    "{{instance}} first client",
                ),
            ),
            ((0, "red"), (2 * 86_400, "orange"), (14 * 86_400, "green")),
            "stat",
            12,
        ),
        Panel(
            "Revocation lists",
            "When each authority's next one is due.",
            "s",
            (_until("maxam_crl_expiry_timestamp_seconds", "{{instance}} {{authority}}"),),
            ((0, "red"), (1, "green")),
            "stat",
            12,
        ),
        Panel(
            "Files that cannot be used",
            "1: the old is in force. `maxam-admin gateway reload-status` shows the fault and its place.",
            "short",
            (_gauge("maxam_reload_failed", "{{instance}} {{item}}"),),
            ((1, "red"),),
            width=12,
            maximum=1,
        ),
        Panel(
            "States",
            "1: short of disk or memory, or the audit log cannot be written.",
            "short",
            tuple(_gauge(f"maxam_{state}", f"{{{{instance}}}} {state}") for state in _STATES),
            ((1, "red"),),
            width=12,
            maximum=1,
        ),
    ),
}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.thresholds]
    if panel.thresholds and panel.thresholds[0][0] == 0:  # what is below the first step has its colour too
        steps = [{"color": panel.thresholds[0][1], "value": None}, *steps[2:]]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "mappings": [
            {"type": "value", "options": {value: {"text": text, "color": colour, "index": 0}}}
            for value, (text, colour) in panel.mappings.items()
        ],
    }
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.kind == "stat":
        name_only = panel.title == "Running"
        options: dict[str, Any] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name" if name_only else "auto",
            "colorMode": "none" if name_only else "background",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
        }
    else:
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 8,
            "showPoints": "never",
            "spanNulls": False,
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT if panel.kind != "stat" else _HEIGHT // 2},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": line.expression,
                "legendFormat": line.legend,
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for at, line in enumerate(panel.lines)
        ],
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana's classic model has it."""
    numbers = count(1)
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": next(numbers),
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        x = height = 0
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(_panel(panel, next(numbers), x, y))
            x += panel.width
            height = max(height, panels[-1]["gridPos"]["h"])
        y += height
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "hide": 0},
        {
            "name": "instance",
            "type": "query",
            "label": "Instance",
            "datasource": _SOURCE,
            "query": {"query": "label_values(maxam_ready, instance)", "refId": "instance"},
            "definition": "label_values(maxam_ready, instance)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "hide": 0,
        },
    ]
    alerts = {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": _SOURCE,
        "expr": f'ALERTS{{alertname=~"Maxam.*", alertstate="firing", {_ON}}}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
    }
    return {
        "uid": "maxam",
        "title": "maxam",
        "description": "A maxam gateway: who is behind, what comes and goes, and what it runs short of.",
        "tags": ["maxam"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": [alerts]},
        "links": [],
        "panels": panels,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
