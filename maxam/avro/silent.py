"""Changes of meaning that nobody would notice: bare data of an older minor that are wholly valid under a newer one, and mean
something else there.

A bare datum does not say which minor wrote it. The newest minor that its bytes fit judges it (`rule.py`), so what an older publisher
sends may be taken for what it is not, though each of the seven compatibility modes is content: two fields that change places, a
symbol that is put before others, a `float` that becomes an `int`, a field put into the middle in front of a string that can swallow
what follows.

Whether there is such a body is searched for, not guessed from a list of kinds of changes. Two parsers, one for each minor, go over
the same bytes, which are made up on the way: at each step both say which bytes would help them, and each byte that both accept is
a way to go on, the shortest way first. Where both stand before types that read the same bytes to the same meaning, they pass them
in one step. A body at whose end both are done is decoded by both and compared. So every refusal shows its body, and a change
that merely looks dangerous is not refused: a field appended at the end always needs bytes that no older body has.

What is not found: bodies of more than BODY_BYTES_MAX, and those that take more than STEPS_MAX steps to find or hold strings of 64
bytes or more. An older publisher's arrays and maps are taken to be one block without a stated size, as nearly all writers make them.
"""

import json
from heapq import heappop, heappush
from typing import Final, NamedTuple, final

from maxam.avro.data import Value, decode
from maxam.avro.resolution import branch_of, fields_of, shown
from maxam.avro.schema import Field, Json, Schema, Type
from maxam.avro.walker import Walker
from maxam.avro.witness import ENDLESS, least_bytes, most_bytes

STEPS_MAX: Final = 2000  # some 60 ms in Python, for two minors that differ before the end and have no such body
BODY_BYTES_MAX: Final = 512
DIFFERENCES_MAX: Final = 16  # that one body is shown with
ENDS_MAX: Final = 32  # bodies that turn out to mean the same

_NUMBERS: Final = ("int", "long", "float", "double")
_TEXTS: Final = ("string", "bytes")
_LEVELS: Final = 3  # of items in values that are made up
_SHORT_LENGTHS: Final = (0, 1, 2, 3)
_NUDGES: Final = (0, 1, 2, 4, 98, 99)


class SilentChange(NamedTuple):
    """Something that an older minor's bare data would mean under a newer one without anybody noticing.

    Attributes:
        path: Where, in the newer schema, as in `Incompatibility`.
        problem: What it is taken for, and what it was.
        body: A datum that the older minor wrote and the newer one accepts.
        old: Its value as it was written, in Avro's JSON encoding.
        new: Its value as it would be read.
    """

    path: str
    problem: str
    body: bytes
    old: Json
    new: Json

    def __str__(self) -> str:
        return f"{self.path or 'the whole'}: {self.problem}"


def silent_changes(old: Schema, new: Schema) -> list[SilentChange]:
    """Look for a bare datum of an older minor that is wholly valid under a newer one and means something else there.

    Returns:
        What one such datum would be taken for; nothing when there is none.
    """
    return _Search(old.type, new.type).run()


_DONE: Final = 0
_VALUE: Final = 1  # of a type
_BLOCKS: Final = 2  # of an array or map: how many items follow
_ITEMS: Final = 3  # of an array or map, so many more
_BYTES: Final = 4  # so many, of a text or not
_NUMBER: Final = 5  # the rest of a number of several bytes
_LAST: Final = 6  # of an array or map: that no items follow


@final
class _Need:
    """What a parser still has to read: one thing, and what follows. The same needs are the same object.

    Attributes:
        op: What it is.
        type: The type of a value; the array or map of blocks and items.
        count: Items, bytes; bytes at most of a number.
        place: What the value would be, in the newer minor: equal for two parsers that read the same thing. For people it means
            nothing.
        rest: What follows; of the last one itself.
        least: Bytes that all of it takes at least.
        most: Bytes that all of it takes at most.
        number: Of this object.
    """

    __slots__ = ("count", "least", "most", "number", "op", "place", "rest", "type")

    def __init__(
        self,
        op: int,
        of: Type,
        count: int,
        place: int,
        rest: "_Need | None",
        least: int,
        most: int,
        number: int,
    ) -> None:
        self.op: Final = op
        self.type: Final = of
        self.count: Final = count
        self.place: Final = place
        self.rest: Final[_Need] = self if rest is None else rest
        self.least: Final = least
        self.most: Final = most
        self.number: Final = number


