"""`maxam-admin journal ...` on folders: what it prints, what it changes, and its exit codes."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maxam.avro.fingerprint import crc_64_avro
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.cli.main import main
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.records import AcknowledgementRecord, Record, SessionEndRecord, SubscriptionRecord, Validation
from tests.support.journal_records import NOW_US, SYNC, change, rejected

TEXT = b'{"type":"record","name":"Count_v1","namespace":"t","fields":[{"name":"n","type":"long"}]}'
JUDGED = Validation("datum", "t.Count_v1", "1.0", crc_64_avro(parse_schema(read_source("text", TEXT)).canonical))
SESSION = ("alice", "pump", b"s")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sealed segments, with revisions 1 to 4 in two blocks, then 5, and with sessions, a rejected SEND and a hostile header."""
    root = tmp_path / "journal"
    lives: list[list[list[Record]]] = [
        [
            [
                SubscriptionRecord(NOW_US, *SESSION, b"X/**", True),
                change(1, b"X/a", b"\x54", JUDGED),
                change(2, b"X/b"),
            ],
            [
                change(3, b"X/a", b"\x56", JUDGED, headers=((b"note", b"\x1b[31mred"),)),
                change(4, b"X/b", b"", deleted=True),
                AcknowledgementRecord(NOW_US + 4000, *SESSION, ((b"X/a", 3),)),
            ],
        ],
        [[change(5, b"X/c"), SessionEndRecord(NOW_US + 5000, "alice", "pump")]],
    ]
    for batches in lives:
        journal = Journal.open(root, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), SYNC)
        list(journal.recover())
        journal.keep_schemas([(sha256(TEXT).hexdigest(), TEXT)])
        for batch in batches:
            journal.write(journal.encode(batch))
        journal.close()
    refused = RejectedJournal.open(str(root), OsDisk(), RejectedSettings(durable=False), SYNC)
    refused.append([rejected(1)])
    refused.close()
    return root


def admin(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["journal", *map(str, arguments)])


