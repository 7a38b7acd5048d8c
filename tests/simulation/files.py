"""Files of operators and integrators in a simulation: policies, schemas and CRLs, valid and invalid ones."""

import datetime as dt
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from maxam.avro.registry import Registry, load_registry
from maxam.broker.policy import Policy
from maxam.config import Settings
from maxam.errors import ConfigurationError
from maxam.gateway.loaded_config import CRL, POLICY, SCHEMAS, LoadedConfig
from maxam.gateway.revocation import Chain, Revocations, facts_of, load_revocations
from maxam.gateway.tls_credentials import Authorities, ServerCertificate, server_context
from maxam.pki.certificates import Authority
from tests.simulation.loop import EPOCH_S
from tests.support.sans_io import UNCHECKED, policy

CLIENTS = ("anna", "bert", "cleo", "dora")
TOPICS = tuple(f"X/{store}.{n}" for store in "ab" for n in range(4))
ALL = frozenset(TOPICS)

_NOW = dt.datetime.fromtimestamp(EPOCH_S, dt.UTC)
_BODY: dict[str, Any] = {
    "type": "record",
    "name": "Body_v1",
    "namespace": "t",
    "fields": [{"name": "text", "type": "bytes"}],
}
_NEXT: dict[str, Any] = {
    **_BODY,
    "fields": [*_BODY["fields"], {"name": "more", "type": ["null", "int"], "default": None}],
}
_MINORS = {"1.0": _BODY, "1.1": _NEXT}
# Glob, and the minors that are known under it (none: bodies are not checked). The last one has no rule for half of the topics.
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("X/**", ()),
    ("X/**", ("1.0",)),
    ("X/**", ("1.0", "1.1")),
    ("X/a.*", ()),
)
UNCOVERED = 3  # which of them that is
FORMS = ("raw", "1.0", "1.1")
EXPIRING = "X/b.3"  # its values expire where the gateway publishes who is connected
EXPIRE_S = 4
_PRESENCE = Path(__file__).parents[2] / "schemas" / "maxam" / "Presence_v1" / "1.0.avsc"


@dataclass(frozen=True)
class Bound:
    """A last will, set by a client or by the policy: its text, empty for a delete, and the form of its body."""

    topic: str
    text: bytes
    form: str
    delay_s: int
    mark: int

    @property
    def body(self) -> bytes:
        """The body of its SEND."""
        return body_of(self.text, self.form) if self.text else b""


@dataclass(frozen=True)
class Granted:
    """The rights of a client, and its last will. One that is not `known` is in no policy."""

    receive: frozenset[str] = ALL
    send: frozenset[str] = ALL
    known: bool = True
    will: Bound | None = None


NOTHING = Granted(frozenset(), frozenset(), known=False)
Grants = tuple[tuple[str, Granted], ...]


@dataclass(frozen=True)
class Written:
    """The files as somebody left them.

    Attributes:
        grants: The rights of the policy.
        rules: Which of RULES the schema folder has.
        revoked: Whose certificate is on the revocation list.
        broken: Items whose files cannot be used.
        attending: There are rules for what the gateway publishes, and for values that expire.
    """

    grants: Grants = tuple((client, Granted()) for client in CLIENTS)
    rules: int = 0
    revoked: str = ""
    broken: frozenset[str] = field(default_factory=frozenset)
    attending: bool = False


def body_of(text: bytes, form: str) -> bytes:
    """Return a body that carries a text: as it is, or as a datum of one of the minors."""
    if form == "raw":
        return text
    number, head = len(text) << 1, b""
    while number > 127:
        head += bytes([number & 127 | 128])
        number >>= 7
    return head + bytes([number]) + text + (b"\0" if form == "1.1" else b"")


def verdict(rules: int, topic: str, form: str) -> str | None:
    """Return which minor a body of a form is judged by, empty when it is not checked, or None when it is invalid."""
    glob, minors = RULES[rules]
    if not topic.startswith(glob.rstrip("*")):
        return None
    if not minors:
        return ""
    return form if form in minors else None


