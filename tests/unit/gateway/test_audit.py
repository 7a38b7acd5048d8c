"""The audit log: its chain, how floods are counted, and what it does when the disk fails."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.audit_chain import GENESIS, Anchor, Checker, Line, digest, file_name, read_folder, write_line
from maxam.config import AuditSettings
from maxam.gateway.audit import ADMIN, CONNECTED, ENROLMENT, REFUSED, SEND_REJECTED, Audit
from maxam.gateway.audit_files import CUT, LOST, RETRY_S, AuditFiles
from maxam.journal.disk import OsDisk
from maxam.records import Identity, Rejection

ANNA = Identity("anna", "5f" * 32)
NOW = "2026-11-22T00:00:00.000000Z"


def checked(folder: Path, *anchors: Anchor) -> tuple[list[Line], Checker]:
    """Read and check a folder."""
    checker = Checker(anchors)
    return list(read_folder(folder, checker)), checker


def facts(folder: Path) -> list[dict[str, Any]]:
    """Read a folder whose chain holds, and return the content of its lines."""
    lines, checker = checked(folder)
    assert checker.proof.breaks == []
    return [line.facts for line in lines]


def write(folder: Path, files: list[list[bytes]]) -> None:
    """Write files of lines, each under the name of its first line as it was made."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for at, lines in enumerate(files):
        (folder / file_name(1 + 4 * at)).write_bytes(b"".join(line + b"\n" for line in lines))


def chain(count: int) -> list[bytes]:
    """Make a chain of lines."""
    lines: list[bytes] = []
    previous = GENESIS
    for sequence in range(1, count + 1):
        lines.append(write_line(sequence, previous, {"event": "e", "at": sequence}))
        previous = digest(lines[-1])
    return lines


TWELVE = chain(12)

changes = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, 10), st.integers(0, 60), st.integers(1, 255)),
    st.tuples(st.just("remove"), st.integers(0, 10), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("swap"), st.integers(0, 11), st.integers(0, 11), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(0, 10), st.integers(0, 11), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 11), st.integers(1, 20), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(change=changes)
def test_any_change_before_the_last_line_is_found(
    tmp_path_factory: pytest.TempPathFactory, change: tuple[str, int, int, int]
) -> None:
    """Lines that are edited, removed, exchanged, repeated or added break the chain, at the line of the change or the next one."""
    kind, at, other, mask = change
    lines = list(TWELVE)
    match kind:
        case "edit":
            edited = bytearray(lines[at])
            edited[other % len(edited)] ^= mask
            if b"\n" in edited:
                return
            lines[at] = bytes(edited)
        case "remove":
            if at + other > len(lines) - 1:
                return  # the end: see the anchor
            del lines[at : at + other]
        case "swap":
            lines[at], lines[other] = lines[other], lines[at]
        case "repeat":
            lines.insert(at, lines[other])
        case _:
            lines.insert(at, write_line(other, digest(lines[at - 1]) if at else GENESIS, {"event": "forged"}))
    if lines == TWELVE:
        return
    folder = tmp_path_factory.mktemp("audit")
    write(folder, [lines[:4], lines[4:8], lines[8:]])
    _, checker = checked(folder)
    assert checker.proof.breaks
    first = min(n for n, (a, b) in enumerate(zip([*lines, b""], [*TWELVE, b""], strict=False)) if a != b)
    found = checker.proof.breaks[0]
    place = (["audit-" + f"{1 + 4 * n:020d}.jsonl" for n in range(3)].index(found.file)) * 4 + found.line - 1
    assert place in (first, first + 1)


def test_a_whole_chain_holds(tmp_path: Path) -> None:
    """Over files, and when the oldest ones were rotated away."""
    write(tmp_path, [TWELVE[:4], TWELVE[4:8], TWELVE[8:]])
    _, checker = checked(tmp_path)
    proof = checker.proof
    assert (proof.breaks, proof.files, proof.lines, proof.first) == ([], 3, 12, 1)
    assert proof.head == Anchor(12, digest(TWELVE[-1]))
    (tmp_path / file_name(1)).unlink()
    _, checker = checked(tmp_path)
    assert (checker.proof.breaks, checker.proof.first) == ([], 5)


