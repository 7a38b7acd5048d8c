"""docs/analyse/pipeline.md is true: its commands and snippets are run as they stand, in its order, and print what it shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.main import main
from maxam.pipeline.spark.java import find_java
from tests.docs.guides import blocks, first_missing
from tests.pipeline.guide_process import GUIDE, REPOSITORY
from tests.support.gateway_process import GatewayProcess

GUIDE_TIMEOUT_S = 900  # on a machine that is busy


@pytest.mark.slow
def test_the_guide_is_true(clone: Path, certificates: Path) -> None:
    """Every command and snippet of the guide runs, and prints what the guide shows."""
    try:
        find_java()
    except PipelineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Java: {error}")
    policy = (clone / "policy-dev.toml").read_text(encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAXAM_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), environment["PYTHONPATH"]])
    with GatewayProcess(clone / "gateway", certificates, policy, clone / "schemas") as gateway:
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.guide_process", str(gateway.port)],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GUIDE_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found, "\n\n".join(found)


def test_every_command_is_in_the_guide_and_nothing_in_it_is_skipped() -> None:
    """Each command is run, every block is one of those that are run, and the targets of links exist."""
    text = GUIDE.read_text(encoding="utf-8")
    verbs = main.list_commands(click.Context(main))
    assert [verb for verb in verbs if f"$ maxam-pipeline {verb} " not in text] == []
    assert {block.kind for block in blocks(text)} <= {"console", "python", "text"}
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not (GUIDE.parent / link).exists()] == []


def test_lines_that_are_shown_must_have_been_printed() -> None:
    """The comparison sees a line that differs, one in another place, and another number, unless it is live."""
    assert first_missing(["a  1", "...", "c"], "a 1\nb\nc\n", live=False) is None
    assert first_missing(["a 2"], "a 1\n", live=False) == "a 2"
    assert first_missing(["a 2,000.5"], "a 1\n", live=True) is None
    assert first_missing(["c", "a 1"], "a 1\nb\nc\n", live=False) == "a 1"
    assert first_missing(["path ... 7 lost", "a ... b"], "path /x/y 7 lost\na b\n", live=False) is None
    assert first_missing(["a ... b"], "a cb\n", live=False) == "a ... b"
