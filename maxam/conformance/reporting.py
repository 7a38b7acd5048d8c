"""Verdicts as a table, as JSON or as JUnit, and transcripts as text."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import click

from maxam.conformance.running import Verdict
from maxam.conformance.server import Entry, Transport
from maxam.terminal.escaping import shown
from maxam.terminal.options import YAML
from maxam.terminal.tables import print_json, print_line, print_table

_BODY_CHARACTERS_MAX: Final = 200  # of a body in a transcript


def print_verdicts(verdicts: Sequence[Verdict], form: str, command: Sequence[str], transport: Transport) -> None:
    """Print verdicts about the driver that `command` starts. `form` is `table`, `json`, `yaml` or `junit`."""
    if form in ("json", "yaml"):
        click.get_current_context().meta[YAML] = form == "yaml"
        for one in verdicts:
            print_json(one.as_json())
    elif form == "junit":
        click.echo(junit(verdicts, command, transport))
    else:
        print_table(("CODE", "LEVEL", "VERDICT"), [(one.code, one.level, one.verdict) for one in verdicts])
        for one in verdicts:
            if one.reason:
                print_line("")
                print_line(f"{one.code}: {one.reason}")
            if one.verdict == "fail":
                print_line(f"  {command_again(one, command, transport)}")


def junit(verdicts: Sequence[Verdict], command: Sequence[str], transport: Transport) -> str:
    """Return a JUnit document: a test for each promise. A blocked one is an error, one that is not claimed is skipped."""
    tags = {"fail": "failure", "blocked": "error", "not-claimed": "skipped"}
    found = [tags.get(one.verdict) for one in verdicts]
    counts = {"tests": str(len(found)), "failures": str(found.count("failure"))}
    counts |= {"errors": str(found.count("error")), "skipped": str(found.count("skipped"))}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": f"maxam-conformance {transport}", **counts})
    for one, tag in zip(verdicts, found, strict=True):
        test = ET.SubElement(suite, "testcase", {"classname": one.level, "name": one.code})
        if tag is not None:
            outcome = ET.SubElement(test, tag, {"message": shown(one.reason)} if one.reason else {})
            outcome.text = shown(command_again(one, command, transport)) if tag == "failure" else None
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def command_again(verdict: Verdict, command: Sequence[str], transport: Transport) -> str:
    """Return the command that plays a failed case again."""
    steps = [] if verdict.steps is None else ["--steps", ",".join(map(str, verdict.steps))]
    options = ["--only", verdict.code, "--seed", str(verdict.seed), "--runs", "1", *steps]
    options += ["--transport", transport, "--transcripts", "transcripts", "--"]
    return shlex.join(["maxam-conformance", "run", *options, *command])


def write_transcript(path: Path, transcript: Sequence[Entry]) -> None:
    """Write a line for each entry of a case, with the seconds since its beginning."""
    lines = [_line(entry, transcript[0].at_s) for entry in transcript]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(entry: Entry, began_s: float) -> str:
    place = f"{entry.at_s - began_s:8.3f} {entry.connection or '-'!s:>3} {entry.sender:<7}"
    if entry.frame is None:
        return f"{place} {entry.remark}"
    frame = entry.frame
    headers = " ".join(f"{_text(name)}={_text(value)}" for name, value in frame.headers.items() if name != b"passcode")
    body = f" | {_text(frame.body)}" if frame.body else ""
    return f"{place} {frame.command.decode()} {headers}{body}"


def _text(data: bytes) -> str:
    text = repr(data[:_BODY_CHARACTERS_MAX])[2:-1]
    return text if len(data) <= _BODY_CHARACTERS_MAX else f"{text}... ({len(data)} bytes)"
