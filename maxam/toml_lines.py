"""The lines of places in a TOML file, such as `maxam.toml`, `policy.toml` and `registry.toml`; `tomllib` does not report them.

A place is a path of keys and indexes: `capabilities.Monitoring.send[0]`, `principals[3].owns`. Keys that are not bare are quoted.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, final

_TEXTS_MAX: Final = 2  # files whose lines are kept, as one file may have many errors
_BLANKS: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACES: Final = re.compile(r"[ \t]*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING: Final = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}(?!")|\'\'\'.*?'{3,5}(?!')|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''', re.DOTALL
)
_WORD: Final = re.compile(r"[^,\]}#\n]*")  # numbers, times, true and false
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SAID: Final = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")  # by tomllib
_NAMED: Final = re.compile(r"(principals\[[0-9]+\]) \(.*\)((?:\.[A-Za-z0-9_]+|\[[0-9]+\])*)", re.DOTALL)


def line_of(text: bytes, place: str, problem: str = "") -> int | None:
    """Return the line, from 1, of a place or of the innermost place around it that exists; None if there is none.

    Args:
        text: Content of the file.
        place: A place in it, such as `principals[3].owns[0]`. A name in parentheses after the index is skipped. Empty for the whole file.
        problem: Text of the error. For an empty place, the line is taken from the text of an error of `tomllib`.
    """
    said = _SAID.search(problem)
    if said is not None and not place:
        return int(said[1])
    try:
        lines = lines_of(text)
    except ValueError:
        return None
    named = _NAMED.fullmatch(place)
    return innermost(lines, place if named is None else named[1] + named[2])


def innermost(lines: Mapping[str, int], place: str) -> int | None:
    """Return the line of a place or of the innermost place around it that has one; keys may be in quotes of either kind."""
    while place:
        for written in (place, place.replace('"', "'")):
            if written in lines:
                return lines[written]
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return None


@lru_cache(_TEXTS_MAX)
def lines_of(text: bytes) -> dict[str, int]:
    """Return the line of every table, key and element of an array by its place.

    Raises:
        ValueError: It is no TOML; nested so deep that it cannot be read counts as such.
    """
    content = text.decode()
    try:
        tomllib.loads(content)  # the scanner relies on it
        return _Scanner(content).scan()
    except (RecursionError, IndexError) as error:
        raise ValueError("nested too deep") from error


def written_key(name: str) -> str:
    """Return a key as it is written in TOML: quoted unless it is a bare one."""
    return name if _BARE.fullmatch(name) else repr(name)


@final
class _Scanner:
    """Passes once over a text that is TOML."""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self._at = 0
        self._counted = 0  # up to where lines are counted
        self._line = 1
        self._lines: Final[dict[str, int]] = {}
        self._counts: Final[dict[str, int]] = {}  # of tables in each array of tables so far

    def scan(self) -> dict[str, int]:
        table = ""
        while self._skip(_BLANKS) < len(self._text):
            brackets = 2 if self._text.startswith("[[", self._at) else 1 if self._text[self._at] == "[" else 0
            if not brackets:
                self._pair(table)
                continue
            line = self._here()
            self._at += brackets
            names = self._keys()
            self._at += brackets
            table = self._table(names, brackets == 2)
            self._lines.setdefault(table, line)
        return self._lines

    def _table(self, names: list[str], array: bool) -> str:
        place = ""
        for index, name in enumerate(names):
            place = f"{place}.{name}" if place else name
            if array and index == len(names) - 1:
                self._counts[place] = self._counts.get(place, -1) + 1
            if place in self._counts:
                place = f"{place}[{self._counts[place]}]"
        return place

    def _pair(self, table: str) -> None:
        line = self._here()
        place = table
        for name in self._keys():
            place = f"{place}.{name}" if place else name
            self._lines.setdefault(place, line)
        self._at += 1  # the equals sign
        self._value(place)

    def _keys(self) -> list[str]:
        names: list[str] = []
        while True:
            self._skip(_SPACES)
            written = self._take(_KEY)
            quoted = written[0] in "\"'"
            names.append(written_key(tomllib.loads(f"key = {written}")["key"] if quoted else written))
            self._skip(_SPACES)
            if not self._text.startswith(".", self._at):
                return names
            self._at += 1

    def _value(self, place: str) -> None:
        self._skip(_SPACES)
        first = self._text[self._at]
        if first == "[":
            self._at += 1
            index = 0
            while self._text[self._skip(_BLANKS)] != "]":
                if self._text[self._at] == ",":
                    self._at += 1
                    continue
                self._lines[f"{place}[{index}]"] = self._here()
                self._value(f"{place}[{index}]")
                index += 1
            self._at += 1
        elif first == "{":
            self._at += 1
            while self._text[self._skip(_BLANKS)] != "}":
                if self._text[self._at] == ",":
                    self._at += 1
                    continue
                self._pair(place)
            self._at += 1
        else:
            self._take(_STRING if first in "\"'" else _WORD)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        self._take(pattern)
        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"line {self._here()}: expected TOML")
        self._at = found.end()
        return found[0]

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
