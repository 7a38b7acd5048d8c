"""Fork a gateway for each line of standard input; see `injection.Forks`.

A line has words between tabs: `gateway CONFIG` or `snapshot JOURNAL ARGUMENT...`. Answers, a line each: `pid NUMBER`, then the
output of the child, then `exit CODE SECONDS`, the code below 0 for a signal, and when that was.
"""

import os
import sys
import time
import traceback

from maxam.gateway.snapshot import main as build_snapshot
from maxam.main import gateway


def _run(what: str, *arguments: str) -> int:
    if what == "snapshot":
        sys.argv = ["snapshot", *arguments]
        return build_snapshot()
    gateway(["--config", *arguments])
    return 0


def _child(words: list[str]) -> int:
    try:
        return _run(*words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # as Python itself would
        traceback.print_exc()
        return 1


def _say(text: str) -> None:
    os.write(1, text.encode())


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        _say(f"pid {os.getpid()}\n")
        code = _child(line.rstrip("\n").split("\t"))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    _say(f"exit {os.waitstatus_to_exitcode(status)} {time.clock_gettime(time.CLOCK_MONOTONIC)}\n")
