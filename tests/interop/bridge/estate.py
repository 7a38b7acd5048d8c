"""A venue, a centre and a bridge as real processes over mutual TLS, and a line between them that a test cuts or slows."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from maxam.client import Client, connect
from maxam.https_client import Credentials, Remote
from maxam.links import Link, decode_link
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
COMMAND = "from maxam.programs import bridge; bridge()"
RULES = """
[[rule]]
destination = "B/*.Link"
encoding = "datum"
schema = "maxam.Link_v1"
[[rule]]
destination = "B/*.Wanted"
encoding = "datum"
schema = "maxam.Wanted_v1"
[[rule]]
destination = "*/**"
encoding = "none"
"""
ROUTES = """
[[route]]
glob = "X/**"
store = "V"
"""


def schemas(rules: str = RULES) -> dict[str, str]:
    """Return the files of a schema folder with the shipped types of bridges."""
    found = {"registry.toml": rules}
    for name in ("Link_v1", "Wanted_v1"):
        path = f"maxam/{name}/1.0.avsc"
        found[path] = (ROOT / "schemas" / path).read_text()
    return found


def policy(certificates: Path) -> str:
    """Return a policy with the bridge (the certificate `subscriber`) and a client that may do everything."""
    lines = ['[capabilities.all]\nsend = ["**"]\nreceive = ["**"]\nadmin = ["read", "write", "metrics"]']
    lines.append('[capabilities.bridge]\nsend = ["**"]\nreceive = ["**"]\nbridge = true')
    for name, capability in (("publisher", "all"), ("operator", "all"), ("subscriber", "bridge")):
        certificate = x509.load_pem_x509_certificate((certificates / f"{name}.pem").read_bytes())
        digest = certificate.fingerprint(hashes.SHA256()).hex()
        lines.append(f'[[principals]]\nname = "{name}"\nfingerprints = ["{digest}"]\ncapabilities = ["{capability}"]')
    return "\n".join(lines)


class BridgeProcess:
    """The program `maxam-bridge`."""

    def __init__(self, config: Path, log: Path) -> None:
        self.config = config
        self.log = log
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it. It may not be connected when this returns."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "--config", str(self.config)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None

    def wait(self) -> int:
        """Return its exit code once it has ended."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)


