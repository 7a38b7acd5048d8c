"""Three nodes of MaXaM, NATS JetStream and RabbitMQ on this machine. Each keeps every message on a majority before it is accepted."""

import contextlib
import json
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import trio

import maxam
from maxam.bench.bodies import SCHEMAS
from maxam.bench.errors import LoadError
from maxam.bench.plan import Headers
from maxam.bench.syntax import MAXAM, RABBITMQ
from maxam.compiled import core
from maxam.demo.cluster_site import ClusterSite
from maxam.demo.own_folder import kept_ports
from tests.benchmarks.brokers.broker import Broker, development_certificates, loopback
from tests.benchmarks.brokers.process import process
from tests.benchmarks.brokers.rabbitmq import CONFIGURATION

NODES: Final = 3
ROOT: Final = Path(__file__).parents[3]
_RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_ANSWER_S: Final = 120.0
QUORUM_QUEUE: Final[Headers] = (
    ("durable", "true"),
    ("auto-delete", "false"),
    ("x-queue-type", "quorum"),
    ("x-queue-name", "bench"),
)


@contextlib.contextmanager
def maxam_cluster() -> Iterator[Broker]:
    """Run three gateways on three nodes of etcd.

    Raises:
        MaxamError: They do not start.
    """
    with tempfile.TemporaryDirectory(prefix="maxam-bench-cluster-") as name, _running_site(Path(name)) as site:
        leader = site.leader
        if leader is None:
            raise LoadError("the cluster has no leader")
        said = f"{core()} core, 3 gateways on 3 nodes of etcd, TLS 1.3, rights, schemas, durability fsync"
        target = loopback(leader.stomp, site.certificates, MAXAM, "MAXVAPI")
        yield Broker("maxam", maxam.__version__, said, target, 0, 0.0)


@contextlib.contextmanager
def _running_site(folder: Path) -> Iterator[ClusterSite]:
    """Run a site in a thread with an event loop of its own."""
    site = ClusterSite(folder, SCHEMAS, NODES)
    ready = threading.Event()
    ends: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []
    problems: list[BaseException] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            ends.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            await nursery.start(site.run, lambda _news: None)
            ready.set()

    def serve() -> None:
        try:
            trio.run(run)
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            problems.append(error)
        ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        if problems:
            raise problems[0]
        yield site
    finally:
        if ends:
            with contextlib.suppress(trio.RunFinishedError):
                ends[0][0].run_sync_soon(ends[0][1].cancel)
        thread.join()


