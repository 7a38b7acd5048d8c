"""Rejected values: the newest of each topic, within bounds."""

from itertools import product

import pytest

from maxam.bridge import quarantine
from maxam.bridge.flow import Item
from maxam.bridge.quarantine import RETRY_S, RETRY_S_MAX, Quarantine


def item(topic: str) -> Item:
    """Return a SEND."""
    return Item(topic, b"12345", {}, None, None, None, None, 0, 0.0)


def test_all_short_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the newest value of each topic unless it is full, and then it is not whole until the next inventory."""
    monkeypatch.setattr(quarantine, "TOPICS_MAX", 2)
    steps = [("put", "a"), ("put", "b"), ("put", "c"), ("pop", "a"), ("remove old", "b"), ("clear", "")]
    for history in product(steps, repeat=5):
        made, model, whole = Quarantine(), dict[str, Item](), False
        for step, topic in history:
            if step == "put":
                new = item(topic)
                made.put(0, new, "invalid")
                model.pop(topic, None)
                if len(model) < 2:
                    model[topic] = new
                else:
                    whole = False
            elif step == "pop":
                assert made.pop(0, topic) == (model.pop(topic, None) is not None)
                assert not made.pop(1, topic)
            elif step == "remove old":
                assert not made.remove(0, item(topic))
                if topic in model:
                    assert made.remove(0, model.pop(topic))
            else:
                made.clear()
                model, whole = {}, True
            assert [(lane, id(one)) for lane, one, _ in made] == [(0, id(one)) for one in model.values()], history
            assert made.whole == whole, history
            assert [one.topic for one in made.rejections()] == list(model)


def test_bytes_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value always fits. Others need room, which values that go give back."""
    monkeypatch.setattr(quarantine, "BYTES_MAX", 14)
    made = Quarantine()
    for _ in range(3):
        made.clear()
        for topic in ("a", "b", "c"):
            made.put(0, item(topic), "")
        assert (len(made), made.whole) == (2, False)
        made.pop(0, "a")
        made.put(0, item("c"), "")
        assert [one.topic for _, one, _ in made] == ["b", "c"]


def test_inventories_for_the_rest_become_rare() -> None:
    """Each inventory that had to find the rest doubles the pause, and a whole quarantine begins again."""
    made = Quarantine()
    pauses = []
    for _ in range(10):
        made.due()
        pauses.append(made.pause_s)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * RETRY_S, RETRY_S_MAX)
    made.whole = True
    made.due()
    assert made.pause_s == RETRY_S
