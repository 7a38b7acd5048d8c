"""Check the prose of the tree. Each file may have as many findings as `allowed.toml` grants."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click

from tests.prose.rules import findings, plain
from tests.prose.texts import texts

ROOT = Path(__file__).parents[2]
CHECKED = (
    *("*.md", "*.py", "*.js", "*.ts", "*.toml", "*.rules.yml", "*.service", "*.timer", "*.path", "*.env"),
    *(
        "Makefile",
        "certs-dev/make-certs",
        "deploy/[a-z]*-[a-z]*",
        "deploy/install",
        "deploy/*/install",
        "deploy/*/build",
    ),
    *(":!docs/reference", ":!docs/examples/floor/egm-status.ts"),  # generated: their sources are checked
    *(":!tests/prose/*.toml", ":!deploy/**/*.js*"),
)
ALLOWED = Path(__file__).with_name("allowed.toml")
CACHE = ROOT / "build" / "prose.json"  # findings by the hash of a file and of all that decides about it


def glossary(pages: list[str]) -> frozenset[str]:
    """Return the terms of the first column of the glossary, which is a section of one of the pages, in lower case."""
    terms = set[str]()
    for page in pages:
        for section in re.findall(r"(?ms)^#+ (?:Words|Glossary)$.*?(?=^#+ |\Z)", page):
            for row in re.findall(r"(?m)^\| *([^|]+?) *\|", section):
                terms.update(term.strip().lower() for term in plain(row).split(","))
    return frozenset(terms)


def excess(found: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """Return the files that have more findings than allowed.

    Unlisted files may have as many together as listed ones have fewer, so that files can be moved and split.
    """
    spare = sum(max(0, number - found.get(name, 0)) for name, number in allowed.items())
    too_many = []
    for name, number in found.items():
        if number > allowed.get(name, spare):
            too_many.append(name)
        elif name not in allowed:
            spare -= number
    return too_many


def checked(paths: dict[str, Path], terms: frozenset[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the findings of each file. Files that are as they were when they were last checked are not checked again."""
    rules = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.*")) if path != ALLOWED]
    beginning = hashlib.sha256(b"".join([*rules, *(term.encode() for term in sorted(terms))]))
    known: dict[str, list[tuple[int, str]]] = json.loads(CACHE.read_bytes()) if CACHE.exists() else {}
    now, found = {}, {}
    for name, path in paths.items():
        key = beginning.copy()
        key.update(name.encode() + b"\0" + path.read_bytes())
        lines = known.get(key.hexdigest())
        if lines is None:
            lines = sorted(one for text in texts(path) for one in findings(text, terms))
        now[key.hexdigest()] = found[name] = lines
    CACHE.parent.mkdir(exist_ok=True)
    new = CACHE.with_suffix(".new")
    new.write_text(json.dumps(now))
    new.replace(CACHE)
    return found


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path, resolve_path=True))
@click.option("--update", is_flag=True, help="Write the present numbers into allowed.toml, if none is too high.")
def main(files: tuple[Path, ...], update: bool) -> None:
    """Print the findings of FILES, and of each file that has too many."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CHECKED]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = {name: ROOT / name for name in sorted(set(listed)) if (ROOT / name).is_file()}
    terms = glossary([path.read_text() for path in (ROOT / "docs").rglob("*.md")])
    found = checked(paths, terms)
    counts = {name: len(lines) for name, lines in found.items() if lines}
    allowed: dict[str, int] = tomllib.loads(ALLOWED.read_text())
    too_many = excess(counts, allowed)
    for name, number in counts.items():
        if name in too_many or any(paths[name].is_relative_to(file) for file in files):
            click.echo("".join(f"{name}:{line}: {finding}\n" for line, finding in found[name]), nl=False)
            click.echo(f"{name}: {number} findings, {allowed.get(name, 0)} allowed")
    click.echo(
        f"{sum(counts.values())} findings, {sum(allowed.values())} allowed. Files with too many: {len(too_many)}"
    )
    if update and not too_many:
        ALLOWED.write_text("".join(f'"{name}" = {number}\n' for name, number in counts.items()))
    elif any(counts.get(name, 0) < number for name, number in allowed.items()):
        click.echo("Some files have fewer than allowed. Record it with `python -m tests.prose --update`.")
    sys.exit(1 if too_many else 0)


if __name__ == "__main__":
    main()
