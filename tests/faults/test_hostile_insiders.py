"""The cost of one principal with a valid certificate to all others, at a real gateway.

Each test lets the principal `insider` do something that the protocol allows, as fast as it can. Beside it an honest publisher goes on. It
alternates with a publisher at a second gateway that has no insider. The figures are ratios of these two, as machines differ and are seldom
quiet. The insider may see some topics, or none (`INSIDERS`).
"""

import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.flood import Publisher, by_turns, percentile
from tests.faults.scene import resident_bytes
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess

pytestmark = pytest.mark.slow

MIB = 2**20
SLOWER_MAX = 3.0  # times the processor time of a gateway without an insider
# Times the wait of a publisher at such a gateway. On a quiet machine it is 1 to 3; here other tests share the processors with a gateway that
# an insider keeps busy. A publisher that is starved waits thousands of times as long.
STARVED_MIN = 50.0
TURNS = 5
SENDS = 60
GRANTED = [f"X/EGM.*.Kind{number}" for number in range(20)]  # as many globs of the usual form as a large venue grants
INSIDERS = {"of-nothing": "receive = []", "of-some": f"receive = {GRANTED!r}"}


def _folder(folder: Path, insider: str) -> GatewayFolder:
    folder.mkdir()
    files = GatewayFolder(folder)
    policy = (folder / "policy.toml").read_text()
    head, _, tail = policy.partition('name = "subscriber"')
    changed = head + 'name = "insider"' + tail.replace('["all"]', '["insider"]', 1)
    (folder / "policy.toml").write_text(f"{changed}\n[capabilities.insider]\n{insider}\n")
    files.configure(limits="log_lines_per_minute_max = 100000\nlinger_timeout_s = 0.2\n[reload]\nwatch = false")
    return files


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Run a gateway that no insider knows."""
    with _folder(tmp_path_factory.mktemp("quiet") / "gateway", INSIDERS["of-nothing"]).start() as process:
        yield process


@pytest.fixture(params=list(INSIDERS))
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GatewayProcess]:
    """Run a gateway with an insider that may see something, and one with an insider that may see nothing."""
    with _folder(tmp_path / "gateway", INSIDERS[request.param]).start() as process:
        yield process


class Insider:
    """Connections of the insider; all that is given to `pump` is sent again and again, as fast as the gateway takes it."""

    def __init__(self, process: GatewayProcess, connections: int) -> None:
        self._context = ssl.create_default_context(cafile=process.files.folder / "certs" / "ca.pem")
        certificates = process.files.folder / "certs"
        self._context.load_cert_chain(certificates / "subscriber.pem", certificates / "subscriber.key")
        self.clients = [BlockingClient(process.port, certificates, "subscriber") for _ in range(connections)]
        for client in self.clients:
            client.write(encoder.connect("MAXVAPI"))
            assert client.frame().command == b"CONNECTED"

    def __enter__(self) -> "Insider":
        return self

    def __exit__(self, *exception: object) -> None:
        for client in self.clients:
            client.close()

    @contextlib.contextmanager
    def pumping(self, frames: Callable[[int], bytes]) -> Iterator[None]:
        """Send `frames(connection number)` on each connection over and over meanwhile; at least once on each."""
        stop, begun = threading.Event(), threading.Event()

        def run() -> None:
            sockets = [client._socket for client in self.clients]  # it sends without waiting
            data = [memoryview(frames(number)) for number in range(len(sockets))]
            sent = [0] * len(sockets)
            for one in sockets:
                one.setblocking(False)
            while not stop.is_set():
                for number, one in enumerate(sockets):
                    with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError, OSError):
                        at = sent[number] % len(data[number])
                        sent[number] += one.send(data[number][at : at + 16_384])
                    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, OSError):
                        one.recv(65_536)
                if all(sent):
                    begun.set()
                stop.wait(0.002)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert begun.wait(60)
            yield
        finally:
            stop.set()
            thread.join()


def slower(quiet: GatewayProcess, attacked: GatewayProcess) -> float:
    """Return how many times as long an honest publisher waits at the attacked gateway: the median of the rounds' median waits."""
    turns = by_turns(quiet, attacked, TURNS, SENDS)
    return median(percentile(turn.among_s, 0.5) / percentile(turn.alone_s, 0.5) for turn in turns)


def fill(process: GatewayProcess, topics: int) -> None:
    """Publish N topics."""
    with process.client() as publisher:
        for number in range(topics):
            last = b"r" if number == topics - 1 else None
            publisher.write(encoder.send(VERSION_1_2, b"X/EGM.Q%d.Kind1" % number, b"v", receipt_id=last))
        assert publisher.frame().command == b"RECEIPT"


def processor_s(process: GatewayProcess) -> float:
    """Return the processor time that a gateway has used."""
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def expensive(number: int, turn: int) -> bytes:
    """Return a glob as long and with as many wildcards as the limits allow, which overlaps no granted one."""
    letters = "abcdefgh"
    wild = "".join(f"*{letters[(number * 7 + turn * 3 + at * at) % 8]}" for at in range(31))
    return f"X/{wild}{number:x}.{turn:x}".ljust(500, "a").encode()


