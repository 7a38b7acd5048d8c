"""A drill of a healthy bridge, whose figures are compared with what was done to its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxam.links import LinkDrill, decode_link, link_topic
from tests.simulation.bridge_model import forwarded
from tests.simulation.bridge_routes import wanted
from tests.simulation.model import Violation

if TYPE_CHECKING:
    from tests.simulation.bridges import Estate, Venue

ROUNDS_MAX = 2000


def drill(estate: Estate) -> None:
    """Remove topics of a bridge without its knowledge, request a drill, and change other topics during the cut.

    Raises:
        Violation: The drill does not end, or its figures are wrong.
    """
    rng = estate.rng
    venue = rng.choice(estate.venues)
    assert venue.process is not None
    estate.calm(venue.process)
    up = [way for way in venue.ways if way.target == estate.centre.name]
    down = [way for way in venue.ways if way not in up]
    found = forwarded(estate.centre, f"bridge-{venue.name}")
    bridged = sorted(topic for topic in found if not any(way.matches(topic) for way in down))
    removed = rng.sample(bridged, rng.randrange(min(len(bridged), 3) + 1))
    for topic in removed:
        estate.centre.publish(topic, b"")
    changed = {
        topic
        for topic in (f"X/a.{n}" for n in range(rng.randrange(4)))
        if any(way.matches(topic) and way.map(topic) not in removed for way in up)
    }
    name = f"drill {next(estate.numbers)}"
    site = rng.choice((estate.centre, venue.site))
    site.publish(f"B/{venue.name}.Wanted", wanted(False, name, rng.randrange(1, 5)))
    figures = _watch(estate, venue, name, sorted(changed))
    if figures.differences != len(removed):
        raise Violation(f"a drill found {figures.differences} differences, not {len(removed)}")
    if figures.moved > len(changed):
        raise Violation(f"{figures.moved} values moved after a drill with {len(changed)} changes")
    estate.settle()


def _watch(estate: Estate, venue: Venue, name: str, changed: list[str]) -> LinkDrill:
    """Let time pass until a drill is over. Change topics during its cut."""
    cut = False
    for _ in range(ROUNDS_MAX):
        estate.advance(0.05)
        estate.move(lambda: 100_000, healthy=True)
        link = decode_link(venue.site.values()[link_topic(venue.name).decode()][1])
        figures = None if link is None else link.drill
        if figures is None or figures.id != name:
            continue
        if not cut:
            cut = True
            for topic in changed:
                venue.site.publish(topic, b"%b:%d" % (venue.name.encode(), next(estate.numbers)))
        if figures.done:
            return figures
    raise Violation(f"{name} does not end")
