"""ActiveMQ ("Classic"), as Debian installs it."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from maxam.bench.errors import LoadError
from maxam.bench.syntax import ACTIVEMQ
from tests.benchmarks.brokers.broker import Broker, development_certificates, loopback
from tests.benchmarks.brokers.java_stores import PASSWORD, SERVER_STORE, TRUST_STORE, write_stores
from tests.benchmarks.brokers.process import free_port, process

_LIBRARIES: Final = Path("/usr/share/activemq/lib")
_MAIN: Final = "org.apache.activemq.console.Main"
_HEAP: Final = "1g"  # all of it from the start: 100,000 messages waiting take some 100 MB
_BEANS: Final = "http://www.springframework.org/schema/beans"
_CORE: Final = "http://activemq.apache.org/schema/core"
_CONFIG: Final = f"""
<beans xmlns="{_BEANS}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="{_BEANS} {_BEANS}/spring-beans-2.0.xsd {_CORE} {_CORE}/activemq-core.xsd">
  <broker xmlns="{_CORE}" brokerName="maxam-bench" dataDirectory="data" persistent="false" useJmx="false"
      advisorySupport="false" schedulerSupport="false" dedicatedTaskRunner="false">
    <destinationPolicy><policyMap><policyEntries>{{policy}}</policyEntries></policyMap></destinationPolicy>
    <sslContext>
      <sslContext keyStore="file:{SERVER_STORE}" keyStoreType="PKCS12" keyStorePassword="{PASSWORD}"
        trustStore="file:{TRUST_STORE}" trustStoreType="PKCS12" trustStorePassword="{PASSWORD}"/>
    </sslContext>
    <transportConnectors>
      <transportConnector uri="stomp+ssl://127.0.0.1:{{port}}?needClientAuth=true&amp;transport.enabledProtocols=TLSv1.3"/>
    </transportConnectors>
  </broker>
</beans>
"""
_KEY: Final = "key"
# A message is superseded by a later one with the same key; nothing is checked before more than `topics` wait.
_LAST_VALUE: Final = f"""
<policyEntry topic="&gt;">
  <pendingSubscriberPolicy><vmCursor/></pendingSubscriberPolicy>
  <pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="{{topics}}"/></pendingMessageLimitStrategy>
  <messageEvictionStrategy><uniquePropertyMessageEvictionStrategy propertyName="{_KEY}"/></messageEvictionStrategy>
</policyEntry>
"""
_LOG: Final = """
log4j.rootLogger=WARN, stdout
log4j.logger.org.apache.activemq.broker=INFO
log4j.logger.org.apache.activemq.broker.TransportConnection.Transport=ERROR
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%p %c{1} %m%n
"""


def installed() -> bool:
    """Return True if it can be started."""
    return (_LIBRARIES / "activemq-stomp.jar").exists()


@contextlib.contextmanager
def activemq(cores: Collection[int], *, last_value_topics: int = 0) -> Iterator[Broker]:
    """Start it with mutual TLS and without persistence, and stop it after use.

    Its Java is at full speed after some ten seconds of load. A load of more than 1,000 topics is not for it.

    Args:
        cores: Numbers of the cores that it may use.
        last_value_topics: Number of topics of the load. Each subscription becomes a last-value queue over all of them. A SEND
            needs its topic in a header, and one message is in flight. With 0, every subscriber gets every message.

    Raises:
        LoadError: It is not installed or does not start.
    """
    if not installed():
        raise LoadError(f"ActiveMQ is not here ({_LIBRARIES}): run deploy/install-bench-peers as root")
    with tempfile.TemporaryDirectory(prefix="maxam-bench-activemq-") as name:
        folder = Path(name)
        certificates = folder / "certs"
        development_certificates(certificates)
        write_stores(certificates, folder)
        port = free_port()
        policy = _LAST_VALUE.format(topics=last_value_topics) if last_value_topics else ""
        (folder / "activemq.xml").write_text(_CONFIG.format(policy=policy, port=port))
        (folder / "log4j.properties").write_text(_LOG)
        command = [
            "java",
            f"-Xms{_HEAP}",
            f"-Xmx{_HEAP}",
            "-Djava.net.preferIPv4Stack=true",
            "-Dlog4j.configuration=file:log4j.properties",
            "-Dorg.apache.activemq.UseDedicatedTaskRunner=false",  # a pool of threads, not one for each topic
            f"-Dactivemq.base={folder}",
            "-cp",
            f"{_LIBRARIES}/*:{_LIBRARIES}/optional/*",
            _MAIN,
            "start",
            "xbean:file:activemq.xml",
        ]
        with process(command, folder, cores, r"INFO BrokerService Apache ActiveMQ \S+ .*\) started") as started:
            java = started.find(r"Java Runtime: (.*?) /")
            said = f"Java {java}, heap {_HEAP}, stomp+ssl, TLS 1.3, not persistent, no advisories, pooled threads"
            kept = f", last value of {last_value_topics} keys for each subscription, prefetch 1"
            yield Broker(
                "activemq",
                started.find(r"Apache ActiveMQ (\S+)"),
                said + (kept if last_value_topics else ""),
                loopback(port, certificates, ACTIVEMQ, "localhost"),
                started.pid,
                started.start_s,
                ((_KEY, "{destination}"),) if last_value_topics else (),
                (("activemq.prefetchSize", "1"),) if last_value_topics else (),
            )
