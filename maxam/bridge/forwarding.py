"""The values on their way: received, sent, acknowledged, or kept in the quarantine."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, final

from maxam.bridge.asks import Asks
from maxam.bridge.drills import Drills
from maxam.bridge.flow import Flow, Item, Taken
from maxam.bridge.provenance import VIA, digest, forwarded
from maxam.bridge.quarantine import Quarantine
from maxam.bridge.refusals import Refusals
from maxam.bridge.wishes import CENTRE, Ack, Plan, PlannedRoute, Send
from maxam.links import UP, LinkRoute, mapped


@final
class Forwarding:
    """The values of one relay.

    Attributes:
        taken: The durable subscriptions of this run, by handle.
        tables: Digest and revision of each topic at a target, as an inventory has read them.
        taking: An inventory receives all values of the routes.
        quarantine: Values that their target rejects.
        outstanding: SENDs of the inventory without RECEIPT.
        sent: SENDs of values and deletes since the start.
        loops: Values that were not forwarded because they came from the target.
        warned: The centre shows a Link after which every start makes an inventory.
        changed: Figures of Link have changed.
    """

    def __init__(self, plan: Plan, asks: Asks, drills: Drills) -> None:
        self.taken: Final[dict[int, Taken]] = {}
        self.taking = False
        self.quarantine: Final = Quarantine()
        self.outstanding = 0
        self.sent = 0
        self.loops = 0
        self.warned = False
        self.changed = False
        self._names: Final = {CENTRE: plan.centre, plan.lanes()[0]: plan.venue}
        self._home: Final = plan.lanes()[0]
        self.tables: Final[dict[int, dict[str, tuple[bytes, int]]]] = {lane: {} for lane in self._names}
        self._flows: Final = {lane: Flow(plan.window) for lane in self._names}
        self._asks: Final = asks
        self._drills: Final = drills
        self._acks: Final[dict[int, int]] = {}
        self._held: Final[list[Item]] = []  # rejected ones, acknowledged once `warned`
        self._proven: Final[dict[LinkRoute, int]] = {}  # positions at the end of the last run
        self._refusals: Final = Refusals()

    def target(self, route: LinkRoute) -> int:
        """Return the lane to which a route's values go."""
        return CENTRE if route.direction == UP else self._home

    def sender(self, target: int) -> str:
        """Return the name of the gateway whose values go to a lane."""
        return self._names[self._home if target == CENTRE else CENTRE]

    def items(self) -> Iterator[Item]:
        """Iterate over all SENDs without a final answer."""
        for flow in self._flows.values():
            yield from flow

    @property
    def held(self) -> bool:
        """True if rejected values wait until `warned`."""
        return bool(self._held)

    def take(self, handle: int, lane: int, planned: PlannedRoute) -> None:
        """Record a durable subscription."""
        self.taken[handle] = Taken(handle, lane, planned, deque())

    def clear(self) -> None:
        """Forget all values on their way, as the run ends."""
        for taken in self.taken.values():
            self._proven[taken.planned.route] = taken.position
        self.taken.clear()
        self.taking = False
        for flow in self._flows.values():
            flow.clear()
        for table in self.tables.values():
            table.clear()
        self._acks.clear()
        self._held.clear()
        self.outstanding = 0

    def ask(self) -> None:
        """Wish for all SENDs and ACKs that are due."""
        asks = self._asks
        for lane, flow in self._flows.items():
            while lane in asks.lanes and (item := flow.next()) is not None:
                ticket = asks.new()
                flow.flying[ticket] = item
                self.sent += 1
                asks.wishes.append(
                    Send(ticket, lane, item.topic, item.body, item.headers, item.source, item.if_revision)
                )
        for handle, revision in self._acks.items():
            asks.wishes.append(Ack(handle, revision))
        self._acks.clear()

    def tick(self) -> None:
        """Let refused SENDs be made again when that is due."""
        for flow in self._flows.values():
            flow.retry(self._asks.now_s)

    def message(self, taken: Taken, revision: int, topic: str, body: bytes, headers: dict[str, str]) -> None:
        """Forward a message, unless it is at the target already or comes from there."""
        entry = [revision, 0]
        taken.unacked.append(entry)
        route = taken.planned.route
        lane, topic_there = self.target(route), mapped(topic, route.store)
        sender = self.sender(lane)
        onward = forwarded(headers, sender, self._names[lane])
        if onward is None:
            self.loops += 1
            self.changed = True
            self._asks.log("bridge-loop", topic=topic, via=headers.get(VIA, ""))
            self._acknowledge(taken, entry)
            return
        there = self.tables[lane].pop(topic_there, None)
        if there is not None and body and there[0] == digest(headers, body):
            self._acknowledge(taken, entry)
            return
        found = None
        if self.taking:
            found = there[1] if there is not None else 0 if body else None
            if body and revision <= self._proven.get(route, 0):
                self._drills.differ(1)
        self.changed |= self.quarantine.pop(lane, topic_there)
        source = f"{sender}-{self._asks.lanes[taken.lane]}", revision
        priority, now_s = taken.planned.priority, self._asks.now_s
        item = Item(topic_there, body, onward, source, None, taken, entry, priority, now_s, found, self.taking)
        problem = self._refusals.problem(lane, item)
        if problem:
            self._reject(lane, item, problem)
            return
        self.outstanding += self.taking
        self._flows[lane].put(item)

    def refused(self, ticket: int, message: str) -> None:
        """Record the SEND for which a gateway ends the connection. Its message comes again on the next one."""
        for lane, flow in self._flows.items():
            item = flow.flying.get(ticket)
            if item is not None:
                self._asks.log("bridge-refused", topic=item.topic, reason=message)
                self._refusals.learn(lane, item, message)

    def lost(self, lane: int) -> None:
        """Record the end of a connection."""
        self._refusals.lost(lane)

    def receipt(self, ticket: int, disposition: str, result: str, reason: str) -> None:
        """Acknowledge, repeat or keep the value that a RECEIPT is about."""
        for lane, flow in self._flows.items():
            item = flow.flying.pop(ticket, None)
            if item is None:
                continue
            if disposition == "rejected-unavailable":
                flow.refuse(item, self._asks.now_s)
                self._asks.log("bridge-refused", topic=item.topic, reason=f"{result}: {reason}")
                return
            if result == "superseded" and item.found is not None:  # another client has changed the topic since
                flow.put(replace(item, source=None, if_revision=item.found, found=None))
                return
            if disposition == "accepted" or result == "conflict":
                flow.accepted()
                self._confirm(lane, item)
            else:
                self._reject(lane, item, f"{result}: {reason}")
            if item.inventory and self.outstanding:
                self.outstanding -= 1

    def remove_ghosts(self) -> None:
        """Delete the topics that the sending side has not shown."""
        self.taking = False
        for lane, table in self.tables.items():
            self._drills.differ(len(table))
            via = {VIA: self.sender(lane)}
            for topic, (_, revision) in table.items():
                self._flows[lane].put(
                    Item(topic, b"", via, None, revision, None, None, 0, self._asks.now_s, None, True)
                )
            self.outstanding += len(table)
            table.clear()

    def send_quarantine(self) -> None:
        """Send all values of the quarantine again."""
        for lane, item, reason in list(self.quarantine):
            if self._refusals.problem(lane, item):
                continue
            again = replace(item, taken=None, entry=None, found=None, inventory=False, since_s=self._asks.now_s)
            self.quarantine.put(lane, again, reason)
            self._flows[lane].put(again)

    def release(self) -> None:
        """Acknowledge the rejected values that have waited for `warned`."""
        for item in self._held:
            if item.taken is not None and item.entry is not None:
                self._acknowledge(item.taken, item.entry)
        self._held.clear()

    def _confirm(self, lane: int, item: Item) -> None:
        """Record that the target has a value, or a newer one."""
        if item.taken is None or item.entry is None:
            self.changed |= self.quarantine.remove(lane, item)
        else:
            self._acknowledge(item.taken, item.entry)

    def _acknowledge(self, taken: Taken, entry: list[int]) -> None:
        entry[1] = 1
        while taken.unacked and taken.unacked[0][1]:
            revision = taken.unacked.popleft()[0]
            if taken.handle in self.taken:
                self._acks[taken.handle] = revision

    def _reject(self, lane: int, item: Item, reason: str) -> None:
        """Keep the newest value that a target does not accept. Acknowledge it when Link shows that there is one."""
        self._asks.log("bridge-rejected", topic=item.topic, reason=reason)
        self.changed = True
        self.quarantine.put(lane, item, reason)
        if item.taken is None or item.entry is None:
            return
        if self.warned:
            self._acknowledge(item.taken, item.entry)
        else:
            self._held.append(item)
