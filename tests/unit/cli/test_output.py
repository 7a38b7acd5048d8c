"""Tables of `maxam-admin` on a narrow terminal: rows can be distinguished."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from maxam.cli import commands
from maxam.terminal import tables as output
from maxam.terminal.escaping import shown

COLUMNS = ["DESTINATION", "#REVISION", "ACCEPTED AT", "SCHEMA"]
EXPENDABLE = ["SCHEMA", "ACCEPTED AT"]
ROWS = [[f"X/EGM.F.1000{n}.EGMMeterReading", n, "2026-11-21T02:46:32.067Z", "egm.MeterReading_v1 1.0"] for n in (1, 2)]


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, destination: str = ""
) -> tuple[list[str], str]:
    """Print the table on a terminal; return its lines, without the rule, and the text of standard error."""
    terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(output, "console", lambda: terminal)
    rows = [[destination + str(row[0]), *row[1:], "v" * 99] for row in ROWS]
    output.print_table([*COLUMNS, output.VALUE], rows, EXPENDABLE)
    captured = capsys.readouterr()
    head, _, *lines = captured.out.splitlines()
    assert all(len(line) <= width for line in lines)
    return [head, *lines], captured.err


@pytest.mark.parametrize(("width", "left_out"), [(80, "SCHEMA, ACCEPTED AT"), (110, "SCHEMA"), (140, "")])
def test_the_least_important_columns_give_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, left_out: str
) -> None:
    """Columns for which a terminal has no room are left out whole, and reported. Only values go on over more lines."""
    lines, told = printed(capsys, monkeypatch, width)
    assert told == (f"no room for {left_out}; --json shows all\n" if left_out else "")
    assert not any(title in lines[0] for title in left_out.split(", ") if title)
    starts = [line for line in lines if line.startswith("X/")]
    assert [line.split()[0] for line in starts] == [row[0] for row in ROWS]
    assert "".join(lines).count("v") == 2 * 99 + (0 if "SCHEMA" in left_out else 2)


def test_a_destination_longer_than_the_terminal_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a character of a destination is lost for want of room."""
    lines, _ = printed(capsys, monkeypatch, 60, "X/" + "long" * 30)
    assert "".join(lines[1:]).count("o") == 2 * 30


def test_a_wide_table_in_a_file_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal each row is one line, however many columns there are."""
    columns = ["DATE", *(f"#SOME NUMBER {n}" for n in range(20))]
    output.print_table(columns, [["2026-11-21", *range(20)]])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["2026-11-21"]


def test_a_destination_in_a_pipe_is_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a pipe is as wide as its contents."""
    long = "X/" + "long" * 30
    output.print_table(["DESTINATION", "REASON"], [[long, "r" * 300]])
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split() == [long, "r" * 300]


