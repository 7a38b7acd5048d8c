"""Make a release of the clone's last commit: `make_release.py FOLDER` prints the folder of the release.

The release is a wheel, a source distribution, a bundle, a bill of materials of the bundle (CycloneDX) and SHA256SUMS. Where dpkg-deb
is, there is a Debian package too. SHA256SUMS is signed if SIGN_KEY is the file of a private key (Ed25519). Two clones of one commit give equal bytes on one machine: `make release-check`. Times are those of the commit, or SOURCE_DATE_EPOCH.
"""

import datetime as dt
import email.parser
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
import zipfile
from pathlib import Path
from typing import Any, Final

from make_bundle import make_bundle, pack

ROOT: Final = Path(__file__).resolve().parents[1]
_NAMESPACE: Final = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, RFC 9562


def make_release(folder: Path) -> Path:
    """Make the release below a folder; return its own folder.

    Raises:
        SystemExit: The clone differs from its last commit, or a part cannot be built.
    """
    changed = _git("status", "--porcelain")
    if changed:
        raise SystemExit(f"a release is made of a commit, but files differ from it. Commit or remove them:\n{changed}")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    os.environ |= {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    os.umask(0o022)
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _built("build_wheel", folder)
    release = folder / "-".join(wheel.name.split("-")[:2])
    release.mkdir(exist_ok=True)
    for old in release.iterdir():
        old.unlink()
    wheel = wheel.rename(release / wheel.name)
    source = _built("build_sdist", release)
    repack(source, epoch)
    bundle = make_bundle(wheel, release)
    if shutil.which("dpkg-deb") is None:
        sys.stderr.write("there is no dpkg-deb: the release has no Debian package\n")
    elif subprocess.run([ROOT / "deploy/make-deb", bundle, release], stdout=sys.stderr, check=False).returncode != 0:  # noqa: S603 - our own
        raise SystemExit("make-deb failed: no release is made")
    bill = bill_of_materials(bundle, epoch)
    (release / f"{release.name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(release.iterdir())]
    (release / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    key = os.environ.get("SIGN_KEY")
    if key:
        _sign(release, key)
    return release


def repack(archive: Path, epoch: int) -> None:
    """Write a tar.gz again, with members in order and with one owner and time."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member) if member.isfile() else None) for member in old.getmembers()]
        contents = {member.name: (member, b"" if file is None else file.read()) for member, file in members}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as new:
        for name in sorted(contents):
            member, content = contents[name]
            member.pax_headers = {}
            new.addfile(pack(member, epoch), io.BytesIO(content))
    archive.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))


def bill_of_materials(bundle: Path, epoch: int) -> dict[str, Any]:
    """Return what a bundle holds, as a CycloneDX 1.6 document."""
    components = []
    with tarfile.open(bundle) as archive:
        for member in archive:
            if member.name.endswith(".whl"):
                file = archive.extractfile(member)
                components.append(_component(member.name.rpartition("/")[2], b"" if file is None else file.read()))
    components.sort(key=lambda component: str(component["bom-ref"]))
    (product,) = (component for component in components if component["name"] == "maxam")
    components.remove(product)
    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(epoch, dt.UTC).isoformat().replace("+00:00", "Z"),
            "component": product | {"type": "application"},
        },
        "components": components,
        "dependencies": [
            {"ref": product["bom-ref"], "dependsOn": [component["bom-ref"] for component in components]},
        ],
    }


def _component(file: str, wheel: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        (name,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesHeaderParser().parsebytes(archive.read(name))
    place = f"pkg:pypi/{metadata['Name'].lower().replace('_', '-')}@{metadata['Version']}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": place,
        "name": metadata["Name"],
        "version": metadata["Version"],
        "purl": place,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel).hexdigest()}],
        "properties": [{"name": "maxam:file", "value": file}],
    }
    if metadata["License-Expression"]:
        component["licenses"] = [{"expression": metadata["License-Expression"]}]
    elif metadata["License"]:
        component["licenses"] = [{"license": {"name": metadata["License"].splitlines()[0]}}]
    return component


def _sign(release: Path, key: str) -> None:
    """Sign the checksums, and put the public key beside them."""
    sums = release / "SHA256SUMS"
    for arguments in (
        ["pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", str(sums), "-out", f"{sums}.sig"],
        ["pkey", "-in", key, "-pubout", "-out", str(release / "release.pub")],
    ):
        if subprocess.run(["openssl", *arguments], check=False).returncode != 0:  # noqa: S603, S607 - the user's openssl
            raise SystemExit(
                f"openssl cannot sign with {key}: the release is not signed. It takes a private key of Ed25519"
            )


def _built(what: str, folder: Path) -> Path:
    """Call the build backend in a process of its own, whose hashes of strings are always the same."""
    code = f"import sys, build_backend; print(build_backend.{what}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder.resolve())]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "deploy"),
        "MAXAM_CORE": os.environ.get("MAXAM_CORE", "compiled"),
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own
    if done.returncode != 0:
        raise SystemExit(f"{what} failed: no release is made")
    return folder / done.stdout.split()[-1]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - the user's git
    if done.returncode != 0:
        raise SystemExit(f"git {arguments[0]} failed: {done.stderr.strip()}. A release is made in a clone")
    return done.stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.stdout.write(f"{make_release(Path(sys.argv[1]))}\n")
