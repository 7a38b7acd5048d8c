"""docs/integrate/schemas.md is true: its commands and snippets are run as they stand, in its order, and print what it shows."""

import contextlib
import io
import json
import re
import shlex
import shutil
import string
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from maxam.avro.registry import load_registry
from maxam.cli.commands.schemas import schemas
from maxam.cli.main import main
from maxam.errors import SchemaError
from tests.docs.guides import Block, blocks, faults, shell
from tests.support.gateway_process import GatewayProcess

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs" / "integrate" / "schemas.md"

pytestmark = pytest.mark.interop


class Paster:
    """Runs the guide's commands and snippets in the current folder, with another gateway than the guide's."""

    def __init__(self, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin with the variables that each command is to see."""
        self._ports = {"61614": str(gateway.port), "8643": str(gateway.admin_port)}
        self._monkeypatch = monkeypatch
        self.exit_code = 0

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        text = self._here(text)
        self.exit_code = 0
        words = shlex.split(text, comments=False) if "<<" not in text else [text]
        if words[0] == "make":
            found = re.search(rf"^{words[1]}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            self.exit_code = 0 if found else 2
            return "" if found else f"there is no target {words[1]}"
        if words[0] == "export":
            for word in words[1:]:
                self._monkeypatch.setenv(*word.split("=", 1))
            return ""
        if words[0] == "maxam-admin" and not {"<<", "<", ">", "|"} & set(words):
            result = CliRunner().invoke(main, words[1:], prog_name="maxam-admin")
            self.exit_code = result.exit_code
            if result.exc_info is not None and not isinstance(result.exception, SystemExit | None):
                return "".join(traceback.format_exception(result.exception))
            return result.output
        self.exit_code, output = shell(text)
        return output

    def execute(self, block: Block) -> str:
        """Run a snippet; give what it printed, and how it failed."""
        source = "\n" * block.line + self._here("\n".join(block.lines))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(source, str(GUIDE), "exec"), {"__name__": "guide"})  # noqa: S102  # the guide's own
            except Exception:  # noqa: BLE001  # whatever it is, the guide is not true, and goes on
                out.write(traceback.format_exc())
        return out.getvalue()

    def _here(self, text: str) -> str:
        for port, ours in self._ports.items():
            text = text.replace(port, ours)
        return text


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayProcess]:
    """Stand in a clone where `make run` runs."""
    clone = tmp_path / "clone"
    (clone / "var").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "schemas", clone / "schemas")
    (clone / "certs-dev").symlink_to(certificates)
    fingerprints = json.loads((certificates / "fingerprints.json").read_text(encoding="utf-8"))
    template = (REPOSITORY / "certs-dev" / "policy-dev.template.toml").read_text(encoding="utf-8")
    (clone / "policy-dev.toml").write_text(string.Template(template).substitute(fingerprints), encoding="utf-8")
    process = GatewayProcess(clone / "var", certificates, "", clone / "schemas")
    settings = clone / "var" / "maxam.toml"
    text = settings.read_text(encoding="utf-8").replace('"policy.toml"', '"../policy-dev.toml"')
    settings.write_text(text, encoding="utf-8")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, command in {
        "maxam-admin": '-c "from maxam.cli.main import main; main()"',
        "python": "",
    }.items():
        (scripts / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n', encoding="utf-8")
        (scripts / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(scripts), prepend=":")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(clone)
    with process:
        yield process


def test_the_guide_is_true(gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and snippet of the guide runs, and prints what the guide shows."""
    found = faults(Paster(gateway, monkeypatch), GUIDE.read_text(encoding="utf-8"), print)
    assert not found, "\n\n".join(found)


def test_every_command_is_in_the_guide_and_nothing_in_it_is_skipped() -> None:
    """Each command about schemas is run, every block is one of those that are run, and the targets of links exist."""
    text = GUIDE.read_text(encoding="utf-8")
    verbs = schemas.list_commands(click.Context(schemas))
    assert [
        verb for verb in verbs if f"maxam-admin schemas {verb} " not in text and f"schemas {verb}\n" not in text
    ] == []
    assert {block.kind for block in blocks(text)} <= {"console", "python", "text"}
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not (GUIDE.parent / link).exists()] == []


OPEN: dict[str, Any] = {"name": "open", "type": "boolean"}
NUMBER: dict[str, Any] = {"name": "n", "type": "int"}
TEXT: dict[str, Any] = {"name": "s", "type": ["null", "string"], "default": None}
MORE: dict[str, Any] = {"name": "x", "type": ["null", "int"], "default": None}


def enum(*symbols: str) -> dict[str, Any]:
    """Make a field with an enum that has a default."""
    of = {"type": "enum", "name": "E", "symbols": list(symbols), "default": symbols[0]}
    return {"name": "e", "type": of}


OLD = [OPEN, NUMBER, TEXT, enum("U", "A", "B")]
CHANGES = {
    "a field with a default, at the end": [*OLD, MORE],
    "a field with a default, elsewhere": [*OLD[:2], MORE, *OLD[2:]],
    "a field without a default": [*OLD, {"name": "x", "type": "int"}],
    "a field with a default removed": [OPEN, NUMBER, OLD[3]],
    "a field without a default removed": [OPEN, TEXT, OLD[3]],
    "a symbol at the end of an enum with a default": [*OLD[:3], enum("U", "A", "B", "C")],
    "a symbol elsewhere in an enum with a default": [*OLD[:3], enum("U", "C", "A", "B")],
    "fields in another order": [OPEN, TEXT, NUMBER, OLD[3]],
    "a field renamed, with an alias": [OPEN, {"name": "m", "type": "int", "aliases": ["n"]}, *OLD[2:]],
    "an int becomes a long": [OPEN, {"name": "n", "type": "long"}, *OLD[2:]],
    "one more branch in a union": [OPEN, NUMBER, TEXT | {"type": ["null", "string", "int"]}, OLD[3]],
    "another doc": [OPEN | {"doc": "Whether."}, *OLD[1:]],
}


def compatible(fields: list[dict[str, Any]], encoding: str) -> str:
    """Return True if a folder with such a second version loads."""
    text = {"type": "record", "namespace": "t", "name": "T_v1"}
    rule = f'[[rule]]\ndestination = "X/a"\nschema = "t.T_v1"\nencoding = "{encoding}"\n'
    texts = {
        "registry.toml": rule.encode(),
        "t/T_v1/1.0.avsc": json.dumps(text | {"fields": OLD}).encode(),
        "t/T_v1/1.1.avsc": json.dumps(text | {"fields": fields}).encode(),
    }
    try:
        load_registry(texts)
    except SchemaError:
        return "no"
    return "yes"


def test_the_table_of_compatible_changes_is_true() -> None:
    """Each change of the guide's table is taken or refused as its row shows; the table has no other."""
    rows = re.findall(
        r"^\| (a.*|an.*|f.*|one.*) \| (yes|no) \| (yes|no) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [name for name, _, _ in rows] == list(CHANGES)
    found = [
        (name, compatible(CHANGES[name], "single-object"), compatible(CHANGES[name], "datum")) for name, _, _ in rows
    ]
    assert found == rows
