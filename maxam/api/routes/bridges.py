"""Routes of bridges: which links there are, and requests to the bridge of a venue, each as a SEND of the caller's own principal."""

import secrets
from collections.abc import Callable
from http import HTTPStatus
from itertools import islice
from typing import Final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows, require_accepted
from maxam.api.bodies import read_body
from maxam.api.description import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    TIME,
    described,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.api.errands import send
from maxam.api.parameters import AFTER, LIMIT, flag
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.avro.json.decoding import iso_time
from maxam.gateway.bridge_links import BridgeLink
from maxam.links import (
    DRILL_S_MAX,
    HEADERS,
    REASON_CHARACTERS_MAX,
    UP,
    Link,
    LinkDrill,
    Wanted,
    WantedDrill,
    decode_wanted,
    wanted_topic,
)
from maxam.stomp.events import NUMBER_MAX, Condition, Send

ROWS_PER_SLICE: Final = 50
DRILL_S_DEFAULT: Final = 60
_TIME_MS_MAX: Final = 253_402_300_799_000  # the last second of the year 9999
_TRIES: Final = 5  # of a request that another one overtakes
_DRILL: Final = record(
    "BridgeDrill",
    id=TEXT,
    seconds=described(COUNT, "length of the cut"),
    done=described(FLAG, "false until the other figures are final"),
    moved=described(COUNT, "values and deletes that were sent after the cut until both sides were equal"),
    converged_ms=described(COUNT, "time from the end of the cut until all of them were confirmed"),
    differences=described(COUNT, "topics that still differed when both sides were compared afterwards"),
)
_BRIDGE: Final = record(
    "Bridge",
    venue=TEXT,
    centre=TEXT,
    side=described(TEXT, "side at which this gateway is: `VENUE` or `CENTRE`"),
    up=described(FLAG, "false: the topics of the bridge are unknown here"),
    down=nullable(described(TEXT, "why it is not up: `silent`, `deleted`, `unreadable`, or the state")),
    unknown_since=nullable(TIME),
    behind_s=described(NUMBER, "age of the oldest change that may be missing here, in seconds"),
    state=described(TEXT, "as the bridge published it: `UP`, `SYNCING`, `PAUSED`, `DRILL`"),
    because=described(TEXT, "reason of the pause or drill"),
    since=described(TIME, "when the state began, by the clock of the bridge"),
    heard_at=described(TIME, "when the newest value of the link was accepted"),
    link_timeout_s=COUNT,
    host=described(TEXT, "machine of the bridge"),
    venue_incarnation=TEXT,
    centre_incarnation=TEXT,
    routes=listed(record("BridgeRoute", direction=one_of("UNKNOWN", "UP", "DOWN"), glob=TEXT, mapped=TEXT)),
    quarantined=described(COUNT, "topics whose newest value the other side rejects"),
    rejections=listed(record("BridgeRejection", topic=TEXT, reason=TEXT)),
    loops=described(COUNT, "values that were not forwarded, as they came from the other side"),
    drill=nullable(_DRILL),
    wanted=record(
        "BridgeWanted",
        paused=described(FLAG, "requested at this side"),
        because=TEXT,
        drill=nullable(described(TEXT, "identifier of the last drill that was requested at this side")),
    ),
)
_REQUESTED: Final = record(
    "BridgeRequest",
    venue=TEXT,
    paused=FLAG,
    drill=nullable(described(TEXT, "identifier of the drill")),
    revision=described({"type": "integer", "minimum": 1, "maximum": NUMBER_MAX}, "of the request"),
)
_BECAUSE: Final = {"type": "string", "minLength": 1, "maxLength": REASON_CHARACTERS_MAX}
_PAUSE_WISH: Final = record("BridgePauseWish", because=_BECAUSE)
_DRILL_WISH: Final = record(
    "BridgeDrillWish",
    ("seconds",),
    because=_BECAUSE,
    seconds={"type": "integer", "minimum": 1, "maximum": DRILL_S_MAX, "default": DRILL_S_DEFAULT},
)
_NONE: Final[dict[int, str]] = {
    HTTPStatus.NOT_FOUND: "`not-found`: no bridge of this venue publishes its link here.",
}
_REFUSED: Final[dict[int, str]] = _NONE | {
    HTTPStatus.FORBIDDEN: "`unauthorised`: this principal may not send to `B/<venue>.Wanted`.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Rejected, with the result code of the RECEIPT.",
}
_BAD_BODY: Final[dict[int, str]] = {HTTPStatus.BAD_REQUEST: "`invalid-request`: the body is not valid."}
_DOWN: Final = flag("down", "`true`: only those whose link is down")


@Description(
    "Bridges that publish their link here, in order of their venues",
    page("bridges", _BRIDGE),
    (_DOWN, AFTER, LIMIT),
)
async def _bridges(call: Call) -> Response:
    links = call.gateway.bridge_links.links
    after = (call[AFTER] or b"").decode()
    names = sorted(name for name, one in links.items() if name > after and (one.down or not call[_DOWN]))
    rows, limit = Rows("bridges"), call[LIMIT]
    shown = list(islice(names, limit))
    for start in range(0, len(shown), ROWS_PER_SLICE):
        rows.add([_row(call, links[name]) for name in shown[start : start + ROWS_PER_SLICE] if name in links])
        await trio.lowlevel.checkpoint()
    return rows.answer(shown[-1] if len(names) > limit else None)


@Description("One bridge", _BRIDGE, errors=_NONE)
async def _bridge(call: Call) -> Response:
    return Answer(_row(call, _found(call)))


