"""The routes of the cluster: the role of this gateway, the gateway that it follows, its cluster, and the gateways that follow it."""

import time
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, cursor_text
from maxam.api.description import COUNT, FLAG, NUMBER, SECONDS, TEXT, TIME, described, listed, nullable, one_of, record
from maxam.api.parameters import AFTER_NUMBER, PAGE_MAX, flag, text, whole
from maxam.api.routing import Call, Description, RouteSpec, at_a_time, not_found
from maxam.avro.json.decoding import iso_time
from maxam.cluster.comparing import sealed_after
from maxam.cluster.log import LogLostError
from maxam.gateway.differences import COMPARED
from maxam.gateway.measures import ROLES
from maxam.gateway.server import Gateway
from maxam.journal.identity import holds_block, incarnation_start

if TYPE_CHECKING:
    from maxam.gateway.member import ClusterMember

CLUSTER_PATH: Final = "/v1/cluster"
_TO: Final = text("to", "name of the member that shall lead; without it the first in rank")
_HASHED_MAX: Final = 1  # segments that are read whole for one answer: a large one takes seconds
_REVISION: Final = whole("revision", "last revision of the block", 0, 10**18 - 1, None)
_CHAIN: Final = whole("chain", "check of the block", 0, 2**32 - 1, None)
_FULL: Final = flag("full", "read each segment whole, for its SHA-256; a page has few of them then")
_NAME: Final = text("name", "name of the member", required=True)
_POSITION: Final = record(
    "JournalPosition",
    revision=COUNT,
    chain=described(COUNT, "check of the block that ends there; 0 if it is not known"),
)


@Description(
    "The role of this gateway, the gateway that it follows, its cluster, and the gateways that follow it",
    record(
        "Cluster",
        role=one_of(*ROLES),
        as_of=described(TIME, "time of the state that this gateway shows; that of its source if it follows one"),
        incarnation=described(TEXT, "of the journal; empty before the first one"),
        incarnation_start=nullable(described(_POSITION, "where the history of this incarnation begins")),
        revision=COUNT,
        accepted_at=nullable(TIME),
        source=nullable(
            record(
                "Source",
                state=one_of("connecting", "following", "copying", "refused"),
                name=TEXT,
                address=TEXT,
                software=TEXT,
                problem=TEXT,
                refused=described(TEXT, "code of the refusal, such as `forked`; empty without one"),
                linked_s=nullable(SECONDS),
                heard_at=nullable(described(TIME, "when its last sign of life came")),
                revision=nullable(described(COUNT, "of the source, as of its last sign of life")),
                lag_s=NUMBER,
                lag_changes=COUNT,
                lag_bytes=described(COUNT, "received, and not applied or not stored yet"),
                synced_revision=COUNT,
                copied_bytes=COUNT,
                copy_bytes=COUNT,
            )
        ),
        cluster=nullable(
            record(
                "ClusterState",
                name=TEXT,
                member=described(TEXT, "this gateway"),
                leader=described(TEXT, "name of the member that leads; empty if none is known"),
                term=COUNT,
                index=described(COUNT, "of the newest entry of the log, as it is known here"),
                suspended=described(FLAG, "this member leads and the log gives no answer"),
                problem=described(TEXT, "of the log; empty while it answers"),
                log_bytes=described(COUNT, "of the entries that the log holds"),
                log_bytes_max=COUNT,
                engine=nullable(
                    record(
                        "Engine",
                        bytes=described(COUNT, "size of the data of etcd"),
                        quota=described(COUNT, "limit on it; 0 if it is not known"),
                        full=described(FLAG, "it refuses all writes until an operator ends that"),
                        nodes=listed(
                            record(
                                "EngineNode",
                                address=TEXT,
                                release=described(TEXT, "empty if it gives no answer"),
                            )
                        ),
                    )
                ),
                differs=described(
                    listed(record("Difference", item=one_of(*COMPARED), member=TEXT)),
                    "what live members have otherwise than this one, if it leads",
                ),
                members=listed(
                    record(
                        "Member",
                        name=TEXT,
                        role=TEXT,
                        software=TEXT,
                        priority=COUNT,
                        ready=described(FLAG, "it may take over the lead"),
                        applied=described(COUNT, "index of the last entry that its broker has"),
                        synced=described(COUNT, "index of the last entry that its journal has"),
                        revision=COUNT,
                        host=TEXT,
                        stomp_port=COUNT,
                        admin_port=COUNT,
                        link_port=COUNT,
                        announced_at=TIME,
                        live=described(FLAG, "it has announced itself in the last seconds"),
                        lag_entries=described(COUNT, "entries of the log that its broker does not have"),
                        lag_s=described(NUMBER, "how long it has lacked some of the log, as it announced"),
                        free_bytes=nullable(described(COUNT, "on the disk of its journal")),
                        memory_bytes=described(COUNT, "limit of its memory"),
                    )
                ),
            )
        ),
        followers=listed(
            record(
                "Follower",
                principal=TEXT,
                address=TEXT,
                name=TEXT,
                software=TEXT,
                wish=one_of("feed", "copy", "front"),
                revision=nullable(COUNT),
                lag_changes=nullable(COUNT),
                lag_s=nullable(
                    described(NUMBER, "how long the follower lacks something; null if longer than is kept in memory")
                ),
                lag_bytes=nullable(
                    described(COUNT, "of the journal that it lacks; null if more than is kept in memory")
                ),
                heard_at=described(TIME, "when its last sign of life came"),
                sent_bytes=COUNT,
                linked_s=SECONDS,
            )
        ),
    ),
)
async def _cluster(call: Call) -> Response:
    gateway = call.gateway
    broker, role = gateway.broker, gateway.role
    start = await trio.to_thread.run_sync(incarnation_start, Path(gateway.settings.journal.folder), broker.incarnation)
    return Answer(
        {
            "role": role.name,
            "as_of": iso_time(role.as_of_us),
            "incarnation": broker.incarnation,
            "incarnation_start": None if start is None else {"revision": start.revision, "chain": start.chain},
            "revision": broker.committed_revision,
            "accepted_at": iso_time(broker.accepted_at_us) if broker.accepted_at_us else None,
            "source": _source(gateway),
            "cluster": None if role.member is None else _state(role.member, gateway),
            "followers": _followers(gateway),
        }
    )


