"""`maxam-admin schemas ...` on a folder, without a gateway: output, written files, and no loss by invalid input."""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner, Result

from maxam.avro.places import line_of
from maxam.cli.main import main
from tests.support.errors import code_in

SHIPPED = Path(__file__).parents[3] / "schemas"
NOTHING = dict.fromkeys(
    ("MAXAM_GATEWAY", "MAXAM_CERTIFICATE", "MAXAM_KEY", "MAXAM_CA", "MAXAM_SCHEMAS")
)  # variables of the user who runs the tests

REGISTRY = """\
# What people wrote stays.
[registry]
fingerprint = "CRC-64-AVRO"   # aligned, with a comment

[[rule]]  # narrow
destination = 'X/A.*.Raw'
encoding = "none"

# All that is left.
[[rule]]
destination = "X/A.**"
schema = "t.T_v1"
encoding = "datum"
"""
FIELDS = '[{"name": "text", "type": "string"}, {"name": "n", "type": "int", "default": 7}]'
RECORD = '{\n  "type": "record",\n  "name": "T_v1",\n  "namespace": "t",\n  "doc": "d",\n  "fields": %s\n}\n'

Cli = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small schema folder."""
    made = tmp_path / "schemas"
    (made / "t/T_v1").mkdir(parents=True)
    (made / "registry.toml").write_text(REGISTRY)
    (made / "t/T_v1/1.0.avsc").write_text(RECORD % FIELDS)
    return made


@pytest.fixture
def cli(folder: Path) -> Cli:
    """Run a command on that folder."""

    def run(*arguments: str, given: bytes | None = None) -> Result:
        return CliRunner().invoke(
            main, ["schemas", *arguments], env=NOTHING | {"MAXAM_SCHEMAS": str(folder)}, input=given
        )

    return run


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(result: Result, *messages: str, code: int = 1) -> None:
    """Assert that a command ended with an exit code and one line with the cause."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert code_in(result.stderr)
    assert result.stderr.count("\n") == 1
    for message in messages:
        assert message in result.stderr


# check


def test_a_good_folder(cli: Cli, folder: Path) -> None:
    """Types and minors are listed, for people and as one object."""
    result = cli("check")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        f"{folder}: valid, 2 rules, 1 type\nt.T_v1  1.0\n",
        "",
    )
    assert json.loads(cli("check", str(folder), "--json").stdout) == {
        "folder": str(folder), "good": True, "errors": 0, "warnings": 0, "rules": 2, "types": {"t.T_v1": ["1.0"]},
    }  # fmt: skip


def test_the_shipped_folder_is_good() -> None:
    """The folder that integrators copy has neither errors nor warnings."""
    result = CliRunner().invoke(main, ["schemas", "check", str(SHIPPED), "--strict"], env=NOTHING)
    assert (result.exit_code, result.stderr) == (0, "")


def test_everything_wrong_is_named_at_once(cli: Cli, folder: Path) -> None:
    """Several mistakes in several files: each is a line with file, line and place, and nothing that only follows from another."""
    (folder / "t/T_v1/1.0.avsc").write_text(
        RECORD
        % '[\n    {"name": "1x", "type": "int"},\n    {"name": "y", "type": "itn"},\n    {"name": "z", "type": "int", "default": "q"}\n  ]'
    )
    (folder / "t/U_v1").mkdir()
    (folder / "t/U_v1/1.0.avsc").write_text('{\n"type": ')
    (folder / "t/U_v1/one.avsc").write_text("{}")
    text = REGISTRY.replace('"none"', '"no"') + '[[rule]]\ndestination = "X/B"\nschema = "t.U_v1"\nencoding = "datum"\n'
    text += '[type."t.V_v1"]\ncompatibility = "FULL"\n[type."t.T_v1"]\ncompatibility = "SOME"\n'
    (folder / "registry.toml").write_text(text.replace('"CRC-64-AVRO"', '"MD5"'))
    result = cli("check")
    assert result.exit_code == 1
    places = [line.split(": ")[:2] for line in result.stdout.splitlines()]
    assert [file for file, _ in places[:2]] == ["t/U_v1/1.0.avsc:2", "t/U_v1/one.avsc"]
    assert places[2:] == [
        ["t/T_v1/1.0.avsc:7", "fields[0].name"],
        ["t/T_v1/1.0.avsc:8", "fields[1].type"],
        ["t/T_v1/1.0.avsc:9", "fields[2].default"],
        ["registry.toml:3", "registry.fingerprint"],
        ["registry.toml:18", 'type."t.V_v1"'],
        ["registry.toml:21", 'type."t.T_v1".compatibility'],
        ["registry.toml:7", "rule[0].encoding"],
    ]  # fmt: skip
    assert result.stderr == f"Error [configuration-invalid]: {folder}: 9 errors\n"
    rows = [json.loads(line) for line in cli("check", "--json").stdout.splitlines()]
    assert [f"{row['file']}:{row['line']}" for row in rows[3:5]] == ["t/T_v1/1.0.avsc:8", "t/T_v1/1.0.avsc:9"]
    assert "'itn'" in rows[3].pop("problem")
    assert rows[3] == {"severity": "error", "file": "t/T_v1/1.0.avsc", "line": 8, "place": "fields[1].type"}
    assert rows[-1]["errors"] == 9
    refused(cli("list"), "t/U_v1/1.0.avsc:2: not JSON", f"(8 more: maxam-admin schemas check {folder})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n[[rule]\n", "registry.toml:2: not UTF-8 TOML"),
        (b"\xff", "registry.toml:1: not UTF-8 TOML"),
        (b"rule = 1", "registry.toml:1: rule: expected an array of tables, found 1"),
        (b"\nrules = []", "registry.toml:2: rules: unknown key, known here: registry, rule, type"),
        (b"[registry]\nenvelope_keys = {body = 2, fingerprint = 2}", "registry.toml:2: registry.envelope_keys.fingerprint: body has 2"),
    ],
)  # fmt: skip
def test_a_bad_registry_file(cli: Cli, folder: Path, text: bytes, message: str) -> None:
    """Any fault of registry.toml is one finding, and the schemas are still checked."""
    (folder / "registry.toml").write_bytes(text)
    result = cli("check")
    assert result.exit_code == 1
    assert result.stdout.startswith(message)


