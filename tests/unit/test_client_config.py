"""The client configuration: precedence, origins, mistakes, and that all programs read the same."""

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maxam.bench.main import main as bench
from maxam.cli.main import main
from maxam.client_config import MACHINE_FILE, default_files
from maxam.pipeline.main import main as pipeline
from tests.support.errors import code_in

WHOLE = 'admin = "filed:1"\ncert = "own.pem"\nkey = "/keys/own.key"\nca = "ca.pem"\nserver_name = "filed"\n'
PROFILE = '[profiles.east]\nadmin = "east:2"\nca = "east.pem"\n'


def asked(home: Path, *arguments: str, **variables: str) -> Result:
    """Run the command for a user whose configuration folder is `home`."""
    cleared = dict.fromkeys(
        (
            "ADMIN",
            "GATEWAY",
            "SERVER",
            "STOMP",
            "CERT",
            "CERTIFICATE",
            "KEY",
            "CA",
            "SERVER_NAME",
            "CLIENT_CONFIG",
            "PROFILE",
        )
    )
    environment = {f"MAXAM_{name}": value for name, value in (cleared | variables).items()}
    return CliRunner().invoke(main, arguments, env=environment | {"XDG_CONFIG_HOME": str(home)})


def settings(home: Path, *arguments: str, **variables: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each setting."""
    result = asked(home, *arguments, "config", "--json", **variables)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {row["setting"]: (row["value"], row["from"]) for row in rows}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user with a whole client configuration."""
    (tmp_path / "maxam").mkdir()
    (tmp_path / "maxam/client.toml").write_text(WHOLE + PROFILE)
    return tmp_path


def test_option_before_variable_before_profile_before_file_before_default(home: Path) -> None:
    """Of all combinations of what sets the gateway, the first in this order decides, and is named."""
    file = f"{home}/maxam/client.toml: "
    for option, variable, profile in itertools.product((False, True), repeat=3):
        arguments = ["--admin", "option:3"] if option else []
        found = settings(
            home,
            *arguments,
            **({"ADMIN": "variable:4"} if variable else {}),
            **({"PROFILE": "east"} if profile else {}),
        )["admin"]
        if option:
            assert found == ("option:3", "--admin")
        elif variable:
            assert found == ("variable:4", "MAXAM_ADMIN")
        elif profile:
            assert found == ("east:2", file + "profiles.east.admin")
        else:
            assert found == ("filed:1", file + "admin")
    assert settings(home / "nobody")["admin"] == ("localhost:8643", "default")


def test_a_profile_changes_only_what_it_names(home: Path) -> None:
    """Other keys are as above the profile; files are relative to the configuration's folder."""
    found = settings(home, "--profile", "east")
    assert {key: value for key, (value, _) in found.items()} == {
        "admin": "east:2",
        "server": "localhost:61614",
        "cert": f"{home}/maxam/own.pem",
        "key": "/keys/own.key",
        "ca": f"{home}/maxam/east.pem",
        "server_name": "filed",
    }


def test_all_programs_read_the_same_file(home: Path) -> None:
    """A mistake in a profile, and a profile that does not exist, end each program that connects in the same way."""
    (home / "maxam/client.toml").write_text(WHOLE + "[profiles.east]\nserver = 1\n")
    (home / "journal").mkdir()
    (home / "table.csv").touch()
    for program, arguments in (
        (main, ["topics", "list"]),
        (bench, ["run"]),
        (pipeline, ["load", str(home / "table.csv"), "--schemas", str(home)]),
    ):
        result = CliRunner().invoke(program, arguments, env={"XDG_CONFIG_HOME": str(home)})
        assert code_in(result.stderr) == "configuration-invalid", result.stderr
        assert "profiles.east.server must be a text" in result.stderr


def test_a_profile_has_the_listener_and_identity_of_a_load_test(home: Path) -> None:
    """`maxam-bench` connects as the client configuration has it; an option of its own way to connect comes first."""
    run = partial(CliRunner().invoke, bench, env={"XDG_CONFIG_HOME": str(home)})
    assert "maxam/ca.pem" in run(["run"]).stderr
    (home / "maxam/client.toml").write_text('server = "127.0.0.1:1"\nca = "own.pem"\n')
    assert "127.0.0.1:1" in run(["run", "--plain"]).stderr


def test_what_is_missing_is_listed(home: Path) -> None:
    """Exit code 1, with the setting and what is wrong with it; 0 when all files can be read."""
    (home / "maxam/own.pem").touch()
    result = asked(home, "config")
    assert result.exit_code == 1
    problems = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "No such file" in problems["key"]
    assert "No such file" not in problems["cert"]
    everything = [part for key in ("cert", "key", "ca") for part in (f"--{key}", str(home / "maxam/own.pem"))]
    assert asked(home, *everything, "config").exit_code == 0
    assert "missing" in asked(home / "nobody", "config").stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gatway = 'x:1'", "unknown key gatway; there are admin, server, cert, key, ca, server_name, [profiles.NAME]"),
        ("[profiles.a]\nurl = 'x'", "unknown key profiles.a.url; there are admin, server, cert, key, ca, server_name"),
        ("admin = 8643", "admin must be a text, found 8643"),
        ("profiles = 'east'", "profiles must be tables [profiles.NAME]"),
        ("gateway = ", "is not TOML"),
    ],
)
def test_a_mistake_is_told_with_file_and_place(home: Path, text: str, told: str) -> None:
    """A command that needs the gateway ends with one line; one that needs none does not read the file."""
    (home / "maxam/client.toml").write_text(text)
    for verb in (["config"], ["sessions", "list"]):
        result = asked(home, *verb)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert f"{home}/maxam/client.toml" in result.stderr
        assert told in result.stderr
    (home / "none.pem").touch()
    assert "holds no PEM certificate" in asked(home, "fingerprint", str(home / "none.pem")).stderr


