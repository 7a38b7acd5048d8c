"""`bridge.toml`: what it may have, and that each mistake has a line."""

from pathlib import Path

import pytest

from maxam.bridge.config import load_configuration
from maxam.bridge.wishes import CENTRE
from maxam.errors import ConfigurationError
from maxam.links import DOWN, UP, LinkRoute

SIDES = """\
[from]
name = "V7"
addresses = ["127.0.0.1:61614", "[::1]:61614"]
certificate = "bridge.pem"
key = "bridge.key"
ca = "/etc/ca.pem"
[to]
name = "centre"
addresses = ["centre.example:61614"]
certificate = "bridge.pem"
key = "bridge.key"
ca = "ca.pem"
admin = "centre.example:8643"
"""
ROUTE = """\
[[route]]
glob = "X/EGM.**"
store = "V0071"
priority = "high"
min_interval_ms = 1000
"""
DOWN_ROUTE = """\
[[route]]
direction = "down"
glob = "V0071/Config.*"
store = "C"
"""


def test_a_whole_configuration() -> None:
    """All keys arrive in the plan, with paths relative to the file."""
    configuration = load_configuration(SIDES + ROUTE + DOWN_ROUTE, "bridge.toml", Path("/etc/maxam"))
    assert configuration.venue.certificate == Path("/etc/maxam/bridge.pem")
    assert configuration.venue.stomp_addresses() == [("127.0.0.1", 61614), ("::1", 61614)]
    plan = configuration.plan("here")
    assert [planned.route for planned in plan.routes] == [
        LinkRoute(UP, "X/EGM.**", "V0071"),
        LinkRoute(DOWN, "V0071/Config.*", "C"),
    ]
    assert [planned.priority for planned in plan.routes] == [0, 1]
    assert plan.lanes() == (CENTRE + 1,)
    assert (plan.window, plan.link_timeout_s, plan.host) == (256, 30, "here")
    assert configuration.log.format == "text"
    logged = load_configuration(f'[log]\nformat = "json"\n{SIDES}{ROUTE}', "bridge.toml", Path("/etc/maxam"))
    assert logged.log.format == "json"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SIDES, None),
        (SIDES + "[[route]]\nglob = 'X/**'\n", 14),
        (SIDES + "[[route]]\nglob = '**'\nstore = 'V'\n", 15),
        (SIDES + "[[route]]\nglob = 'X*/a'\nstore = 'V'\n", 15),
        (SIDES + "[[route]]\nglob = 'X/[a'\nstore = 'V'\n", 15),
        (SIDES + "[[route]]\nglob = 'X/a'\nstore = 'V/W'\n", 16),
        (SIDES + "[[route]]\nglob = 'X/a'\nstore = 'B'\n", 16),
        (SIDES + ROUTE.replace("1000", "5"), 18),
        (SIDES + ROUTE.replace("high", "highest"), 17),
        (SIDES + ROUTE + "[[route]]\ndirection = 'down'\nglob = 'V0071/**'\nstore = 'X'\n", 21),
        (SIDES + ROUTE + "[[route]]\nglob = 'Y/EGM.a'\nstore = 'V0071'\n", 20),
        (SIDES + ROUTE + "[bridge]\nwindow = 0\n", 20),
        (SIDES + ROUTE + "[bridges]\n", 19),
        (SIDES.replace('"V7"', '"V.7"') + ROUTE, 2),
        (SIDES.replace('"V7"', '"centre"') + ROUTE, 8),
        (SIDES.replace("127.0.0.1:61614", "127.0.0.1") + ROUTE, 3),
        (SIDES.replace("8643", "admin") + ROUTE, 13),
        (SIDES.replace('key = "bridge.key"\n', "", 1) + ROUTE, 1),
        (SIDES + ROUTE + "x x\n", 19),
        ("from = 1\n", 1),
    ],
)
def test_a_mistake_has_a_line(text: str, line: int | None) -> None:
    """The error has file and line. Without any route there is no line."""
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(text, "bridge.toml", Path())
    where = str(caught.value).split(" ")[0]
    assert where == ("bridge.toml:" if line is None else f"bridge.toml:{line}:")