def test_a_file_that_is_missing_in_the_middle_is_found(tmp_path: Path) -> None:
    """Lines missing at the beginning of the oldest file are found too, by its name."""
    write(tmp_path, [TWELVE[:4], TWELVE[4:8], TWELVE[8:]])
    (tmp_path / file_name(5)).unlink()
    found = checked(tmp_path)[1].proof.breaks[0]
    assert (found.file, found.line) == (file_name(9), 1)
    assert "4 lines are missing" in found.problem
    write(tmp_path, [TWELVE[1:4], TWELVE[4:8]])
    found = checked(tmp_path)[1].proof.breaks[0]
    assert (found.file, found.line) == (file_name(1), 1)


def test_only_an_anchor_tells_that_the_end_is_missing_or_was_written_anew(tmp_path: Path) -> None:
    """A chain that ends early, or that was written again from some line on, holds by itself."""
    anchor = Anchor(12, digest(TWELVE[-1]))
    write(tmp_path, [TWELVE[:4], TWELVE[4:8], TWELVE[8:]])
    assert checked(tmp_path, anchor)[1].proof.breaks == []
    write(tmp_path, [TWELVE[:4], TWELVE[4:8], TWELVE[8:10]])
    assert checked(tmp_path)[1].proof.breaks == []
    assert "the end is missing" in checked(tmp_path, anchor)[1].proof.breaks[0].problem
    forged = TWELVE[:10]
    for sequence in (11, 12):
        forged.append(write_line(sequence, digest(forged[-1]), {"event": "forged"}))
    write(tmp_path, [forged[:4], forged[4:8], forged[8:]])
    assert checked(tmp_path)[1].proof.breaks == []
    found = checked(tmp_path, anchor)[1].proof.breaks[0]
    assert (found.file, found.line) == (file_name(9), 4)


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[]", '{"sequence":true,"previous":""}', "[" * 100_000, '{"sequence":1e999}', "\xff"]
)
def test_what_is_no_line_is_told(tmp_path: Path, text: str) -> None:
    """A check of a file with any content ends with an answer."""
    write(tmp_path, [[*TWELVE[:2], text.encode("latin-1"), *TWELVE[2:4]]])
    found = checked(tmp_path)[1].proof.breaks[0]
    assert (found.file, found.line) == (file_name(1), 3)


