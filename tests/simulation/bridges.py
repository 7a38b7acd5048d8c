"""Venues, a centre and the bridges between them on simulated disks, clocks and lines, driven by one seed; see `Estate`."""

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Final

from maxam.avro.registry import Registry
from maxam.bridge.relay import Phase
from maxam.bridge.wishes import Plan
from maxam.broker.policy import Policy
from maxam.records import Change
from tests.simulation.bridge_drills import drill
from tests.simulation.bridge_model import SETTLED_S, Promises, Way, expected, forwarded
from tests.simulation.bridge_process import Process
from tests.simulation.bridge_routes import is_paused, link_complete, plan_of, wanted
from tests.simulation.bridge_site import PUBLISHER, Site, registry_of
from tests.simulation.driver import cheap_globs
from tests.simulation.loop import Loop
from tests.simulation.model import Violation
from tests.support.sans_io import policy

CENTRE: Final = "C"
DAY_S: Final = 86_400
LINK_TIMEOUT_S: Final = 9
STEPS: Final = 260
ROUNDS_MAX: Final = 2500  # until all is equal
QUIET_ROUNDS: Final = 4  # without anything that moves: RECEIPTs and ACKs have come
COUNTED: Final = ("cuts", "kills", "restores", "doubled", "renamed", "refused", "paused", "moved", "committed")


