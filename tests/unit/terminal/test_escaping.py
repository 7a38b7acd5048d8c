"""Text of clients cannot act on a terminal."""

import json
import sys

import pytest

from maxam.terminal.escaping import json_line, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("X/EGM.Q.1", "X/EGM.Q.1"),
        ("Zürich 麻雀 [bold]", "Zürich 麻雀 [bold]"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\r\nb\t\x00", r"a\r\nb\t\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eevil", r"\u202eevil"),
        ("\u2066\u200b\u2028", r"\u2066\u200b\u2028"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_hostile_text_is_escaped(text: str, expected: str) -> None:
    """Printable text stays as it is; everything else shows as an escape."""
    assert shown(text) == expected


@pytest.mark.slow
def test_nothing_unprintable_survives() -> None:
    """No code point at all gets through that Python does not hold for printable."""
    assert all(shown(chr(code)).isprintable() for code in range(sys.maxunicode + 1))


def test_long_text_is_cut() -> None:
    """The length limit counts what is shown and leaves a mark."""
    assert shown("\x1b" * 10, 8) == r"\x1b\x1" + "…"
    assert shown("12345678", 8) == "12345678"


def test_json_is_printable_ascii_on_one_line() -> None:
    """JSON for a terminal or a pipe holds no control character, and reads back as what it was."""
    text = "".join(map(chr, range(0x300))) + "\u202e"
    line = json_line({text: text})
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {text: text}
