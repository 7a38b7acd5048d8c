"""Text that came from a client, made fit for a terminal."""

import json
from typing import Final

TRUNCATION_MARK: Final = "…"


def shown(text: str, characters_max: int | None = None) -> str:
    r"""Return `text` with everything a terminal might act on written as an escape.

    Escapes are those of Python, such as `\x1b` or `\u202e`. They replace the classes control, format (bidirectional overrides, zero
    width), surrogate, private and unassigned, and separators other than the space. A backslash stays, so the result is for
    people, not for parsing. Longer results than `characters_max` end in an ellipsis.
    """
    escaped = text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)
    if characters_max is None or len(escaped) <= characters_max:
        return escaped
    return escaped[: characters_max - 1] + TRUNCATION_MARK


def json_line(value: object) -> str:
    r"""Return `value` as JSON on one line, in ASCII without control characters: `\u007f` too, which JSON itself allows."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
