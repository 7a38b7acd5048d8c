"""The linter of prose finds what breaks a rule, where it stands, and nothing in code."""

from pathlib import Path

import pytest

from tests.prose import __main__ as program
from tests.prose.__main__ import checked, excess, glossary
from tests.prose.rules import WORDS, findings
from tests.prose.texts import Text, texts

EXAMPLES = (
    "it tells", "names the file", "heeds", "mended", "a bad schema", "so many", "so long", "anew", "any more", "behind it", "but for",
    "passed over", "holds each row against", "lie about", "nobody", "dear", "a stranger", "seen off", "it rings", "stirs", "walks",
    "its turn", "slices", "a minor", "list of revoked certificates", "folder of an authority", "a verb",
)  # fmt: skip
NO_TERMS = frozenset[str]()
LONG = "One word " * 13 + "more."


def found(text: str, terms: frozenset[str] = NO_TERMS) -> list[str]:
    """Return the messages about a text."""
    return [message for _, message in findings(Text(1, text), terms)]


def lines(tmp_path: Path, name: str, source: str) -> list[int]:
    """Return the line of each finding in a file of this source."""
    path = tmp_path / name
    path.write_text(source)
    return [line for text in texts(path) for line, _ in findings(text, NO_TERMS)]


def test_each_entry_of_the_word_table_finds_its_example() -> None:
    """Each pattern of `words.toml` matches, and only its own example."""
    assert [len(found(example)) for example in EXAMPLES] == [1] * len(WORDS)


@pytest.mark.parametrize(
    "text",
    [
        "no more than two",
        "behind a proxy",
        "a ring buffer",
        "turned off",
        "the names of files",
        "`tells`",
        "it looks up",
        "re-said",
        'Spec: STOMP "it says; so; on"; here',
    ],
)
def test_standard_uses_of_these_words_are_allowed(text: str) -> None:
    """A word of the table in its standard sense is no finding."""
    assert found(text) == []


def test_a_term_of_the_glossary_is_allowed() -> None:
    """The first column of the glossary defines terms, and other tables do not."""
    terms = glossary(
        ["# Page\n\n## Glossary\n\n| | |\n|---|---|\n| walk, `slice` | a scan |\n\n## More\n\n| turn | |\n"]
    )
    assert "walk" in terms
    assert "turn" not in terms
    assert found("two walks", terms) == []


def test_a_sentence_has_25_words() -> None:
    """A sentence of 26 words is a finding, and two of 25 are none."""
    assert found(" ".join(["word"] * 25) + ". " + " ".join(["Word"] * 25)) == []
    assert len(found(" ".join(["word"] * 26))) == 1


@pytest.mark.parametrize(
    ("text", "number"), [("What it is.", 1), ("Some. Who asks.", 1), ("What is it?", 0), ("Whole.", 0)]
)
def test_no_sentence_begins_with_what_as_a_noun(text: str, number: int) -> None:
    """A question may begin with these words. A statement may not."""
    assert len(found(text)) == number


@pytest.mark.parametrize(
    ("text", "number"), [("a: b; c", 1), ("a: b. C: d", 0), ("at 10:30: b", 0), ("`a`: byte `5`: b: c", 0)]
)
def test_a_sentence_has_one_colon_or_one_semicolon(text: str, number: int) -> None:
    """Two of them in one sentence are a finding."""
    assert len(found(text)) == number


def test_markdown_is_checked_outside_of_code(tmp_path: Path) -> None:
    """Cells, items and lines are checked. Headings, head rows and code blocks hold no sentences."""
    source = f"# What it is\n\n| What |\n|---|\n| it tells |\n| {'x' * 121} |\n\n```\nit tells\n```\n\n* an item\n  tells\n\n{'ab ' * 34}\n"
    assert lines(tmp_path, "page.md", source) == [15, 5, 6, 13, 15]


def test_python_is_checked_in_docstrings_comments_and_messages(tmp_path: Path) -> None:
    """Docstrings, comments and messages are checked. Names of arguments and examples are not."""
    source = (
        '"""Tell."""\n# a comment that\n# tells\nx = "# it tells"  # noqa: S101 - anew\n\n\ndef f(tells: int) -> None:\n'
        '    """Do.\n\n    Args:\n        tells: It tells.\n\n    Example:\n        tells\n    """\n    raise X(f"it {x} so many times")\n'
    )
    assert sorted(lines(tmp_path, "module.py", source)) == [1, 3, 4, 11, 16]


def test_of_tests_no_message_is_checked(tmp_path: Path) -> None:
    """A string in a test is data, and its comments are prose."""
    (tmp_path / "tests").mkdir()
    assert lines(tmp_path, "tests/test_x.py", 'x = "it tells so many times"  # tells\n') == [1]


def test_scripts_are_checked_in_comments_and_messages(tmp_path: Path) -> None:
    """Both forms of comments are checked, and strings of four words or more."""
    source = "// it\n// tells\n/**\n * @param {string} x tells\n */\nsay('tells', `so many of ${tells} come`);\n"
    assert sorted(lines(tmp_path, "page.js", source)) == [2, 4, 6]


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("pyproject.toml", 'description = "it tells so many people"\nx = 1 # anew\n', [1, 1, 2]),
        ("Makefile", "x: y ## it tells\n\techo 'it tells so many people'\n", [1]),
        ("install", '#!/bin/sh\n#   tells\n# tells\necho "it tells so many $people here" # anew\n', [3, 4, 4, 4]),
        ("x.rules.yml", 'summary: "it tells {{ $value | x }} many people"\n', [1]),
        ("x.service", "# anew\nExecStart=/bin/sh -ec 'it tells so many people'\n", [1]),
    ],
)
def test_settings_and_scripts_of_the_shell_are_checked(
    tmp_path: Path, name: str, source: str, found: list[int]
) -> None:
    """Comments are checked everywhere, indented commands in them nowhere, strings where they are read by people."""
    assert sorted(lines(tmp_path, name, source)) == found


def test_the_changelog_is_checked_from_0_2_0_on(tmp_path: Path) -> None:
    """Without a section of 0.2.0 the changelog has no findings. With one, 0.1.0 is left out."""
    assert lines(tmp_path, "CHANGELOG.md", "## Unreleased\n\nit tells\n") == []
    source = "## Unreleased\n\nit tells\n\n## 0.2.0\n\nit tells\n\n## 0.1.0\n\nit tells\n"
    assert lines(tmp_path, "CHANGELOG.md", source) == [3, 7]


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        ({"a": 2}, []),
        ({"a": 3}, ["a"]),
        ({"a": 2, "b": 1}, ["b"]),
        ({"b": 1, "c": 1}, []),
        ({"a": 1, "b": 1, "c": 1}, ["c"]),
    ],
)
def test_a_file_may_have_its_number_and_a_new_one_what_others_have_given_up(
    counts: dict[str, int], names: list[str]
) -> None:
    """An unlisted file shares the findings that listed files no longer have."""
    assert excess(counts, {"a": 2}) == names


def test_a_file_is_checked_again_when_it_or_the_glossary_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged files keep their findings, of which there is one for each."""
    monkeypatch.setattr(program, "CACHE", tmp_path / "cache.json")
    page = tmp_path / "page.md"

    def count(text: str, terms: frozenset[str] = NO_TERMS) -> int:
        page.write_text(text)
        return len(checked({"page.md": page}, terms)["page.md"])

    assert [count("It tells."), count("It tells."), count("It is."), count("It tells.")] == [1, 1, 0, 1]
    assert count("It tells.", frozenset({"tells"})) == 0
