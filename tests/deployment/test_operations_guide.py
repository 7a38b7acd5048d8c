"""docs/operations.md is true: an operator who pastes its commands comes from a bundle to a gateway in service, and back from its backup."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deployment import service_manager
from tests.gateway_process import kept_ports
from tests.guides import Block, faults
from tests.patience import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs/operations.md"
PORTS = ("61614", "8643", "61615", "8645")
SHIMS = {
    "systemctl": f'exec {sys.executable} {service_manager.__file__} "$ROOT" "$@"',
    "runuser": 'shift 3; exec "$@"',  # runuser -u maxam -- COMMAND
}

pytestmark = pytest.mark.interop


class Operator:
    """Runs the guide's commands in one shell's folder and environment, below a folder that stands for the machine's root."""

    def __init__(self, here: Path, root: Path, environment: dict[str, str]) -> None:
        self._root = root
        self._here = here
        self._state = here.parent / "state"
        self._environment = environment
        self._ports = dict(zip(PORTS, map(str, kept_ports(len(PORTS))), strict=True))
        self._state.write_text(f"cd {here}\n", encoding="utf-8")
        self.exit_code = 0

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        if text == "./install":
            text += f" --root {self._root}"
        text = re.sub(r"(?<![\w.$])/(?=etc\b|var/|opt/)", f"{self._root}/", text).replace("-g maxam ", "")
        text = self._with_ports(text)
        keep = f"{{ printf 'cd %q\\n' \"$PWD\"; export -p; declare -p last 2>/dev/null; }} > {self._state}"
        done = subprocess.run(
            ["timeout", str(PATIENCE_S), "bash", "-c", f". {self._state}\n{text}\ncode=$?\n{keep}\nexit $code"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=self._environment,
        )
        self.exit_code = done.returncode
        if text.startswith("./install"):
            units = self._root / "usr/local/lib/systemd/system"
            for path in (self._root / "etc/maxam/maxam.toml", *units.iterdir()):
                path.write_text(self._with_ports(path.read_text().replace('"0.0.0.0"', '"127.0.0.1"')))
        return done.stdout.replace(str(self._root), "")

    def execute(self, block: Block) -> str:
        """The guide has no snippets."""
        raise AssertionError(block)

    def _with_ports(self, text: str) -> str:
        for port, ours in self._ports.items():
            text = re.sub(rf"\b{port}\b", ours, text)
        return text

    def stop(self) -> None:
        """End what was left running."""
        for file in (*(self._root / "run").glob("*.pid"), self._here / "drill.pid"):
            if file.exists():
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def operator(tmp_path: Path, bundle: Path) -> Iterator[Operator]:
    """Stand in a folder with nothing but a bundle."""
    for name in ("bin", "here", "root/run", "home"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in SHIMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    root = tmp_path / "root"
    (tmp_path / "here" / bundle.name).symlink_to(bundle)
    environment = {
        "PATH": f"{tmp_path}/bin:{root}/usr/local/bin:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "HOME": str(tmp_path / "home"),
        "COLUMNS": "160",
        "LC_ALL": "C.UTF-8",
        "ROOT": str(root),
    }
    one = Operator(tmp_path / "here", root, environment)
    try:
        yield one
    finally:
        one.stop()


def test_the_guide_is_true(operator: Operator) -> None:
    """Every command of the guide does what it says, from an unpacked bundle to its removal, and prints what is shown."""
    steps: list[str] = []
    found = faults(operator, GUIDE.read_text(encoding="utf-8"), steps.append)
    assert not found, "\n\n".join([*found, *steps])


def test_what_the_guide_links_to_is_there() -> None:
    """Each page that it names exists, with the heading that it names."""
    for page in (GUIDE, GUIDE.with_name("deployment.md")):
        for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {link}#{anchor}"
