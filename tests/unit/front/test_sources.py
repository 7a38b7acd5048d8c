"""SOURCES: what a front gets of the files and settings of its gateway."""

from dataclasses import replace
from pathlib import Path

import pytest

from maxam.cluster.wire import WireError
from maxam.config import Limits, load_settings
from maxam.gateway.front_sources import REMOTE_ITEMS, encode_sources, facts_of, read_sources, settings_at_front
from maxam.gateway.loaded_config import CERTIFICATE, CRL, POLICY, SCHEMAS, WEB, Content

GATEWAY = """
[tls]
certificate = "a.pem"
key = "a.key"
client_ca = "ca.pem"
crl = "crl.pem"
crl_expired = "refuse"
[policy]
file = "policy.toml"
unknown_clients = "connect-without-rights"
[schemas]
folder = "schemas"
[listener]
port = 1
virtual_hosts = ["one", "two"]
[limits]
connections_max = 4321
"""
FRONT = """
[front]
from = ["a.example:8646"]
[tls]
certificate = "b.pem"
key = "b.key"
client_ca = "own.pem"
[listener]
host = "192.0.2.1"
port = 2
"""
CONTENTS = {
    POLICY: Content({"file": b"x\n\0"}),
    SCHEMAS: Content({"a/\udcff.avsc": b"", "registry.toml": b"\n{}"}),
    CRL: Content({}),
}


def test_facts_and_contents_come_back() -> None:
    """Any bytes in a file, names that are not UTF-8, empty files and items without files."""
    facts, contents = read_sources(encode_sources({"epoch": 7}, CONTENTS)[5:])
    assert facts == {"epoch": 7}
    assert contents == CONTENTS


def test_garbled_sources_are_refused() -> None:
    """Each cut, bytes after the end, and a head that is something else."""
    body = encode_sources({"epoch": 7}, CONTENTS)[5:]
    for end in range(len(body)):
        with pytest.raises(WireError):
            read_sources(body[:end])
    for other in (body + b"x", b"[]\n", b"{}\n", b'{"contents": 1}\n', b'{"contents": {"a": [1]}}\n', b"\n"):
        with pytest.raises(WireError):
            read_sources(other)


def test_no_key_goes_to_another_machine() -> None:
    """Neither certificates nor the keys of pages are among the items that are sent there."""
    assert not {CERTIFICATE, WEB} & set(REMOTE_ITEMS)


def test_the_settings_of_the_gateway_hold_at_a_front_but_for_address_and_certificate() -> None:
    """Limits, heart-beats, hosts and judgement of certificates are the gateway's."""
    gateway = load_settings(GATEWAY, "maxam.toml", Path("/g"))
    own = load_settings(FRONT, "maxam.toml", Path("/f"))
    facts, contents = read_sources(encode_sources(facts_of(gateway), CONTENTS)[5:])
    held = settings_at_front(own, facts, contents)
    assert held.limits == gateway.limits
    assert held.limits.connections_max != Limits().connections_max
    assert held.listener == replace(gateway.listener, host="192.0.2.1", port=2)
    assert (held.tls.certificate, held.tls.crl_expired) == (Path("/f/b.pem"), "refuse")
    assert held.tls.crl is None  # there is none among the contents
    assert held.policy.unknown_clients == "connect-without-rights"
    with_crl = settings_at_front(own, facts, {**contents, CRL: Content({"crl": b"x"})})
    assert with_crl.tls.crl is not None
