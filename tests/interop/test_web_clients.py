"""Clients that connect over WebSocket with a ticket: client x version x feature, against the real gateway."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from jwt.algorithms import ECAlgorithm

from tests.interop.test_third_party_clients import POLICY, SCHEMAS, WEB_CANNOT, WEB_FEATURES
from tests.interop.third_party import WEB_LIBRARIES, Cell, Library, counter, spring_class_path
from tests.support.gateway_process import GatewayProcess
from tests.web.node import require_package, run_node

pytestmark = pytest.mark.interop

WEB = """
[web]
listen = "127.0.0.1:0"
origins = ["https://interop.example"]  # the one that Tyrus is made to send
[web.jwt]
issuer = "https://login.example"
audience = "interop"
jwks = "jwks.json"
capability = "both"
"""
KEY = generate_private_key(SECP256R1())
CELLS = [
    (library.name, version, feature)
    for library in WEB_LIBRARIES.values()
    for version in library.versions
    for feature in WEB_FEATURES
    if (library.name, feature) not in WEB_CANNOT
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[GatewayProcess]:
    """Run one gateway for all cells; its principal `subscriber` may make tickets."""
    policy = POLICY.format(**json.loads((certificates / "fingerprints.json").read_text()))
    policy = policy.replace('receive = ["X/Interop.*"]', 'receive = ["X/Interop.*"]\nadmin = ["ticket"]')
    folder = tmp_path_factory.mktemp("gateway")
    public = json.loads(ECAlgorithm.to_jwk(KEY.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig"}]}))
    with GatewayProcess(folder, certificates, policy, SCHEMAS, WEB) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build @maxam/client."""
    require_package()
    folder = tmp_path_factory.mktemp("package")
    run_node("build.mjs", "--out", str(folder))
    return str(folder / "index.js")


@pytest.fixture(scope="module")
def spring(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the program that uses Spring."""
    return spring_class_path(tmp_path_factory.mktemp("spring"))


@pytest.mark.parametrize(("name", "version", "feature"), CELLS)
def test_feature(
    gateway: GatewayProcess,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    feature: str,
) -> None:
    """Each cell of the table of docs/integrate/interoperability.md for WebSocket that is not blank."""
    library = prepared(name, request, monkeypatch)
    WEB_FEATURES[feature](Cell.make(library, version, gateway, feature))


def prepared(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Return a library whose program can be started."""
    if name == "@maxam/client":
        monkeypatch.setenv("MAXAM_CLIENT", request.getfixturevalue("package"))
    if "Spring" in name:
        monkeypatch.setenv("CLASSPATH", request.getfixturevalue("spring"))
    WEB_LIBRARIES[name].require()
    return WEB_LIBRARIES[name]


def token(seconds: int) -> str:
    """Return a token of the issuer that is valid for some seconds, or no longer."""
    claims = {"iss": "https://login.example", "aud": "interop", "sub": "alice", "exp": int(time.time()) + seconds}
    return jwt.encode(claims, KEY, "ES256", {"kid": "one"})


@pytest.mark.parametrize("name", ["@stomp/stompjs", "@maxam/client", "maxam (Python)"])
def test_a_token_connects(
    gateway: GatewayProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A JSON Web Token in CONNECT is enough to connect, and to receive what the capability of the policy has."""
    cell = Cell.make(prepared(name, request, monkeypatch), "1.2", gateway, "token")
    with cell.client() as client, cell.peer() as peer:
        client.connect(login="jwt", passcode=token(600))
        peer.send(cell.topic("Counter"), counter(1))
        client.subscribe("s", cell.topic("*"), eager="true")
        assert client.message().body == counter(1)
        client.disconnect()


def test_a_client_gets_a_new_token_when_one_has_expired(
    gateway: GatewayProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """@maxam/client shows the code of the refusal, asks for another token and connects with that."""
    cell = Cell.make(prepared("@maxam/client", request, monkeypatch), "1.2", gateway, "token")
    with cell.client() as client:
        assert client.refusal(login="jwt", passcode=f"{token(-3600)},{token(600)}")["code"] == "token-expired"
        assert client.connected(refused=True)["session"]
        client.disconnect()