def test_the_forms_for_ci(cli: Cli, folder: Path) -> None:
    """Workflow commands have file and line as GitHub wants them. JUnit's form has a test for each file. Exit codes are the same."""
    assert cli("check", "--format", "github").stdout == ""
    good = ET.fromstring(cli("check", "--format", "junit").stdout)  # noqa: S314  # as above
    assert good.find("testsuite/testcase/failure") is None
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file()}
    assert {case.get("name") for case in good.iter("testcase")} == files
    assert cli("check", "--format", "json").stdout == cli("check", "--json").stdout

    shutil.copytree(folder / "t/T_v1", folder / "t/U_v1")
    (folder / "t/U_v1/1.0.avsc").write_text((folder / "t/T_v1/1.0.avsc").read_text().replace("T_v1", "U_v1"))
    odd = cli("check", "--format", "github", "--strict")
    assert (odd.exit_code, odd.stdout.count("\n")) == (1, 1)
    assert odd.stdout.startswith(f"::warning file={folder}/t/U_v1/1.0.avsc::no rule carries t.U_v1")

    fields = '[\n    {"name": "100%<x>:", "type": "int"},\n    {"name": "y", "type": "itn"}\n  ]'
    (folder / "t/T_v1/1.0.avsc").write_text(RECORD % fields)
    bad = cli("check", "--format", "github")
    assert bad.exit_code == 1
    lines = bad.stdout.splitlines()
    assert [line.split("::")[1] for line in lines] == [f"error file={folder}/t/T_v1/1.0.avsc,line={n}" for n in (7, 8)]
    assert "100%25<x>:" in lines[0]
    document = cli("check", "--format", "junit")
    assert document.exit_code == 1
    suite = ET.fromstring(document.stdout)  # noqa: S314  # as above
    assert suite.get("failures") == "1"
    (failed,) = suite.iter("failure")
    assert failed.text is not None
    told = failed.text.strip().splitlines()
    assert [line.split(": ")[0] for line in told] == ["t/T_v1/1.0.avsc:7", "t/T_v1/1.0.avsc:8"]
    assert "100%<x>:" in told[0]


def test_a_folder_that_is_none(cli: Cli, tmp_path: Path) -> None:
    """A path that is no schema folder is reported by every command."""
    for arguments in (["check", str(tmp_path)], ["list", "--folder", str(tmp_path)], ["check", "/nonesuch"]):
        refused(cli(*arguments), "folder", code=3)


def test_what_is_odd_is_a_warning(cli: Cli, folder: Path) -> None:
    """A rule that never decides, an unused type and an old version that is not released: on standard error, exit code 0."""
    shutil.copytree(folder / "t/T_v1", folder / "t/U_v1")
    unused = (folder / "t/U_v1/1.0.avsc").read_text().replace("T_v1", "U_v1")
    (folder / "t/U_v1/1.0.avsc").write_text(unused)
    shutil.copy(folder / "t/T_v1/1.0.avsc", folder / "t/T_v1/1.1.avsc")
    (folder / "registry.lock").write_text("")
    with (folder / "registry.toml").open("a") as file:
        file.write('[[rule]]\ndestination = "X/A.1.Status"\nschema = "t.T_v1"\nencoding = "datum"\n')
    result = cli("check")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0].startswith(
        "warning: registry.toml:15: rule[2].destination: never decides: rule[1] (X/A.**) comes first"
    )
    assert lines[1].startswith("warning: t/U_v1/1.0.avsc: no rule carries t.U_v1 and no other type holds it")
    assert lines[2].startswith("warning: t/T_v1/1.0.avsc: not in registry.lock, though there is a newer minor")
    assert len(lines) == 3
    assert cli("check", "--strict").exit_code == 1
    assert cli("release", "t.U_v1").exit_code == 0
    assert "t.U_v1" not in cli("check").stderr  # it is retired, and may not be removed
    (folder / "registry.lock").write_text("")
    rows = [json.loads(line) for line in cli("check", "--json").stdout.splitlines()]
    assert [row.get("severity") for row in rows] == ["warning", "warning", "warning", None]


