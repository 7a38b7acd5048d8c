"""`maxam-admin schemas types`: the declarations compile, and values as JSON shows them are of the declared types."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from maxam.avro.json.decoding import decode_datum, reading_schema
from maxam.avro.json.encoding import encode_value
from maxam.avro.registry import Registry
from maxam.cli.main import main
from maxam.schema_tools.folder import load_folder
from maxam.schema_tools.tree import example, read_tree
from tests.console.operator_browser import require
from tests.support.errors import code_in
from tests.support.patience import PATIENCE_S
from tests.web.node import PACKAGE, require_package, run_node

SHIPPED: Final = Path(__file__).parents[2] / "schemas"
DEPLOY: Final = SHIPPED.with_name("deploy")
# Reads lines "TYPE JSON", and prints each value as the type has it, or "refused".
CSHARP_PROGRAM: Final = """
using System;
using System.Text.Json;
static class Program
{
    static void Main()
    {
        for (string line = Console.ReadLine(); line != null; line = Console.ReadLine())
        {
            string[] parts = line.Split(' ', 2);
            var options = Values.ValueJson.Options;
            try
            {
                Type type = Type.GetType(parts[0], throwOnError: true);
                Console.WriteLine(JsonSerializer.Serialize(JsonSerializer.Deserialize(parts[1], type, options), type, options));
            }
            catch (JsonException)
            {
                Console.WriteLine("\\"refused\\"");
            }
        }
    }
}
"""
EVERYTHING: Final = {
    "type": "record",
    "name": "All_v1",
    "namespace": "t",
    "doc": 'A "quoted" \\ text */ of\nseveral lines.',
    "fields": [
        {"name": "class", "type": "int"},
        {"name": "real", "type": "double"},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
        {"name": "span", "type": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"}},
        {"name": "next", "type": ["null", "All_v1"], "default": None},
        {"name": "person", "type": "string", "pii": True},
        {
            "name": "either",
            "type": [
                "null",
                "string",
                "bytes",
                {"type": "map", "values": "long"},
                {"type": "record", "name": "One", "fields": [{"name": "n", "type": "long"}]},
                {
                    "type": "record",
                    "name": "Two",
                    "fields": [{"name": "n", "type": {"type": "array", "items": "long"}}],
                },
            ],
        },
    ],
}
LONGEST: Final = 2**63 - 1
BRANCHES: Final = (
    None,
    "text",
    {"bytes": "AAEC"},
    {"map": {"a": 1, "b": LONGEST}},
    {"t.One": {"n": 1}},
    {"t.Two": {"n": [LONGEST, 2]}},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A schema folder with every kind of type, and two versions of another one."""
    made = tmp_path / "schemas"
    rules = [("X/All", "t.All_v1"), ("X/Grown", "t.Grown_v1")]
    texts = [f'[[rule]]\ndestination = "{topic}"\nschema = "{name}"\nencoding = "datum"\n' for topic, name in rules]
    old = [{"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A"], "default": "A"}}]
    new = [{"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"], "default": "A"}}]
    new.append({"name": "added", "type": "string", "default": ""})
    versions: list[tuple[str, str, Any]] = [("All_v1", "1.0", EVERYTHING)]
    for minor, fields in (("1.0", old), ("1.1", new)):
        grown = {"type": "record", "name": "Grown_v1", "namespace": "t", "doc": "", "fields": fields}
        versions.append(("Grown_v1", minor, grown))
    for name, minor, schema in versions:
        path = made / "t" / name / f"{minor}.avsc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(schema), encoding="utf-8")
    (made / "registry.toml").write_text("\n".join(texts), encoding="utf-8")
    return made


