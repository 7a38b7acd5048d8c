"""The faults of a schema folder, in the formats by which CI systems mark files and count tests."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from maxam.schema_tools.folder import Finding
from maxam.terminal.escaping import shown

# Characters that end a property of a workflow command, or the command.
_ESCAPES: Final = {ord("%"): "%25", ord(":"): "%3A", ord(","): "%2C", ord("\r"): "%0D", ord("\n"): "%0A"}


def github_lines(folder: Path, findings: Iterable[Finding]) -> Iterator[str]:
    """Give a workflow command for each finding, which marks the line in a pull request.

    Spec: GitHub "Workflow commands for GitHub Actions"
    """
    for finding in findings:
        # Paths are those of the repository if the folder was named from its root, as a job's steps do.
        where = f"file={str(folder / finding.file).translate(_ESCAPES)}" if finding.file else ""
        line = f",line={finding.line}" if finding.file and finding.line is not None else ""
        message = _message(finding).replace("%", "%25")
        yield f"::{finding.severity} {where}{line}::{message}" if where else f"::{finding.severity}::{message}"


def junit_lines(folder: Path, files: Iterable[str], findings: Sequence[Finding]) -> Iterator[str]:
    """Return a JUnit document: a test for each file, which fails if there are errors in it. Warnings are its output.

    Args:
        folder: The folder that was checked. The suite has its name.
        files: All files that were read, by their paths in it.
        findings: The faults. Those about the folder itself are a test of their own.
    """
    tests: dict[str, list[Finding]] = {file: [] for file in sorted(files)}
    for finding in findings:
        tests.setdefault(finding.file or ".", []).append(finding)
    failures = sum(any(finding.severity == "error" for finding in found) for found in tests.values())
    counts = f'tests="{len(tests)}" failures="{failures}" errors="0" skipped="0"'
    name = _quoted(str(folder))
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f"<testsuites {counts}>"
    yield f"  <testsuite name={name} {counts}>"
    for file, found in tests.items():
        test = f"    <testcase classname={name} name={_quoted(file)} file={_quoted(str(folder / file))}"
        if not found:
            yield f"{test}/>"
            continue
        yield f"{test}>"
        errors = [_shown(finding) for finding in found if finding.severity == "error"]
        warnings = [_shown(finding) for finding in found if finding.severity == "warning"]
        if errors:
            first = errors[0] if len(errors) == 1 else f"{errors[0]} (and {len(errors) - 1} more)"
            yield f"      <failure message={_quoted(first)}>"
            yield from [escape(error) for error in errors]
            yield "</failure>"
        if warnings:
            yield "      <system-out>"
            yield from [escape(f"warning: {warning}") for warning in warnings]
            yield "</system-out>"
        yield "    </testcase>"
    yield "  </testsuite>"
    yield "</testsuites>"


def _message(finding: Finding) -> str:
    return shown(f"{finding.place}: {finding.problem}" if finding.place else finding.problem)


def _shown(finding: Finding) -> str:
    return shown(str(finding))  # without what XML cannot hold


def _quoted(text: str) -> str:
    return f'"{escape(shown(text))}"'
