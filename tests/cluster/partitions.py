"""Cut parts of a real cluster off from each other, under load, in a network namespace of its own.

`python -m tests.cluster.partitions --cuts 40` is the harness of `tests.cluster.kill_harness` with other faults. Each gateway finds the
nodes of etcd at an address of its own on the loopback interface. So rules of nftables can drop the packets between one gateway and
one node, of one direction or of both. The line of the leader to etcd can be thin, too. Programs and rights that it needs are those of `tests/interop/bridge/thin_line.py`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from tests.cluster import kill_harness
from tests.cluster.kill_harness import Cut, Place
from tests.interop.bridge import thin_line

WAYS: Final = {
    "both": (True, True),
    "out": (True, False),
    "back": (False, True),
}  # requests and answers that are dropped
INSIDE: Final = "--inside"
THIN_BITS_PER_S: Final = 8_000_000  # 1 MB/s
_UNSHAPED: Final = "htb rate 10gbit quantum 60000"


def rules_of(host: str, port: int, way: str) -> list[str]:
    """Return the rules that drop packets between a server and its clients.

    Args:
        host: Address of the server.
        port: Its port.
        way: Name of the directions.
    """
    out, back = WAYS[way]
    to, of = f"ip daddr {host} tcp dport {port} drop", f"ip saddr {host} tcp sport {port} drop"
    return [*([to] if out else []), *([of] if back else [])]


def to_etcd(member: str, place: Place, way: str) -> list[str]:
    """Cut a member off from all nodes of etcd."""
    return [rule for port in place.nodes.values() for rule in rules_of(place.members[member], port, way)]


def leader_etcd(place: Place, leader: str, _node: str, way: str) -> list[str]:
    """Cut the leader off from etcd."""
    return to_etcd(leader, place, way)


def leader_node(place: Place, leader: str, node: str, way: str) -> list[str]:
    """Cut the leader off from the node that leads etcd."""
    return rules_of(place.members[leader], place.nodes[node], way)


def follower_etcd(place: Place, leader: str, _node: str, way: str) -> list[str]:
    """Cut a follower off from etcd."""
    return to_etcd(next(name for name in place.members if name != leader), place, way)


def clients_leader(place: Place, leader: str, _node: str, way: str) -> list[str]:
    """Cut all clients off from the leader."""
    return rules_of("127.0.0.1", place.clients[leader], way)


PARTS: Final[dict[str, Callable[[Place, str, str, str], list[str]]]] = {
    "leader-etcd": leader_etcd,
    "leader-node": leader_node,
    "follower-etcd": follower_etcd,
    "clients-leader": clients_leader,
}


@contextmanager
def dropping(rules: Sequence[str]) -> Iterator[None]:
    """Drop packets for the time of the block."""
    lines = "\n".join(rules)
    text = f"table ip cut {{\nchain in {{\ntype filter hook input priority 0;\n{lines}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "ip", "cut"], check=True)


def cut(part: str, way: str, place: Place, leader: str, node: str) -> AbstractContextManager[None]:
    """Return the block in which a part of the network is cut off."""
    return dropping(PARTS[part](place, leader, node, way))


@contextmanager
def thin(place: Place, leader: str, _node: str) -> Iterator[None]:
    """Shape the line between the leader and all nodes of etcd, in each direction, for the time of the block."""
    host = place.members[leader]
    commands = ["qdisc add dev lo root handle 1: htb default 1", f"class add dev lo parent 1: classid 1:1 {_UNSHAPED}"]
    for way, field in (("1:2", "dst"), ("1:3", "src")):
        commands.append(f"class add dev lo parent 1: classid {way} htb rate {THIN_BITS_PER_S} burst 64k cburst 64k")
        commands.append(f"filter add dev lo parent 1: protocol ip u32 match ip {field} {host}/32 flowid {way}")
    for command in commands:
        subprocess.run(["tc", *command.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)


CUTS: Final[Mapping[str, Cut]] = {f"{part}-{way}": partial(cut, part, way) for part in PARTS for way in WAYS} | {
    "leader-etcd-thin": thin
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run in a namespace of its own. The arguments are those of the kill harness, with `--cuts`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if INSIDE in given:
        given.remove(INSIDE)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        if "--cuts" in given:
            place = given.index("--cuts")
            each = max(1, int(given[place + 1]) // len(CUTS))
            given[place : place + 2] = ["--faults", ",".join(f"{name}={each}" for name in CUTS)]
        return kill_harness.main(given, CUTS)
    problem = thin_line.missing()
    if problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    command = [sys.executable, "-m", "tests.cluster.partitions", *given, INSIDE]
    return subprocess.run(["unshare", "-rn", *command], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
