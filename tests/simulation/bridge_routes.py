"""The routes of simulated bridges, as operators write them and as the relay has them; and the values of Link and Wanted."""

from maxam.bridge.wishes import Plan, PlannedRoute
from maxam.links import DOWN, UP, LinkRoute, Wanted, WantedDrill, decode_link, decode_wanted, link_topic, wanted_topic
from tests.simulation.bridge_model import Way
from tests.simulation.bridge_site import Site


def plan_of(
    name: str, centre: str, variant: int, *, looping: bool, window: int, timeout_s: int
) -> tuple[Plan, list[Way]]:
    """Return the configuration of a venue's bridge in one of four variants.

    Args:
        name: Of the venue.
        centre: Name of the centre.
        variant: 0 to 3.
        looping: The routes up and down overlap, so that only `via` stops values from going round.
        window: Of the plan.
        timeout_s: Of Link.
    """
    store = name if variant in {0, 2} else f"{name}r"
    if looping:
        routes = [(UP, "X/*", store, 1)]
    else:
        routes = [(UP, "X/a.*", store, 0)]
        if variant != 2:
            routes.append((UP, "X/b.*", name, 2))
    if variant != 3:
        routes.append((DOWN, f"{name}/c.*", "X", 1))
    planned = tuple(
        PlannedRoute(LinkRoute(d, glob, to), priority, 300 if priority == 2 else 0) for d, glob, to, priority in routes
    )
    ways = [Way(name if d == UP else centre, centre if d == UP else name, glob, to) for d, glob, to, _ in routes]
    return Plan(name, centre, planned, window, timeout_s), ways


def wanted(paused: bool, drill: str = "", seconds: int = 0) -> bytes:
    """Return a Wanted, with a drill perhaps."""
    return Wanted(paused, "simulated", WantedDrill(drill, seconds) if drill else None).encoded()


def is_paused(site: Site, name: str) -> bool:
    """Return True if a site's Wanted asks for a pause."""
    topic = site.values().get(wanted_topic(name).decode())
    value = decode_wanted(topic[1]) if topic is not None else None
    return value is not None and value.paused


def link_complete(name: str, centre: Site, venue: Site, plan: Plan) -> bool:
    """Return True if the Link at the centre shows that all is well."""
    topic = centre.values().get(link_topic(name).decode())
    link = decode_link(topic[1]) if topic is not None else None
    return (
        link is not None
        and link.state == UP
        and (link.venue_incarnation, link.centre_incarnation) == (venue.incarnation, centre.incarnation)
        and set(link.routes) == {planned.route for planned in plan.routes}
        and not link.quarantined
    )
