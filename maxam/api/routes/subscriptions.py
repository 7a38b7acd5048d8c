"""Routes of subscriptions: list them, list those that are behind, explain the delivery of a topic, end one."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, get_args

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.description import (
    COUNT,
    FLAG,
    INCOMPLETE,
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
from maxam.broker.delivery_state import CODES, PLACES_MAX, DeliveryState, delivery_state
from maxam.gateway.front_asks import FrontSilentError
from maxam.gateway.listings import subscriptions_after
from maxam.gateway.staleness import Cause, RefinementRow, SubscriptionRow, refinement_row

if TYPE_CHECKING:
    from maxam.gateway.fronts import Fronts

SUBSCRIPTIONS_PATH: Final = "/v1/subscriptions"
ROWS_PER_SLICE: Final = 25  # read before the event loop runs other tasks: about 1 ms if each is owed very much

REFINEMENT: Final = record(
    "Refinement",
    selector=nullable(TEXT),
    min_interval_ms=described(COUNT, "0 without a limit"),
    changes_only=FLAG,
    markers=FLAG,
    metadata=FLAG,
    format=described(one_of("json", ""), "`json` if values are sent as JSON; empty if they are sent as they are"),
    fields=described(listed(TEXT), "paths of the fields that are sent; empty for all"),
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
    page("subscriptions", SUBSCRIPTION, ("incomplete",), incomplete=INCOMPLETE),
    (_PRINCIPAL, _CLIENT_ID, _AFTER, LIMIT),
)
async def _subscriptions(call: Call) -> Response:
    gateway = call.gateway
    if gateway.fronts is not None:
        return await _subscriptions_of_fronts(call, gateway.fronts)

    async def read(cursor: tuple[str, ...] | None, most: int) -> tuple[list[dict[str, object]], tuple[str, ...] | None]:
        found, following = subscriptions_after(
            gateway.staleness, gateway.broker.sessions, cursor, most, call[_PRINCIPAL], call[_CLIENT_ID]
        )
        return [subscription_row(one) for one in found], following

    rows = Rows("subscriptions")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[_AFTER], read)
    return rows.answer(following)


async def _subscriptions_of_fronts(call: Call, fronts: "Fronts") -> Response:
    """Return a page of the subscriptions of the gateway and all fronts. Each gives the first rows after the cursor."""
    cursor, most, only = call[_AFTER], call[LIMIT], (call[_PRINCIPAL], call[_CLIENT_ID])
    told, incomplete = await fronts.asks.all("subscriptions", cursor=cursor, most=most, only=only)
    found, following = fronts.subscriptions(cursor, most, only, told)
    rows = Rows("subscriptions")
    await rows.add_all(found, ROWS_PER_SLICE, subscription_row)
    return rows.answer(following, **({"incomplete": True} if incomplete else {}))


@Description(
    "Subscriptions that are behind, the longest first",
    record(
        "",
        ("incomplete",),
        as_of=TIME,
        behind=COUNT,
        looked_at=COUNT,
        behind_after_s=SECONDS,
        subscriptions=listed(SUBSCRIPTION),
        incomplete=INCOMPLETE,
    ),
    (LIMIT, _MIN_S),
    text="""A subscription is behind if it has lacked a topic for longer than `behind_after_s`, the limit `lag_threshold_s`. `behind` is their number.
The result is at most a second old or, if there are very many, 20 times the duration of a scan.""",
)
async def _slow(call: Call) -> Response:
    staleness, min_s = call.gateway.staleness, call[_MIN_S]
    report = await staleness.report()
    worst = [one for one in report.worst[: call[LIMIT]] if (one.behind if min_s is None else one.staleness_s >= min_s)]
    rows = Rows("subscriptions")
    await rows.add_all(worst, ROWS_PER_SLICE, subscription_row)
    return rows.within(
        as_of=iso_time(report.at_us),
        behind=report.behind,
        looked_at=report.looked_at,
        behind_after_s=staleness.behind_after_s,
        **({"incomplete": True} if report.incomplete else {}),
    )


@Description(
    "End a durable subscription that no connection uses, answered after the commit",
    record(dropped={"const": True}),
    path=SUBSCRIPTIONS_PATH + "/{principal}/{client_id}/{id}",
    errors={404: "`not-found`: there is no such subscription.", 409: "`in-use`: the session's connection uses it."},
)
async def _drop(call: Call) -> Response:
    principal, client_id, id_ = call.segments(SUBSCRIPTIONS_PATH, ("principal", "client-id", "id"))
    with answered_by_front():
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
    session, name = broker.sessions.get((principal, client_id)), destination.encode()
    if session is not None and session.holder and call.gateway.fronts is not None:
        with answered_by_front():
            told = await call.gateway.fronts.asks.holder(
                session, "explain", id=id_, destination=destination, may_receive=call.may_receive(name)
            )
        if told is None:
            raise not_found("there is no such subscription")
        state, glob, refinement = DeliveryState(**told["state"]), told["glob"], told["refinement"]
        return _explanation(call, state, glob, None if refinement is None else RefinementRow(**refinement))
    subscription = None if session is None else session.subscriptions.get(id_.encode())
    if subscription is None:
        raise not_found("there is no such subscription")
    state = delivery_state(
        subscription,
        name,
        broker.store.topics.get(name),
        broker.scans_of(subscription),
        trio.current_time(),
        call.may_receive(name),
        broker.is_late(subscription, name),
    )
    return _explanation(call, state, subscription.glob.text, refinement_row(subscription))


def _explanation(call: Call, state: DeliveryState, glob: str, refinement: RefinementRow | None) -> Response:
    return Answer(
        row_of(
            EXPLANATION,
            state,
            principal=call[_OWNER],
            client_id=call[_OWNER_CLIENT_ID],
            id=call[_ID],
            destination=call[_DESTINATION],
            glob=glob,
            accepted_at=None if state.accepted_at_us is None else iso_time(state.accepted_at_us),
            refinement=_refinement(refinement),
        )
    )


@contextmanager
def answered_by_front() -> Iterator[None]:
    """Turn the silence of a front into an answer of status 503."""
    try:
        yield
    except FrontSilentError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error)) from error


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
