"""Split the text of a selector into tokens."""

import re
from typing import Final, final

from maxam.errors import SelectorError
from maxam.selectors.syntax import KEYWORDS

_TOKEN: Final = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'(?:[^']|'')*')"
    r'|(?P<quoted>"[^"]*")'
    r"|(?P<sign><>|<=|>=|[-+*/()<>=,.\[\]])"
)
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_HINTS: Final = {
    "!": "Write <> for 'not equal' and NOT for a negation.",
    "%": "% is a wildcard in a LIKE pattern only.",
    "'": "End the text with a single quote; write two of them for one in the text.",
    '"': "End the name with a double quote; texts stand in single quotes.",
    "|": "Write OR.",
    "&": "Write AND.",
}
_PAIRS: Final = {
    "-": ("-- begins a comment in SQL", "Write a blank or parentheses between the two."),
    "=": ("== is no operator", "Write = for 'equal'."),
}


@final
class Token:
    """A part of the text.

    Attributes:
        kind: `number`, `name`, `text`, `quoted`, `end`, or `sign` for an operator, a bracket or a keyword.
        raw: The token as it stands in the text.
        text: The same, a keyword in capital letters.
        at: Position of its first character, from 1.
    """

    __slots__ = ("at", "kind", "raw", "text")

    def __init__(self, kind: str, raw: str, at: int) -> None:
        self.raw: Final = raw
        self.at: Final = at
        keyword = kind == "name" and raw.upper() in KEYWORDS
        self.kind: Final = "sign" if keyword else kind
        self.text: Final = raw.upper() if keyword else raw


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text. The last one is the end.

    Raises:
        SelectorError: A character belongs to no token.
    """
    tokens: list[Token] = []
    at = 0
    while True:
        blanks = _BLANKS.match(text, at)
        at = at if blanks is None else blanks.end()
        if at == len(text):
            tokens.append(Token("end", "", at + 1))
            return tokens
        match = _TOKEN.match(text, at)
        if match is None:
            shown = "an unfinished text or name" if text[at] in "'\"" else f"the character {text[at]!r}"
            hint = _HINTS.get(text[at], "Put texts between single quotes.")
            raise SelectorError(f"{shown} is not part of the grammar", at + 1, hint)
        token = Token(str(match.lastgroup), match.group(), at + 1)
        last = tokens[-1] if tokens else token
        if token.raw == last.raw and last.at == at and token.raw in _PAIRS:
            problem, hint = _PAIRS[token.raw]
            raise SelectorError(problem, at, hint)
        if token.kind != "sign" and last.kind == "number" and last.at + len(last.raw) == token.at:
            raise SelectorError(f"{last.raw + token.raw!r} is not a number", last.at, "Names begin with a letter.")
        tokens.append(token)
        at = match.end()
