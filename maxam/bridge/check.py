"""`maxam-bridge --check`: whether a bridge could forward all that its routes describe.

It connects to both gateways under client-ids that they choose, so a bridge that runs is not disturbed. Rights to send are tried with
a delete that has a condition which no topic fulfils. Its answer shows whether rights or only the condition refuse it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from maxam.bridge.config import Configuration, SideSettings
from maxam.bridge.lane import connect_to
from maxam.bridge.provenance import VIA
from maxam.bridge.schema_check import compare_schemas
from maxam.client import Client, ClientError
from maxam.config import Limits
from maxam.error_codes import code_of
from maxam.errors import MaxamError
from maxam.globs import compile_glob
from maxam.https_client import Credentials, Remote
from maxam.links import CENTRE, HEADERS, UP, Link, LinkRoute, link_topic, wanted_topic

_LINK: Final = Link("venue", "centre", CENTRE, UP, "", 0, 0, "", 30, "", "", ())
_LINK_HEADERS: Final = {name.decode(): value.decode() for name, value in HEADERS}
_REMEDIES: Final = {
    "bridge-required": "give the bridge a capability with bridge = true in policy.toml",
    "unauthorised": "grant the right to send it to the bridge in policy.toml",
}
NO_REVISION: Final = 2**63 - 1  # that no topic has


class Finding(NamedTuple):
    """One result of a check.

    Attributes:
        level: `ok`, `warning` or `error`.
        code: Stable code of the finding.
        gateway: Name of the gateway that it is about.
        text: Description, with a remedy.
    """

    level: str
    code: str
    gateway: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.gateway}: {self.text}"


async def check(configuration: Configuration) -> list[Finding]:
    """Return all findings of both sides."""
    found: list[Finding] = []
    for side in (configuration.venue, configuration.centre):
        found += await _check_side(configuration, side)
    connected = {finding.gateway for finding in found if finding.code == "connected"}
    if len(connected) == 2:  # otherwise the cause is among the findings already
        found += await _check_schemas(configuration)
    return found


async def _check_side(configuration: Configuration, side: SideSettings) -> list[Finding]:
    found: list[Finding] = []
    for host, port in side.stomp_addresses():
        address = f"{host}:{port}"
        try:
            async with connect_to(side, host, port) as client:
                found.append(Finding("ok", "connected", side.name, f"{address} answers: {client.server}"))
                if not client.incarnation:
                    found.append(
                        Finding("error", "no-incarnation", side.name, "it is too old for a bridge; update the gateway")
                    )
                elif len([one for one in found if one.code == "connected"]) == 1:  # replicas have the same policy
                    found += await _check_rights(configuration, side, client)
        except ClientError as error:
            found.append(Finding("error", code_of(error), side.name, f"{address}: {error}"))
    return found


async def _check_rights(configuration: Configuration, side: SideSettings, client: Client) -> list[Finding]:
    found: list[Finding] = []
    venue = configuration.venue.name
    link, wanted = link_topic(venue).decode(), wanted_topic(venue).decode()
    receives, sends = [link, wanted], [link]
    for route in _routes(configuration):
        if (route.direction == UP) == (side is configuration.venue):
            receives.append(route.glob)
        else:
            receives.append(route.mapped)
            sends.append(compile_glob(route.mapped, Limits()).sample)
    for glob in receives:
        async with client.subscribe(glob, ack="auto") as subscription:
            if subscription.filtered:
                found.append(
                    Finding(
                        "error",
                        "withheld",
                        side.name,
                        f"grant the right to receive {glob} to the bridge in policy.toml",
                    )
                )
    for topic in sends:
        body, headers = (_LINK.encoded(), _LINK_HEADERS) if topic == link else (b"", {VIA: venue})
        receipt = await client.send(topic, body, headers, if_revision=NO_REVISION)
        if receipt.result != "conflict":
            remedy = _REMEDIES.get(
                receipt.result, "take the rule of B/*.Link and its type from the shipped schema folder"
            )
            found.append(
                Finding(
                    "error", receipt.result, side.name, f"{topic}: {receipt.reason or receipt.disposition}; {remedy}"
                )
            )
    if not found:
        found.append(Finding("ok", "rights", side.name, "the bridge has the rights that its routes need"))
    return found


def _routes(configuration: Configuration) -> Iterator[LinkRoute]:
    for planned in configuration.plan("").routes:
        yield planned.route


async def _check_schemas(configuration: Configuration) -> list[Finding]:
    sides = (configuration.venue, configuration.centre)
    if not all(side.admin for side in sides):
        return [
            Finding("warning", "schemas-not-compared", side.name, 'set admin = "HOST:PORT" to compare schemas')
            for side in sides
            if not side.admin
        ]
    try:
        return await trio.to_thread.run_sync(_compare, configuration)
    except MaxamError as error:
        return [Finding("error", code_of(error), configuration.centre.name, f"schemas were not compared: {error}")]


def _compare(configuration: Configuration) -> list[Finding]:
    with _remote(configuration.venue) as venue, _remote(configuration.centre) as centre:
        both = [(remote.get("/v1/schemas"), partial(_text, remote)) for remote in (venue, centre)]
        found: list[Finding] = []
        for route in _routes(configuration):
            up = route.direction == UP
            (sender, sent), (target, expected) = both if up else both[::-1]
            name = configuration.centre.name if up else configuration.venue.name
            faults = compare_schemas(route, sender, target, sent, expected)
            found += [Finding("error", code, name, text) for code, text in faults]
        return found or [
            Finding("ok", "schemas", configuration.centre.name, "each side accepts all that the other one sends")
        ]


def _text(remote: Remote, name: str, minor: str) -> bytes:
    return remote.text(f"/v1/schemas/{quote(name)}/{quote(minor)}")


def _remote(side: SideSettings) -> Remote:
    return Remote(Credentials(side.admin, side.certificate, side.key, side.ca, side.server_name or None))
