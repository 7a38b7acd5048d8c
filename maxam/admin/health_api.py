"""The route of health: all that an operator asks first, in one answer."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam import __version__
from maxam.admin.answers import Answer, RouteSpec
from maxam.admin.description import (
    COUNT,
    FLAG,
    SECONDS,
    TEXT,
    TIME,
    described,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.admin.values import iso_time
from maxam.admin.view import FIGURES, View
from maxam.compiled import core
from maxam.gateway.sources import Sources
from maxam.records import Identity

if TYPE_CHECKING:
    from maxam.gateway.server import Gateway

HEALTH_PATH: Final = "/v1/health"
READY: Final = "ready"
DEGRADED: Final = "degraded"
NOT_READY: Final = "not ready"

EXPIRY: Final = record(
    "Expiry",
    what=one_of("certificate", "authority", "crl"),
    name={"type": "string", "description": "of the authority; empty for the server's certificate"},
    expires_at=TIME,
    expires_s={"type": "number", "description": "seconds from now; negative: it has expired"},
)


@described(
    "Whether the broker serves, and what an operator should see to",
    record(
        "Health",
        status=one_of(READY, DEGRADED, NOT_READY),
        reasons=listed({"type": "string", "description": "why it is not ready"}),
        degraded=listed({"type": "string", "description": "what should be seen to, though it serves"}),
        as_of=TIME,
        started_at=TIME,
        uptime_s=SECONDS,
        server=TEXT,
        core=one_of("compiled", "interpreted"),
        figures=record("Figures", **dict.fromkeys(FIGURES, COUNT)),
        connections=record("HealthConnections", connected=COUNT, connecting=COUNT, operators=COUNT),
        overdue={"type": "integer", "minimum": 0, "description": "topics that are older than their rule allows"},
        behind={"type": "integer", "minimum": 0, "description": "subscriptions that have lacked something for long"},
        commit=record(
            "HealthCommit",
            waiting={"type": "integer", "minimum": 0, "description": "operations that are not on disk yet"},
            writing_s=nullable({"type": "number", "description": "since when the disk has had a block"}),
            count={
                "type": "integer",
                "minimum": 0,
                "description": "blocks in the last minutes, which the rest is about",
            },
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
        memory=record("HealthMemory", low=FLAG, used_bytes=COUNT, limit_bytes=COUNT),
        expiries=listed(EXPIRY),
        reload=listed(record("HealthReload", item=TEXT, loaded_at=TIME, failure=TEXT)),
        audit=record("HealthAudit", written=COUNT, lost=COUNT, failure=TEXT),
    ),
    text="The status is always 200: what monitors ask is `/readyz`, which answers 503 when the broker is not ready.",
)
async def _health(view: View, _request: Request, _caller: Identity) -> Response:
    gateway = view.gateway
    now_s = time.time()
    reasons, degraded = view.unready_reasons(), view.degraded_reasons()
    await gateway.traffic.gather()
    look = await view.staleness.look()
    audit = view.audit
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
            "figures": view.figures(),
            "connections": {
                "connected": gateway.traffic.connected,
                "connecting": gateway.traffic.connecting,
                "operators": len(view.visitors),
            },
            "overdue": gateway.freshness.count,
            "behind": look.behind,
            "commit": _commit(gateway) | asdict(view.commits()),
            "disk": _disk(gateway),
            "memory": {
                "low": gateway.watermarks.memory_low,
                "used_bytes": gateway.watermarks.memory_used_bytes,
                "limit_bytes": gateway.watermarks.memory_bytes_max,
            },
            "expiries": _expiries(view.reloader.sources, now_s),
            "reload": [
                {"item": item, "loaded_at": iso_time(int(state.loaded_at_s * 1e6)), "failure": state.failure}
                for item, state in view.reloader.items.items()
            ],
            "audit": {"written": audit.written, "lost": audit.lost, "failure": str(audit.failure or "")},
        }
    )


def _commit(gateway: "Gateway") -> dict[str, object]:
    since_s = gateway.committer.writing_since_s
    return {
        "waiting": gateway.broker.appended - gateway.broker.done,
        "writing_s": None if since_s is None else round(trio.current_time() - since_s, 6),
    }


def _disk(gateway: "Gateway") -> dict[str, object]:
    watermarks, found = gateway.watermarks, gateway.journal_size.found
    return {
        "full": gateway.committer.group.disk_full,
        "slow": watermarks.slow,
        "low": watermarks.free_low,
        "free_bytes": None if watermarks.free_bytes < 0 else watermarks.free_bytes,
        "journal_bytes": sum(found.bytes_of.values()),
        "segments": found.segments,
        "snapshot_at": iso_time(int(found.snapshot_at_s * 1e6)) if found.snapshot_at_s else None,
    }


def _expiries(sources: Sources, now_s: float) -> list[dict[str, object]]:
    """Return what expires, the next first."""
    found = [("certificate", "", sources.certificate.valid_until.timestamp())]
    found += [("authority", name, until_s) for name, until_s in sources.authorities.validity]
    found += [
        ("crl", one.name, one.expires_at.timestamp()) for one in sources.revocations.lists if one.expires_at is not None
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


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", HEALTH_PATH, "read", _health),)
