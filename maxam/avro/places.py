"""Line numbers of places in a schema folder's files, which the readers of JSON and TOML do not report.

Places are written as errors have them: `fields[2].type` in a schema, `rule[0].schema` in `registry.toml`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from maxam import toml_lines
from maxam.errors import SchemaError

# Of a string: runs, not single characters, of which each would be remembered until the end, in a hundred bytes.
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_SAID: Final = re.compile(r"\bline ([0-9]+)")  # in errors of the readers of JSON and TOML
_DEPTH_MAX: Final = 1000  # no reader of JSON goes as deep: each place is longer than the one around it
_JSON: Final = ".avsc"


def located(error: SchemaError, texts: Mapping[str, bytes]) -> SchemaError:
    """Return an error with the line that it is about, as far as that can be found.

    Args:
        error: Of a schema folder.
        texts: The files of the folder, by their paths in it.
    """
    text = texts.get(error.file)
    if error.line is not None or text is None:
        return error
    line = line_of(error.file, text, error.place)
    said = _SAID.search(error.problem)
    if line is None and said is not None and not error.place:
        line = int(said[1])
    return error if line is None else SchemaError(error.problem, error.file, error.place, line)


def line_of(file: str, text: bytes, place: str) -> int | None:
    """Return the line of a place in a file, or of the innermost place around it that exists; None without a place."""
    if not file.endswith(_JSON):
        return toml_lines.line_of(text, place)
    lines: dict[str, int] = {}
    for found, line, _ in _values(text):
        lines.setdefault(found, line)
    return toml_lines.innermost(lines, place)


def line_of_byte(text: bytes, at: int) -> int:
    """Return the line of a byte."""
    return text.count(b"\n", 0, at) + 1


def line_of_value(text: bytes, written: str) -> int | None:
    """Find the line of the first value in JSON that is written so; None if there is none, as where it is written with escapes."""
    return next((line for _, line, mark in _values(text) if mark == written), None)


def line_of_second(text: bytes, key: str) -> int | None:
    """Find the line of the first value in JSON whose key its object has had before; None if there is none."""
    seen: set[str] = set()
    for place, line, _ in _values(text):
        if place in seen and (place == key or place.endswith("." + key)):
            return line
        seen.add(place)
    return None


def _values(text: bytes) -> Iterator[tuple[str, int, str]]:
    """Iterate over the places of all values in JSON with their lines and what they begin with; text that is none ends early."""
    open_places: list[tuple[str, int]] = []  # of objects (-1) and arrays (index of the next item)
    place, key, line, at = "", "", 1, 0
    content = text.decode(errors="replace")
    named = False
    for token in _TOKEN.finditer(content):
        line += content.count("\n", at, token.start())
        at = token.start()
        mark = token[0]
        if mark in "}]":
            if open_places:
                open_places.pop()
        elif mark == ":":
            named = True
        elif mark == ",":
            named = False
            if open_places and open_places[-1][1] >= 0:
                open_places[-1] = (open_places[-1][0], open_places[-1][1] + 1)
        else:
            around, index = open_places[-1] if open_places else ("", -1)
            if open_places and index < 0 and not named:
                key = mark[1:-1]
                continue
            named = False
            if not open_places:
                place = ""
            elif index < 0:
                place = f"{around}.{key}" if around else key
            else:
                place = f"{around}[{index}]"
            yield place, line, mark
            if mark in "{[":
                if len(open_places) >= _DEPTH_MAX:
                    return
                open_places.append((place, -1 if mark == "{" else 0))
