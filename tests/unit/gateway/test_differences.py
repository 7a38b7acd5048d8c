"""A leader finds the members that have other files or less memory, and reports what lasts."""

import logging
from typing import Any

import pytest

from maxam.cluster.membership import Announcement, read_announcement
from maxam.gateway.differences import COMPARED, MEMORY, SHOWN_S, Differences, digests_text
from maxam.gateway.loaded_config import CERTIFICATE, POLICY, SCHEMAS

DIGESTS = {POLICY: "1" * 64, SCHEMAS: "2" * 64, CERTIFICATE: "3" * 64}


def member(name: str, *, memory: int = 0, **digests: str) -> Announcement:
    """Return the announcement of a member, as others read it."""
    text = digests_text(DIGESTS | digests)
    made = Announcement(name, 1, "0", "following", 100, True, 1, 1, 1, name, 1, 1, 1, -1, memory, digests=text)
    read = read_announcement(made.encode())
    assert read is not None
    return read


class Reports(list[dict[str, Any]]):
    """The events that were logged."""

    def __call__(self, event: str, level: int, **facts: Any) -> None:
        """Record an event."""
        assert (event, level) == ("differs", logging.WARNING)
        self.append(facts)


def test_differences_are_counted_at_once_and_reported_once_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lasting difference has one log event and a line in health. One that ends is forgotten."""
    reports = Reports()
    found = Differences(reports)
    own, other = member("a"), member("b", policy="9" * 64)
    found.compare(0.0, own, [other, member("c")], 0)
    assert [found.count(item) for item in COMPARED] == [1, 0, 0, 0, 0]
    for now_s in (SHOWN_S - 1, SHOWN_S, SHOWN_S + 1):
        found.compare(now_s, own, [other, member("c")], 0)
    assert reports == [{"item": POLICY, "other": "b"}]
    monkeypatch.setattr("maxam.gateway.differences.time.monotonic", lambda: SHOWN_S)
    [line] = found.degraded()
    assert line.startswith("differs: policy ")
    found.compare(SHOWN_S + 2, own, [member("b"), member("c")], 0)
    assert found.count(POLICY) == 0
    assert not found.degraded()
    for now_s in (SHOWN_S + 3, 2 * SHOWN_S + 3):
        found.compare(now_s, own, [other], 0)
    assert len(reports) == 2


def test_certificates_may_differ_and_older_releases_announce_nothing() -> None:
    """Each member has its own certificate. An item that a member does not announce is not compared."""
    found = Differences(Reports())
    older = Announcement("b", 1, "0", "following", 100, True, 1, 1, 1, "b", 1, 1, 1, -1, 0)
    found.compare(0.0, member("a"), [older, member("c", certificate="9" * 64)], 1 << 40)
    assert found.found == {}


def test_a_member_with_less_memory_than_is_used_is_found() -> None:
    """Its limit is compared with what the leader uses now, not with the leader's limit."""
    found = Differences(Reports())
    own, other = member("a", memory=8000), member("b", memory=4000)
    found.compare(0.0, own, [other], 4000)
    assert found.count(MEMORY) == 0
    found.compare(1.0, own, [other], 4001)
    assert list(found.found) == [(MEMORY, "b")]