# Writing.


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Give the time."""
        return self.now_s


def told(folder: Path, tell: Callable[[Audit, Clock], None], **changes: Any) -> list[dict[str, Any]]:
    """Run an audit log for a while, and return the content of its lines."""
    clock = Clock()
    audit = Audit(AuditSettings(**changes), folder, OsDisk(), clock)
    audit.start()
    tell(audit, clock)
    audit.close(10)
    return facts(folder)


def test_a_line_says_who_what_and_why_and_nothing_can_forge_one(tmp_path: Path) -> None:
    """With any name of a client, a line is one line of ASCII without control characters."""
    evil = 'x"\n{"sequence":1}\u202e\x00\x7f\udc80' + "y" * 5000

    def tell(audit: Audit, _: Clock) -> None:
        audit.record(
            CONNECTED, "accepted", Identity(evil, "5f" * 32), "10.0.0.1:5", session=evil, nothing=None, count=3
        )

    (line,) = told(tmp_path / "a" / "b", tell)
    raw = (tmp_path / "a" / "b" / file_name(1)).read_bytes()
    assert raw.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in raw[:-1])
    assert len(raw) < 5000
    assert line["principal"].startswith(evil[:40])
    assert {name: line[name] for name in ("sequence", "event", "outcome", "fingerprint", "address", "count")} == {
        "sequence": 1,
        "event": "connected",
        "outcome": "accepted",
        "fingerprint": "5f" * 32,
        "address": "10.0.0.1:5",
        "count": 3,
    }
    assert "nothing" not in line


def test_a_flood_of_strangers_is_bounded_and_counted(tmp_path: Path) -> None:
    """However many come from however many addresses, a minute has a bounded number of lines, and no event is forgotten."""

    def tell(audit: Audit, clock: Clock) -> None:
        for n in range(50_000):
            audit.record(REFUSED, "refused", address=f"10.{n % 200}.0.1:{n % 60_000}", reason=f"reason {n % 7}")
        audit.record(CONNECTED, "accepted", ANNA, "10.0.0.1:5")  # others have lines of their own
        clock.now_s += 61
        audit.record(REFUSED, "refused", address="10.0.0.1:5", reason="later")

    lines = told(tmp_path, tell)
    refused = [line for line in lines if line["event"] == REFUSED]
    assert len(lines) < 120
    assert sum(line.get("count", 1) for line in refused) == 50_001
    assert [line["principal"] for line in lines if line["event"] == CONNECTED] == ["anna"]
    counted = [line for line in refused if "count" in line]
    assert all(line["first"] <= line["last"] for line in counted)
    assert lines[-1]["reason"] == "later"


def test_no_flood_hides_what_became_of_tokens_and_renewals(tmp_path: Path) -> None:
    """Masses of requests by unknown clients, or by the principal itself, leave a line to each token and renewal. Refusals are part of the flood."""

    def tell(audit: Audit, _clock: Clock) -> None:
        for n in range(1000):
            audit.record(ENROLMENT, "refused", address=f"10.0.0.{n % 200}:1", reason="unknown")
            audit.record(CONNECTED, "accepted", ANNA, "10.0.0.1:5")
        audit.record(ENROLMENT, "token-revoked", id="5eed", enrols="meters")
        audit.record(ENROLMENT, "renewed", ANNA, renews="5f" * 32)

    lines = told(tmp_path, tell)
    assert [line["id"] for line in lines if line["outcome"] == "token-revoked"] == ["5eed"]
    assert [line["renews"] for line in lines if line["outcome"] == "renewed"] == ["5f" * 32]
    assert len(lines) < 200


def test_rejected_sends_are_counted_from_the_second_of_a_kind_on(tmp_path: Path) -> None:
    """The first one in full, without its body; the others by their number, per minute, principal and result."""

    def tell(audit: Audit, clock: Clock) -> None:
        for minute in range(2):
            for n in range(1000):
                rejection = Rejection("invalid-value", f"field x: {minute}.{n}", "t.T_v1")
                audit.rejected(ANNA, b"X/a\n%d" % n, "rejected-invalid", rejection)
            clock.now_s += 61
            audit.tick()

    lines = told(tmp_path, tell)
    assert [line.get("count") for line in lines] == [None, 999, None, 999]
    assert [line["event"] for line in lines] == [SEND_REJECTED] * 4
    assert lines[0]["destination"] == "X/a\n0"
    assert lines[0]["reason"] == "field x: 0.0"
    assert all(line["principal"] == "anna" and line["result"] == "invalid-value" for line in lines)


def test_unknown_clients_count_as_strangers(tmp_path: Path) -> None:
    """A client with many certificates gets no further lines for them."""

    def tell(audit: Audit, _: Clock) -> None:
        for n in range(5000):
            audit.record(CONNECTED, "accepted", Identity(f"fingerprint:{n:064x}", f"{n:064x}"), "10.0.0.1:5")

    assert len(told(tmp_path, tell)) <= 61


def test_operators_have_more_lines_for_what_they_do_and_no_more_for_what_they_are_refused(tmp_path: Path) -> None:
    """Each deletion of a few hundred has a line of its own. A caller without the right cannot fill the log with requests."""

    def tell(audit: Audit, _: Clock) -> None:
        for n in range(500):
            audit.record(ADMIN, "refused", ANNA, "10.0.0.1:5", "forbidden", path=f"/{n}")
        for n in range(500):
            audit.record(ADMIN, "done", ANNA, "10.0.0.1:5", path=f"/{n}")

    lines = told(tmp_path, tell)
    assert sum(line["outcome"] == "refused" for line in lines) == 61
    assert sum(line["outcome"] == "done" for line in lines) == 500


def test_files_follow_each_other_and_the_oldest_go(tmp_path: Path) -> None:
    """The folder stays below its bound, and the chain goes on over files and restarts."""
    for _ in range(3):
        files = AuditFiles(tmp_path, OsDisk(), AuditSettings(file_bytes_max=65_536, files_max=3))
        for n in range(200):
            files.write([{"at": NOW, "event": "e", "filler": "x" * 2000}] * 2, float(n), NOW)
        files.close(200.0)
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert len(names) == 3
    assert all((tmp_path / name).stat().st_size <= 65_536 for name in names)
    lines = facts(tmp_path)
    assert lines[-1]["sequence"] == 1200
    assert lines[0]["sequence"] == int(names[0][6:26])


def test_a_file_is_followed_by_the_next_one_at_its_age(tmp_path: Path) -> None:
    """Its time is set by the test."""
    files = AuditFiles(tmp_path, OsDisk(), AuditSettings(file_age_s_max=100))
    for now_s in (0.0, 50.0, 99.0, 101.0, 150.0):
        files.write([{"event": "e"}], now_s, NOW)
    files.close(200.0)
    assert [path.name for path in sorted(tmp_path.glob("*.jsonl"))] == [file_name(1), file_name(4)]


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_an_unfinished_line_is_cut_off_and_the_log_says_so(tmp_path: Path, cut: int) -> None:
    """A crash in the middle of a line costs that line; the chain goes on from the one before."""
    files = AuditFiles(tmp_path, OsDisk(), AuditSettings())
    files.write([{"event": "first"}, {"event": "second"}, {"event": "third"}], 0.0, NOW)
    files.close(0.0)
    path = tmp_path / file_name(1)
    os.truncate(path, path.stat().st_size - cut)
    _, checker = checked(tmp_path)
    assert checker.proof.breaks == []
    assert checker.proof.unfinished_bytes > 0
    files = AuditFiles(tmp_path, OsDisk(), AuditSettings())
    files.write([{"event": "fourth"}], 1.0, NOW)
    files.close(1.0)
    assert [line["event"] for line in facts(tmp_path)] == ["first", "second", CUT, "fourth"]


def test_a_file_whose_first_line_was_never_finished_goes(tmp_path: Path) -> None:
    """A crash in the middle of a rotation does not break the chain."""
    write(tmp_path, [TWELVE[:4]])
    (tmp_path / file_name(5)).write_bytes(TWELVE[4][:10])
    files = AuditFiles(tmp_path, OsDisk(), AuditSettings())
    files.write([{"event": "next"}], 0.0, NOW)
    files.close(0.0)
    assert [line["event"] for line in facts(tmp_path)] == ["e"] * 4 + [CUT, "next"]


class FullDisk:
    """The real disk, on which writing fails after some bytes while there is no room."""

    def __init__(self) -> None:
        self.room: int | None = None
        self._disk = OsDisk()

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        """Write as much as there is room for."""
        if self.room is None:
            return self._disk.pwrite(handle, data, offset)
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self._disk.pwrite(handle, data[: self.room], offset)
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_is_told_once_counted_and_stands_in_the_log_afterwards(
    tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing waits for it, and half a line is cut off again. Lost events have a line of their own."""
    disk = FullDisk()
    files = AuditFiles(tmp_path, disk, AuditSettings())
    files.write([{"event": "before"}], 0.0, NOW)
    disk.room = room
    for n in range(5):
        files.write([{"event": f"lost {n}"}] * 3, float(n), NOW)
    assert (files.lost, bool(files.failure)) == (15, True)
    assert [line["event"] for line in facts(tmp_path)] == ["before"]
    disk.room = None
    files.write([{"event": "still lost"}], 10.0, NOW)  # it is not asked all the time
    files.write([{"event": "after"}], RETRY_S + 1, NOW)
    files.close(RETRY_S + 1)
    assert files.failure == ""
    lines = facts(tmp_path)
    assert [line["event"] for line in lines] == ["before", LOST, "after"]
    assert lines[1]["count"] == 16
    assert sum("audit-failed" in record.getMessage() for record in caplog.records) == 1


