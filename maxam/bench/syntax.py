"""How a broker writes destinations and wildcards: MaXaM, RabbitMQ's topic exchange, topics of ActiveMQ and Artemis."""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from maxam.bench.errors import LoadError
from maxam.config import Limits
from maxam.errors import GlobError
from maxam.globs import compile_glob


class Wildcards(enum.Enum):
    """Which characters of a subscription's destination stand for others."""

    MAXAM = "maxam"  # `*` any run but `/`, `**`, `?` and sets
    AMQP = "amqp"  # of words between dots: `*` one, `#` any number
    ACTIVEMQ = "activemq"  # of words between dots: `*` one, `>` the rest


_REST: Final = {Wildcards.AMQP: "#", Wildcards.ACTIVEMQ: ">"}


@dataclass(frozen=True, slots=True)
class DestinationSyntax:
    """The names of a load's topics on one broker, and what matches them there."""

    name: str
    topic_template: str  # with `{n}` or, for instance, `{n:06}` for the number of the topic
    glob: str  # matches every topic of the template
    wildcards: Wildcards
    prefix: str = ""  # what stands before a translated name

    def __post_init__(self) -> None:
        """Refuse a template that gives all topics the same name.

        Raises:
            LoadError: It does.
        """
        try:
            distinct = self.topic(1) != self.topic(2)
        except (LookupError, ValueError, AttributeError) as error:
            raise LoadError(
                f"the topic template {self.topic_template!r} cannot be filled in ({error}); write {{n}} or {{n:06}} where the number of the topic goes"
            ) from error
        if not distinct:
            raise LoadError(
                f"the topic template {self.topic_template!r} has no placeholder; write {{n}} or {{n:06}} where the number of the topic goes"
            )

    def with_names(self, topic_template: str | None, glob: str | None) -> "DestinationSyntax":
        """Return the same with another template or glob, both in this broker's own syntax; None keeps one."""
        return replace(self, topic_template=topic_template or self.topic_template, glob=glob or self.glob)

    def topic(self, number: int) -> str:
        """Return the destination of the topic with this number."""
        return self.topic_template.format(n=number)

    def matcher(self, glob: str) -> Callable[[str], bool]:
        """Return a function that matches destinations with `glob`, both in this broker's own syntax.

        Raises:
            LoadError: It is no glob there.
        """
        if self.wildcards is Wildcards.MAXAM:
            try:
                return compile_glob(glob, Limits()).matches
            except GlobError as error:
                raise LoadError(f"the glob {glob!r} is of no use: {error}") from error
        rest = _REST[self.wildcards]
        parts = {"*": r"\.[^.]+", rest: r"(?:\.[^.]+)*"}
        pattern = re.compile("".join([parts.get(word, r"\." + re.escape(word)) for word in _words(glob)]))
        return lambda destination: pattern.fullmatch("." + destination) is not None

    def translate(self, name: str) -> str:
        """Return a destination or glob of MaXaM as this broker writes it.

        A `*` must be a whole word there: as the last one it stands for all that follows, elsewhere for one word.

        Raises:
            LoadError: This broker has nothing that means the same.
        """
        if self.wildcards is Wildcards.MAXAM:
            return name
        words = _words(name.replace("/", ".", 1))
        for position, word in enumerate(words):
            if word == "*" and position == len(words) - 1:
                words[position] = _REST[self.wildcards]
            elif word != "*" and set(word) & set("*?[]#>"):
                raise LoadError(
                    f"{self.name} has no wildcard that means the {word!r} of {name!r}; use `*` for a whole word between dots"
                )
        return self.prefix + ".".join(words)


def _words(name: str) -> list[str]:
    return name.split(".")


def _dotted(name: str, wildcards: Wildcards) -> DestinationSyntax:
    return DestinationSyntax(
        name, "/topic/X.EGM.Q.{n:06}.EGMMeterReading", f"/topic/X.EGM.{_REST[wildcards]}", wildcards, "/topic/"
    )


MAXAM: Final = DestinationSyntax("maxam", "X/EGM.Q.{n:06}.EGMMeterReading", "X/EGM.*", Wildcards.MAXAM)
RABBITMQ: Final = _dotted("rabbitmq", Wildcards.AMQP)
ACTIVEMQ: Final = _dotted("activemq", Wildcards.ACTIVEMQ)
ARTEMIS: Final = _dotted("artemis", Wildcards.AMQP)
SYNTAXES: Final[Mapping[str, DestinationSyntax]] = {
    syntax.name: syntax for syntax in (MAXAM, RABBITMQ, ACTIVEMQ, ARTEMIS)
}
