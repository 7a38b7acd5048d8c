"""The prose in a file: paragraphs of documents, docstrings and comments, messages of programs."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Literal

MESSAGE_WORDS_MIN = 4  # a string with fewer words is no sentence


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose, or a whole line of Markdown, with the number of its first line."""

    line: int
    text: str
    kind: Literal["prose", "heading", "cell", "line"] = "prose"


_QUOTED = r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'"
_PYTHON = re.compile(r"(?s)(\"\"\"|''')(?:\\.|[^\\])*?\1|(?P<string>" + _QUOTED + r")|(?P<comment>#[^\n]*)")
_HASHED = re.compile(r"(?P<comment>(?<!\S)#[^\n]*)|(?P<string>" + _QUOTED + ")")  # TOML, make, the shell, systemd
_EXPANSION = re.compile(r"\$?\$\([^()]*\)|\$\{[^}]*\}|\$\w+|\{\{.*?\}\}")
_SCRIPT = re.compile(r"(?s)(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>`(?:\\.|[^`\\])*`|" + _QUOTED + ")")
_DIRECTIVE = re.compile(
    r"#!.*|# ?((?:ruff: )?noqa(: ?[A-Z]+\d+(, ?[A-Z]+\d+)*)?|type: ignore(\[[\w, -]+\])?|pragma: [\w ]+|fmt: \w+)"
)
_TAG = re.compile(r"@(?:param|property|returns|typedef)\b ?(\{.*\})?( \[?\w+\]?)?|@template.*")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Examples?|Spec):\s*")


def _paragraphs(lines: list[str], first: int) -> Iterator[Text]:
    """Yield headings, table cells, list items and paragraphs of Markdown. Code blocks are skipped."""
    start, held, fence = first, list[str](), False
    for number, line in enumerate([*lines, ""], first):
        bare = line.strip()
        fenced, row, item = bare.startswith(("```", "~~~")), bare.startswith("|"), _ITEM.match(line)
        if held and (not bare or fenced or row or item or bare.startswith("#")):
            yield Text(start, "\n".join(held))
            held = []
        if fenced or fence:
            fence ^= fenced
        elif bare.startswith("#"):
            yield Text(number, bare.lstrip("# "), "heading")
        elif row:
            head = "".join(lines[number - first + 1 :][:1]).startswith("|--")
            cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", bare))
            yield from (Text(number, cell, "heading" if head else "cell") for cell in cells if cell.strip("-:"))
        elif bare and not bare.startswith("<"):
            start = start if held else number
            held.append(_ITEM.sub("", line, 1).strip().removeprefix("> "))


def _docstring(first: int, text: str) -> Iterator[Text]:
    """Yield the paragraphs of a docstring. The names of arguments, examples and verbatim text of click are left out."""
    lines, section, verbatim = list[str](), "", False
    for line in cleandoc(text).splitlines():
        header = _SECTION.match(line)
        section = header[1] if header else section if line.startswith(" ") or not line else ""
        verbatim = bool(line) and (verbatim or line == "\b")
        if verbatim or section.startswith("Example") or line.startswith(">>>" if section else (">>>", "    ")):
            lines.append("")
        elif section in ("Args", "Attributes", "Raises"):
            lines.append(re.sub(r"^ {4}\S+( \([^)]*\))?:(?= |$)", "-", _SECTION.sub("", line)))
        else:
            lines.append(_SECTION.sub("", line) if header else line)
    yield from _paragraphs(lines, first)


def _tokens(pattern: re.Pattern[str], source: str) -> Iterator[tuple[int, int, bool, re.Match[str]]]:
    """Yield the tokens of a source with their line, column and whether nothing precedes them on the line."""
    line, offset = 1, 0
    for token in pattern.finditer(source):
        line += source.count("\n", offset, token.start())
        offset = token.start()
        begin = source.rfind("\n", 0, offset) + 1
        yield line, offset - begin, not source[begin:offset].strip(), token


def _comments(pattern: re.Pattern[str], source: str) -> Iterator[Text]:
    """Yield the comments. Adjacent lines that hold nothing else are one text."""
    lines, start, last = list[str](), 0, (0, 0)
    for number, column, alone, token in _tokens(pattern, source):
        if token["comment"]:
            if not (alone and last == (number, column)):
                yield from _paragraphs(lines, start)
                lines, start = [], number
            comment = _DIRECTIVE.sub("", token["comment"])
            lines += [_TAG.sub("- ", line.strip("#/*: ")) for line in comment.splitlines() or [""]]
            last = (start + len(lines), column) if alone else (0, 0)
    yield from _paragraphs(lines, start)


def _message(line: int, text: str) -> Iterator[Text]:
    if len(text.split()) >= MESSAGE_WORDS_MIN and re.search(r"^[^<{[@].*[a-z]{2} [a-z]{2}", text, re.DOTALL):
        yield from _docstring(line, text)


def _python(source: str, *, messages: bool) -> Iterator[Text]:
    done = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            done.add(id(node.value))
            yield from _docstring(node.lineno, node.value.value)
        elif isinstance(node, ast.JoinedStr) and messages:
            done.update(map(id, node.values))
            parts = (str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield from _message(node.lineno, "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and messages and id(node) not in done:
            yield from _message(node.lineno, node.value)
    yield from _comments(_PYTHON, source)


def _hashed(source: str, *, messages: bool) -> Iterator[Text]:
    """Yield the comments and strings of a file whose comments begin with `#`."""
    source = re.sub(r"(?m)^#  +.*", "#", source)  # commands
    yield from _comments(_HASHED, source)
    for line, _, _, token in _tokens(_HASHED, source):
        if messages:
            yield from _message(line, _EXPANSION.sub("X", token["string"] or "''")[1:-1])


def texts(path: Path) -> Iterator[Text]:
    """Yield the prose of a file. Version 0.1.0 of the changelog and the messages of tests do not count."""
    source = path.read_text()
    if path.name == "CHANGELOG.md":
        source = "".join(re.findall(r"(?ms)\A.*^## \[?0\.2\.0\b.*?(?=^## |\Z)", source))
    if path.suffix == ".py" or re.match("#!.*python", source):
        yield from _python(source, messages="tests" not in path.parts)
    elif path.suffix in (".js", ".ts"):
        yield from _comments(_SCRIPT, source)
        if "test" in path.parts:
            return
        for line, _, _, token in _tokens(_SCRIPT, source):
            yield from _message(line, re.sub(r"\$\{[^}]*\}", "X", token["string"] or "''")[1:-1])
    elif path.suffix != ".md":
        yield from _hashed(source, messages=path.suffix not in ("", ".service") or source.startswith("#!"))
    else:
        outside = re.sub(r"(?ms)^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), source)
        yield from (Text(number, line, "line") for number, line in enumerate(outside.splitlines(), 1) if line)
        yield from _paragraphs(source.splitlines(), 1)
