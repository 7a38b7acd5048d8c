"""Clients that cannot connect or do not stay connected: which rows there are, and what health shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.gateway.audit import DISCONNECTED, REFUSED, TAKEN_OVER
from maxam.gateway.connect_problems import KINDS, OFTEN, OFTEN_S, RECONNECTING, ROWS_MAX, ConnectProblems, advice_for
from maxam.records import Identity

ANNA = Identity("anna", "aa")
STRANGER = Identity("", "bb")
NOBODY = Identity("", "")


class World:
    """Tables, and their clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.problems = ConnectProblems(lambda: self.now_s, lambda: int(self.now_s * 1e6))

    def refused(self, who: Identity, reason: str, address: str = "10.0.0.1:5", **facts: object) -> None:
        """Refuse a connection."""
        self.problems.observe(REFUSED, who, address, reason, facts)

    def ended(self, reason: str, seconds: float = 1.0, sends: int = 0, messages: int = 0) -> None:
        """End a connection."""
        facts = {"session": "c", "seconds": seconds, "sends": sends, "messages": messages}
        self.problems.observe(DISCONNECTED, ANNA, "10.0.0.1:5", reason, facts)

    @property
    def codes(self) -> list[str]:
        """The codes of health."""
        return [line.partition(":")[0] for line in self.problems.degraded()]


@pytest.mark.parametrize("times", [1, OFTEN - 1, OFTEN, OFTEN + 1])
@pytest.mark.parametrize(
    ("who", "reason", "listed"),
    [
        (ANNA, "error: unknown client", True),
        (STRANGER, "error: unknown client", True),
        (NOBODY, "client certificate refused: certificate has expired", True),
        (NOBODY, "the client sent no certificate", True),
        (NOBODY, "closed by the client", False),
        (NOBODY, "not TLS but plain HTTP", False),
        (ANNA, "error: connecting too often", False),
    ],
)
def test_a_client_that_is_refused_often_is_a_line_of_health(
    who: Identity, reason: str, listed: bool, times: int
) -> None:
    """Each refusal is in the row of its client. Health has it from the fifth on, for five minutes, unless it is a probe or has its own code."""
    world = World()
    for _ in range(times):
        world.refused(who, reason)
    [row] = world.problems.rows()
    assert (row.kind, row.count, row.principal, row.reason) == (REFUSED, times, who.principal, reason)
    assert world.codes == (["clients-refused"] if listed and times >= OFTEN else [])
    world.now_s += OFTEN_S + 1
    assert world.codes == []
    assert len(world.problems.rows()) == 1
    world.now_s += 3600
    assert world.problems.rows() == []


@pytest.mark.parametrize("limit", ["connections_max", "[web] connections_max"])
def test_a_full_gateway_is_a_line_of_health_for_a_minute(limit: str) -> None:
    """One refusal at connections_max is enough, be it of all clients or of the web listener."""
    world = World()
    world.refused(NOBODY, limit)
    assert world.codes == ["connections-full"]
    world.now_s += 61
    assert world.codes == []


def test_takeovers_count_for_each_session() -> None:
    """Two clients with one client-id are one row, whatever their addresses end in; health has it."""
    world = World()
    for at in range(OFTEN):
        world.problems.observe(TAKEN_OVER, ANNA, f"10.0.0.1:{at}", "taken", {"session": "screen", "seconds": 0.1})
        world.problems.observe(TAKEN_OVER, ANNA, f"10.0.0.1:{at}", "taken", {"session": f"other {at}", "seconds": 0.1})
    [row] = world.problems.rows()
    assert (row.kind, row.client_id, row.count) == (TAKEN_OVER, "screen", OFTEN)
    assert world.codes == ["takeovers"]


@pytest.mark.parametrize(
    ("reason", "facts", "loop"),
    [
        ("closed by the client", {}, True),
        ("closed by the client", {"messages": 3}, True),
        ("closed by the client", {"sends": 3, "messages": 3}, True),
        ("closed by the client", {"sends": 3}, False),
        ("error: bad frame", {"sends": 3}, True),
        ("error: bad frame", {"seconds": 60.0}, False),
        ("disconnect", {}, False),
        ("error: broker is stopping", {}, False),
    ],
)
def test_connections_that_end_soon_are_a_reconnect_loop(reason: str, facts: dict[str, int], loop: bool) -> None:
    """A DISCONNECT, a long life and a value that was sent before the close are no loop."""
    world = World()
    for _ in range(OFTEN):
        world.ended(reason, **facts)
    assert [row.kind for row in world.problems.rows()] == [RECONNECTING] * loop
    assert world.codes == ["reconnect-loop"] * loop


def test_strangers_cannot_push_out_clients_that_are_known() -> None:
    """Each table keeps its newest rows and counts the others; IPv6 addresses of one network are one client."""
    world = World()
    world.refused(ANNA, "error: certificate expired")
    for at in range(ROWS_MAX + 7):
        world.refused(NOBODY, "the client sent no certificate", f"10.0.{at // 200}.{at % 200}:1")
        world.refused(NOBODY, "not TLS but plain HTTP", f"[2001:db8::{at:x}]:1")
    rows = world.problems.rows()
    assert len(rows) == ROWS_MAX + 1
    assert sum(row.principal == "anna" for row in rows) == 1
    assert world.problems.forgotten == 8
    assert sum(row.count for row in rows if row.reason.startswith("not TLS")) == ROWS_MAX + 7


@given(
    st.lists(
        st.tuples(
            st.sampled_from([REFUSED, TAKEN_OVER, DISCONNECTED, "other"]),
            st.sampled_from([ANNA, STRANGER, NOBODY, Identity("fingerprint:cc", "cc")]),
            st.sampled_from(["10.0.0.1:5", "[::1]:5", "", "no address", "fe80::1"]),
            st.text(max_size=300),
            st.floats(0, 400),
        )
    )
)
def test_any_events_give_rows_in_order(events: list[tuple[str, Identity, str, str, float]]) -> None:
    """Rows that recur come first, then the latest. A principal is never that of an unknown certificate."""
    world = World()
    for event, who, address, reason, pause_s in events:
        world.now_s += pause_s
        world.problems.observe(event, who, address, reason, {"seconds": 1.0})
    rows = world.problems.rows()
    order = [(not row.often(world.now_s), -row.times_s[-1]) for row in rows]
    assert order == sorted(order)
    assert all(row.kind in KINDS and not row.principal.startswith("fingerprint:") for row in rows)
    assert all(isinstance(advice_for(row.kind, row.reason), str) for row in rows)