def rows(result: Result) -> list[dict[str, object]]:
    """Return what it printed, a JSON object a line."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def harm(folder: Path) -> Path:
    """Flip a bit in the second block of the first segment."""
    path = Path(sealed_segments(folder, OsDisk())[0].path)
    data = bytearray(path.read_bytes())
    data[-150] ^= 1
    path.write_bytes(data)
    return path


def test_dump_prints_every_record_in_order(folder: Path) -> None:
    """Changes and what sessions did, with the revision of the change before; what a terminal might act on is escaped."""
    lines = admin("dump", folder).stdout.splitlines()
    kinds = ["subscription", "value", "value", "value", "delete", "acknowledgement", "value", "session_end"]
    assert [line.split()[2] for line in lines] == kinds
    assert lines[1] == "1 2026-09-21T14:13:20.001000Z value X/a alice t.Count_v1 1.0 1 byte"
    assert r"note:\x1b[31mred" in lines[3]
    assert lines[5].endswith("acknowledgement alice pump subscription=s X/a@3")


def test_dump_takes_a_range_and_a_glob(folder: Path) -> None:
    """Revisions from and to, and only records about destinations that match."""
    found = rows(admin("dump", folder, "--json", "--from", "2", "--to", "4", "--destination", "X/a"))
    assert [(row["revision"], row["kind"]) for row in found] == [(3, "value"), (4, "acknowledgement")]
    assert found[0]["headers"] == [["note", "\x1b[31mred"]]
    assert found[1]["positions"] == [["X/a", 3]]
    everything = rows(admin("dump", folder, "--json"))
    assert rows(admin("dump", folder, "--json", "-n", "2")) == everything[:2]
    assert rows(admin("dump", folder, "--json", "-n", "1", "--from", "3", "--destination", "X/a")) == found[:1]
    assert admin("dump", folder, "--destination", "X/[").exit_code == 1
    backwards = admin("dump", folder, "--from", "4", "--to", "2")
    assert (backwards.exit_code, backwards.stdout) == (2, "")
    assert "--from 4 is above --to 2" in backwards.stderr


def test_dump_decodes_bodies_by_the_texts_that_the_journal_kept(folder: Path) -> None:
    """A value as JSON, a body in hex, or none; without the text, hex and why."""
    first = rows(admin("dump", folder, "--json", "--body", "value", "--to", "2"))
    assert first[1]["value"] == {"n": 42}
    assert (first[2]["body"], first[2]["problem"]) == (b"body".hex(), "no schema")
    assert rows(admin("dump", folder, "--json", "--body", "hex", "--from", "5"))[0]["body"] == b"body".hex()
    assert "body" not in rows(admin("dump", folder, "--json", "--from", "5"))[0]
    assert '{"n": 42}' in admin("dump", folder, "--body", "value").stdout


def test_dump_shows_rejected_sends(folder: Path) -> None:
    """With their own revisions, and why."""
    (row,) = rows(admin("dump", folder, "--rejected", "--json"))
    assert (row["revision"], row["disposition"], row["result"]) == (1, "rejected-invalid", "schema-mismatch")
    assert "schema-mismatch: egm.EGMStatus_v1" in admin("dump", folder, "--rejected").stdout


def test_dump_goes_on_behind_damage_and_says_so(folder: Path) -> None:
    """Whole records are printed, the problem is on standard error, and the exit code is 1."""
    harm(folder)
    result = admin("dump", folder, "--json")
    assert result.exit_code == 5
    assert [json.loads(line)["revision"] for line in result.stdout.splitlines()] == [0, 1, 2, 5, 5]
    assert "lost: revisions 3 to 4" in result.stderr


def test_a_repair_shows_first_and_acts_only_when_told(folder: Path) -> None:
    """The plan lists file, bytes, revisions and topics. After `--apply` there is nothing to repair."""
    path = harm(folder)
    before = path.read_bytes()
    verified = admin("verify", folder)
    assert verified.exit_code == 1
    assert f"maxam-admin journal repair {folder}" in verified.stderr
    shown = admin("repair", folder)
    assert shown.exit_code == 0
    assert "3 to 4" in shown.stdout
    assert "--apply" in shown.stdout
    assert path.read_bytes() == before
    (plan,) = rows(admin("repair", folder, "--json"))
    assert plan["applied"] is False
    assert [topic["destination"] for topic in plan["topics"]] == ["X/a", "X/b"]  # type: ignore[attr-defined]
    applied = admin("repair", folder, "--apply")
    assert applied.exit_code == 0, applied.output
    aside = Path(applied.stdout.splitlines()[-1].rpartition(" ")[2])
    assert (aside / "segments" / path.name).read_bytes() == before
    assert "nothing to repair" in admin("repair", folder).stdout
    assert admin("verify", folder).exit_code == 0


def test_verify_sums_up_what_is_good(folder: Path) -> None:
    """Texts of schemas are one row for people, as far as they are whole, and a row each for programs."""
    texts = list((folder / "schemas").iterdir())
    *_, row, told = admin("verify", folder).stdout.splitlines()
    assert row.split() == ["schemas/", "(1", "text)", str(texts[0].stat().st_size), "good"]
    reports = rows(admin("verify", folder, "--json"))
    assert told.startswith(f"{len(reports)} files, none of them damaged")
    assert {str(text) for text in texts} < {report["path"] for report in reports}
    os.truncate(texts[0], 5)
    result = admin("verify", folder)
    assert result.exit_code == 1
    assert texts[0].name in result.stdout
    assert "none of them" not in result.stdout


def test_backup_and_restore(folder: Path, tmp_path: Path) -> None:
    """A backup is made, proven, restored elsewhere. If it is changed, `verify` and `restore` show the file. A folder in use is refused."""
    (made,) = rows(admin("backup", folder, tmp_path / "backups", "--json"))
    backup = Path(str(made["folder"]))
    assert (made["head"], admin("verify", backup).exit_code) == (5, 0)
    assert admin("restore", backup, tmp_path / "second").exit_code == 0
    assert admin("verify", tmp_path / "second").exit_code == 0
    refused = admin("restore", backup, folder)
    assert refused.exit_code == 1
    assert "is not empty" in refused.stderr
    inside = admin("backup", folder, folder / "backups")
    assert inside.exit_code == 1
    assert "name a folder elsewhere" in inside.stderr
    assert not (folder / "backups").exists()
    changed = next((backup / "schemas").iterdir())
    os.truncate(changed, 5)
    for verb in (admin("verify", backup), admin("restore", backup, tmp_path / "third")):
        assert verb.exit_code == 1
        assert changed.name in verb.output
    assert admin("restore", tmp_path, tmp_path / "fourth").exit_code == 1


def test_a_drill_restores_the_newest_backup_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """A damaged backup, and a folder without one, fail."""
    backups, scratch = tmp_path / "backups", tmp_path / "scratch"
    scratch.mkdir()
    assert admin("drill", folder.parent, "--scratch", scratch).exit_code == 1
    (made,) = rows(admin("backup", folder, backups, "--json"))
    for place in (backups, Path(str(made["folder"]))):
        (row,) = rows(admin("drill", place, "--scratch", scratch, "--json"))
        assert (row["backup"], row["revision"]) == (made["folder"], made["head"])
        assert row["topics"]
    assert admin("drill", backups).exit_code == 0
    damaged = next(Path(str(made["folder"]), "schemas").iterdir())
    os.truncate(damaged, 5)
    result = admin("drill", backups, "--scratch", scratch)
    assert (result.exit_code, damaged.name in result.stderr) == (1, True)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("verb", ["verify", "dump", "repair", "backup"])
def test_what_is_no_journal_is_told(tmp_path: Path, verb: str) -> None:
    """Any other folder is refused in one line."""
    result = admin(verb, tmp_path, *([tmp_path / "out"] if verb == "backup" else []))
    assert result.exit_code == 1
    assert "is not the folder of a journal" in result.stderr


@pytest.mark.parametrize("verb", ["verify", "dump"])
def test_a_named_pipe_among_the_segments_blocks_nobody(folder: Path, verb: str) -> None:
    """It is named in one line instead."""
    os.mkfifo(folder / "segments" / "00000000000000000900-00000000000000000901.avro")
    result = admin(verb, folder)
    assert result.exit_code == 1
    assert "00000000000000000900-00000000000000000901.avro: not a regular file" in result.stderr
