"""Commands that replace the log of a cluster ask for its name first."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.cli.main import main

SETTINGS = """
[link]
port = 8646
[cluster]
name = "venue-7"
member = "a"
endpoints = ["https://127.0.0.1:1"]
ca = "ca.pem"
certificate = "etcd.pem"
key = "etcd.key"
[tls]
certificate = "gateway.pem"
key = "gateway.key"
client_ca = "ca.pem"
[policy]
file = "policy.toml"
[schemas]
folder = "schemas"
[journal]
folder = "journal"
"""


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_the_wrong_name_makes_no_log(tmp_path: Path, options: list[str]) -> None:
    """The answer must be the name of the cluster. Else nothing is done."""
    (tmp_path / "maxam.toml").write_text(SETTINGS)
    command = ["cluster", "init", "--config", str(tmp_path / "maxam.toml"), *options]
    refused = CliRunner().invoke(main, command, input="venue-8\n")
    assert refused.exit_code == 2, refused.output
    assert not (tmp_path / "journal").exists()
    goes_on = CliRunner().invoke(main, command, input="venue-7\n")
    assert goes_on.exit_code not in (0, 2), "its certificate of etcd is missing"
