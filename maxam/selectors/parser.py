"""Parse the text of a selector: the SQL-92 subset that STOMP users know from ActiveMQ and Artemis.

The parser climbs by the power of operators (Pratt). Every recursion is bounded by NESTING_MAX, and so is the height of the tree.
`x BETWEEN a AND b` becomes `x >= a AND x <= b`, and `x NOT LIKE p` becomes `NOT (x LIKE p)`, which SQL defines as equal.
"""

from typing import Final, final

from maxam.config import Limits
from maxam.errors import SelectorError
from maxam.selectors import syntax
from maxam.selectors.like import LikePattern
from maxam.selectors.syntax import Step, Syntax, nested
from maxam.selectors.tokens import Token, tokens_of

_NOT_POWER: Final = 3
_COMPARISON_POWER: Final = 4
_UNARY_POWER: Final = 7
_DIGITS_MAX: Final = 20  # a whole number of this length needs more than 64 bits
_POWERS: Final = {
    "OR": 1,
    "AND": 2,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "IN", "BETWEEN", "LIKE", "IS", "NOT"), _COMPARISON_POWER),
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}


def parse_selector(text: str, limits: Limits) -> Syntax:
    """Parse a selector.

    Raises:
        SelectorError: The text is not a selector, or exceeds a limit.
    """
    size = len(text.encode(errors="surrogatepass"))
    if size > limits.selector_bytes_max:
        problem = f"the text has {size} bytes, more than {limits.selector_bytes_max}, the limit selector_bytes_max"
        raise SelectorError(problem, 1, "Shorten it, or use several subscriptions.")
    return _Parser(tokens_of(text), limits.selector_terms_max).parse()


