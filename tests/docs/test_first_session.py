"""The first example of docs/protocol.md, played byte for byte against a gateway with the files of a development machine."""

import json
import re
import socket
import ssl
import string
from pathlib import Path

import pytest

from maxam import __version__
from maxam.demo.__main__ import CONFIGURATION, _configured
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
PARTS = re.findall(r"^```stomp-session (client|server)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def test_a_fresh_development_gateway_answers_the_first_session_as_shown(tmp_path: Path, certificates: Path) -> None:
    """With certs-dev/publisher.pem, the shipped schemas and the policy of a development machine, each byte is as on the page."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text(encoding="utf-8"))
    template = (ROOT / "certs-dev/policy-dev.template.toml").read_text(encoding="utf-8")
    policy = string.Template(template).substitute(fingerprints)
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "publisher.pem", certificates / "publisher.key")
    assert len(PARTS) == 6
    with (
        GatewayProcess(tmp_path, certificates, policy, ROOT / "schemas") as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        connection.makefile("rb") as answers,
    ):
        for side, text in PARTS:
            data = re.sub(r"\^@\n(?=[A-Z]|\Z)", "^@", text).replace("^@", "\0").encode()
            if side == "client":
                connection.sendall(data)
            else:
                expected = data.replace(b"maxam/0.2.0", f"maxam/{__version__}".encode())
                assert answers.read(len(expected)) == expected
        assert answers.read() == b""


def test_a_refused_host_and_the_consoles_address_are_logged(tmp_path: Path, certificates: Path) -> None:
    """The log has the host that a client asked for, escaped and cut, and where the console is; the ready line alone is on stdout."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "publisher.pem", certificates / "publisher.key")
    with GatewayProcess(tmp_path, certificates, "", ROOT / "schemas") as gateway:
        assert f" console address=https://localhost:{gateway.admin_port}/console/\n" in gateway.log()
        for host, shown in (
            (b"broker.example", "broker.example"),
            (b"\x1b[2J" + b"h" * 999, '"\\u001b[2J' + "h" * 196 + '…"'),
        ):
            with (
                socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
                connection.makefile("rb") as answers,
            ):
                connection.sendall(b"CONNECT\naccept-version:1.2\nhost:" + host + b"\n\n\0")
                assert b"message:unknown host\n" in answers.read()
            gateway.stop()
            assert f" host={shown}\n" in gateway.log()
            gateway.start()


def test_the_demo_plays_at_the_gateway_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --gateway the demo takes the address of maxam-dev.toml, as `make run` does."""
    monkeypatch.chdir(tmp_path)
    assert _configured(Path(CONFIGURATION)) == "127.0.0.1:61614"
    text = (ROOT / CONFIGURATION).read_text(encoding="utf-8")
    Path(CONFIGURATION).write_text(text.replace("61614", "7").replace('"127.0.0.1"', '"::"'), encoding="utf-8")
    assert _configured(Path(CONFIGURATION)) == "[::1]:7"
