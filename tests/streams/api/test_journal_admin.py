"""Putting values, their history, the journal's state and backups, asked of a living gateway with its own command."""

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from maxam import topic_history as history_process
from maxam.api.routes import history as history_api
from maxam.config import AdminSettings, JournalSettings
from maxam.gateway.measures import measures
from maxam.journal.backup import LOCK, UNFINISHED, verify_manifest
from maxam.journal.disk import OsDisk
from maxam.journal.names import sealed_segments
from maxam.topic_history import HistoryRequest
from tests.support.errors import code_in
from tests.support.living_gateway import EVERYTHING, Living, Site, cli, living, run

TYPE = "t.T_v1"
REGISTRY = f"""
[[rule]]
destination = "X/*.Raw"
encoding = "none"
[[rule]]
destination = "X/**"
schema = "{TYPE}"
encoding = "datum"
"""
OPERATOR = {"admin": ["read", "write"], "send": ["X/**"], "receive": ["X/A.**"]}


def schema(*more: str) -> str:
    """Return a schema with a text, and more texts with a default."""
    fields: list[dict[str, str]] = [{"name": "text", "type": "string"}]
    fields += [{"name": name, "type": "string", "default": ""} for name in more]
    return json.dumps({"type": "record", "name": "T_v1", "namespace": "t", "fields": fields})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with one client, an operator who may not receive everything, and a scraper."""
    site = Site(tmp_path, "anna", "watcher")
    site.policy({"anna": EVERYTHING, "watcher": {"admin": ["metrics"]}})
    text = site.policy_file.read_text().replace(
        "admin = ['read', 'write', 'metrics']", "\n".join(f"{k} = {v!r}" for k, v in OPERATOR.items())
    )
    site.policy_file.write_text(text)
    (site.schemas / "registry.toml").write_text(REGISTRY)
    (site.schemas / "t/T_v1").mkdir(parents=True)
    (site.schemas / "t/T_v1/1.0.avsc").write_text(schema())
    backups = AdminSettings(port=0, backups=tmp_path / "backups", backups_kept=2)
    journal = JournalSettings(tmp_path / "journal", durability="none", segment_bytes_max=65_536)
    site.settings = replace(site.settings, admin=backups, journal=journal)
    return site


async def rows(gateway: Living, *arguments: str) -> list[dict[str, object]]:
    """Return what a command that must succeed prints as JSON."""
    result = await cli(gateway, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_put_tells_what_became_of_it(site: Site) -> None:
    """JSON, hexadecimal text and bytes are sent as the operator; a rejected body is explained field by field, and conditions hold."""

    async def test() -> None:
        async with living(site) as gateway:
            result = await cli(gateway, "topics", "put", "X/A.1", "-", given=b'{"text": "hello"}')
            assert (result.exit_code, result.output) == (0, "accepted: X/A.1 has revision 1\n")
            result = await cli(
                gateway, "topics", "put", "X/A.1", "-", "--if-revision", "1", "--header", "h:1", given=b"04 68 69"
            )
            assert result.output == "accepted: X/A.1 has revision 2\n"
            [topic] = await rows(gateway, "topics", "get", "X/A.1")
            assert (topic["value"], topic["headers"], topic["publisher"]) == ({"text": "hi"}, [["h", "1"]], "operator")
            result = await cli(gateway, "topics", "put", "X/A.1", "-", "--if-revision", "1", given=b'{"text": "no"}')
            assert (result.exit_code, code_in(result.stderr)) == (1, "conflict")
            result = await cli(gateway, "topics", "put", "X/A.1", "-", "--as", "hex", given=b"0a61")
            assert result.exit_code == 1
            assert "result:schema-mismatch" in result.output
            assert "rule[1]" in result.output  # its number in the whole file, as `schemas explain` shows it
            assert "  field     text" in result.output
            assert "  at byte   " in result.output
            result = await cli(gateway, "topics", "put", "X/A.1", "-", given=b'{"text": 5}')
            assert (result.exit_code, code_in(result.stderr)) == (1, "invalid-value")
            large = b'{"text": "' + b"l" * 300_000 + b'"}'  # encoded here: far above what the gateway would
            result = await cli(
                gateway, "topics", "put", "X/A.2", "-", "--source", "s", "--source-revision", "4", given=large
            )
            assert (result.exit_code, result.output) == (0, "accepted: X/A.2 has revision 3\n")
            result = await cli(
                gateway, "topics", "put", "X/A.2", "-", "--source", "s", "--source-revision", "4", given=large
            )
            assert result.output.startswith("accepted (superseded): X/A.2")
            for size in (4_194_305, 9_000_000):  # the gateway hangs up before it has read it, and may be heard or not
                result = await cli(gateway, "topics", "put", "X/A.Raw", "-", "--as", "binary", given=bytes(size))
                told = ("at most 4194304" in result.stderr, "its frame_body_bytes_max?" in result.stderr)
                assert (result.exit_code, any(told)) == (1, True), result.stderr
            result = await cli(gateway, "topics", "put", "X/A.2", "-", given=b"")
            assert code_in(result.stderr)
            result = await cli(gateway, "topics", "put", "Y/A.2", "-", "--as", "binary", given=b"a")
            assert (result.exit_code, code_in(result.stderr)) == (4, "unauthorised")
            result = await cli(gateway, "topics", "put", "X/A.1", "-", who="anna", given=b'{"text": "a"}')
            assert (result.exit_code, code_in(result.stderr)) == (4, "forbidden")
            result = await cli(gateway, "topics", "delete", "X/A.1", "--if-revision", "1")
            assert (result.exit_code, code_in(result.stderr)) == (1, "conflict")
            assert (await cli(gateway, "topics", "delete", "X/A.1", "--if-revision", "2")).exit_code == 0

    run(test)


def test_history_shows_old_values_by_their_own_schema(site: Site) -> None:
    """Changes come newest first, deletes too, decoded even when their minor is gone; paging, rights and the offline form agree."""

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as client:
                for number in range(1, 6):
                    assert (await client.send("X/A.1", bytes([2, 48 + number])))[0] == b"accepted"
                    assert (await client.send("X/B.1", bytes([2, 48 + number])))[0] == b"accepted"
                await client.send("X/A.1", b"")
                (site.schemas / "t/T_v1/1.0.avsc").unlink()
                (site.schemas / "registry.toml").write_text(REGISTRY.replace(TYPE, "t.U_v1"))
                (site.schemas / "t/U_v1").mkdir()
                (site.schemas / "t/U_v1/1.0.avsc").write_text(schema("more").replace("T_v1", "U_v1"))
                (site.schemas / "t/T_v1").rmdir()
                assert (await gateway.reload(allow_orphans=True))["schemas"].outcome == "reloaded"
                await client.send("X/A.1", b"\x02a\x02b")
            found = await rows(gateway, "topics", "history", "X/A.1", "--values")
            assert [(row["revision"], row["deleted"], row.get("value")) for row in found] == [
                (12, False, {"text": "a", "more": "b"}),
                (11, True, None),
                (9, False, {"text": "5"}),
                (7, False, {"text": "4"}),
                (5, False, {"text": "3"}),
                (3, False, {"text": "2"}),
                (1, False, {"text": "1"}),
            ]
            offline = await rows(
                gateway, "topics", "history", "X/A.1", "--values", "--journal", str(site.settings.journal.folder)
            )
            assert offline == found
            with pytest.MonkeyPatch.context() as patch:  # few bytes may be much text: then a page has fewer changes
                patch.setattr(history_process, "PAGE_CHARACTERS_MAX", 1)
                small = ["topics", "history", "X/A.1", "--values", "--journal", str(site.settings.journal.folder)]
                assert await rows(gateway, *small) == found
            assert (
                await rows(gateway, "topics", "history", "X/A.1", "--values", "--before", "9", "--limit", "2")
                == found[3:5]
            )
            withheld = await rows(gateway, "topics", "history", "X/B.1", "--values")
            assert {(row["value_state"], "body" in row, "headers" in row) for row in withheld} == {
                ("withheld", False, False)
            }
            assert [row["revision"] for row in withheld] == [10, 8, 6, 4, 2]
            assert "value_state" not in (await rows(gateway, "topics", "history", "X/B.1"))[0]
            table = (await cli(gateway, "topics", "history", "X/A.1")).output
            assert "delete" in table
            assert (await cli(gateway, "topics", "history", "X/none")).exit_code == 0
            result = await cli(gateway, "topics", "history", "X/A.1", who="watcher")
            assert (result.exit_code, code_in(result.stderr)) == (4, "forbidden")

    run(test)


def test_a_right_that_goes_while_the_journal_is_read_takes_its_values_along(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading may take seconds: values leave by the rights of the moment at which they leave."""
    original = history_process.history

    async def test() -> None:
        async with living(site) as gateway:

            async def late(wanted: HistoryRequest) -> tuple[bytes, bool]:
                content, personal = await original(wanted)
                assert b"secret" in content
                site.policy_file.write_text(site.policy_file.read_text().replace("receive = ['X/A.**']", ""))
                assert (await gateway.reload())["policy"].outcome == "reloaded"
                return content, personal

            async with gateway.client("anna") as client:
                await client.send("X/A.1", b"\x0csecret")
            monkeypatch.setattr(history_api, "history", late)
            result = await cli(gateway, "topics", "history", "X/A.1", "--values", "--json")
            assert (result.exit_code, code_in(result.stderr), "secret" in result.output) == (4, "busy", False)
            monkeypatch.undo()
            [row] = await rows(gateway, "topics", "history", "X/A.1", "--values")
            assert row["value_state"] == "withheld"

    run(test)


