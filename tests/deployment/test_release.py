"""`deploy/make_release.py`: equal contents give equal bytes, and the bill of materials is that of the bundle."""

import gzip
import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.deployment.conftest import ROOT

EPOCH = 1_790_000_000


@pytest.fixture(scope="module")
def make_release() -> ModuleType:
    """Import the program from its folder, as the shell runs it."""
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        import make_release  # type: ignore[import-not-found]

        return make_release  # type: ignore[no-any-return]
    finally:
        sys.path.remove(str(ROOT / "deploy"))


def archived(folder: Path, mtime: float, names: list[str]) -> Path:
    """Pack files in this order, with a time of their own, as setuptools does."""
    path = folder / f"{mtime}.tar.gz"
    with gzip.GzipFile(path, "wb", mtime=mtime) as plain, tarfile.open(fileobj=plain, mode="w") as archive:
        for name in names:
            (folder / name).write_text(name)
            member = archive.gettarinfo(folder / name, f"maxam/{name}")
            member.mtime, member.uid, member.uname = mtime, int(mtime), "somebody"
            with (folder / name).open("rb") as file:
                archive.addfile(member, file)
    return path


def test_equal_files_give_equal_archives(make_release: ModuleType, tmp_path: Path) -> None:
    """Times, owners and order of the files do not show in a repacked source distribution; its contents stay."""
    first, second = archived(tmp_path, 1.5, ["a", "b"]), archived(tmp_path, 2000.0, ["b", "a"])
    assert first.read_bytes() != second.read_bytes()
    for path in (first, second):
        make_release.repack(path, EPOCH)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert [(member.name, member.mtime) for member in archive] == [("maxam/a", EPOCH), ("maxam/b", EPOCH)]


def test_the_bill_of_materials_is_that_of_the_bundle(make_release: ModuleType, bundle: Path) -> None:
    """Each wheel in the bundle is one component with its version and hash, and nothing else is."""
    bill = make_release.bill_of_materials(bundle, EPOCH)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    product = bill["metadata"]["component"]
    assert product["name"] == "maxam"
    listed = {item["hashes"][0]["content"]: item for item in [product, *bill["components"]]}
    with tarfile.open(bundle) as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".whl")]
        assert set(listed) == {hashlib.sha256(file.read()).hexdigest() for file in files if file is not None}
    refs = {item["bom-ref"] for item in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) == refs
    assert "pip" in {item["name"] for item in bill["components"]}
    assert bill == make_release.bill_of_materials(bundle, EPOCH)


def test_a_signature_is_checked_with_the_public_key_beside_it(make_release: ModuleType, tmp_path: Path) -> None:
    """The commands are those of docs/operate/deployment.md. A changed checksum is refused."""
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    release = tmp_path / "release"
    release.mkdir()
    sums = release / "SHA256SUMS"
    sums.write_text("0 maxam\n")
    make_release._sign(release, str(key))
    check = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "release.pub", "-in", "SHA256SUMS"]
    check += ["-sigfile", "SHA256SUMS.sig"]
    page = (ROOT / "docs/operate/deployment.md").read_text().replace("\\\n", " ")
    assert " ".join(check) in " ".join(page.split())
    assert subprocess.run(check, cwd=release, check=False).returncode == 0
    sums.write_text("1 maxam\n")
    assert subprocess.run(check, cwd=release, check=False).returncode != 0
