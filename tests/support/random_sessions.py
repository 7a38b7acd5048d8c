"""Random sessions of everything that clients may do without the headers that refine a subscription, for recorded sessions.

`tests.support.recorded_sessions` describes how to record them again.
"""

import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.recorded_sessions import Recorder, Recording, Rights, save

SESSIONS: Final = 48
STEPS: Final = 400
SCHEMAS: Final = {
    "registry.toml": """
        [[rule]]
        destination = "X/a.*"
        encoding = "none"
        [[rule]]
        destination = "X/c.*"
        schema = "random.Counter_v1"
        encoding = "datum"
        """,
    "random/Counter_v1/1.0.avsc": """
        {"type": "record", "name": "Counter_v1", "namespace": "random",
         "fields": [{"name": "count", "type": "long"}, {"name": "label", "type": "string"}]}
        """,
}
EVERYTHING: Final = {"send": ["X/**"], "receive": ["X/**"]}
POLICIES: Final[list[Rights]] = [
    {"anna": EVERYTHING, "bert": EVERYTHING},
    {"anna": EVERYTHING, "bert": {"send": ["X/a.*"], "receive": ["X/a.*"]}},
    {"anna": {"send": ["X/**"], "receive": ["X/c.*", "X/a.1"]}, "bert": EVERYTHING},
    {"anna": EVERYTHING, "bert": {"send": ["X/a.*"], "receive": []}},
]
LIMITS: Final[list[dict[str, float]]] = [
    {},
    {},
    {"window": 4, "acknowledgement_delay_s": 1.0},
    {"session_expiry_s": 30.0, "dedup_retention_s": 20.0, "subscriptions_per_session_max": 3},
    {"topics_max": 8, "sessions_per_principal_max": 4, "takeovers_per_minute_max": 4},
]
TOPICS: Final = [*(f"X/a.{n}" for n in range(5)), "X/a.col:on", *(f"X/c.{n}" for n in range(3))]
WRONG_TOPICS: Final = ["X/a..", "X/a.*", "Y/a.1", "X/unruled.1", "nowhere"]
GLOBS: Final = ["X/**", "X/a.*", "X/*.1", "X/c.?", "X/[ac].[0-2]", "X/a.1"]
WRONG_GLOBS: Final = ["X/[", "no-slash"]
IDS: Final = ["s", "two words", "t:u"]
BODIES: Final = [b"value", b"\0\1\2", b"\x02\6abc", b"x" * 300, b"", b""]
COUNTERS: Final = [b"\x02\6abc", b"\x04\6abc", b"\x06\6xyz", b"", b"\x06\6xy"]
USER_HEADERS: Final = [
    ("content-type", "text/plain"),
    ("floor", "upper"),
    ("reason", "none"),
    ("kind", "value"),
    ("timestamp", "1"),
    ("since", "1.2"),
    ("a:b\\", "c\nd"),
    ("schema-version", "1.0"),
]
BROKEN: Final = [
    b"NONSENSE\n\n\0",
    b"SEND\nno-colon\n\n\0",
    b"SEND\n\nvalue\0",
    b"SEND\ndestination:X/a.1\ncontent-length:3\n\nvalue\0",
    b"SUBSCRIBE\ndestination:X/**\n\n\0",
    b"SUBSCRIBE\nid:s9\ndestination:X/**\neager:maybe\nreceipt:r\n\n\0",
    b"SUBSCRIBE\nid:s9\ndestination:X/**\nack:never\n\n\0",
    b"BEGIN\ntransaction:1\nreceipt:r\n\n\0",
    b"ACK\nid:s 1\n\nbody\0",
    b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n\n\0",
    b"SEND\ndestination:X/a.1\nbad:\\t\n\nv\0",
    b"\xff\xfe\n\n\0",
]
_MESSAGE: Final = re.compile(r"MESSAGE\nsubscription:([^\n]*)\n(?:ack:([^\n]*)\n)?message-id:(\d+)\n")


@dataclass
class Peer:
    """A connection as its client knows it."""

    number: int
    version: str
    session: tuple[str, str] | None  # principal and client-id
    messages: list[tuple[str, str | None, str]] = field(default_factory=list)  # subscription, ack and id
    subscribed: set[str] = field(default_factory=set)
    unsent: str = ""  # the rest of a frame that was begun


