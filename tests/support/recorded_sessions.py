"""Recorded sessions: the steps of a broker and its clients, and every byte that the clients received.

A recording is a file of JSON, compressed by xz. It has everything that a broker without I/O was given, in order, so that any
version of the code can be given the same. Bytes are text in Latin-1.

To record again, with the core of another commit (here `OLD`, a folder that holds its `maxam` and nothing else):

    git archive COMMIT maxam | tar -x -C OLD
    PYTHONSAFEPATH=1 PYTHONPATH=OLD:. python -m tests.support.random_sessions FILE
    PYTHONSAFEPATH=1 PYTHONPATH=OLD:. python -m tests.interop.recording_gateway FILE

The first program makes random sessions. The second one runs the scenarios of the interop matrix with the third-party libraries.
"""

import json
import lzma
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.broker.operations import Operation
from maxam.config import Limits
from maxam.gateway.server_connection import ServerConnection
from tests.support.sans_io import EVERYTHING, UNCHECKED, World, fingerprint_of, forget_target, policy

Step = list[Any]
"""The name of a method of `Player`, then its arguments."""

Rights = dict[str, dict[str, list[str]]]


@dataclass
class Recording:
    """One session of a broker.

    Attributes:
        name: Origin of the session, such as a library and a scenario.
        limits: Limits that differ from the defaults.
        schemas: Texts of the schema folder by path.
        policies: Rights of the principals. The first policy is in force at the start.
        steps: Steps in their order.
        outputs: The bytes that clients received: one text for each step that reads.
    """

    name: str
    limits: dict[str, float]
    schemas: dict[str, str] = field(default_factory=lambda: {path: text.decode() for path, text in UNCHECKED.items()})
    policies: list[Rights] = field(default_factory=lambda: [{"anna": EVERYTHING}])
    steps: list[Step] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class Player:
    """A broker that is given steps.

    Attributes:
        world: The broker with its clock and its journal.
        peers: Open connections by number.
    """

    def __init__(self, recording: Recording) -> None:
        """Make a broker as it is before the first step."""
        self.recording = recording
        self.world = World.make(
            limits=Limits(**recording.limits),  # type: ignore[arg-type]
            schemas={path: text.encode() for path, text in recording.schemas.items()},
            **recording.policies[0],
        )
        self.peers: dict[int, ServerConnection] = {}
        self._writing: list[Operation] | None = None

    def play(self, step: Step) -> str | None:
        """Do a step; return what a client received, None if the step does not read."""
        name, *arguments = step
        output: bytes | None = getattr(self, name)(*arguments)
        return None if output is None else output.decode("latin-1")

    # Steps of clients.

    def open(self, number: int, principal: str) -> None:
        """Open a connection: its TLS handshake has ended."""
        self.peers[number] = ServerConnection(
            self.world.broker,
            self.world.settings,
            fingerprint_of(principal),
            f"session-{number}",
            lambda: None,
            self.world.now_s,
        )

    def write(self, number: int, data: str) -> None:
        """Send bytes to the broker."""
        self.peers[number].receive_data(data.encode("latin-1"), self.world.now_s, self.world.wall_us)

    def read(self, number: int) -> bytes:
        """Take what the broker hands out in one go."""
        return b"".join(self.peers[number].data_to_send(self.world.now_s))

    def drain(self, number: int) -> bytes:
        """Take all that the broker has now. A connection that has finished is closed."""
        out = b""
        while some := self.read(number):
            out += some
        if self.peers[number].finished:
            self.peers.pop(number).closed(self.world.now_s, "finished")
            out += b"<closed>"
        return out

    def eof(self, number: int) -> None:
        """End the client's stream; the client still reads."""
        self.peers[number].receive_eof(self.world.now_s)

    def lose(self, number: int) -> None:
        """Break a transport."""
        self.peers.pop(number).closed(self.world.now_s, "lost")

    # Steps of the gateway and its operator.

    def settle(self) -> None:
        """Commit and scan until nothing is left to do."""
        self.world.settle()

    def take(self) -> None:
        """Hand a batch to the disk, unless one is there."""
        if self._writing is None:
            self._writing = self.world.take()

    def commit(self) -> None:
        """End the write of the batch that was taken, or take and write one."""
        batch, self._writing = self._writing, None
        self.world.commit(batch)

    def refuse(self) -> None:
        """Find no room on the disk for the batch that was taken, or for all that is pending."""
        batch, self._writing = self._writing, None
        self.world.broker.roll_back_batch(self.world.take() if batch is None else batch)

    def scan(self, topics: int) -> None:
        """Do a part of the scans under way."""
        self.world.broker.scan(topics)

    def wait(self, seconds: float) -> None:
        """Let time pass; then do all that is due."""
        self.world.now_s += seconds
        self.world.wall_us += round(seconds * 1_000_000)
        for peer in self.peers.values():
            due_s = peer.next_due_s
            if due_s is not None and due_s <= self.world.now_s:
                peer.tick(self.world.now_s)
        self.world.broker.tick(self.world.now_s)

    def reload(self, number: int) -> None:
        """Put another policy in force."""
        self.world.broker.replace_policy(policy(**self.recording.policies[number]), self.world.wall_us)

    def end_sessions(self, principal: str) -> None:
        """End all sessions of a principal, as an operator may."""
        sessions = self.world.broker.sessions
        for key in [key for key in sessions if key[0] == principal]:
            self.world.broker.upkeep.end_session(sessions[key])

    def memory(self, low: bool) -> None:
        """Set whether memory is low."""
        self.world.broker.memory_low = low

    def crash(self) -> None:
        """Lose all connections and all that is not on the disk, then start again from the journal."""
        self.peers.clear()
        self._writing = None
        self.world = self.world.restart()

    def snapshot(self) -> None:
        """Write all that is pending, then start again from a snapshot."""
        self.commit()
        self.settle()
        self.peers.clear()
        old = self.world.broker
        records = list(old.snapshot())
        broker = Broker(old.limits, old.policy, old.registry)
        for record in records:
            broker.replay(forget_target(record))
        broker.recovered(self.world.now_s, old.committed_revision, old.accepted_at_us)
        self.world.broker = broker
        self.world.journal = records