def test_unknown_profiles_and_files_are_told(home: Path) -> None:
    """The error lists the profiles that exist."""
    unknown = asked(home, "--profile", "west", "config")
    assert (unknown.exit_code != 0, "'west'" in unknown.stderr, "east" in unknown.stderr) == (True, True, True)
    assert "'west'" in asked(home / "nobody", "--profile", "west", "config").stderr
    assert "/nonesuch" in asked(home, "--client-config", "/nonesuch", "config").stderr


def test_who_has_no_certificate_is_told_where_to_write_it(home: Path) -> None:
    """Option, variable and file are named."""
    result = asked(home / "nobody", "sessions", "list")
    assert result.exit_code == 2
    for way in ("--ca FILE", "MAXAM_CA", f'ca = "FILE" into {home}/nobody/maxam/client.toml'):
        assert way in result.stderr


def test_a_user_without_a_home_has_the_machines_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's user may have no home, and no name either: only the machine's file is read."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert default_files() == (MACHINE_FILE,)


def test_a_home_that_may_not_be_looked_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `runuser`, where the home is still the caller's: nothing is known of a configuration there."""

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert asked(tmp_path, "config").exit_code == 1


def test_former_names_go_on_working(home: Path) -> None:
    """Keys, options and variables of the release before set what the new ones do, which come first."""
    (home / "maxam/client.toml").write_text('gateway = "old:1"\ncertificate = "own.pem"\n')
    file = f"{home}/maxam/client.toml: "
    found = settings(home)
    assert (found["admin"], found["cert"][1]) == (("old:1", file + "gateway"), file + "certificate")
    assert settings(home, GATEWAY="old:2")["admin"] == ("old:2", "MAXAM_GATEWAY")
    assert settings(home, GATEWAY="old:2", ADMIN="new:2")["admin"] == ("new:2", "MAXAM_ADMIN")
    assert settings(home, "--gateway", "old:3")["admin"] == ("old:3", "--admin")
    shown = asked(home, "--help").stdout
    assert "--admin" in shown
    assert "--gateway" not in shown
    assert "MAXAM_GATEWAY" not in shown
