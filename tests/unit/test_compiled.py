"""The core is machine code or Python, all of it, and does and writes the same; `deploy/test-cores` runs tests over both."""

import gc
import os
import subprocess
import sys
import traceback
from collections import Counter, deque
from importlib import import_module
from pathlib import Path

import pytest

from maxam import __version__, compiled
from maxam.avro.schema import DEPTH_MAX, parse_schema
from maxam.avro.source import read_source
from maxam.broker.outbox import Outbox
from maxam.broker.session import Session, Subscription, Topic
from maxam.compiled import MODULES, child_environment, core
from maxam.config import Limits
from maxam.errors import ProtocolError, SchemaError
from maxam.stomp.frames import CLIENT_COMMANDS, Decoder
from tests.cores import ONLY, is_left_out
from tests.support.journal_process import read_journal, write_journal
from tests.support.sans_io import World

EXPECTED = os.environ.get("MAXAM_CORE", "interpreted")
FOLDER = Path(compiled.__file__).parents[1]
ROOT = Path(__file__).parents[2]
TREE = Path(os.environ.get("MAXAM_TREE", ROOT))  # the source: somewhere else where a wheel is tested


def python(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> list[str]:
    """Run Python to its end and return the lines that it printed."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_core_is_the_one_that_this_run_is_about() -> None:
    """Every module of the core is as MAXAM_CORE specifies. The source tree holds no shared object at all."""
    files = {str(import_module(name).__file__) for name in MODULES}
    assert {Path(file).suffix for file in files} == {".so" if EXPECTED == "compiled" else ".py"}
    assert core() == EXPECTED
    assert len(list((FOLDER / "maxam").rglob("*.so"))) == (len(MODULES) if EXPECTED == "compiled" else 0)
    assert list((TREE / "maxam").rglob("*.so")) == []


def test_the_other_core_is_tested_too() -> None:
    """Nothing keeps the compiled core from being tested beside this run."""
    reason = os.environ.get("MAXAM_CORE_UNTESTED")
    if reason:
        pytest.skip(f"the compiled core is NOT tested: {reason}")


def test_what_runs_over_one_core_only_exists() -> None:
    """An entry that fits no file is out of date."""
    assert [name for name in ONLY if not any(ROOT.glob(name.partition("::")[0].rstrip("/") + "*"))] == []


def test_no_test_runs_over_neither_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled run leaves tests with the marker `interpreted` out, so the other run must import their files."""
    monkeypatch.setenv("BOTH_CORES", "1")
    names = [
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py") if path.name != "test_compiled.py"
    ]
    marked = [name for name in names if "mark.interpreted" in (ROOT / name).read_text()]
    assert len(marked) >= 3
    assert [name for name in marked if is_left_out(name, "interpreted")] == []


def test_processes_that_tests_start_run_the_same_maxam(tmp_path: Path) -> None:
    """Whether started as a script or a module, and whatever folder they are started in."""
    script = tmp_path / "script"
    script.write_text("import maxam.compiled\nprint(maxam.compiled.__file__)\n", encoding="ascii")
    for cwd in (tmp_path, ROOT):
        assert python(str(script), cwd=cwd) == [compiled.__file__]
        assert python("-c", script.read_text(), cwd=cwd) == [compiled.__file__]


def test_processes_that_the_gateway_starts_run_the_same_maxam() -> None:
    """Even where the working folder is a clone with another maxam in it."""
    assert python("-m", "maxam.compiled", cwd=TREE, env=child_environment()) == [core()]


@pytest.mark.parametrize("command", ["maxam.main import gateway", "maxam.cli.main import main"])
def test_commands_say_which_core_they_run(command: str, tmp_path: Path) -> None:
    """Version, core and interpreter, on one line."""
    run = f"from {command} as run; run(['--version'])"
    python_version = ".".join(map(str, sys.version_info[:3]))
    assert python("-c", run, cwd=tmp_path) == [f"maxam {__version__} ({EXPECTED} core, CPython {python_version})"]


def test_half_a_compiled_core_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code and Python of different builds do not work together, and the error has the remedy."""
    monkeypatch.setattr(compiled, "_origin", lambda name: Path("a.py" if name == "maxam.globs" else "a.so"))
    with pytest.raises(RuntimeError, match=r"maxam.globs: .* install maxam again"):
        core()


def test_each_core_reads_the_journal_of_the_other_and_both_write_the_same(tmp_path: Path) -> None:
    """Interpreted from the source tree and this run's core: the same bytes, and the same records out of them."""
    other, own = tmp_path / "other", tmp_path / "own"
    env = {**os.environ, "PYTHONPATH": str(TREE)}
    assert python("-m", "tests.support.journal_process", "write", str(other), cwd=TREE, env=env) == ["interpreted"]
    write_journal(str(own))
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.avro")} for folder in (other, own)
    ]
    assert len(contents[0]) > 3
    assert contents[0] == contents[1]
    read = python("-m", "tests.support.journal_process", "read", str(own), cwd=TREE, env=env)
    assert read == ["interpreted", repr(read_journal(str(other)))]