def test_history_knows_names_as_long_as_the_gateway_does(site: Site) -> None:
    """How long a destination may be is a setting."""
    site.settings = replace(site.settings, limits=replace(site.settings.limits, destination_bytes_max=1000))
    name = f"X/{'a' * 900}.Raw"

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as client:
                assert (await client.send(name, b"value"))[0] == b"accepted"
            for where in ([], ["--journal", str(site.settings.journal.folder)]):
                [row] = await rows(gateway, "topics", "history", name, *where)
                assert row["destination"] == name

    run(test)


def test_damage_in_the_archive_is_told_by_history(site: Site) -> None:
    """Damage is reported with file and revisions and exit code 1, and whole parts are shown."""

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as client:
                for _ in range(40):
                    await client.send("X/A.Raw", bytes(4000))
            folder = site.settings.journal.folder
            [segment, *_] = sorted((folder / "segments").glob("*-*.avro"))
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 1
            segment.write_bytes(data)
            result = await cli(gateway, "topics", "history", "X/A.Raw", "--limit", "100", "--json")
            assert result.exit_code == 5
            found = [json.loads(line)["revision"] for line in result.stdout.splitlines()]
            assert found == sorted(found, reverse=True)
            assert 30 < len(found) < 40
            assert f"problem: {segment.relative_to(folder)}: damaged" in result.stderr

    run(test)