@pytest.mark.parametrize(
    ("type_", "place", "releasable"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "fields[0].type", False),
        ({"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A"]}}, "fields[0].type.items", False),
        ({"type": "long", "logicalType": "timestamp-milis"}, "fields[0].type.logicalType", False),
        ({"type": "string", "logicalType": "our-own-kind"}, "fields[0].type.logicalType", True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "fields[0].type.logicalType", True),
        (["null", {"type": "string", "pii": True}], "fields[0].type[1].pii", False),
    ],
)
def test_what_cannot_be_undone_is_told_before_it_is_released(
    cli: Cli, folder: Path, type_: object, place: str, releasable: bool
) -> None:
    """A warning of check, an error under --strict, and where it is surely a mistake no release; once it is released, it is not reported."""
    text = RECORD % json.dumps([{"name": "x", "type": type_, "pii": False}])
    (folder / "t/T_v1/1.0.avsc").write_text(text)
    result = cli("check", "--json")
    [found] = [row for row in map(json.loads, result.stdout.splitlines()) if row.get("severity")]
    assert (result.exit_code, found["severity"], found["place"]) == (0, "warning", place)
    assert cli("check", "--strict").exit_code == 1
    assert cli("release", "t.T_v1").exit_code == (0 if releasable else 1)
    assert cli("bump", "t.T_v1", "--release").exit_code == (0 if releasable else 1)
    assert (folder / "t/T_v1/1.1.avsc").exists() is releasable
    if releasable:
        assert "fields[0]" not in cli("check").stderr


def test_a_candidate_that_could_not_become_a_version_is_told(cli: Cli, folder: Path) -> None:
    """A rule may try it all the same; a compatible one is not mentioned."""
    for fields, told in (('[{"name": "n", "type": "string"}]', True), (FIELDS, False)):
        (folder / "t/T_v1/1.1.candidate.avsc").write_text(RECORD % fields)
        result = cli("check")
        assert result.exit_code == 0, result.output
        assert ("t/T_v1/1.1.candidate.avsc: " in result.stderr) is told


def test_an_example_shows_the_field_at_fault(cli: Cli, folder: Path) -> None:
    """Of a long value not its beginning, but the part that cannot be read."""
    many = [{"name": f"field{number}", "type": "string"} for number in range(20)]
    old, new = [*many, {"name": "amount", "type": "string"}], [*many, {"name": "amount", "type": "int"}]
    (folder / "t/T_v1/1.0.avsc").write_text(RECORD % json.dumps(old))
    (folder / "t/T_v1/1.1.avsc").write_text(RECORD % json.dumps(new))
    result = cli("check")
    assert result.exit_code == 1
    assert 'such as amount = ""' in result.output + result.stderr


