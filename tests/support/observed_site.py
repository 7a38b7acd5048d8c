"""A gateway and another one that follows it, as processes with links over TLS on this machine."""

import datetime as dt
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio

from maxam.client import connect
from maxam.pki.certificates import issue_development_certificates
from tests.support.gateway_process import GatewayProcess, kept_ports
from tests.support.patience import PATIENCE_S

SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
CLIENTS = ("publisher", "subscriber", "operator", "site-a", "site-b")


class Site:
    """Two gateways: `source` serves clients, `observer` follows it.

    Attributes:
        source: Has `[link]`.
        observer: Has `[link]` and `[follow]`.
        certificates: Of all.
    """

    def __init__(self, folder: Path, journal: str = "") -> None:
        """Write the files of both; nothing runs yet. `journal` is a further key of `[journal]` of both."""
        self.certificates = folder / "certs"
        prints = issue_development_certificates(self.certificates, dt.datetime.now(dt.UTC), CLIENTS)
        self._policy = (
            '[capabilities.all]\nsend = ["X/**"]\nreceive = ["X/**"]\nadmin = ["read", "write", "metrics"]\n'
            '[capabilities.site]\nadmin = ["replicate"]\n'
        ) + "".join(
            f'[[principals]]\nname = "{name}"\nfingerprints = ["{one}"]\n'
            f'capabilities = ["{"site" if name.startswith("site") else "all"}"]\n'
            for name, one in prints.items()
        )
        self.ports = kept_ports(2)
        self.source = self._gateway(folder / "a", self.link(0))
        self.observer = self._gateway(folder / "b", self.link(1) + self.follow(0))
        for gateway in (self.source, self.observer):
            old = 'journal.folder = "journal"'
            self.reconfigure(gateway, old, f"{old}\n{' ' * 12}{journal}")

    def _gateway(self, folder: Path, settings: str) -> GatewayProcess:
        folder.mkdir(exist_ok=True)
        return GatewayProcess(folder, self.certificates, self._policy, SCHEMAS, settings)

    def link(self, number: int) -> str:
        """Return the table of the link of one of the gateways; the second one has a client's certificate there."""
        table = f'\n[link]\nhost = "127.0.0.1"\nport = {self.ports[number]}\n'
        own = f'certificate = "{self.certificates}/site-b.pem"\nkey = "{self.certificates}/site-b.key"\n'
        return table + (own if number else "")

    def follow(self, number: int) -> str:
        """Return the table that makes a gateway follow one of both."""
        return f'\n[follow]\nfrom = ["127.0.0.1:{self.ports[number]}"]\n'

    def reconfigure(self, gateway: GatewayProcess, old: str, new: str) -> None:
        """Replace a part of a gateway's configuration."""
        path = gateway.folder / "maxam.toml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def stop(self) -> None:
        """End what runs."""
        self.observer.kill()
        self.source.kill()

    def client(
        self, gateway: GatewayProcess, work: Callable[[Any], Any], who: str = "publisher", client_id: str = "c"
    ) -> Any:
        """Do something as a connected client; return its result."""

        async def connected() -> Any:
            async with connect(
                "127.0.0.1",
                gateway.port,
                certificate=self.certificates / f"{who}.pem",
                key=self.certificates / f"{who}.key",
                ca=self.certificates / "ca.pem",
                client_id=client_id,
            ) as client:
                return await work(client)

        return trio.run(connected)

    def send(self, values: Mapping[str, bytes]) -> None:
        """Publish values at the source."""

        async def work(client: Any) -> None:
            async with trio.open_nursery() as nursery:
                for destination, body in values.items():
                    nursery.start_soon(_send, client, destination, body)

        self.client(self.source, work)

    def ask(self, gateway: GatewayProcess, path: str, method: str = "GET", who: str = "operator") -> "Answered":
        """Make a request to the admin listener of a gateway."""
        return ask(gateway, self.certificates, path, method, who)

    def revision(self, gateway: GatewayProcess) -> int:
        """Return the newest revision that a gateway shows."""
        found: int = self.ask(gateway, "/v1/about").json["revision"]
        return found

    def caught_up(self) -> None:
        """Wait until the observer shows what the source has now."""
        wanted = self.revision(self.source)
        until(lambda: self.revision(self.observer) >= wanted, self.observer)

    def values(self, gateway: GatewayProcess) -> dict[str, Any]:
        """Return what the admin API of a gateway shows of all topics."""
        found: dict[str, Any] = {}
        after = ""
        while True:
            page = self.ask(gateway, f"/v1/topics?glob=**&limit=200{after}").json
            found |= {row["destination"]: {**row, "updates": None, "age_s": None} for row in page["topics"]}
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"


class Answered:
    """The answer to a request."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


async def _send(client: Any, destination: str, body: bytes) -> None:
    assert (await client.send(destination, body)).accepted


def until(holds: Callable[[], bool], gateway: GatewayProcess, within_s: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, gateway.log()
        time.sleep(0.02)  # processes that are waited for have no clock to share


def sealed(gateway: GatewayProcess) -> dict[str, str]:
    """Return the SHA-256 of each sealed segment of a gateway's journal, by name."""
    folder = gateway.folder / "journal" / "segments"
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.avro"))
        if not path.name.endswith(".open.avro")
    }


def ask(
    gateway: GatewayProcess, certificates: Path, path: str, method: str = "GET", who: str = "operator"
) -> "Answered":
    """Make a request to the admin listener of a gateway."""
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(certificates / f"{who}.pem", certificates / f"{who}.key")
    assert gateway.admin_port is not None
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.admin_port, context=context, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers={"maxam-admin": "1", "content-length": "0"})
        response = connection.getresponse()
        return Answered(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
    finally:
        connection.close()
