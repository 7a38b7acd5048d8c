"""Do the minors of a type go together: the seven compatibility modes, by Avro's rules of schema resolution.

Spec: Avro 1.12 "Schema Resolution"
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from maxam.avro.resolution import (
    MISSING_BRANCH,
    MISSING_DEFAULT,
    MISSING_SYMBOLS,
    NAME_MISMATCH,
    NOT_TEXT,
    Incompatibility,
    Resolution,
)
from maxam.avro.rule import SchemaVersion
from maxam.avro.schema import Schema
from maxam.avro.witness import Witness, witness

COMPATIBILITY_DEFAULT: Final = "FULL_TRANSITIVE"
COMPATIBILITIES: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
BACKWARD: Final = "backward"
FORWARD: Final = "forward"


class MinorFinding(NamedTuple):
    """One reason why a minor version is not compatible with an older one.

    Attributes:
        minor: The newer version, which has to change.
        against: The older version.
        direction: `backward` if the newer one cannot read data of the older one, `forward` for the other way round.
        incompatibility: The part that cannot be read, and its place.
    """

    minor: SchemaVersion
    against: SchemaVersion
    direction: str
    incompatibility: Incompatibility

    @property
    def reader(self) -> SchemaVersion:
        """The one that cannot read."""
        return self.minor if self.direction == BACKWARD else self.against

    @property
    def writer(self) -> SchemaVersion:
        """The one that wrote."""
        return self.against if self.direction == BACKWARD else self.minor

    @property
    def remedy(self) -> str:
        """Advice on how to repair it."""
        kind = self.incompatibility.kind
        if self.direction == BACKWARD:
            specific = _REMEDIES_BACKWARD.get(kind, "keep the type as it was")
        else:
            specific = _REMEDIES_FORWARD.get(kind, "keep the type as it was")
        return f"{specific}, or make it a new major version, which is a type of its own"

    def witness(self) -> Witness | None:
        """Give a datum that cannot be read."""
        return witness(self.writer.schema, self.incompatibility)


_REMEDIES_BACKWARD: Final = {
    MISSING_DEFAULT: "give the field a default",
    MISSING_SYMBOLS: "keep the symbols, or give the enum a default",
    MISSING_BRANCH: "keep the branch",
    NAME_MISMATCH: "keep the name, or put the old one among the aliases",
}
_REMEDIES_FORWARD: Final = {
    MISSING_DEFAULT: "keep the field: older readers have no default for it",
    MISSING_SYMBOLS: "take the symbols away: older readers have no default for them",
    MISSING_BRANCH: "take the branch away: older readers do not know it",
    NAME_MISMATCH: "keep the name: older readers do not know the new one",
    NOT_TEXT: "keep it a string: older readers want text",
}


def check(reader: Schema, writer: Schema) -> list[Incompatibility]:
    """Name everything that one schema can write and another one could not read; nothing when they are compatible."""
    return Resolution(writer.type, reader.type).incompatibilities()


def check_minors(versions: Sequence[SchemaVersion], mode: str) -> list[MinorFinding]:
    """Compare the minors of a type as its mode asks.

    Args:
        versions: Oldest first.
        mode: One of COMPATIBILITIES.

    Returns:
        All findings, those of the oldest minor first, and of its nearest predecessor first.
    """
    found: list[MinorFinding] = []
    if mode == "NONE":
        return found
    transitive = mode.endswith("_TRANSITIVE")
    backward = not mode.startswith("FORWARD")
    forward = not mode.startswith("BACKWARD")
    for index, newer in enumerate(versions):
        for before in range(index - 1, -1 if transitive else max(index - 2, -1), -1):
            older = versions[before]
            if backward:
                found += [MinorFinding(newer, older, BACKWARD, i) for i in check(newer.schema, older.schema)]
            if forward:
                found += [MinorFinding(newer, older, FORWARD, i) for i in check(older.schema, newer.schema)]
    return found
