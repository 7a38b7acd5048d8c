"""The promises of a simulated gateway, against which each frame that leaves is checked. See `Promises`."""

import random
from hashlib import sha256
from typing import Any

from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.broker.producer_sequences import mark_of
from maxam.gateway.loaded_config import LoadedConfig
from maxam.records import Change
from maxam.stomp.frames import Frame
from tests.simulation import files
from tests.simulation.attendance import Attendance
from tests.simulation.driver import check_floor
from tests.simulation.files import ALL, CLIENTS, Granted, Grants, Written
from tests.simulation.links import Asked, Link, Subscribed
from tests.simulation.loop import Loop
from tests.simulation.model import Violation


class Promises:
    """The promises to clients. A subclass has the clients and the gateway, and lets time pass.

    Attributes:
        machine: The gateway that is driven now.
        sources: The configuration in force.
        written: The files of operators.
        truth: Committed changes: topic and body by revision.
        marks: Likewise, number by topic and source.
        minors: Version that was to judge a body.
        told: Receipts of the SENDs that operators were notified of.
        settled: Of durable subscriptions, the revision of each topic whose ACK had its RECEIPT.
        positions: The newest of each client and id, with its glob.
        outlawed: None of them may be served: a reload with this effect was answered.
        tags: Header `tag` of committed changes.
    """

    machine: Any
    sources: LoadedConfig
    written: Written

    def __init__(self, rng: random.Random, refining: bool) -> None:
        self.rng = rng
        self.refining = refining
        self.digest = sha256()
        self.loop = Loop()
        self.count = self.messages = 0
        self.deletes = 0.15
        self.attendance: Attendance | None = None
        self.policies: dict[Policy, Grants] = {}
        self.reloaded: set[str] = set()
        self.links: list[Link] = []
        self.truth: dict[int, tuple[str, bytes]] = {}
        self.marks: dict[tuple[str, bytes], int] = {}
        self.bodies: dict[bytes, int] = {}
        self.minors: dict[bytes, str | None] = {}
        self.told: list[str | None] = []
        self.committed = 0
        self.accepted_at_us = 0
        self.settled: dict[tuple[str, str], dict[str, int]] = {}
        self.memory_low = False
        self.burst: set[bytes] = set()
        self.positions: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.rights: dict[str, frozenset[str]] = dict.fromkeys(CLIENTS, ALL)
        self.outlawed: set[str] = set()
        self.tags: dict[int, str] = {}

    @property
    def broker(self) -> Broker:
        """The one that runs."""
        return self.machine.broker  # type: ignore[no-any-return]  # it has one

    def touch(self) -> None:
        """Hand over what was appended."""
        raise NotImplementedError

    def check_text(self, change: Change) -> None:
        """See that the schema that judged a change is kept."""
        raise NotImplementedError

    def values(self, until: int | None = None) -> dict[str, tuple[int, bytes]]:
        """Return revision and body of what every topic holds, or held at a revision."""
        found: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if until is None or revision <= until:
                found[topic] = (revision, body)
        return {topic: pair for topic, pair in found.items() if pair[1]}

    def deleted(self, until: int | None = None) -> dict[str, int]:
        """Return the revision of the delete of each topic that was deleted, and has no value now, or had none at a revision."""
        held: set[str] = set()
        found: dict[str, int] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if until is not None and revision > until:
                break
            if body:
                held.add(topic)
                found.pop(topic, None)
            elif topic in held:
                held.remove(topic)
                found[topic] = revision
        return found

    def note(self, changes: list[Change]) -> None:
        """Record that changes are on the disk."""
        for change in changes:
            if change.revision != self.committed + 1:
                raise Violation(f"{change.revision} follows {self.committed}")
            if change.accepted_at_us < self.accepted_at_us:
                raise Violation(f"{change.revision} was accepted before the one before it")
            self.accepted_at_us = change.accepted_at_us
            made = None if self.attendance is None else self.attendance.minors
            if self.attendance is not None:
                self.attendance.committed(change)
            if change.body:
                minor, expected = change.validation.schema_version, self.minors.get(change.body)
                if made is not None:
                    expected = made.get((change.revision, change.body), expected)
                if minor != expected:
                    raise Violation(f"{change.revision} was judged by {minor!r}, and {expected!r} was in force")
                if minor:
                    self.check_text(change)
            self.truth[change.revision] = (change.destination.decode(), change.body)
            if self.refining:
                tag = dict(change.headers).get(b"tag")
                if tag is not None:
                    self.tags[change.revision] = tag.decode()
            self.bodies[change.body] = change.revision
            mark = mark_of(change.headers)
            if mark is not None:
                key = (change.destination.decode(), mark[0])
                if mark[1] <= self.marks.get(key, -1):
                    raise Violation(f"{mark} of {key[0]} came after {self.marks[key]}")
                self.marks[key] = mark[1]
            self.committed = change.revision

    def granted(self, client: str, sources: LoadedConfig) -> Granted:
        """Return what a client may do."""
        return dict(self.policies[sources.policy])[client]

    def entitled(self, client: str) -> bool:
        """Return True if a client may be connected."""
        revoked = next(one for one in ("", *CLIENTS) if files._revocations_of(one) is self.sources.revocations)
        return self.granted(client, self.sources).known and client != revoked

    def check(self, link: Link, frame: Frame) -> None:
        """Check one frame that leaves."""
        if frame.command == b"RECEIPT":
            self.check_receipt(link, frame)
        elif frame.command == b"MESSAGE":
            self.check_message(link, frame)
        elif frame.command == b"CONNECTED" and link.bad_will:
            raise Violation(f"{link.client} has connected with the will {link.will}, which is bad")
        elif frame.command == b"ERROR" and (frame.headers[b"message"] == b"bad will") is not link.bad_will:
            raise Violation(f"{link.client} got {frame.headers} for the will {link.will}")

    def check_receipt(self, link: Link, frame: Frame) -> None:
        """Each once and in order; accepted is on the disk."""
        name = frame.headers[b"receipt-id"].decode()
        if not link.expected or link.expected[0].receipt != name:
            raise Violation(f"RECEIPT {name} came when {link.expected[:1]} was the next in order")
        asked = link.expected.pop(0)
        disposition = frame.headers.get(b"disposition")
        if self.attendance is not None and disposition != b"rejected-unavailable":
            accepted = disposition == b"accepted" and b"result" not in frame.headers
            disconnected = asked.kind == "disconnect"
            self.attendance.answered(link.client, link.address, disconnected=disconnected, accepted=accepted)
        if asked.kind == "send":
            self.check_disposition(asked, disposition)
            stored = self.bodies.get(asked.body) if asked.body else 0
            if frame.headers.get(b"result") == b"superseded":
                if asked.mark is None or self.marks.get(asked.mark[:2], -1) < asked.mark[2]:
                    raise Violation(f"{asked.mark} was superseded by {self.marks}")
                if asked.body and stored:
                    raise Violation(f"{asked.body[:10]!r} was superseded but is on the disk")
                return
            if disposition == b"accepted" and stored is None:
                raise Violation(f"{asked.body[:10]!r} was accepted but is not on the disk")
            if disposition != b"accepted" and stored:
                raise Violation(f"{asked.body[:10]!r} was refused but is on the disk")
        if asked.subscribed is not None:
            asked.subscribed.since = self.committed
            options, result = asked.subscribed.options, frame.headers.get(b"result", b"created")
            asked.subscribed.resumed = result == b"resumed"
            if options is not None and options.since is not None and result == b"created":
                asked.subscribed.after = int(options.since.split(b".")[1])
        known = link.subscriptions.get(asked.subscription)
        if known is not None and asked.acked_on is known and known.durable:  # not one that asked for all again since
            settled = self.settled.setdefault((link.client, asked.subscription), {})
            for revision in map(int, filter(None, asked.body.split(b","))):
                settled[self.truth[revision][0]] = max(revision, settled.get(self.truth[revision][0], 0))

    def check_disposition(self, asked: Asked, disposition: bytes | None) -> None:
        """The decision on a SEND is that of policy and schemas when the broker read it."""
        what = f"the SEND of {asked.form} to {asked.topic}"
        if disposition == b"accepted" and not asked.allowed_at_end:
            raise Violation(f"{what} was accepted without the right")
        if disposition == b"accepted" and asked.minor is None:
            raise Violation(f"{what} was accepted though it is invalid")
        if disposition == b"accepted" and asked.low and asked.body:
            raise Violation(f"{what} was accepted while memory was low")
        if disposition == b"rejected-unauthorised" and asked.allowed:
            raise Violation(f"{what} was refused in spite of the right")
        if disposition == b"rejected-invalid" and asked.minor is not None:
            raise Violation(f"{what} was called invalid")
        told = disposition in (b"rejected-invalid", b"rejected-unauthorised")
        if self.told.count(asked.receipt) != told:
            raise Violation(
                f"{what} was {disposition!r}, and operators were told {self.told.count(asked.receipt)} times"
            )

    def check_message(self, link: Link, frame: Frame) -> None:
        """Check one MESSAGE that leaves."""
        self.messages += 1
        id_ = frame.headers[b"subscription"].decode()
        topic = frame.headers[b"destination"].decode()
        revision = int(frame.headers[b"message-id"])
        if topic == "$marker" or frame.headers.get(b"reason") == b"rights":
            self.check_marker(link, id_, frame)
            return
        what = f"MESSAGE {revision} of {topic} on {link.client}/{id_}"
        if link.client in self.outlawed:
            raise Violation(f"{what} went to somebody who may not be connected any more")
        if revision > self.committed:
            raise Violation(f"{what} left above {self.committed}, which is committed")
        known = link.subscriptions.get(id_)
        if known is None:
            raise Violation(f"{what} has no subscription")
        self.check_selected(known, topic, revision, frame.body, what)
        if topic not in known.topics:
            raise Violation(f"{what} was not asked for")
        if topic not in self.rights[link.client]:
            raise Violation(f"{what} went to a principal without the right")
        if revision <= known.last.get(topic, 0):
            raise Violation(f"{what} came after {known.last[topic]}")
        if revision <= self.settled.get((link.client, id_), {}).get(topic, 0):
            raise Violation(f"{what} came again though its ACK had a RECEIPT")
        known.last[topic] = revision
        if known.options is not None and frame.body:
            self.check_interval(known, topic, what)
        if known.acknowledged:
            if any(self.truth[other][0] == topic for other in known.unacked):
                raise Violation(f"{what} while one of its topic is un-acked")
            known.unacked.append(revision)
        unacked = sum(len(other.unacked) for other in link.subscriptions.values()) - known.acknowledged
        if unacked >= link.window:
            raise Violation(f"{what} left beyond the window {link.window}")

    def check_selected(self, known: Subscribed, topic: str, revision: int, body: bytes, what: str) -> None:
        """Check that a body is what was accepted, or shows that a value does not satisfy the selector."""
        accepted = self.truth[revision]
        left = bool(accepted[1]) and not known.selects(self.tags.get(revision))
        if accepted[0] != topic or body != (b"" if left else accepted[1]):
            raise Violation(f"{what} is not what was accepted, or does not satisfy {known.options}")
        if left and known.holds.get(topic) is False:
            since = range(known.last[topic], revision)
            if (topic, b"") not in [
                self.truth[other] for other in since
            ]:  # else the broker may have forgotten that delete
                raise Violation(f"{what} has left again")
        known.holds[topic] = bool(body)

    def check_interval(self, known: Subscribed, topic: str, what: str) -> None:
        """Check the time since the last value of a topic."""
        assert known.options is not None
        passed_s = self.loop.now_s - known.value_s.get(topic, -1e9)
        if passed_s < known.options.interval_ms / 1000 - 1e-9:
            raise Violation(f"{what} came {passed_s} s after the value before")
        known.value_s[topic] = self.loop.now_s

    def check_marker(self, link: Link, id_: str, frame: Frame) -> None:
        """Check a marker or a notice: asked for, one `complete`, and a position from which nothing un-acked is missing."""
        headers, known = frame.headers, link.subscriptions.get(id_)
        what = f"{headers} on {link.client}/{id_}"
        if known is None or known.options is None or not known.options.markers or b"ack" in headers or frame.body:
            raise Violation(f"{what} was not asked for")
        known.completes += headers[b"kind"] == b"complete"
        if known.completes > 1:
            raise Violation(f"{what} came again")
        if b"position" not in headers:
            return
        text = headers[b"position"]
        revision = int(text.split(b".")[1])
        if text == known.options.since or text.endswith(b".0"):
            return
        lowest = min((n for n in known.unacked if n not in known.granted), default=revision + 1)
        if revision > self.committed or lowest <= revision:
            raise Violation(f"{what} came at {self.committed} with {known.unacked} un-acked")
        if revision < known.reported and link.client not in self.reloaded:
            raise Violation(f"{what} came after {known.reported}")
        known.reported = revision
        if not known.durable:
            self.positions[link.client, id_] = (known.glob, text)

    def check_bounds(self) -> None:
        """No subscription is owed more than there are topics, and each that is owed something has a time since when. Deletes above the floor are known."""
        check_floor(self.broker, self.deleted(self.broker.committed_revision))
        for session in self.broker.sessions.values():
            for subscription in session.subscriptions.values():
                if len(subscription.owed | subscription.held.keys()) > len(self.broker.store.topics):
                    raise Violation(f"{session.client_id} is owed more than there are topics")
                waiting = subscription.waiting or {}  # for the end of an interval, which is not lacked
                lacks = any(topic.destination not in waiting for topic in subscription.owed) or subscription.scans > 0
                if (subscription.owed_since_us() > 0) is not lacks:
                    raise Violation(
                        f"{session.client_id} is owed {len(subscription.owed)}, lacked since {subscription.owed_since_us()}"
                    )
                if (subscription.unacked_since_us() > 0) is not bool(subscription.unacked):
                    raise Violation(
                        f"{session.client_id} has un-acked what it lacks since {subscription.unacked_since_us()}"
                    )

    def check_end(self, *, burst: bool) -> None:
        """The newest of each topic has arrived, and every RECEIPT; after a burst of values of all topics, everywhere."""
        newest: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if body or newest.get(topic, (0, b""))[1]:  # deleting what is absent notifies no subscriber
                newest[topic] = (revision, body)
        for link in self.links:
            if link.leaving:
                continue
            connection = link.peer.connection
            if connection is not None and connection.ready_queue and connection.in_flight < link.window:
                raise Violation(f"{link.client} has values ready that nobody hands out")
            if link.expected:
                raise Violation(f"{link.client} has no RECEIPT for {link.expected[0].receipt}")
            for id_, known in link.subscriptions.items():
                for topic in set(known.topics) & self.rights[link.client] & set(newest):
                    revision, body = newest[topic]
                    if body and not known.selects(self.tags.get(revision)):
                        if known.holds.get(topic) and link.client not in self.reloaded:
                            raise Violation(f"{revision} of {topic} has left, and {link.client}/{id_} was not told")
                        continue
                    due = known.since is not None and (revision > known.since or (known.eager and bool(body)))
                    if known.after is not None:
                        due = revision > known.after
                    if not body and known.options is not None and known.options.selector and not known.holds.get(topic):
                        due = False  # a delete of what the client cannot hold
                    if (
                        (burst and body in self.burst) or (due and link.client not in self.reloaded)
                    ) and known.last.get(topic) != revision:
                        raise Violation(
                            f"{revision} of {topic} has not come to {link.client}/{id_}, but {known.last.get(topic)}"
                        )
