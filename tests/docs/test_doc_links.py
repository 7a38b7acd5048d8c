"""Links and paths to documents resolve: a reader of a page, of an error or of a configuration file reaches each page named."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "schemas/README.md", *(ROOT / "docs").rglob("*.md")})
MENTIONING = ("maxam", "deploy", "tests", "certs-dev", "schemas", "docs", ".ci")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
MAPS = [ROOT / "docs/architecture.md", *(ROOT / "docs/develop").glob("*.md")]  # pages that lead to code
BASES = (ROOT, ROOT / "docs", ROOT / "maxam", ROOT / "maxam/pipeline", ROOT / "tests")
PATH = re.compile(r"`((?!text/|application/)[\w-]+(?:/[\w-]+)*(?:/|/[\w-]+(?:\.py|\.md)?))(?:\.[A-Z]\w+)?`")
MENTIONED = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|svg|png)\b")


def prose(page: Path) -> str:
    """Return the text of a page without its code: fenced blocks and code spans."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as GitHub slugs, and explicit ones."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        number = 0
        while (unique := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(unique)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Each relative link of a page leads to a file, each anchor to a heading."""
    broken = []
    for link, anchor in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / unquote(link) if link else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}")
    assert not broken


def test_mentioned_pages_exist() -> None:
    """Each path below `docs/` in code, comments, error texts, samples and the Makefile is a file."""
    files = [path for top in MENTIONING for path in (ROOT / top).rglob("*") if "__pycache__" not in path.parts]
    files += [path for path in ROOT.iterdir() if path.suffix in {".md", ".toml"} or path.name == "Makefile"]
    missing = []
    for file in files:
        if not file.is_file() or file.suffix in {".png", ".avro", ".so"}:
            continue
        text = file.read_bytes().decode(errors="replace")
        missing += [
            f"{file.relative_to(ROOT)}: {name}" for name in MENTIONED.findall(text) if not (ROOT / name).exists()
        ]
    assert not missing


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.stem)
def test_paths_lead_to_files(page: Path) -> None:
    """Each folder, file and module that a page about the code names is there."""
    names = set(PATH.findall(page.read_text(encoding="utf-8")))
    found = {name for name in names for base in BASES if (base / name).exists() or (base / f"{name}.py").exists()}
    assert names - found == set()


def test_each_page_is_in_the_index() -> None:
    """docs/README.md leads to every page below docs/."""
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link, _ in LINK.findall(prose(index)) if link}
    generated = ROOT / "docs/reference"
    unlisted = {page for page in (ROOT / "docs").rglob("*.md") if generated not in page.parents} - linked - {index}
    assert not unlisted
