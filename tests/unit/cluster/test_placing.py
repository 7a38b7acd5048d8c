"""The place of a journal in the log: for all short logs, however trimmed, and all journals."""

from itertools import product

import pytest

from maxam.cluster.entry import BLOCK, PROOF, Entry, same_position
from maxam.cluster.log import Head, LogFullError, LogLostError, LogTrimmedError
from maxam.cluster.member import SILENT_S
from maxam.cluster.placing import BEHIND, FOLLOW, FORKED, Place, find_place
from maxam.cluster.swap import PAUSE_S_MAX, swap_until_known
from maxam.cluster.trimming import Trimming
from maxam.journal.encoding import START, Position

MARKER = bytes(16)
STEPS = ("change", "acks", "proof")  # a block with a change, a block without, an entry without block


def log_of(steps: tuple[str, ...], base: Position = START) -> list[Entry]:
    """Return the entries of a log; that of index 1 first."""
    entries: list[Entry] = []
    position = base
    for index, step in enumerate(("proof", *steps), 1):
        after = position
        if step != "proof":
            after = Position(position.revision + (step == "change"), index, index * 1000)
        entries.append(Entry(PROOF if step == "proof" else BLOCK, False, position, after, MARKER, b"", index, 1))
        position = after
    return entries


class Held:
    """A log that has forgotten its first entries."""

    def __init__(self, entries: list[Entry], trimmed: int) -> None:
        self.entries = entries
        self.trimmed = trimmed
        self.head = Head(bytes(16), 1, len(entries), "a", entries[-1].after, 1, 0, bytes(8), 9)

    def at(self, index: int) -> Entry:
        """Return an entry."""
        assert 1 <= index <= len(self.entries)
        if index <= self.trimmed:
            raise LogTrimmedError(self.trimmed + 1)
        return self.entries[index - 1]

    def place(self, position: Position, hint: int = 0) -> Place:
        """Return the place of a journal."""
        return find_place(position, hint, self.head, self.at)


@pytest.mark.parametrize("length", range(6))
def test_a_journal_that_is_a_beginning_of_the_log_goes_on_without_gap_and_repetition(length: int) -> None:
    """Wherever the log was trimmed, and whatever the hint is."""
    for steps in product(STEPS, repeat=length):
        entries = log_of(steps)
        for trimmed, had, hint in product(range(length + 2), range(length + 2), range(length + 2)):
            log = Held(entries, trimmed)
            position = entries[had - 1].after if had else START
            place = log.place(position, min(hint, had))
            missing = [e.index for e in entries[had:] if not same_position(e.before, e.after)]
            if place.outcome == BEHIND:
                assert any(index <= trimmed for index in missing) or had < trimmed
                continue
            assert place.outcome == FOLLOW
            assert place.first > trimmed
            repeated = entries[place.first - 1 : had]
            assert all(same_position(e.before, e.after) for e in repeated)
            assert not missing or place.first <= missing[0]
            if (
                not trimmed or entries[trimmed - 1].kind == BLOCK
            ):  # as it is trimmed: nothing is missing, schemas included
                assert place.first <= had + 1


@pytest.mark.parametrize("length", range(5))
def test_a_journal_that_is_no_beginning_of_the_log_is_forked(length: int) -> None:
    """It is behind only where the log cannot know."""
    for steps in product(STEPS, repeat=length):
        entries = log_of(steps)
        for trimmed, revision in product(range(length + 2), range(length + 3)):
            place = Held(entries, trimmed).place(Position(revision, 5, 77))
            begins = entries[trimmed].before if trimmed < len(entries) else entries[-1].after
            unknown = trimmed and (revision, 5) <= (begins.revision, begins.accepted_at_us)
            assert place == Place(BEHIND if unknown else FORKED)


def test_an_empty_journal_is_behind_a_log_that_begins_elsewhere() -> None:
    """The log of a cluster that was made from a journal begins at its end."""
    assert Held(log_of(("change",), Position(90, 1, 1)), 0).place(START) == Place(BEHIND)
    assert Held(log_of(("change",)), 0).place(START) == Place(FOLLOW, 1)


def test_a_journal_ahead_of_the_log_is_forked() -> None:
    """Whether by a change or by ACKs."""
    entries = log_of(("change", "acks", "change"))
    short = Held(entries[:3], 0)
    assert short.place(entries[3].after) == Place(FORKED)
    assert Held(entries[:2], 0).place(entries[2].after) == Place(FORKED)


