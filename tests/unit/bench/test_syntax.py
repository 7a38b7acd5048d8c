"""How the load tool writes destinations and globs for each broker, and which topics a glob matches there."""

import pytest

from maxam.bench.errors import LoadError
from maxam.bench.syntax import ACTIVEMQ, MAXAM, RABBITMQ, SYNTAXES, DestinationSyntax


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
def test_a_syntax_s_own_glob_matches_its_topics(syntax: DestinationSyntax) -> None:
    """Each preset's glob matches each of its topics."""
    matches = syntax.matcher(syntax.glob)
    assert all(matches(syntax.topic(number)) for number in (0, 7, 1_000_000))


@pytest.mark.parametrize(
    ("syntax", "expected"),
    [
        (MAXAM, ("X/EGM.Q.000007.EGMMeterReading", "X/EGM.*", "X/EGM.Q.*.EGMMeterReading")),
        (RABBITMQ, ("/topic/X.EGM.Q.000007.EGMMeterReading", "/topic/X.EGM.#", "/topic/X.EGM.Q.*.EGMMeterReading")),
        (ACTIVEMQ, ("/topic/X.EGM.Q.000007.EGMMeterReading", "/topic/X.EGM.>", "/topic/X.EGM.Q.*.EGMMeterReading")),
    ],
    ids=["maxam", "rabbitmq", "activemq"],
)
def test_names_are_translated(syntax: DestinationSyntax, expected: tuple[str, str, str]) -> None:
    """A destination, a glob with `*` at the end and one with `*` for a word, from MaXaM's syntax."""
    written = ("X/EGM.Q.000007.EGMMeterReading", "X/EGM.*", "X/EGM.Q.*.EGMMeterReading")
    assert tuple(map(syntax.translate, written)) == expected
    assert syntax.topic(7) == expected[0]


@pytest.mark.parametrize("glob", ["X/EGM.Q.00000?.EGMMeterReading", "X/EGM*.Q", "X/EGM.[QX].1"])
def test_what_a_broker_cannot_say_is_refused(glob: str) -> None:
    """RabbitMQ has wildcards for whole words only."""
    with pytest.raises(LoadError, match="whole word"):
        RABBITMQ.translate(glob)


@pytest.mark.parametrize(
    ("syntax", "glob", "destination", "matches"),
    [
        (RABBITMQ, "/topic/a.*", "/topic/a.b", True),
        (RABBITMQ, "/topic/a.*", "/topic/a.b.c", False),
        (RABBITMQ, "/topic/a.#", "/topic/a", True),
        (RABBITMQ, "/topic/a.#.d", "/topic/a.b.c.d", True),
        (RABBITMQ, "/topic/a.>", "/topic/a.b", False),
        (ACTIVEMQ, "/topic/a.>", "/topic/a.b.c", True),
        (ACTIVEMQ, "/topic/a.#", "/topic/a.b", False),
        (MAXAM, "X/a.*", "X/a.b.c", True),
        (MAXAM, "X/a.?", "X/a.bc", False),
    ],
)
def test_globs_match_as_the_broker_has_it(
    syntax: DestinationSyntax, glob: str, destination: str, matches: bool
) -> None:
    """`*` is one word on RabbitMQ and ActiveMQ, and any run but `/` on MaXaM; `#` and `>` are the rest."""
    assert syntax.matcher(glob)(destination) is matches


@pytest.mark.parametrize("template", ["X/EGM.fixed", "X/EGM.{}", "X/EGM.{m}", "X/EGM.{n:q}", "X/EGM.{n"])
def test_a_template_that_names_all_topics_alike_is_refused(template: str) -> None:
    """The error shows where the number of the topic goes."""
    with pytest.raises(LoadError, match=r"\{n\}"):
        MAXAM.with_names(template, None)


def test_a_malformed_glob_is_refused() -> None:
    """MaXaM's own grammar decides, and its reason is shown."""
    with pytest.raises(LoadError, match="not closed"):
        MAXAM.matcher("X/EGM.[a")