@cache
def registry_of(rules: int, attending: bool = False) -> Registry:
    """Load a schema folder."""
    glob, minors = RULES[rules]
    if not minors and not attending:
        return load_registry({"registry.toml": UNCHECKED["registry.toml"].replace(b"X/**", glob.encode())})
    texts = {f"t/Body_v1/{minor}.avsc": json.dumps(_MINORS[minor]).encode() for minor in minors}
    kind = 'encoding = "datum"\nschema = "t.Body_v1"\n' if minors else 'encoding = "none"\n'
    rule = f'[[rule]]\ndestination = "{glob}"\n{kind}'
    if attending:
        if rules != UNCOVERED:
            rule = f'[[rule]]\ndestination = "{EXPIRING}"\nexpire_after_s = {EXPIRE_S}\n{kind}{rule}'
        rule += '[[rule]]\ndestination = "S/*"\nencoding = "datum"\nschema = "maxam.Presence_v1"\n'
        texts["maxam/Presence_v1/1.0.avsc"] = _PRESENCE.read_bytes()
    return load_registry({"registry.toml": rule.encode(), **texts})


@cache
def policy_of(grants: Grants) -> Policy:
    """Load a policy."""
    principals: dict[str, Mapping[str, Sequence[str]]] = {}
    for client, granted in grants:
        if granted.known:
            principals[client] = {"send": sorted(granted.send), "receive": sorted(granted.receive)}
            if granted.will is not None:
                principals[client] = {**principals[client], "will": _written(granted.will)}
    return policy(**principals)


def _written(will: Bound) -> str:
    body = b64encode(will.body).decode()
    head = f'destination = "{will.topic}", delay_s = {will.delay_s}, body_base64 = "{body}"'
    return f'{{{head}, headers = {{mark = "{will.mark}"}}}}'


@cache
def _authority() -> tuple[Authority, Authorities, ServerCertificate, Chain]:
    authority = Authority.create("simulated", _NOW)
    until = _NOW + dt.timedelta(days=3000)
    server = authority.issue("server", _NOW, until, ("localhost",))
    client = authority.issue("client", _NOW, until)
    return (
        authority,
        Authorities(authority.issued.certificate_pem, "ca.pem"),
        ServerCertificate(server.certificate_pem, server.key_pem, "server.pem"),
        (facts_of(client.certificate), facts_of(authority.issued.certificate)),
    )


def chain_of(client: str) -> Chain:
    """Return the verified certificates of a client: they differ in their number."""
    own, above = _authority()[3]
    return (replace(own, serial=CLIENTS.index(client) + 100), above)


@cache
def _revocations_of(client: str) -> Revocations:
    from cryptography.hazmat.primitives.serialization import Encoding

    from maxam.pki.certificates import sign_revocation_list

    authority, authorities, _, _ = _authority()
    issued = authority.issued
    entries = [(CLIENTS.index(client) + 100, _NOW)] if client else []
    until = _NOW + dt.timedelta(days=3000)
    crl = sign_revocation_list(issued.certificate, issued.key, entries, _NOW, until, 1)
    return load_revocations(crl.public_bytes(Encoding.PEM), "crl.pem", authorities.certificates)


def read(written: Written, before: LoadedConfig | None) -> tuple[LoadedConfig, dict[str, ConfigurationError]]:
    """Read the files as `reread_config` does; an item that cannot be used is left as it was."""
    if before is None:
        _, authorities, certificate, _ = _authority()
        before = LoadedConfig(
            policy_of(written.grants),
            registry_of(written.rules, written.attending),
            certificate,
            authorities,
            _revocations_of(written.revoked),
            _context(),
            {},
        )
        digests = {item: item for item in ("certificate", "client_ca", "web")}
        before = replace(before, digests=digests | _digests(written))
        return before, {}
    refused = {item: ConfigurationError(f"{item} is broken") for item in sorted(written.broken)}
    digests = dict(before.digests) | {item: d for item, d in _digests(written).items() if item not in refused}
    parts: dict[str, Any] = {"digests": digests}
    if POLICY not in refused:
        parts["policy"] = policy_of(written.grants)
    if SCHEMAS not in refused:
        parts["registry"] = registry_of(written.rules, written.attending)
    if CRL not in refused:
        parts["revocations"] = _revocations_of(written.revoked)
    return replace(before, **parts), refused


def reader(written: Written) -> Any:
    """Return what stands for `reread_config`, which finds these files."""

    def reread(_settings: Settings, before: LoadedConfig | None) -> tuple[LoadedConfig, dict[str, ConfigurationError]]:
        return read(written, before)

    return reread


@cache
def _context() -> Any:
    _, authorities, certificate, _ = _authority()
    return server_context(certificate, authorities, "1.3")


def _digests(written: Written) -> dict[str, str]:
    grants = [(client, sorted(one.receive), sorted(one.send), one.known, one.will) for client, one in written.grants]
    return {POLICY: repr(grants), SCHEMAS: str(written.rules), CRL: written.revoked}
