"""Our gateway, with everything on."""

import contextlib
import platform
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import maxam
from maxam.bench.bodies import SCHEMAS
from maxam.bench.syntax import MAXAM
from maxam.compiled import child_environment, core
from tests.benchmarks.brokers.broker import Broker, development_certificates, loopback
from tests.benchmarks.brokers.process import process

_POLICY: Final = """
[capabilities.all]
send = ["X/**"]
receive = ["X/**"]
[capabilities.look]
admin = ["read", "metrics", "ticket"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["all"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["all", "look"]
"""
_CONFIG: Final = """
listener.port = 0
admin.port = 0
policy.file = "policy.toml"
schemas.folder = "{schemas}"
[tls]
certificate = "certs/server.pem"
key = "certs/server.key"
client_ca = "certs/ca.pem"
[journal]
folder = "{journal}"
durability = "{durability}"
{settings}
"""
_READY: Final = r"(?m)^ready .*\btls=\S+:(\d+)\b.*\n"
_ADMIN: Final = r"(?m)^ready .*\badmin=\S+:(\d+)\b.*\n"
_WEB: Final = r"(?m)^ready .*\bweb=\S+:(\d+)\b.*\n"


@contextlib.contextmanager
def gateway(
    cores: Collection[int],
    *,
    durability: str = "fsync",
    journal: Path | None = None,
    settings: str = "",
    schemas: Path = SCHEMAS,
) -> Iterator[Broker]:
    """Start it with mutual TLS, rights and schemas, and stop it after use.

    Args:
        cores: Numbers of the cores that it may use.
        durability: As in its configuration: `fsync` or `none`.
        journal: A folder that outlives it; else it has one in its temporary folder.
        settings: Further tables of its configuration, such as `[limits]`.
        schemas: The schema folder.

    Raises:
        LoadError: It does not start.
    """
    with tempfile.TemporaryDirectory(prefix="maxam-bench-") as name:
        folder = Path(name)
        fingerprints = development_certificates(folder / "certs")
        (folder / "policy.toml").write_text(_POLICY.format(**fingerprints))
        (folder / "maxam.toml").write_text(
            _CONFIG.format(schemas=schemas, journal=journal or "journal", durability=durability, settings=settings)
        )
        command = [sys.executable, "-c", "from maxam.main import gateway; gateway()", "--config", "maxam.toml"]
        with process(command, folder, cores, _READY, child_environment()) as started:
            port = int(started.find(_READY))
            said = [
                f"{core()} core, Python {platform.python_version()}, TLS 1.3, rights, schemas, durability {durability}"
            ]
            said += [line.strip() for line in settings.splitlines() if line.strip()]
            yield Broker(
                "maxam",
                maxam.__version__,
                ", ".join(said),
                loopback(port, folder / "certs", MAXAM, "MAXVAPI"),
                started.pid,
                started.start_s,
                admin_port=int(started.find(_ADMIN)),
                web_port=int(started.find(_WEB)) if "[web]" in settings else 0,
            )
