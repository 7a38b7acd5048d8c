"""A gateway with a link, and a follower of it in the test's own process."""

import json
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from maxam.cluster.follower import Follower
from maxam.cluster.keeper import Keeper
from maxam.cluster.steps import Step
from maxam.config import JournalSettings as ConfiguredJournal
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import Position
from maxam.journal.files import Journal, JournalSettings
from maxam.pki.certificates import Authority, fingerprint
from tests.support.gateway_process import GatewayProcess, kept_ports

SCHEMAS = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}


def policy_of(certificates: Path, replicating: str = "operator") -> str:
    """Return a policy under which each development certificate may do all, and one may replicate."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())
    rights = '[capabilities.all]\nsend = ["X/**"]\nreceive = ["X/**"]\nadmin = ["read", "write", "metrics"]\n'
    rights += '[capabilities.replicate]\nadmin = ["replicate"]\n'
    for name, one in fingerprints.items():
        capabilities = '["all", "replicate"]' if name == replicating else '["all"]'
        rights += f'[[principals]]\nname = "{name}"\nfingerprints = ["{one}"]\ncapabilities = {capabilities}\n'
    return rights


def serves_too(certificates: Path, name: str) -> tuple[str, str]:
    """Issue a client's certificate again, for a server on this machine too; return the old and the new fingerprint."""
    issuer = Authority.read(certificates).issued
    old = x509.load_pem_x509_certificate((certificates / f"{name}.pem").read_bytes())
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    key = issuer.key.public_key()
    new = (
        x509.CertificateBuilder(issuer.certificate.subject, old.subject, old.public_key(), x509.random_serial_number())
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
        .add_extension(names, critical=False)
        .add_extension(both, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    (certificates / f"{name}.pem").write_bytes(new.public_bytes(serialization.Encoding.PEM))
    return fingerprint(old), fingerprint(new)


def linked_gateway(folder: Path, certificates: Path, policy: str, *settings: str) -> tuple[GatewayProcess, int]:
    """Return a gateway with a link on a port that stays, and that port. It does not run yet.

    Args:
        folder: Its own. It is made if need be.
        certificates: The development certificates.
        policy: Text of its policy.
        settings: Further ones, as `section.key = value`.
    """
    (port,) = kept_ports(1)
    folder.mkdir(exist_ok=True)
    gateway = GatewayProcess(folder, certificates, policy, SCHEMAS)
    configuration = folder / "maxam.toml"
    link = ['link.host = "127.0.0.1"', f"link.port = {port}"]
    configuration.write_text("\n".join([*link, *settings, configuration.read_text("utf-8")]), "utf-8")
    return gateway, port


def client_context(certificates: Path, name: str = "operator") -> ssl.SSLContext:
    """Return the context of a link with the certificate of `name`."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context


class FollowedJournal:
    """A journal that follows. A context manager: leaving closes it."""

    def __init__(self, folder: Path, certificates: Path, ports: list[int], name: str = "operator") -> None:
        self.folder = folder
        self.failures: list[BaseException] = []
        how = JournalSettings(ConfiguredJournal().segment_bytes_max, reserve_bytes=0)
        self.journal = Journal.open(str(folder), OsDisk(), how, bytes(16))
        self.recovered = sum(1 for _ in self.journal.recover(following=True))
        self.keeper = Keeper(self.journal, self.journal.position, self.failures.append)
        self.keeper.start()
        self.follower = Follower(
            [("127.0.0.1", port) for port in ports],
            lambda: client_context(certificates, name),
            self.keeper,
            str(folder),
            OsDisk(),
            self.journal.position,
            self.journal.incarnation,
        )
        self.revision = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.keeper.close()
        self.journal.close(seal=False)
        assert not self.failures, self.failures

    async def apply(self, steps: list[Step]) -> None:
        """Take records as an observer does."""
        self.revision = steps[-1].position.revision

    async def run(self, apply: Callable[[list[Step]], Awaitable[None]] | None = None) -> None:
        """Follow until cancelled."""
        await self.follower.run(apply or self.apply)


def segments(folder: Path) -> dict[str, bytes]:
    """Return the segments of a journal by name, the open one without the room that was allocated ahead."""
    found = {one.name: one.read_bytes() for one in (folder / "segments").iterdir() if "torn" not in one.name}
    return {name: data.rstrip(b"\0") if "open" in name else data for name, data in found.items()}


def same(one: Position, other: Position) -> bool:
    """Return True if two positions are the same block."""
    return (one.revision, one.chain) == (other.revision, other.chain)
