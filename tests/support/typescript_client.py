"""The client `@maxam/client` on virtual time: it reaches a `ServedWorld` over streams in memory, in lock-step with a process of Node.js."""

import base64
import json
import math
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from tests.support.byte_streams import MemoryStream, stream_pair
from tests.support.served_world import EVER, ServedWorld

_TAKEN_OVER = "session-taken-over-by-a-newer-connection"
_MARGIN_S = 1e-6  # a timer of the event loop must not end before that of the client


class TypeScriptClient:
    """The process. A context manager: leaving ends it.

    Attributes:
        map: The live map of the newest run.
        kept: The values by the changes that its listener got.
        synced: The map is complete.
    """

    def __init__(self, programs: Path) -> None:
        """Start it. `programs` is the folder of `node build.mjs --tests`."""
        command = ["node", str(programs / "model.program.mjs")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.map: dict[str, bytes] = {}
        self.kept: dict[str, bytes] = {}
        self.synced = False

    async def run(
        self, served: ServedWorld, bytes_max: int = EVER, *, again: bool = False, pace_s: float = 0, **options: Any
    ) -> None:
        """Run the program until it is cancelled, which kills it, or until its session is taken over, which ends it.

        Args:
            served: The broker.
            bytes_max: The first connection breaks once the broker has sent this number of bytes, and the program is killed with it.
            again: Continue with what the program before had stored.
            pace_s: Time that the application takes for each update.
            options: Of its subscription, with the names of the Python client.
        """
        async with anyio.create_task_group() as tasks:
            await _Run(self, served, tasks, bytes_max).play(again, pace_s, options)

    def ask(self, do: str, **rest: Any) -> dict[str, Any]:
        """Give it a command and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **rest}).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.map, self.kept = _decoded(answer["map"]), _decoded(answer["mirror"])
        self.synced = answer["synced"]
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Run:
    """One run of the program, from its start to its end."""

    def __init__(self, client: TypeScriptClient, served: ServedWorld, tasks: TaskGroup, bytes_max: int) -> None:
        self._client = client
        self._served = served
        self._tasks = tasks
        self._bytes_max = bytes_max
        self._began_s = anyio.current_time()
        self._due_s = math.inf
        self._changed = anyio.Event()
        self._channels: dict[int, MemoryStream] = {}

    async def play(self, again: bool, pace_s: float, options: dict[str, Any]) -> None:
        """Start the program, and call its timers."""
        names = {"changes_only": "changesOnly", "min_interval_s": "minIntervalMs"}
        given = {names.get(name, name): value * 1000 if name[-2:] == "_s" else value for name, value in options.items()}
        self._ask("start", again=again, pace=pace_s * 1000, options=given)
        while True:
            with anyio.move_on_after(max(self._due_s - anyio.current_time(), 0) + _MARGIN_S):
                await self._changed.wait()
            if anyio.current_time() >= self._due_s:
                self._ask("tick")

    def _ask(self, do: str, **rest: Any) -> None:
        now_s = anyio.current_time() - self._began_s
        answer = self._client.ask(do, now=now_s * 1000, **rest)
        self._due_s = self._began_s + answer["due"] / 1000 if "due" in answer else math.inf
        self._changed.set()
        self._changed = anyio.Event()
        for what, channel, *data in answer["acts"]:
            if what == "open":
                self._open(channel)
            elif what == "send":
                self._channels[channel].put(base64.b64decode(data[0]))
            else:
                self._channels[channel].cut()
        if "ended" in answer:
            assert answer["ended"] == _TAKEN_OVER
            self._tasks.cancel_scope.cancel()

    def _open(self, channel: int) -> None:
        ours, theirs = stream_pair()
        self._channels[channel] = ours
        self._tasks.start_soon(self._served.serve, theirs, EVER if channel else self._bytes_max)
        self._tasks.start_soon(self._read, channel, ours)

    async def _read(self, channel: int, stream: MemoryStream) -> None:
        self._ask("opened", channel=channel)
        while data := await stream.receive_some():
            self._ask("received", channel=channel, data=base64.b64encode(data).decode())
        if self._bytes_max < EVER:
            self._tasks.cancel_scope.cancel()
        else:
            self._ask("ended", channel=channel)


def _decoded(values: dict[str, str]) -> dict[str, bytes]:
    return {topic: base64.b64decode(body) for topic, body in values.items()}