class Recorder:
    """Does steps and keeps them with what clients received."""

    def __init__(self, recording: Recording) -> None:
        """Begin a recording."""
        self.recording = recording
        self.player = Player(recording)

    def do(self, *step: Any) -> str:
        """Do a step; return what a client received."""
        output = self.player.play(list(step))
        self.recording.steps.append(list(step))
        if output is not None:
            self.recording.outputs.append(output)
        return output or ""


def differences(
    recording: Recording, server: str = "", reworded: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[int, str, str]]:
    """Play a recording again; yield the number of each step whose output differs, the output recorded, and that of now.

    Args:
        recording: The session.
        server: Version of the recorded gateway, as CONNECTED has it; empty for that of now.
        reworded: Patterns of recorded texts in bodies of ERRORs and in headers `reason`, with the words of today.
    """
    player = Player(recording)
    recorded = iter(recording.outputs)
    for number, step in enumerate(recording.steps):
        output = player.play(step)
        if output is None:
            continue
        before = next(recorded)
        if server:
            before = before.replace(f"server:maxam/{server}\n", f"server:maxam/{__version__}\n")
        for pattern, words in reworded:
            before = re.sub(r"content-length:\d+\n\n([^\0]*)\0", partial(_reworded, pattern, words), before)
            before = re.sub(r"(?m)^reason:.*$", partial(_reworded_reason, pattern, words), before)
        if before != output:
            yield number, before, output
    assert next(recorded, None) is None, "a step that reads is missing"


def _reworded(pattern: str, words: str, frame: re.Match[str]) -> str:
    text, count = re.subn(pattern, words, frame[1])
    return f"content-length:{len(text)}\n\n{text}\0" if count else frame[0]


def _reworded_reason(pattern: str, words: str, header: re.Match[str]) -> str:
    return re.sub(pattern, words, header[0])


def save(path: Path, recordings: list[Recording]) -> None:
    """Write recordings, with the version of the code that made them."""
    whole = {"version": __version__, "recordings": [asdict(recording) for recording in recordings]}
    text = json.dumps(whole, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path) -> tuple[str, list[Recording]]:
    """Return the version that made the recordings of a file, and the recordings."""
    whole = json.loads(lzma.decompress(path.read_bytes()))
    return whole["version"], [Recording(**recording) for recording in whole["recordings"]]
