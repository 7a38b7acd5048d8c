"""The files of a gateway that enrols clients."""

from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from maxam.config import EnrolmentSettings, PolicySettings
from maxam.pki.authority import AuthorityFolder
from tests.support.living_gateway import NOW, Site

PASSPHRASE = "correct horse battery staple"  # noqa: S105  # of nothing but this test
POLICY = """
[capabilities.Meters]
send = ["X/M.*"]
receive = ["X/M.*"]
[capabilities.Everything]
send = ["X/**"]
receive = ["X/**"]
[capabilities.Operations]
admin = ["read", "write", "enrol"]
[[principals]]
name = "operator"
fingerprints = ["{operator}"]
capabilities = ["Operations", "Meters"]
[[principals]]
name = "anna"
fingerprints = ["{anna}"]
capabilities = ["Everything"]
"""


class EnrolmentSite(Site):
    """The files of a gateway that enrols; clients know it by another authority than the one that signs them."""

    def __init__(self, folder: Path) -> None:
        """Write them."""
        super().__init__(folder, "anna")
        self.authority_folder = folder / "ca"
        authority = AuthorityFolder.create(self.authority_folder, "clients", PASSPHRASE, NOW, 3650)
        (folder / "passphrase").write_text(PASSPHRASE)
        (folder / "passphrase").chmod(0o600)
        both = (self.certificates / "ca.pem").read_bytes() + authority.certificate.public_bytes(
            serialization.Encoding.PEM
        )
        (folder / "clients.pem").write_bytes(both)
        self.policy_file.write_text(POLICY.format(**self.fingerprints))
        self.enrolled_file = folder / "policy-enrolled.toml"
        self.settings = replace(
            self.settings,
            tls=replace(self.settings.tls, client_ca=folder / "clients.pem"),
            policy=PolicySettings(self.policy_file, enrolled=self.enrolled_file),
            enrolment=EnrolmentSettings(
                self.authority_folder,
                folder / "passphrase",
                port=0,
                server_ca=self.certificates / "ca.pem",
            ),
        )
