"""Silent changes of meaning: bare data of an older minor version that are valid under a newer one and mean something else.

A bare datum does not carry the version that wrote it. The newest version that its bytes fit judges it (`rule.py`). So data
of an older publisher may be misread, though each of the seven compatibility modes is content. Examples are two fields that
change places, a symbol put before others, and a `float` that becomes an `int`. A field put in front of a string is another:
the string can swallow the bytes after it.

Such a body is searched for, not guessed from a list of kinds of changes. Two parsers, one for each version, read the same
bytes, which are made up on the way. At each step both report which bytes would help them. Each byte that both accept is a
way to go on, the shortest way first. Where both stand before types that read the same bytes to the same meaning, they skip
them in one step. A body at whose end both are done is decoded by both and compared. So every refusal shows its body. A
change that only appears dangerous is not refused: a field appended at the end always needs bytes that no older body has.

The search has limits. It finds no body of more than BODY_BYTES_MAX and no string of 64 bytes or more. It ends after
STEPS_MAX steps. An older publisher's arrays and maps are taken to be one block without a stated
size, as nearly all writers make them.
"""

from heapq import heappop, heappush
from typing import Final, NamedTuple, final

from maxam.avro.data import decode
from maxam.avro.meaning import TEXTS, differences, is_other_logical
from maxam.avro.resolution import Pair, branch_of, fields_of, leading_to
from maxam.avro.schema import Schema, Type
from maxam.avro.source import Json
from maxam.avro.walker import Walker
from maxam.avro.witness import ENDLESS, least_bytes, most_bytes

STEPS_MAX: Final = 2000  # some 60 ms in Python, for two minors that differ before the end and have no such body
BODY_BYTES_MAX: Final = 512
ENDS_MAX: Final = 32  # bodies that turn out to mean the same

_LEVELS: Final = 3  # of items in values that are made up
_SHORT_LENGTHS: Final = (0, 1, 2, 3)
_NUDGES: Final = (0, 1, 2, 4, 98, 99)


class SilentChange(NamedTuple):
    """A change that gives an older version's bare data another meaning under a newer one, without an error.

    Attributes:
        path: Place in the newer schema, as in `Incompatibility`.
        problem: The new meaning and the old one.
        body: A datum that the older version wrote and the newer one accepts.
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
    """Search for a bare datum of an older version that is valid under a newer one and means something else there.

    Returns:
        The changes of meaning of one such datum. Empty if there is none.
    """
    return _Search(old.type, new.type).run()


_DONE: Final = 0
_VALUE: Final = 1  # of a type
_BLOCKS: Final = 2  # of an array or map: how many items follow
_ITEMS: Final = 3  # of an array or map: the number of items to come
_BYTES: Final = 4  # a number of bytes, of a text or not
_NUMBER: Final = 5  # the rest of a number of several bytes
_LAST: Final = 6  # of an array or map: that no items follow


@final
class _Need:
    """The unread rest of a parser: one thing, and the rest after it. Equal needs are the same object.

    Attributes:
        op: Kind of the thing.
        type: The type of a value, or the array or map of blocks and items.
        count: Number of items or bytes. For a number, the maximum of its bytes.
        place: Place of the value in the newer version, equal for two parsers that read the same thing. It has no meaning
            for people.
        rest: The next need. The last one refers to itself.
        least: Minimum of the bytes of all of it.
        most: Maximum of the bytes of all of it.
        number: Number of this object.
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
    """Two parsers after the same bytes."""

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
        self._alike: Final[dict[Pair, bool]] = {}
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
                agreed = self._agree(state)
                if agreed is None:
                    continue
                if agreed.old.op == _DONE and agreed.new.op == _DONE:
                    changes = self._end(agreed)
                    if changes or self._ends > ENDS_MAX:
                        return changes
                    continue
                low, high = sorted((agreed.old.least, agreed.new.least))
                pushed += 1
                heappush(waiting, (len(agreed.body) + 2 * high - low, -agreed.differences, pushed, agreed))
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
        """Return True if one of two records only has more fields at its end, the usual change: no body is of both."""
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

    def _agree(self, state: _State) -> _State | None:
        """Take both parsers over all that they read alike, to the next byte that decides. Return None if not both can end."""
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
        """Open a need that starts without a byte of its own. Return the same object if there is nothing to open."""
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
        """Go into the next item. `behind` is the need after the last item of a block."""
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
        """Return the states after each byte that both parsers accept."""
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
        """Return the need after a byte, or None if the byte is invalid there. `new` is the newer version's need."""
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
        """Return True if both types read the same bytes to the same meaning, as far as the shorter enum or union goes."""
        key = (id(w), id(r))
        if key not in self._alike:
            pairs: dict[Pair, list[Pair]] = {}
            unlike: list[Pair] = []
            todo = [(w, r)]
            while todo:
                a, b = todo.pop()
                pair = (id(a), id(b))
                if pair not in pairs:
                    parts = _parts(a, b)
                    pairs[pair] = [(id(c), id(d)) for c, d in parts or ()]
                    todo += parts or ()
                    if parts is None:
                        unlike.append(pair)
            other = leading_to(unlike, pairs)
            for pair in pairs:
                self._alike[pair] = pair not in other
        return self._alike[key]

    def _end(self, state: _State) -> list[SilentChange]:
        """Compare the two meanings of the body. If they are the same, perhaps because of its numbers, try other numbers."""
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
        found = differences(old, new)
        return [SilentChange(path, text, body, old.json(), new.json()) for path, text in found]


def _letter(position: int) -> int:
    return 97 + position % 26


def _place_of_branch(need: _Need, branch: Type, new: _Need) -> int:
    """Return where an older version's branch would be read: the branch of the newer one's union at the same place."""
    if need.op == new.op and need.place == new.place and new.type.kind == "union":
        chosen = branch_of(branch, new.type)
        return id(branch) if chosen is None else id(chosen)
    return need.place if need.place == new.place else id(branch)


def _wanted(need: _Need, other: _Need, position: int) -> list[int]:
    """Return the bytes that help a parser next."""
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
    """Return the index of a symbol that is another one in the other enum, and of one that is the same."""
    count = min(len(of.symbols), 64)
    if other.kind != "enum":
        return sorted({0, 1, 2, count - 1})
    common = range(min(count, len(other.symbols)))
    differing = [index for index in common if of.symbols[index] != other.symbols[index]][:1]
    return differing + [index for index in common if of.symbols[index] == other.symbols[index]][:1]


def _means_another(old: _Need, new: _Need, byte: int) -> int:
    """Return True if a byte has different meanings to the two parsers, as far as this is known so early."""
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
    """Return the pairs of types that must be alike for two types to be alike, or None if these cannot be."""
    if w.empty or r.empty:
        return [] if w.empty and r.empty else None
    if w.kind != r.kind:
        pair = {w.kind, r.kind}
        return [] if (pair == {"int", "long"} or pair == set(TEXTS)) and not is_other_logical(w, r) else None
    if is_other_logical(w, r):
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


def _sample(w: Type, r: Type, position: int, varied: int, least: dict[int, int]) -> bytes:
    """Write a value of two alike types, with items on `varied` levels: the shortest, or one that is rare elsewhere."""
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