def generate(folder: Path, *arguments: str) -> str:
    """Run the command and return its output."""
    done = CliRunner().invoke(main, ["schemas", "types", *arguments, "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def shown(registry: Registry, name: str, value: Any) -> Any:
    """Return a value as a subscriber receives it: encoded, and decoded to JSON."""
    of = registry.versions(name)[-1].schema.type
    return decode_datum(reading_schema(of), encode_value(of, value))


def samples(folder: Path) -> list[tuple[str, Any]]:
    """Return values of each type in a folder as JSON shows them, by the short name of the type."""
    registry = load_folder(folder)
    found = []
    for name in registry.types():
        value = example(read_tree(registry.versions(name)[-1].schema.text))
        ones = [{**value, "either": branch} for branch in BRANCHES] if name == "t.All_v1" else [value]
        found += [(name.rpartition(".")[2], shown(registry, name, one)) for one in ones]
    return found


def test_typescript_accepts_every_value(folder: Path, tmp_path: Path) -> None:
    """The strict compiler accepts examples of all shipped types, and of every kind of type, and no value with a wrong field."""
    require_package()
    lines = []
    for place, one in (("shipped", SHIPPED), ("made", folder)):
        (tmp_path / f"{place}.ts").write_text(generate(one, "--language", "typescript"), encoding="utf-8")
        (tmp_path / f"{place}-big.ts").write_text(
            generate(one, "--language", "typescript", "--longs", "bigint"), encoding="utf-8"
        )
        lines.append(f'import type * as {place} from "./{place}.ts";\nimport * as {place}Big from "./{place}-big.ts";')
        lines += [
            f"export const _{place}{n}: {place}.{name} = {json.dumps(value)};"
            for n, (name, value) in enumerate(samples(one))
        ]
    lines.append('const grown: made.Grown_v1 = {"state": "B"};')  # of the older version
    lines.append('// @ts-expect-error\nconst wrong: made.Grown_v1 = {"state": "C"};')
    lines.append("const paths: readonly string[] = madeBig.longsOfAll_v1;")
    lines.append("export { grown, wrong, paths, shippedBig };")
    (tmp_path / "values.ts").write_text("\n".join(lines), encoding="utf-8")
    options = [
        "--ignoreConfig",
        "--strict",
        "--noEmit",
        "--allowImportingTsExtensions",
        "--module",
        "esnext",
        "--moduleResolution",
        "bundler",
    ]
    run_node("node_modules/.bin/tsc", *options, "--target", "es2022", "--types", "", str(tmp_path / "values.ts"))


def test_paths_of_longs(folder: Path) -> None:
    """The paths reach every long, also in a named branch of a union and in a map."""
    text = generate(folder, "t.All_v1", "--language", "typescript", "--longs", "bigint")
    (line,) = (line for line in text.splitlines() if "longsOfAll_v1" in line)
    assert json.loads(line.partition(" = ")[2].removesuffix(" as const;")) == [
        "either.*.*",
        "either.*.n",
        "either.*.n.*",
    ]


def test_a_comment_on_a_time_shows_its_json() -> None:
    """Where the documentation of a field describes the number of Avro, its comment has a time as JSON shows it."""
    comments = [line for line in generate(SHIPPED, "--language", "typescript").splitlines() if "1970" in line]
    assert comments
    assert all(re.search(r"'\d{4}-\d\d-\d\d(T[\d:.]+Z)?'", comment) for comment in comments)


@pytest.mark.slow
def test_python_accepts_every_value(folder: Path, tmp_path: Path) -> None:
    """Strict mypy accepts examples of all shipped types, and of every kind of type, and the module runs."""
    files = []
    for place, one in (("shipped", SHIPPED), ("made", folder)):
        text = generate(one, "--language", "python")
        values = [f"value{n}: {name} = {value!r}" for n, (name, value) in enumerate(samples(one))]
        files.append(tmp_path / f"{place}.py")
        files[-1].write_text("\n".join([text, *values, ""]), encoding="utf-8")
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    for file in files:
        subprocess.run([sys.executable, str(file)], check=True, timeout=PATIENCE_S)


@pytest.mark.slow
def test_csharp_reads_every_value(folder: Path, tmp_path: Path) -> None:
    """.NET reads examples of all shipped types, and of every kind of type, and writes the same JSON; it refuses a wrong field."""
    dotnet = cached("fetch-dotnet", ".NET")
    sources = [tmp_path / "Program.cs", tmp_path / "Values.cs", tmp_path / "Made.cs"]
    for path, text in zip(
        sources,
        (CSHARP_PROGRAM, *(generate(one, "--language", "csharp") for one in (SHIPPED, folder))),
        strict=True,
    ):
        path.write_text(text.replace("namespace Values", f"namespace {path.stem}"), encoding="utf-8")
    values = [("Values", *sample) for sample in samples(SHIPPED)] + [("Made", *sample) for sample in samples(folder)]
    everything = next(value for _, name, value in values if name == "All_v1")
    values.append(("Made", "Grown_v1", {"state": "B"}))  # of the older version
    values.append(("Made", "All_v1", {**everything, "real": "NaN"}))
    expected = [value for *_, value in values]
    values.append(("Made", "One", {"n": str(LONGEST)}))
    values.append(("Made", "One", {"n": "x"}))
    expected += [{"n": LONGEST}, "refused"]
    subprocess.run([dotnet / "compile", *sources, tmp_path / "values"], check=True, timeout=PATIENCE_S)
    done = subprocess.run(
        [dotnet / "dotnet", tmp_path / "values.dll"],
        input="".join(f"{place}.{name} {json.dumps(value)}\n" for place, name, value in values),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected


def test_the_output_depends_on_the_schemas_alone(folder: Path) -> None:
    """Two runs give equal bytes, in whatever order the types are listed, and the newest fields are there."""
    for language in ("typescript", "python", "csharp"):
        names = ("t.Grown_v1", "t.All_v1")
        first = generate(folder, *names, "--language", language)
        assert (
            first
            == generate(folder, *reversed(names), "--language", language)
            == generate(folder, "--language", language)
        )
        assert "added" in first


def test_other_languages_have_the_command_of_their_generator() -> None:
    """The files of the newest versions come in an order in which each is known before it is used, and what is needed comes first."""
    for language in ("java", "go"):
        first, command = generate(SHIPPED, "egm.EGMStatus_v1", "--language", language).splitlines()
        files = [word for word in command.split() if word.endswith(".avsc")]
        assert first.startswith("# ")
        assert [Path(file).parent.name for file in files] == ["EGMStateBase_v1", "EGMStatus_v1"]
        assert all(Path(file).is_file() for file in files)


@pytest.fixture(scope="module")
def generators() -> Path:
    """Return the folder of the generators, as `make test-deps` fetches them."""
    return cached("build-generators", "the generators for Java and Go")


def cached(script: str, what: str) -> Path:
    """Return the folder of a script that fetches or builds programs for tests."""
    built = subprocess.run([DEPLOY / script, "--check"], capture_output=True, text=True, check=False)
    return Path(require(built.stdout.strip() if built.returncode == 0 else None, what))


def run_command(language: str, replaced: str, program: str, folder: Path) -> dict[Path, bytes]:
    """Run the printed command for all shipped types in a new folder, with another path of its program; return what it wrote."""
    folder.mkdir()
    _, command = generate(SHIPPED, "--language", language).splitlines()
    assert replaced in command
    subprocess.run(command.replace(replaced, program, 1), shell=True, cwd=folder, check=True, timeout=PATIENCE_S)  # noqa: S602
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_java_compiles_what_its_command_writes(
    generators: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command runs as it stands. Two runs give equal bytes, and javac compiles a class for each shipped type."""
    javac = require(shutil.which("javac"), "a JDK")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # takes half the processor time
    jar = str(generators / "avro-tools-1.12.1.jar")
    first, second = (run_command("java", "avro-tools-1.12.1.jar", jar, tmp_path / name) for name in "ab")
    assert first == second
    files = [str(tmp_path / "a" / path) for path in first]
    options = ["-cp", jar, "-d", str(tmp_path / "classes")]
    done = subprocess.run([javac, *options, *files], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    for name in load_folder(SHIPPED).types():
        assert (tmp_path / "classes" / f"{name.replace('.', '/')}.class").is_file()


@pytest.mark.slow
def test_go_compiles_what_its_command_writes(generators: Path, tmp_path: Path) -> None:
    """The printed command runs as it stands. Two runs give equal bytes, and Go builds a type for each shipped type."""
    go = require(shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin"), "Go")
    first, second = (run_command("go", "avrogen", str(generators / "avrogen"), tmp_path / name) for name in "ab")
    assert first == second
    (tmp_path / "a" / "go.mod").write_text("module values\n\ngo 1.24\n")
    built = [go, "vet", "./..."]
    done = subprocess.run(built, cwd=tmp_path / "a", capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    text = first[Path("values.go")].decode()
    for name in load_folder(SHIPPED).types():
        assert re.search(
            rf"^type {name.rpartition('.')[2].replace('_', '')} struct", text, re.MULTILINE | re.IGNORECASE
        ), name


def test_an_unknown_type_is_reported(folder: Path) -> None:
    """A type that does not exist is an error, before anything is printed."""
    done = CliRunner().invoke(main, ["schemas", "types", "t.No_v1", "--language", "python", "--folder", str(folder)])
    assert done.exit_code == 1
    assert code_in(done.output) == "configuration-invalid"
    assert not done.stdout


def test_the_example_has_the_types_of_its_schema() -> None:
    """The declarations of the floor example are those that the command prints."""
    path = PACKAGE.parents[2] / "docs" / "examples" / "floor" / "egm-status.ts"
    assert path.read_text(encoding="utf-8") == generate(SHIPPED, "egm.EGMStatus_v1", "--language", "typescript")
