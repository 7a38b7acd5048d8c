"""The decisions of a bridge, without I/O, clock or randomness. The process and the simulator drive it alike.

Contract. A method reports one fact with its time, in seconds since the epoch that never run backwards. `take_wishes` returns what
to do, in order. Wishes for one lane are carried out in their order, and their effects are reported:

* `start` is the first fact. `tick` comes at least every second.
* A lane is a connection with its own client-id, derived from the venue's name: `CENTRE`, and one to the venue for each priority in
  use. `GUEST` goes to the centre with a client-id that the gateway chooses. From `Open` on a lane is connected again after each
  loss. `connected` reports the incarnation. `lost` comes once for each `connected`; nothing of that connection follows it.
* `Subscribe` leads to `subscribed`, then to `message` for each MESSAGE in order, and `complete` for the marker. The positions of
  markers lead to `position`. A notice that a topic may no longer be received leads to `left`.
* `Unsubscribe` leads to `unsubscribed`. `known` is True if the session had a durable subscription of this id. It goes on collecting
  unless `for_good` is set. No message of it follows.
* `Send` leads to `receipt`, or to `refused` if the gateway ends the connection for it, unless the lane is lost before. `Ack` leads to nothing.

Facts about handles and tickets that the relay has forgotten are ignored, so the driver need not cancel anything.

Theory of operation. A *run* begins when all lanes are connected, and ends with the first loss or pause. The subscriptions end then,
and their sessions collect the newest values. A run reads Link at the centre and asks whether the durable subscriptions exist (an
Unsubscribe changes nothing, a Subscribe would create them). If Link has these incarnations and routes, it resumes. If not, it
makes an *inventory*:

1. Link loses its incarnations, and has the routes of the old Links of both sides too: a restored venue shows those of its backup. From here a run that starts after any cut makes an inventory again.
2. The mapped globs are read once at their target. Of each value that this bridge wrote, digest and revision are kept.
3. The routes are subscribed to with all their values. A value with the digest at the target is acknowledged without a SEND.
4. A topic of 2 that 3 did not show is deleted, if its revision is still that of 2. Topics that others wrote are never touched.
5. When all these SENDs have their RECEIPTs, Link gets the incarnations. It waits for values too, as the venue does not journal what an
   eager SUBSCRIBE asks for again.

A value is acknowledged when the target has accepted it. A rejected value is kept in the *quarantine*, newest per topic, and is
acknowledged once Link at the centre shows that there is one. So no crash can lose it: the next bridge makes an inventory.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from typing import Final, final

from maxam.bridge.asks import Asks
from maxam.bridge.drills import Drills, Step
from maxam.bridge.forwarding import Forwarding
from maxam.bridge.provenance import digest, written_by
from maxam.bridge.quarantine import Quarantine
from maxam.bridge.wishes import (
    CENTRE,
    GUEST,
    Close,
    End,
    Log,
    Open,
    Plan,
    PlannedRoute,
    Send,
    Subscribe,
    Unsubscribe,
    Wish,
    lane_of,
)
from maxam.config import Limits
from maxam.errors import GlobError
from maxam.globs import compile_glob
from maxam.links import CENTRE as CENTRE_SIDE
from maxam.links import (
    DOWN,
    DRILL,
    HEADERS,
    PAUSED,
    SYNCING,
    UP,
    Link,
    LinkRoute,
    Wanted,
    decode_link,
    decode_wanted,
    link_topic,
    wanted_topic,
)
from maxam.links import VENUE as VENUE_SIDE

PUBLISH_S: Final = 1.0  # between two Links that only figures make necessary
_LIMITS: Final = Limits()
AGAIN_S: Final = 10.0  # before another attempt after a fault that only people can repair
REACT_S: Final = 5.0  # longer than a value takes from bridge to bridge
_LINK_HEADERS: Final = {name.decode(): value.decode() for name, value in HEADERS}


class Phase(Enum):
    """Where a run is."""

    WAITING = 0  # for all lanes
    LOOKING = 1  # at Link, Wanted and the sessions
    PAUSED = 2
    MARKING = 3  # Link as incomplete
    READING = 4  # the values at the targets
    TAKING = 5  # all values of the routes
    DELETING = 6  # topics that do not exist
    RESUMING = 7  # what the sessions have collected
    RUNNING = 8


def subscription_id(route: LinkRoute) -> str:
    """Return the id of the durable subscription of a route. It does not depend on its priority."""
    return "route-" + sha256(f"{route.direction}\n{route.glob}\n{route.store}".encode()).hexdigest()[:24]


def _routes_of(link: Link | None) -> tuple[LinkRoute, ...]:
    """Return the routes of a Link without those that no gateway would accept: their topics cannot exist."""
    return () if link is None else tuple([route for route in link.routes if _possible(route)])


def _possible(route: LinkRoute) -> bool:
    try:
        compile_glob(route.glob, _LIMITS)
        compile_glob(route.mapped, _LIMITS)
    except GlobError:
        return False
    return route.direction in (UP, DOWN)


@final
class Relay:
    """See the module.

    Attributes:
        plan: The configuration.
        phase: Where the run is.
        link: The Link that was made last, or None.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan: Final = plan
        self.phase = Phase.WAITING
        self.link: Link | None = None
        self._link_topic: Final = link_topic(plan.venue).decode()
        self._wanted_topic: Final = wanted_topic(plan.venue).decode()
        self._venue_lanes: Final = plan.lanes()
        self._home: Final = self._venue_lanes[0]
        self._asks: Final = Asks()
        self._drills: Final = Drills()
        self._values: Final = Forwarding(plan, self._asks, self._drills)
        self._awaited: Final[set[int]] = set()  # handles: the phase ends when this is empty
        self._probes: Final[dict[int, bool]] = {}
        self._seen: Link | None = None  # at the centre
        self._seen_home: Link | None = None  # at the venue
        self._home_known = False  # the routes in the Link of the venue, as it is since the home lane was connected
        self._complete = False
        self._force = False  # the next run makes an inventory
        self._routes: tuple[LinkRoute, ...] = ()  # of the Link to publish
        self._wanted: Final[dict[int, Wanted]] = {}
        self._link_ticket = 0  # of the newest Link to the centre
        self._own: list[
            Link
        ] = []  # those sent to the centre of which one is there, unless another bridge has written since
        self._published_s = 0.0
        self._since_s = 0.0  # of the state in Link
        self._incarnations = ("", "")  # of venue and centre, in this run
        self._quarantine_at_s = 0.0
        self._down_s: float | None = None  # since when a lane is missing
        self._guest_until_s: float | None = None

    @property
    def sent(self) -> int:
        """SENDs of values and deletes since the start, repeated ones too."""
        return self._values.sent

    @property
    def quarantine(self) -> Quarantine:
        """Values that their target rejects."""
        return self._values.quarantine

    @property
    def loops(self) -> int:
        """Values that were not forwarded because they came from the target."""
        return self._values.loops

    def take_wishes(self) -> list[Wish]:
        """Return all wishes since the last call."""
        self._values.ask()
        wishes, self._asks.wishes = self._asks.wishes, []
        return wishes

    # Facts about connections

    def start(self, now_s: float) -> None:
        """Begin. A guest first checks whether another venue of our name is connected."""
        self._asks.now_s = self._down_s = now_s
        self._asks.wishes += [Open(lane) for lane in (*self._venue_lanes, GUEST)]

    def connected(self, now_s: float, lane: int, incarnation: str) -> None:
        """Record that a lane is connected."""
        asks = self._asks
        asks.now_s = now_s
        asks.lanes[lane] = incarnation
        there = [asks.lanes[each] for each in self._venue_lanes if each in asks.lanes]
        if len(set(there)) > 1:  # the venue has restarted in between
            asks.wishes += [Close(each, PUBLISH_S) for each in self._venue_lanes if each in asks.lanes]
        elif len(there) == len(self._venue_lanes):
            if CENTRE in asks.lanes:
                self._drills.connected(now_s, self.sent)
                self._look()
            elif GUEST in asks.lanes and not any(place == GUEST for _, place, _ in asks.listens.values()):
                self._guest_until_s = None
                asks.listen("link", GUEST, self._link_topic)

    def lost(self, now_s: float, lane: int) -> None:
        """Record that the connection of a lane has ended, and end the run."""
        self._asks.now_s = now_s
        self._asks.lost(lane)
        self._values.lost(lane)
        if lane != GUEST:
            self._home_known = self._home_known and lane != self._home
            self._stop()
            self.phase = Phase.WAITING
            self._down_s = now_s if self._down_s is None else self._down_s
            self._values.changed = True

    # Facts about subscriptions

    def subscribed(self, now_s: float, handle: int, resumed: bool, filtered: bool) -> None:
        """Record the RECEIPT of a Subscribe. `filtered` is True if we have no right to receive any topic of the glob."""
        asks = self._asks
        asks.now_s = now_s
        taken = self._values.taken.get(handle)
        kind, lane, glob = asks.listens.get(handle, (None, GUEST, ""))
        if filtered and (taken is not None or (kind is not None and lane != GUEST)):
            side, glob = (lane, glob) if taken is None else (taken.lane, taken.planned.route.glob)
            gateway = self.plan.centre if side == CENTRE else self.plan.venue
            asks.wishes += [Log("bridge-not-allowed", {"gateway": gateway, "glob": glob}), Close(CENTRE, AGAIN_S)]
        elif taken is not None and self.phase is Phase.RESUMING and not resumed:
            self._force = True
            self._restart()

    def unsubscribed(self, now_s: float, handle: int, known: bool) -> None:
        """Record the RECEIPT of an Unsubscribe."""
        self._asks.now_s = now_s
        if handle in self._probes:
            self._probes[handle] = known
            self._arrived(handle)

    def message(
        self, now_s: float, handle: int, revision: int, topic: str, body: bytes, headers: dict[str, str]
    ) -> None:
        """Record a MESSAGE."""
        self._asks.now_s = now_s
        values = self._values
        taken = values.taken.get(handle)
        if taken is not None:
            values.message(taken, revision, topic, body, headers)
            return
        kind, lane, _ = self._asks.listens.get(handle, (None, 0, ""))
        if kind == "wanted":
            self._wanted[lane] = decode_wanted(body) or Wanted()
            self._obey()
        elif kind == "link":
            self._see(lane, decode_link(body))
        elif kind == "inventory" and body and written_by(headers, values.sender(lane)):
            values.tables[lane][topic] = digest(headers, body), revision

    def complete(self, now_s: float, handle: int) -> None:
        """Record the marker that the initial state of a subscription has come."""
        self._asks.now_s = now_s
        kind, lane, _ = self._asks.listens.get(handle, (None, 0, ""))
        if lane == GUEST:
            if self._guest_until_s is None:
                self._enter()
            return
        if kind in ("link", "inventory"):
            self._asks.end(handle)
        self._arrived(handle)

    def position(self, now_s: float, handle: int, revision: int) -> None:
        """Record the revision of a position."""
        self._asks.now_s = now_s
        taken = self._values.taken.get(handle)
        if taken is not None:
            taken.position = revision

    def left(self, now_s: float, handle: int) -> None:
        """Record that we may no longer receive a topic. An inventory removes it at the target."""
        self._asks.now_s = now_s
        self._force = self._force or handle in self._values.taken

    def receipt(self, now_s: float, ticket: int, disposition: str, result: str, reason: str) -> None:
        """Record the RECEIPT of a Send."""
        self._asks.now_s = now_s
        values = self._values
        if ticket == self._link_ticket:
            self._link_answered(disposition, reason)
            return
        values.receipt(ticket, disposition, result, reason)
        if values.held and not self._warns():
            self._publish()
        if self.phase is Phase.DELETING and not values.outstanding:
            self._end_inventory()

    def refused(self, now_s: float, ticket: int, message: str) -> None:
        """Record the ERROR that refuses a Send, by its `message`. `lost` follows."""
        self._asks.now_s = now_s
        self._values.refused(ticket, message)

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        self._asks.now_s = now_s
        if self._guest_until_s is not None and now_s >= self._guest_until_s:
            self._enter()
        values = self._values
        values.tick()
        if self.phase is Phase.RUNNING:
            if self._drills.caught_up(now_s, self.sent, values.items()):
                self._force = True
            if len(values.quarantine) and now_s >= self._quarantine_at_s:
                self._send_quarantine()
            if self._force:
                self._restart()
        due_s = PUBLISH_S if values.changed else self.plan.link_timeout_s / 3
        if now_s >= self._published_s + due_s:
            self._publish()

    # The guest

    def _see(self, lane: int, link: Link | None) -> None:
        """Record the Link that is at the centre."""
        asks = self._asks
        if lane == CENTRE:
            self._seen = link
        elif lane == self._home:
            self._seen_home = link
        elif link is not None and link.state in (UP, SYNCING) and link.venue_incarnation != asks.lanes.get(self._home):
            if self._guest_until_s is None:  # this may be our own past; a bridge that is alive sends it again
                self._guest_until_s = asks.now_s + link.timeout_s / 3 + REACT_S
            else:
                self._guest_until_s = float("inf")
                asks.wishes.append(End(link.venue_incarnation))

    def _enter(self) -> None:
        """Connect to the centre under the venue's name."""
        self._guest_until_s = None
        self._asks.wishes += [Close(GUEST, None), Open(CENTRE)]

    # The begin and the end of a run

    def _look(self) -> None:
        self.phase = Phase.LOOKING
        self._seen = self._seen_home = self._down_s = None
        self._values.warned = False
        asks = self._asks
        self._awaited.clear()
        self._awaited.update([asks.listen("link", lane, self._link_topic) for lane in (CENTRE, self._home)])
        listening = {lane for kind, lane, _ in asks.listens.values() if kind == "wanted"}
        for lane in (CENTRE, self._home):
            if lane not in listening:
                self._wanted[lane] = Wanted()
                self._awaited.add(asks.listen("wanted", lane, self._wanted_topic))
        for lane, planned in self._sources():
            handle = asks.new()
            self._probes[handle] = False
            asks.wishes.append(Unsubscribe(handle, lane, subscription_id(planned.route)))
        self._awaited.update(self._probes)

    def _arrived(self, handle: int) -> None:
        """Go on once all that the phase waits for has come."""
        if handle not in self._awaited:
            return
        self._awaited.discard(handle)
        if not self._awaited:
            match self.phase:
                case Phase.LOOKING:
                    self._decide()
                case Phase.READING:
                    self._take(True)
                case Phase.TAKING:
                    self.phase = Phase.DELETING
                    self._values.remove_ghosts()
                    if not self._values.outstanding:
                        self._end_inventory()
                case Phase.RESUMING:
                    self._run()
                    self._send_quarantine()
                case _:
                    pass

    def _decide(self) -> None:
        """Stay paused, resume, or make an inventory."""
        ours, link = tuple([planned.route for planned in self.plan.routes]), self._seen
        self._incarnations = self._asks.lanes[self._home], self._asks.lanes[CENTRE]
        self._complete = (
            link is not None
            and (link.venue_incarnation, link.centre_incarnation) == self._incarnations
            and set(link.routes) == set(ours)
            and all(self._probes.values())
            and (link.quarantined == 0 or (link in self._own and self.quarantine.whole))
            and not self._force
        )
        if link not in self._own:
            self.quarantine.clear()  # of another bridge it is not known what it has sent since
        former = () if self._complete else (*_routes_of(link), *_routes_of(self._seen_home))
        self._routes = tuple(dict.fromkeys([*ours, *former]))
        self._home_known = True
        self._drills.ask(self._wanted.values())
        if self._paused() or not self._complete:
            self.phase = Phase.PAUSED if self._paused() else Phase.MARKING
            self._publish()
        else:
            self.quarantine.whole = True
            self._take(False)

    def _stop(self) -> None:
        """End the run. The sessions collect from here on."""
        asks = self._asks
        for taken in self._values.taken.values():
            if taken.lane in asks.lanes:
                asks.wishes.append(Unsubscribe(asks.new(), taken.lane, subscription_id(taken.planned.route)))
        for handle, (kind, lane, _) in list(asks.listens.items()):
            if kind != "wanted" and lane != GUEST:
                asks.end(handle)
        self._values.clear()
        self._awaited.clear()
        self._probes.clear()

    def _restart(self) -> None:
        self._stop()
        self._look()

    # Inventory

    def _read(self) -> None:
        """Read the values at the targets."""
        self.phase = Phase.READING
        self.quarantine.clear()
        self._force = False
        asks = self._asks
        ours = {planned.route for planned in self.plan.routes}
        for route in self._routes:
            if route not in ours:
                lanes = self._venue_lanes if route.direction == UP else (CENTRE,)
                asks.wishes += [Unsubscribe(asks.new(), lane, subscription_id(route), True) for lane in lanes]
        for lane, glob in dict.fromkeys([(self._values.target(route), route.mapped) for route in self._routes]):
            self._awaited.add(asks.listen("inventory", lane, glob))

    def _take(self, everything: bool) -> None:
        """Subscribe to the routes, with all their values or with what the sessions have collected."""
        self.phase = Phase.TAKING if everything else Phase.RESUMING
        self._values.taking = everything
        asks = self._asks
        for lane, planned in self._sources():
            handle, route = asks.new(), planned.route
            self._values.take(handle, lane, planned)
            self._awaited.add(handle)
            asks.wishes.append(
                Subscribe(handle, lane, subscription_id(route), route.glob, True, everything, planned.min_interval_ms)
            )

    def _end_inventory(self) -> None:
        self._complete = True
        self._routes = tuple([planned.route for planned in self.plan.routes])
        if self._drills.compared() and self._drills.drill is not None:
            figures = self._drills.drill
            self._asks.wishes.append(
                Log("bridge-drill-done", {"moved": figures.moved, "differences": figures.differences})
            )
        self._run()

    def _run(self) -> None:
        self.phase = Phase.RUNNING
        self._quarantine_at_s = self._asks.now_s + self.quarantine.pause_s
        self._drills.ask(self._wanted.values())
        self._publish()

    def _send_quarantine(self) -> None:
        self.quarantine.due()
        self._quarantine_at_s = self._asks.now_s + self.quarantine.pause_s
        if self.quarantine.whole:
            self._values.send_quarantine()
        else:
            self._force = True

    # Link and Wanted

    def _warns(self) -> bool:
        """Return True if a bridge that starts with the newest Link makes an inventory."""
        return self.link is not None and (self.link.quarantined > 0 or not self.link.venue_incarnation)

    def _publish(self) -> None:
        plan, values, asks = self.plan, self._values, self._asks
        state = self._state()
        former = UP if self.link is None else self.link.state
        if self.link is None or state != former:
            self._since_s = asks.now_s
        reasons = [wanted.because for wanted in self._wanted.values() if wanted.paused]
        oldest_s = min([item.since_s for item in values.items()], default=asks.now_s)
        self.link = Link(
            plan.venue,
            plan.centre,
            VENUE_SIDE,
            state,
            reasons[0] if state == PAUSED and reasons else "",
            int(self._since_s * 1000),
            int(asks.now_s * 1000),
            plan.host,
            plan.link_timeout_s,
            self._incarnations[0] if self._complete else "",
            self._incarnations[1] if self._complete else "",
            self._routes,
            len(values.quarantine),
            values.quarantine.rejections(),
            int((asks.now_s - (oldest_s if self._down_s is None else self._down_s)) * 1000),
            values.loops,
            self._drills.drill,
        )
        self._published_s = asks.now_s
        values.changed = False
        for lane in (CENTRE, self._home):
            if self.phase is Phase.LOOKING or (
                self.phase is Phase.WAITING and (lane == CENTRE or not self._home_known)
            ):
                continue  # a run reads what is there
            if lane in asks.lanes:
                ticket, link = asks.new(), self.link
                if lane == CENTRE:
                    self._link_ticket, values.warned = ticket, False
                    link = replace(link, side=CENTRE_SIDE)
                    self._own.append(link)
                asks.wishes.append(Send(ticket, lane, self._link_topic, link.encoded(), _LINK_HEADERS))

    def _state(self) -> str:
        if self.phase is Phase.PAUSED:
            return PAUSED
        if self._drills.step is not Step.NONE:
            return DRILL
        return UP if self.phase in (Phase.WAITING, Phase.LOOKING, Phase.RESUMING, Phase.RUNNING) else SYNCING

    def _link_answered(self, disposition: str, reason: str) -> None:
        del self._own[:-1]
        if disposition != "accepted":
            self._asks.log("bridge-link-rejected", topic=self._link_topic, reason=reason)
            return
        self._values.warned = self._warns()
        if self._values.warned:
            self._values.release()
        elif self._values.held:
            self._publish()
        drill = self._drills.drill
        if self.phase is Phase.MARKING:
            self._read()
        elif self.phase is Phase.RUNNING and self._drills.step is Step.ASKED and drill is not None:
            self._drills.step = Step.CUT
            self._asks.wishes.append(Close(CENTRE, drill.seconds))

    def _paused(self) -> bool:
        return any(wanted.paused for wanted in self._wanted.values())

    def _obey(self) -> None:
        """Do what operators want, unless a run begins, which asks itself."""
        if self.phase in (Phase.WAITING, Phase.LOOKING):
            return
        if self._paused() != (self.phase is Phase.PAUSED):
            self._restart()
        elif self.phase is Phase.PAUSED:
            self._values.changed = True  # the reason may be another one
        elif self.phase is Phase.RUNNING and self._drills.ask(self._wanted.values()):
            self._publish()

    def _sources(self) -> Iterator[tuple[int, PlannedRoute]]:
        for planned in self.plan.routes:
            yield (lane_of(planned.priority) if planned.route.direction == UP else CENTRE), planned
