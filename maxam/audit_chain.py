"""The chained lines of an audit log: each holds the SHA-256 of the line before it. This module checks the chain.

A folder holds files `audit-<sequence of its first line>.jsonl`. A line is a JSON object in ASCII. `sequence` counts from 1 over all
files without a gap. `previous` is the SHA-256 of the line before, without its end. In the very first line it is 64 zeros.

The check finds any change, removal, addition or exchange of lines, and of files in the middle. No chain by itself can show that its
end is missing. Nor can it show that everything from some line on was replaced by a person who could write the files. To prove that,
another person must have kept an *anchor*, the sequence and SHA-256 of a line.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, final

GENESIS: Final = "0" * 64  # what the first line of all names as the one before it
LINE_BYTES_MAX: Final = 65_536  # of one line; the gateway writes far shorter ones
BREAKS_MAX: Final = 20  # that are reported: after the first one little is sure
_NAME: Final = re.compile(r"audit-([0-9]{20})\.jsonl")


def file_name(sequence: int) -> str:
    """Return the name of the file that begins with this line."""
    return f"audit-{sequence:020d}.jsonl"


def first_sequence(name: str) -> int | None:
    """Return with which line a file begins by its name; None when it is no file of an audit log."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def write_line(sequence: int, previous: str, facts: dict[str, object]) -> bytes:
    """Return a line without its end."""
    line = {"sequence": sequence, **facts, "previous": previous}
    # ASCII without control characters: \x7f too, which JSON itself allows
    return json.dumps(line, separators=(",", ":"), default=str).replace("\x7f", "\\u007f").encode("ascii")


def digest(line: bytes) -> str:
    """Return the hash by which the next line refers to this one."""
    return sha256(line).hexdigest()


def has_text(facts: dict[str, Any], text: str) -> bool:
    """Return True if one of a line's values has a text, which is in lower case. Its place in the chain does not count."""
    return any(text in str(value).lower() for name, value in facts.items() if name not in {"sequence", "previous"})


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line as somebody remembers it: its sequence and SHA-256."""

    sequence: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.sha256}"


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the chain is broken.

    Attributes:
        file: Its name.
        line: From 1.
        problem: Description of the fault.
    """

    file: str
    line: int
    problem: str


@dataclass(slots=True)
class Proof:
    """The result of a check.

    Attributes:
        files: Number of files that were read.
        lines: Number of lines that were read.
        first: Sequence of the first line, 0 when there is none. Lines before it were rotated away, or taken away.
        head: The last line.
        breaks: In order, the first ones.
        unfinished_bytes: Bytes after the end of the last line: a crash left them, or a gateway is writing just now.
        anchors_found: Of those that were asked for.
    """

    files: int = 0
    lines: int = 0
    first: int = 0
    head: Anchor = Anchor(0, GENESIS)
    breaks: list[Break] = field(default_factory=list)
    unfinished_bytes: int = 0
    anchors_found: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it was read.

    Attributes:
        number: In its file, from 1.
        facts: Its contents. Empty when it is no JSON object.
    """

    file: str
    number: int
    facts: dict[str, Any]


@final
class Checker:
    """Compares lines, one after the other, with the promises of the chain.

    Attributes:
        proof: The result so far.
    """

    def __init__(self, anchors: Sequence[Anchor] = ()) -> None:
        self.proof: Final = Proof()
        self._anchors: Final = {anchor.sequence: anchor.sha256 for anchor in anchors}

    def file(self, name: str) -> None:
        """Begin a file."""
        proof = self.proof
        proof.files += 1
        expected = first_sequence(name)
        if expected is not None and proof.lines and expected != proof.head.sequence + 1:
            self._break(name, 1, _gap(proof.head.sequence, expected, "a file before it is missing"))

    def line(self, name: str, number: int, raw: bytes) -> Line:
        """Take the next line, without its end."""
        proof = self.proof
        facts = _read(raw)
        sequence, previous = facts.get("sequence"), facts.get("previous")
        own = digest(raw)
        if not isinstance(sequence, int) or isinstance(sequence, bool) or not isinstance(previous, str):
            self._break(name, number, "not a line of an audit log: expected a JSON object with sequence and previous")
            sequence = proof.head.sequence + 1  # as if it were the one
        elif not proof.lines:
            proof.first = sequence
            if number == 1 and first_sequence(name) not in (None, sequence):
                self._break(
                    name, 1, f"begins with line {sequence}, not with the one of its name: lines before it are missing"
                )
            elif sequence == 1 and previous != GENESIS:
                self._break(name, number, "refers to a line before the first one")
        elif sequence != proof.head.sequence + 1:
            self._break(name, number, _gap(proof.head.sequence, sequence, "lines were removed, added or exchanged"))
        elif previous != proof.head.sha256:
            self._break(
                name,
                number,
                f"names another line {sequence - 1} before it than there is: that one was changed, or this one",
            )
        if sequence in self._anchors:
            proof.anchors_found.add(sequence)
            if self._anchors[sequence] != own:
                self._break(name, number, f"line {sequence} is not the one of the anchor: the log was rewritten")
        proof.first = proof.first or sequence
        proof.lines += 1
        proof.head = Anchor(sequence, own)
        return Line(name, number, facts)

    def end(self, unfinished_bytes: int) -> None:
        """Record that the files have ended."""
        proof = self.proof
        proof.unfinished_bytes = unfinished_bytes
        for sequence in sorted(set(self._anchors) - proof.anchors_found):
            if sequence > proof.head.sequence:
                self._break(
                    "",
                    0,
                    f"ends with line {proof.head.sequence}, but the anchor is line {sequence}: the end is missing",
                )
            elif sequence >= proof.first:
                self._break("", 0, f"line {sequence} of the anchor is missing")

    def _break(self, name: str, number: int, problem: str) -> None:
        if len(self.proof.breaks) < BREAKS_MAX:
            self.proof.breaks.append(Break(name, number, problem))


def read_folder(folder: Path, checker: Checker) -> Iterator[Line]:
    """Iterate over all lines of all files in order, and check them on the way.

    A gateway may write and rotate meanwhile: files that it removes before the first is read are skipped.

    Raises:
        OSError: It cannot be read.
    """
    names = sorted(name for name in (path.name for path in folder.iterdir()) if first_sequence(name) is not None)
    unfinished = 0
    for name in names:
        try:
            stream = (folder / name).open("rb")
        except FileNotFoundError:
            if checker.proof.lines:
                raise
            continue
        with stream:
            checker.file(name)
            number = 0
            while raw := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if raw.endswith(b"\n"):
                    yield checker.line(name, number, raw[:-1])
                elif len(raw) > LINE_BYTES_MAX or name != names[-1]:
                    yield checker.line(name, number, raw)  # which it is not
                else:
                    unfinished = len(raw)
    checker.end(unfinished)


def _gap(before: int, found: int, why: str) -> str:
    if found > before + 1:
        missing = found - before - 1
        return f"line {found} follows line {before}: {missing} {'lines are' if missing > 1 else 'line is'} missing, or {why}"
    return f"line {found} follows line {before}: {why}"


def _read(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
