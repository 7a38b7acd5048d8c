"""Clients that connect over WebSocket with a ticket: client x version x feature, against the real gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.test_third_party_clients import POLICY, SCHEMAS, WEB_CANNOT, WEB_FEATURES
from tests.interop.third_party import WEB_LIBRARIES, Cell, spring_class_path
from tests.support.gateway_process import GatewayProcess
from tests.web.node import require_package, run_node

pytestmark = pytest.mark.interop

WEB = '[web]\nlisten = "127.0.0.1:0"\norigins = ["https://interop.example"]\n'  # the one that Tyrus is made to send
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
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), certificates, policy, SCHEMAS, WEB) as gateway:
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
    library = WEB_LIBRARIES[name]
    if name == "@maxam/client":
        monkeypatch.setenv("MAXAM_CLIENT", request.getfixturevalue("package"))
    if "Spring" in name:
        monkeypatch.setenv("CLASSPATH", request.getfixturevalue("spring"))
    library.require()
    WEB_FEATURES[feature](Cell.make(library, version, gateway, feature))