@final
class _State:
    """Two parsers behind the same bytes."""

    __slots__ = ("body", "differences", "new", "old")

    def __init__(self, old: _Need, new: _Need, body: bytes, differences: int) -> None:
        self.old: Final = old
        self.new: Final = new
        self.body: Final = body
        self.differences: Final = differences


_NOTHING: Final = Type("null")
_KEY: Final = Type("string")


@final
class _Search:
    __slots__ = ("_alike", "_ends", "_least", "_most", "_needs", "_new", "_old", "_walkers")

    def __init__(self, old: Type, new: Type) -> None:
        self._old: Final = old
        self._new: Final = new
        self._least: dict[int, int] = {}
        self._most: dict[int, int] = {}
        self._alike: Final[dict[tuple[int, int], bool]] = {}
        self._needs: Final[dict[tuple[int, int, int, int, int], _Need]] = {}
        self._walkers: list[Walker] = []
        self._ends = 0

    def run(self) -> list[SilentChange]:
        """Search, the shortest bodies first."""
        if self._are_alike(self._old, self._new) or self._is_longer():
            return []
        self._least = least_bytes(self._old) | least_bytes(self._new) | {id(_KEY): 1}
        self._most = most_bytes(self._old) | most_bytes(self._new) | {id(_KEY): ENDLESS}
        done = _Need(_DONE, _NOTHING, 0, 0, None, 0, 0, 0)
        place = id(self._new)
        start = _State(self._value(self._old, place, done), self._value(self._new, place, done), b"", 0)
        waiting: list[tuple[int, int, int, _State]] = []
        seen: set[tuple[int, int, bool]] = set()
        pushed = 0
        steps = 0
        found = [start]
        while True:
            for state in found:
                settled = self._settle(state)
                if settled is None:
                    continue
                if settled.old.op == _DONE and settled.new.op == _DONE:
                    changes = self._end(settled)
                    if changes or self._ends > ENDS_MAX:
                        return changes
                    continue
                low, high = sorted((settled.old.least, settled.new.least))
                pushed += 1
                heappush(waiting, (len(settled.body) + 2 * high - low, -settled.differences, pushed, settled))
            found = []
            while not found:
                if not waiting or steps == STEPS_MAX:
                    return []
                _, _, _, state = heappop(waiting)
                key = (state.old.number, state.new.number, state.differences > 0)
                if key not in seen:
                    seen.add(key)
                    steps += 1
                    found = self._advance(state)

    def _is_longer(self) -> bool:
        """Tell whether one of two records is the other and more behind it, the usual change: no body is of both."""
        old, new = self._old, self._new
        if old.kind != "record" or new.kind != "record":
            return False
        fields, _ = fields_of(old, new)
        for index in range(min(len(old.fields), len(new.fields))):
            g = new.fields[index]
            if fields[index][1] is not g or not self._are_alike(fields[index][0].type, g.type):
                return False
        longer = old if len(old.fields) > len(new.fields) else new
        common = min(len(old.fields), len(new.fields))
        return any(not field.type.empty for field in longer.fields[common:])

    # Needs

    def _need(self, op: int, of: Type, count: int, place: int, rest: _Need) -> _Need:
        key = (op, id(of), count, place, rest.number)
        need = self._needs.get(key)
        if need is None:
            least = most = count  # of bytes
            if op == _VALUE:
                least, most = self._least[id(of)], self._most[id(of)]
            elif op == _BLOCKS:
                least, most = 1, ENDLESS
            elif op == _ITEMS:
                least, most = 1 + count * self._least_of_item(of), ENDLESS
            elif op == _NUMBER:
                least = 1
            elif op == _LAST:
                least = most = 1
            need = _Need(
                op,
                of,
                count,
                place,
                rest,
                min(least + rest.least, ENDLESS),
                min(most + rest.most, ENDLESS),
                len(self._needs) + 1,
            )
            self._needs[key] = need
        return need

    def _least_of_item(self, of: Type) -> int:
        return self._least[id(of.branches[0])] + (1 if of.kind == "map" else 0)

    def _value(self, of: Type, place: int, rest: _Need) -> _Need:
        return rest if of.empty else self._need(_VALUE, of, 0, place, rest)

    def _settle(self, state: _State) -> _State | None:
        """Take both parsers to where a byte decides, over all that both read alike; None where they cannot both end."""
        old, new = state.old, state.new
        body = state.body
        differences = state.differences
        while True:
            if old.most < new.least or new.most < old.least or max(old.least, new.least) + len(body) > BODY_BYTES_MAX:
                return None
            if _ITEMS in {old.op, new.op}:
                old, new = self._item(old, _LAST), self._item(new, _BLOCKS)
                continue
            if old.op == _VALUE and new.op == _VALUE:
                alike = self._are_alike(old.type, new.type)
                same_place = old.place == new.place
                if alike:
                    data = _sample(old.type, new.type, len(body), 0 if same_place else _LEVELS, self._least)
                    body += data
                    differences += not same_place
                    old, new = old.rest, new.rest
                    continue
                if same_place and old.type.kind == new.type.kind == "record":
                    old, new = self._records(old, new)
                    continue
            opened = self._opened(old)
            if opened is not old:
                old = opened
                continue
            opened = self._opened(new)
            if opened is new:
                return _State(old, new, body, differences)
            new = opened

    def _records(self, old: _Need, new: _Need) -> tuple[_Need, _Need]:
        """Go into two records of which one is the other's newer minor."""
        fields, _ = fields_of(old.type, new.type)
        old_rest, new_rest = old.rest, new.rest
        for f, g in reversed(fields):
            old_rest = self._value(f.type, id(f) if g is None else id(g), old_rest)
        for g in reversed(new.type.fields):
            new_rest = self._value(g.type, id(g), new_rest)
        return old_rest, new_rest

    def _opened(self, need: _Need) -> _Need:
        """Go into what starts without a byte of its own; the same object where there is nothing to go into."""
        if need.op != _VALUE:
            return need
        of = need.type
        match of.kind:
            case "record":
                rest = need.rest
                for field in reversed(of.fields):
                    rest = self._value(field.type, id(field), rest)
                return rest
            case "array" | "map":
                return self._need(_BLOCKS, of, 0, need.place, need.rest)
            case "fixed" | "float" | "double":
                return self._need(_BYTES, of, self._least[id(of)], need.place, need.rest)
            case _:
                return need

    def _item(self, need: _Need, behind: int) -> _Need:
        """Go into the next item; `behind` is what is needed behind the last one of a block."""
        if need.op != _ITEMS:
            return need
        of = need.type
        if need.count > 1:
            rest = self._need(_ITEMS, of, need.count - 1, need.place, need.rest)
        else:
            rest = self._need(behind, of, 0, need.place, need.rest)
        item = self._value(of.branches[0], need.place + 1, rest)
        return self._value(_KEY, need.place + 2, item) if of.kind == "map" else item

    # Bytes

    def _advance(self, state: _State) -> list[_State]:
        """Give each way to go on."""
        old, new = state.old, state.new
        position = len(state.body)
        if old.op == _BYTES and new.op == _BYTES:
            count = min(old.count, new.count)
            filler = bytes([_letter(position + index) for index in range(count)])
            differences = state.differences + (old.place != new.place)
            return [_State(self._less(old, count), self._less(new, count), state.body + filler, differences)]
        found: list[_State] = []
        wanted = dict.fromkeys(_wanted(old, new, position) + _wanted(new, old, position))
        for byte in wanted:
            after_old = self._fed(old, byte, new)
            after_new = self._fed(new, byte, new)
            if after_old is not None and after_new is not None:
                differences = state.differences + _means_another(old, new, byte)
                found.append(_State(after_old, after_new, state.body + bytes([byte]), differences))
        return found

    def _less(self, need: _Need, count: int) -> _Need:
        return (
            need.rest
            if need.count == count
            else self._need(need.op, need.type, need.count - count, need.place, need.rest)
        )

    def _fed(self, need: _Need, byte: int, new: _Need) -> _Need | None:
        """Give what is needed behind a byte; None when the byte cannot stand there. `new` is where the newer minor stands."""
        rest = need.rest
        if need.op == _DONE:
            return None
        of = need.type
        if need.op == _BYTES:
            return None if byte > 127 and of.kind == "string" else self._less(need, 1)
        if need.op == _NUMBER:
            if byte > 127:
                return self._less(need, 1) if need.count > 1 else None
            return rest if byte else None  # 0 would be a byte that its number does not need
        if need.op == _VALUE and of.kind in {"int", "long"}:
            return self._need(_NUMBER, of, 3 if of.kind == "int" else 8, need.place, rest) if byte > 127 else rest
        if need.op == _VALUE and of.kind == "boolean":
            return rest if byte < 2 else None
        if byte & 1 or byte > 127:
            return None
        number = byte >> 1
        if need.op == _LAST:
            return None if number else rest
        if need.op == _BLOCKS:
            return self._need(_ITEMS, of, number, need.place, rest) if number else rest
        match of.kind:
            case "enum":
                return rest if number < len(of.symbols) else None
            case "union":
                if number >= len(of.branches):
                    return None
                branch = of.branches[number]
                return self._value(branch, _place_of_branch(need, branch, new), rest)
            case _:
                return self._need(_BYTES, of, number, need.place, rest) if number else rest

    # Meaning

    def _are_alike(self, w: Type, r: Type) -> bool:
        """Tell whether what both types accept takes the same bytes and means the same, as far as the shorter enum or union goes."""
        key = (id(w), id(r))
        if key not in self._alike:
            # The greatest fixed point, as in `resolution`.
            pairs: dict[tuple[int, int], list[tuple[Type, Type]]] = {}
            bad: list[tuple[int, int]] = []
            todo = [(w, r)]
            while todo:
                a, b = todo.pop()
                pair = (id(a), id(b))
                if pair not in pairs:
                    parts = _parts(a, b)
                    pairs[pair] = parts or []
                    todo += pairs[pair]
                    if parts is None:
                        bad.append(pair)
            parents: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for pair, parts in pairs.items():
                self._alike[pair] = True
                for a, b in parts:
                    parents.setdefault((id(a), id(b)), []).append(pair)
            while bad:
                pair = bad.pop()
                if self._alike[pair]:
                    self._alike[pair] = False
                    bad += parents.get(pair, [])
        return self._alike[key]

    def _end(self, state: _State) -> list[SilentChange]:
        """Compare what the body means; where it is the same, perhaps because of the numbers in it, try others."""
        self._ends += 1
        changes = self._compared(state.body)
        if changes or not state.differences:
            return changes
        for index in range(len(state.body)):
            for byte in _NUDGES:
                changes = self._compared(state.body[:index] + bytes([byte]) + state.body[index + 1 :])
                if changes:
                    return changes
        return []

    def _compared(self, body: bytes) -> list[SilentChange]:
        if not self._walkers:
            self._walkers = [Walker(self._old), Walker(self._new)]
        if not all(walker.accepts(body, 0, len(body)) for walker in self._walkers):
            return []
        old, new = decode(self._old, body), decode(self._new, body)
        differences: list[tuple[str, str]] = []
        _compare(old, new, "", False, differences)
        return [SilentChange(path.removeprefix("."), text, body, old.json(), new.json()) for path, text in differences]