def test_the_log_forgets_what_is_old_and_synced_in_enough_journals() -> None:
    """Neither what is young, nor what too few have."""
    for copies, a, b, c in product((1, 2, 3), range(0, 12, 3), range(0, 12, 3), range(0, 12, 3)):
        trimming = Trimming(copies, 60.0)
        for index in range(1, 11):
            trimming.seen(index * 10.0, index)
        announce(trimming, 114.0, b=b, c=c)
        last = trimming.due(115.0, ("a", a))
        assert last == min(5, sorted((a, b, c))[-copies])
        assert trimming.due(115.0, ("a", a)) == 0
    trimming = Trimming(2, 60.0)
    announce(trimming, 1e9, b=100)
    assert trimming.due(1e9, ("a", 100)) == 0


def announce(trimming: Trimming, now_s: float, **synced: int) -> None:
    """Have members announce that their journals are synced up to these indexes, since the announcements were read before."""
    trimming.announced(now_s, {})
    trimming.announced(now_s, {name: (1, index) for name, index in synced.items()})


def test_the_log_forgets_nothing_while_members_are_missing() -> None:
    """Two copies need two members."""
    trimming = Trimming(2, 0.0)
    trimming.seen(1.0, 1)
    assert trimming.due(9.0, ("a", 5)) == 0
    announce(trimming, 9.0, b=1)
    assert trimming.due(9.0, ("a", 5)) == 1


def test_an_announcement_counts_from_when_it_may_have_been_made() -> None:
    """One that is read late may be of a member that has lost its disk since."""
    for first, silent_s in product((True, False), (0.0, 1.0, SILENT_S - 0.5, SILENT_S, 2 * SILENT_S)):
        trimming = Trimming(2, 0.0)
        trimming.seen(1.0, 1)
        if not first:
            trimming.announced(100.0, {"a": (1, 1), "b": (1, 0)})
        read_s = 100.0 + silent_s
        trimming.announced(read_s, {"a": (2, 1), "b": (2, 1)})
        assert trimming.due(read_s, ("a", 1)) == (0 if first or silent_s >= SILENT_S else 1)


def test_an_announcement_that_stays_the_same_ends_to_count() -> None:
    """A member that is silent counts for `SILENT_S`, and again from its next announcement on."""
    for later_s in (0.0, SILENT_S - 1.5, SILENT_S - 0.5, SILENT_S + 0.5):
        trimming = Trimming(2, 0.0)
        trimming.seen(1.0, 1)
        announce(trimming, 100.0, b=1)
        for second in range(int(later_s) + 1):
            trimming.announced(100.0 + second, {"b": (1, 1)})
        counts = later_s < SILENT_S
        assert trimming.due(100.0 + later_s, ("a", 1)) == counts
        trimming.announced(107.0, {"b": (2, 1)})
        assert trimming.due(107.5, ("a", 1)) == (not counts)


def test_members_that_do_not_exist_are_not_waited_for() -> None:
    """An entry needs `copies_min` copies, or one of each member if there are fewer. Silent members exist, and have none."""
    for copies_min, count, silent in product((1, 2, 3), range(1, 4), range(3)):
        members = count + silent
        needed = min(copies_min, max(members, 1))
        for synced in product(range(4), repeat=count):
            trimming = Trimming(copies_min, 0.0)
            for index in (1, 2, 3):
                trimming.seen(float(index), index)
            expected = max((one for one in range(4) if sum(has >= one for has in synced) >= needed), default=0)
            announce(trimming, 9.0, **dict(zip("bc", synced[1:], strict=False)))
            assert trimming.due(9.0, ("a", synced[0]), members) == expected


def test_a_swap_is_repeated_until_its_outcome_is_known() -> None:
    """An unknown outcome is no success and no refusal, and pauses grow."""
    head = Held(log_of(()), 0).head
    for end in (None, LogFullError("full")):
        answers: list[Exception | None] = [*[LogLostError("lost")] * 7, end]
        pauses: list[float] = []

        def swap(answers: list[Exception | None] = answers) -> Head:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            return head

        if end is None:
            assert swap_until_known(swap, pauses.append) is head
        else:
            with pytest.raises(LogFullError):
                swap_until_known(swap, pauses.append)
        assert len(pauses) == 7
        assert pauses == sorted(pauses)
        assert pauses[-1] == PAUSE_S_MAX
