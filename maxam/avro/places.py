"""Where in the files of a schema folder things stand: the readers of JSON and TOML say what they are, not on which line.

Places are written as errors have them: `fields[2].type` in a schema, `rule[0].schema` in `registry.toml`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from maxam.errors import SchemaError

_HEADER: Final = re.compile(r"\s*(\[\[|\[)\s*(.*?)\s*\]")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
# Of a string: runs, not single characters, of which each would be remembered until the end, in a hundred bytes.
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_SAID: Final = re.compile(r"\bline ([0-9]+)")  # by the reader of TOML
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
    """Find the line of a place in a file, or of the innermost thing around it that can be found; None without a place."""
    if not place:
        return None
    places = ((found, line) for found, line, _ in _values(text)) if file.endswith(_JSON) else _toml_lines(text)
    lines: dict[str, int] = {}
    for found, line in places:
        lines.setdefault(found, line)
    while place:
        if place in lines:
            return lines[place]
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return None


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


def _toml_lines(text: bytes) -> Iterator[tuple[str, int]]:
    """Iterate over the places of all tables and keys that begin a line in TOML, with their lines."""
    table = ""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.decode(errors="replace").split("\n"), start=1):
        header = _HEADER.match(line)
        if header:
            table = header[2]
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}[{counts[table]}]"
            yield table, number
        elif key := _KEY.match(line):
            yield f"{table}.{key[1]}" if table else key[1], number
