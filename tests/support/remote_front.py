"""A gateway with one front of its own and one on "another machine": a process that connects to its link over TLS on loopback."""

from pathlib import Path

from tests.support.gateway_folder import RUN, GatewayFolder, GatewayProcess
from tests.support.gateway_process import kept_ports, launch, port_of

_RIGHTS = '[capabilities.front]\nadmin = ["replicate", "front"]\n'


class RemoteFolder:
    """The files of both. `via` is the port that the front connects to, such as that of a relay.

    Attributes:
        gateway: Files of the gateway. The certificate `pipeline` is the front's on its link.
        link_port: Port of the gateway's link.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        (folder / "gateway").mkdir()
        self.folder = folder / "front"
        self.folder.mkdir()
        self.gateway = GatewayFolder(folder / "gateway", fronts=1)
        self.link_port = kept_ports(1)[0]
        config = self.gateway.config
        config.write_text(config.read_text() + f'[link]\nhost = "127.0.0.1"\nport = {self.link_port}\n{settings}')
        policy = self.gateway.folder / "policy.toml"
        before, name, after = policy.read_text().partition('name = "pipeline"')
        policy.write_text(_RIGHTS + before + name + after.replace('["all"]', '["front"]', 1))
        self.config = self.folder / "maxam.toml"
        self.errors = self.folder / "stderr.log"
        self.configure(self.link_port)

    def configure(self, *via: int, who: str = "pipeline", further: str = "") -> None:
        """Write the configuration of the front."""
        certs = self.gateway.folder / "certs"
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in via)
        self.config.write_text(
            f'[front]\nfrom = [{addresses}]\nfolder = "copy"\n[listener]\nport = 0\n'
            f'[tls]\ncertificate = "{certs}/server.pem"\nkey = "{certs}/server.key"\nclient_ca = "{certs}/ca.pem"\n'
            f'[link]\ncertificate = "{certs}/{who}.pem"\nkey = "{certs}/{who}.key"\n{further}'
        )

    def start(self) -> "RemoteProcess":
        """Start the front, and wait until it serves."""
        return RemoteProcess(self)


class RemoteProcess(GatewayProcess):
    """A running front; leaving it kills it if it still runs."""

    def __init__(self, files: RemoteFolder) -> None:
        self.files = files.gateway
        self._errors = files.errors
        self.process, addresses = launch(["-c", RUN, "--config", str(files.config)], files.errors)
        self.port, self.admin_port = port_of(addresses["tls"]), 0

    def log(self) -> str:
        """Return what it and its predecessors logged."""
        return self._errors.read_text()