def test_two_gateways_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """The second one reports it, and counts."""
    first, second = (AuditFiles(tmp_path, OsDisk(), AuditSettings()) for _ in range(2))
    first.write([{"event": "e"}], 0.0, NOW)
    second.write([{"event": "e"}], 0.0, NOW)
    assert "another process" in second.failure
    assert len(facts(tmp_path)) == 1
    first.close(1.0)
    second.write([{"event": "e"}], RETRY_S + 1, NOW)
    second.close(RETRY_S + 1)
    assert [line["event"] for line in facts(tmp_path)] == ["e", LOST, "e"]


def test_without_files_nothing_is_kept(tmp_path: Path) -> None:
    """`files_max = 0` turns it off."""
    audit = Audit(AuditSettings(files_max=0), tmp_path / "none", OsDisk())
    audit.start()
    audit.record(CONNECTED, "accepted", ANNA)
    audit.rejected(ANNA, b"X/a", "rejected-invalid", Rejection("invalid-value", ""))
    audit.close()
    assert not (tmp_path / "none").exists()


def test_the_last_line_that_is_damaged_is_kept_as_evidence(tmp_path: Path) -> None:
    """The log continues after it, and verifying shows the damage."""
    write(tmp_path, [[*TWELVE[:3], b"damaged"]])
    files = AuditFiles(tmp_path, OsDisk(), AuditSettings())
    files.write([{"event": "next"}], 0.0, NOW)
    files.close(0.0)
    lines, checker = checked(tmp_path)
    assert (checker.proof.breaks[0].file, checker.proof.breaks[0].line) == (file_name(1), 4)
    assert json.loads((tmp_path / file_name(1)).read_bytes().split(b"\n")[0])["sequence"] == 1
    assert lines[-1].facts["event"] == "next"
