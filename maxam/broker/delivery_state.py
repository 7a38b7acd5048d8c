"""Why a subscription does not have the newest value of a topic now. Operators request it, rarely.

Theory of operation. The answer is one code and some facts. The broker keeps nothing for the answer: both are read from what delivery
itself needs. So the broker knows which revision it sent only while that revision is not settled. Lasting causes come first, such as a
missing right. Then come the states of a topic that is owed, and then those of one that is not.

A selector and `changes-only` decide by the content of values. A caller that may not receive the topic must not learn about the content.
So it gets the code `undisclosed` instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from maxam.broker.refinement import SKIP, Refinement
from maxam.broker.scans import Scan
from maxam.broker.session import PENDING, UNMATCHED, Session, Subscription, Topic

PLACES_MAX: Final = 100_000  # of a queue that are searched for a topic: 2 ms

Code = Literal[
    # Lasting causes.
    "no-match",
    "no-right",
    "no-topic",
    "pending",
    "undisclosed",
    "filtered",
    # The topic is owed or un-acked.
    "unacknowledged",
    "superseded",
    "detached",
    "paused",
    "closing",
    "unchanged",
    "held",
    "window-full",
    "ready",
    # It is not owed.
    "writing",
    "scanning",
    "older",
    "acknowledged",
    "handed-out",
]
CODES: Final[tuple[Code, ...]] = get_args(Code)
_QUEUED: Final = ("ready", "window-full")


@final
@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The state of one topic for one subscription. A fact that does not apply, or that the broker does not know, is None.

    Attributes:
        code: The cause, one of CODES:

            * `no-match`: the glob does not match the destination;
            * `no-right`: the principal may not receive the topic;
            * `no-topic`: the broker has no value of the topic, and no delete that it remembers;
            * `pending`: the SUBSCRIBE, or a right that was granted, has not taken effect yet;
            * `undisclosed`: the answer depends on values that the caller may not receive;
            * `filtered`: the newest value does not satisfy the selector, or a delete concerns nothing that the client may hold;
            * `unacknowledged`: the newest change was sent, and the client has not acknowledged it;
            * `superseded`: an older change was sent and not acknowledged, and the newest one waits for that ACK;
            * `detached`: the session has no connection;
            * `paused`: the session is connected, and the client has not subscribed again;
            * `closing`: the connection is about to end;
            * `unchanged`: the client has a value with the same body, and subscribed with `changes-only`;
            * `held`: the interval of the topic is not over;
            * `window-full`: the client must acknowledge other messages first;
            * `ready`: the change is sent as soon as the client reads;
            * `writing`: the change was handed to the connection, and it is not proven that it was written;
            * `scanning`: the scan for the subscription has not reached the topic;
            * `older`: the change is older than the subscription, which did not ask for current values;
            * `acknowledged`: the client has acknowledged all that was routed to the subscription;
            * `handed-out`: all that was routed to the subscription was handed out.
        revision: Revision of the newest change.
        accepted_at_us: When that change was accepted.
        deleted: Whether that change is a delete.
        sent_revision: Revision that was sent last, as far as the broker knows.
        place: Number of topics before this one in the queue of the subscription.
        since_s: Duration of the state in seconds, of `detached` and `window-full`.
        left_s: Seconds until the interval of the topic ends, of `held`.
        window: Messages that the connection may have un-acked now.
        in_flight: Messages that the connection has un-acked.
        in_focus: Whether the client may hold a value of the topic, of a subscription with a selector.
    """

    code: Code
    revision: int | None = None
    accepted_at_us: int | None = None
    deleted: bool | None = None
    sent_revision: int | None = None
    place: int | None = None
    since_s: float | None = None
    left_s: float | None = None
    window: int | None = None
    in_flight: int | None = None
    in_focus: bool | None = None


def delivery_state(
    subscription: Subscription,
    destination: bytes,
    topic: Topic | None,
    scans: Iterable[Scan],
    now_s: float,
    disclosed: bool = True,
    late: bool = False,
) -> DeliveryState:
    """Return why a subscription does not have the newest change of a topic.

    Args:
        subscription: It is in its session.
        destination: Name of the topic.
        topic: The topic, None if the store has none of this name.
        scans: Scans under way for the subscription.
        now_s: Monotonic seconds.
        disclosed: The caller may receive the topic.
        late: The glob may be still to be compared with the topic.
    """
    if not subscription.glob.matches(destination.decode()):
        return DeliveryState("no-match")
    code = _lasting(subscription, destination, topic, disclosed)
    if topic is None:
        return DeliveryState(code or "no-topic")
    change = topic.change
    if code == "undisclosed":
        return DeliveryState(code, change.revision, change.accepted_at_us, change.deleted)
    if code is None:
        owed = topic in subscription.owed or _unacked_revision(subscription, topic) is not None
        code = _owed(subscription, topic) if owed else _not_owed(subscription, topic, scans, late)
    session, connection, refinement = subscription.session, subscription.connection, subscription.refinement
    place = subscription.place_of(topic, PLACES_MAX) if code in _QUEUED else -1
    return DeliveryState(
        code,
        change.revision,
        change.accepted_at_us,
        change.deleted,
        sent_revision=_sent_revision(subscription, topic),
        place=None if place < 0 else place,
        since_s=_since_s(code, session, now_s),
        left_s=None if refinement is None or code != "held" else max(0.0, refinement.held_until_s(destination) - now_s),
        window=None if connection is None else connection.window.size,
        in_flight=None if connection is None else connection.in_flight,
        in_focus=None if refinement is None or refinement.selector is None else refinement.is_held(destination),
    )


