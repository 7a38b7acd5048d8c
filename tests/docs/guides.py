"""Guides that are run as they stand: their blocks, their commands, and whether what they show was printed.

* A block of `console`: lines after `$ ` are commands, those up to the next one what they print, on either stream. `...` stands for
  what is left out. The lines shown come in that order; runs of blanks are one.
  A command must succeed, unless the next one is `echo $?`, which shows with which code it ends.
* `console live`: likewise, but numbers may differ, as time and chance are in them.
* `python`: run in one namespace; what it prints is in the block of `text` that follows, if any (`text live` as above).
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.patience import PATIENCE_S

_FENCE = re.compile(r"^```(\S*)(.*)$")
_NUMBER = re.compile(r"\d+(?:[.:,-]\d+)*")
_EXIT_CODE = "echo $?"
_HERE = re.compile(r"<< ?'?(\w+)'?")


class Reader(Protocol):
    """Somebody who pastes a guide's commands and snippets.

    Attributes:
        exit_code: Of the last command.
    """

    exit_code: int

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""

    def execute(self, block: "Block") -> str:
        """Run a snippet; give what it printed, and how it failed."""


@dataclass
class Block:
    """A fenced block of the guide.

    Attributes:
        kind: First word after the fence.
        live: The second one is `live`: numbers in it may differ.
        line: Of the fence.
        lines: Between the fences.
    """

    kind: str
    live: bool
    line: int
    lines: list[str] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """Cut a document into its fenced blocks."""
    found: list[Block] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            found.append(Block(fence[1], "live" in fence[2].split(), number))
            inside = True
        elif fence:
            inside = False
        elif inside:
            found[-1].lines.append(line)
    return found


def commands(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """Give the commands of a block: line, text with its continuation lines and here document, and the lines that it prints."""
    place = 0
    while place < len(block.lines):
        line = block.line + 1 + place
        text = block.lines[place]
        if not text.startswith("$ "):
            raise ValueError(f"line {line} is no command: {text}")
        text = text.removeprefix("$ ")
        place += 1
        while text.endswith("\\"):
            text = text.removesuffix("\\") + block.lines[place].strip()
            place += 1
        document = _HERE.search(text)
        if document is not None:
            end = block.lines.index(document[1], place)
            text = "\n".join([text, *block.lines[place : end + 1]])
            place = end + 1
        printed: list[str] = []
        while place < len(block.lines) and not block.lines[place].startswith("$ "):
            printed.append(block.lines[place])
            place += 1
        yield line, text, printed


def shell(text: str, given: str = "") -> tuple[int, str]:
    """Run a command in a shell with this as its input; give its exit code, and what it printed on either stream."""
    done = subprocess.run(
        ["bash", "-c", text],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout


def first_missing(shown: list[str], printed: str, live: bool) -> str | None:
    """Return the first line that is shown and was not printed after those before it.

    Args:
        shown: Lines of the guide. `...` stands for anything in a line, and by itself for any lines; runs of blanks are one.
        printed: The output.
        live: Numbers are all alike.
    """
    lines = iter([_plain(line, live) for line in printed.splitlines()])
    for line in shown:
        wanted = _plain(line, live)
        if wanted in ("", "..."):
            continue
        pattern = re.escape(wanted).replace(r"\ \.\.\.\ ", r"\ (?:.*\ )?").replace(r"\.\.\.", ".*")
        if not any(re.fullmatch(pattern, found) for found in lines):
            return line
    return None


def _plain(line: str, live: bool) -> str:
    line = " ".join(line.split())
    return _NUMBER.sub("0", line) if live else line


def faults(reader: Reader, text: str, tell: Callable[[str], object] = lambda _: None) -> list[str]:
    """Follow a guide from top to bottom, and return where it is not true.

    Args:
        reader: The person who follows it.
        text: The guide.
        tell: Is given each step and all that it printed.
    """
    found: list[str] = []
    guide = blocks(text)
    for block, following in zip(guide, [*guide[1:], None], strict=True):
        steps: list[tuple[int, str, list[str], str, bool]] = []
        if block.kind == "console":
            given = list(commands(block))
            for index, (line, command, shown) in enumerate(given):
                tell(f"{line}: $ {command}")
                if command == _EXIT_CODE:
                    steps.append((line, command, shown, f"{reader.exit_code}\n", False))
                    continue
                steps.append((line, command, shown, reader.run(command), block.live))
                tell(steps[-1][3])
                asked = index + 1 < len(given) and given[index + 1][1] == _EXIT_CODE
                if reader.exit_code != 0 and not asked:
                    found.append(
                        f"line {line}: {command}\nends with {reader.exit_code}, which the guide does not show by `$ {_EXIT_CODE}`:\n"
                        f"{steps[-1][3]}"
                    )
        elif block.kind == "python":
            tell(f"{block.line}: python")
            printed = reader.execute(block)
            tell(printed)
            if "Traceback (most recent call last)" in printed:
                found.append(f"line {block.line}: the snippet fails:\n{printed}")
            elif following is not None and following.kind == "text":
                steps.append((block.line, block.lines[0], following.lines, printed, following.live))
        for line, command, shown, printed, live in steps:
            missing = first_missing(shown, printed, live)
            if missing is not None:
                found.append(
                    f"line {line}: {command}\nnever prints {missing!r} where the guide has it, but:\n{printed}"
                )
    return found