class RandomSession:
    """One session: chooses steps by chance, and by what clients received."""

    def __init__(self, seed: int) -> None:
        """Begin a session."""
        self.rng = random.Random(seed)  # noqa: S311 - a session to repeat, not a secret
        limits = LIMITS[seed % len(LIMITS)]
        self.recorder = Recorder(Recording(f"random {seed}", limits, SCHEMAS, POLICIES))
        self.wildness = self.rng.choice([0.3, 1.0, 2.0])
        self.peers: dict[int, Peer] = {}
        self.durable: dict[tuple[tuple[str, str] | None, str], str] = {}  # globs by session and id
        self.opened = 0
        self.receipts = 0
        self.revisions = ["0", "1"]

    def run(self, steps: int) -> Recording:
        """Do steps, then bring all clients up to date."""
        actions = {
            self.connect: 5,
            self.send: 30,
            self.subscribe: 10,
            self.unsubscribe: 3,
            self.ack: 16,
            self.other_frame: 3,
            self.finish_frame: 3,
            self.leave: 1,
            self.read: 20,
            self.serve: 22,
            self.rarely: self.wildness,
        }
        while len(self.recorder.recording.steps) < steps:
            (action,) = self.rng.choices(list(actions), list(actions.values()))
            action()
        self.recorder.do("settle")
        for number in list(self.peers):
            self.take(number, "drain")
        return self.recorder.recording

    def connect(self) -> None:
        """Open a connection and send its CONNECT, mostly a valid one."""
        if len(self.peers) >= 5 or self.rng.random() < len(self.peers) / 6:
            return
        rng = self.rng
        self.opened += 1
        principal = rng.choice(["anna", "bert"]) if rng.random() < 0.98 else "carl"
        sessions = [(principal, client_id) for client_id in ("one", "two", "three")]
        away = [session for session in sessions if session not in [peer.session for peer in self.peers.values()]]
        session = rng.choice(away if away and rng.random() < 0.9 else sessions)
        peer = Peer(self.opened, rng.choice(["1.1", "1.2", "1.2"]), session if rng.random() < 0.9 else None)
        self.peers[peer.number] = peer
        self.recorder.do("open", peer.number, principal)
        headers = [("accept-version", rng.choice([peer.version, f"1.0,{peer.version}"])), ("host", "MAXVAPI")]
        if rng.random() < 0.03:
            headers[rng.randrange(2)] = ("accept-version", "1.0")
        if peer.session is not None:
            headers.append(("client-id", peer.session[1]))
        if rng.random() < 0.4:
            headers.append(("heart-beat", rng.choice(["10000,10000", "0,10000", "20000,0", "1,2"])))
        if rng.random() < 0.4:
            headers.append(("window", rng.choice(["1", "2", "3", "4"]) if rng.random() < 0.98 else "1000"))
        if rng.random() < 0.15:
            headers.append(("rejections", rng.choice(["receipt", "error"])))
        if rng.random() < 0.1:
            headers.append(("login", "anyone"))
        end = rng.choice(["\n", "\r\n"]) if peer.version == "1.2" else "\n"
        command = rng.choice(["CONNECT", "STOMP"])
        self.recorder.do(
            "write",
            peer.number,
            end.join([command, *(f"{name}:{value}" for name, value in headers), "", "\0"]),
        )
        if rng.random() < 0.9:
            self.take(peer.number, "drain")

    def send(self) -> None:
        """Send a value or a delete, sometimes with a condition, sometimes one that is rejected."""
        rng = self.rng
        headers = [("destination", rng.choice(TOPICS if rng.random() < 0.97 else WRONG_TOPICS))]
        counter = headers[0][1].startswith("X/c") and rng.random() < 0.8
        body = rng.choice(COUNTERS if counter else BODIES)
        if b"\0" in body or rng.random() < 0.7:
            headers.append(("content-length", str(len(body))))
        headers += rng.sample(USER_HEADERS, rng.choice([0, 0, 0, 1, 2]))
        if rng.random() < 0.15:
            headers += [("source", rng.choice("pq")), ("source-revision", str(rng.randrange(12)))]
        if rng.random() < 0.12:
            headers.append(("if-revision", rng.choice([*self.revisions[-4:], "0", "x"])))
        self.frame("SEND", headers, body)

    def subscribe(self) -> None:
        """Subscribe in any ack mode."""
        rng = self.rng
        peer = self.some_peer()
        if peer is None or peer.unsent:
            return
        free = [id_ for id_ in IDS if id_ not in peer.subscribed]
        if not free and rng.random() < 0.95:
            return
        id_ = rng.choice(free or IDS)
        glob = rng.choice(GLOBS if rng.random() < 0.97 else WRONG_GLOBS)
        known = self.durable.get((peer.session, id_))
        durable = rng.random() < 0.4
        if known is not None and rng.random() < 0.9:
            glob, durable = known, True
        elif durable and peer.session is not None:
            self.durable[peer.session, id_] = glob
        headers = [("id", id_), ("destination", glob)]
        if rng.random() < 0.8:
            headers.append(("ack", rng.choice(["auto", "client", "client", "client-individual"])))
        if durable or rng.random() < 0.2:
            headers.append(("durable", "true" if durable else "false"))
        if rng.random() < 0.6:
            headers.append(("eager", rng.choice(["true", "true", "false"])))
        if rng.random() < 0.1:
            headers.append(("unknown", "header"))
        peer.subscribed.add(headers[0][1])
        self.frame("SUBSCRIBE", headers, peer=peer)

    def unsubscribe(self) -> None:
        """Remove or pause a subscription."""
        peer = self.some_peer()
        if peer is None or peer.unsent:
            return
        headers = [("id", self.rng.choice([*peer.subscribed, "none"]))]
        if self.rng.random() < 0.6:
            headers.append(("durable", self.rng.choice(["true", "false", "false"])))
        peer.subscribed.discard(headers[0][1])
        self.frame("UNSUBSCRIBE", headers, peer=peer)

    def ack(self) -> None:
        """Acknowledge a message that was received, mostly one of the newest."""
        peers = [peer for peer in self.peers.values() if peer.messages]
        if not peers:
            return
        peer = self.rng.choice(peers)
        subscription, acknowledgement, message = self.rng.choice(peer.messages[-4:])
        if acknowledgement is None and self.rng.random() < 0.9:
            return
        if peer.version == "1.2":
            headers = [("id", acknowledgement or "s 1")]
        else:
            headers = [("subscription", subscription), ("message-id", message)]
        self.frame("ACK", headers, peer=peer, escaped=True)

    def other_frame(self) -> None:
        """Send something that is not often sent: NACK, DISCONNECT, heart-beats, or a broken frame."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.3:
            self.frame("NACK", [("id", "s 1")])
        elif choice < 0.4:
            self.frame("DISCONNECT", [])
        elif (peer := self.some_peer()) is not None and not peer.unsent:
            self.recorder.do("write", peer.number, "\n" if choice < 0.9 else rng.choice(BROKEN).decode("latin-1"))

    def finish_frame(self) -> None:
        """Send the rest of a frame that was begun."""
        for peer in self.peers.values():
            if peer.unsent:
                rest, peer.unsent = peer.unsent, ""
                self.recorder.do("write", peer.number, rest)

    def leave(self) -> None:
        """Lose a connection, or end its stream."""
        if (peer := self.some_peer()) is None:
            return
        if self.rng.random() < 0.7:
            del self.peers[peer.number]
            self.recorder.do("lose", peer.number)
        else:
            self.recorder.do("eof", peer.number)

    def read(self) -> None:
        """Have a client read, at once or all."""
        if (peer := self.some_peer()) is not None:
            self.take(peer.number, self.rng.choice(["read", "drain"]))

    def serve(self) -> None:
        """Have the gateway do a part of its work."""
        step = self.rng.choice(["settle", "settle", "commit", "commit", "take", "scan", "wait", "drain"])
        if step == "scan":
            self.recorder.do("scan", self.rng.choice([1, 2, 1000]))
        elif step == "wait":
            self.recorder.do("wait", self.rng.choice([0.01, 0.2, 1.5, 4.0]))
        elif step == "drain":
            for number in list(self.peers):
                self.take(number, "drain")
        else:
            self.recorder.do(step)

    def rarely(self) -> None:
        """Do what seldom happens to a gateway."""
        rng = self.rng
        match rng.randrange(12):
            case 0 | 1 | 2:
                self.recorder.do("reload", rng.randrange(len(POLICIES)))
            case 3 | 4:
                self.recorder.do("refuse")
            case 5 | 6:
                self.recorder.do("wait", rng.choice([9.5, 12.0, 25.0, 700.0]))
            case 7:
                self.recorder.do("memory", rng.random() < 0.2)
            case 8:
                self.recorder.do("end_sessions", rng.choice(["anna", "bert"]))
            case 9:
                self.recorder.do("snapshot")
                self.peers.clear()
            case _:
                self.recorder.do("crash")
                self.peers.clear()

    def frame(
        self,
        command: str,
        headers: list[tuple[str, str]],
        body: bytes = b"",
        peer: Peer | None = None,
        escaped: bool = False,
    ) -> None:
        """Send a frame on a connection, mostly with a receipt, sometimes in two parts."""
        rng = self.rng
        peer = peer or self.some_peer()
        if peer is None or peer.unsent:
            return
        if rng.random() < 0.75:
            self.receipts += 1
            headers = [*headers, ("receipt", f"r-{self.receipts}")]
        end = "\r\n" if peer.version == "1.2" and rng.random() < 0.1 else "\n"
        lines = [f"{name}:{value}" if escaped else f"{_escaped(name)}:{_escaped(value)}" for name, value in headers]
        text = end.join([command, *lines, "", ""]) + body.decode("latin-1") + "\0" + rng.choice(["", "", "\n"])
        if rng.random() < 0.08:
            cut = rng.randrange(1, len(text))
            text, peer.unsent = text[:cut], text[cut:]
        self.recorder.do("write", peer.number, text)

    def take(self, number: int, how: str) -> None:
        """Have a client read, and keep what it learns."""
        peer = self.peers[number]
        output = self.recorder.do(how, number)
        for subscription, acknowledgement, message in _MESSAGE.findall(output):
            peer.messages.append((subscription, acknowledgement or None, message))
            self.revisions.append(message)
        if output.endswith("<closed>"):
            del self.peers[number]

    def some_peer(self) -> Peer | None:
        """Return a connection by chance."""
        return self.rng.choice(list(self.peers.values())) if self.peers else None


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")


if __name__ == "__main__":
    save(Path(sys.argv[1]), [RandomSession(seed).run(STEPS) for seed in range(SESSIONS)])