def _state(member: "ClusterMember", gateway: Gateway) -> dict[str, object]:
    head, cluster, size = member.machine.head, gateway.settings.cluster, member.announcer.size
    index = max(member.logged.place.index, 0 if head is None else head.index)
    return {
        "name": "" if cluster is None else cluster.name,
        "member": member.machine.name,
        "leader": "" if head is None else head.leader,
        "term": 0 if head is None else head.term,
        "index": 0 if head is None else head.index,
        "suspended": member.suspended,
        "problem": member.facts.problem,
        "log_bytes": member.logged.place.held_bytes,
        "log_bytes_max": 0 if cluster is None else cluster.log_bytes_max,
        "engine": None
        if size is None
        else {
            "bytes": size.bytes,
            "quota": size.quota,
            "full": size.full,
            "nodes": [{"address": address, "release": release} for address, release in size.nodes],
        },
        "differs": [{"item": item, "member": name} for item, name in member.differences.found],
        "members": [
            {
                "name": one.name,
                "role": one.role,
                "software": one.software,
                "priority": one.priority,
                "ready": one.ready,
                "applied": one.applied,
                "synced": one.synced,
                "revision": one.revision,
                "host": one.host,
                "stomp_port": one.stomp,
                "admin_port": one.admin,
                "link_port": one.link,
                "announced_at": iso_time(one.number // 1000),
                "live": member.announcer.is_live(one.name),
                "lag_entries": max(0, index - one.applied),
                "lag_s": one.lag_s,
                "free_bytes": one.free_bytes if one.free_bytes >= 0 else None,
                "memory_bytes": one.memory_bytes,
            }
            for _, one in sorted(member.announcer.members.items())
        ],
    }


def _source(gateway: Gateway) -> dict[str, object] | None:
    observer = gateway.role.observer
    if observer is None:
        return None
    follower, status = observer.follower, observer.follower.status
    linked_at_s, head = status.linked_at_s, follower.head
    return {
        "state": status.state,
        "name": status.source,
        "address": status.address,
        "software": status.software,
        "problem": status.problem,
        "refused": status.refused,
        "linked_s": None if linked_at_s is None else round(time.monotonic() - linked_at_s, 3),
        "heard_at": iso_time(follower.heard_at_us) if follower.heard_at_us else None,
        "revision": None if head is None else head.position.revision,
        "lag_s": round(follower.lag_s(), 3),
        "lag_changes": observer.lag_changes(),
        "lag_bytes": observer.lag_bytes(),
        "synced_revision": observer.keeper.synced.revision,
        "copied_bytes": status.copied_bytes,
        "copy_bytes": status.copy_bytes,
    }


def _followers(gateway: Gateway) -> list[dict[str, object]]:
    if gateway.links is None:
        return []
    now_s, end = trio.current_time(), gateway.broker.committed_revision
    rows: list[dict[str, object]] = []
    for state in gateway.links.states.values():
        position = state.position
        lag = None if position is None else gateway.links.ring.lag(position)
        rows.append(
            {
                "principal": state.principal,
                "address": state.address,
                "name": state.name,
                "software": state.software,
                "wish": state.wish,
                "revision": None if position is None else position.revision,
                "lag_changes": None if position is None else max(0, end - position.revision),
                "lag_s": None if lag is None else round(lag[0], 3),
                "lag_bytes": None if lag is None else lag[1],
                "heard_at": iso_time(time.time_ns() // 1000 - int(state.link.silent_s * 1e6)),
                "sent_bytes": state.link.sent_bytes,
                "linked_s": round(now_s - state.begun_s, 3),
            }
        )
    return rows


@Description(
    "Hand over the lead of the cluster; this gateway ends with status 75 once another member leads",
    record("Handover", member=described(TEXT, "this gateway, which hands over")),
    (_TO,),
    errors={409: "no member can take over"},
)
async def _hand_over(call: Call) -> Response:
    member = call.gateway.role.member
    if member is None:
        raise ApiError(HTTPStatus.CONFLICT, "handover-refused", "this gateway is no member of a cluster")
    problem = member.hand_over(call[_TO] or "")
    if problem:
        raise ApiError(HTTPStatus.CONFLICT, "handover-refused", problem)
    return Answer({"member": member.machine.name})


@Description(
    "Remove a member from the cluster that is gone for good: its journal is not waited for any longer",
    record("RemovedMember", name=TEXT),
    (_NAME,),
    errors={
        404: "`not-found`: there is no such member.",
        409: "the member announces itself: stop it first",
        503: "the log gives no answer",
    },
)
async def _remove(call: Call) -> Response:
    member, name = call.gateway.role.member, call[_NAME] or ""
    if member is None or name not in member.announcer.members:
        raise not_found(f"there is no member {name} in a cluster of this gateway")
    if member.announcer.is_live(name):
        raise ApiError(HTTPStatus.CONFLICT, "member-live", f"the member {name} announces itself: stop it first")
    try:
        await trio.to_thread.run_sync(member.announcer.forget, name, abandon_on_cancel=True)
    except LogLostError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error)) from error
    return Answer({"name": name})