def _letter(position: int) -> int:
    return 97 + position % 26


def _place_of_branch(need: _Need, branch: Type, new: _Need) -> int:
    """Tell where an older minor's branch would be read: the branch of the newer one's union at the same place."""
    if need.op == new.op and need.place == new.place and new.type.kind == "union":
        chosen = branch_of(branch, new.type)
        return id(branch) if chosen is None else id(chosen)
    return need.place if need.place == new.place else id(branch)


def _wanted(need: _Need, other: _Need, position: int) -> list[int]:
    """Give the bytes that a parser would like to see next."""
    letter = _letter(position)
    of = need.type
    if need.op == _LAST:
        return [0]
    if need.op == _BLOCKS:
        return [0, 2, 4]
    if need.op == _BYTES:
        return [letter]
    if need.op == _NUMBER:
        return [letter, letter | 0x80]
    match of.kind:
        case "int" | "long":
            return [letter, letter | 0x80] if other.op in {_BYTES, _NUMBER} else [2 + 2 * (position % 28)]
        case "boolean":
            return [1, 0]
        case "enum":
            return [2 * index for index in _symbols_wanted(of, other.type)]
        case "union":
            return list(range(0, 2 * min(len(of.branches), 16), 2))
        case "string" | "bytes":
            gap = other.least - need.least  # what the other one has to read more
            lengths = {*_SHORT_LENGTHS, *range(max(gap - 1, 0), gap + 4)}
            return [2 * length for length in sorted(lengths) if length < 64]
        case _:
            return []


