"""`maxam-bench run` refuses plans that it cannot measure; nothing is connected."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas, text_bodies
from maxam.bench.errors import LoadError
from maxam.bench.main import main
from maxam.bench.plan import Plan, SubscriberGroup, wanted_topics
from maxam.bench.target import Target
from maxam.records import Validation

TARGET = Target("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "give one way to connect"),
        (["--plain", "--ca", "x"], 2, "one way to connect"),
        (["--plain", "--broker", "nowhere"], 2, "must be HOST:PORT"),
        (["--ca", "/nowhere/ca.pem"], 3, "/nowhere/ca.pem"),
        (["--plain", "--topic-template", "X/fixed", "--glob", "X/*"], 1, "no placeholder"),
        (["--plain", "--topic-template", "X/a.{n}"], 2, "needs a --glob"),
        (["--plain", "--glob", "X/other.*"], 1, "matches none of the 1000 topics"),
        (["--plain", "--publishers", "9", "--topics", "8"], 1, "9 publishers share 8 topics"),
        (["--plain", "--subscribers", "1", "--glob", "X/*", "--glob", "X/**"], 1, "give as many as there are globs"),
        (["--plain", "--schemas", "/nowhere"], 1, "no schema folder"),
        (["--plain", "--schemas", str(SCHEMAS), "--type", "egm.Nonsense"], 1, "there is no type 'egm.Nonsense'"),
        (["--plain", "--schemas", str(SCHEMAS), "--type", "egm.EGMStatus_v1"], 1, "carries egm.EGMMeterReading_v1"),
        (["--plain", "--schemas", str(SCHEMAS), "--body-bytes", "5"], 1, "no body of 5 bytes"),
        (["--plain", "--send-header", "destination:x"], 2, "written by the load itself"),
        (["--plain", "--send-header", "nonsense"], 2, "is not NAME:VALUE"),
        (["--plain", "--chart", "x.pdf"], 1, "neither .svg nor .png"),
        (["--plain", "--broker", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], code: int, says: str) -> None:
    """The exit code distinguishes a wrong command line, a plan that cannot be run, and a broker that cannot be reached."""
    result = CliRunner().invoke(main, ["run", *arguments])
    assert (result.exit_code, says in result.output) == (code, True)


@pytest.mark.parametrize(
    ("command", "target"),
    [("suite", "bench"), ("compare", "compare"), ("grow", "grow"), ("pipeline", "pipeline-bench")],
)
def test_benchmarks_of_the_source_tree_are_referred_to(command: str, target: str) -> None:
    """A command of earlier releases is a usage error that shows a target of the Makefile, whatever its options."""
    result = CliRunner().invoke(main, [command, "--seconds", "5"])
    assert result.exit_code == 2
    assert f"make {target}`" in result.output
    assert f"\n{target}:" in (SCHEMAS.parent / "Makefile").read_text()


def test_a_chart_s_folder_must_be_there(tmp_path: Path) -> None:
    """The run does not begin when its chart could not be written after it."""
    result = CliRunner().invoke(main, ["run", "--plain", "--chart", str(tmp_path / "none" / "x.svg")])
    assert result.exit_code == 1
    assert "no folder" in result.output


@pytest.mark.parametrize("size", [None, 120])
def test_bodies_are_judged_true(size: int | None) -> None:
    """The registry's own rule accepts each body, they differ, and they have the length that was asked for."""
    registry = read_schemas(SCHEMAS)
    destination = "X/EGM.Q.000001.EGMMeterReading"
    bodies = avro_bodies(registry, METER_READING, destination, 50, size)
    rule = registry.rule_for(destination)
    assert rule is not None
    for body in bodies:
        judged = rule.validate(destination.encode(), (), body)
        assert isinstance(judged, Validation)
        assert judged.schema == METER_READING
    assert len(set(bodies)) == 50
    assert size is None or {len(body) for body in bodies} == {size}


def test_text_bodies_differ() -> None:
    """A thousand of 120 bytes are a thousand different ones; of no bytes they are empty."""
    assert {len(body) for body in text_bodies(1000, 120)} == {120}
    assert len(set(text_bodies(1000, 120))) == 1000
    assert set(text_bodies(3, 0)) == {b""}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(TARGET, (b"x",), seconds=0.5), "at least 1 s"),
        (Plan(TARGET, (b"x",), seconds=4000), "3600 in all at most"),
        (Plan(TARGET, (b"a\nbench:z",)), "the mark"),
        (Plan(TARGET, (b"x",), once=True, per_second=5.0), "neither a rate nor a warm-up"),
        (Plan(TARGET, (b"x",), (SubscriberGroup("s", 1, ("X/**",), durable=True, each_topic=True),)), "one of the two"),
        (Plan(TARGET, (b"x",), (SubscriberGroup("s", 1, ("X/**",), jitter_ms=1.0),)), "no link"),
    ],
)
def test_plans_that_measure_nothing_true_are_refused(plan: Plan, says: str) -> None:
    """The command line and the suite get the faults of a plan that they make."""
    with pytest.raises(LoadError, match=says):
        plan.check()


def test_wanted_topics_are_those_that_get_a_value() -> None:
    """A slow rate may not come round: only the topics that it reaches are waited for."""
    groups = (SubscriberGroup("s", 2, ("X/EGM.*", "X/EGM.Q.00000[0-4].*")),)
    plan = Plan(TARGET, (b"x",), groups, topics=100, per_second=5.0, warm_up_s=0.0, seconds=2.0)
    wanted = wanted_topics(plan)
    assert list(wanted["X/EGM.*"]) == list(range(10))
    assert list(wanted["X/EGM.Q.00000[0-4].*"]) == [0, 1, 2, 3, 4]