@cache
def stores_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return all stores of the centre."""
    return ("B", *names, *(f"{name}r" for name in names))


@cache
def centre_registry(names: tuple[str, ...], refusing: str) -> Registry:
    """Return the schemas of the centre; topics of one letter may have no rule."""
    letters = [letter for letter in "abc" if letter != refusing]
    globs = [f"{store}/{letter}.*" for store in stores_of(names)[1:] for letter in letters]
    return registry_of("B/*", *globs)


@cache
def venue_registry() -> Registry:
    """Return the schemas of a venue."""
    return registry_of("B/*", "X/*")


@cache
def centre_policy(names: tuple[str, ...]) -> Policy:
    """Return the policy of the centre: a principal for each bridge, with its own stores."""
    rights = {
        f"bridge-{name}": {k: [f"{name}/*", f"{name}r/*", f"B/{name}.*"] for k in ("send", "receive")} | {"bridge": "y"}
        for name in names
    }
    return policy(**rights, pub={"send": ["**"], "receive": ["**"]})


@cache
def venue_policy() -> Policy:
    """Return the policy of a venue."""
    everything = {"send": ["**"], "receive": ["**"]}
    return policy(pub=everything, bridge=everything | {"bridge": "y"})


@dataclass
class Venue:
    """A venue: its machine, its bridge, and what operators did to it by mistake."""

    name: str
    site: Site
    plan: Plan
    ways: list[Way]
    looping: bool
    process: Process | None = None
    start_at: int = 0  # step at which somebody starts a bridge if there is none
    others: list[tuple[Site, Process]] = field(default_factory=list)  # second bridges, and doubled venues
    variant: int = 0
    plans: list[list[Way]] = field(default_factory=list)


class Estate:
    """A run.

    These rules hold at every moment:

    * No target has an older value of one incarnation after a newer one.
    * No older incarnation of a machine follows a newer one.
    * No topic is changed that a bridge may not touch. None is deleted that its source had all the time.

    In the end all lines are up. Within `SETTLED_S` each newest value is at its target. No topic is there that its source does not
    have, and topics of others are as they were. A plain outage after that moves at most the topics that changed.
    """

    def __init__(self, seed: int, venues: int = 2) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self.loop = Loop()
        self.numbers = count(1)
        self.counted: Counter[str] = Counter()
        self.promises = Promises()
        self.machines: dict[Site, int] = {}
        self.all_ways: dict[tuple[str, str], list[Way]] = {}  # (target, principal) -> all that ever led there
        self.names = tuple(f"V{n}" for n in range(venues))
        self.ended: list[Process] = []
        registry = centre_registry(self.names, "")
        self.centre = self.site(CENTRE, centre_policy(self.names), registry)
        self.venues = [self.venue(name) for name in self.names]

    # Gateways and bridges.

    def site(self, name: str, rights: Policy, registry: Registry, of: tuple[Site, int] | None = None) -> Site:
        """Start a gateway, from a backup `of` another one perhaps."""
        disk = None if of is None else of[0].restored_disk(of[1])
        return Site(name, self.rng, self.loop.now_s, rights, registry, self.noted, self.started, disk)

    def venue(self, name: str) -> Venue:
        """Make a venue with its routes."""
        rng = self.rng
        looping = rng.random() < 0.15
        plan, ways = plan_of(name, CENTRE, 0, looping=looping, window=rng.choice((2, 5, 50)), timeout_s=LINK_TIMEOUT_S)
        site = self.site(name, venue_policy(), venue_registry())
        venue = Venue(name, site, plan, ways, looping)
        self.remember(venue)
        self.start_bridge(venue)
        return venue

    def remember(self, venue: Venue) -> None:
        """Record the ways that a venue's bridge has now."""
        venue.plans.append(venue.ways)
        for way in venue.ways:
            principal = f"bridge-{venue.name}" if way.target == CENTRE else "bridge"
            known = self.all_ways.setdefault((way.target, principal), [])
            if way not in known:
                known.append(way)

    def start_bridge(self, venue: Venue, site: Site | None = None) -> Process:
        """Start a process of a venue's bridge."""
        site = site or venue.site
        process = Process(venue.plan, site, self.centre, self.rng, site.clock.time, next(self.numbers))
        if site is venue.site and venue.process is None:
            venue.process = process
        return process

    def sites(self) -> list[Site]:
        """Return all gateways that run."""
        return [
            self.centre,
            *(v.site for v in self.venues),
            *(s for v in self.venues for s, _ in v.others if s is not v.site),
        ]

    def processes(self) -> list[Process]:
        """Return all bridges, those that have ended too as long as a gateway has not noticed."""
        found = [p for v in self.venues for p in (v.process, *(o for _, o in v.others)) if p is not None]
        return [*found, *self.ended]

    # Changes.

    def started(self, site: Site, renewed: bool) -> None:
        """Record a start."""
        machine = self.machines.setdefault(site, len(self.machines))
        if renewed:
            self.promises.started(site, machine)

    def noted(self, site: Site, change: Change) -> None:
        """Check and record a change."""
        self.counted["committed"] += 1
        machine = self.machines[site]
        principal = change.publisher.principal
        ways = self.all_ways.get((site.name, principal), [])
        self.promises.committed(site, machine, change, ways, lambda topic: self.unmapped(ways[0], topic))

    def unmapped(self, way: Way, topic: str) -> bool:
        """Return True if one of the newest configurations of a bridge does not lead to a topic, so that it may be deleted."""
        plans = next(venue.plans for venue in self.venues if venue.name in (way.source, way.target))
        return not all(any(w.target == way.target and w.origin(topic) for w in ways) for ways in plans[-3:])

    # Events.

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.now_s += seconds
        for site in self.sites():
            site.clock.now_s = self.loop.now_s

    def publish(self, site: Site) -> None:
        """Have a publisher of a site change a topic."""
        rng = self.rng
        if site is self.centre:
            name = rng.choice(self.names)
            topic = rng.choice(
                (f"{name}/c.{rng.randrange(2)}", f"{name}/c.{rng.randrange(2)}", f"{name}/a.9", f"{name}r/b.9")
            )
        else:
            topic = f"X/{rng.choice(('a.0', 'a.1', 'a.2', 'b.0', 'b.1', 'c.9'))}"
        body = b"" if rng.random() < 0.25 else b"%b:%d" % (site.name.encode(), next(self.numbers))
        site.publish(topic, body)

    def step(self, now: int) -> None:
        """Let some things happen."""
        rng = self.rng
        self.advance(rng.choice((0.0, 0.01, 0.05, 0.3, 1.0)))
        if rng.random() < 0.35:
            self.publish(rng.choice(self.sites()))
        if rng.random() < 0.10:
            self.befall(rng.choice(self.venues))
        self.move(lambda: rng.choice((20, 200, 2000)))
        for venue in self.venues:
            if venue.process is not None and venue.process.ended:
                self.ended.append(venue.process)
                venue.process = None
                venue.start_at = now + rng.randrange(20)
            if venue.process is None and now >= venue.start_at:
                self.start_bridge(venue)

    def move(self, size: Callable[[], int], *, healthy: bool = False) -> bool:
        """Let sites work and lines carry; return True if anything moved."""
        moved = False
        for site in self.sites():
            if healthy or self.rng.random() < 0.8:
                moved = site.work() or moved
        for process in self.processes():
            if process.orphans and (healthy or self.rng.random() < 0.1):
                process.notice_orphans()
            moved = process.step(size()) or moved
        return moved

    def befall(self, venue: Venue) -> None:
        """Let something happen to a venue, its line, its bridge or the centre."""
        happenings = self.happenings
        ((act, _),) = self.rng.choices(happenings, [weight for _, weight in happenings])
        act(venue)

    @property
    def happenings(self) -> tuple[tuple[Callable[[Venue], None], int], ...]:
        """Events with their weights."""
        return (
            (self.change_line, 24),
            (self.lose_lane, 14),
            (self.stall, 4),
            (self.kill_bridge, 10),
            (self.second, 4),
            (self.kill_site, 12),
            (self.back_up, 8),
            (self.restore, 6),
            (self.set_clock, 4),
            (self.double, 4),
            (self.rename, 5),
            (self.pause, 6),
            (self.drill, 2),
            (self.change_schemas, 5),
            (self.change_disk, 3),
        )

    def any_site(self, venue: Venue) -> Site:
        """Choose a venue's gateway or the centre."""
        return self.rng.choice((venue.site, venue.site, self.centre))

    def change_line(self, venue: Venue) -> None:
        """Cut a line for some time, or repair it."""
        if venue.process is not None:
            self.counted["cuts"] += 1
            if self.rng.random() < 0.8:
                venue.process.wan_up = not venue.process.wan_up
            else:
                venue.process.local_up = not venue.process.local_up

    def lose_lane(self, venue: Venue) -> None:
        """Lose one connection."""
        if venue.process is not None and venue.process.lines:
            self.counted["cuts"] += 1
            venue.process.cut(self.rng.choice(sorted(venue.process.lines)), noticed=self.rng.random() < 0.5)

    def stall(self, venue: Venue) -> None:
        """Have the line to the centre stand still, or go on."""
        if venue.process is not None:
            venue.process.stalled = not venue.process.stalled

    def kill_bridge(self, venue: Venue) -> None:
        """Kill the bridge."""
        if venue.process is not None:
            self.counted["kills"] += 1
            venue.process.kill()

    def second(self, venue: Venue) -> None:
        """Start a second bridge by mistake."""
        self.counted["doubled"] += 1
        venue.others.append((venue.site, self.start_bridge(venue)))

    def kill_site(self, venue: Venue) -> None:
        """Kill a gateway, now or in the middle of a write."""
        self.counted["kills"] += 1
        site = self.any_site(venue)
        if self.rng.random() < 0.3:
            site.cut_power_soon()
        else:
            site.kill(power=self.rng.random() < 0.5)

    def back_up(self, venue: Venue) -> None:
        """Back a gateway up."""
        self.any_site(venue).back_up()

    def restore(self, venue: Venue) -> None:
        """Restore a gateway from one of its backups."""
        site = self.any_site(venue)
        if site.backups:
            self.counted["restores"] += 1
            site.restore(self.rng.randrange(len(site.backups)))

    def set_clock(self, venue: Venue) -> None:
        """Set a clock."""
        self.any_site(venue).clock.jumped_s = self.rng.choice((0, -DAY_S, -3600, 1800))

    def change_disk(self, venue: Venue) -> None:
        """Fill a disk, or free it."""
        site = self.any_site(venue)
        if site.disk.capacity is None:
            site.fill_disk()
        else:
            site.disk.capacity = None

    def change_schemas(self, _: Venue) -> None:
        """Have the centre reject a type, or none."""
        self.refuse(self.rng.choice(("", "a", "b")))

    def drill(self, venue: Venue) -> None:
        """Have operators request a drill."""
        if not any(is_paused(site, venue.name) for site in (self.centre, venue.site)):
            body = wanted(False, f"drill {next(self.numbers)}", self.rng.randrange(1, 5))
            self.rng.choice((self.centre, venue.site)).publish(f"B/{venue.name}.Wanted", body)

    def double(self, venue: Venue) -> None:
        """Start an old backup of a venue beside it, with its bridge; or take it away."""
        doubled = [one for one in venue.others if one[0] is not venue.site]
        if doubled:
            self.take_away(venue, doubled[0])
        elif venue.site.backups:
            self.counted["doubled"] += 1
            of = venue.site, self.rng.randrange(len(venue.site.backups))
            site = self.site(venue.name, venue_policy(), venue_registry(), of)
            venue.others.append((site, self.start_bridge(venue, site)))

    def take_away(self, venue: Venue, one: tuple[Site, Process]) -> None:
        """End a doubled venue or a second bridge."""
        venue.others.remove(one)
        site, process = one
        process.kill()
        self.ended.append(process)
        if site is not venue.site:
            site.machine.end()

    def rename(self, venue: Venue) -> None:
        """Have operators change the routes of a venue, and restart its bridge."""
        self.counted["renamed"] += 1
        venue.variant = self.rng.randrange(4)
        venue.plan, venue.ways = plan_of(
            venue.name, CENTRE, venue.variant, looping=venue.looping, window=venue.plan.window, timeout_s=LINK_TIMEOUT_S
        )
        self.remember(venue)
        if venue.process is not None:
            venue.process.kill()

    def pause(self, venue: Venue) -> None:
        """Have operators pause or resume a venue's bridge, at either side."""
        site = self.rng.choice((self.centre, venue.site))
        paused = not is_paused(site, venue.name)
        self.counted["paused"] += paused
        site.publish(f"B/{venue.name}.Wanted", wanted(paused))

    def resume(self) -> None:
        """Have operators resume all bridges."""
        for venue in self.venues:
            for site in (self.centre, venue.site):
                if is_paused(site, venue.name):
                    site.publish(f"B/{venue.name}.Wanted", wanted(False))

    def refuse(self, letter: str) -> None:
        """Have the centre reject the topics of a letter."""
        self.counted["refused"] += bool(letter)
        self.centre.registry = centre_registry(self.names, letter)
        self.centre.broker.replace_registry(self.centre.registry)

    # The end.

    def heal(self) -> None:
        """End all that fails, and all mistakes."""
        self.refuse("")
        for venue in self.venues:
            for one in list(venue.others):
                self.take_away(venue, one)
        for site in self.sites():
            site.disk.capacity = None
            site.disk.faults.clear()
        for process in self.processes():
            process.wan_up = process.local_up = True
            process.stalled = False
            process.notice_orphans()

    def settle(self) -> None:
        """Let time pass until all is equal and each Link is complete.

        Raises:
            Violation: It takes too long.
        """
        until_s = self.loop.now_s + SETTLED_S
        quiet = rounds = 0
        while True:
            rounds += 1
            moved = self.move(lambda: 100_000, healthy=True)
            for venue in self.venues:
                if venue.process is None or venue.process.ended:
                    if venue.process is not None:
                        self.ended.append(venue.process)
                        venue.process = None
                    self.start_bridge(venue)
            for process in self.ended:
                process.notice_orphans()
            self.ended.clear()
            if moved:
                quiet = 0
                self.advance(0.05)
                if self.loop.now_s < until_s and rounds <= ROUNDS_MAX:
                    continue
            found = self.differences()
            quiet = 0 if found or moved else quiet + 1
            if quiet == QUIET_ROUNDS:
                return
            if self.loop.now_s >= until_s or rounds > ROUNDS_MAX:
                raise Violation(f"after {SETTLED_S} s: {found or 'something still moves'}")
            self.resume()
            self.advance(1.0 if found else 0.05)

    def differences(self) -> list[str]:
        """Return what is not as it must be in the end."""
        found = []
        for venue in self.venues:
            up = [way for way in venue.ways if way.target == CENTRE]
            down = [way for way in venue.ways if way.target != CENTRE]
            for target, principal, source, ways in (
                (self.centre, f"bridge-{venue.name}", venue.site, up),
                (venue.site, "bridge", self.centre, down),
            ):
                must, has = expected(source, ways, target.name), forwarded(target, principal)
                found += [
                    f"{topic} at {target.name}: {has.get(topic)!r}, not {must.get(topic)!r}"
                    for topic in sorted(must.keys() | has.keys())
                    if must.get(topic) != has.get(topic)
                ]
            if not link_complete(venue.name, self.centre, venue.site, venue.plan):
                found.append(f"Link of {venue.name} is not complete")
        for site in (self.centre, *(venue.site for venue in self.venues)):
            has = {t: body for t, (publisher, body) in site.values().items() if publisher == PUBLISHER}
            if has != self.promises.own[self.machines[site]]:
                found.append(f"topics of others at {site.name}: {has}, not {self.promises.own[self.machines[site]]}")
        return found

    def calm(self, process: Process) -> None:
        """Let time pass until the run of a bridge has sent all that was collected, and its ACKs are durable."""
        rounds = 0
        while rounds < QUIET_ROUNDS:
            sent = process.sent
            self.advance(0.3)
            self.move(lambda: 100_000, healthy=True)
            rounds = rounds + 1 if process.sent == sent and process.relay.phase is Phase.RUNNING else 0

    def outage(self) -> None:
        """Have a plain outage, after which only what changed may move.

        Raises:
            Violation: More moved.
        """
        rng = self.rng
        venue = rng.choice(self.venues)
        process = venue.process
        assert process is not None
        self.calm(process)
        before, inventories = process.sent, process.inventories
        kind = rng.randrange(4)
        if kind == 0:
            process.wan_up = False
            process.step(1)
        elif kind == 1:
            process.kill()
        changed = {f"X/a.{rng.randrange(3)}" for _ in range(rng.randrange(5))}
        changed = {topic for topic in changed if any(way.matches(topic) for way in venue.ways if way.target == CENTRE)}
        for _ in range(3):
            for topic in sorted(changed):
                venue.site.publish(topic, b"%b:%d" % (venue.name.encode(), next(self.numbers)))
        if kind == 2:
            venue.site.kill(power=True)
        elif kind == 3:
            self.centre.kill(power=True)
        for _ in range(5):
            venue.site.work()
            self.advance(0.2)
        process.wan_up = True
        if kind in (2, 3):
            changed |= {f"again {topic}" for topic in changed}  # sent before the RECEIPT was lost
        self.settle()
        found = venue.process
        assert found is not None
        moved = found.sent - (before if found is process else 0)
        if moved > len(changed):
            raise Violation(f"{moved} values moved after an outage with {len(changed)} changes: {kind}")
        if found.inventories > (inventories if found is process else 0):
            raise Violation(f"an inventory was made after a plain outage: {kind}")

    def interrupt_inventories(self) -> None:
        """Change routes, restore a side of a venue's bridge, and kill the bridge several times in what follows."""
        rng = self.rng
        venue = rng.choice(self.venues)
        site = rng.choice((self.centre, venue.site))
        site.back_up()
        for _ in range(rng.randrange(3)):
            self.rename(venue)
            for _ in range(rng.randrange(6)):
                self.publish(rng.choice((self.centre, venue.site)))
            self.settle()
        if rng.random() < 0.7:
            self.publish(site)
            site.work()
            site.restore(-1)
        for _ in range(rng.randrange(4)):
            for _ in range(rng.randrange(30)):
                self.advance(0.05)
                self.move(lambda: 200, healthy=True)
            if venue.process is not None:
                venue.process.kill()
                self.ended.append(venue.process)
            venue.process = None
            self.start_bridge(venue)
            self.publish(venue.site)
        self.settle()

    def reject_a_type(self) -> None:
        """Have the centre reject a type for a while, with the death of the bridge or another one meanwhile."""
        rng = self.rng
        venue = rng.choice(self.venues)
        letter = "a" if venue.variant == 2 else rng.choice("ab")
        self.refuse(letter)
        for n in range(2):
            venue.site.publish(f"X/{letter}.{n}", b"%b:%d" % (venue.name.encode(), next(self.numbers)))
        for _ in range(rng.randrange(8, 40)):
            self.advance(0.05)
            self.move(lambda: 100_000, healthy=True)
        if venue.process is not None and rng.random() < 0.5:
            venue.process.kill()
        self.refuse("")
        self.settle()

    def double_by_mistake(self) -> None:
        """Start a second bridge of a healthy venue, or a copy of the venue from yesterday: the wrong one ends by itself.

        Raises:
            Violation: It does not.
        """
        venue = self.rng.choice(self.venues)
        first = venue.process
        assert first is not None
        copied = self.rng.random() < 0.5
        if copied:
            venue.site.back_up()
            site = self.site(venue.name, venue_policy(), venue_registry(), (venue.site, -1))
            venue.others.append((site, self.start_bridge(venue, site)))
        else:
            venue.others.append((venue.site, self.start_bridge(venue)))
        wrong = venue.others[0][1] if copied else first
        for _ in range(600):
            self.advance(0.05)
            self.move(lambda: 100_000, healthy=True)
            if wrong.ended:
                break
        if wrong.ended != ("refused" if copied else "taken over"):
            raise Violation(f"a bridge by mistake goes on, {copied}: {wrong.ended}")
        if not copied:
            self.ended.append(first)
            venue.process = venue.others.pop()[1]
        for one in list(venue.others):
            self.take_away(venue, one)
        self.settle()

    def run(self, steps: int) -> None:
        """Let many things happen, then heal, compare, and have a plain outage."""
        for now in range(steps):
            self.step(now)
        self.heal()
        self.settle()
        self.outage()
        self.interrupt_inventories()
        if self.rng.random() < 0.5:
            self.reject_a_type()
        self.double_by_mistake()
        drill(self)
        for site in self.sites():
            site.machine.end()


def simulate(seed: int, steps: int = STEPS) -> Estate:
    """Run one seed.

    Raises:
        Violation: A promise is broken. A note shows how to repeat it.
    """
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with cheap_globs():
            estate = Estate(seed)
            with estate.loop.in_force():
                estate.run(steps)
    except Exception as error:
        error.add_note(f"seed {seed}; repeat: python -m tests.simulation --kinds bridges --seed {seed}")
        raise
    finally:
        logging.disable(disabled)
    estate.counted["moved"] = sum(estate.promises.moved.values())
    return estate