@pytest.mark.parametrize("command", [["check", "--strict"], ["release"]])
def test_the_shipped_schemas_have_no_traps(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    """As they are, and as if none of them were released yet."""
    for name in ("with", "without"):
        shutil.copytree(SHIPPED, tmp_path / name)
    (tmp_path / "without/registry.lock").unlink(missing_ok=True)
    for name in ("with", "without"):
        where = [str(tmp_path / name)] if command[0] == "check" else ["--folder", str(tmp_path / name)]
        result = cli(*command, *where)
        assert result.exit_code == 0, result.output


def test_places_of_json_and_toml() -> None:
    """The line of a place is found in text of any layout; an unknown one is that of what is around it."""
    text = b'{"a": [\n {"b":\n 1}, "}",\n [2]],\n "references": {"x.Y_v1":\n "1.0"}}'
    places = {"a": 1, "a[0]": 2, "a[0].b": 3, "a[1]": 3, "a[2][0]": 4, "references.x.Y_v1": 6, "a[0].c": 2, "z": None}
    for place, line in places.items():
        assert line_of("x.avsc", text, place) == line
    assert line_of("x.avsc", b'{"a": ', "a.b") is None
    toml = b'a = 1\n[t]\nb = 2\n[[r]]\n[[r]]\nc = """\n"""\n[x."y.z"]\nd = 1'
    for place, found in {"a": 1, "t.b": 3, "r[0]": 4, "r[1].c": 6, "r[1].q": 5, 'x."y.z".d': 9}.items():
        assert line_of("x.toml", toml, place) == found


# list, show, explain, diff


def test_list_and_show(cli: Cli) -> None:
    """Types, rules, one type with its fields, its text and an example."""
    rows = [json.loads(line) for line in cli("list", "--json").stdout.splitlines()]
    assert rows[0]["type"] == "t.T_v1"
    assert (rows[0]["versions"][0]["minor"], rows[0]["versions"][0]["released"]) == ("1.0", False)
    assert "1.0*" in cli("list").stdout
    assert cli("list", "--json", "--limit", "1").stdout.count("\n") == 1
    rules = [json.loads(line) for line in cli("list", "--rules", "--json").stdout.splitlines()]
    assert [(rule["index"], rule["encoding"]) for rule in rules] == [(0, "none"), (1, "datum")]
    assert "X/A.*.Raw" in cli("list", "--rules").stdout
    shown = cli("show", "t.T_v1").stdout
    assert "FULL_TRANSITIVE" in shown
    assert "text" in shown
    text = cli("show", "t.T_v1", "1.0", "--text").stdout
    assert json.loads(text)["name"] == "T_v1"
    assert json.loads(cli("show", "t.T_v1", "--json").stdout)["schema"] == json.loads(text)
    assert json.loads(cli("show", "t.T_v1", "--example").stdout) == {"text": "", "n": 0}
    refused(cli("show", "t.T_v2"), "there is no type 't.T_v2'; did you mean t.T_v1?")
    refused(cli("show", "t.T_v1", "1.7"), "t.T_v1 has no schema version '1.7', there are: 1.0")
    refused(cli("show", "q"), "known: t.T_v1")


def test_explain(cli: Cli) -> None:
    """The rule that decides, the others that match, and why nothing can be sent."""
    found = json.loads(cli("explain", "X/A.1.Raw", "--json").stdout)
    assert (found["rule"], found["encoding"], found["also"]) == (0, "none", [1])
    shown = cli("explain", "X/A.1").stdout
    assert "rule[1]  X/A.**" in shown
    assert "minors that judge  1.0" in shown
    result = cli("explain", "X/B.1")
    assert result.exit_code == 1
    assert "X/B.1" in result.stderr
    assert "no-rule" in result.stderr
    result = cli("explain", "X/A..1", "--json")
    assert (result.exit_code, json.loads(result.stdout)["result"]) == (1, "invalid-destination")


def test_diff(cli: Cli, folder: Path) -> None:
    """Field by field, with both directions of compatibility and a value that proves what cannot be read."""
    refused(cli("diff", "t.T_v1"), "t.T_v1 has one version only, 1.0")
    refused(cli("diff", "t.V_v1", "1.0"), "there is no type 't.V_v1'")
    fields = json.loads(FIELDS)
    (folder / "t/T_v1/1.1.avsc").write_text(
        RECORD.replace('"d"', '"e"')
        % json.dumps(
            [
                fields[0],
                {**fields[1], "default": 8, "doc": "new", "pii": True},
                {"name": "o", "type": ["null", "string"], "default": None},
            ]
        )
    )
    first, *lines = cli("diff", "t.T_v1").stdout.splitlines()
    assert first == "t.T_v1 1.0 -> t.T_v1 1.1"
    assert [line.partition(": ")[0] for line in lines[:-1]] == [
        "  the whole", "  n", "  n", "  n", "  o", "backward", "forward",
    ]  # fmt: skip
    assert lines[-1].endswith(" FULL_TRANSITIVE")
    shutil.copytree(folder / "t/T_v1", folder / "t/T_v2")
    for old in (folder / "t/T_v2").iterdir():
        old.unlink()
    renamed = [{"name": "txt", "type": "string", "aliases": ["text"]}, {"name": "m", "type": "long"}]
    (folder / "t/T_v2/2.0.avsc").write_text((RECORD % json.dumps(renamed)).replace("T_v1", "T_v2"))
    rows = [json.loads(line) for line in cli("diff", "t.T_v1", "1.0", "2.0", "--json").stdout.splitlines()]
    assert [(row["path"], row["kind"]) for row in rows[:-2]] == [
        ("", "type"), ("txt", "renamed"), ("m", "added"), ("n", "removed"),
    ]  # fmt: skip
    backward = rows[-2]
    assert (backward["direction"], backward["compatible"]) == ("backward", False)
    assert any(found["reader_path"] == "m" and found["witness"]["json"] for found in backward["incompatibilities"])
    assert "such as" in cli("diff", "t.T_v1", "1.0", "2.0").stdout


def test_diff_shows_what_bare_data_would_mean(cli: Cli, folder: Path) -> None:
    """Two fields that change places are compatible in both directions, and a bare datum means something else."""
    for name, order in (("1.0", "ab"), ("1.1", "ba")):
        fields = [{"name": letter, "type": "int"} for letter in order]
        (folder / f"t/T_v1/{name}.avsc").write_text(RECORD % json.dumps(fields))
    check = cli("check")
    assert (check.exit_code, "1.1" in check.stdout) == (1, True)
    registry = (folder / "registry.toml").read_text()
    (folder / "registry.toml").write_text(registry.replace('"datum"', '"datum"\nrequire_version = true'))
    assert cli("check").exit_code == 0
    shown = cli("diff", "t.T_v1").stdout
    assert "schema-version:" in shown
    backward, *_, row = map(json.loads, cli("diff", "t.T_v1", "--json").stdout.splitlines()[-3:])
    assert (backward["direction"], backward["compatible"]) == ("backward", True)
    assert (row["direction"], row["compatible"], len(row["changes"])) == ("meaning", False, 2)


def test_every_kind_of_difference_has_its_words(cli: Cli, folder: Path) -> None:
    """Types, symbols, branches, order, sizes and aliases are named by path."""
    old = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y", "Z"], "default": "X"}},
        {"name": "c", "type": ["null", "int", "string"]},
        {"name": "d", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 2}}},
        {"name": "e", "type": {"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "precision": 4}}},
        {"name": "f", "type": "string", "default": "x"},
    ]
    new = [
        {"name": "b", "type": {"type": "enum", "name": "E", "symbols": ["Y", "X", "W"]}},
        {"name": "a", "type": "long"},
        {"name": "c", "type": ["string", "null", "boolean"]},
        {"name": "d", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 3, "aliases": ["G"]}}},
        {"name": "e", "type": {"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "precision": 5}}},
        {"name": "f", "type": "string", "aliases": ["ff"]},
    ]
    for minor, fields in (("1.0", old), ("1.1", new)):
        (folder / f"t/T_v1/{minor}.avsc").write_text(RECORD % json.dumps(fields))
    with (folder / "registry.toml").open("a") as file:
        file.write('[type."t.T_v1"]\ncompatibility = "NONE"\n')
    (folder / "registry.toml").write_text(
        (folder / "registry.toml").read_text().replace('encoding = "datum"', 'encoding = "single-object"')
    )
    found = cli("diff", "t.T_v1").stdout
    for line in (
        "  a: int became long (Avro promotes it)",
        "  b: new symbols of t.E: W",
        "  b: symbols of t.E removed: Z",
        "  b: symbols of t.E are in another order. Bare data refer to them by number",
        "  b: default of t.E: none (was X)",
        "  c: the union may hold boolean now",
        "  c: the union may no longer hold int",
        "  c: the union's branches are in another order: string, null, boolean. Bare data refer to them by number",
        "  d[]: fixed t.F of 2 bytes became fixed t.F of 3 bytes",
        "  d[]: aliases of t.F: G",
        "  e{}: bytes (decimal, 4 digits, 0 of them after the point) became bytes (decimal, 5 digits, 0 of them after the point)",
        '  f: no longer has a default (was "x")',
        "  f: aliases of f: ff",
        "  the whole: fields of t.T_v1 are in another order: b, a, c, d, e, f. Bare data follow the order",
        "backward: 1.1 cannot read all that 1.0 writes:",
    ):
        assert line in found.splitlines(), line


# test, encode, decode


@pytest.mark.parametrize(
    ("given", "form", "taken_as"),
    [(b'{"text": "hi", "n": 3}', None, "json"), (b"04 68 69 06\n", None, "hex"), (b"\x04hi\x06", None, "binary"),
     (b'{"text": "hi", "n": 3}', "json", "json"), (b"04:68:69:06", "hex", "hex"), (b"0x04686906", "hex", "hex")],
)  # fmt: skip
def test_a_body_in_three_forms(cli: Cli, given: bytes, form: str | None, taken_as: str) -> None:
    """JSON, hexadecimal text and the bytes themselves are distinguished, and are the same body."""
    arguments = ["test", "-", "--destination", "X/A.1", *(["--as", form] if form else [])]
    found = json.loads(cli(*arguments, "--json", given=given).stdout)
    assert found == {
        "destination": "X/A.1", "taken_as": taken_as, "body_bytes": 4, "rule": 1, "glob": "X/A.**", "encoding": "datum",
        "accepted": True, "receipt": {"disposition": "accepted", "content-disposition": "accepted"},
        "schema": "t.T_v1", "schema_version": "1.0", "deletes": False, "value": {"text": "hi", "n": 3},
    }  # fmt: skip
    result = cli(*arguments, given=given)
    assert result.exit_code == 0
    assert "\ndisposition:accepted\ncontent-disposition:accepted\njudged by t.T_v1 1.0\n{" in result.stdout


def test_a_rejected_body_shows_receipt_and_place(cli: Cli) -> None:
    """The headers of the RECEIPT, the field, what was expected and found, and the bytes around it; exit code 1."""
    result = cli("test", "-", "--destination", "X/A.1", given=b"\x04hi\xff\xff\xff\xff\xff\xff\x01")
    assert result.exit_code == 1
    rule, _, *receipt, reason, field, expected, found_line, place = result.stdout.splitlines()
    assert rule == "X/A.1: rule[1] X/A.**, encoding datum"
    assert receipt == [
        "disposition:rejected-invalid", "content-disposition:rejected-invalid", "result:schema-mismatch",
    ]  # fmt: skip
    assert reason.startswith("reason:t.T_v1 1.0: n: ")
    assert (field.split(), expected.split(), found_line.split()[0]) == (["field", "n"], ["expected", "int"], "found")
    assert place == "  at byte   3 of 10: 04 68 69 [ff] ff ff ff ff ff 01"
    found = json.loads(cli("test", "-", "--destination", "X/A.1", "--json", given=b"\x04hi").stdout)
    assert (found["path"], found["offset"], found["accepted"]) == ("n", 3, False)


@pytest.mark.parametrize(
    ("destination", "given", "more", "exit_code", "result"),
    [
        ("X/B.1", b"\0", [], 1, "result:no-rule"),
        ("X/A..1", b"\0", [], 1, "result:invalid-destination"),
        ("A.1", b"\0", [], 1, "result:invalid-destination"),
        ("X/A.1", b"\x04hi\x06", ["--schema-version", "1.9"], 1, "result:unknown-schema-version"),
        ("X/A.1", b"\x04hi\x06", ["--schema-version", "1.0"], 0, "judged by t.T_v1 1.0"),
        ("X/A.1", b"", [], 0, "an empty body deletes the topic's value"),
        ("X/A.1.Raw", b"\xff", [], 0, "anything is accepted there"),
        ("X/A.1.Raw", b'"/w=="', [], 0, "taken as JSON, encoded: 1 byte"),
    ],
)
def test_what_else_the_broker_would_say(
    cli: Cli, destination: str, given: bytes, more: list[str], exit_code: int, result: str
) -> None:
    """No rule, a bad name, a version of the header, a deletion and what is not checked."""
    found = cli("test", "-", "--destination", destination, *more, given=given)
    assert (found.exit_code, result in found.stdout) == (exit_code, True)


def test_a_frame_too_large_is_no_receipt(cli: Cli) -> None:
    """A body beyond the limit of a frame ends the connection, and that is shown instead of a RECEIPT."""
    result = cli("test", "-", "--destination", "X/A.1.Raw", "--as", "binary", given=bytes(4_194_305))
    assert result.exit_code == 1
    assert "ERROR" in result.stdout
    assert "disposition" not in result.stdout


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (b'{"text": 5}', [], "text: expected text, found 5"),
        (b'{"text": "x"', ["--as", "json"], "-: expected JSON, found"),
        (b'{"text": "x",}', [], "it looks like JSON (--as binary takes it as it is)"),
        (b"xyz", ["--as", "hex"], "-: expected hexadecimal text such as C3 01 5f"),
        (b'{"text": "x"}', ["--destination", "X/B"], "no rule covers X/B"),
    ],
)
def test_input_that_is_no_body(cli: Cli, given: bytes, more: list[str], message: str) -> None:
    """An invalid value is reported by field, and nothing else is printed."""
    refused(cli("test", "-", "--destination", "X/A.1", *more, given=given), message)