@Description(
    "Whether the journal holds a block: members compare their histories by it",
    record("HeldBlock", held=nullable(described(FLAG, "null if the journal no longer reaches back so far"))),
    (_REVISION, _CHAIN),
)
async def _block(call: Call) -> Response:
    folder, revision, chain = Path(call.gateway.settings.journal.folder), call[_REVISION] or 0, call[_CHAIN] or 0
    limiter = at_a_time("blocks", 1)
    held = await trio.to_thread.run_sync(holds_block, folder, "changes", revision, chain, limiter=limiter)
    return Answer({"held": held})


@Description(
    "The sealed segments of the journal, in order. Those of all members are the same bytes",
    record(
        "SealedSegments",
        segments=listed(
            record(
                "SealedSegment",
                first=COUNT,
                last=COUNT,
                bytes=COUNT,
                chain=described(COUNT, "check of the last block"),
                sha256=nullable(TEXT),
            )
        ),
        next=nullable(TEXT),
    ),
    (AFTER_NUMBER, _FULL),
)
async def _segments(call: Call) -> Response:
    folder, full = str(call.gateway.settings.journal.folder), call[_FULL]
    limit = _HASHED_MAX if full else PAGE_MAX
    work = partial(sealed_after, folder, call[AFTER_NUMBER] or 0, limit, full=full)
    found = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=at_a_time("segments", 1))
    following = cursor_text(found[-1].first) if len(found) == limit else None
    return Answer({"segments": [asdict(one) for one in found], "next": following})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", CLUSTER_PATH, "read", _cluster),
    ("POST", CLUSTER_PATH + "/handover", "write", _hand_over),
    ("DELETE", CLUSTER_PATH + "/members", "write", _remove),
    ("GET", CLUSTER_PATH + "/block", "read", _block),
    ("GET", CLUSTER_PATH + "/segments", "read", _segments),
)
