"""The commands of docs/operate/identity.md and docs/operate/enrolment.md work when pasted, with a real gateway, openssl and our commands."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.cli.main import main
from tests.docs.guides import Block, faults, shell
from tests.support.gateway_process import COMMAND, end, launch

DOCS = Path(__file__).parents[2] / "docs" / "operate"
GUIDES = [DOCS / "identity.md", DOCS / "enrolment.md"]

pytestmark = pytest.mark.interop


class Operator:
    """Runs the guide's commands one after the other, with free ports in place of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._ports: dict[str, str] = {}
        self._gateway: subprocess.Popen[str] | None = None
        self.exit_code = 0

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        self.exit_code = 0
        if text.startswith("cat > maxam.toml"):
            text = re.sub(r"port = \d+", "port = 0", text)
            # The watch must not have found the files before the guide reloads them.
            text = text.replace("[journal]", "[reload]\nwatch = false\n[journal]")
        for port, ours in self._ports.items():
            text = text.replace(port, ours)
        if text.startswith("maxam-gateway") and text.endswith("&"):
            return self._start(shlex.split(text.partition("2>")[0])[1:])
        words = shlex.split(text) if "<<" not in text else []
        if words[:1] == ["cd"]:
            self._monkeypatch.chdir(words[1])
            return ""
        if words[:1] == ["export"]:
            for word in words[1:]:
                self._monkeypatch.setenv(*word.split("=", 1))
            return ""
        if words[:1] == ["maxam-admin"] and not set("<>|$") & set(text):
            result = CliRunner().invoke(main, words[1:], prog_name="maxam-admin")
            self.exit_code = result.exit_code
            return result.output
        self.exit_code, output = shell(text)
        return output

    def execute(self, block: Block) -> str:
        """The guide has no snippets."""
        raise AssertionError(block)

    def _start(self, arguments: list[str]) -> str:
        self._gateway, addresses = launch(["-c", COMMAND, *arguments], Path("log"))
        for port, listener in (("61614", "tls"), ("8643", "admin"), ("8644", "enrolment")):
            if listener in addresses:
                self._ports[port] = addresses[listener].rpartition(":")[2]
        return f"ready {' '.join(f'{name}={address}' for name, address in addresses.items())}\n"

    def stop(self) -> None:
        """Stop the gateway that was started."""
        if self._gateway is not None:
            end(self._gateway, signal.SIGTERM, Path("log"))


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Stand in an empty folder, with our commands on the path."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, command in {
        "maxam-admin": "from maxam.cli.main import main; main()",
        "maxam-gateway": COMMAND,
    }.items():
        (scripts / name).write_text(f"#!/bin/sh\nexec {sys.executable} -c '{command}' \"$@\"\n", encoding="utf-8")
        (scripts / name).chmod(0o755)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root), prepend=":")
    monkeypatch.setenv("PATH", str(scripts), prepend=":")
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    one = Operator(monkeypatch)
    try:
        yield one
    finally:
        one.stop()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_guide_is_true(operator: Operator, guide: Path) -> None:
    """Every command of the guide does what it promises, from an empty folder on, and prints what is shown."""
    steps: list[str] = []
    found = faults(operator, guide.read_text(encoding="utf-8"), steps.append)
    assert not found, "\n\n".join([*found, *steps])
    assert "Error" not in "\n".join(steps)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_what_the_guide_links_to_is_there(guide: Path) -> None:
    """Each page that it names exists, and all of its blocks are commands."""
    text = guide.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not (guide.parent / link).exists()] == []
    assert set(re.findall(r"^```(\S+)", text, re.MULTILINE)) == {"console"}