def _symbols_wanted(of: Type, other: Type) -> list[int]:
    """Give the index of a symbol that is another one in the other enum, and of one that is the same."""
    count = min(len(of.symbols), 64)
    if other.kind != "enum":
        return sorted({0, 1, 2, count - 1})
    common = range(min(count, len(other.symbols)))
    differing = [index for index in common if of.symbols[index] != other.symbols[index]][:1]
    return differing + [index for index in common if of.symbols[index] == other.symbols[index]][:1]


def _means_another(old: _Need, new: _Need, byte: int) -> int:
    """Tell whether a byte says another thing to the two parsers, as far as this can be told so early."""
    if old.op == _LAST and new.op == _BLOCKS and old.place == new.place:
        return 0
    if old.op != new.op or old.place != new.place or old.type.kind != new.type.kind:
        return 1
    if old.op != _VALUE:
        return 0
    number = byte >> 1
    match old.type.kind:
        case "enum":
            return int(old.type.symbols[number] != new.type.symbols[number])
        case "union":
            return int(branch_of(old.type.branches[number], new.type) is not new.type.branches[number])
        case _:
            return 1


def _parts(w: Type, r: Type) -> list[tuple[Type, Type]] | None:
    """Give the types that must be alike for two types to be alike; None when they cannot be."""
    if w.empty or r.empty:
        return [] if w.empty and r.empty else None
    if w.kind != r.kind:
        pair = {w.kind, r.kind}
        return [] if (pair == {"int", "long"} or pair == set(_TEXTS)) and not _is_other_logical(w, r) else None
    if _is_other_logical(w, r):
        return None
    match w.kind:
        case "fixed":
            return [] if w.size == r.size else None
        case "enum":
            common = min(len(w.symbols), len(r.symbols))
            return [] if common and w.symbols[:common] == r.symbols[:common] else None
        case "array" | "map":
            return [(w.branches[0], r.branches[0])]
        case "union":
            common = min(len(w.branches), len(r.branches))
            if any(branch_of(w.branches[index], r) is not r.branches[index] for index in range(common)):
                return None
            return [(w.branches[index], r.branches[index]) for index in range(common)]
        case "record":
            fields = [(f, g) for f, g in fields_of(w, r)[0] if not f.type.empty]
            readers = [g for g in r.fields if not g.type.empty]
            if len(fields) != len(readers):
                return None
            if any(fields[index][1] is not g for index, g in enumerate(readers)):
                return None
            return [(fields[index][0].type, g.type) for index, g in enumerate(readers)]
        case _:
            return []


