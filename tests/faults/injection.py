"""A real gateway whose disk and wall clock are in the hands of a test: `injector.c` built, preloaded and controlled."""

import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Final

import pytest

from maxam.compiled import child_environment
from maxam.stomp import encoder
from tests.support.gateway_folder import BlockingClient, GatewayFolder
from tests.support.patience import PATIENCE_S

_SOURCE: Final = Path(__file__).with_name("injector.c")
_TEXTS_AT: Final = 80  # three texts follow the numbers
_TEXT_BYTES: Final = 1024
_NUMBERS: Final = ("calls", "at", "length", "period", "struck", "struck_ns")
_FORMATS: Final = {
    **{name: ("=Q", 8 * place) for place, name in enumerate(_NUMBERS)},
    "clock_ns": ("=q", 48),
    "counted": ("=I", 56),
    "stricken": ("=I", 60),
    "fault": ("=I", 64),
    "error": ("=i", 68),
    "delay_us": ("=I", 72),
    "kind": ("=I", 76),
}


class Calls(IntFlag):
    """Kinds of calls, as injector.c has them."""

    WRITE = 1
    SYNC = 2
    MAKE = 4  # a file or folder that was not there
    ALLOCATE = 8
    NAME = 16  # rename and unlink
    CUT = 32


ALL_CALLS: Final = Calls.WRITE | Calls.SYNC | Calls.MAKE | Calls.ALLOCATE | Calls.NAME | Calls.CUT


class Effect(IntEnum):
    """The outcome of a call."""

    NOTHING = 0
    FAIL = 1
    HALVE = 2  # of a write, half is written
    DELAY = 3
    HANG = 4  # until it is disarmed


def require_compiler() -> str:
    """Return the C compiler; where there is none the test is skipped, loudly, and where CI is set that is a failure."""
    compiler = shutil.which("cc")
    if compiler is None:
        reason = "no C compiler (cc): faults of a real process are NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return compiler


def build(folder: Path, compiler: str = "cc") -> Path:
    """Build the library that is preloaded."""
    library = folder / "injector.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return library


