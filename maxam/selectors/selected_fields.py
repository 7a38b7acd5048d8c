"""Check the fields that a SUBSCRIBE selects against the schemas of the destinations that its glob can reach."""

from difflib import get_close_matches
from typing import Final

from maxam.avro.json.selection import Fields, fields_at, names_at, read_fields
from maxam.avro.registry import Registry
from maxam.avro.schema import Type
from maxam.config import Limits
from maxam.glob_sets import GlobSet
from maxam.globs import Glob
from maxam.selectors.checking import reachable_versions

_SHOWN_MAX: Final = 8  # names of fields in a hint
_NAMES_MAX: Final = 1000  # that are compared with a wrong one: 5 ms


def checked_fields(text: str, registry: Registry, glob: Glob, received: GlobSet, limits: Limits) -> Fields:
    """Return the paths of selected fields.

    Args:
        text: Such as `a,b.c`.
        registry: Has the schemas.
        glob: Of the subscription.
        received: Globs of topics that its principal may receive. Errors disclose no schema of other topics. If it contains nothing
            that the glob matches, only the form of the text is checked.
        limits: At most `selector_terms_max` fields may be selected.

    Raises:
        ValueError: The text is malformed, or has a field that no version of a reachable schema has.
    """
    fields = read_fields(text)
    if len(fields) > limits.selector_terms_max:
        raise ValueError(
            f"{len(fields)} fields are selected; expected at most {limits.selector_terms_max}, the limit selector_terms_max"
        )
    if not received.overlaps(glob):
        return fields
    versions = reachable_versions(registry, glob, received)
    if not versions:
        raise ValueError(
            "no rule checks the bodies of these destinations, so they have no fields; leave the header out"
        )
    types = [version.schema.type for version in versions]
    for path in fields:
        if not fields_at(types, path):
            names = sorted({version.type_name for version in versions})
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"no version of {names[0]}{more} has the field {'.'.join(path)}. {_hint(types, path)}")
    return fields


def _hint(types: list[Type], path: tuple[str, ...]) -> str:
    known = next(length for length in range(len(path) - 1, -1, -1) if length == 0 or fields_at(types, path[:length]))
    names = names_at(types, path[:known])
    if not names:
        return f"{'.'.join(path[:known]) or 'The value'} has no fields"
    similar = get_close_matches(path[known], names[:_NAMES_MAX], 3)
    if similar:
        return f"Similar fields: {', '.join(similar)}"
    return f"Fields there: {', '.join(names[:_SHOWN_MAX])}{' and others' if len(names) > _SHOWN_MAX else ''}"
