"""The kit certifies our clients, finds each broken one, and explains itself. `make conformance` plays more seeds."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.conformance.main import conformance
from maxam.conformance.running import PROMISES
from tests.conformance.drivers.broken import BROKEN
from tests.conformance.judging import judge, judge_each, reasons
from tests.conformance.libraries import LIBRARIES, broken
from tests.web.node import PACKAGE, require_package, run_node

PAGE = Path(__file__).parents[2] / "docs" / "integrate" / "conformance.md"
SEEDS = 3  # of each seeded promise
SILENT = 'import sys, time\nprint(\'{"saw": "ready"}\', flush=True)\nsys.stdin.read()'


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_our_clients_keep_their_promises(name: str) -> None:
    """Each promise that a client claims holds over each transport, with several seeds."""
    library = LIBRARIES[name]
    if name.startswith("typescript"):
        require_package()
        run_node(str(PACKAGE / "build.mjs"))
    verdicts = judge(library.command, library.transport, runs=SEEDS)
    expected = {code: "not-claimed" if code in library.unclaimed else "pass" for code in PROMISES}
    assert {code: one.verdict for code, one in verdicts.items()} == expected, reasons(verdicts)


@pytest.mark.slow
def test_each_broken_client_fails_its_promises() -> None:
    """A client that breaks promises fails these, and keeps another one."""
    plays = {name: (broken(name), {*promises, "sends-exactly"}) for name, (_, promises) in BROKEN.items()}
    verdicts = judge_each({name: (command, sorted(only)) for name, (command, only) in plays.items()}, timeout_s=45.0)
    failed = {name: {code for code, one in those.items() if one.verdict == "fail"} for name, those in verdicts.items()}
    assert failed == {name: set(promises) for name, (_, promises) in BROKEN.items()}


def test_each_promise_is_broken_by_a_client() -> None:
    """No promise is judged that none of the broken clients fails."""
    assert {promise for _, promises in BROKEN.values() for promise in promises} == set(PROMISES)


@pytest.mark.slow
def test_what_is_not_claimed_is_not_judged() -> None:
    """A driver that claims nothing is judged by the level of connections alone, and what needs a failed promise is blocked."""
    verdicts = judge((sys.executable, "-c", SILENT), only=("reconnects", "takeover-final", "map-equal"), timeout_s=2.0)
    assert {code: one.verdict for code, one in verdicts.items()} == {
        "reconnects": "fail",
        "takeover-final": "blocked",
        "map-equal": "not-claimed",
    }


@pytest.mark.slow
def test_the_command_prints_a_verdict_per_line_and_writes_transcripts(tmp_path: Path) -> None:
    """With `-o json` each line is a verdict; the exit code is 1 if one failed, and a transcript has its frames."""
    arguments = ["run", "-o", "json", "--only", "resubscribes", "--timeout", "15s", "--transcripts", str(tmp_path)]
    done = CliRunner().invoke(conformance, [*arguments, "--", *broken("forgets-subscriptions")])
    assert done.exit_code == 1, done.output
    (line,) = done.stdout.splitlines()
    verdict = json.loads(line)
    assert (verdict["code"], verdict["verdict"], verdict["seed"]) == ("resubscribes", "fail", 1)
    transcript = (tmp_path / "resubscribes.txt").read_text()
    assert {"CONNECTED", "SUBSCRIBE", "MESSAGE"} <= set(re.findall(r"[A-Z]{7,}", transcript))