def test_files_that_cannot_be_read_or_written(cli: Cli, tmp_path: Path) -> None:
    """A missing file and a place that cannot be written are named."""
    refused(cli("test", "/nonesuch", "--destination", "X/A.1"), "/nonesuch cannot be read: No such file", code=3)
    target = str(tmp_path / "none/body")
    refused(
        cli("encode", "-", "--destination", "X/A.1", "--out", target, given=b'{"text": ""}'),
        f"{target} cannot be written",
        code=3,
    )


@pytest.mark.parametrize("encoding", ["datum", "single-object", "envelope", "confluent"])
def test_encode_and_decode_are_inverse(cli: Cli, tmp_path: Path, encoding: str) -> None:
    """JSON becomes a body and JSON again in every encoding; the field left out has its default."""
    target = ["--type", "t.T_v1", "--encoding", encoding]
    body = cli("encode", "-", *target, given=b'{"text": "hi"}').stdout_bytes
    result = cli("decode", "-", *target, given=body)
    assert json.loads(result.stdout) == {"text": "hi", "n": 7}
    assert result.stderr == "t.T_v1 1.0\n"
    hexadecimal = cli("encode", "-", *target, "--hex", given=b'{"text": "hi"}').stdout
    assert bytes.fromhex(hexadecimal) == body
    assert json.loads(cli("decode", "-", *target, "--json", given=hexadecimal.encode()).stdout)["value"]["n"] == 7
    out = tmp_path / "body"
    assert cli("encode", "-", *target, "--out", str(out), given=b'{"text": "hi"}').exit_code == 0
    assert out.read_bytes() == body


