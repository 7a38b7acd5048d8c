"""Start a broker's process on given cores, wait until its log shows that it is ready, and end it with all processes that it started.

Each has a mark in its environment, which its descendants inherit. So a daemon that left the family, such as Erlang's port mapper,
is ended too.
"""

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxam.bench.errors import LoadError

_START_S_MAX: Final = (
    120.0  # a gateway with a million topics takes 10 s, a peer 5 s, on a busy machine some times as long
)
_STOP_S_MAX: Final = 30.0
_POLL_S: Final = 0.005  # between two checks of the log
_LOG_SHOWN_BYTES: Final = 4000
_MARK: Final = "MAXAM_BENCH_BROKER"  # name of the variable


@dataclass(frozen=True, slots=True)
class Started:
    """A process that is ready, and what it logged until then."""

    pid: int
    start_s: float
    log: str

    def find(self, pattern: str) -> str:
        """Return the first group of a pattern in its log.

        Raises:
            LoadError: It is not there.
        """
        found = re.search(pattern, self.log)
        if found is None:
            raise LoadError(f"{pattern!r} is not in the log of process {self.pid}: {self.log[-_LOG_SHOWN_BYTES:]}")
        return found[1]


@contextlib.contextmanager
def process(
    command: Sequence[str],
    folder: Path,
    cores: Collection[int],
    ready: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Run a command in a folder on the cores, all its threads and children too; end it and its children on leaving.

    Args:
        command: Program and arguments; what it logs on stdout and stderr goes to `folder/log`.
        folder: Its working folder.
        cores: Numbers of the cores that it may use.
        ready: A pattern; a line of the log with it shows that clients may connect.
        environment: Added to the path, a home in the folder, and a language: nothing else is handed on.

    Raises:
        LoadError: It ended, or did not become ready in time; with the end of its log.
    """
    log = folder / "log"
    mark = secrets.token_hex(16)
    # taskset and setpriv replace themselves with the command: its pid is ours. It ends, too, if we are killed.
    pinned = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), "setpriv", "--pdeathsig", "TERM", *command]
    began_s = time.monotonic()
    with log.open("wb") as output:
        running = subprocess.Popen(  # our own command
            pinned,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "LANG": "C.UTF-8",
                **(environment or {}),
                _MARK: mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's interrupt is for us, who stop it in order
        )
    try:
        text = _wait(running, command[0], log, re.compile(ready))
        yield Started(running.pid, time.monotonic() - began_s, text)
    finally:
        _end(running, mark)


def _wait(running: "subprocess.Popen[bytes]", name: str, log: Path, ready: re.Pattern[str]) -> str:
    until_s = time.monotonic() + _START_S_MAX
    while True:
        ended = running.poll() is not None
        text = log.read_text(errors="replace")
        if ready.search(text):
            return text
        if ended or time.monotonic() > until_s:
            what = f"ended with {running.returncode}" if ended else f"was not ready after {_START_S_MAX:g} s"
            raise LoadError(f"{name} {what}; its log ends:\n{text[-_LOG_SHOWN_BYTES:]}")
        time.sleep(_POLL_S)


def _end(running: "subprocess.Popen[bytes]", mark: str) -> None:
    handles = _handles(tree(running.pid)[1:])
    running.send_signal(signal.SIGTERM)
    try:
        running.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    finally:
        _kill(handles)
        while left := marked(mark):  # one that was starting another meanwhile
            _kill(_handles(left))


def _handles(pids: Iterable[int]) -> list[int]:
    handles = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    return handles


def _kill(handles: Iterable[int]) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _STOP_S_MAX)  # readable when it has ended
        os.close(handle)


def marked(mark: str) -> list[int]:
    """Return the processes that run and whose environment has the mark of a broker."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it, itself first; only itself if it is gone."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found


def cpu_s(pid: int) -> float:
    """Return the processor time that a process and its descendants have used, with those that have ended."""
    ticks = 0
    for member in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(int(field) for field in _stat(member)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def process_cpu_s(pid: int) -> float:
    """Return the processor time that a process itself has used, all its threads, without those it started."""
    return sum(int(field) for field in _stat(pid)[11:13]) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the memory that a process and its descendants hold; what they share is counted for each."""
    pages = 0
    for member in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _stat(pid: int) -> list[str]:
    # Fields from the state on, as proc(5) has them: parent 1, times of its own 11 and 12, of children that ended 13 and 14.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
