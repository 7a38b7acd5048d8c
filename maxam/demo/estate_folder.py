"""The files of the estate demo: certificates, policies, schemas, and the configurations of gateways and bridges."""

import datetime as dt
import shutil
from pathlib import Path
from typing import Final

from maxam.demo.own_folder import gateway_settings, kept_ports, make_folder, policy_text
from maxam.pki.certificates import issue_development_certificates

CENTRE: Final = "centre"
CLIENTS: Final = ("publisher", "subscriber", "operator", "bridge")
LINK_TIMEOUT_S: Final = 3  # the smallest that a bridge allows, so that the demo need not wait


def make_estate(folder: Path, schemas: Path, venues: list[str]) -> dict[str, tuple[int, int]]:
    """Make the folder of an estate, except the configurations of the bridges.

    Args:
        folder: Where. It must not exist, or be of an earlier demo.
        schemas: Folder of the shipped schemas.
        venues: Their names, which are their stores at the centre too.

    Returns:
        By name of the gateway, the ports of its STOMP and admin listeners.

    Raises:
        ConfigurationError: The folder has files of somebody else.
    """
    make_folder(folder)
    fingerprints = issue_development_certificates(folder / "certs", dt.datetime.now(dt.UTC), CLIENTS)
    ports: dict[str, tuple[int, int]] = {}
    free = kept_ports(2 * (1 + len(venues)))
    for name in (CENTRE, *venues):
        ports[name] = stomp, admin = free.pop(), free.pop()
        site = folder / name
        shutil.copytree(schemas, site / "schemas")
        if name == CENTRE:
            registry = site / "schemas" / "registry.toml"
            text = registry.read_text(encoding="utf-8")
            registry.write_text(text.replace('destination = "X/', 'destination = "*/'), encoding="utf-8")
        (site / "policy.toml").write_text(policy_text(fingerprints, "bridge = true", "bridge"), encoding="utf-8")
        (site / "maxam.toml").write_text(_gateway(stomp, admin, name != CENTRE), encoding="utf-8")
    return ports


def write_bridge(folder: Path, venue: str, ports: dict[str, tuple[int, int]], line: int) -> None:
    """Write the configuration of the bridge of a venue, which reaches the centre by a line at a port."""
    lines = ["[bridge]", f"link_timeout_s = {LINK_TIMEOUT_S}", ""]
    for section, name, port in (("from", venue, ports[venue][0]), ("to", CENTRE, line)):
        lines += [f"[{section}]", f'name = "{name}"', f'addresses = ["127.0.0.1:{port}"]']
        lines += [f'admin = "127.0.0.1:{ports[name][1]}"', 'ca = "../certs/ca.pem"']
        lines += ['certificate = "../certs/bridge.pem"', 'key = "../certs/bridge.key"', ""]
    lines += ["[[route]]", 'glob = "X/EGM.**"', f'store = "{venue}"', ""]
    (folder / venue / "bridge.toml").write_text("\n".join(lines), encoding="utf-8")


def _gateway(stomp: int, admin: int, bridge: bool) -> str:
    text = gateway_settings(stomp, admin, "server")
    return text + '\n[bridge]\nconfigs = ["bridge.toml"]\n' if bridge else text