class Estate:
    """Two gateways and the files of a bridge."""

    def __init__(
        self, folder: Path, certificates: Path, routes: str = ROUTES, settings: str = "", more: Mapping[str, str] = {}
    ) -> None:
        self.folder, self.certificates = folder, certificates
        self.routes = routes
        for name in ("venue", "centre"):
            (folder / name).mkdir()
        texts = {**schemas(), **more}
        rights = policy(certificates)
        self.venue = GatewayProcess(folder / "venue", certificates, rights, schemas(), settings)
        self.centre = GatewayProcess(folder / "centre", certificates, rights, texts, settings)
        for gateway in (self.venue, self.centre):
            gateway.keep_port("listener")
            gateway.keep_port("admin")
            gateway.start()
        self.bridge = BridgeProcess(folder / "bridge.toml", folder / "bridge.log")
        self.configure()

    def configure(self, routes: str | None = None, centre_port: int | None = None, bridge: str = "") -> None:
        """Write `bridge.toml`."""
        self.routes = routes or self.routes
        lines = ["[bridge]", "link_timeout_s = 3", bridge]
        for section, name, port, admin in (
            ("from", "V7", self.venue.port, self.venue.admin_port),
            ("to", "centre", centre_port or self.centre.port, self.centre.admin_port),
        ):
            lines += [f"[{section}]", f'name = "{name}"', f'addresses = ["127.0.0.1:{port}"]']
            lines += [f'admin = "127.0.0.1:{admin}"', f'ca = "{self.certificates}/ca.pem"']
            lines += [
                f'{key} = "{self.certificates}/subscriber.{end}"'
                for key, end in (("certificate", "pem"), ("key", "key"))
            ]
        self.bridge.config.write_text("\n".join([*lines, self.routes]))

    def send(
        self, gateway: GatewayProcess, values: Mapping[str, bytes], headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish values, many at a time."""
        given = headers or {"content-type": "text/plain"}

        async def main() -> None:
            async with self.client(gateway) as client:
                posted = [await client.post(topic, body, given) for topic, body in values.items()]
                for one in posted:
                    assert (await one.receipt()).accepted

        trio.run(main)

    def values(self, gateway: GatewayProcess, glob: str) -> dict[str, bytes]:
        """Return all values of a glob."""
        return {topic: body for topic, (body, _) in self.messages(gateway, glob).items()}

    def messages(self, gateway: GatewayProcess, glob: str) -> dict[str, tuple[bytes, dict[str, str]]]:
        """Return all values of a glob with their headers."""
        found: dict[str, tuple[bytes, dict[str, str]]] = {}

        async def main() -> None:
            async with (
                self.client(gateway) as client,
                client.subscribe(glob, ack="auto", eager=True, markers=True) as subscription,
                trio.open_nursery() as nursery,
            ):

                async def read() -> None:
                    async for message in subscription:
                        found.pop(message.destination, None)
                        if message.body:
                            found[message.destination] = message.body, message.headers

                nursery.start_soon(read)
                await subscription.complete()
                nursery.cancel_scope.cancel()

        trio.run(main)
        return found

    def link(self, gateway: GatewayProcess) -> Link | None:
        """Return the state of the bridge at a gateway."""
        return decode_link(self.values(gateway, "B/V7.Link").get("B/V7.Link", b""))

    def equal(self, here: str = "X", there: str = "V") -> bool:
        """Return True if the centre has exactly the values of the venue."""
        wanted = {there + topic[len(here) :]: body for topic, body in self.values(self.venue, f"{here}/**").items()}
        return wanted == self.values(self.centre, f"{there}/**")

    def until_equal(self) -> float:
        """Wait until both sides are equal. Return the seconds that it took."""
        return until(self.equal)

    def until_complete(self) -> Link:
        """Wait until Link at the centre shows a complete inventory, and return it."""
        began_s = time.monotonic()
        while (link := self.link(self.centre)) is None or link.state != "UP" or not link.venue_incarnation:
            assert time.monotonic() < began_s + PATIENCE_S, (link, self.bridge.log.read_text())
            time.sleep(0.05)
        return link

    def client(self, gateway: GatewayProcess) -> AbstractAsyncContextManager[Client]:
        """Connect a client that may do everything."""
        folder = self.certificates
        return connect(
            "127.0.0.1",
            gateway.port,
            certificate=folder / "publisher.pem",
            key=folder / "publisher.key",
            ca=folder / "ca.pem",
        )

    def readiness(self, gateway: GatewayProcess) -> dict[str, Any]:
        """Return what the admin listener answers about the health of a gateway."""
        folder = self.certificates
        address = f"127.0.0.1:{gateway.admin_port}"
        credentials = Credentials(address, folder / "operator.pem", folder / "operator.key", folder / "ca.pem")
        with Remote(credentials) as remote:
            found: dict[str, Any] = remote.get("/readyz")
        return found

    def stop(self) -> None:
        """End everything."""
        self.bridge.kill()
        for gateway in (self.venue, self.centre):
            gateway.stop()


def sent(world: Estate) -> int:
    """Return the number of values that the bridge has sent, as its log has it."""
    return int(world.bridge.log.read_text().rpartition("sent=")[2].split()[0])


def until(condition: Callable[[], bool]) -> float:
    """Ask again until something is so. Return the seconds that it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() < began_s + PATIENCE_S
        time.sleep(0.05)
    return time.monotonic() - began_s


@contextmanager
def estate(folder: Path, certificates: Path, routes: str = ROUTES, **given: object) -> Iterator[Estate]:
    """Run an estate for the length of a block. Its bridge does not run yet."""
    made = Estate(folder, certificates, routes, **given)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.stop()
