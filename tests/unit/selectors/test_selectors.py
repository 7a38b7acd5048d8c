"""Selectors: operators, three-valued logic, types, positions of errors, reading of fields, reloads."""

import itertools
import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from maxam.avro.registry import Registry, load_registry
from maxam.config import Limits
from maxam.content import pack
from maxam.error_codes import CODES
from maxam.errors import SelectorError
from maxam.glob_sets import GlobSet
from maxam.globs import compile_glob
from maxam.records import UNJUDGED, Change, Headers, Identity, Validation
from maxam.selectors.checking import reachable_rules
from maxam.selectors.expressions import PRESENT, TEXT_BYTES_MAX, Operands, build
from maxam.selectors.fields import VALUES_MAX, Plan
from maxam.selectors.like import COMPARISONS_MAX, LikePattern
from maxam.selectors.parser import parse_selector
from maxam.selectors.selector import REMEMBERED_MAX, Selector, SelectorTable, compile_selector
from maxam.selectors.syntax import NESTING_MAX, path_text

LIMITS = Limits()
IDENTITY = Identity("p", "0" * 64)
KLEENE: tuple[bool | None, ...] = (True, False, None)


def value_of(text: str, **fields: Any) -> object:
    """Return the value of an expression over fields of one name each."""
    operands = Operands()
    root = build(parse_selector(text, LIMITS), operands)
    row: list[object] = [None] * operands.count
    for path, place in operands.fields.items():
        (name,) = path
        found = fields[str(name)]
        row[place] = found.encode() if isinstance(found, str) else found
    return root.value(row)


# Three-valued logic


@pytest.mark.parametrize(("a", "b"), list(itertools.product(KLEENE, repeat=2)))
def test_and_or_not(a: bool | None, b: bool | None) -> None:
    """AND is the least, OR the greatest, of false < unknown < true; NOT turns that around."""
    order: list[bool | None] = [False, None, True]
    least, greatest = sorted([a, b], key=order.index)
    assert value_of("a AND b", a=a, b=b) is least
    assert value_of("a OR b", a=a, b=b) is greatest
    assert value_of("NOT a", a=a) is order[2 - order.index(a)]
    assert value_of("NOT (a AND b)", a=a, b=b) is value_of("NOT a OR NOT b", a=a, b=b)


@pytest.mark.parametrize(("a", "b", "c"), list(itertools.product(KLEENE, repeat=3)))
def test_precedence(a: bool | None, b: bool | None, c: bool | None) -> None:
    """NOT binds tighter than AND, and AND tighter than OR."""
    assert value_of("a OR b AND c", a=a, b=b, c=c) is value_of("a OR (b AND c)", a=a, b=b, c=c)
    assert value_of("NOT a AND b OR c", a=a, b=b, c=c) is value_of("((NOT a) AND b) OR c", a=a, b=b, c=c)
    assert value_of("a AND b AND c", a=a, b=b, c=c) is value_of("a AND (b AND c)", a=a, b=b, c=c)


VALUES = (None, -1, 0, 1, 1.0, 1.5, 2**63 - 1, float(2**63), "", "a", "b", "é", True, False, PRESENT)
NUMBERS = (int, float)