@pytest.mark.slow
def test_sessions_that_ended_leave_nothing() -> None:
    """Connections, sessions and subscriptions refer to each other in circles, which are freed all the same."""
    world = World.make()
    publisher = world.client()

    def visit() -> None:
        client = world.client(client_id="visitor")
        client.subscribe(durable=True)
        client.subscribe("X/a.*", "t", "auto")
        publisher.send("X/a.1")
        world.settle()
        client.ack(client.read()[0])
        client.unsubscribe("t")
        client.lose()
        world.broker.upkeep.end_session(world.broker.sessions["anna", "visitor"])
        publisher.send("X/a.1")
        world.settle()
        publisher.read()
        world.journal.clear()  # its records know their subscriptions

    def count() -> Counter[type]:
        gc.collect()
        kinds = (Outbox, Session, Subscription)
        return Counter(type(item) for item in gc.get_objects() if isinstance(item, kinds))

    visit()
    before = count()
    for _ in range(20):
        visit()
    assert not count() - before  # objects of other tests may have gone meanwhile


@pytest.mark.slow
def test_sessions_that_ended_leave_nothing_with_topics_that_rest() -> None:
    """Topics that do not change again route to what is left of a bounded number of subscriptions, and to no session at all."""
    world = World.make()
    publisher = world.client()
    for number in range(200):
        publisher.send(f"X/a.{number}")
    world.settle()
    publisher.read()

    def visit(topic: str) -> None:
        client = world.client(ack_window="10000")
        for number in range(20):
            client.subscribe("X/a.*", f"s{number}", "client" if number % 2 else "auto")
        publisher.send(topic)
        world.settle()
        client.read()
        client.lose()
        world.settle()
        publisher.read()
        world.journal.clear()

    def count() -> Counter[type]:
        gc.collect()
        kinds = (Outbox, Session, Subscription)
        return Counter(type(item) for item in gc.get_objects() if isinstance(item, kinds))

    before = count()
    for number in range(300):
        visit(f"X/a.{number % 200}")
    left = count() - before
    gone = {route for topic in world.broker.store.topics.values() for route in topic.routes}
    assert left == Counter({Subscription: len(gone)})
    assert len(gone) < 300 * 20 / 4
    held = [referent for one in gone for referent in gc.get_referents(one)]
    assert not [referent for referent in held if isinstance(referent, Session | Outbox | Topic | deque)]


def test_a_traceback_names_the_line_of_the_source() -> None:
    """Also where machine code raises."""
    decoder = Decoder(Limits(), CLIENT_COMMANDS)
    decoder.receive_data(b"NONSENSE\n\n\0")
    with pytest.raises(ProtocolError) as caught:
        decoder.next_frame()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert Path(last.filename).parts[-3:] == ("maxam", "stomp", "head.py")
    assert "raise" in (FOLDER / "maxam/stomp/head.py").read_text().splitlines()[(last.lineno or 0) - 1]


def test_no_depth_of_a_default_exhausts_the_stack() -> None:
    """A default that is nested as deeply as JSON can be is refused; machine code has no recursion limit of its own."""
    default = "[]"
    for _ in range(DEPTH_MAX):
        default = f'[{{"c":{default}}}]'
    field = f'{{"name":"c","type":{{"type":"array","items":"R"}},"default":{default}}}'
    source = read_source("R", f'{{"type":"record","name":"R","fields":[{field}]}}'.encode())
    with pytest.raises(SchemaError, match="64 levels"):
        parse_schema(source)
