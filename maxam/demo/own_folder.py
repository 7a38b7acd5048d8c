"""The folder of a demo, which is made again at each start, and ports on this machine."""

import random
import shutil
import socket
from pathlib import Path
from typing import Final

from maxam.errors import ConfigurationError

_MARK: Final = "demo.txt"  # in a folder that the demo may remove
_NOTE: Final = "maxam demo: this folder is made again at each start\n"


def make_folder(folder: Path) -> None:
    """Make an empty folder for a demo.

    Args:
        folder: Where. It must not exist, be empty, or be of an earlier demo.

    Raises:
        ConfigurationError: The folder has files of somebody else.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise ConfigurationError(
                f"{folder} is not empty and not of this demo, so it was not changed; set --folder to another one"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).write_text(_NOTE, encoding="utf-8")


def kept_ports(count: int) -> list[int]:
    """Return free ports on 127.0.0.1 for programs that take them again after a restart.

    None is a port that the system hands out. Between a stop and a start it could give such a port to another socket.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    others = [*range(10_000, first), *range(last + 1, 65_536)] or [*range(10_000, 65_536)]
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(others)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # another program has it
                continue
        if port not in found:
            found.append(port)
    return found


def gateway_settings(stomp: int, admin: int, certificate: str) -> str:
    """Return the `maxam.toml` of a gateway of a demo, with its ports and the name of its certificate in the folder `certs` beside it."""
    return f"""[listener]
host = "127.0.0.1"
port = {stomp}

[admin]
host = "127.0.0.1"
port = {admin}

[tls]
certificate = "../certs/{certificate}.pem"
key = "../certs/{certificate}.key"
client_ca = "../certs/ca.pem"
crl = "../certs/crl.pem"

[policy]
file = "policy.toml"

[schemas]
folder = "schemas"

[journal]
folder = "journal"
"""


def policy_text(fingerprints: dict[str, str], capability: str, holder: str) -> str:
    """Return a policy by which each principal may send and receive all, `operator` administers, and `holder` has a further capability."""
    text = f"""[capabilities.All]
send = ["**"]
receive = ["**"]

[capabilities.Operations]
admin = ["read", "write", "metrics"]

[capabilities.Further]
{capability}
"""
    for name, fingerprint in fingerprints.items():
        more = {"operator": ', "Operations"', holder: ', "Further"'}.get(name, "")
        text += f'\n[[principals]]\nname = "{name}"\nfingerprints = ["{fingerprint}"]\ncapabilities = ["All"{more}]\n'
    return text
