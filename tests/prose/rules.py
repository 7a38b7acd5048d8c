"""The rules of prose: standard words, short sentences with a subject, short lines and table cells."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.prose.texts import Text

SENTENCE_WORDS_MAX = 25
LINE_CHARACTERS_MAX = 100
CELL_CHARACTERS_MAX = 120

WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
_WORDS = re.compile(r"(?<![\w-])(?:" + "|".join(f"({word})" for word in WORDS) + r")(?![\w-])", re.IGNORECASE)
_CODE = re.compile(r"(`+).+?\1|https?://\S+|Spec: [^\"]*\"[^\"]*\"", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
_PLACE = re.compile(r"^(?:(?:byte |line )?X: )+")  # the beginning of an error, such as `{path}: byte {offset}: `
_WHAT = re.compile(r"\s*[\"'(]*(?:What|Who|Whoever|Whatever)\b(?!.*\?$)", re.DOTALL)


def plain(text: str) -> str:
    """Return Markdown as words: code and quotations of the specification become `X`, a link its text. Line breaks stay where they are."""
    return _LINK.sub(r"\1", _CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)).replace("*", "")


def findings(text: Text, glossary: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of everything in a text that breaks a rule."""
    if text.kind == "line":
        if (length := len(text.text)) > LINE_CHARACTERS_MAX and not re.match(r"\s*[|#<[]|.*\S{50}", text.text):
            yield text.line, f"line of {length} characters: wrap it at {LINE_CHARACTERS_MAX}"
        return
    if text.kind == "cell" and (length := len(_LINK.sub(r"\1", text.text))) > CELL_CHARACTERS_MAX:
        yield text.line, f"table cell of {length} characters: keep it under {CELL_CHARACTERS_MAX}"
    words = plain(text.text)
    for word in _WORDS.finditer(words):
        if not {word[0].lower(), word[0].lower().removesuffix("s")} & glossary:
            hint = tuple(WORDS.values())[(word.lastindex or 1) - 1]
            yield text.line + words.count("\n", 0, word.start()), f'"{word[0]}": write {hint}'
    start = len(words) if text.kind == "heading" else 0
    for end in [*_END.finditer(words, start), None]:
        sentence = words[start : end.start() if end else None]
        line, begin = text.line + words.count("\n", 0, start), " ".join(sentence.split())[:40]
        if (count := len(re.findall(r"\S*\w\S*", sentence))) > SENTENCE_WORDS_MAX:
            yield line, f'sentence of {count} words, "{begin} …": split it at {SENTENCE_WORDS_MAX}'
        if _WHAT.match(sentence):
            yield line, f'"{begin} …": begin with the thing itself'
        if (count := len(re.findall(r"[:;](?=\s|$)", _PLACE.sub("", sentence)))) > 1:
            yield line, f'{count} colons and semicolons, "{begin} …": use one'
        start = end.end() if end else 0