def test_the_state_of_the_journal(site: Site) -> None:
    """Files, positions, figures of commits and the disk are what they are; without the right nothing is shown."""

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as client:
                for _ in range(40):
                    await client.send("X/A.Raw", bytes(4000))
            [told] = await rows(gateway, "journal", "status")
            sealed = sealed_segments(site.settings.journal.folder, OsDisk())
            segments, opened, commits, disk = (told[name] for name in ("segments", "open", "commits", "disk"))
            assert isinstance(segments, dict)
            assert isinstance(opened, dict)
            assert isinstance(commits, dict)
            assert isinstance(disk, dict)
            assert (told["head"], told["committed"], told["waiting"], told["durability"]) == (40, 40, 0, "none")
            assert (segments["count"], segments["first"], segments["last"]) == (len(sealed), 1, sealed[-1].last)
            assert segments["bytes"] == sum(OsDisk().size(one.path) for one in sealed)
            assert (opened["first"], opened["last"]) == (sealed[-1].last + 1, 40)
            assert commits["count"] >= 1
            assert commits["p50_s"] <= commits["p99_s"]
            assert commits["last_s"] > 0
            assert not disk["full"]
            assert disk["free_bytes"] > 0
            assert told["problem"] is None
            shown = (await cli(gateway, "journal", "status")).output
            assert f"{len(sealed)}, " in shown
            assert "commits" in shown
            result = await cli(gateway, "journal", "status", who="watcher")
            assert (result.exit_code, code_in(result.stderr)) == (4, "forbidden")

    run(test)


