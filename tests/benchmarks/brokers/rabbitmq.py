"""RabbitMQ with its STOMP plugin, as Debian installs it."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from maxam.bench.errors import LoadError
from maxam.bench.syntax import RABBITMQ
from tests.benchmarks.brokers.broker import Broker, development_certificates, loopback
from tests.benchmarks.brokers.process import free_port, process

_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONFIGURATION: Final = """
listeners.tcp = none
stomp.listeners.tcp = none
stomp.listeners.ssl.default = 127.0.0.1:{port}
stomp.tcp_listen_options.backlog = 4096
stomp.tcp_listen_options.nodelay = true
stomp.default_user = guest
stomp.default_pass = guest
ssl_options.cacertfile = {certificates}/ca.pem
ssl_options.certfile = {certificates}/server.pem
ssl_options.keyfile = {certificates}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.3
vm_memory_high_watermark.absolute = 4GiB
disk_free_limit.absolute = 100MB
log.console = true
log.console.level = warning
log.file = false
"""
_ONE_MESSAGE: Final = (("x-max-length", "1"), ("x-overflow", "drop-head"), ("prefetch-count", "1"))


def installed() -> bool:
    """Return True if it can be started."""
    return _SERVER.exists()


@contextlib.contextmanager
def rabbitmq(cores: Collection[int], *, last_value: bool = False) -> Iterator[Broker]:
    """Start it with mutual TLS and transient messages, and stop it after use.

    Args:
        cores: Numbers of the cores that it may use.
        last_value: Keep one message for each topic and subscriber. The load subscribes to each topic by itself. So each topic
            has a queue of its own, which holds one message and drops it for the next. One message of each topic is in flight.

    Raises:
        LoadError: It is not installed or does not start.
    """
    if not installed():
        raise LoadError(f"RabbitMQ is not here ({_SERVER}): run deploy/install-bench-peers as root")
    with tempfile.TemporaryDirectory(prefix="maxam-bench-rabbitmq-") as name:
        folder = Path(name)
        certificates = folder / "certs"
        development_certificates(certificates)
        port = free_port()
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port, certificates=certificates))
        (folder / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
        # A node with a name from the start, and a port that all nodes know, needs no epmd.
        arguments = (
            "-noinput -sname maxam-bench@localhost -start_epmd false"
            f" -erl_epmd_port {free_port()} -kernel inet_dist_use_interface {{127,0,0,1}}"
        )
        environment = {
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),  # a free port: not the machine's own
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server instead of waiting for it
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",  # nothing of the machine's own RabbitMQ
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/feature_flags",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_NODENAME": "maxam-bench@localhost",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
        }
        with process([str(_SERVER)], folder, cores, r"completed with \d+ plugins", environment) as started:
            erlang = started.find(r"Erlang: +(\S+)")
            said = f"Erlang {erlang}, STOMP plugin, TLS 1.3, classic queues, transient messages"
            yield Broker(
                "rabbitmq",
                started.find(r"RabbitMQ\S* (\S+)"),
                said + (", a queue of one message per topic, prefetch 1" if last_value else ""),
                loopback(port, certificates, RABBITMQ, "/"),
                started.pid,
                started.start_s,
                subscribe_headers=_ONE_MESSAGE if last_value else (),
                each_topic=last_value,
            )
