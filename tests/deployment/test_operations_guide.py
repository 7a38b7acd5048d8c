"""docs/operate/operations.md is true: an operator who pastes its commands comes from a bundle to a gateway in service, and back from its backup."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deployment import service_manager
from tests.deployment.conftest import renamed
from tests.docs.guides import Block, blocks, faults
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs/operate/operations.md"
PORTS = ("61614", "8643", "8644", "61615", "8645")
SHIMS = {
    "systemctl": f'exec {sys.executable} {service_manager.__file__} "$ROOT" "$@"',
    # runuser -u maxam -- COMMAND: the environment goes along, and files that only root may read are not for him.
    "runuser": 'shift 3; case "$(env)" in *MAXAM_KEY=*) echo "MAXAM_KEY is of no use to the user maxam"; exit 2 ;; esac; exec "$@"',
}

NEXT = "9.9.9-upgrade"  # the release that the guide calls NEW

pytestmark = pytest.mark.interop


class Operator:
    """Runs the guide's commands below a folder that stands for the machine's root.

    Attributes:
        here: The folder that it begins in.
        root: Folder that stands for the machine's root.
    """

    def __init__(self, here: Path, root: Path, environment: dict[str, str]) -> None:
        self.root = root
        self.here = here
        self._state = here.parent / "state"
        self._environment = environment
        self._ports = dict(zip(PORTS, map(str, kept_ports(len(PORTS))), strict=True))
        self._state.write_text(f"cd {here}\n", encoding="utf-8")
        self.exit_code = 0

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        if text.startswith("./install"):
            text += f" --root {self.root}"
        text = re.sub(r"(?<![\w.$])/(?=etc\b|var/|opt/)", f"{self.root}/", text)
        text = re.sub(r"-[og] maxam ", "", text).replace("maxam-NEW-", f"maxam-{NEXT}-")
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
        if "install --ro" in text:  # --root, --rollback
            units = self.root / "usr/local/lib/systemd/system"
            for path in (self.root / "etc/maxam/maxam.toml", *units.iterdir()):
                changed = path.read_text().replace('"0.0.0.0"', '"127.0.0.1"').replace("5_368_709_120", "1_048_576")
                path.write_text(self._with_ports(changed))
        return done.stdout.replace(str(self.root), "").replace(NEXT, "NEW")

    def come_anew(self) -> None:
        """Open another shell: nothing is left of the one before but files."""
        self._state.write_text(f"cd {self.here}\n", encoding="utf-8")

    def execute(self, block: Block) -> str:
        """The guide has no snippets."""
        raise AssertionError(block)

    def _with_ports(self, text: str) -> str:
        for port, ours in self._ports.items():
            text = re.sub(rf"\b{port}\b", ours, text)
        return text

    def stop(self) -> None:
        """End what was left running."""
        for file in (*(self.root / "run").glob("*.pid"), self.here / "drill.pid"):
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


def _nothing(_operator: Operator) -> None:
    """Most sections are come to in peace."""


def _backup_fails(operator: Operator) -> None:
    """The newest backup is left unfinished."""
    (operator.root / "var/backups/maxam/20991231T235959.000000Z.unfinished").mkdir()


def _gateway_dies(operator: Operator) -> None:
    """Its journal stays."""
    file = operator.root / "run/maxam-gateway.pid"
    descriptor = os.pidfd_open(int(file.read_text()))
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    select.select([descriptor], [], [])
    os.close(descriptor)


def _disk_goes(operator: Operator) -> None:
    """All that the gateway has written goes with it, but backups."""
    _gateway_dies(operator)
    (operator.root / "var/lib/maxam").rename(operator.root / "var/lib/lost")


def _next_bundle_comes(operator: Operator) -> None:
    """It is another release by its name only; that of before lies beside it."""
    (unpacked,) = [path for path in operator.here.glob("maxam-*-bundle") if path.is_dir()]
    new = shutil.copytree(unpacked, operator.here.parent / f"maxam-{NEXT}-bundle", copy_function=os.link)
    renamed(new, NEXT)
    with tarfile.open(operator.here / f"{new.name}.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(new, new.name)


# Events before an operator opens the guide at a section, each time.
HAPPENS: dict[str, tuple[Callable[[Operator], None], ...]] = {
    "Restore drill": (_backup_fails,),
    "Restore": (_gateway_dies, _disk_goes),
    "Upgrade and rollback": (_next_bundle_comes,),
}


def test_the_guide_is_true(operator: Operator) -> None:
    """Every command of the guide, from a bundle to its removal, works and prints what is shown. Each section has a shell of its own."""
    steps: list[str] = []
    found: list[str] = []
    text = GUIDE.read_text(encoding="utf-8")
    assert all(f"\n## {name}\n" in text for name in HAPPENS)
    starts = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        section = text[start:end]
        if not blocks(section):
            continue
        for happens in HAPPENS.get(section.partition("\n")[0].removeprefix("## "), (_nothing,)):
            happens(operator)
            operator.come_anew()
            found += faults(operator, "\n" * text[:start].count("\n") + section, steps.append)
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
