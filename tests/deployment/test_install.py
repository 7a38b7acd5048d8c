"""`deploy/install`: what it makes, leaves alone, refuses, and takes back."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.conftest import renamed

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def run(
    script: Path, root: Path | None, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run an install script below a folder (None: where it is installed), without network where the system lets us cut it off."""
    cut = (
        ["unshare", "--net"]
        if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
        else []
    )
    environment = os.environ | {"PYTHON": python}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [*cut, str(script), *arguments, *([] if root is None else ["--root", str(root)])], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.fixture(scope="module")
def unpacked(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked bundle."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", bundle, "-C", folder], check=True)  # Debian 12's Python lacks the filters of tarfile
    (top,) = folder.iterdir()
    return top


@pytest.fixture
def bundle_copy(unpacked: Path, tmp_path: Path) -> Path:
    """One that a test may change, except its files, which are links."""
    return Path(shutil.copytree(unpacked, tmp_path / "copy", copy_function=os.link))


def test_install_upgrade_rollback_uninstall(unpacked: Path, bundle_copy: Path, tmp_path: Path) -> None:
    """Without network: a release is installed once and again, another beside it, each runs, configuration stays, and nothing of the programs is left."""
    root = tmp_path / "root"
    first = (unpacked / "release").read_text().strip()
    current = root / "opt/maxam/current"

    assert run(unpacked / "install", root).returncode == 0
    assert current.resolve().name == first
    assert any((unpacked / "wheels").glob("grpcio-*.whl"))  # a member of a cluster needs it
    configuration = root / "etc/maxam/maxam.toml"
    configuration.write_text("mine")
    before = current.stat().st_ino
    again = run(unpacked / "install", root)
    assert (again.returncode, again.stdout) == (0, f"maxam {first} is installed (before: {first})\n")
    assert (current.stat().st_ino, configuration.read_text()) == (before, "mine")
    version = subprocess.run(
        [root / "usr/local/bin/maxam-gateway", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith(f"maxam {first.partition('-')[0]} ")
    commands, units = root / "usr/local/bin", root / "usr/local/lib/systemd/system"
    assert {one.name for one in units.iterdir()} == {one.name for one in UNITS.iterdir()}
    assert {one.name for one in commands.iterdir()} == {"maxam-gateway", "maxam-admin", "maxam-bridge"}

    renamed(bundle_copy, "9.9.9-upgrade")
    # as an attempt before left it, complete: what makes it so is what made the first
    shutil.copytree(current.resolve(), root / "opt/maxam/releases/9.9.9-upgrade", symlinks=True, copy_function=os.link)
    upgraded = run(bundle_copy / "install", root)
    assert upgraded.returncode == 0, upgraded.stderr
    assert "systemctl restart maxam-gateway" in upgraded.stdout
    assert (current.resolve().name, configuration.read_text()) == ("9.9.9-upgrade", "mine")

    (root / "etc/maxam/tls/gateway.pem").touch()  # from now on there is a configuration to check, an invalid one
    refused = run(current / "share/install", None, "--rollback")
    assert refused.returncode == 1
    assert "refuses" in refused.stderr
    assert current.resolve().name == "9.9.9-upgrade"
    (root / "etc/maxam/tls/gateway.pem").unlink()
    (root / f"opt/maxam/releases/{first}/share/systemd/maxam-crl.timer").unlink()  # the first one knows nothing of it
    (root / f"opt/maxam/releases/{first}/bin/maxam-bridge").unlink()
    assert run(current / "share/install", None, "--rollback").returncode == 0
    assert {one.name for one in commands.iterdir()} == {"maxam-gateway", "maxam-admin"}
    assert (current.resolve().name, (root / "opt/maxam/previous").resolve().name) == (first, "9.9.9-upgrade")

    assert run(current / "share/install", None, "--uninstall").returncode == 0
    assert not (root / "opt/maxam").exists()
    assert list(commands.iterdir()) == list(units.iterdir()) == []
    assert configuration.read_text() == "mine"
    assert (root / "var/lib/maxam").is_dir()


def test_a_damaged_bundle_is_refused(bundle_copy: Path, tmp_path: Path) -> None:
    """A bundle that was changed on the way installs nothing."""
    wheel = next((bundle_copy / "wheels").glob("maxam-*.whl"))
    text = wheel.read_bytes()
    wheel.unlink()
    wheel.write_bytes(text[:-1] + b"x")
    done = run(bundle_copy / "install", tmp_path / "root")
    assert done.returncode == 1
    assert "the bundle is damaged" in done.stderr
    assert not (tmp_path / "root/opt").exists()


def test_another_python_is_refused(unpacked: Path, tmp_path: Path) -> None:
    """A Python that does not fit the wheels is reported, with the one that fits. A missing Python is reported too."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho cpython 3.9 x86_64\n")
    other.chmod(0o755)
    done = run(unpacked / "install", tmp_path / "root", python=str(other))
    assert done.returncode == 1
    assert (unpacked / "python").read_text().strip() in done.stderr
    assert "cpython 3.9" in done.stderr
    done = run(unpacked / "install", tmp_path / "root", python=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "there is no" in done.stderr
    assert not (tmp_path / "root/opt").exists()


def test_a_bundle_holds_no_key(unpacked: Path) -> None:
    """Nor a certificate: they are made where they belong."""
    assert [path for path in unpacked.rglob("*") if path.suffix in (".key", ".pem", ".p12")] == []
    assert [
        path
        for path in (unpacked / "share").rglob("*")
        if path.is_file() and b"PRIVATE KEY-----\nM" in path.read_bytes()
    ] == []


def test_what_the_documents_of_a_bundle_lead_to_is_in_it(unpacked: Path) -> None:
    """Every link and every picture of every page: who has only the bundle misses none."""
    pages = sorted((unpacked / "share").rglob("*.md"))
    assert {"README.md", "CHANGELOG.md", "operations.md"} <= {page.name for page in pages}
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))]
    assert [
        f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()
    ] == []


def test_the_samples_of_an_image_are_those_of_an_installation(unpacked: Path, tmp_path: Path) -> None:
    """With only the image, docs/operate/deployment.md has a container copy the samples: all that `install` puts into /etc/maxam."""
    root = tmp_path / "root"
    assert run(unpacked / "install", root).returncode == 0
    guide = (Path(__file__).parents[2] / "docs/operate/deployment.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^  '(cp .*)'$", guide, re.MULTILINE)
    new = tmp_path / "new"
    new.mkdir()
    script = script.replace("/opt/", f"{root}/opt/").replace("/new", str(new)).replace("-g 10001 ", "")
    subprocess.run(["sh", "-ec", script], check=True)
    etc = root / "etc/maxam"
    assert {path.relative_to(new) for path in new.rglob("*")} == {path.relative_to(etc) for path in etc.rglob("*")}
    assert (new / "tls").stat().st_mode == (etc / "tls").stat().st_mode


def test_a_plan_switches_nothing(unpacked: Path, bundle_copy: Path, tmp_path: Path) -> None:
    """It lists both releases, units and alert rules that change, and what operators have to do."""
    root = tmp_path / "root"
    assert run(unpacked / "install", root).returncode == 0
    before = (root / "opt/maxam/current").resolve()
    renamed(bundle_copy, "9.9.9-plan")
    for name, text in (
        ("share/systemd/maxam-crl.timer", "[Timer]\n"),
        ("share/prometheus/maxam.rules.yml", "groups: []\n"),
        ("share/CHANGELOG.md", "- Something. **Take the new\n  rules** from\n  share (1).\n- Nothing to do.\n"),
    ):
        (bundle_copy / name).unlink()
        (bundle_copy / name).write_text(text)
    sums = [line for line in (bundle_copy / "SHA256SUMS").read_text().splitlines() if not line.endswith(("crl.timer", "rules.yml", "CHANGELOG.md"))]  # fmt: skip
    (bundle_copy / "SHA256SUMS").unlink()
    (bundle_copy / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    told = run(bundle_copy / "install", root, "--plan")
    assert told.returncode == 0, told.stderr
    assert f"9.9.9-plan (interpreted) replaces {before.name} (interpreted)" in told.stdout
    assert "maxam-crl.timer" in told.stdout
    assert "maxam-gateway.service" not in told.stdout
    assert "prometheus" in told.stdout
    todo = [line for line in told.stdout.splitlines() if line.startswith("to do: ")]
    assert todo == ["to do: - Something. **Take the new rules** from share (1)."]
    assert (root / "opt/maxam/current").resolve() == before
