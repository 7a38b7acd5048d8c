"""A gateway with a floor for people to watch: many topics, updates that never rest, a subscriber that falls behind, a hostile client."""

import datetime as dt
import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from fastavro import parse_schema, schemaless_writer

from maxam.cli.main import main
from maxam.pki.certificates import issue_development_certificates
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.gateway_process import GatewayProcess, admin_environment
from tests.support.raw_client import RawClient

BUSY: Final = 100  # topics that go on changing
CLIENTS: Final = ("operator", "machines", "table", "hostile", "stranger", "reader", "observer")
# Characters that the grammar of destinations and of client-ids allows.
HOSTILE_PRINCIPAL: Final = "<b onclick=alert(4)>hostile</b>"
HOSTILE_TOPIC: Final = "X/<img_src=x_onerror=alert(1)>.Counter"
HOSTILE_CLIENT_ID: Final = "<svg/onload=alert(2)>"
HOSTILE_TEXT: Final = "<script>alert(3)</script>\u202egnp\u200b\x1b[31m"
HOSTILE_HEADER: Final = '"><iframe/src=//evil.example/>'
_TIGHT: Final = '{"name": "count", "type": "long"}, {"name": "label", "type": "string"}'
_NOTE: Final = '{"name": "note", "type": ["null", "string"], "default": null, "doc": "What an attendant wrote."}'
_RECORD: Final = '{"type": "record", "name": "Counter_v1", "namespace": "floor", "fields": [%s]}'
SCHEMAS: Final = {
    "registry.toml": """
        [[rule]]
        destination = "X/*.Counter"
        schema = "floor.Counter_v1"
        encoding = "datum"
        [[rule]]
        destination = "X/*.Patron"
        schema = "floor.Patron_v1"
        encoding = "datum"
        [[rule]]
        destination = "X/*.Blob"
        encoding = "none"
        [[rule]]
        destination = "B/*.Link"
        encoding = "none"
        """,
    "floor/Patron_v1/1.0.avsc": """
        {"type": "record", "name": "Patron_v1", "namespace": "floor",
         "fields": [{"name": "visits", "type": "long"}, {"name": "name", "type": "string", "pii": true}]}
        """,
    "floor/Counter_v1/1.0.avsc": _RECORD % _TIGHT,
    "floor/Counter_v1/1.1.avsc": _RECORD % f"{_TIGHT}, {_NOTE}",
}
_RIGHTS: Final = {
    "machines": 'send = ["X/*", "B/*"]\nreceive = ["X/*"]',
    "operations": 'send = ["X/*"]\nreceive = ["X/*"]\nadmin = ["read", "write", "metrics"]',
    "observations": 'receive = ["X/*"]\nadmin = ["read"]',
    "nothing": "",
}
_PARSED: Final = parse_schema(
    {
        "type": "record",
        "name": "floor.Counter_v1",
        "fields": [{"name": "count", "type": "long"}, {"name": "label", "type": "string"}],
    }
)


class Floor:
    """A gateway process and what happens around it; see `open_floor`.

    Attributes:
        gateway: The process.
    """

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway: Final = gateway

    @property
    def origin(self) -> str:
        """Where the console is."""
        return f"https://localhost:{self.gateway.admin_port}"

    def send(
        self, name: str, destination: str, value: bytes, headers: Iterable[tuple[str, str]] = (), accepted: bool = True
    ) -> None:
        """Send one value as a client, and wait for its receipt."""
        with RawClient(self.gateway, name) as client:
            frame = {"destination": destination, "content-length": str(len(value)), "receipt": "1", **dict(headers)}
            client.write("SEND", frame, value)
            answer = client.read()
        assert (answer.headers.get("disposition") == "accepted") is accepted, answer

    def back_up(self) -> None:
        """Make a backup."""
        variables = admin_environment(self.gateway.admin_port, self.gateway.certificates)
        done = CliRunner().invoke(main, ["backup"], env=variables)
        assert done.exit_code == 0, done.output

    def seed(self, topics: int) -> None:
        """Give N topics a value; returns when all are accepted."""
        with RawClient(self.gateway, "machines") as client:
            for begin in range(0, topics, 2000):
                frames = [
                    encoder.send(VERSION_1_2, topic(number).encode(), body(number, "seeded"))
                    for number in range(begin, min(topics, begin + 2000))
                ]
                client.send_bytes(b"".join(frames))
            client.send("X/Last.Blob", b"seeded")

    @contextmanager
    def updates(self, per_s: int) -> Iterator[None]:
        """Update the first topics so often for the length of a block."""
        with RawClient(self.gateway, "machines") as client:
            done = threading.Event()
            failures: list[Exception] = []

            def publish() -> None:
                turn = 0
                batch = max(1, per_s // 20)
                while not done.wait(batch / per_s):
                    turn += 1
                    frames = [
                        encoder.send(VERSION_1_2, topic(one % BUSY).encode(), body(turn * batch + one, "busy"))
                        for one in range(batch)
                    ]
                    try:
                        client.send_bytes(b"".join(frames))
                    except OSError as error:
                        failures.append(error)
                        return

            thread = threading.Thread(target=publish)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
            assert not failures, failures

    @contextmanager
    def falling_behind(self) -> Iterator[None]:
        """Subscribe to everything that changes, and take nothing, for the length of a block."""
        with RawClient(self.gateway, "table", client_id="cashier-desk-3") as client:
            client.write("SUBSCRIBE", {"id": "all", "destination": "X/Floor.*.Counter", "ack": "client"})
            yield


def body(count: int, label: str) -> bytes:
    """Encode a Counter 1.0."""
    out = io.BytesIO()
    schemaless_writer(out, _PARSED, {"count": count, "label": label})
    return out.getvalue()


def topic(number: int) -> str:
    """Name a topic; in order of their numbers."""
    return f"X/Floor.{number:06}.Counter"


@contextmanager
def open_floor(folder: Path, settings: str = "", *, keeps_port: bool = False) -> Iterator[Floor]:
    """Run a gateway for the length of a block; its policy knows all CLIENTS but `stranger`, and `reader` has no right.

    With `keeps_port` it serves operators where it did before when it is started again.
    """
    certificates = folder / "certificates"
    fingerprints = issue_development_certificates(certificates, dt.datetime.now(dt.UTC), CLIENTS)
    capabilities = "".join(f"[capabilities.{name}]\n{rights}\n" for name, rights in _RIGHTS.items())
    given = {
        "operator": "operations",
        "machines": "machines",
        "table": "machines",
        "hostile": "machines",
        "reader": "nothing",
        "observer": "observations",
    }
    principals = "".join(
        f'[[principals]]\nname = "{HOSTILE_PRINCIPAL if name == "hostile" else name}"\n'
        f'fingerprints = ["{fingerprints[name]}"]\ncapabilities = ["{capability}"]\n'
        for name, capability in given.items()
    )
    gateway = GatewayProcess(folder, certificates, capabilities + principals, SCHEMAS, settings)
    path = folder / "maxam.toml"
    path.write_text(path.read_text().replace("admin.port = 0", f'admin.port = 0\nadmin.backups = "{folder}/backups"'))
    if keeps_port:
        gateway.keep_port("admin")
    with ExitStack() as stack:
        stack.enter_context(gateway)
        yield Floor(gateway)
