"""The example of docs/analyse/pipeline-publishing.md that encodes values is run as it stands, against a gateway."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from maxam.cli.main import main as admin
from tests.docs.guides import blocks
from tests.pipeline.guide_process import PORT, REPOSITORY
from tests.support.gateway_process import GatewayProcess

PAGE = REPOSITORY / "docs" / "analyse" / "pipeline-publishing.md"
COMMAND = re.compile(r"^# (\S+): maxam-admin (.*) > \1$", re.MULTILINE)


@pytest.mark.slow
def test_the_example_publishes_encoded_values(
    spark: SparkSession, clone: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snippet prints what the page shows: with the options of the one before it, and the file that its comment makes."""
    monkeypatch.chdir(clone)
    text = PAGE.read_text(encoding="utf-8")
    snippets = ["\n".join(block.lines) for block in blocks(text) if block.kind == "python"]
    (before,) = (one for one in snippets if "given = " in one)
    (example,) = (one for one in snippets if "encode(values" in one)
    made = COMMAND.search(example)
    assert made is not None
    shown = CliRunner().invoke(admin, made[2].split())
    assert shown.exit_code == 0, shown.output
    Path(made[1]).write_text(shown.stdout)
    options = re.search(r"given = \{.*?\}", before, re.DOTALL)
    imported = re.search(r"^from .* import publish$", before, re.MULTILINE)
    assert options is not None
    assert imported is not None
    policy = (clone / "policy-dev.toml").read_text(encoding="utf-8")
    out = io.StringIO()
    with GatewayProcess(clone / "gateway", certificates, policy, clone / "schemas") as gateway:
        program = "\n".join((options[0], imported[0], example)).replace(PORT, str(gateway.port))
        with contextlib.redirect_stdout(out):
            exec(compile(program, str(PAGE), "exec"), {"spark": spark})  # noqa: S102  # the page's own
    printed = out.getvalue().splitlines()
    assert f"It prints `{printed[-1]}`." in text
