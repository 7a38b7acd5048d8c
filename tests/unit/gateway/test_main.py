"""The command `maxam-gateway`: what cannot be used is one line and exit code 1, whatever task group it comes out of."""

import types
from typing import Any

import pytest
from click.testing import CliRunner

from maxam.config import LogSettings
from maxam.exit_codes import ExitCode
from maxam.gateway import main
from maxam.main import gateway


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Run the command with files that need not be there."""
    journal = types.SimpleNamespace(durability="fsync", folder="/journal")
    monkeypatch.setattr(
        main, "read_settings", lambda _: types.SimpleNamespace(log=LogSettings(), journal=journal, front=None)
    )
    monkeypatch.setattr(main, "read_config", lambda _: None)
    monkeypatch.setattr(main, "start_logging", lambda: None)
    return CliRunner()


def test_a_journal_that_cannot_be_used_is_one_line(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback of the task groups between."""

    def fails(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/journal/segments")

    monkeypatch.setattr(main, "open_gateway", fails)
    done = runner.invoke(gateway, ["--config", "maxam.toml"])
    assert done.exit_code == ExitCode.UNREACHABLE
    assert isinstance(done.exception, SystemExit)
    [line] = done.output.splitlines()
    assert "Permission denied" in line


def test_a_bug_keeps_its_traceback(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unplanned error is not shortened."""

    def fails(*_: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr(main, "open_gateway", fails)
    done = runner.invoke(gateway, ["--config", "maxam.toml"])
    assert isinstance(done.exception, ExceptionGroup)
