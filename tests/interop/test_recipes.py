"""The programs of docs/integrate/recipes keep the promises of their page, against the real gateway over mutual TLS."""

import datetime as dt
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from maxam.pki.certificates import issue_development_certificates
from tests.interop.recipes import RECIPES, RecipeProcess
from tests.interop.test_third_party_clients import POLICY, SCHEMAS
from tests.interop.third_party import counter
from tests.support.cutting_relay import CuttingRelay
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.interop

TAKEOVER = "session taken over by a newer connection"


def started(folder: Path, certificates: Path) -> GatewayProcess:
    """Return a gateway that runs while the context lasts."""
    policy = POLICY.format(**json.loads((certificates / "fingerprints.json").read_text()))
    return GatewayProcess(folder, certificates, policy, SCHEMAS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[GatewayProcess]:
    """Run one gateway for all recipes."""
    with started(tmp_path_factory.mktemp("gateway"), certificates) as gateway:
        yield gateway


@pytest.fixture
def empty_gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway without the durable subscriptions that recipes have left at the other one."""
    (tmp_path / "gateway").mkdir()
    with started(tmp_path / "gateway", certificates) as gateway:
        yield gateway


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each recipe whose library is installed."""
    recipe: str = request.param
    require(recipe)
    return recipe


def installed(name: str) -> bool:
    """Return True if a recipe can be started."""
    probe = RECIPES[name].probe
    if shutil.which(probe[0]) is None:
        return False
    return subprocess.run(probe, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0


def require(name: str) -> None:
    """Skip the test where the library of a recipe is missing; fail where that may not be (CI=true)."""
    if not installed(name):
        text = f"the library of {name} is not installed (make test-deps)"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)


def port_of(name: str, gateway: GatewayProcess) -> int:
    """Return the port that a recipe connects to."""
    port = gateway.admin_port if RECIPES[name].admin else gateway.port
    assert port is not None
    return port


def start(
    name: str, port: int, certificates: Path, ca: Path | None = None, position: Path | None = None
) -> RecipeProcess:
    """Start a recipe with the certificate `subscriber`. With a file for its `position` it continues by `since`."""
    files = (ca or certificates / "ca.pem", certificates / "subscriber.pem", certificates / "subscriber.key")
    rest = (glob(name),) if position is None else (glob(since(name)), str(position))
    return RecipeProcess((*RECIPES[name].command, "127.0.0.1", str(port), *map(str, files), *rest))


def since(name: str) -> str:
    """Return the place of the topics of a recipe that continues by `since`."""
    return f"{name}-since"


def glob(name: str) -> str:
    """Return the topics of a recipe."""
    return f"X/Interop.{name}.*"


def topic(name: str, end: str) -> str:
    """Return a topic of a recipe."""
    return f"X/Interop.{name}.{end}.Counter"


def text(count: int) -> str:
    """Return a Counter as JSON."""
    return json.dumps({"count": count, "label": "abc"}, separators=(",", ":"))


def test_publishes_and_resumes(name: str, gateway: GatewayProcess, certificates: Path) -> None:
    """It reports accepted and rejected SENDs. After a cut it gets the newest value of each topic that changed, and no other."""
    with (
        CuttingRelay(port_of(name, gateway)) as line,
        start(name, line.port, certificates) as recipe,
        RawClient(gateway, "publisher") as peer,
    ):
        recipe.expect("connected")
        recipe.publish(topic(name, "own"), text(7))
        assert json.loads(recipe.expect("value", topic(name, "own"))) == json.loads(text(7))
        recipe.publish("X/Foreign.Counter", text(1))
        recipe.expect("rejected-unauthorised", "X/Foreign.Counter")
        assert f"accepted {topic(name, 'own')}" in [one.strip() for one in recipe.lines]
        if RECIPES[name].rejections_end:
            recipe.expect("connected")
        for end in "AB":
            peer.send(topic(name, end), counter(1))
            recipe.expect("value", topic(name, end))
        line.mute()
        line.cut()
        recipe.expect("lost")
        peer.send(topic(name, "A"), counter(2))
        peer.send(topic(name, "A"), counter(3))
        peer.send(topic(name, "C"), counter(4))
        line.unmute()
        recipe.expect("connected")
        first = recipe.seen
        peer.send(topic(name, "D"), counter(5))
        recipe.expect("value", topic(name, "D"))
        came = {one.split(" ")[1]: json.loads(one.split(" ", 2)[2]) for one in recipe.lines[first:] if "value" in one}
        came.pop(topic(name, "B"), None)  # its ACK may have been lost
        assert came == {topic(name, end): json.loads(text(count)) for end, count in (("A", 3), ("C", 4), ("D", 5))}
        peer.send(topic(name, "A"), b"")
        recipe.expect("deleted", topic(name, "A"))
        recipe.close_input()
        assert recipe.wait() == 0, recipe.lines


@pytest.mark.parametrize("name", [name for name, one in RECIPES.items() if one.since])
def test_continues_by_since(name: str, empty_gateway: GatewayProcess, certificates: Path, tmp_path: Path) -> None:
    """With a file for its position it is killed and lacks nothing, keeps a stale topic, and drops what a restored gateway lacks."""
    require(name)
    gateway = empty_gateway
    file = tmp_path / "position"
    place = since(name)
    own, watched = topic(place, "A"), f"X/Interop.{place}.A.Watched"
    with RawClient(gateway, "publisher") as peer:
        for end in "AB":
            peer.send(topic(place, end), counter(1))
        with start(name, port_of(name, gateway), certificates, position=file) as recipe:
            recipe.expect("position")
            assert changes(recipe) == {f"value {topic(place, end)}" for end in "AB"}
            peer.send(watched, b"w")
            recipe.expect("value", watched)
            assert recipe.expect("stale", watched) == "overdue"
            peer.send(own, counter(2))
            recipe.expect("value", own)
            recipe.expect("position")
            assert not any(one.startswith(("lost", "deleted")) for one in recipe.lines), recipe.lines
        peer.send(own, counter(3))
        peer.send(topic(place, "B"), b"")
        peer.send(topic(place, "C"), counter(4))
        with start(name, port_of(name, gateway), certificates, position=file) as recipe:
            recipe.expect("position")
            assert changes(recipe) == {f"value {own}", f"deleted {topic(place, 'B')}", f"value {topic(place, 'C')}"}
        position, *topics = file.read_text().splitlines()
        assert topics == sorted([own, watched, topic(place, "C")])
        # As after a restore: the position is of another journal, and a topic is gone that the program had.
        file.write_text("\n".join(["0123456789abcdef" + position[16:], *topics, topic(place, "Gone")]))
        with start(name, port_of(name, gateway), certificates, position=file) as recipe:
            recipe.expect("position")
            came = {f"value {one}" for one in topics}
            assert changes(recipe) == {*came, f"deleted {topic(place, 'Gone')}"}
            assert file.read_text().splitlines()[1:] == topics
            recipe.close_input()
            assert recipe.wait() == 0, recipe.lines


def changes(recipe: RecipeProcess) -> set[str]:
    """Return kind and topic of all changes that a recipe has printed."""
    return {" ".join(one.split(" ")[:2]) for one in recipe.lines if one.startswith(("value", "deleted"))}


def test_leaves_its_session_to_another_program(name: str, gateway: GatewayProcess, certificates: Path) -> None:
    """Taken over, it ends with an exit code, and does not take its session back."""
    with start(name, port_of(name, gateway), certificates) as recipe:
        recipe.expect("connected")
        with RawClient(gateway, "subscriber", client_id=f"recipe-{name}"):
            assert recipe.expect("closed") == TAKEOVER
            assert recipe.wait() == 1


def test_refuses_a_gateway_of_another_authority(
    name: str, gateway: GatewayProcess, certificates: Path, tmp_path: Path
) -> None:
    """It sends nothing to a gateway whose certificate is not of its authority."""
    issue_development_certificates(tmp_path, dt.datetime.now(dt.UTC))
    with start(name, port_of(name, gateway), certificates, tmp_path / "ca.pem") as recipe:
        recipe.expect("lost")
        recipe.expect("lost")
        assert "connected" not in recipe.lines


@pytest.mark.slow
def test_keeps_heart_beats(gateway: GatewayProcess, certificates: Path) -> None:
    """Silent for longer than a client that breaks its word may be, each recipe stays. It leaves a silent gateway by itself."""
    with ExitStack() as stack:
        recipes = []
        lines = []
        for name in RECIPES:
            require(name)
            lines.append(stack.enter_context(CuttingRelay(port_of(name, gateway))))
            recipes.append(stack.enter_context(start(name, lines[-1].port, certificates)))
        for recipe in recipes:
            recipe.expect("connected")
        silent = stack.enter_context(RawClient(gateway, "publisher", heart_beat="10000,10000"))
        assert silent.read().command == "ERROR"
        assert all(one == "connected" for recipe in recipes for one in recipe.lines)
        for line in lines:
            line.mute()
        for recipe in recipes:
            recipe.expect("lost")
        for line in lines:
            line.unmute()
        for recipe in recipes:
            recipe.expect("connected")
