"""The npm package @maxam/client: its own tests, its types, its size, and that two builds give equal bytes."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

import maxam
from tests.web.node import PACKAGE, require_package, run_node

GZIP_BYTES_MAX = 15 * 1024


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package once for all tests of this file."""
    require_package()
    out = tmp_path_factory.mktemp("typescript") / "dist"
    run_node("build.mjs", "--out", str(out))
    return out


def test_its_own_tests_pass(tmp_path: Path) -> None:
    """The codec, the live map under faults and every final error hold in Node.js."""
    require_package()
    run_node("build.mjs", "--tests", "--out", str(tmp_path / "tests"))
    run_node("--test", *map(str, sorted((tmp_path / "tests").glob("*.test.mjs"))))


def test_types() -> None:
    """The compiler of TypeScript finds nothing."""
    require_package()
    run_node("node_modules/.bin/tsc", "--noEmit")


def test_two_builds_are_equal(built: Path, tmp_path: Path) -> None:
    """A second build gives the same files with the same bytes."""
    run_node("build.mjs", "--out", str(tmp_path / "dist"))
    first, second = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in (built, tmp_path / "dist"))
    assert first == second


def test_it_is_small_and_needs_neither_buffer_nor_react(built: Path) -> None:
    """All entry points together stay below 15 KiB compressed. Only the hooks import React, and only the TLS transport Node.js."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in built.glob("*.js")}
    assert sum(len(gzip.compress(text.encode())) for text in scripts.values()) <= GZIP_BYTES_MAX
    imports = {name: set(re.findall(r'from"([^".][^"]*)"', text)) for name, text in scripts.items()}
    assert imports.pop("react.js") == {"react"}
    assert imports.pop("node.js") == {"node:tls"}
    assert not any(imports.values())
    assert not any(re.search(r"\bBuffer\b|\beval\(", text) for text in scripts.values())


def test_every_entry_point_has_its_types(built: Path) -> None:
    """Each file that package.json exports is built, and its declarations import only files of the package."""
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    for entry in package["exports"].values():
        for path in entry.values():
            assert (built / Path(path).name).is_file()
    for path in built.glob("*.d.ts"):
        for name in re.findall(r'from "\./([\w-]+)\.js"', path.read_text(encoding="utf-8")):
            assert (built / f"{name}.d.ts").is_file()
        assert not re.search(r'from "[^"]+\.ts"', path.read_text(encoding="utf-8"))


def test_it_has_the_version_of_maxam_and_no_registry() -> None:
    """package.json has the version of the gateway. The lock file has hashes, and no address."""
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((PACKAGE / "package-lock.json").read_text(encoding="utf-8"))
    assert package["version"] == lock["version"] == maxam.__version__
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)


def test_the_wheel_has_none_of_it() -> None:
    """Setuptools finds no package in the folder."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=PACKAGE, check=True, capture_output=True, text=True).stdout
    assert listed == ""
    assert not list(PACKAGE.glob("**/__init__.py"))