@Description(
    "Pause the bridge of a venue",
    _REQUESTED,
    body=_PAUSE_WISH,
    errors=_REFUSED | _BAD_BODY,
    text="It is paused until it is resumed at this side, also after restarts. If the other side has paused it too, both must resume it.",
)
async def _pause(call: Call) -> Response:
    because: str = (await read_body(call.request, _PAUSE_WISH))["because"]
    return await _request(call, because, lambda before: Wanted(True, because, before.drill))


@Description("Resume the bridge of a venue", _REQUESTED, errors=_REFUSED)
async def _resume(call: Call) -> Response:
    return await _request(call, "", lambda before: Wanted(False, "", before.drill))


@Description(
    "Have the bridge of a venue cut its connection to the centre for a while, and compare both sides afterwards",
    _REQUESTED,
    body=_DRILL_WISH,
    errors=_REFUSED | _BAD_BODY | {HTTPStatus.CONFLICT: "`link-down`: the link is not up."},
    text="Answered once the request is stored. The field `drill` of the bridge shows the figures when its `done` is true.",
)
async def _drill(call: Call) -> Response:
    wish = await read_body(call.request, _DRILL_WISH)
    one = _found(call)
    if one.down:
        problem = f"the link of {one.venue} is down ({one.down}): a drill needs a link that is up"
        raise ApiError(HTTPStatus.CONFLICT, "link-down", problem)
    drill = WantedDrill(secrets.token_hex(8), wish.get("seconds") or DRILL_S_DEFAULT)
    because = str(wish["because"])
    return await _request(call, because, lambda before: Wanted(before.paused, because, drill))


async def _request(call: Call, because: str, change: Callable[[Wanted], Wanted]) -> Response:
    """Change what is requested of a bridge, on the basis of the newest request."""
    one = _found(call)
    topic = wanted_topic(one.venue)
    broker = call.gateway.broker
    answer: dict[str, str] = {}
    wanted = Wanted()
    for _ in range(_TRIES):
        known = broker.store.topics.get(topic)
        before = None if known is None or known.change.deleted else decode_wanted(known.change.body)
        wanted = change(before or Wanted())
        expected = 0 if known is None or known.change.deleted else known.change.revision
        event = Send(topic, wanted.encoded(), HEADERS, b"admin", Condition(None, -1, expected))
        answer = await send(call.gateway, call.caller, event)
        if answer.get("result") != "conflict":
            break
        await trio.lowlevel.checkpoint()
    if answer.get("result") == "unauthorised":
        problem = (
            f"this principal may not send to {topic.decode()}; grant it the right to send B/*.Wanted in policy.toml"
        )
        raise ApiError(HTTPStatus.FORBIDDEN, "unauthorised", problem, disposition=answer["disposition"])
    require_accepted(answer)
    if because:
        call.audit("done", f"because: {because}")
    drill = None if wanted.drill is None else wanted.drill.id
    return Answer({"venue": one.venue, "paused": wanted.paused, "drill": drill, "revision": int(answer["revision"])})


def _found(call: Call) -> BridgeLink:
    venue = call.segment("venue")
    one = call.gateway.bridge_links.links.get(venue)
    if one is None:
        raise not_found(f"no bridge of a venue {venue} publishes its link here")
    return one


_NO_LINK: Final = Link("", "", "UNKNOWN", "UNKNOWN", "", 0, 0, "", 0, "", "", ())


def _row(call: Call, one: BridgeLink) -> dict[str, object]:
    link = one.link or _NO_LINK
    known = call.gateway.broker.store.topics.get(wanted_topic(one.venue))
    wanted = None if known is None or known.change.deleted else decode_wanted(known.change.body)
    requested = wanted or Wanted()
    return {
        "venue": one.venue,
        "centre": link.centre,
        "side": link.side,
        "up": not one.down,
        "down": one.down or None,
        "unknown_since": iso_time(one.unknown_since_us) if one.unknown_since_us else None,
        "behind_s": round(one.behind_s(call.gateway.bridge_links.now_us), 3),
        "state": link.state,
        "because": link.because if link.state != UP else "",
        "since": iso_time(min(max(link.since_ms, 0), _TIME_MS_MAX) * 1000),
        "heard_at": iso_time(one.change.accepted_at_us),
        "link_timeout_s": max(link.link_timeout_s, 0),
        "host": link.host,
        "venue_incarnation": link.venue_incarnation,
        "centre_incarnation": link.centre_incarnation,
        "routes": [{"direction": of.direction, "glob": of.glob, "mapped": of.mapped} for of in link.routes],
        "quarantined": max(link.quarantined, 0),
        "rejections": [{"topic": of.topic, "reason": of.reason} for of in link.rejections],
        "loops": max(link.loops, 0),
        "drill": None if link.drill is None else _drill_row(link.drill),
        "wanted": {
            "paused": requested.paused,
            "because": requested.because,
            "drill": None if requested.drill is None else requested.drill.id,
        },
    }


def _drill_row(drill: LinkDrill) -> dict[str, object]:
    return {
        "id": drill.id,
        "seconds": max(drill.seconds, 0),
        "done": drill.done,
        "moved": max(drill.moved, 0),
        "converged_ms": max(drill.converged_ms, 0),
        "differences": max(drill.differences, 0),
    }


_PATH: Final = "/v1/bridges/{venue}"
ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/bridges", "read", _bridges),
    ("GET", _PATH, "read", _bridge),
    ("POST", _PATH + "/pause", "write", _pause),
    ("POST", _PATH + "/resume", "write", _resume),
    ("POST", _PATH + "/drill", "write", _drill),
)