def test_encode_and_decode_without_schema_and_without_value(cli: Cli) -> None:
    """Unchecked bytes are base64, and a tombstone is null. An invalid body is refused with result and reason."""
    assert cli("encode", "-", "--destination", "X/A.1.Raw", given=b'"AP8="').stdout_bytes == b"\0\xff"
    assert json.loads(cli("decode", "-", "--encoding", "none", given=b"\0\xff").stdout) == "AP8="
    refused(cli("encode", "-", "--encoding", "none", given=b"5"), "expected a text of base64")
    envelope = ["--type", "t.T_v1", "--encoding", "envelope"]
    body = cli("encode", "-", *envelope, given=b"null").stdout_bytes
    result = cli("decode", "-", *envelope, given=body)
    assert (json.loads(result.stdout), "tombstone" in result.stderr) == (None, True)
    other_topic = bytes.fromhex("04 06 06 582f39 02 08 0478780e 00")  # topic X/9, which no rule need cover, and a body
    assert json.loads(cli("decode", "-", *envelope, given=other_topic).stdout) == {"text": "xx", "n": 7}
    refused(
        cli("decode", "-", "--destination", "X/A.1", given=b"\x04h"),
        "schema-mismatch: t.T_v1 1.0: text: expected string",
    )
    refused(cli("decode", "-", "--destination", "X/A.1", given=b""), "an empty body holds no value")
    refused(
        cli("decode", "-", "--destination", "X/B.1", given=b"\0"), "no rule covers X/B.1; name the type with --type"
    )
    refused(cli("encode", "-", given=b"{}"), "--destination D or --type TYPE")
    refused(cli("encode", "-", *envelope, "--schema-version", "1.4", given=b"{}"), "no schema version '1.4'")
    refused(
        cli("encode", "-", "--type", "t.T_v1", "--encoding", "xml", given=b"{}"),
        "there is no encoding 'xml', there are:",
    )


# new, bump, release


def test_new_adds_a_file_and_a_rule_and_changes_nothing_else(cli: Cli, folder: Path) -> None:
    """The rule is put last, the lock is made, what people wrote stays to the last blank, and the folder is good."""
    result = cli("new", "v.Door_v1", "--destination", "X/D.*.Door", "--encoding", "single-object")
    assert (result.exit_code, result.stderr) == (0, "")
    scaffold, rule, lock = result.stdout.splitlines()
    assert (scaffold.partition(": ")[0], lock.partition(": ")[0]) == ("v/Door_v1/1.0.avsc", "registry.lock")
    assert rule == "registry.toml:15: rule[2] for X/D.*.Door"
    text = (folder / "registry.toml").read_text()
    assert text == REGISTRY + (
        '\n[[rule]]\ndestination = "X/D.*.Door"\nschema = "v.Door_v1"\nencoding = "single-object"\n'
    )
    assert cli("check", "--strict").exit_code == 0
    assert json.loads(cli("new", "v.Shelf_v3", "--json").stdout)["file"] == "v/Shelf_v3/3.0.avsc"
    assert (folder / "registry.toml").read_text() == text
    assert not [name for name in content(folder) if name.endswith(".new")]


