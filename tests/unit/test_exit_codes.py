"""The exit codes of the programs, by commands that run."""

from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from maxam.bench.main import main as bench
from maxam.bridge.main import bridge
from maxam.cli.main import main as admin
from maxam.conformance.main import conformance
from maxam.exit_codes import MEANINGS, ExitCode, exit_code_of
from maxam.https_client import NotFoundError, RemoteError
from maxam.main import gateway
from maxam.pipeline.main import main as pipeline

PROGRAMS: Final = {
    "maxam-admin": admin,
    "maxam-bench": bench,
    "maxam-bridge": bridge,
    "maxam-conformance": conformance,
    "maxam-gateway": gateway,
    "maxam-pipeline": pipeline,
}
UNUSED: Final = "127.0.0.1:1"  # no program listens on port 1


@pytest.mark.parametrize(
    ("code", "program", "arguments"),
    [
        (ExitCode.DONE, "maxam-admin", ["dev-certs", "certs"]),
        (ExitCode.DONE, "maxam-bench", ["--help"]),
        (ExitCode.DONE, "maxam-bridge", ["--version"]),
        (ExitCode.DONE, "maxam-conformance", ["promises", "-o", "yaml"]),
        (ExitCode.DONE, "maxam-gateway", ["--version"]),
        (ExitCode.DONE, "maxam-pipeline", ["--version"]),
        (ExitCode.CHECK_FAILED, "maxam-admin", ["policy", "check", "bad.toml"]),
        (ExitCode.CHECK_FAILED, "maxam-bridge", ["--check", "--config", "bad.toml"]),
        (ExitCode.CHECK_FAILED, "maxam-gateway", ["--check", "--config", "bad.toml"]),
        (ExitCode.USAGE, "maxam-admin", ["topics", "list", "--nonesuch"]),
        (ExitCode.USAGE, "maxam-admin", ["topics", "list"]),
        (ExitCode.USAGE, "maxam-bench", ["run", "--plain", "--broker", "nowhere"]),
        (ExitCode.USAGE, "maxam-bridge", []),
        (ExitCode.USAGE, "maxam-conformance", ["run", "nonesuch-driver"]),
        (ExitCode.USAGE, "maxam-gateway", []),
        (ExitCode.USAGE, "maxam-pipeline", ["latest", "--nonesuch"]),
        (ExitCode.NOT_FOUND, "maxam-admin", ["policy", "check", "nonesuch.toml"]),
        (ExitCode.NOT_FOUND, "maxam-bridge", ["--config", "nonesuch.toml"]),
        (ExitCode.NOT_FOUND, "maxam-gateway", ["--config", "nonesuch.toml"]),
        (ExitCode.NOT_FOUND, "maxam-pipeline", ["latest", "--journal", "nonesuch"]),
        (ExitCode.UNREACHABLE, "maxam-bench", ["run", "--plain", "--broker", UNUSED, "--seconds", "1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_command_ends_with_its_code(
    code: ExitCode, program: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program ends with the code of the table, whatever the text on standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("bad.toml").write_text("[capability.x]")
    done = CliRunner().invoke(PROGRAMS[program], arguments)
    assert (done.exit_code, type(done.exception)) == (code, SystemExit if code else type(None)), done.output


def test_the_cause_decides_unless_the_error_does() -> None:
    """A missing file is not found, a forbidden one not allowed; the answer of a gateway has the code of its own."""
    for cause, code in (
        (FileNotFoundError(), ExitCode.NOT_FOUND),
        (PermissionError(), ExitCode.UNREACHABLE),
        (ConnectionRefusedError(), ExitCode.UNREACHABLE),
        (ValueError(), ExitCode.CHECK_FAILED),
        (NotFoundError(), ExitCode.NOT_FOUND),
    ):
        error = RuntimeError()
        error.__cause__ = cause
        assert exit_code_of(error) == code
    remote = RemoteError()
    remote.__cause__ = FileNotFoundError()
    assert exit_code_of(remote) == ExitCode.UNREACHABLE


def test_each_code_has_a_meaning() -> None:
    """The table in the documents is made of these."""
    assert list(MEANINGS) == list(ExitCode) == list(range(7))
