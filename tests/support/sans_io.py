"""A broker without I/O and clients that talk to it in frames, for tests that need no socket, no disk and no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.operations import Operation, Proof, TransientSubscribe
from maxam.broker.policy import Policy, load_policy
from maxam.broker.store import Store
from maxam.config import Limits, PolicySettings, SchemaSettings, Settings, TlsSettings
from maxam.gateway.server_connection import ServerConnection
from maxam.records import Record
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame

UNCHECKED = {"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}


def fingerprint_of(principal: str) -> str:
    """Return a made-up fingerprint that `policy` gives this principal."""
    return principal.encode().hex().ljust(64, "0")[:64]


def policy(**principals: Mapping[str, Sequence[str]]) -> Policy:
    """Make a policy in which each principal has one capability with the given `send`, `receive` (and `owns`) globs, and `will` in TOML.

    A `bridge` that is not empty allows the headers of bridges, and `pii` likewise shows personal fields.
    """
    lines = []
    for name, rights in principals.items():
        lines.append(f"[capabilities.{name}]")
        globs = {kind: list(globs) for kind, globs in rights.items() if kind not in {"owns", "will", "bridge", "pii"}}
        lines += [f"{kind} = {those!r}" for kind, those in globs.items()]
        lines += [f"{flag} = true" for flag in ("bridge", "pii") if rights.get(flag)]
        lines.append(f'[[principals]]\nname = "{name}"\nfingerprints = ["{fingerprint_of(name)}"]')
        lines.append(f'capabilities = ["{name}"]')
        if "owns" in rights:
            lines.append(f"owns = {list(rights['owns'])!r}")
        if "will" in rights:
            lines.append(f"will = {rights['will']}")
    return load_policy("\n".join(lines).encode(), "policy", Limits())


EVERYTHING = {"send": ["X/**"], "receive": ["X/**"]}


@dataclass
class World:
    """One broker, a clock that tests move, and a journal that is a list."""

    broker: Broker
    settings: Settings
    now_s: float = 1000.0
    wall_us: int = 1_700_000_000_000_000
    sessions: int = 0

    def __post_init__(self) -> None:
        self.journal: list[Record] = []

    @classmethod
    def make(
        cls, *, limits: Limits | None = None, schemas: dict[str, bytes] | None = None, **principals: Any
    ) -> "World":
        """Make a world; by default the principal `anna` may do everything and bodies are not checked."""
        limits = limits or Limits()
        settings = Settings(
            tls=TlsSettings(Path("c"), Path("k"), Path("a")),
            policy=PolicySettings(Path("p")),
            schemas=SchemaSettings(Path("s")),
            limits=limits,
        )
        rights = policy(**(principals or {"anna": EVERYTHING}))
        return cls(Broker(limits, rights, load_registry(schemas or UNCHECKED)), settings)

    def client(self, principal: str = "anna", *, connect: bool = True, **headers: Any) -> "Client":
        """Connect a client; `headers` go into its CONNECT with `_` for `-`."""
        self.sessions += 1
        client = Client(self, principal, f"made-{self.sessions}")
        if connect:
            client.connect(**headers)
        return client

    def take(self) -> list[Operation]:
        """Begin a commit: what was appended until now goes to the disk."""
        return self.broker.take_batch()

    def commit(self, batch: list[Operation] | None = None) -> None:
        """End a commit: the batch, or all that is pending, is on the disk now."""
        if batch is None:
            batch = self.broker.take_batch()
        self.journal += [operation for operation in batch if not isinstance(operation, TransientSubscribe | Proof)]
        self.broker.apply_batch(batch)

    def settle(self) -> None:
        """Commit, scan and tick until nothing is left to do at this moment."""
        while self.broker.pending or self.broker.scanning:
            self.commit()
            self.broker.scan()

    def restart(self, wills_after_s: float = 0.0) -> "World":
        """Return the world after a crash: a broker that has read back the journal, and no connections.

        Wills are armed some time after that.
        """
        broker = Broker(self.broker.limits, self.broker.policy, self.broker.registry)
        for record in self.journal:
            broker.replay(forget_target(record))
        broker.recovered(self.now_s, self.broker.committed_revision, wills_s=self.now_s + wills_after_s)
        world = replace(self, broker=broker)
        world.journal = self.journal
        return world


def forget_deletes(store: Store) -> None:
    """Forget all deletes, retained or not."""
    store.release_soon()
    store.retire(0, len(store.retained))
    store.sweep(set(store.tombstones), set())


def forget_target(record: Record) -> Record:
    """Return the record as recovery reads it: without what only the broker that made it knows."""
    if hasattr(record, "target"):
        record.target = None
    return record


class Client:
    """A client that writes frames and reads frames; nothing moves unless a test wants it."""

    def __init__(self, world: World, principal: str, session_id: str) -> None:
        self.world = world
        self.woken = 0
        self.peer = ServerConnection(
            world.broker, world.settings, fingerprint_of(principal), session_id, self._wake, world.now_s
        )
        self.version = VERSION_1_2
        self._decoder = Decoder(Limits(frame_body_bytes_max=2**30), SERVER_COMMANDS)
        self.frames: list[Frame] = []

    def _wake(self) -> None:
        self.woken += 1

    def connect(self, **headers: Any) -> Frame:
        """Send CONNECT and return the answer, CONNECTED or ERROR."""
        given = {"accept-version": "1.2", "host": "MAXVAPI"} | {k.replace("_", "-"): v for k, v in headers.items()}
        self.version = 0 if given["accept-version"] == "1.1" else 1
        lines = "".join(f"{name}:{value}\n" for name, value in given.items() if value is not None)
        self.write(f"CONNECT\n{lines}\n\0".encode())
        answer, *rest = self.read()
        assert not rest
        self._decoder.expect(SERVER_COMMANDS, self.version)
        return answer

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self.peer.receive_data(data, self.world.now_s, self.world.wall_us)

    def send(self, destination: str, body: bytes = b"value", receipt: str | None = None, **headers: str) -> None:
        """Send a SEND."""
        pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
        self.write(
            encoder.send(self.version, destination.encode(), body, pairs, (receipt and receipt.encode()) or None)
        )

    def subscribe(
        self, glob: str = "X/**", id_: str = "s", ack: str = "client", receipt: str | None = None, **flags: Any
    ) -> None:
        """Send a SUBSCRIBE."""
        self.write(
            encoder.subscribe(
                self.version,
                id_.encode(),
                glob.encode(),
                ack.encode(),
                receipt_id=(receipt and receipt.encode()) or None,
                **flags,
            )
        )

    def ack(self, message: Frame | tuple[str, int], receipt: str | None = None) -> None:
        """Send an ACK for a MESSAGE, or for a subscription and a revision."""
        if isinstance(message, tuple):
            subscription, message_id = message[0].encode(), str(message[1]).encode()
        else:
            subscription, message_id = message.headers[b"subscription"], message.headers[b"message-id"]
        self.write(encoder.ack(self.version, subscription, message_id, (receipt and receipt.encode()) or None))

    def unsubscribe(self, id_: str = "s", durable: bool = False, receipt: str | None = None) -> None:
        """Send an UNSUBSCRIBE."""
        self.write(
            encoder.unsubscribe(
                self.version, id_.encode(), durable=durable, receipt_id=(receipt and receipt.encode()) or None
            )
        )

    def read(self) -> list[Frame]:
        """Return every frame that the broker has for this client now, as if the link took all of it at once."""
        frames: list[Frame] = []
        while some := self.read_some():
            frames += some
        return frames

    def read_some(self) -> list[Frame]:
        """Return what the broker hands out in one go, as if the link took nothing after it for now."""
        frames = list(self._decoder.feed(b"".join(self.peer.data_to_send(self.world.now_s))))
        self.frames += frames
        return frames

    def lose(self) -> None:
        """Break the transport."""
        self.peer.closed(self.world.now_s, "lost")


def receipts(frames: list[Frame]) -> list[tuple[str, str]]:
    """Return (receipt-id, disposition or result or "") of the RECEIPTs, in order."""
    found = []
    for frame in frames:
        if frame.command == b"RECEIPT":
            answer = frame.headers.get(b"disposition") or frame.headers.get(b"result") or b""
            found.append((frame.headers[b"receipt-id"].decode(), answer.decode()))
    return found


def values(frames: list[Frame]) -> list[tuple[str, str]]:
    """Return (destination, body) of the MESSAGEs, in order."""
    return [(f.headers[b"destination"].decode(), f.body.decode()) for f in frames if f.command == b"MESSAGE"]
