"""`maxam-admin top` against a running gateway, on a terminal and without one."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.config import Limits
from tests.support.errors import code_in
from tests.support.patience import PATIENCE_S
from tests.support.running_gateway import Running, running_gateway

POLICY = """
[capabilities.publish]
send = ["X/**"]
receive = ["X/**"]
[capabilities.operate]
admin = ["read"]
[[principals]]
name = "op"
fingerprints = ["{operator}"]
capabilities = ["operate"]
[[principals]]
name = "pub"
fingerprints = ["{publisher}"]
capabilities = ["publish"]
"""
RULES = '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'
PROGRAM = "from maxam.cli.main import main; main(prog_name='maxam-admin')"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with the admin listener beside it."""
    folder = tmp_path_factory.mktemp("gateway")
    limits = Limits(lag_threshold_s=1e-6)  # a subscription that lacks anything for longer is behind
    with running_gateway(folder, POLICY, {"registry.toml": RULES}, "none", limits) as gateway:
        yield gateway


def read_until(file: int, *texts: str) -> str:
    """Read a terminal until all of these have come."""
    read = b""
    while not all(text.encode() in read for text in texts):
        more = os.read(file, 65_536)
        assert more, read
        read += more
    return read.decode(errors="replace")


@contextmanager
def on_a_terminal(running: Running, *arguments: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """Run `maxam-admin top` on a terminal of its own; gives the terminal's other end."""
    ours, theirs = pty.openpty()
    certificates = running.folder / "certs"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "top", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=Path(__file__).parents[3],
        env=os.environ
        | {
            "MAXAM_GATEWAY": running.admin,
            "MAXAM_CERTIFICATE": str(certificates / "operator.pem"),
            "MAXAM_KEY": str(certificates / "operator.key"),
            "MAXAM_CA": str(certificates / "ca.pem"),
            "TERM": "xterm",
            "COLUMNS": "120",
            "LINES": "30",
        },
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_it_names_who_is_behind(running: Running) -> None:
    """One screen, as text and as JSON: the subscriber that acknowledges nothing, by name."""

    async def while_subscribed(client: Any) -> None:
        async with client.subscribe("X/T.*"):
            assert (await client.send("X/T.1", b"1")).accepted
            await trio.to_thread.run_sync(look)

    def look() -> None:
        page = running.cli("top", "--count", "1").stdout
        assert "pub board 7" in page
        assert "slow to acknowledge" in page
        (line,) = running.cli("top", "--count", "1", "--json").stdout.splitlines()
        answer = json.loads(line)
        assert answer["behind"]["subscriptions"][0]["client_id"] == "board 7"
        assert answer["health"]["status"] in {"ready", "degraded"}
        assert answer["problem"] == ""

    running.client(while_subscribed, "board 7")


def test_keys(running: Running) -> None:
    """Space holds the picture, + and - change the interval, q gives the terminal back and ends with 0."""
    with on_a_terminal(running, "--interval", "1") as (terminal, process):
        read_until(terminal, "\x1b[?1049h", "q ends", "every 1 s")
        os.write(terminal, b"+")
        read_until(terminal, "every 2 s")
        os.write(terminal, b"-")
        read_until(terminal, "every 1 s")
        os.write(terminal, b" ")
        read_until(terminal, "HELD")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert process.wait(PATIENCE_S) == 0


def test_no_gateway_is_told_at_once(running: Running) -> None:
    """Like any other command: one line on standard error, exit code 4."""
    result = running.cli("top", variables={"MAXAM_GATEWAY": "127.0.0.1:1"})
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert (code_in(result.stderr), "127.0.0.1:1" in result.stderr) == ("gateway-unreachable", True)


def test_without_the_right_it_is_told(running: Running) -> None:
    """A certificate without the admin right read sees nothing."""
    result = running.cli("top", who="publisher")
    assert result.exit_code == 4
    assert code_in(result.stderr) == "forbidden"
