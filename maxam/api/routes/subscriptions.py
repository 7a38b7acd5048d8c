"""Routes of subscriptions: list them, list those that are behind, explain the delivery of a topic, end one."""

from http import HTTPStatus
from typing import Final, get_args

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.description import (
    COUNT,
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    TIME,
    WHOLE,
    described,
    listed,
    nullable,
    one_of,
    page,
    record,
    row_of,
)
from maxam.api.errands import end_subscription
from maxam.api.parameters import LIMIT, after, seconds, text
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.avro.json.decoding import iso_time
from maxam.broker.delivery_state import CODES, PLACES_MAX, delivery_state
from maxam.gateway.server import Gateway
from maxam.gateway.staleness import Cause, RefinementRow, SubscriptionRow, refinement_row

SUBSCRIPTIONS_PATH: Final = "/v1/subscriptions"
ROWS_PER_SLICE: Final = 25  # read before the event loop runs other tasks: about 1 ms if each is owed very much
SLICE_SUBSCRIPTIONS: Final = 1000  # sessions and subscriptions read likewise

REFINEMENT: Final = record(
    "Refinement",
    selector=nullable(TEXT),
    min_interval_ms=described(COUNT, "0 without a limit"),
    changes_only=FLAG,
    markers=FLAG,
    metadata=FLAG,
)
SUBSCRIPTION: Final = record(
    "Subscription",
    principal=TEXT,
    client_id=TEXT,
    id=described(TEXT, "of the SUBSCRIBE"),
    glob=TEXT,
    ack=described(one_of("auto", "client", "client-individual", ""), "empty while nothing is delivered"),
    durable=FLAG,
    delivering=described(FLAG, "false: it waits for its re-SUBSCRIBE, or is paused"),
    connected=FLAG,
    owed=described(COUNT, "topics whose newest change was not sent to it yet"),
    unacked=described(COUNT, "messages sent and not acknowledged"),
    oldest_owed_s=SECONDS,
    oldest_unacked_s=SECONDS,
    staleness_s=described(
        NUMBER, "the larger of both, in seconds; 0.0 if it has everything but topics that wait for an interval"
    ),
    behind=described(FLAG, "staleness_s is above behind_after_s"),
    conflated=described(COUNT, "changes that newer ones replaced before they were sent"),
    window=nullable(described(WHOLE, "un-acked messages that its connection may have now")),
    cause=described(one_of(*get_args(Cause)), "why it lacks something, as far as the broker knows"),
    refinement=described(nullable(REFINEMENT), "headers that refine its delivery; null without any"),
)

EXPLANATION: Final = record(
    "DeliveryState",
    principal=TEXT,
    client_id=TEXT,
    id=TEXT,
    destination=TEXT,
    glob=TEXT,
    code=described(one_of(*CODES), "the cause, see docs/operate/admin.md"),
    revision=described(nullable(COUNT), "of the newest change"),
    accepted_at=nullable(TIME),
    deleted=described(nullable(FLAG), "whether the newest change is a delete"),
    sent_revision=described(nullable(COUNT), "revision that was sent last, if the broker still knows it"),
    place=described(nullable(COUNT), f"topics before this one in its queue; null if there are {PLACES_MAX} or more"),
    since_s=described(nullable(NUMBER), "duration of `detached` or `window-full`, seconds"),
    left_s=described(nullable(NUMBER), "seconds until the interval ends, with `held`"),
    window=described(nullable(COUNT), "un-acked messages that the connection may have now"),
    in_flight=described(nullable(COUNT), "un-acked messages that the connection has"),
    in_focus=described(nullable(FLAG), "whether the client may hold a value, if there is a selector"),
    refinement=nullable(REFINEMENT),
)
_OWNER: Final = text("principal", "of the session", required=True)
_OWNER_CLIENT_ID: Final = text("client_id", "of the session", required=True)
_ID: Final = text("id", "of the subscription", required=True)
_DESTINATION: Final = text("destination", "name of the topic", required=True)

_PRINCIPAL: Final = text("principal", "only those of this principal")
_CLIENT_ID: Final = text("client_id", "only those of sessions with this client-id")
_AFTER: Final = after((2, 3))
_MIN_S: Final = seconds(
    "min_s",
    "only those whose staleness is at least this many seconds, behind or not. 0 lists all that lack a change at this moment",
)


@Description(
    "Subscriptions in order of principal, client-id and id",
    page("subscriptions", SUBSCRIPTION),
    (_PRINCIPAL, _CLIENT_ID, _AFTER, LIMIT),
)
async def _subscriptions(call: Call) -> Response:
    async def read(cursor: tuple[str, ...] | None, most: int) -> tuple[list[dict[str, object]], tuple[str, ...] | None]:
        found, following = _after(call.gateway, cursor, most, call[_PRINCIPAL], call[_CLIENT_ID])
        return [subscription_row(one) for one in found], following

    rows = Rows("subscriptions")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[_AFTER], read)
    return rows.answer(following)


