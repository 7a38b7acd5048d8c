"""SENDs to one side: their order, how many are under way, and when refused ones are made again."""

from itertools import count, product

import pytest

from maxam.bridge.flow import RETRY_S_MAX, RETRY_S_MIN, Flow, Item

HIGH, LOW = 0, 2


def item(topic: str, priority: int) -> Item:
    """Return a SEND."""
    return Item(topic, b"v", {}, None, None, None, None, priority, 0.0)


@pytest.mark.slow
def test_all_short_histories() -> None:
    """The oldest SEND of the highest priority is next, never more than the window are under way, and none is lost."""
    for window, steps in product((1, 2), product(("high", "low", "next", "accept", "refuse", "retry"), repeat=6)):
        flow, now_s = Flow(window), 0.0
        numbers = count()
        pending: list[Item] = []
        flying: list[tuple[int, Item]] = []
        refused: list[Item] = []
        for step in steps:
            if step in ("high", "low"):
                new = item(f"X/{next(numbers)}", HIGH if step == "high" else LOW)
                flow.put(new)
                pending.append(new)
            elif step == "next":
                found = flow.next()
                must = min(pending, key=lambda one: one.priority) if pending and len(flying) < window else None
                assert found is must, steps
                if found is not None:
                    ticket = next(numbers)
                    flow.flying[ticket] = found
                    flying.append((ticket, found))
                    pending.remove(found)
            elif step in ("accept", "refuse") and flying:
                ticket, found = flying.pop(0)
                assert flow.flying.pop(ticket) is found
                if step == "refuse":
                    flow.refuse(found, now_s)
                    refused.append(found)
                else:
                    flow.accepted()
            elif step == "retry":
                now_s += RETRY_S_MAX
                flow.retry(now_s)
                pending = refused + pending
                refused = []
            assert len(flow.flying) <= window
            assert {id(one) for one in flow} == {id(one) for one in [*pending, *refused, *(one for _, one in flying)]}
        flow.clear()
        assert list(flow) == []


def test_pauses_grow_until_a_send_is_accepted() -> None:
    """Each refusal doubles the pause up to its maximum. No SEND is repeated earlier, and an accepted one begins again."""
    flow, now_s, pause_s = Flow(1), 0.0, RETRY_S_MIN
    flow.put(item("X/a", LOW))
    for _ in range(10):
        found = flow.next()
        assert found is not None
        flow.refuse(found, now_s)
        flow.retry(now_s + pause_s * 0.99)
        assert flow.next() is None
        now_s += pause_s
        flow.retry(now_s)
        pause_s = min(2 * pause_s, RETRY_S_MAX)
    assert pause_s == RETRY_S_MAX
    found = flow.next()
    assert found is not None
    flow.accepted()
    flow.refuse(found, now_s)
    flow.retry(now_s + RETRY_S_MIN)
    assert flow.next() is found
