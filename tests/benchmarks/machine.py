"""The machine and interpreter of a run, and yardsticks: small pieces of work whose time depends on nothing but the machine."""

import contextlib
import mmap
import os
import platform
import ssl
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from maxam.bench.worker import Channel
from maxam.gateway.tls_credentials import Authorities, ServerCertificate, server_context
from tests.benchmarks.brokers.broker import development_certificates
from tests.benchmarks.readings import meter_reading_reader

BODY_BYTES: Final = 120
_ROUNDS: Final = 20
_READS: Final = 1000  # of a round
_SYNCS: Final = 200
_SYNC_BYTES: Final = 4096
_MEMORY_BYTES: Final = 64 << 20
_TOUCHED_BYTES_MAX: Final = 4 << 30
_HANDSHAKES: Final = 100  # of a round
_HANDSHAKE_ROUNDS: Final = 5


def interpreter() -> str:
    """Return version, compiler and build flags of this interpreter, and the OpenSSL that it uses."""
    configured = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    flags = dict.fromkeys(
        flag
        for flag in str(sysconfig.get_config_var("PY_CFLAGS") or "").split()
        if flag.startswith(("-O", "-m", "-f", "-D"))
    )
    built = [option for option in ("--enable-optimizations", "--with-lto", "--with-pydebug") if option in configured]
    said = [f"Python {platform.python_version()}", platform.python_compiler(), " ".join(flags)]
    said.append("configured with " + " ".join(built) if built else "configured without --enable-optimizations")
    return ", ".join([*said, " ".join(ssl.OPENSSL_VERSION.split()[:2])])


def machine() -> dict[str, object]:
    """Return what a reader of the figures has to know of the machine, under the keys of JSON."""
    sync_us = fdatasync_us()
    return {
        "interpreter": interpreter(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "fdatasync_p50_us": round(statistics.median(sync_us), 1),
        "fdatasync_p99_us": round(statistics.quantiles(sync_us, n=100)[-1], 1),
    }


def fdatasync_us() -> list[float]:
    """Return the times of appends of 4 KiB with an fdatasync each, where the journals of the benchmarks are."""
    times = []
    data = bytes(_SYNC_BYTES)
    with tempfile.NamedTemporaryFile(prefix="maxam-bench-") as file:
        number = file.fileno()
        for n in range(_SYNCS):
            begin_s = time.perf_counter()
            os.pwrite(number, data, n * _SYNC_BYTES)
            os.fdatasync(number)
            times.append((time.perf_counter() - begin_s) * 1e6)
    return times


def touch_memory() -> None:
    """Use half of the free memory once, up to 4 GiB, so that a virtual machine has it from its host.

    A page that the machine never used costs 10 us instead of 1. The journal of a run takes a new page for every 20 SENDs.
    """
    free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemFree:"))
    _touch(min(int(free.split()[1]) * 1024 // 2, _TOUCHED_BYTES_MAX))


def yardsticks(_channel: Channel | None) -> dict[str, float | None]:
    """Return what this core and this disk can do now, as figures of a measurement that follows."""
    return {
        "yardstick: fastavro reads a body, us": _body_us(),
        "yardstick: new memory, us a page": _page_us(),
        "yardstick: fdatasync, us": statistics.median(fdatasync_us()),
    }


def _page_us() -> float:
    """Return the processor time of a page of memory that the kernel hands out, in us.

    It is ten times as much for a page that a virtual machine has never used, which its host has to provide.
    """
    begin_s = time.process_time()
    _touch(_MEMORY_BYTES)
    return (time.process_time() - begin_s) / (_MEMORY_BYTES // mmap.PAGESIZE) * 1e6


def _touch(size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def _body_us() -> float:
    # the quickest of some rounds, in processor time
    read = meter_reading_reader(BODY_BYTES)

    def round_() -> float:
        begin_s = time.process_time()
        for _ in range(_READS):
            read()
        return time.process_time() - begin_s

    return _best_s(round_, _ROUNDS) / _READS * 1e6


def handshake_us(_channel: Channel | None) -> float:
    """Return what the server's side of a mutual TLS 1.3 handshake takes in OpenSSL alone, without sockets."""
    with tempfile.TemporaryDirectory(prefix="maxam-bench-") as name:
        folder = Path(name) / "certs"
        development_certificates(folder)
        certificate = ServerCertificate(
            (folder / "server.pem").read_bytes(), (folder / "server.key").read_bytes(), "server.pem"
        )
        server = server_context(certificate, Authorities((folder / "ca.pem").read_bytes(), "ca.pem"), "1.3")
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=folder / "ca.pem")
        client.check_hostname = False
        client.load_cert_chain(folder / "subscriber.pem", folder / "subscriber.key")

    def round_() -> float:
        return sum(_handshake_s(server, client) for _ in range(_HANDSHAKES))

    return _best_s(round_, _HANDSHAKE_ROUNDS) / _HANDSHAKES * 1e6


def _handshake_s(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Return the processor time of the server's side of one handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server)
    begin_s = time.process_time()
    called = server.wrap_bio(to_server, to_client, server_side=True)
    taken_s = time.process_time() - begin_s
    for _ in range(2):  # flights of the client
        _step(caller)
        begin_s = time.process_time()
        _step(called)
        taken_s += time.process_time() - begin_s
    return taken_s


def _step(side: ssl.SSLObject) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):
        side.do_handshake()


def _best_s(round_: Callable[[], float], rounds: int) -> float:
    return min(round_() for _ in range(rounds))
