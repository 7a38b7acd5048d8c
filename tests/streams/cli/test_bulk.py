"""`maxam-admin` changes many things at once, and asks before what cannot be undone."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import maxam.api
from maxam.cli import confirming
from maxam.cli.confirming import DELETE_TOPIC, DELETE_TOPICS, END_SESSION, ask, ask_many
from maxam.cli.main import main
from tests.support.errors import code_in
from tests.support.living_gateway import Living, Site, cli, living, run

CONSOLE = Path(maxam.api.__file__).parent / "console" / "views"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway whose operator may delete topics."""
    site = Site(tmp_path, "anna", "bert")
    everything = {"send": ["X/**"], "receive": ["X/**"]}
    site.policy({"anna": everything, "bert": everything})
    text = site.policy_file.read_text()
    site.policy_file.write_text(
        text.replace('[capabilities."operator"]', '[capabilities."operator"]\nsend = ["X/Q.*"]\nreceive = ["X/**"]')
    )
    return site


async def topics(gateway: Living) -> set[str]:
    """Return the topics that hold a value."""
    shown = await cli(gateway, "topics", "list", "--json")
    return {json.loads(line)["destination"] for line in shown.stdout.splitlines()}


def test_many_topics_are_deleted_by_a_glob(site: Site) -> None:
    """A dry run lists them. Without --yes a script deletes nothing. With it all go but those that the operator may not send to."""
    queued = {f"X/Q.{at}" for at in range(450)}
    others = {"X/Q", "X/R.1"}

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            for name in queued | others:
                await anna.send(name, b"v")
            dry = await cli(gateway, "topics", "delete", "--glob", "X/Q.*", "--dry-run")
            assert (dry.exit_code, set(dry.stdout.splitlines())) == (0, queued)
            assert (await cli(gateway, "topics", "delete", "--glob", "X/Q.*")).exit_code == 2
            assert (await cli(gateway, "topics", "delete")).exit_code == 2
            assert await topics(gateway) == queued | others
            done = await cli(gateway, "topics", "delete", "--glob", "X/Q.*", "--yes", "--json")
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            assert done.exit_code == 0, done.output
            assert {row["destination"] for row in rows if row["outcome"] == "deleted"} == queued
            assert await topics(gateway) == others
            refused = await cli(gateway, "topics", "delete", "--glob", "X/**", "--yes", "--json")
            assert refused.exit_code == 1
            outcomes = {json.loads(line)["outcome"] for line in refused.stdout.splitlines()}
            assert outcomes == {"unauthorised"}
            assert await topics(gateway) == others
            none = await cli(gateway, "topics", "delete", "--glob", "X/None.*", "--yes")
            assert (none.exit_code, none.stdout) == (0, "deleted 0 topics\n")
            assert (await cli(gateway, "topics", "delete", "X/R.1", "--dry-run")).stdout == "X/R.1\n"
            gone = await cli(gateway, "topics", "delete", "X/R.2", "--dry-run")
            assert (gone.exit_code, code_in(gone.stderr)) == (3, "not-found")

    run(test)


def test_all_sessions_of_a_principal_are_kicked(site: Site) -> None:
    """Each connection of the principal ends, others stay; a dry run lists them and ends none."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("bert", "b") as bert:
            async with gateway.client("anna", "1") as first, gateway.client("anna", "2") as second:
                dry = await cli(gateway, "sessions", "kick", "--principal", "anna", "--dry-run", "--json")
                rows = [json.loads(line) for line in dry.stdout.splitlines()]
                assert [(row["client_id"], row["kicked"]) for row in rows] == [("1", False), ("2", False)]
                assert (await cli(gateway, "sessions", "kick", "--principal", "anna")).exit_code == 2
                assert (await cli(gateway, "sessions", "kick", "anna")).exit_code == 2
                assert (await first.send("X/a", b"v"))[0] == b"accepted"
                done = await cli(gateway, "sessions", "kick", "--principal", "anna", "--yes", "--json")
                assert (done.exit_code, done.stdout.count("kicked")) == (0, 2), done.output
                for one in (first, second):
                    assert (await one.error())[0] == b"closed by an operator"
            assert (await bert.send("X/a", b"v"))[0] == b"accepted"
            assert (await cli(gateway, "sessions", "kick", "--principal", "nobody", "--yes")).exit_code == 0

    run(test)


@pytest.mark.parametrize(
    ("terminal", "yes", "given", "exit_code"),
    [(True, False, "y\n", 0), (True, False, "n\n", 1), (True, True, "", 0), (False, False, "", 0)],
)
def test_one_thing_is_confirmed_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, yes: bool, given: str, exit_code: int
) -> None:
    """A yes goes on, a no ends the command with 1; --yes and a script are not asked."""
    monkeypatch.setattr(confirming, "_on_a_terminal", lambda: terminal)
    command = click.command()(lambda: ask(DELETE_TOPIC, "X/a", yes))
    shown = CliRunner().invoke(command, input=given)
    assert shown.exit_code == exit_code
    assert (DELETE_TOPIC[1] in shown.output) == (terminal and not yes)


@pytest.mark.parametrize(
    ("terminal", "yes", "given", "exit_code"),
    [
        (True, False, "7\n", 0),
        (True, False, "y\n", 1),
        (True, True, "", 0),
        (False, False, "", 2),
        (False, True, "", 0),
    ],
)
def test_many_things_are_confirmed_by_their_number(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, yes: bool, given: str, exit_code: int
) -> None:
    """Only their number goes on. A script needs --yes."""
    monkeypatch.setattr(confirming, "_on_a_terminal", lambda: terminal)
    command = click.command()(lambda: ask_many(DELETE_TOPICS, 7, "topic", yes))
    assert CliRunner().invoke(command, input=given).exit_code == exit_code


def test_questions_are_those_of_the_console() -> None:
    """Title and text of a question are the same in both."""
    for view, (title, text) in (("sessions", END_SESSION), ("topics", DELETE_TOPIC)):
        source = (CONSOLE / f"{view}.js").read_text(encoding="utf-8")
        assert f'title: "{title}"' in source
        assert f'"{text}"' in source


@pytest.mark.parametrize(
    "command",
    [
        "sessions drop display c1",
        "subscriptions drop display c1 s",
        "enrolment remove display",
        "enrolment token revoke 7",
        "cluster members --remove b",
    ],
)
def test_what_cannot_be_undone_asks_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    """On a terminal a no ends each of them before it connects; with --yes it connects, and finds no gateway."""
    monkeypatch.setattr(confirming, "_on_a_terminal", lambda: True)
    none = str(tmp_path / "none.pem")
    nowhere = ["--admin", "127.0.0.1:9", "--cert", none, "--key", none, "--ca", none]
    declined = CliRunner().invoke(main, [*nowhere, *command.split()], input="n\n")
    agreed = CliRunner().invoke(main, [*nowhere, *command.split(), "--yes"])
    assert declined.exit_code == 1
    assert isinstance(declined.exception, SystemExit)
    assert agreed.exit_code not in {0, 1}
