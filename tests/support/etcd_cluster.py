"""Real nodes of etcd on loopback with mutual TLS, each of which can be killed, frozen and started again."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar

import grpc
import pytest

from maxam.cluster.etcd import EtcdLog
from maxam.cluster.etcd_messages import (
    COMPACT,
    DELETE_RANGE,
    PUT,
    STATUS,
    STATUS_REQUEST,
    StatusAnswer,
    compaction_request,
    delete_range_request,
    header_revision,
    put_request,
    status_answer,
)
from maxam.content import unsigned
from maxam.demo.etcd_nodes import QUOTA_BYTES, issue_etcd_certificates, node_commands
from tests.support.gateway_process import kept_ports
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[2]
_DEFRAGMENT: Final = "/etcdserverpb.Maintenance/Defragment"
_ALARM: Final = "/etcdserverpb.Maintenance/Alarm"
_OTHER: Final = b"/other/"  # keys that are no cluster's
_OTHER_BYTES: Final = 1_048_576


@cache
def find_etcd() -> str | None:
    """Return the path of etcd, or None. It is $ETCD, or the one of the path, or the one that `make test-deps` builds."""
    if "ETCD" in os.environ:
        return os.environ["ETCD"]
    if found := shutil.which("etcd"):
        return found
    done = subprocess.run([ROOT / "deploy/build-etcd", "--check"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def require_etcd() -> str:
    """Return the path of etcd. Skip the test where it is missing; fail where that may not be (CI=true)."""
    found = find_etcd()
    if found is None:
        _missing("etcd is not installed (make test-deps): no $ETCD, none on the path, none in the cache")
    return found


def _missing(text: str) -> NoReturn:
    """Skip the test for lack of a program, and fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


