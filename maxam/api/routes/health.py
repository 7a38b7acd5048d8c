"""Routes of health: whether the process answers, whether the broker serves, and all that an operator asks first."""

import time
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Final

import trio
from starlette.responses import Response

from maxam import __version__
from maxam.api.answers import Answer
from maxam.api.description import (
    COUNT,
    ERROR,
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    TIME,
    described,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.api.routing import ANY_CERTIFICATE, Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.compiled import core
from maxam.gateway.loaded_config import ITEMS, LoadedConfig
from maxam.gateway.server import Gateway

READY: Final = "ready"
DEGRADED: Final = "degraded"
NOT_READY: Final = "not ready"
# Codes that the lines of `reasons` and `degraded` begin with. docs/operate/admin.md has a row for each.
CODES: Final = (
    *ITEMS,
    "accept-paused",
    "audit",
    "backup-failed",
    "backup-missing",
    "backup-not-copied",
    "bridge",
    "bridge-down",
    "clients-refused",
    "clock",
    "connections-full",
    "connects-limited",
    "copying",
    "differs",
    "disk-full",
    "disk-low",
    "disk-slow",
    "disk-small",
    "enrolled-file",
    "follow-lost",
    "follow-refused",
    "following",
    "frames-unfinished",
    "fronts",
    "journal-unwritable",
    "limit-near",
    "log-damaged",
    "log-full",
    "log-lost",
    "log-slow",
    "memory-low",
    "presence",
    "receipts-pending",
    "reconnect-loop",
    "rejections-unheard",
    "sends-rejected",
    "snapshot-room",
    "subscriptions-many",
    "takeovers",
    "task-failed",
)
# Sizes and positions of the broker, and rejected SENDs since the start.
FIGURES: Final[dict[str, Callable[[Gateway], int]]] = {
    "revision": lambda gateway: gateway.broker.committed_revision,
    "topics": lambda gateway: gateway.broker.store.live,
    "topics_overdue": lambda gateway: gateway.freshness.count,
    "tombstones": lambda gateway: len(gateway.broker.store.tombstones),
    "deletes_retained": lambda gateway: len(gateway.broker.store.retained),
    "sessions": lambda gateway: len(gateway.broker.sessions),
    "rejects_quarantined": lambda gateway: len(gateway.quarantine),
    "rejects_stored": lambda gateway: gateway.broker.counters.rejects_stored,
    "rejects_failed": lambda gateway: gateway.broker.counters.rejects_failed,
    "rejects_over_rate": lambda gateway: gateway.broker.counters.rejects_over_rate,
    "rejects_over_queue": lambda gateway: gateway.broker.counters.rejects_over_queue,
}


def unready_reasons(gateway: Gateway) -> list[str]:
    """Return why the broker is not fully in service; empty when it is."""
    reasons = gateway.role.unready()
    reasons += ["disk-full: SENDs are refused until there is room"] if gateway.role.serves and gateway.disk_full else []
    return reasons + gateway.watermarks.unready()


def degraded_reasons(gateway: Gateway) -> list[str]:
    """Return what an operator should repair, though the broker is in service."""
    return gateway.watermarks.degraded() + gateway.degraded_reasons()


def codes_in_force(gateway: Gateway) -> set[str]:
    """Return the codes of all lines of health."""
    return {line.partition(":")[0] for line in [*unready_reasons(gateway), *degraded_reasons(gateway)]}


def _figures(gateway: Gateway) -> dict[str, int]:
    return {name: read(gateway) for name, read in FIGURES.items()}


@Description("Liveness: the process answers", record(status=one_of("alive")), dialect="lenient")
async def _livez(_call: Call) -> Response:
    return Answer({"status": "alive"})


_READINESS: Final = record(
    "Readiness", ("reasons",), status=one_of("ready", "not ready"), reasons=listed(TEXT), degraded=listed(TEXT)
)


@Description(
    "Readiness: the broker is in service",
    _READINESS,
    also={503: ("Not ready, and why; or `too-slow` or `busy`.", {"anyOf": [_READINESS, ERROR]})},
    dialect="lenient",
    text="`degraded` lists what an operator should repair, though the broker serves.",
)
async def _readyz(call: Call) -> Response:
    reasons = unready_reasons(call.gateway)
    degraded = degraded_reasons(call.gateway)
    if reasons:
        body = {"status": "not ready", "reasons": reasons, "degraded": degraded}
        return Answer(body, HTTPStatus.SERVICE_UNAVAILABLE)
    return Answer({"status": "ready", "degraded": degraded})


@Description(
    "The gateway, the caller, and sizes",
    record(
        "About",
        server=TEXT,
        core=one_of("compiled", "interpreted"),
        stomp=record(host=TEXT, port=COUNT, virtual_host=TEXT),
        principal=TEXT,
        admin_rights=listed(TEXT),
        **dict.fromkeys(FIGURES, COUNT),
    ),
)
async def _about(call: Call) -> Response:
    principal = call.caller.principal
    accepted = call.gateway.settings.listener.virtual_hosts[0]
    host, port = call.gateway.address
    return Answer(
        {
            "server": f"maxam/{__version__}",
            "core": core(),
            "stomp": {"host": host, "port": port, "virtual_host": "MAXVAPI" if accepted == "*" else accepted},
            "principal": principal,
            "admin_rights": sorted(call.view.admin_rights(principal)),
            **_figures(call.gateway),
        }
    )


_EXPIRY: Final = record(
    "Expiry",
    what=one_of("certificate", "authority", "crl"),
    name=described(TEXT, "of the authority; empty for the server's certificate"),
    expires_at=TIME,
    expires_s=described(NUMBER, "seconds from now, negative if it has expired"),
)


@Description(
    "Health of the broker, with all warnings for an operator",
    record(
        "Health",
        status=one_of(READY, DEGRADED, NOT_READY),
        reasons=listed(described(TEXT, "why it is not ready")),
        degraded=listed(described(TEXT, "what should be seen to, though it serves")),
        as_of=TIME,
        started_at=TIME,
        uptime_s=SECONDS,
        server=TEXT,
        core=one_of("compiled", "interpreted"),
        figures=record("Figures", **dict.fromkeys(FIGURES, COUNT)),
        connections=record(
            "HealthConnections",
            connected=COUNT,
            connecting=COUNT,
            operators=COUNT,
            max=described(COUNT, "limit `connections_max`, as far as the limit of open files allows it"),
            problems=described(COUNT, "clients that cannot connect, or do not stay connected: `/v1/connect-problems`"),
        ),
        overdue=described(COUNT, "topics that are older than their rule allows"),
        behind=described(COUNT, "subscriptions that have lacked something for long"),
        commit=record(
            "HealthCommit",
            waiting=described(COUNT, "operations that are not on disk yet"),
            writing_s=nullable(described(NUMBER, "since when the disk has had a block")),
            count=described(COUNT, "blocks of the last minutes, which the other fields are about"),
            p50_s=nullable(SECONDS),
            p99_s=nullable(SECONDS),
            last_s=nullable(SECONDS),
            since_s=SECONDS,
        ),
        disk=record(
            "HealthDisk",
            full=FLAG,
            slow=FLAG,
            low=FLAG,
            free_bytes=nullable(COUNT),
            journal_bytes=COUNT,
            segments=COUNT,
            snapshot_at=nullable(TIME),
        ),
        memory=record(
            "HealthMemory",
            low=FLAG,
            used_bytes=COUNT,
            limit_bytes=COUNT,
            unfinished_bytes=described(COUNT, "of frames that are not complete"),
            receipts_bytes=described(COUNT, "of RECEIPTs that wait"),
        ),
        expiries=listed(_EXPIRY),
        reload=listed(record("HealthReload", item=TEXT, loaded_at=TIME, failure=TEXT)),
        backup=nullable(
            record(
                "HealthBackup",
                at=nullable(TIME),
                age_s=nullable(SECONDS),
                bytes=nullable(COUNT),
                verified=FLAG,
                copied=nullable(FLAG),
                failure=TEXT,
            )
        ),
        audit=record("HealthAudit", written=COUNT, lost=COUNT, failure=TEXT),
    ),
    text="The status is always 200. Monitors use `/readyz`, which answers 503 when the broker is not ready.",
)
async def _health(call: Call) -> Response:
    gateway = call.gateway
    now_s = time.time()
    reasons, degraded = unready_reasons(gateway), degraded_reasons(gateway)
    await gateway.clients.traffic.gather()
    report = await gateway.staleness.report()
    audit, reloader = gateway.audit, gateway.reloader
    return Answer(
        {
            "status": NOT_READY if reasons else DEGRADED if degraded else READY,
            "reasons": reasons,
            "degraded": degraded,
            "as_of": iso_time(int(now_s * 1e6)),
            "started_at": iso_time(gateway.started_at_us),
            "uptime_s": round(now_s - gateway.started_at_us / 1e6, 3),
            "server": f"maxam/{__version__}",
            "core": core(),
            "figures": _figures(gateway),
            "connections": {
                "connected": gateway.clients.traffic.connected,
                "connecting": gateway.clients.traffic.connecting,
                "operators": len(gateway.access.admin_connections),
                "max": gateway.clients.connections_max,
                "problems": len(gateway.connect_problems.rows()),
            },
            "overdue": gateway.freshness.count,
            "behind": report.behind,
            "commit": _commit(gateway) | asdict(gateway.committer.times.recent(time.perf_counter())),
            "disk": _disk(gateway),
            "memory": {
                "low": gateway.watermarks.memory_low,
                "used_bytes": gateway.watermarks.memory_used_bytes,
                "limit_bytes": gateway.watermarks.memory_bytes_max,
                "unfinished_bytes": gateway.held_bytes()[0],
                "receipts_bytes": gateway.held_bytes()[1],
            },
            "expiries": _expiries(reloader.loaded, now_s),
            "reload": [
                {"item": item, "loaded_at": iso_time(int(state.loaded_at_s * 1e6)), "failure": state.failure}
                for item, state in reloader.items.items()
            ],
            "backup": _backup(gateway, now_s),
            "audit": {"written": audit.written, "lost": audit.lost, "failure": str(audit.failure or "")},
        }
    )


def _commit(gateway: Gateway) -> dict[str, object]:
    since_s = gateway.committer.writing_since_s
    return {
        "waiting": gateway.broker.appended_seq - gateway.broker.applied_seq,
        "writing_s": None if since_s is None else round(trio.current_time() - since_s, 6),
    }


def _disk(gateway: Gateway) -> dict[str, object]:
    watermarks, found = gateway.watermarks, gateway.journal_size.found
    return {
        "full": gateway.disk_full,
        "slow": watermarks.slow,
        "low": watermarks.free_low,
        "free_bytes": None if watermarks.free_bytes < 0 else watermarks.free_bytes,
        "journal_bytes": sum(found.bytes_of.values()),
        "segments": found.segments,
        "snapshot_at": iso_time(int(found.snapshot_at_s * 1e6)) if found.snapshot_at_s else None,
    }


def _backup(gateway: Gateway, now_s: float) -> dict[str, object] | None:
    """Return the newest complete backup and the failure of the last attempt. None when the gateway makes no backups."""
    backups = gateway.backups
    if not backups.on:
        return None
    newest = backups.newest
    return {
        "at": None if newest is None else iso_time(newest.begun_at_us),
        "age_s": None if newest is None else round(max(0.0, now_s - newest.begun_at_us / 1e6), 3),
        "bytes": None if newest is None else newest.bytes,
        "verified": newest is not None and newest.verified is True,
        "copied": None if newest is None else newest.copied,
        "failure": backups.failure,
    }


def _expiries(loaded: LoadedConfig, now_s: float) -> list[dict[str, object]]:
    """Return certificates, authorities and CRLs that expire, the next first."""
    found = [("certificate", "", loaded.certificate.valid_until.timestamp())]
    found += [("authority", name, until_s) for name, until_s in loaded.authorities.validity]
    found += [
        ("crl", one.name, one.expires_at.timestamp()) for one in loaded.revocations.lists if one.expires_at is not None
    ]
    return [
        {
            "what": what,
            "name": name,
            "expires_at": iso_time(int(until_s * 1e6)),
            "expires_s": round(until_s - now_s, 3),
        }
        for what, name, until_s in sorted(found, key=lambda one: one[2])
    ]


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/livez", ANY_CERTIFICATE, _livez),
    ("GET", "/readyz", "metrics", _readyz),
    ("GET", "/v1/about", "read", _about),
    ("GET", "/v1/health", "read", _health),
)
