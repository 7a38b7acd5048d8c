"""Apache ActiveMQ Artemis, from the folder of an unpacked release."""

import contextlib
import ctypes.util
import enum
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from maxam.bench.errors import LoadError
from maxam.bench.plan import Headers
from maxam.bench.syntax import ARTEMIS
from tests.benchmarks.brokers.broker import Broker, development_certificates, loopback
from tests.benchmarks.brokers.java_stores import PASSWORD, SERVER_STORE, TRUST_STORE, write_stores
from tests.benchmarks.brokers.process import free_port, process

_HEAP: Final = "1g"
_CREATE_S_MAX: Final = 120.0
_KEY: Final = "key"
# `artemis create` measures the disk and writes a buffer timeout: 1e9 ns divided by its syncs per second.
_BUFFER_TIMEOUT_NS: Final = 200_000
# The options that the release's own launcher gives Java, with a fixed heap and without remote management.
_JAVA: Final = (
    f"-XX:AutoBoxCacheMax=20000 -XX:+UseG1GC -XX:+UseStringDeduplication -Xms{_HEAP} -Xmx{_HEAP}"
    " -Dlog4j2.disableJmx=true --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
)
_CREATE: Final = [
    "--user",
    "admin",
    "--password",
    "admin",
    "--allow-anonymous",
    "--silent",
    "--no-autotune",
    "--no-web",
    "--no-amqp-acceptor",
    "--no-hornetq-acceptor",
    "--no-mqtt-acceptor",
]
_LAST_VALUE: Final = (
    f"<default-last-value-queue>true</default-last-value-queue><default-last-value-key>{_KEY}</default-last-value-key>"
)
_ACCEPTOR: Final = ";".join(
    (
        "tcp://127.0.0.1:{port}?protocols=STOMP",
        "useEpoll=true",
        "tcpNoDelay=true",
        "multicastPrefix=/topic/",
        "connectionTtl=3600000",  # ms. A subscriber sends nothing, and the default is as long as the warm-up
        "sslEnabled=true",
        "needClientAuth=true",
        "enabledProtocols=TLSv1.3",
        *(f"{store}StorePassword={PASSWORD};{store}StoreType=PKCS12" for store in ("key", "trust")),
        f"keyStorePath={{folder}}/{SERVER_STORE}",
        f"trustStorePath={{folder}}/{TRUST_STORE}",
    )
)
# Topics below `keep` are also held in one durable last-value queue, so each persistent SEND is synced to the journal.
_CONFIG: Final = f"""<?xml version='1.0'?>
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <name>maxam-bench</name>
  <persistence-enabled>true</persistence-enabled>
  <security-enabled>false</security-enabled>
  <journal-type>{{journal}}</journal-type>
  <paging-directory>{{folder}}/data/paging</paging-directory>
  <bindings-directory>{{folder}}/data/bindings</bindings-directory>
  <journal-directory>{{folder}}/data/journal</journal-directory>
  <large-messages-directory>{{folder}}/data/large</large-messages-directory>
  <journal-datasync>true</journal-datasync>
  <journal-min-files>2</journal-min-files>
  <journal-pool-files>10</journal-pool-files>
  <journal-device-block-size>4096</journal-device-block-size>
  <journal-file-size>10M</journal-file-size>
  <journal-buffer-timeout>{_BUFFER_TIMEOUT_NS}</journal-buffer-timeout>
  <journal-max-io>4096</journal-max-io>
  <max-disk-usage>99</max-disk-usage>
  <critical-analyzer>false</critical-analyzer>
  <suppress-session-notifications>true</suppress-session-notifications>
  <acceptors><acceptor name="stomps">{_ACCEPTOR}</acceptor></acceptors>
  <address-settings>
    <address-setting match="#"><max-size-bytes>-1</max-size-bytes>
      <auto-delete-addresses>false</auto-delete-addresses></address-setting>
    <address-setting match="last.#">{_LAST_VALUE}</address-setting>
  </address-settings>
  <addresses><address name="keep.#"><multicast>
    <queue name="kept" last-value="true" last-value-key="{_KEY}" non-destructive="true"><durable>true</durable></queue>
  </multicast></address></addresses>
</core></configuration>
"""


@enum.unique
class Kind(enum.Enum):
    """How Artemis treats the topics of the load. The value is the first word of their names."""

    TRANSIENT = "plain"
    FSYNC = "keep"
    LAST_VALUE = "last"


_SAID: Final = {
    Kind.TRANSIENT: "nothing on disk",
    Kind.FSYNC: "every SEND synced to the journal ({journal}), in a durable last-value queue",
    Kind.LAST_VALUE: "a last-value queue for each subscription, one message in flight",
}
_SEND_HEADERS: Final[dict[Kind, Headers]] = {
    Kind.TRANSIENT: (),
    Kind.FSYNC: (("persistent", "true"), (_KEY, "{destination}")),
    Kind.LAST_VALUE: ((_KEY, "{destination}"),),
}


def installed(home: Path | None) -> bool:
    """Return True if a release is in that folder."""
    return home is not None and os.access(home / "bin/artemis", os.X_OK)


@contextlib.contextmanager
def artemis(cores: Collection[int], home: Path | None, kind: Kind = Kind.TRANSIENT) -> Iterator[Broker]:
    """Start it with mutual TLS, and stop it after use.

    Its Java is at full speed after a minute of load.

    Args:
        cores: Numbers of the cores that it may use.
        home: Folder of an unpacked release.
        kind: How it treats the topics of the load.

    Raises:
        LoadError: It is not there or does not start.
    """
    if home is None or not installed(home):
        raise LoadError(f"Artemis is not in {home}: unpack a release of Apache ActiveMQ Artemis 2 and give its folder")
    with tempfile.TemporaryDirectory(prefix="maxam-bench-artemis-") as name:
        folder = Path(name)
        certificates = folder / "certs"
        development_certificates(certificates)
        write_stores(certificates, folder)
        instance = folder / "instance"
        _create(home.resolve(), instance)
        port = free_port()
        journal = "ASYNCIO" if ctypes.util.find_library("aio") else "NIO"
        (instance / "etc/broker.xml").write_text(_CONFIG.format(journal=journal, port=port, folder=folder))
        command = [str(instance / "bin/artemis"), "run"]
        with process(command, folder, cores, "AMQ221007", {"JAVA_ARGS": _JAVA}) as started:
            topics = f"/topic/{kind.value}.X.EGM."
            yield Broker(
                "artemis",
                started.find(r"Artemis (?:Server version )?(\d\S*)"),
                f"heap {_HEAP}, TLS 1.3, {_SAID[kind].format(journal=journal)}",
                loopback(
                    port,
                    certificates,
                    ARTEMIS.with_names(topics + "Q.{n:06}.EGMMeterReading", topics + "#"),
                    "localhost",
                ),
                started.pid,
                started.start_s,
                send_headers=_SEND_HEADERS[kind],
                subscribe_headers=(("consumer-window-size", "1"),) if kind is Kind.LAST_VALUE else (),
            )


def _create(home: Path, instance: Path) -> None:
    """Make the folder of an instance with the release's own program.

    Raises:
        LoadError: It failed.
    """
    command = [str(home / "bin/artemis"), "create", str(instance), *_CREATE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CREATE_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{' '.join(command)} took longer than {_CREATE_S_MAX:g} s") from error
    if done.returncode:
        raise LoadError(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