class Control:
    """The orders to a process with the library, and its counts. Counting is not atomic with reading: ask it at rest."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_TEXTS_AT + 3 * _TEXT_BYTES))
        self.path: Final = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def _get(self, name: str) -> int:
        form, place = _FORMATS[name]
        return int(struct.unpack_from(form, self._map, place)[0])

    def _set(self, name: str, value: int) -> None:
        form, place = _FORMATS[name]
        struct.pack_into(form, self._map, place, value)

    def watch(self, folder: Path, counted: Calls = ALL_CALLS, spared: Path | None = None) -> None:
        """Count such calls on files below a folder, but not below a spared one in it, from now on, beginning at 0; disarmed."""
        self.disarm()
        texts = [b"" if path is None else str(path).encode() for path in (folder, spared)]
        self._map[_TEXTS_AT : _TEXTS_AT + 2 * _TEXT_BYTES] = b"".join([t.ljust(_TEXT_BYTES, b"\0") for t in texts])
        self._set("counted", counted)
        self._set("calls", 0)
        self._set("struck", 0)

    def arm(  # a fault is described by as many things
        self,
        at: int,
        effect: Effect,
        calls: Calls,
        *,
        error: int = 0,
        length: int = 1,
        period: int = 0,
        delay_us: int = 0,
    ) -> None:
        """Let such calls, from call number `at` on, have an effect: N of them, again every `period` calls."""
        self._set("at", 0)
        for name, value in (
            ("stricken", calls),
            ("error", error),
            ("length", length),
            ("period", period),
            ("delay_us", delay_us),
            ("fault", effect),
            ("at", at),
        ):
            self._set(name, value)

    def arm_now(self, effect: Effect, calls: Calls, *, error: int = 0, length: int = 1, delay_us: int = 0) -> None:
        """Let the next such calls have an effect."""
        self.arm(self.calls + 1, effect, calls, error=error, length=length, delay_us=delay_us)

    def disarm(self) -> None:
        """Let all calls do what they should; what hangs goes on."""
        self._set("fault", Effect.NOTHING)
        self._set("at", 0)

    def move_clock(self, seconds: float) -> None:
        """Set the wall clock so far from the true time."""
        self._set("clock_ns", round(seconds * 1e9))

    @property
    def calls(self) -> int:
        """Counted since `watch`."""
        return self._get("calls")

    @property
    def struck(self) -> int:
        """Calls that had a fault since `watch`."""
        return self._get("struck")

    @property
    def kind(self) -> Calls:
        """Of the call struck last."""
        return Calls(self._get("kind"))

    @property
    def struck_s(self) -> float:
        """When that was, as `time.monotonic` counts."""
        return self._get("struck_ns") / 1e9

    @property
    def struck_path(self) -> str:
        """On which file."""
        place = _TEXTS_AT + 2 * _TEXT_BYTES
        return self._map[place : place + _TEXT_BYTES].rstrip(b"\0").decode()


class Forks:
    """A process that has imported all of maxam under the library and forks gateways: they start in a tenth of the time.

    One gateway at a time. A context manager: whatever still runs is killed at its end.
    """

    def __init__(self, files: GatewayFolder, library: Path) -> None:
        self.files: Final = files
        self.journal: Final = files.folder / "var" / "journal"
        self.control: Final = Control(files.folder / "control")
        self.control.watch(self.journal)
        environment = {**child_environment(), "LD_PRELOAD": str(library), "INJECTOR_CONTROL": str(self.control.path)}
        with files.errors.open("ab") as errors:
            self._process: Final = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fork_gateways.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self.port = 0
        self.admin_port = 0
        self.pid = 0

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self.control.disarm()
        if self.pid:
            self.signal(9)
            self.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def start(self) -> int | None:
        """Start a gateway; return None when it is ready, or else its exit code."""
        self._fork("gateway", str(self.files.config))
        line = self._line()
        if line[0] == "exit":
            self.pid = 0
            return int(line[1])
        assert line[0] == "ready", line
        ports = [int(part.rpartition(":")[2]) for part in line[1:]]
        self.port, self.admin_port = ports[0], ports[1]
        return None

    def build_snapshot(self, *arguments: str) -> int:
        """Build a snapshot as the gateway does; return the exit code."""
        self._fork("snapshot", str(self.journal), *arguments)
        while (line := self._line())[0] != "exit":
            pass
        self.pid = 0
        return int(line[1])

    def signal(self, number: int) -> None:
        """Send the gateway a signal."""
        os.kill(self.pid, number)

    def wait(self) -> tuple[int, float]:
        """Wait for the end of the gateway; return its exit code, below 0 for a signal's, and when that was (monotonic seconds)."""
        line = self._line()
        self.pid = 0
        assert line[0] == "exit", line
        return int(line[1]), float(line[2])

    def log(self) -> str:
        """Return what all of them logged."""
        return self.files.errors.read_text()

    def client(self, name: str = "publisher", client_id: str | None = None) -> BlockingClient:
        """Connect a client and wait for CONNECTED."""
        client = BlockingClient(self.port, self.files.folder / "certs", name)
        client.write(encoder.connect("MAXVAPI", client_id=client_id))
        frame = client.frame()
        assert frame.command == b"CONNECTED", frame.headers
        return client

    def _fork(self, *words: str) -> None:
        assert self.pid == 0, "one is running"
        assert self._process.stdin is not None
        self._process.stdin.write(("\t".join(words) + "\n").encode())
        self._process.stdin.flush()
        line = self._line()
        assert line[0] == "pid", line
        self.pid = int(line[1])

    def _line(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line, self.log()[-4000:]
        return line.split()


def monotonic_s() -> float:
    """Return the clock that `struck_s` counts by."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