def _lasting(subscription: Subscription, destination: bytes, topic: Topic | None, disclosed: bool) -> Code | None:
    """Return the cause that holds whatever is owed, if there is one."""
    if not subscription.session.rights.may_receive(destination):
        return "no-right"
    if topic is None:
        return "no-topic"
    if subscription.life is PENDING or subscription.life is UNMATCHED:
        return "pending"
    refinement = subscription.refinement
    if refinement is None:
        return None
    if not disclosed and (refinement.selector is not None or refinement.changes_only):
        return "undisclosed"
    return "filtered" if _is_filtered(refinement, topic) else None


def _owed(subscription: Subscription, topic: Topic) -> Code:
    """Return the cause for a topic that is owed or un-acked."""
    session, connection, refinement = subscription.session, subscription.connection, subscription.refinement
    if _unacked_revision(subscription, topic) is not None:
        return "superseded" if topic in subscription.owed else "unacknowledged"
    if connection is None:
        return "detached" if session.connection is None else "paused"
    if connection.quiet:
        return "closing"
    if refinement is not None and refinement.decide(topic.change) == SKIP:
        return "unchanged"
    if refinement is not None and refinement.waits(topic.change):
        return "held"
    return "window-full" if connection.in_flight >= connection.window.size else "ready"


def _not_owed(subscription: Subscription, topic: Topic, scans: Iterable[Scan], late: bool) -> Code:
    """Return the cause for a topic that is neither owed nor un-acked."""
    refinement = subscription.refinement
    if _unwritten_revision(subscription, topic) is not None:
        return "writing"
    if late or any(_will_owe(scan, topic) for scan in scans):
        return "scanning"
    if _is_older(subscription, topic):
        return "older"
    if refinement is not None and refinement.decide(topic.change) == SKIP:
        return "unchanged"
    return "acknowledged" if subscription.acknowledged else "handed-out"


def _is_filtered(refinement: Refinement, topic: Topic) -> bool:
    """Return True if a value does not satisfy the selector, or if a delete concerns nothing that the client may hold."""
    selector = refinement.selector
    if selector is None:
        return False
    if topic.change.deleted:
        return not refinement.is_held(topic.destination)
    return not selector.evaluate(topic.change)  # the result is not remembered with those of delivery


def _is_older(subscription: Subscription, topic: Topic) -> bool:
    """Return True if a change was accepted before a transient subscription that did not ask for it."""
    refinement = subscription.refinement
    asked = subscription.durable or subscription.eager or (refinement is not None and refinement.resumed)
    return not asked and topic.change.accepted_at_us < subscription.asked_us


def _will_owe(scan: Scan, topic: Topic) -> bool:
    """Return True if a scan will come to a topic and owe it."""
    change = topic.change
    if scan.over or scan.withdrawn or (scan.cursor is not None and topic.destination <= scan.cursor):
        return False
    if change.deleted if scan.after < 0 else change.revision <= scan.after:
        return False
    return change.revision <= scan.revision and topic not in scan.owed and scan.may_owe(topic.destination)


def _unacked_revision(subscription: Subscription, topic: Topic) -> int | None:
    """Return the revision of a topic that is un-acked. None if there is none."""
    if topic in subscription.held:
        for revision, (one, _, _) in subscription.unacked.items():
            if one is topic:
                return revision
    return None


def _unwritten_revision(subscription: Subscription, topic: Topic) -> int | None:
    """Return the revision of a topic that was handed out and is not proven written. None if there is none."""
    if subscription.connection is not None:
        for one, other, revision, _ in reversed(subscription.connection.unwritten):
            if one is subscription and other is topic:
                return revision
    return None


def _sent_revision(subscription: Subscription, topic: Topic) -> int | None:
    """Return the revision that was sent last, or None if the broker does not know it."""
    revision = _unacked_revision(subscription, topic)
    if revision is None:
        revision = _unwritten_revision(subscription, topic)
    return subscription.unrecorded.get(topic.destination) if revision is None else revision


def _since_s(code: Code, session: Session, now_s: float) -> float | None:
    """Return for how long a state has lasted that has a time."""
    connection = session.connection
    if code == "detached":
        return max(0.0, now_s - session.detached_at_s)
    if code == "window-full" and connection is not None and connection.full_since_s >= 0:
        return max(0.0, now_s - connection.full_since_s)
    return None