@pytest.mark.parametrize("width", [60, 90, 200])
def test_a_shortened_column_takes_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Each row is one line, and ends in an ellipsis where the value does not fit; what fits is whole."""
    terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(output, "console", lambda: terminal)
    rows = [["X/a", 1, "short"], ["X/b", 2, "v" * 120]]
    output.print_table(["DESTINATION", "#REVISION", "VALUE"], rows, shortened=["VALUE"])
    captured = capsys.readouterr()
    _, _, short, long = captured.out.splitlines()
    assert short.split() == ["X/a", "1", "short"]
    assert long.rstrip().endswith("v" if width == 200 else "\N{HORIZONTAL ELLIPSIS}")
    told = "" if width == 200 else "VALUE: cut where it ends in \N{HORIZONTAL ELLIPSIS}; --json shows it whole\n"
    assert captured.err == told
    assert len(long.rstrip()) == (width if width < 200 else len("DESTINATION") + len("REVISION") + 2 * 3 + 120)


def test_what_goes_into_a_pipe_is_whole_without_blanks_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read what terminals would have to shorten or fold, and lines end where their text does."""
    value = "word " * 70 + "end"
    output.print_table(
        ["DESTINATION", output.VALUE, "REASON", "NOTE"], [["X/a", value, value, ""]], shortened=["REASON"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].split() == ["X/a", *value.split(), *value.split()]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("character", ["v", "\x1b"])
def test_what_is_cut_is_said_to_be(capsys: pytest.CaptureFixture[str], character: str) -> None:
    """A text that is longer than a cell ends in an ellipsis, and standard error shows its column and how to see all."""
    most = output.CELL_CHARACTERS_MAX // len(shown(character))
    for length, told in ((most, ""), (most + 1, "NOTE: cut where it ends in \N{HORIZONTAL ELLIPSIS}; ask for it\n")):
        output.print_table(["DESTINATION", "NOTE"], [["X/a", character * length]], whole="ask for it")
        captured = capsys.readouterr()
        assert captured.err == told
        assert captured.out.endswith("\N{HORIZONTAL ELLIPSIS}\n") == bool(told)
    output.print_table(["DESTINATION", "NOTE"], [["X/a", output.cell(character * 1000, None)]])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count(shown(character)) == 1000


def test_columns_without_anything_go_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow terminal has no room for what is not there; one with room shows that it is not."""
    for width, titles in ((28, ["DESTINATION", "PROBLEM"]), (80, ["DESTINATION", "SCHEMA", "PROBLEM", "NOTE"])):
        terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False)
        monkeypatch.setattr(output, "console", lambda terminal=terminal: terminal)
        output.print_table(
            ["DESTINATION", "SCHEMA", "PROBLEM", "NOTE"], [["X/a", "", "problem", None]], ["PROBLEM", "NOTE", "SCHEMA"]
        )
        captured = capsys.readouterr()
        assert captured.out.split()[: len(titles)] == titles
        assert captured.err == ""


def tables() -> Iterator[tuple[str, list[str], list[str]]]:
    """Find the tables of all commands whose titles stand in the code: where, titles, and those that a narrow terminal does without."""
    places = {"print_table": (0, 2), "print_rows": (3, 4)}  # arguments
    for path in sorted(Path(commands.__file__ or "").parent.glob("[!_]*.py")):
        module = importlib.import_module(f"maxam.cli.commands.{path.stem}")
        tree = ast.parse(path.read_text())
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            names: dict[str, list[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if isinstance(target, ast.Name) and target.id == "columns":
                        names["columns"] = value_of(node.value, module, names) or []
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in places:
                    titles, without = (
                        value_of(node.args[at], module, names) if at < len(node.args) else []
                        for at in places[node.func.id]
                    )
                    if titles and without is not None:
                        yield f"{path.stem}:{node.lineno}", titles, without


def value_of(node: ast.expr, module: ModuleType, names: dict[str, list[str]]) -> list[str] | None:
    """Evaluate a list of titles; None when it depends on more than the module."""
    try:
        found = eval(compile(ast.Expression(node), "titles", "eval"), vars(module) | names)  # noqa: S307 our own source
    except NameError:
        return None
    return [one if isinstance(one, str) else one[0] for one in found]


TABLES = list(tables())


def test_tables_are_found() -> None:
    """Most commands with a table are covered by the next test; a few make their titles as they go."""
    assert len(TABLES) >= 20
    assert {where.partition(":")[0] for where, _, _ in TABLES} >= {
        "sessions",
        "subscriptions",
        "rejects",
    }


@pytest.mark.parametrize(("where", "titles", "without"), TABLES, ids=[where for where, _, _ in TABLES])
def test_every_table_fits_every_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    titles: list[str],
    without: list[str],
) -> None:
    """From 60 to 200 columns, with full and with empty cells; a column that a narrow terminal does without is one of the table."""
    assert set(without) <= {title.lstrip("#@") for title in titles}, where
    rows: list[list[object]] = [
        [1234567 if title.startswith("#") else f"{title} some text" for title in titles],
        ["" for _ in titles],
    ]
    for width in range(60, 201, 10):
        terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False)
        monkeypatch.setattr(output, "console", lambda terminal=terminal: terminal)
        for some in (rows, rows[1:], []):
            output.print_table(titles, some, without)
        head, _, *lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= width for line in [head, *lines])
