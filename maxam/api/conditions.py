"""The condition `where` of a listing of topics: a selector, compiled once for all pages of a listing.

Theory of operation. A selector reads values. So it is evaluated for topics that the caller may receive, and no other topic is listed. A
listing without personal fields does not evaluate a selector that reads one. If it did, a caller could find out the field by asking.
"""

from collections import OrderedDict
from http import HTTPStatus
from typing import Final, final

import trio

from maxam.api.answers import ApiError
from maxam.avro.personal import reads_personal
from maxam.avro.registry import Registry
from maxam.config import Limits
from maxam.errors import SelectorError
from maxam.globs import Glob
from maxam.records import Change
from maxam.selectors.selector import Selector, compile_selector

COMPILED_MAX: Final = 16  # conditions that are kept for the next pages
_CHANGE_COST: Final = 64  # of an evaluation beside the bytes of the body


@final
class Condition:
    """A compiled condition.

    Attributes:
        personal: Fingerprints of the schemas in which the selector reads a field that is marked as personal.
    """

    __slots__ = ("_selector", "personal")

    def __init__(self, selector: Selector, registry: Registry) -> None:
        self._selector: Final = selector
        self.personal: Final = _personal_schemas(selector, registry)

    def matches(self, change: Change) -> bool:
        """Return True if the value of a change satisfies the condition."""
        return self._selector.evaluate(change)

    def is_personal(self, change: Change) -> bool:
        """Return True if the condition reads a personal field of a change."""
        return change.validation.schema_fingerprint in self.personal

    @staticmethod
    def cost(change: Change) -> int:
        """Return the cost of an evaluation, in bytes of a body: all of them may have to be stepped over."""
        return _CHANGE_COST + change.body_bytes


@final
class Conditions:
    """The conditions of the last listings."""

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self._compiled: Final[OrderedDict[tuple[str, str], Condition]] = OrderedDict()
        self._registry: Registry | None = None

    async def compiled(self, text: str, glob: Glob, registry: Registry, limiter: trio.CapacityLimiter) -> Condition:
        """Return the condition with a text for the topics of a glob. A thread compiles it, within a limit.

        Raises:
            ApiError: The text is no selector, or does not fit the schemas. The error has the position of the fault.
        """
        if registry is not self._registry:
            self._registry = registry
            self._compiled.clear()
        key = (text, glob.text)
        found = self._compiled.get(key)
        if found is None:
            try:
                found = await trio.to_thread.run_sync(self._compile, text, glob, registry, limiter=limiter)
            except SelectorError as error:
                raise ApiError(HTTPStatus.BAD_REQUEST, error.code, str(error), position=error.position) from error
            if registry is self._registry:
                self._compiled[key] = found
                if len(self._compiled) > COMPILED_MAX:
                    self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(key)
        return found

    def _compile(self, text: str, glob: Glob, registry: Registry) -> Condition:
        return Condition(compile_selector(text, registry, glob, self._limits), registry)


def _personal_schemas(selector: Selector, registry: Registry) -> frozenset[bytes]:
    """Return the fingerprints of the schemas in which a selector reads a personal field. Equal fingerprints have the marks of all."""
    found: set[bytes] = set()
    for name in registry.types():
        for version in registry.versions(name):
            if any(reads_personal(version.schema.type, path) for path in selector.paths):
                found |= {version.crc_64, version.sha_256}
    return frozenset(found)