@final
class _Parser:
    __slots__ = ("_next", "_terms", "_terms_max", "_tokens")

    def __init__(self, tokens: list[Token], terms_max: int) -> None:
        self._tokens: Final = tokens
        self._terms_max: Final = terms_max
        self._next = 0
        self._terms = 0

    def parse(self) -> Syntax:
        """Parse the whole text."""
        root = self._expression(0, 0)
        token = self._tokens[self._next]
        if token.kind != "end":
            raise self._unexpected(token, "the end", "Join conditions with AND or OR.")
        return root

    def _expression(self, power: int, depth: int) -> Syntax:
        """Parse operands and the operators between them that have more than this power."""
        if depth > syntax.NESTING_MAX:
            raise nested(self._tokens[self._next].at)
        left = self._operand(power, depth)
        compared = False
        while True:
            token = self._tokens[self._next]
            its_power = _POWERS.get(token.text, 0) if token.kind == "sign" else 0
            if its_power <= power:
                return left
            if its_power == _COMPARISON_POWER:
                if compared:
                    hint = "Put one of the comparisons in parentheses, or join them with AND."
                    raise SelectorError(f"{token.raw} follows another comparison", token.at, hint)
                compared = True
            self._next += 1
            left = self._operator(left, token, its_power, depth + 1)

    def _operator(self, left: Syntax, token: Token, power: int, depth: int) -> Syntax:
        match token.text:
            case "AND" | "OR":
                kind = syntax.AND if token.text == "AND" else syntax.OR
                right = self._expression(power, depth)
                return Syntax(kind, token.at, [*left.items, right] if left.kind == kind else [left, right])
            case "IS":
                negated = self._accept("NOT")
                self._expect("NULL", "Write IS NULL or IS NOT NULL.")
                found = Syntax(syntax.IS_NULL, token.at, [left])
                return Syntax(syntax.NOT, token.at, [found]) if negated else found
            case "NOT":
                token = self._tokens[self._next]
                self._next += 1
                if token.text not in ("IN", "BETWEEN", "LIKE") or token.kind != "sign":
                    raise self._unexpected(token, "IN, BETWEEN or LIKE", "A negation stands before its condition.")
                return Syntax(syntax.NOT, token.at, [self._predicate(left, token, depth)])
            case "IN" | "BETWEEN" | "LIKE":
                return self._predicate(left, token, depth)
            case _:
                kind = syntax.COMPARE if power == _COMPARISON_POWER else syntax.ARITHMETIC
                return Syntax(kind, token.at, [left, self._expression(power, depth)], token.text)

    def _predicate(self, left: Syntax, token: Token, depth: int) -> Syntax:
        """Parse the rest of IN, BETWEEN or LIKE."""
        if token.text == "BETWEEN":
            low = self._expression(_COMPARISON_POWER, depth)
            self._expect("AND", "Write BETWEEN lowest AND highest.")
            high = self._expression(_COMPARISON_POWER, depth)
            bounds = [
                Syntax(syntax.COMPARE, token.at, [left, low], ">="),
                Syntax(syntax.COMPARE, token.at, [left, high], "<="),
            ]
            return Syntax(syntax.AND, token.at, bounds)
        if token.text == "LIKE":
            pattern = self._text("a pattern between single quotes", "A pattern is a literal, such as 'EGM%'.")
            escape = ""
            at = self._tokens[self._next].at
            if self._accept("ESCAPE"):
                escape = self._text("a character between single quotes", "Write, for example, ESCAPE '!'.")
                if len(escape) != 1:
                    raise SelectorError(f"ESCAPE {escape!r} is not one character", at, "Write, for example, '!'.")
            return Syntax(syntax.LIKE, token.at, [left], pattern=LikePattern(pattern, escape, token.at))
        self._expect("(", "Write IN ('a', 'b').")
        items = [left]
        while True:
            item = self._operand(_UNARY_POWER, depth)
            if item.kind != syntax.LITERAL:
                raise SelectorError("an IN list holds literals only", item.at, "Join comparisons with OR instead.")
            items.append(item)
            if not self._accept(","):
                break
        self._expect(")", "Separate the values with commas, and close the list.")
        return Syntax(syntax.IN, token.at, items)

    def _operand(self, power: int, depth: int) -> Syntax:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return Syntax(syntax.LITERAL, token.at, [], literal=_number(token.raw, token.at))
        if token.kind == "text":
            return Syntax(syntax.LITERAL, token.at, [], literal=_unquoted(token))
        if token.kind in ("name", "quoted"):
            return self._named(token)
        match token.text:
            case "TRUE" | "FALSE":
                return Syntax(syntax.LITERAL, token.at, [], literal=token.text == "TRUE")
            case "NOT" if power <= _NOT_POWER:
                return Syntax(syntax.NOT, token.at, [self._expression(_NOT_POWER, depth + 1)])
            case "NOT":
                raise SelectorError("NOT stands inside a comparison", token.at, "Put NOT ... in parentheses.")
            case "-" | "+":
                after = self._tokens[self._next]
                if after.kind == "number":
                    self._next += 1
                    return Syntax(syntax.LITERAL, token.at, [], literal=_number(token.text + after.raw, token.at))
                return Syntax(syntax.UNARY, token.at, [self._expression(_UNARY_POWER, depth + 1)], token.text)
            case "(":
                inner = self._expression(0, depth + 1)
                self._expect(")", "Close the parenthesis.")
                return inner
            case "NULL":
                raise SelectorError("NULL is not a value", token.at, "Write IS NULL or IS NOT NULL.")
            case _:
                hint = 'Write a field or literal. A field named like a keyword stands in double quotes, such as "in".'
                raise self._unexpected(token, "an operand", hint)

    def _named(self, token: Token) -> Syntax:
        """Parse a field or a header."""
        self._terms += 1
        if self._terms > self._terms_max:
            raise SelectorError(
                f"more than {self._terms_max} fields and headers, the limit selector_terms_max",
                token.at,
                "Use an IN list for several values of a field, or several subscriptions.",
            )
        if token.raw.lower() == "header" and self._accept("("):
            name = self._text("the name of a header between single quotes", "Write header('name').")
            self._expect(")", "Write header('name').")
            return Syntax(syntax.HEADER, token.at, [], header=name.encode(errors="surrogatepass"))
        path: list[Step] = [token.raw.strip('"')]
        while True:
            if self._accept("."):
                name_token = self._tokens[self._next]
                name = name_token.raw.strip('"')
                if not name.isidentifier():
                    raise self._unexpected(name_token, "the name of a field", "Write a name after the point.")
                path.append(name)
                self._next += 1
            elif self._accept("["):
                inside = self._tokens[self._next]
                if inside.kind == "number" and inside.raw.isdigit():
                    path.append(_index(inside.raw))
                elif inside.kind == "text":
                    path.append(_unquoted(inside))
                else:
                    raise self._unexpected(inside, "an index or a key", "Write meters[0] or tags['key'].")
                self._next += 1
                self._expect("]", "Close the bracket.")
            else:
                return Syntax(syntax.FIELD, token.at, [], path=tuple(path))

    def _accept(self, text: str) -> bool:
        token = self._tokens[self._next]
        if token.kind == "sign" and token.text == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str, hint: str) -> None:
        if not self._accept(text):
            raise self._unexpected(self._tokens[self._next], text, hint)

    def _text(self, what: str, hint: str) -> str:
        token = self._tokens[self._next]
        if token.kind != "text":
            raise self._unexpected(token, what, hint)
        self._next += 1
        return token.raw[1:-1].replace("''", "'")

    def _unexpected(self, token: Token, expected: str, hint: str) -> SelectorError:
        found = "the end of the text" if token.kind == "end" else token.raw
        return SelectorError(f"expected {expected}, found {found}", token.at, hint)


def _unquoted(token: Token) -> bytes:
    return token.raw[1:-1].replace("''", "'").encode(errors="surrogatepass")


def _index(digits: str) -> int:
    """Return an index. No array has as many items as one of many digits needs."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) < _DIGITS_MAX else syntax.INTEGER_MAX


def _number(text: str, at: int) -> object:
    digits = text.lstrip("+-")
    if digits.isdigit():
        digits = digits.lstrip("0") or "0"
        number = int(text[:1].strip("+0123456789") + digits) if len(digits) < _DIGITS_MAX else syntax.INTEGER_MAX + 1
        if not syntax.INTEGER_MIN <= number <= syntax.INTEGER_MAX:
            raise SelectorError(f"{text} needs more than 64 bits", at, "Write it with a decimal point.")
        return number
    real = float(text)
    if real - real != 0:
        raise SelectorError(f"{text} is too large for a number", at, "The largest is about 1.8E308.")
    return real