def test_a_narrower_rule_comes_before_the_one_that_would_take_it(cli: Cli, folder: Path) -> None:
    """A rule whose destinations an earlier one takes is put right before that, above its comment."""
    result = cli("new", "v.Door_v1", "--destination", "X/A.7.Door")
    assert "rule[1] for X/A.7.Door, " in result.stdout
    text = (folder / "registry.toml").read_text()
    at = text.index("\n# All that is left.")
    added = '\n[[rule]]\ndestination = "X/A.7.Door"\nschema = "v.Door_v1"\nencoding = "datum"\n'
    assert text[:at].endswith(added)
    assert text.replace(added, "", 1) == REGISTRY
    assert json.loads(cli("explain", "X/A.7.Door", "--json").stdout)["schema"] == "v.Door_v1"


@pytest.mark.parametrize(
    "text",
    [
        REGISTRY.replace("\n", "\r\n"),
        REGISTRY.rstrip("\n"),
        "",
        "# nothing yet",
        "[registry]",
    ],
)
def test_registry_files_of_any_layout(cli: Cli, folder: Path, text: str) -> None:
    """Line ends of another system, no line end at the end, no rule yet: the rule is there and the rest is as it was."""
    (folder / "registry.toml").write_bytes(text.encode())
    assert cli("new", "v.Door_v1", "--destination", "X/D.*.Door").exit_code == 0
    after = (folder / "registry.toml").read_bytes().decode()
    assert after.startswith(text)
    assert tomllib.loads(after)["rule"][-1] == {"destination": "X/D.*.Door", "schema": "v.Door_v1", "encoding": "datum"}
    assert ("\r\n[[rule]]\r\n" in after) == ("\r\n" in text)


@pytest.mark.parametrize(
    ("destination", "before"), [("X/v[ab]", False), ("X/v[a]", True), ("X/?a", True), ("X/*", False)]
)
def test_new_takes_no_topic_from_a_rule_that_covers_only_a_part(
    cli: Cli, folder: Path, destination: str, before: bool
) -> None:
    """A rule goes before another only if that one matches all of its destinations, and `check --strict` agrees."""
    rule = '[[rule]]\ndestination = "X/*a"\nschema = "t.T_v1"\nencoding = "datum"\n'
    (folder / "registry.toml").write_text(rule)
    result = cli("new", "t.Door_v1", "--destination", destination)
    assert result.exit_code == 0, result.output
    rules = tomllib.loads((folder / "registry.toml").read_text())["rule"]
    assert [one["destination"] for one in rules].index(destination) == (0 if before else 1)
    assert cli("check", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["v.Door"], "'v.Door' is no name of a type: expected a namespace, a name and a major version, such as venue.DoorSensor_v1"),
        (["Door_v1"], "is no name of a type"),
        (["v..Door_v1"], "is no name of a type"),
        (["../v.Door_v1"], "is no name of a type"),
        (["v.Door_v01"], "is no name of a type"),
        (["t.T_v1"], "t.T_v1 exists: t/T_v1/1.0.avsc. `maxam-admin schemas bump t.T_v1` makes its next version"),
        (["v.Door_v1", "--destination", "X/A.**"], "there is a rule for X/A.** already, of t.T_v1"),
        (["v.Door_v1", "--destination", "X/[A"], "'X/[A' is no good destination"),
        (["v.Door_v1", "--destination", "nothing"], "'nothing' is no good destination"),
        (["v.Door_v1", "--like", "t.V_v1"], "there is no type 't.V_v1'"),
    ],
)  # fmt: skip
def test_new_refuses_and_leaves_everything(cli: Cli, folder: Path, arguments: list[str], message: str) -> None:
    """A refused change is reported, and no file is made or changed."""
    before = content(folder)
    refused(cli("new", *arguments), message)
    assert content(folder) == before


def test_rules_that_cannot_be_put_between_are_left_to_people(cli: Cli, folder: Path) -> None:
    """Rules in an inline array stay as they are; the lines to write by hand are shown."""
    inline = 'rule = [{destination = "X/A.**", schema = "t.T_v1", encoding = "datum"}]\n'
    (folder / "registry.toml").write_text(inline)
    before = content(folder)
    refused(cli("new", "v.Door_v1", "--destination", "X/D.*"), 'by hand: [[rule]]; destination = "X/D.*"')
    assert content(folder) == before


def test_new_copies_a_type_for_its_next_major(cli: Cli, folder: Path) -> None:
    """--like keeps the layout of the text and changes the name alone."""
    assert cli("new", "t.T_v2", "--like", "t.T_v1").exit_code == 0
    assert (folder / "t/T_v2/2.0.avsc").read_text() == (RECORD % FIELDS).replace("T_v1", "T_v2")
    assert cli("new", "u.Other_v1", "--like", "t.T_v1").exit_code == 0
    document = json.loads((folder / "u/Other_v1/1.0.avsc").read_text())
    assert (document["name"], document["namespace"]) == ("Other_v1", "u")