def _is_other_logical(w: Type, r: Type) -> bool:
    return bool(w.logical and r.logical) and (w.logical != r.logical or w.scale != r.scale)


def _sample(w: Type, r: Type, position: int, varied: int, least: dict[int, int]) -> bytes:
    """Write a value of two alike types: the shortest, or one that hardly another place or default has, with items on so many levels."""
    match w.kind:
        case "record":
            data = b""
            for f, g in fields_of(w, r)[0]:
                if g is not None:
                    data += _sample(f.type, g.type, position + len(data), varied, least)
            return data
        case "union":
            common = min(len(w.branches), len(r.branches))
            lengths = [least[id(w.branches[index])] for index in range(common)]
            index = lengths.index(min(lengths))
            if varied > 1 and lengths[-1] < ENDLESS:
                index = common - 1
            return bytes([2 * index]) + _sample(w.branches[index], r.branches[index], position + 1, varied - 1, least)
        case "boolean":
            return bytes([position & 1 if varied > 0 else 0])
        case "int" | "long":
            return bytes([2 + 2 * (position % 28) if varied > 0 else 0])
        case "enum":
            symbols = min(len(w.symbols), len(r.symbols), 64)
            return bytes([2 * (position % symbols) if varied > 0 else 0])
        case "string" | "bytes":
            return bytes([2, _letter(position)]) if varied > 0 else b"\x00"
        case "array" | "map":
            if varied <= 1 or least[id(w.branches[0])] == ENDLESS:
                return b"\x00"
            head = b"\x02" if w.kind == "array" else bytes([2, 2, _letter(position)])
            return head + _sample(w.branches[0], r.branches[0], position + len(head), varied - 1, least) + b"\x00"
        case "null":
            return b""
        case _:
            return bytes([_letter(position + index) if varied > 0 else 0 for index in range(least[id(w)])])