def _after(
    gateway: Gateway, cursor: tuple[str, ...] | None, most: int, principal: str | None, client_id: str | None
) -> tuple[list[SubscriptionRow], tuple[str, ...] | None]:
    """Return the next subscriptions in order of (principal, client-id, id), which are filtered.

    Args:
        gateway: The gateway.
        cursor: Place where the batch before ended: after an id, or before the first one of a session. None begins.
        most: Rows of the batch.
        principal: Only those of this principal. None for all.
        client_id: Only those of sessions with this name. None for all.

    Returns:
        The rows, and where to go on. None at the end.
    """
    sessions, staleness = gateway.broker.sessions, gateway.staleness
    rows: list[SubscriptionRow] = []
    looked_at = 0
    start = ("", "") if cursor is None else (cursor[0], cursor[1])
    if principal is not None:
        start = max(start, (principal, client_id or ""))
    for key in sessions.irange(start):
        if principal is not None and key[0] != principal:
            break
        if looked_at >= SLICE_SUBSCRIPTIONS:
            return rows, key
        session = sessions[key]
        looked_at += 1 + len(session.subscriptions)
        if client_id is not None and key[1] != client_id:
            continue
        behind = cursor[2].encode() if cursor is not None and len(cursor) == 3 and key == cursor[:2] else None
        for id_ in sorted([id_ for id_ in session.subscriptions if behind is None or id_ > behind]):
            if len(rows) == most:
                return rows, cursor
            cursor = (*key, id_.decode())
            rows.append(staleness.row(session, session.subscriptions[id_]))
    return rows, None


@Description(
    "Subscriptions that are behind, the longest first",
    record(as_of=TIME, behind=COUNT, looked_at=COUNT, behind_after_s=SECONDS, subscriptions=listed(SUBSCRIPTION)),
    (LIMIT, _MIN_S),
    text="""A subscription is behind if it has lacked a topic for longer than `behind_after_s`, the limit `lag_threshold_s`. `behind` is their number.
The result is at most a second old or, if there are very many, 20 times the duration of a scan.""",
)
async def _slow(call: Call) -> Response:
    staleness, min_s = call.gateway.staleness, call[_MIN_S]
    look = await staleness.look()
    worst = [one for one in look.worst[: call[LIMIT]] if (one.behind if min_s is None else one.staleness_s >= min_s)]
    rows = Rows("subscriptions")
    await rows.add_all(worst, ROWS_PER_SLICE, subscription_row)
    return rows.within(
        as_of=iso_time(look.at_us),
        behind=look.behind,
        looked_at=look.looked_at,
        behind_after_s=staleness.behind_after_s,
    )


@Description(
    "End a durable subscription that no connection uses, answered after the commit",
    record(dropped={"const": True}),
    path=SUBSCRIPTIONS_PATH + "/{principal}/{client_id}/{id}",
    errors={404: "`not-found`: there is no such subscription.", 409: "`in-use`: the session's connection uses it."},
)
async def _drop(call: Call) -> Response:
    principal, client_id, id_ = call.segments(SUBSCRIPTIONS_PATH, ("principal", "client-id", "id"))
    dropped = await end_subscription(call.gateway, call.caller, (principal, client_id), id_)
    if dropped is None:
        raise not_found("there is no such subscription")
    if not dropped:
        problem = "a connection uses the subscription; have its client UNSUBSCRIBE with durable:true, or kick the session first"
        raise ApiError(HTTPStatus.CONFLICT, "in-use", problem)
    return Answer({"dropped": True})


@Description(
    "Explain why a subscription does not have the newest value of a topic",
    EXPLANATION,
    (_OWNER, _OWNER_CLIENT_ID, _ID, _DESTINATION),
    errors={404: "`not-found`: there is no such subscription."},
    text="""A selector and `changes-only` decide by the content of values. So the code is `undisclosed` for such a subscription if the caller may
not receive the topic.""",
)
async def _explain(call: Call) -> Response:
    principal, client_id, id_ = call[_OWNER] or "", call[_OWNER_CLIENT_ID] or "", call[_ID] or ""
    broker, destination = call.gateway.broker, call[_DESTINATION] or ""
    session = broker.sessions.get((principal, client_id))
    subscription = None if session is None else session.subscriptions.get(id_.encode())
    if subscription is None:
        raise not_found("there is no such subscription")
    name = destination.encode()
    state = delivery_state(
        subscription,
        name,
        broker.store.topics.get(name),
        broker.scans_of(subscription),
        trio.current_time(),
        call.may_receive(name),
    )
    return Answer(
        row_of(
            EXPLANATION,
            state,
            principal=principal,
            client_id=client_id,
            id=id_,
            destination=destination,
            glob=subscription.glob.text,
            accepted_at=None if state.accepted_at_us is None else iso_time(state.accepted_at_us),
            refinement=_refinement(refinement_row(subscription)),
        )
    )


def subscription_row(row: SubscriptionRow) -> dict[str, object]:
    """Return the JSON of a subscription."""
    return row_of(SUBSCRIPTION, row, refinement=_refinement(row.refinement))


def _refinement(row: RefinementRow | None) -> dict[str, object] | None:
    """Return the JSON of what refines a subscription."""
    return None if row is None else row_of(REFINEMENT, row)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", SUBSCRIPTIONS_PATH, "read", _subscriptions),
    ("GET", SUBSCRIPTIONS_PATH + "/slow", "read", _slow),
    ("GET", SUBSCRIPTIONS_PATH + "/explain", "read", _explain),
    ("DELETE", SUBSCRIPTIONS_PATH + "/{principal}/{key:path}", "write", _drop),
)