def test_from_new_to_the_next_minor(cli: Cli, folder: Path) -> None:
    """A version is changed until it is released, then copied to the next. The lock lists released versions, and a change of one is an error."""
    refused(cli("bump", "t.T_v1"), "t/T_v1/1.0.avsc: not released yet, so it may still be changed")
    result = cli("release", "t.T_v1")
    assert result.stdout.startswith("registry.lock: t.T_v1 1.0")
    assert "t.T_v1" not in cli("release").stdout
    assert "1.0*" not in cli("list").stdout
    result = cli("bump", "t.T_v1")
    assert result.stdout.startswith("t/T_v1/1.1.avsc: ")
    assert (folder / "t/T_v1/1.1.avsc").read_bytes() == (folder / "t/T_v1/1.0.avsc").read_bytes()
    refused(cli("bump", "t.T_v1"), "t/T_v1/1.1.avsc: still the same as 1.0, and not released: change it there")
    (folder / "t/T_v1/1.1.avsc").write_text(
        RECORD % (FIELDS[:-1] + ', {"name": "o", "type": ["null", "int"], "default": null}]')
    )
    refused(cli("bump", "t.T_v1"), "t/T_v1/1.1.avsc: not released yet")
    made = json.loads(cli("bump", "t.T_v1", "--release", "--json").stdout)
    assert (made["minor"], made["copied"], made["released"]) == ("1.2", "1.1", True)
    assert [change["path"] for change in made["changed"]] == ["o"]
    assert set(tomllib.loads((folder / "registry.lock").read_text())["released"]["t.T_v1"]) == {"1.0", "1.1"}
    (folder / "t/T_v1/1.1.avsc").write_text(RECORD % FIELDS)
    result = cli("check")
    assert (result.exit_code, "t/T_v1/1.1.avsc: " in result.stdout) == (1, True)
    before = content(folder)
    for arguments in (["bump", "t.T_v1"], ["release"], ["new", "v.Door_v1"]):
        refused(cli(*arguments), "nothing was changed, as the folder is not good: t/T_v1/1.1.avsc: differs")
    assert content(folder) == before


def test_a_candidate_is_made_beside_what_judges(cli: Cli) -> None:
    """With --candidate the next version validates nothing. The next bump reports it."""
    cli("release")
    result = cli("bump", "t.T_v1", "--candidate")
    assert result.stdout.startswith("t/T_v1/1.1.candidate.avsc: ")
    assert json.loads(cli("explain", "X/A.1", "--json").stdout)["versions"][0]["minor"] == "1.0"
    refused(cli("bump", "t.T_v1"), "t.T_v1 1.1 is there as a candidate; rename it to 1.1.avsc")
    assert json.loads(cli("show", "t.T_v1", "1.1", "--json").stdout)["minor"] == "1.1"
    assert "(1.1) 1.0" in cli("list").stdout
    assert json.loads(cli("list", "--json").stdout.splitlines()[0])["candidates"] == ["1.1"]
    assert "candidates     1.1\n" in cli("show", "t.T_v1").stdout


def test_versions_of_nothing(cli: Cli, folder: Path) -> None:
    """A type that is not there can neither be copied nor released."""
    before = content(folder)
    for verb in ("bump", "release"):
        refused(cli(verb, "t.T_v9"), "there is no type 't.T_v9'; did you mean t.T_v1?")
    assert content(folder) == before


def test_a_folder_that_cannot_be_written_loses_nothing(cli: Cli, folder: Path) -> None:
    """Where a file stands in the way nothing is changed but what stands before it, and the folder still loads."""
    (folder / "v").write_text("in the way")
    refused(cli("new", "v.Door_v1", "--destination", "X/D.*"), "cannot be written", code=3)
    assert (folder / "registry.toml").read_text() == REGISTRY
    assert cli("check").exit_code == 0


def test_links_stay_links(cli: Cli, folder: Path) -> None:
    """registry.toml may be a link inside the folder: what it leads to is changed."""
    (folder / "registry.toml").rename(folder / "rules.toml")
    (folder / "registry.toml").symlink_to("rules.toml")
    assert cli("new", "v.Door_v1", "--destination", "X/D.*").exit_code == 0
    assert (folder / "registry.toml").is_symlink()
    assert "v.Door_v1" in (folder / "rules.toml").read_text()


def test_every_verb_has_help_with_an_example() -> None:
    """--help of each command shows a command line that works when pasted."""
    group: Any = main.get_command(click.Context(main), "schemas")
    for name in group.list_commands(click.Context(group)):
        text = CliRunner().invoke(main, ["schemas", name, "--help"]).stdout
        assert f"maxam-admin schemas {name}" in text or name == "shadow", name


def test_plan_needs_a_good_folder_and_a_gateway(cli: Cli, folder: Path) -> None:
    """A folder with mistakes is refused before anybody is asked."""
    refused(cli("plan"), "no CA certificate of the gateway is given", code=2)
    (folder / "registry.toml").write_text("x = 1")
    refused(cli("plan"), "registry.toml:1: x: unknown key")