def _compare(old: Value, new: Value, path: str, in_union: bool, found: list[tuple[str, str]]) -> None:
    """Note where a value of the newer minor is not what the older one said.

    Only what would mislead counts: a number of another width with the same value means the same, so does a symbol that the newer
    minor takes for its default.
    """
    w, r = old.type, new.type
    if len(found) == DIFFERENCES_MAX or (w.empty and r.empty):
        return
    if w.kind == "union":
        _compare(old.items[0], new, path, True, found)
        return
    if r.kind == "union":
        _compare(old, new.items[0], f"{path}<{new.items[0].type.label}>", True, found)
        return
    named_alike = not in_union or not w.name or not r.name or branch_of(w, _union_of(r)) is not None
    if not named_alike or _is_other_logical(w, r):
        found.append((path, _difference(old, new)))
        return
    same = False
    if w.kind == r.kind == "record":
        _compare_records(old, new, path, found)
        return
    if w.kind == r.kind and w.kind in {"array", "map"}:
        same = len(old.items) == len(new.items) and old.keys == new.keys
        if same:
            for index, item in enumerate(old.items):
                _compare(item, new.items[index], path + ("[]" if w.kind == "array" else "{}"), False, found)
    elif w.kind in _NUMBERS and r.kind in _NUMBERS:
        same = repr(_number(old)) == repr(_number(new)) or _number(old) == _number(new)  # as NaN does not equal itself
    elif w.kind in _TEXTS and r.kind in _TEXTS:
        same = old.data == new.data
    elif w.kind == r.kind == "enum":
        symbol = w.symbols[old.number]
        taken = symbol if symbol in r.symbols else r.symbol_default
        same = taken == r.symbols[new.number]
    elif w.kind == r.kind:
        same = old.number == new.number and old.data == new.data
    if not same:
        found.append((path, _difference(old, new)))


def _compare_records(old: Value, new: Value, path: str, found: list[tuple[str, str]]) -> None:
    fields, _ = fields_of(old.type, new.type)
    written: dict[int, Value] = {}
    for index, (_f, g) in enumerate(fields):
        if g is not None:
            written[id(g)] = old.items[index]
    for g, value in new.fields():
        place = f"{path}.{g.name}"
        if id(g) in written:
            _compare(written[id(g)], value, place, False, found)
        elif not g.type.empty and not (g.defaulted and _is_default(g, value)):
            found.append((place, f"nothing was written, {_shown(value)} would be read"))


def _is_default(field: Field, value: Value) -> bool:
    told = value.json()
    if value.type.kind == "union":  # a default is one of the first branch, without its name
        told = None if value.number else value.items[0].json()
        if value.number:
            return False
    return bool(told == field.default)


def _union_of(branch: Type) -> Type:
    union = Type("union")
    union.branches.append(branch)
    return union


def _number(value: Value) -> float:
    return value.number if value.type.kind in {"int", "long"} else value.real


def _difference(old: Value, new: Value) -> str:
    return f"{_shown(old)} was written, {_shown(new)} would be read"


def _shown(value: Value) -> str:
    text = json.dumps(value.json(), ensure_ascii=False)
    return f"{shown(value.type)} {text if len(text) <= 60 else text[:57] + '...'}"