def test_backups_of_a_running_gateway(site: Site) -> None:
    """A backup is made, listed, proven and audited, one at a time. The newest ones stay. A failed one reports the reason and leaves nothing."""

    async def test() -> None:
        folder = site.folder / "backups"
        folder.mkdir()
        (folder / f"20200101T000000.000000Z{UNFINISHED}").mkdir()
        async with living(site) as gateway:
            backups = gateway.gateway.backups
            async with gateway.client("anna") as client:
                await client.send("X/A.Raw", b"1")
                for number in range(1, 4):
                    [row] = await rows(gateway, "backup")
                    assert (row["state"], row["revision"]) == ("done", number)
                    assert list(verify_manifest(f"{folder}/{row['name']}", OsDisk())) == []
                    await client.send("X/A.Raw", b"2")
            listed = await rows(gateway, "backup", "list")
            assert [(one["state"], one["revision"]) for one in listed] == [("done", 3), ("done", 2)]
            assert {one.name for one in folder.iterdir()} == {LOCK, *(str(one["name"]) for one in listed)}
            assert (backups.made, backups.failed) == (3, 0)
            lock = OsDisk().lock(f"{folder}/{LOCK}")
            result = await cli(gateway, "backup")
            assert (result.exit_code, code_in(result.stderr)) == (1, "backup-running")
            OsDisk().close(lock)
            segment = Path(gateway.site.settings.journal.folder) / "segments"
            [opened] = segment.glob("*.open.avro")
            whole = opened.read_bytes()
            opened.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
            result = await cli(gateway, "backup")
            opened.write_bytes(whole)
            assert result.exit_code == 1
            assert "failed: " in result.output
            assert {one.name for one in folder.iterdir()} == {LOCK, *(str(one["name"]) for one in listed)}
            newest = (await rows(gateway, "backup", "list"))[0]
            assert (newest["state"], opened.name in str(newest["reason"])) == ("failed", True)
            assert any("backup-failed" in reason for reason in gateway.gateway.degraded_reasons())
            result = await cli(gateway, "backup", "--no-wait")
            assert (result.exit_code, "running" in result.output) == (0, True)
            while backups.running:  # noqa: ASYNC110 - the state of a process can only be polled
                await trio.sleep(0.01)
            assert not gateway.gateway.degraded_reasons()
            result = await cli(gateway, "backup", who="watcher")
            assert (result.exit_code, code_in(result.stderr)) == (4, "forbidden")
        text = "".join(one.read_text() for one in (site.folder / "journal-audit").glob("*.jsonl"))
        told = [line for line in map(json.loads, text.splitlines()) if line.get("path") == "/v1/backups"]
        assert [line["outcome"] for line in told].count("done") == 5
        assert [line["outcome"] for line in told].count("refused") == 2
        for path in folder.rglob("*"):
            assert path.is_dir() or path.suffix in {".avro", ".avsc", ".json", ""}
            assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes()
            assert not stat.S_IMODE(path.stat().st_mode) & 0o007  # no other user may read it

    run(test)


def test_health_and_metrics_show_the_newest_backup(site: Site) -> None:
    """Its age, size and verification; before the first one health is degraded."""

    async def test() -> None:
        async with living(site) as gateway:
            while not gateway.gateway.backups._looked:  # noqa: ASYNC110 - a thread reads the folder
                await trio.sleep(0.01)
            assert [reason.partition(":")[0] for reason in gateway.gateway.degraded_reasons()] == ["backup-missing"]
            [health] = await rows(gateway, "health")
            assert health["backup"] == {
                "at": None,
                "age_s": None,
                "bytes": None,
                "verified": False,
                "copied": None,
                "failure": "",
            }
            assert [value for _, value in backup_measures(gateway)] == [0, 0, 0]
            [row] = await rows(gateway, "backup")
            assert row["verified"] is True
            [health] = await rows(gateway, "health")
            assert isinstance(health["backup"], dict)
            shown = [health["backup"][key] for key in ("at", "bytes", "verified", "failure")]
            assert shown == [row["begun_at"], row["bytes"], True, ""]
            measured = dict(backup_measures(gateway))
            assert (measured["maxam_backup_bytes"], measured["maxam_backup_verified"]) == (row["bytes"], 1)
            assert measured["maxam_backup_timestamp_seconds"]
            assert not gateway.gateway.degraded_reasons()

    run(test)


def test_a_hook_copies_each_backup_to_another_place(site: Site) -> None:
    """A copy that fails is shown by the command, by health, in the list and as a gauge, until one succeeds."""
    other, hook = (
        site.folder / "other",
        ("/bin/sh", "-c", 'test -d "$0" && cp -R "$1" "$0"', str(site.folder / "other")),
    )
    site.settings = replace(site.settings, admin=replace(site.settings.admin, backup_hook=hook))

    async def test() -> None:
        async with living(site) as gateway:
            result = await cli(gateway, "backup")
            assert result.exit_code == 1
            [row] = await rows(gateway, "backup", "list")
            assert (row["state"], row["copied"], bool(row["reason"])) == ("done", False, True)
            assert [reason.partition(":")[0] for reason in gateway.gateway.degraded_reasons()] == ["backup-not-copied"]
            assert dict(backup_measures(gateway))["maxam_backup_copied"] == 0
            other.mkdir()
            [row] = await rows(gateway, "backup")
            assert (row["state"], row["copied"], row["reason"]) == ("done", True, None)
            assert list(verify_manifest(f"{other}/{row['name']}", OsDisk())) == []
            [health] = await rows(gateway, "health")
            assert isinstance(health["backup"], dict)
            assert health["backup"]["copied"] is True
            assert not gateway.gateway.degraded_reasons()
            assert dict(backup_measures(gateway))["maxam_backup_copied"] == 1

    run(test)


