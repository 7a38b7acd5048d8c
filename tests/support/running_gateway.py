"""A gateway in a thread of the test process, with the admin listener beside it, for blocking tests of commands."""

import datetime as dt
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import trio
from click.testing import CliRunner, Result

from maxam.cli.main import main
from maxam.client import connect
from maxam.config import (
    AdminSettings,
    JournalSettings,
    Limits,
    ListenerSettings,
    PolicySettings,
    SchemaSettings,
    Settings,
    TlsSettings,
)
from maxam.gateway.server import Gateway
from maxam.pki.certificates import issue_development_certificates
from tests.support.gateway_process import admin_environment, port_of
from tests.support.living_gateway import serving
from tests.support.patience import PATIENCE_S


@dataclass
class Running:
    """A gateway in a thread of its own."""

    folder: Path
    admin: str
    gateway: Gateway
    token: trio.lowlevel.TrioToken

    def environment(self, who: str = "operator") -> dict[str, str | None]:
        """Return the variables by which `maxam-admin` finds the gateway and the certificate of a client."""
        return admin_environment(port_of(self.admin), self.folder / "certs", who)

    def cli(
        self,
        *arguments: str,
        who: str = "operator",
        variables: dict[str, str | None] | None = None,
        given: bytes | None = None,
    ) -> Result:
        """Run `maxam-admin` with the certificate of a client."""
        return CliRunner().invoke(main, arguments, env=self.environment(who) | (variables or {}), input=given)

    def client(self, work: Callable[[Any], Any], client_id: str = "publisher") -> None:
        """Do something as a connected publisher."""
        certificates = self.folder / "certs"

        async def connected() -> None:
            async with connect(
                *self.gateway.address,
                certificate=certificates / "publisher.pem",
                key=certificates / "publisher.key",
                ca=certificates / "ca.pem",
                client_id=client_id,
            ) as client:
                await work(client)

        trio.run(connected)

    def send(self, destination: str, body: bytes) -> None:
        """Publish one value."""

        async def work(client: Any) -> None:
            assert (await client.send(destination, body, {"h": "1"})).accepted

        self.client(work)


@contextmanager
def running_gateway(
    folder: Path,
    policy: str,
    schemas: Mapping[str, str],
    durability: Literal["fsync", "none"] = "fsync",
    limits: Limits = Limits(),  # noqa: B008 it is immutable
) -> Iterator[Running]:
    """Run one for the length of a block.

    Args:
        folder: For its files.
        policy: Text of the policy, with `{NAME}` for the fingerprint of each development certificate.
        schemas: Texts of the files of the schema folder, by their paths in it.
        durability: Of the journal.
        limits: Of the broker.
    """
    certificates = folder / "certs"
    fingerprints = issue_development_certificates(certificates, dt.datetime.now(dt.UTC))
    (folder / "policy.toml").write_text(policy.format(**fingerprints))
    for path, text in schemas.items():
        file = folder / "schemas" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    settings = Settings(
        TlsSettings(certificates / "server.pem", certificates / "server.key", certificates / "ca.pem"),
        PolicySettings(folder / "policy.toml"),
        SchemaSettings(folder / "schemas"),
        ListenerSettings(port=0),
        JournalSettings(folder / "journal", durability=durability),
        AdminSettings(port=0),
        limits=limits,
    )
    made: list[Running] = []
    ready, done = threading.Event(), trio.Event()

    async def serve() -> None:
        async with serving(settings) as (gateway, ports):
            made.append(Running(folder, f"127.0.0.1:{ports[1]}", gateway, trio.lowlevel.current_trio_token()))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield made[0]
    finally:
        made[0].token.run_sync_soon(done.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def plain(output: str) -> str:
    """Return output with what differs from run to run replaced, and no blanks at line ends."""
    output = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", output)
    output = re.sub(r"127\.0\.0\.1:\d+", "<peer>", output)
    output = re.sub(r"\b[0-9a-f]{64}\b", "<fingerprint>", output)
    output = re.sub(r" {2,}", "  ", re.sub(r"─+", "─", output))
    return "\n".join(line.rstrip() for line in output.splitlines()) + "\n"
