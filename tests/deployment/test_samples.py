"""A gateway accepts the sample configuration, and its comments are true."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from click.testing import CliRunner

from maxam.cli.main import main
from maxam.config import load_settings
from tests.deployment.service_manager import settings_of
from tests.support.gateway_process import COMMAND

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy/etc/maxam"


def _placed(folder: Path, certificates: Path, policy: str = "") -> Path:
    """Put the samples where an installation has them, with certificates; return the configuration."""
    etc = folder / "etc"
    shutil.copytree(SAMPLES, etc)
    shutil.copytree(ROOT / "schemas", etc / "schemas")
    (etc / "tls").mkdir()
    for name, place in {
        "ca.pem": "ca.pem",
        "crl.pem": "crl.pem",
        "server.pem": "tls/gateway.pem",
        "server.key": "tls/gateway.key",
    }.items():
        shutil.copy(certificates / name, etc / place)
    configuration = etc / "maxam.toml"
    configuration.write_text(configuration.read_text().replace('"/var/', f'"{folder}/var/'))
    with (etc / "policy.toml").open("a") as file:
        file.write(policy)
    return configuration


def test_a_gateway_takes_the_sample(certificates: Path, tmp_path: Path) -> None:
    """`--check` finds nothing wrong with the samples as they are, once there are certificates."""
    path = _placed(tmp_path, certificates)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--config", str(path), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{path}: valid\n"), done.stderr


def test_what_is_commented_out_in_the_sample_policy_is_good_too(certificates: Path, tmp_path: Path) -> None:
    """With fingerprints in place of the dots, and comments taken off, nothing is wrong and nothing odd but capabilities that no principal has yet."""
    text = (SAMPLES / "policy.toml").read_text()
    begin = text.index("# [[principals]]")
    lines = [line.removeprefix("# ") for line in text[begin:].splitlines()]
    for n in range(len(lines)):
        lines[n] = lines[n].replace('"..."', f'"{n:064x}"')
    path = _placed(tmp_path, certificates, "\n".join(lines) + "\n")
    done = CliRunner().invoke(
        main, ["policy", "check", str(path.with_name("policy.toml")), "--schemas", str(path.with_name("schemas"))]
    )
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if "Displays" not in line and "Observers" not in line] == []


def test_each_key_of_the_sample_is_known(tmp_path: Path) -> None:
    """Each key of the sample is one that the gateway knows, and those commented out are too."""
    text = (SAMPLES / "maxam.toml").read_text()
    begin = text.index("# [enrolment]")
    enrolment = "\n".join(line.removeprefix("# ") for line in text[begin:].splitlines())
    enrolled = text[:begin].replace("# enrolled =", "enrolled =").replace("# hosts =", "hosts =")
    load_settings(enrolled + enrolment, "maxam.toml", tmp_path)


def test_the_client_sample_names_no_key() -> None:
    """A key is a person's: the machine's file has only the gateway's address and the CA to trust."""
    assert set(tomllib.loads((SAMPLES / "client.toml").read_text())) == {"admin", "ca"}


def test_who_asks_the_gateway_on_its_own_machine_finds_it() -> None:
    """With each `[admin] host` of the sample, the machine's `maxam-admin` and the nightly backup reach the gateway at 127.0.0.1."""
    text = (SAMPLES / "maxam.toml").read_text()
    admin = text[text.index("[admin]") : text.index("backups =")]
    assert set(re.findall(r'"([\d.]+)"', admin)) == {"127.0.0.1", "0.0.0.0"}  # noqa: S104 - text of the sample, nothing is bound
    asked = f"127.0.0.1:{tomllib.loads(text)['admin']['port']}"
    assert tomllib.loads((SAMPLES / "client.toml").read_text())["admin"] == asked
    unit = settings_of(ROOT / "deploy/systemd/maxam-gateway-backup.service")
    assert f"MAXAM_ADMIN={asked}" in " ".join(unit["Environment"]).split()
    assert unit["IPAddressAllow"] == ["localhost"]