def backup_measures(gateway: Living) -> list[tuple[str, object]]:
    """Return the gauges of backups."""
    return [(name, value) for name, _, value in measures(gateway.gateway) if name.startswith("maxam_backup_")]


def test_without_a_folder_there_are_no_backups(site: Site) -> None:
    """The answer is 409 with a remedy."""
    site.settings = replace(site.settings, admin=AdminSettings(port=0))

    async def test() -> None:
        async with living(site) as gateway:
            for verb in (("backup",), ("backup", "list")):
                result = await cli(gateway, *verb)
                assert (result.exit_code, code_in(result.stderr)) == (1, "backup-off")
            assert not gateway.gateway.degraded_reasons()
            [health] = await rows(gateway, "health")
            assert health["backup"] is None
            assert not backup_measures(gateway)

    run(test)


def test_a_journal_that_cannot_be_read_is_no_bug(site: Site) -> None:
    """A folder that disappears under the gateway is reported, by history and by the journal's state."""

    async def test() -> None:
        async with living(site) as gateway:
            folder = site.settings.journal.folder / "segments"
            shutil.move(folder, site.folder / "aside")
            try:
                result = await cli(gateway, "topics", "history", "X/A.1")
                assert (result.exit_code, code_in(result.stderr)) == (1, "journal-unreadable")
                [told] = await rows(gateway, "journal", "status")
                assert "segments" in str(told["problem"])
            finally:
                shutil.move(site.folder / "aside", folder)

    run(test)


def test_hostile_requests_are_refused_in_one_line(site: Site) -> None:
    """An invalid destination, revision, size or name is refused with its code; no path leads out of the folders."""

    async def ask(gateway: Living, request: str) -> tuple[int, dict[str, object]]:
        transport = await trio.open_tcp_stream("127.0.0.1", gateway.admin_port)
        async with trio.SSLStream(transport, site.context("operator"), https_compatible=True) as stream:
            head = f"{request} HTTP/1.1\r\nhost: localhost\r\nmaxam-admin: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            await stream.send_all(head.encode())
            answer = b"".join([part async for part in stream])
        return int(answer.split(b" ")[1]), json.loads(answer.partition(b"\r\n\r\n")[2])

    async def test() -> None:
        async with living(site) as gateway:
            for path, status, code in (
                ("/v1/history/nonsense", 400, "invalid-destination"),
                (f"/v1/history/X/{'a' * 600}", 400, "invalid-destination"),
                ("/v1/history/X/A.1?before=0", 400, "invalid-parameter"),
                ("/v1/history/X/A.1?before=-1", 400, "invalid-parameter"),
                (f"/v1/history/X/A.1?before={'9' * 30}", 400, "invalid-parameter"),
                ("/v1/history/X/A.1?before=%D9%A3", 400, "invalid-parameter"),
                ("/v1/history/X/A.1?limit=0", 400, "invalid-parameter"),
                ("/v1/history/X/A.1?values=maybe", 400, "invalid-parameter"),
                ("/v1/history/X/A.1?folder=/etc", 400, "invalid-parameter"),
                ("/v1/journal?folder=/etc", 400, "invalid-parameter"),
                ("/v1/backups?folder=/etc", 400, "invalid-parameter"),
                ("/v1/backups/..%2F..%2Fetc", 404, "not-found"),
                ("/v1/backups/lock", 404, "not-found"),
                ("/v1/backups/20200101T000000.000000Z", 404, "not-found"),
            ):
                found, told = await ask(gateway, f"GET {path}")
                assert (found, told["error"]) == (status, code), (path, told)
            found, told = await ask(gateway, "POST /v1/backups?folder=/tmp")
            assert (found, told["error"]) == (400, "invalid-parameter")
            assert not (site.folder / "backups").exists()
            found, told = await ask(gateway, "GET /v1/history/X/A.1?before=1")
            assert (found, told) == (
                200,
                {"changes": [], "next": None, "lost": False, "problems": [], "pii_given": False},
            )

    run(test)
