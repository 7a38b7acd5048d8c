"""Which gateway `maxam-admin` asks and who it is: what wins, where it comes from, and what is said of mistakes."""

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maxam.admin.client_config import MACHINE_FILE, default_files
from maxam.admin.main import main

WHOLE = 'gateway = "filed:1"\ncertificate = "own.pem"\nkey = "/keys/own.key"\nca = "ca.pem"\nserver_name = "filed"\n'
PROFILE = '[profiles.east]\ngateway = "east:2"\nca = "east.pem"\n'


def asked(home: Path, *arguments: str, **variables: str) -> Result:
    """Run the command for a user whose configuration folder is `home`."""
    cleared = dict.fromkeys(("GATEWAY", "CERTIFICATE", "KEY", "CA", "SERVER_NAME", "CLIENT_CONFIG", "PROFILE"))
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
        arguments = ["--gateway", "option:3"] if option else []
        found = settings(
            home,
            *arguments,
            **({"GATEWAY": "variable:4"} if variable else {}),
            **({"PROFILE": "east"} if profile else {}),
        )["gateway"]
        if option:
            assert found == ("option:3", "--gateway")
        elif variable:
            assert found == ("variable:4", "MAXAM_GATEWAY")
        elif profile:
            assert found == ("east:2", file + "profiles.east.gateway")
        else:
            assert found == ("filed:1", file + "gateway")
    assert settings(home / "nobody")["gateway"] == ("localhost:8643", "default")


def test_a_profile_changes_only_what_it_names(home: Path) -> None:
    """What a profile leaves out is as above it; files are relative to the configuration's folder."""
    found = settings(home, "--profile", "east")
    assert {key: value for key, (value, _) in found.items()} == {
        "gateway": "east:2",
        "certificate": f"{home}/maxam/own.pem",
        "key": "/keys/own.key",
        "ca": f"{home}/maxam/east.pem",
        "server_name": "filed",
    }


def test_what_is_missing_is_listed(home: Path) -> None:
    """Exit code 1, with the setting and what is wrong with it; 0 when all files can be read."""
    (home / "maxam/own.pem").touch()
    result = asked(home, "config")
    assert result.exit_code == 1
    problems = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "No such file" in problems["key"]
    assert "No such file" not in problems["certificate"]
    everything = [part for key in ("certificate", "key", "ca") for part in (f"--{key}", str(home / "maxam/own.pem"))]
    assert asked(home, *everything, "config").exit_code == 0
    assert "missing" in asked(home / "nobody", "config").stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gatway = 'x:1'", "unknown key gatway; there are gateway, certificate, key, ca, server_name, [profiles.NAME]"),
        ("[profiles.a]\nurl = 'x'", "unknown key profiles.a.url; there are gateway, certificate, key, ca, server_name"),
        ("gateway = 8643", "gateway must be a text, found 8643"),
        ("profiles = 'east'", "profiles must be tables [profiles.NAME]"),
        ("gateway = ", "is not TOML"),
    ],
)
def test_a_mistake_is_told_with_file_and_place(home: Path, text: str, told: str) -> None:
    """A verb that needs the gateway stops there, with one line; one that needs none does not look."""
    (home / "maxam/client.toml").write_text(text)
    for verb in (["config"], ["sessions", "list"]):
        result = asked(home, *verb)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert f"{home}/maxam/client.toml" in result.stderr
        assert told in result.stderr
    (home / "none.pem").touch()
    assert "holds no PEM certificate" in asked(home, "fingerprint", str(home / "none.pem")).stderr


def test_unknown_profiles_and_files_are_told(home: Path) -> None:
    """What there is instead is named."""
    assert "has no profile 'west'; it has east" in asked(home, "--profile", "west", "config").stderr
    assert "there is no profile 'west'" in asked(home / "nobody", "--profile", "west", "config").stderr
    assert "cannot be read: No such file" in asked(home, "--client-config", "/nonesuch", "config").stderr


def test_who_has_no_certificate_is_told_where_to_write_it(home: Path) -> None:
    """Option, variable and file are named."""
    result = asked(home / "nobody", "sessions", "list")
    assert result.exit_code == 1
    for way in ("--ca FILE", "MAXAM_CA", f'ca = "FILE" into {home}/nobody/maxam/client.toml'):
        assert way in result.stderr


def test_a_user_without_a_home_has_the_machines_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's user may have no home, and no name either: only the machine's file is looked for."""

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