def alike(a: Any, b: Any) -> bool:
    """Return True if two values can be compared."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool)
    return (isinstance(a, str) and isinstance(b, str)) or (isinstance(a, NUMBERS) and isinstance(b, NUMBERS))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(VALUES, repeat=2)))
def test_comparisons(a: Any, b: Any) -> None:
    """Numbers compare exactly, texts by their characters, booleans have no order, and everything else is unknown."""
    comparable = alike(a, b)
    ordered = comparable and not isinstance(a, bool)
    assert value_of("a = b", a=a, b=b) is (a == b if comparable else None)
    assert value_of("a <> b", a=a, b=b) is (a != b if comparable else None)
    assert value_of("a < b", a=a, b=b) is (a < b if ordered else None)
    assert value_of("a <= b", a=a, b=b) is (a <= b if ordered else None)
    assert value_of("a > b", a=a, b=b) is (a > b if ordered else None)
    assert value_of("a >= b", a=a, b=b) is (a >= b if ordered else None)
    assert value_of("a BETWEEN b AND b", a=a, b=b) is (a == b if ordered else None)
    assert value_of("a IS NULL", a=a) is (a is None)
    assert value_of("a IS NOT NULL", a=a) is (a is not None)


@pytest.mark.parametrize(("a", "low", "high"), list(itertools.product((None, 1, 2, 3), repeat=3)))
def test_between(a: int | None, low: int | None, high: int | None) -> None:
    """BETWEEN takes both ends, and is false as soon as one comparison is."""
    expected = value_of("a >= low AND a <= high", a=a, low=low, high=high)
    assert value_of("a BETWEEN low AND high", a=a, low=low, high=high) is expected
    assert value_of("a NOT BETWEEN low AND high", a=a, low=low, high=high) is value_of("NOT e", e=expected)


@pytest.mark.parametrize(
    ("text", "a", "expected"),
    [
        ("a IN ('x', 'it''s')", "it's", True),
        ("a IN ('x', 'y')", "z", False),
        ("a NOT IN ('x', 'y')", "z", True),
        ("a IN ('x')", None, None),
        ("a NOT IN ('x')", None, None),
        ("a IN (1, -2, 3.0)", 3, True),
        ("a IN (1, -2, 3.0)", -2.0, True),
        ("a IN (1)", True, None),  # TRUE is no number, though Python's is
        ("a IN (TRUE)", True, True),
        ("a IN (TRUE)", 1, None),
        ("a IN ('1')", 1, None),
        ("a IN (1)", PRESENT, None),
    ],
)
def test_in(text: str, a: Any, expected: bool | None) -> None:
    """IN is equality with one of the values."""
    assert value_of(text, a=a) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("16 / 4 / 2", 2),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7 / 2.0", 3.5),
        ("- 5 + + 2", -3),
        ("-(3)", -3),
        ("-(-(3))", 3),
        ("1 / 0", None),
        ("1.5 / 0", None),
        ("1 / 0.0", None),
        ("0 * (1 / 0)", None),
        ("1e308 * 10 - 1e308 * 10", None),  # not a number
        ("9223372036854775807 + 1", 2.0**63),
        ("-9223372036854775808 - 1", -(2.0**63)),
        ("-9223372036854775808 / -1", 2.0**63),
        ("-(-9223372036854775808)", 2.0**63),
        ("4611686018427387904 * 2", 2.0**63),
        (".5", 0.5),
        ("5.", 5.0),
        ("1E3", 1000.0),
        ("2.5e-1", 0.25),
    ],
)
def test_arithmetic(expression: str, expected: Any) -> None:
    """Whole numbers stay whole within 64 bits; a division by zero is NULL."""
    found = value_of(expression)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("a", "b"), [(None, 1), (1, None), ("1", 1), (True, 1), (1, PRESENT)])
def test_arithmetic_without_numbers_is_null(a: Any, b: Any) -> None:
    """This happens after a reload only: SUBSCRIBE refuses such a selector."""
    for sign in "+-*/":
        assert value_of(f"a {sign} b", a=a, b=b) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("'EGM%'", ["EGM", "EGM.1"], ["egm", "xEGM", ""]),
        ("'%.Status'", [".Status", "a.Status"], ["a.Status.", "Status"]),
        ("'%a%b%'", ["ab", "xaxbx", "aab"], ["ba", "a", ""]),
        ("'_'", ["a", "é", "𝄞"], ["", "ab"]),
        ("'a_c'", ["abc", "a_c"], ["ac", "abbc"]),
        ("'%a_b'", ["a_b", "aaxb", "axbaxb"], ["ab", "axbb"]),
        ("'%_a_%'", ["xax", "aaa"], ["ax", "xa", "aa"]),
        ("''", [""], ["a"]),
        ("'%'", ["", "a\nb"], []),
        ("'10!%' ESCAPE '!'", ["10%"], ["10", "10!", "100"]),
        ("'!_!!%' ESCAPE '!'", ["_!", "_!x"], ["a!", "_"]),
        ("'ab%ba'", ["abba", "abxba"], ["aba", "ab"]),
        ("'it''s'", ["it's"], ["its"]),
    ],
)
def test_like(pattern: str, matching: Sequence[str], others: Sequence[str]) -> None:
    """`%` takes any text, `_` one character, and case counts."""
    for text in matching:
        assert value_of(f"a LIKE {pattern}", a=text) is True
        assert value_of(f"a NOT LIKE {pattern}", a=text) is False
    for text in others:
        assert value_of(f"a LIKE {pattern}", a=text) is False
    assert value_of(f"a LIKE {pattern}", a=None) is None
    assert value_of(f"a LIKE {pattern}", a=5) is None


def test_a_hostile_pattern_ends() -> None:
    """A LIKE that takes too long is unknown; long texts alone are no reason."""
    assert LikePattern("%a_a_a_b%", "", 1).matches(b"a" * 2 * COMPARISONS_MAX) is None
    assert LikePattern("%a_a_a_b%", "", 1).matches(b"a" * (COMPARISONS_MAX // 8)) is False
    assert LikePattern("%ab%", "", 1).matches(b"a" * 2 * COMPARISONS_MAX + b"b") is True
    assert LikePattern("%ab___%c%", "", 1).matches(b"a" * 2 * COMPARISONS_MAX + b"baaac") is True


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("a = 1", "a = 1 OR a = 2"),
        ("header('a') = ''", "a = ''"),
        ("a LIKE 'ab%'", "a LIKE '%ab%'"),
        ("a LIKE '%ab%'", "a LIKE '%abc%'"),
        ("a LIKE '%a%b%'", "a LIKE '%a_b%'"),
        ("a LIKE '%a_b%'", "a LIKE '%a_b%' OR a LIKE '%a_b%'"),
    ],
)
def test_the_steps_of_a_selector(less: str, more: str) -> None:
    """The greatest time of an evaluation is known from the text, and the more is to be done, the longer it is."""
    steps = []
    for text in (less, more):
        operands = Operands()
        build(parse_selector(text, LIMITS), operands)
        steps.append(operands.steps)
    assert steps[0] < steps[1]


def test_many_ordinary_selectors_of_a_principal_fit_its_steps() -> None:
    """Forty selectors with four fields, one of them searched for a word."""
    operands = Operands()
    build(parse_selector("a > 1 AND b IN ('x', 'y') AND NOT c AND d LIKE '%door%'", LIMITS), operands)
    assert 40 * operands.steps < LIMITS.selector_steps_per_principal_max
    assert LIMITS.selectors_per_principal_max * simple_steps() < LIMITS.selector_steps_per_principal_max


def simple_steps() -> int:
    """Return the steps of a selector with one comparison."""
    operands = Operands()
    build(parse_selector("a.b = 'x'", LIMITS), operands)
    return operands.steps


@pytest.mark.parametrize(("rules", "left_out"), [(10, True), (100, False)])
def test_a_check_of_many_rules_takes_a_bounded_number_of_comparisons(rules: int, left_out: bool) -> None:
    """A registry of a thousand rules does not hold the event loop: of many, a rule stays that others cover."""
    globs = [*(f"X/*.{number}" for number in range(rules)), "X/*.?", "X/*.x"]
    of = registry(*((glob, "none", "") for glob in globs))
    found = reachable_rules(of, compile_glob("X/**", LIMITS))
    assert (len(found) == rules + 1) is left_out


def test_rules_that_a_principal_may_not_receive_do_not_count() -> None:
    """No error discloses a schema of theirs, and a glob without any right is no reason to refuse a selector."""
    of = registry(("X/a.*", "single-object", "n.T_v1"), ("X/b.*", "single-object", "n.U_v1"), ("X/*", "none", ""))
    received = GlobSet([compile_glob("X/b.*", LIMITS)])
    everything = compile_glob("X/**", LIMITS)
    assert [of.rules.index(rule) for rule in reachable_rules(of, everything, received)] == [1]
    table = SelectorTable(of, LIMITS)
    assert table.take("status = 1", everything, received)
    with pytest.raises(SelectorError):
        table.take("status = 1", everything)
    with pytest.raises(SelectorError) as caught:
        table.take("last = 1", everything, received)
    assert "T_v1" not in str(caught.value)
    table.take("last = 'unchecked'", compile_glob("X/a.*", LIMITS), received)


# Errors

SCHEMA = {
    "type": "record",
    "name": "T_v1",
    "namespace": "n",
    "fields": [
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["ONLINE", "OFFLINE"]}},
        {"name": "skipped", "type": {"type": "array", "items": "string"}},
        {
            "name": "meters",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Meter",
                    "fields": [{"name": "name", "type": "string"}, {"name": "credit", "type": ["null", "long"]}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "open", "type": "boolean"},
        {"name": "ratio", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}},
        {"name": "since", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "mixed", "type": ["int", "string"]},
        {"name": "in", "type": "int"},
        {"name": "nothing", "type": "null"},
        {"name": "last", "type": "int"},
    ],
}
OTHER = {"type": "record", "name": "U_v1", "namespace": "n", "fields": [{"name": "status", "type": "int"}]}


def registry(*rules: tuple[str, str, str], minors: Sequence[Any] = (SCHEMA,)) -> Registry:
    """Load the types with these rules: glob, encoding, type."""
    text = ""
    for glob, encoding, schema in rules or (("X/**", "single-object", "n.T_v1"),):
        text += f'[[rule]]\ndestination = "{glob}"\nencoding = "{encoding}"\n'
        text += f'schema = "{schema}"\n' if schema else ""
    texts = {"registry.toml": text.encode(), "n/U_v1/1.0.avsc": json.dumps(OTHER).encode()}
    for minor, schema in enumerate(minors):
        texts[f"n/T_v1/1.{minor}.avsc"] = json.dumps(schema).encode()
    return load_registry(texts)


REGISTRY = registry()


def selector(text: str, of: Registry = REGISTRY, glob: str = "X/**") -> Selector:
    """Compile and check a selector."""
    return compile_selector(text, of, compile_glob(glob, LIMITS), LIMITS)


@pytest.mark.parametrize(
    ("text", "position", "word"),
    [
        ("", 1, "operand"),
        ("   ", 4, "operand"),
        ("open AND", 9, "operand"),
        ("open open", 6, "open"),
        ("(open", 6, ")"),
        ("open)", 5, ")"),
        ("in = 1", 1, '"in"'),
        ("last == 1", 6, "=="),
        ("last != 1", 6, "<>"),
        ("last = 1 = 1", 10, "comparison"),
        ("last = NOT open", 8, "NOT"),
        ("last - -1 = 1 AND last--1 = 1", 23, "--"),
        ("last = NULL", 8, "IS NULL"),
        ("last IS TRUE", 9, "NULL"),
        ("last NOT 1", 10, "BETWEEN"),
        ("last BETWEEN 1 OR 2", 16, "AND"),
        ("last IN 1", 9, "("),
        ("last IN ()", 10, "operand"),
        ("last IN (1, last)", 13, "literals"),
        ("last IN (1 2)", 12, ")"),
        ("status LIKE status", 13, "pattern"),
        ("status LIKE 'a!b' ESCAPE '!'", 8, "'!'"),
        ("status LIKE 'a!' ESCAPE '!'", 8, "'!'"),
        ("status LIKE 'a' ESCAPE ''", 17, "one character"),
        ("status LIKE 'a' ESCAPE 5", 24, "character"),
        ("status = 'ON", 10, "unfinished"),
        ("status = ON%", 12, "LIKE"),
        ('"status = 1', 1, "unfinished"),
        ("meters[-1].credit = 1", 8, "index"),
        ("meters[0.credit = 1", 8, "number"),
        ("meters[0 = 1", 10, "]"),
        ("meters. = 1", 9, "name"),
        ("header(site) = 'a'", 8, "header"),
        ("header('site' = 'a'", 15, ")"),
        ("12abc = 1", 1, "number"),
        ("last = 9223372036854775808", 8, "64 bits"),
        ("last = 1e999", 8, "large"),
        ("last = 1 || 2", 10, "OR"),
        ("last = \u00bd", 8, "½"),
        # Types
        ("last", 1, "condition"),
        ("last + 1", 6, "condition"),
        ("open AND last", 10, "condition"),
        ("NOT last", 5, "condition"),
        ("(open AND last = 1) AND status", 25, "condition"),
        ("last = 'a'", 6, "last"),
        ("open AND 5 < status", 12, "status"),
        ("'a' = 1", 5, "text"),
        ("open < TRUE", 6, "order"),
        ("open = 1", 6, "open"),
        ("header('a') > 5", 13, "header('a')"),
        ("last LIKE 'a'", 1, "last"),
        ("status + 1 = 2", 1, "status"),
        ("-status = 1", 2, "status"),
        ("last IN (1, 'a')", 6, "'a'"),
        ("status BETWEEN 1 AND 'b'", 8, "status"),
        ("raw = 'a'", 1, "raw"),
        ("meters = 1", 1, "array"),
        ("meters[0] = 1", 1, "record"),
        ("tags = 'a'", 1, "map"),
        ("mixed = 1", 1, "mixed"),
        # Fields
        ("open AND statu = 1", 10, "status"),
        ("open AND meters.credit = 1", 10, "meters[0]"),
        ("meters[0].credi = 1", 1, "credit"),
        ("tags.a = 'a'", 1, "tags['key']"),
        ("tags[0] = 'a'", 1, "map"),
        ("status.x = 1", 1, "status is a text"),
        ("status[0] = 1", 1, "status"),
    ],
)
def test_an_error_has_position_and_cause(text: str, position: int, word: str) -> None:
    """The position counts characters from 1."""
    with pytest.raises(SelectorError) as caught:
        selector(text)
    assert caught.value.position == position
    assert word in caught.value.problem + caught.value.hint
    assert f"character {position} " in str(caught.value)
    assert caught.value.code in CODES


def test_positions_count_characters() -> None:
    """A character beyond ASCII is one, whatever bytes it has."""
    with pytest.raises(SelectorError) as caught:
        selector("header('é𝄞') = 1")
    assert caught.value.position == 14


@pytest.mark.parametrize(
    "text",
    [
        "(" * NESTING_MAX * 2,
        "(" * 500,
        "NOT " * 250 + "open",
        "- " * 500,
        "+".join(["1"] * 400) + " = 1",
        "(" * (NESTING_MAX + 1) + "open" + ")" * (NESTING_MAX + 1),
    ],
)
def test_nesting_is_bounded(text: str) -> None:
    """No text makes the recursion deep."""
    with pytest.raises(SelectorError, match=str(NESTING_MAX)):
        selector(text)


def test_limits() -> None:
    """Text and terms are bounded; conditions joined by AND are not nested, and an IN list is one use of its field."""
    terms = " AND ".join(["last > 0"] * 33)
    selector(terms.removesuffix(" AND last > 0"))
    with pytest.raises(SelectorError, match="selector_terms_max") as caught:
        selector(terms)
    assert caught.value.position == terms.rindex("last") + 1
    values = ", ".join([str(number) for number in range(200)])
    selector(f"last IN ({values})")
    text = "open" + " " * (LIMITS.selector_bytes_max - 4)
    selector(text)
    with pytest.raises(SelectorError, match="selector_bytes_max"):
        selector(text + " ")
    most = Limits(selector_bytes_max=8192, selector_terms_max=1000)
    for long in ("9" * 8000 + " = 1", "0" * 8000 + " = 0", f"meters[{'9' * 8000}] IS NULL", "open OR " * 999 + "open"):
        try:
            compile_selector(long, REGISTRY, compile_glob("X/**", most), most).matches(change(datum()))
        except SelectorError as error:
            assert "64 bits" in error.problem  # noqa: PT017 - some of them are selectors


def test_fields_of_several_types() -> None:
    """Unlike types of one name are an error, unless the glob cannot reach one of them."""
    of = registry(("X/T.*", "single-object", "n.T_v1"), ("X/U.*", "datum", "n.U_v1"), ("Y/**", "none", ""))
    selector("status = 'ONLINE'", of, "X/T.*")
    selector("status = 1", of, "X/U.1")
    selector("open AND status IS NOT NULL", of, "X/**")
    with pytest.raises(SelectorError, match=r"status .*\bn\.T_v1 1\.0 .*\bn\.U_v1 1\.0"):
        selector("status = 1", of)
    with pytest.raises(SelectorError, match="no rule checks"):
        selector("status = 1", of, "Y/**")
    selector("header('a') = 'b'", of, "Y/**")


def test_reachable_rules() -> None:
    """The first rule of a destination counts, so a rule behind others may be out of reach."""
    of = registry(
        ("X/a.*", "single-object", "n.T_v1"),
        ("X/a.b", "datum", "n.U_v1"),
        ("X/*", "none", ""),
        ("**", "single-object", "n.U_v1"),
    )
    found = {
        glob: [of.rules.index(rule) for rule in reachable_rules(of, compile_glob(glob, LIMITS))]
        for glob in ("X/a.b", "X/a.*", "X/?.b", "X/b", "X/**", "Y/**", "**")
    }
    assert found == {
        "X/a.b": [0],
        "X/a.*": [0],
        "X/?.b": [0, 2],
        "X/b": [2],
        "X/**": [0, 2],  # a destination has one slash
        "Y/**": [3],
        "**": [0, 2, 3],
    }


def test_paths_are_written_as_they_are_read() -> None:
    """Errors show paths in the form of the grammar."""
    for text in ("a.b[3].c", "tags['it''s'].x", '"in".like'):
        assert path_text(parse_selector(text, LIMITS).path) == text


# Values


def varint(number: int) -> bytes:
    """Encode an int or long."""
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def sized(data: bytes) -> bytes:
    """Encode bytes or a string."""
    return varint(len(data)) + data


def blocks(items: Sequence[bytes], sizes: Sequence[int], stated: bool) -> bytes:
    """Encode an array or map in blocks of these sizes, which may state their bytes."""
    out = b""
    at = 0
    for size in sizes:
        block = b"".join(items[at : at + size])
        out += varint(-size) + varint(len(block)) + block if stated else varint(size) + block
        at += size
    assert at == len(items)
    return out + b"\0"


def datum(
    meters: bytes = b"\0",
    tags: bytes = b"\0",
    amount: bytes = b"\x04\xe2",  # 12.50
    ratio: float = 0.5,
    since: int | None = None,
) -> bytes:
    """Encode a value of the type: status OFFLINE, two texts to skip, last 7."""
    out = b"\x02" + blocks([sized(b"one"), sized(b"two")], [2], False) + meters + tags + b"\x01"
    out += struct.pack("<f", ratio) + sized(b"raw") + sized(amount)
    out += b"\0" if since is None else b"\x02" + varint(since)
    return out + b"\x02" + sized(b"text") + varint(3) + varint(7)


def change(
    body: bytes, headers: Headers = (), of: Registry = REGISTRY, revision: int = 1, deleted: bool = False
) -> Change:
    """Return the change that the broker makes of a SEND of single-object encoding."""
    validation = UNJUDGED
    if body and not deleted:
        oldest = of.versions("n.T_v1")[-1]
        body = oldest.head("single-object") + body
        rule = of.rule_for("X/a")
        assert rule is not None
        judged = rule.validate(b"X/a", headers, body)
        assert isinstance(judged, Validation), judged.reason
        validation = judged
    content, body_at = pack(headers, body)
    return Change(revision, 1, b"X/a", deleted, IDENTITY, validation, content, body_at)


METERS = [sized(b"m%d" % n) + (b"\0" if n == 2 else b"\x02" + varint(10 * n)) for n in range(5)]
TAGS = [sized(key) + value for key, value in [(b"a", b"\x02\x02x"), (b"b", b"\0"), (b"c", b"\x02\x02y")]]


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("sizes", [(5,), (1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_items_of_arrays(sizes: Sequence[int], stated: bool) -> None:
    """An item is found in any layout of blocks; one beyond the end is null."""
    one = change(datum(meters=blocks(METERS, sizes, stated)))
    for index in range(7):
        credit = None if index in (2, 5, 6) else 10 * index
        assert selector(f"meters[{index}].credit = {credit or 0}").matches(one) is (credit is not None)
        assert selector(f"meters[{index}].credit IS NULL").matches(one) is (credit is None)
        assert selector(f"meters[{index}] IS NULL").matches(one) is (index > 4)
    assert selector("meters[3].name = 'm3' AND meters[1].name = 'm1' AND last = 7").matches(one)
    assert selector("meters[0].credit + meters[4].credit = 40 AND meters IS NOT NULL").matches(one)
    assert selector("meters[99999999999999999999].credit IS NULL AND last = 7").matches(one)


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("sizes", [(3,), (1, 2), (1, 1, 1)])
def test_values_of_maps(sizes: Sequence[int], stated: bool) -> None:
    """A key that is not there is null."""
    one = change(datum(tags=blocks(TAGS, sizes, stated)))
    assert selector("tags['a'] = 'x' AND tags['c'] = 'y' AND tags['b'] IS NULL AND tags['d'] IS NULL").matches(one)
    assert selector("tags IS NOT NULL AND last = 7").matches(one)


def test_the_last_of_equal_keys_counts() -> None:
    """Decoders take the last one, null included."""
    twice = [sized(b"a") + b"\x02\x02x", sized(b"a") + b"\0"]
    assert selector("tags['a'] IS NULL").matches(change(datum(tags=blocks(twice, [2], False))))
    assert selector("tags['a'] = 'x'").matches(change(datum(tags=blocks(twice[::-1], [2], False))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status = 'OFFLINE'", True),
        ("status IN ('ONLINE')", False),
        ("open = TRUE", True),
        ("open", True),
        ("NOT open", False),
        ("ratio = 0.5", True),
        ("amount = 12.50", True),
        ("amount * 2 > 24.99", True),
        ("since IS NULL", True),
        ("since > 5", False),
        ("NOT (since > 5)", False),
        ("raw IS NOT NULL", True),
        ("mixed IS NULL", False),
        ('"in" = 3 AND last = 7', True),
        ("nothing IS NULL", True),
        ("nothing = 1 OR nothing = 'a'", False),
        ("header('site') = 'MAXVAPI'", True),
        ("header('absent') IS NULL", True),
        ("header('absent') = ''", False),
        ("header('twice') = '1'", True),
        ("1 = 1", True),
        ("FALSE", False),
    ],
)
def test_fields_and_headers(text: str, expected: bool) -> None:
    """Every type of field, and the first of two headers of one name."""
    headers = ((b"site", b"MAXVAPI"), (b"twice", b"1"), (b"twice", b"2"))
    assert selector(text).matches(change(datum(), headers)) is expected


def test_special_numbers() -> None:
    """NaN is null; a decimal without digits is 0, and one that is too long is null."""
    assert selector("ratio IS NULL").matches(change(datum(ratio=float("nan"))))
    assert selector("ratio > 1e300").matches(change(datum(ratio=float("inf"))))
    assert selector("amount = 0").matches(change(datum(amount=b"")))
    assert selector("amount = -0.01").matches(change(datum(amount=b"\xff")))
    assert selector("amount IS NULL").matches(change(datum(amount=b"\x01" + bytes(64))))
    assert selector("since = 1700000000000").matches(change(datum(since=1_700_000_000_000)))


def test_deletes_and_unchecked_bodies_do_not_match() -> None:
    """Even a condition that is always true does not match a delete. A body that nothing checked has headers only."""
    headers = ((b"site", b"a"),)
    assert not selector("1 = 1").matches(change(b"", deleted=True))
    content, body_at = pack(headers, b"anything")
    unchecked = Change(1, 1, b"X/a", False, IDENTITY, UNJUDGED, content, body_at)
    assert selector("header('site') = 'a'").matches(unchecked)
    assert selector("header('site') = 'a' OR 1 = 1").matches(unchecked)
    for text in ("last IS NULL", "header('site') = 'a' OR last = 1", "last = 7"):
        assert not selector(text).matches(unchecked)


def test_broken_bytes_do_not_match() -> None:
    """A body that its journal damaged ends the evaluation, not the broker, at whatever byte it ends."""
    whole = change(datum(meters=blocks(METERS, (5,), False), tags=blocks(TAGS, (3,), False)))
    everything = "last = 7 AND tags['c'] = 'y' AND meters[4].credit = 40 AND ratio = 0.5 AND amount = 12.5"
    assert selector(everything).matches(whole)
    for end in range(whole.body_at, len(whole.content)):
        cut = Change(1, 1, b"X/a", False, IDENTITY, whole.validation, whole.content[:end], whole.body_at)
        assert not selector(everything).matches(cut)


@pytest.mark.parametrize(("text", "reached"), [("last = 7", False), ("meters[0].name = 'm0'", True)])
def test_a_field_behind_many_values_is_out_of_reach(text: str, reached: bool) -> None:
    """A condition does not match if it takes too many values of an array to decide it."""
    many = change(datum(meters=blocks([METERS[0]] * VALUES_MAX, (VALUES_MAX,), False)))
    few = change(datum(meters=blocks([METERS[0]] * 5, (5,), False)))
    assert selector(text).matches(few)
    assert selector(text).matches(many) is reached


@pytest.mark.parametrize(("length", "matched"), [(TEXT_BYTES_MAX, True), (TEXT_BYTES_MAX + 1, False)])
@pytest.mark.parametrize("text", ["header('site') LIKE 'a%'", "header('site') <> 'b'"])
def test_a_long_text_cannot_be_compared(text: str, length: int, matched: bool) -> None:
    """Beyond the limit, comparisons are unknown; the text is not null."""
    long = change(datum(), headers=((b"site", b"a" * length),))
    assert selector(text).matches(long) is matched
    assert not selector("header('site') IS NULL").matches(long)


def test_a_plan_stops_behind_its_last_field() -> None:
    """The bytes after it may be missing."""
    row: list[object] = [None]
    Plan(REGISTRY.versions("n.T_v1")[0].schema.type, {("meters", 1, "name"): 0}).read(
        datum(meters=blocks(METERS, (5,), False))[:20], 0, 20, row
    )
    assert row == [b"m1"]


def test_a_record_that_holds_itself() -> None:
    """The path decides how deep the plan goes."""
    inner = {"name": "inner", "type": ["null", "T_v1"], "default": None}
    schema = {"type": "record", "name": "T_v1", "namespace": "n", "fields": [{"name": "a", "type": "int"}, inner]}
    of = registry(minors=[schema])
    one = change(b"\x02\x02\x04\x02\x06\x00", of=of)
    assert selector("inner.inner.a = 3 AND inner.a = 2 AND a = 1", of).matches(one)
    assert selector("inner.inner.inner IS NULL AND inner.inner.inner.a IS NULL", of).matches(one)


def test_records_in_a_union() -> None:
    """A field of one branch is null in the others."""
    branches = [
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}, {"name": "both", "type": "int"}]},
        {"type": "record", "name": "B", "fields": [{"name": "both", "type": "double"}]},
    ]
    of = registry(minors=[{**SCHEMA, "fields": [{"name": "u", "type": branches}, {"name": "last", "type": "int"}]}])
    a, b = change(b"\x00\x02\x04\x0e", of=of), change(b"\x02" + struct.pack("<d", 2.0) + b"\x0e", of=of)
    both = selector("u.both = 2 AND last = 7", of)
    assert both.matches(a)
    assert both.evaluate(b)
    assert selector("u.x = 1", of).matches(a)
    assert selector("u.x IS NULL AND u IS NOT NULL", of).matches(b)


# Versions, reloads, sharing

MORE = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "more", "type": "int", "default": 0}]}


def test_a_field_of_one_version_is_null_in_the_others() -> None:
    """A value is read by the version that judged it."""
    of = registry(minors=[SCHEMA, MORE])
    old = change(datum(), of=of)
    newest = of.versions("n.T_v1")[0]
    content, body_at = pack((), newest.head("single-object") + datum() + b"\x0a")
    validation = Validation("single-object", "n.T_v1", "1.1", newest.sha_256, 10)
    new = Change(2, 1, b"X/a", False, IDENTITY, validation, content, body_at)
    assert [selector("more = 5", of).matches(one) for one in (old, new)] == [False, True]
    assert [selector("more IS NULL", of).matches(one) for one in (old, new)] == [True, False]


def test_a_reload_never_fails() -> None:
    """A field that is gone is null, a comparison of types that became unlike is unknown, a schema that is gone matches nothing."""
    text = "last = 7 OR more IS NULL"
    of = registry(minors=[SCHEMA, MORE])
    one = selector(text, of)
    assert one.matches(change(datum(), of=of))
    assert one.matches(change(datum(), of=of, revision=2))
    texts = {**SCHEMA, "fields": [{"name": "last", "type": "string"}]}
    other = registry(minors=[texts])
    one.reload(other)
    assert not one.matches(change(datum(), of=of))  # no version of the new registry has this schema
    content, body_at = pack((), other.versions("n.T_v1")[0].head("single-object") + b"\x02x")
    validation = Validation("single-object", "n.T_v1", "1.0", other.versions("n.T_v1")[0].crc_64, 10)
    assert one.matches(Change(3, 1, b"X/a", False, IDENTITY, validation, content, body_at))  # `more` is null
    with pytest.raises(SelectorError):
        one.check(compile_glob("X/**", LIMITS))
    one.reload(of)
    assert one.matches(change(datum(), of=of))


def test_results_are_remembered() -> None:
    """A revision is evaluated once while it is among the last ones, in any order of questions."""
    one = selector("last = 7")
    good = change(datum())
    assert one.matches(good)
    broken = Change(1, 1, b"X/a", False, IDENTITY, UNJUDGED, good.content, good.body_at)
    assert one.matches(broken)  # revision 1 was answered before
    for revision in range(2, REMEMBERED_MAX // 2):
        assert not one.matches(change(b"", revision=revision, deleted=True))
    assert one.matches(broken)
    for revision in range(REMEMBERED_MAX, 3 * REMEMBERED_MAX):
        assert not one.matches(change(b"", revision=revision, deleted=True))
    assert not one.matches(broken)


def test_selectors_are_shared_by_text() -> None:
    """A table has one selector for each text, as long as somebody uses it."""
    of = registry(("X/T.*", "single-object", "n.T_v1"), ("X/U.*", "datum", "n.U_v1"))
    table = SelectorTable(of, LIMITS)
    first = table.take("status IS NOT NULL", compile_glob("X/T.*", LIMITS))
    assert table.take("status IS NOT NULL", compile_glob("X/U.*", LIMITS)) is first
    with pytest.raises(SelectorError):
        table.take("last = 1", compile_glob("X/U.*", LIMITS))
    assert table.count == 1
    table.reload(registry())
    table.release(first)
    assert table.count == 1
    table.release(first)
    assert table.count == 0
    assert table.take("status IS NOT NULL", compile_glob("X/T.*", LIMITS)) is not first