def test_expensive_globs_on_many_connections(quiet: GatewayProcess, attacked: GatewayProcess) -> None:
    """SUBSCRIBEs with the most expensive globs on 40 connections do not starve an honest publisher."""

    def frames(number: int) -> bytes:
        return b"".join(
            encoder.subscribe(VERSION_1_2, b"%d" % turn, expensive(number, turn), b"client", receipt_id=b"r")
            + encoder.unsubscribe(VERSION_1_2, b"%d" % turn)
            for turn in range(20)
        )

    with Insider(attacked, 40) as insider, insider.pumping(frames):
        assert slower(quiet, attacked) < STARVED_MIN


def test_unfinished_bodies_hold_little_memory(attacked: GatewayProcess) -> None:
    """SENDs whose body never ends, on 40 connections, hold far less than what they sent, and each honest SEND is accepted."""
    before = resident_bytes(attacked)
    begun = b"SEND\ndestination:X/EGM.Q1.Kind1\ncontent-length:4194304\n\n" + bytes(4_194_000)
    with Insider(attacked, 40) as insider:
        for client in insider.clients:
            with contextlib.suppress(OSError):  # the gateway may end one that holds too much
                client.write(begun)
        with contextlib.closing(Publisher(attacked)) as honest:
            honest.publish(SENDS)  # asserts that all are accepted
        assert resident_bytes(attacked) - before < 40 * MIB


def test_others_subscriptions_cost_a_new_topic_little(quiet: GatewayProcess, attacked: GatewayProcess) -> None:
    """Among 10,000 subscriptions of the insider an honest SEND to a new topic takes at most `SLOWER_MAX` times the processor time."""
    with Insider(attacked, 10) as insider:
        for number, client in enumerate(insider.clients):
            globs = (b"X/*%d*%d*e?o*" % (number, turn) for turn in range(1000))
            client.write(
                b"".join(encoder.subscribe(VERSION_1_2, b"%d" % at, glob, b"client") for at, glob in enumerate(globs))
            )
            client.write(encoder.unsubscribe(VERSION_1_2, b"0", receipt_id=b"all"))
            assert client.frame().command == b"RECEIPT"
        took_s = []
        for process in (quiet, attacked):
            with contextlib.closing(Publisher(process, 10**9)) as publisher:
                publisher.publish(SENDS)  # to warm up
                began_s = processor_s(process)
                publisher.publish(TURNS * SENDS)
                took_s.append(processor_s(process) - began_s)
        alone_s, among_s = took_s
        assert among_s <= SLOWER_MAX * alone_s


def test_scans_of_one_principal_do_not_starve_the_snapshot_of_another(
    quiet: GatewayProcess, attacked: GatewayProcess
) -> None:
    """An honest subscriber gets its snapshot of 4,000 topics beside 1,000 eager SUBSCRIBEs of the insider.

    Until then the gateway spends at most `SLOWER_MAX` times the processor time.
    """
    fill(quiet, 4_000)
    fill(attacked, 4_000)

    def snapshot(process: GatewayProcess) -> float:
        began_s = processor_s(process)
        with process.client("operator") as reader:
            assert len(reader.values(b"X/EGM.Q*.Kind1", 4_000)) == 4_000
        return processor_s(process) - began_s

    alone_s = median(snapshot(quiet) for _ in range(3))
    bomb = b"".join(
        encoder.subscribe(VERSION_1_2, b"%d" % number, b"**", b"client", eager=True) for number in range(1000)
    )
    with Insider(attacked, 1) as insider:
        insider.clients[0].write(bomb)
        assert snapshot(attacked) <= SLOWER_MAX * alone_s + 0.5


def test_the_next_start_costs_what_is_left(attacked: GatewayProcess) -> None:
    """A start after 2,000 pairs of durable eager SUBSCRIBE and UNSUBSCRIBE among 3,000 topics is not much slower.

    It takes at most `SLOWER_MAX` times the processor time of a start without them.
    """
    fill(attacked, 3_000)
    attacked.kill()
    with attacked.files.start() as again:
        alone_s = processor_s(again)
        pair = encoder.subscribe(VERSION_1_2, b"s", b"**", b"client", eager=True, durable=True)
        pair += encoder.unsubscribe(VERSION_1_2, b"s", durable=True)
        with Insider(again, 1) as insider:
            insider.clients[0].write(pair * 2_000)
            with contextlib.suppress(EOFError, OSError):  # the gateway may end it
                insider.clients[0].write(encoder.disconnect(VERSION_1_2, b"last"))
                while insider.clients[0].frame().command != b"RECEIPT":
                    pass
        again.kill()
        with attacked.files.start() as third:
            assert processor_s(third) <= SLOWER_MAX * alone_s


def test_admin_connections_without_a_right_leave_room_for_operators(attacked: GatewayProcess) -> None:
    """With more connections of the insider to the admin listener than it has places, an operator is served each time."""
    certificates = attacked.files.folder / "certs"

    def admin(name: str) -> BlockingClient:
        return BlockingClient(attacked.admin_port, certificates, name)

    with contextlib.ExitStack() as stack:
        for _ in range(70):
            with contextlib.suppress(OSError):
                client = stack.enter_context(admin("subscriber"))
                client.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):
            with admin("operator") as operator:
                operator.write(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert operator._socket.recv(64).split()[1:2] == [b"200"]  # the status of HTTP