class EtcdNode:
    """One node. It keeps its data over restarts.

    Attributes:
        name: Name of the node.
        address: `https://127.0.0.1:port` for clients.
        folder: Data, log and nothing else.
    """

    def __init__(self, name: str, address: str, folder: Path, command: Sequence[str], certificates: Path) -> None:
        self.name: Final = name
        self.address: Final = address
        self.folder: Final = folder
        self._command: Final = command
        self._process: subprocess.Popen[bytes] | None = None
        credentials = grpc.ssl_channel_credentials(
            *((certificates / file).read_bytes() for file in ("ca.pem", "client.key", "client.pem"))
        )
        options = (("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 100))
        self._channel: Final = grpc.secure_channel(address.removeprefix("https://"), credentials, options=options)

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; it is not ready yet."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to stop, and wait for its end."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it in the middle of what it does; its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def syncing(self, how: str) -> Iterator[None]:
        """Have each sync of its disk be slow or fail, in the block: `delay_exit=20000` (microseconds) or `error=EIO`.

        The test is skipped where strace is missing or may not attach. In CI it fails.
        """
        program = shutil.which("strace")
        if program is None:
            _missing("strace is not installed: a disk of etcd was NOT made slow")
        calls = "fdatasync,fsync"
        command = [program, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{how}"]
        # the line of standard error that shows that it is attached is not printed with -qq, so ask the kernel
        strace = subprocess.Popen([*command, "-p", str(self.pid)], stderr=subprocess.PIPE)
        try:
            ends = time.monotonic() + PATIENCE_S
            while f"TracerPid:\t{strace.pid}\n" not in Path(f"/proc/{self.pid}/status").read_text("utf-8"):
                if strace.poll() is not None or time.monotonic() > ends:
                    assert strace.stderr is not None
                    _missing(
                        f"strace may not attach: a disk of etcd was NOT made slow: {strace.stderr.read().decode()}"
                    )
                time.sleep(0.01)
            yield
        finally:
            if strace.poll() is None:
                strace.send_signal(signal.SIGINT)
            strace.communicate()

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(PATIENCE_S)

    def wipe(self) -> None:
        """Remove its data. It must not run."""
        assert self._process is None
        shutil.rmtree(self.folder / "data")

    def status(self) -> StatusAnswer | None:
        """Return its state; None if it gives no answer, or knows no leader."""
        try:
            answer = status_answer(self._channel.unary_unary(STATUS)(STATUS_REQUEST, timeout=1))
        except grpc.RpcError:
            return None
        return answer if answer.has_leader else None

    def call(self, method: str, request: bytes) -> bytes:
        """Send a request that is for operators; return the answer. Raises grpc.RpcError."""
        answer: bytes = self._channel.unary_unary(method)(request, timeout=PATIENCE_S)
        return answer

    def log(self) -> str:
        """Return all that it has logged."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Kill it, if it runs, and end the connection."""
        self._channel.close()
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        process.wait(PATIENCE_S)


class EtcdCluster:
    """Nodes of etcd with an authority of their own. A context manager: entering starts them, leaving kills them.

    Attributes:
        nodes: The nodes.
        certificates: `ca.pem`, `client.pem` and `client.key` for clients; `server.*` of the nodes.
    """

    def __init__(
        self, folder: Path, count: int = 3, quota_bytes: int = QUOTA_BYTES, further_hosts: Sequence[str] = ()
    ) -> None:
        """Issue certificates; nothing runs yet.

        Args:
            folder: An empty folder.
            count: Number of nodes.
            quota_bytes: Their quota.
            further_hosts: Addresses of this machine at which all nodes listen too, such as `127.0.0.11`. A client that has one of
                its own can be cut off alone.
        """
        self.certificates: Final = folder / "certificates"
        issue_etcd_certificates(self.certificates, further_hosts)
        program = require_etcd()
        commands = node_commands(program, folder, self.certificates, kept_ports(2 * count), quota_bytes, further_hosts)
        self.nodes: Final = [
            EtcdNode(f"n{number}", address, folder / f"n{number}", command, self.certificates)
            for number, (address, command) in enumerate(commands.items())
        ]

    @property
    def endpoints(self) -> list[str]:
        """Return the addresses of all nodes."""
        return [node.address for node in self.nodes]

    def log(self, name: str, endpoints: Sequence[str] | None = None) -> EtcdLog:
        """Return a new client of the log of a cluster.

        Args:
            name: Name of the cluster.
            endpoints: Addresses of the nodes; None for their own.
        """
        folder = self.certificates
        return EtcdLog(
            name, endpoints or self.endpoints, folder / "ca.pem", folder / "client.pem", folder / "client.key"
        )

    def leader(self) -> EtcdNode:
        """Return the node that leads, once there is one."""
        return self._wait(self._leader, "no leader")

    def wait(self) -> None:
        """Wait until all nodes know a leader."""
        self._wait(lambda: all(node.status() is not None for node in self.nodes) or None, "not all nodes answer")

    def fill_up(self) -> None:
        """Write keys of somebody else until the quota is reached."""
        for number in count():
            try:
                self.nodes[0].call(PUT, put_request(_OTHER + b"%d" % number, bytes(_OTHER_BYTES)))
            except grpc.RpcError as error:
                if "space exceeded" in str(error):
                    return
                raise

    def clear(self) -> None:
        """Remove the keys of `fill_up`, and have etcd forget them."""
        node = self.nodes[0]
        revision = header_revision(node.call(DELETE_RANGE, delete_range_request(_OTHER, _OTHER[:-1] + b"0")))
        node.call(COMPACT, compaction_request(revision))

    def disarm(self) -> None:
        """Give back the room that compaction freed, and end the alarm of the quota."""
        for node in self.nodes:
            node.call(_DEFRAGMENT, b"")
        for node in self.nodes:
            state = node.status()
            if state is not None:
                node.call(_ALARM, b"\x08\x02\x10" + unsigned(state.member) + b"\x18\x01")  # DEACTIVATE, member, NOSPACE

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self.wait()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _leader(self) -> EtcdNode | None:
        for node in self.nodes:
            state = node.status()
            if state is not None and state.leads:
                return node
        return None

    def _wait(self, look: Callable[[], T | None], problem: str) -> T:
        ends = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            if time.monotonic() > ends:
                raise AssertionError(f"etcd: {problem}\n" + "\n".join(node.log()[-2000:] for node in self.nodes))
            time.sleep(0.02)
        return found

    def _close(self) -> None:
        for node in self.nodes:
            node.close()