def nats_programs() -> Path | None:
    """Return the folder with nats-server and its load, or None if they were not built."""
    done = subprocess.run([ROOT / "deploy/build-nats", "--check"], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


class Nats:
    """Three nodes of NATS that run.

    Attributes:
        version: Of nats-server.
        configuration: On one line.
    """

    configuration: Final = "3 nodes, JetStream, file storage, 3 replicas, sync_interval always, TLS 1.3"

    def __init__(self, version: str, load: list[str]) -> None:
        """Take the command of the load, without its own options."""
        self.version: Final = version
        self._load: Final = load

    def measure(self, seconds: float, topics: int, body_bytes: int, rate: float, window: int) -> dict[str, Any]:
        """Run the load; return its object.

        Raises:
            LoadError: It failed, or lost messages.
        """
        options = [f"-seconds={seconds}", f"-topics={topics}", f"-bytes={body_bytes}", f"-rate={rate}"]
        options.append(f"-window={window}")
        done = subprocess.run([*self._load, *options], capture_output=True, text=True, check=False, timeout=_ANSWER_S)
        if done.returncode:
            raise LoadError(f"the load of NATS failed: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        if found["failed"] or found["received"] < found["published"]:
            raise LoadError(f"NATS lost messages: {done.stdout.strip()}")
        return found


@contextlib.contextmanager
def nats(cores: Collection[int]) -> Iterator[Nats]:
    """Run three nodes of NATS with JetStream, each of which syncs before it answers.

    Raises:
        LoadError: They were not built, or do not start.
    """
    programs = nats_programs()
    if programs is None:
        raise LoadError("NATS is not here: run deploy/build-nats, which needs Go")
    with tempfile.TemporaryDirectory(prefix="maxam-bench-nats-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        development_certificates(folder / "certs")
        clients, routes = kept_ports(NODES), kept_ports(NODES)
        for number in range(NODES):
            own = folder / f"n{number}"
            own.mkdir()
            (own / "nats.conf").write_text(_nats_configuration(folder, number, clients, routes))
            stack.enter_context(
                process([str(programs / "nats-server"), "-c", "nats.conf"], own, cores, "Server is ready")
            )
        certificates = folder / "certs"
        load = [
            str(programs / "load"),
            f"-servers=tls://127.0.0.1:{clients[0]}",
            f"-ca={certificates}/ca.pem",
            f"-cert={certificates}/publisher.pem",
            f"-key={certificates}/publisher.key",
        ]
        yield Nats(programs.name.split("-")[1], load)


def _nats_configuration(folder: Path, number: int, clients: list[int], routes: list[int]) -> str:
    files = {"ca_file": "ca.pem", "cert_file": "server.pem", "key_file": "server.key"}
    tls = "".join(f'{key}: "{folder}/certs/{file}", ' for key, file in files.items())
    others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return f"""
server_name: n{number}
listen: "127.0.0.1:{clients[number]}"
tls {{ {tls} verify: true }}
jetstream {{ store_dir: "data", sync_interval: always }}
cluster {{ name: bench, listen: "127.0.0.1:{routes[number]}", routes: [{others}] }}
"""


_RABBITMQ_CONFIGURATION: Final = f"""{CONFIGURATION}cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = n0@localhost
cluster_formation.classic_config.nodes.2 = n1@localhost
cluster_formation.classic_config.nodes.3 = n2@localhost
"""


@contextlib.contextmanager
def rabbitmq_cluster(cores: Collection[int]) -> Iterator[Broker]:
    """Run three nodes of RabbitMQ. The load subscribes to a quorum queue, and sends persistent messages.

    Raises:
        LoadError: It is not installed or does not start.
    """
    if not _RABBITMQ.exists():
        raise LoadError(f"RabbitMQ is not here ({_RABBITMQ}): run deploy/install-bench-peers as root")
    with tempfile.TemporaryDirectory(prefix="maxam-bench-rabbitmq-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        certificates = folder / "certs"
        development_certificates(certificates)
        mapper, *ports = kept_ports(1 + 2 * NODES)
        cookie = secrets.token_hex(16)
        (folder / "epmd").mkdir()
        epmd = ["epmd", "-port", str(mapper), "-address", "127.0.0.1", "-d"]
        stack.enter_context(process(epmd, folder / "epmd", cores, "epmd running", {"ERL_EPMD_PORT": str(mapper)}))
        version = ""
        for number in range(NODES):
            own = folder / f"n{number}"
            own.mkdir()
            port = ports[number]
            (own / "rabbitmq.conf").write_text(_RABBITMQ_CONFIGURATION.format(port=port, certificates=certificates))
            (own / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
            node = f"n{number}@localhost"
            environment = {
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": str(mapper),
                "RABBITMQ_ADVANCED_CONFIG_FILE": f"{own}/advanced.config",
                "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server instead of waiting for it
                "RABBITMQ_CONF_ENV_FILE": "/dev/null",  # nothing of the machine's own RabbitMQ
                "RABBITMQ_CONFIG_FILE": f"{own}/rabbitmq.conf",
                "RABBITMQ_DIST_PORT": str(ports[NODES + number]),
                "RABBITMQ_ENABLED_PLUGINS_FILE": f"{own}/enabled_plugins",
                "RABBITMQ_FEATURE_FLAGS_FILE": f"{own}/feature_flags",
                "RABBITMQ_LOG_BASE": f"{own}/logs",
                "RABBITMQ_MNESIA_BASE": f"{own}/mnesia",
                "RABBITMQ_NODENAME": node,
                "RABBITMQ_PID_FILE": f"{own}/pid",
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-noinput -setcookie {cookie}"
                " -kernel inet_dist_use_interface {127,0,0,1}",
            }
            started = stack.enter_context(
                process([str(_RABBITMQ)], own, cores, r"completed with \d+ plugins", environment)
            )
            version = started.find(r"RabbitMQ\S* (\S+)")
        yield Broker(
            "rabbitmq",
            version,
            "3 nodes, a quorum queue, persistent messages, TLS 1.3 to clients",
            loopback(ports[0], certificates, RABBITMQ, "/"),
            0,
            0.0,
            send_headers=(("persistent", "true"),),
            subscribe_headers=QUORUM_QUEUE,
        )
