"""Log lines: one event is one line, whatever a peer put into it."""

import logging

import pytest

from maxam.gateway.log import LogLimit, clean, log_event


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        (7, "7"),
        ("", '""'),
        ("two words", '"two words"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a=b", '"a=b"'),
        ("line\nbreak", '"line\\u000abreak"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\u202eabc", '"\\u202eabc"'),
        ("a\u2028b", '"a\\u2028b"'),
        (b"\xff", "\ufffd"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_values_cannot_forge_a_line(value: object, shown: str) -> None:
    """Control, separator and bidirectional characters are escaped, quotes too, and long values are cut."""
    assert clean(value) == shown


def test_an_event_is_its_name_and_its_values(caplog: pytest.LogCaptureFixture) -> None:
    """Values follow the event in order; those that are None are left out."""
    caplog.set_level(logging.INFO)
    log_event(logging.INFO, "event", one=1, none=None, two="a b")
    assert caplog.messages == ['event one=1 two="a b"']


def test_lines_are_limited_per_address_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    """After so many lines within a minute the rest of one address is only counted; others are not touched."""
    limit = LogLimit(2)
    assert [limit.admit("e", "a", 100.0) for _ in range(4)] == [True, True, False, False]
    assert limit.admit("e", "b", 100.0)
    assert limit.admit("e", "a", 161.0)
    assert caplog.messages == ["log-lines-held-back count=2"]
