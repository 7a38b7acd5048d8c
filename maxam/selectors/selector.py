"""Selectors: compiled once for each text, evaluated once for each change, shared by all subscriptions with that text."""

from typing import Final, final

from maxam.avro.registry import Registry
from maxam.config import Limits
from maxam.content import unpack_headers
from maxam.glob_sets import GlobSet
from maxam.globs import Glob
from maxam.records import Change
from maxam.selectors.checking import check
from maxam.selectors.expressions import PRESENT, TEXT_BYTES_MAX, Operands, Row, build
from maxam.selectors.fields import Plan
from maxam.selectors.parser import parse_selector
from maxam.selectors.syntax import Path

REMEMBERED_MAX: Final = 256  # results of a selector: some 30 KiB


@final
class Selector:
    """A condition on the values of topics.

    It depends on its text alone, so that subscriptions with different globs share it. The schema of a value is the one that
    judged it, found by its fingerprint. A plan for a schema is made when the first value of that schema is evaluated.

    Attributes:
        text: As in the header.
        holders: Number of clients that may hold a value of a destination because of this selector. It may be too large, never too small.
        headers_only: The selector uses no field, so it evaluates values of every encoding.
        steps: How long an evaluation takes at most, in steps of some 50 ns of machine code.
    """

    __slots__ = (
        "_fields",
        "_fitting",
        "_headers",
        "_last_matched",
        "_last_revision",
        "_newer",
        "_older",
        "_places",
        "_plans",
        "_registry",
        "_root",
        "_syntax",
        "headers_only",
        "holders",
        "steps",
        "text",
    )

    def __init__(self, text: str, registry: Registry, limits: Limits) -> None:
        """Parse and compile a selector. Call `check` before a subscription uses it.

        Raises:
            SelectorError: The text is not a selector, or exceeds a limit.
        """
        operands = Operands()
        self.text: Final = text
        self.holders: Final[dict[bytes, int]] = {}
        self._syntax: Final = parse_selector(text, limits)
        self._root: Final = build(self._syntax, operands)
        self._fields: Final = operands.fields
        self._headers: Final = operands.headers
        self._places: Final[int] = operands.count
        self.headers_only: Final = not operands.fields
        self.steps: Final[int] = operands.steps
        self._registry = registry
        self._plans: Final[dict[bytes, Plan | None]] = {}
        self._fitting: Final[set[tuple[str, frozenset[str] | None]]] = (
            set()
        )  # globs that were checked, with what is received
        self._newer: dict[int, bool] = {}  # results by revision, in two generations
        self._older: dict[int, bool] = {}
        self._last_revision = 0
        self._last_matched = False

    def check(self, glob: Glob, received: GlobSet | None = None) -> None:
        """Check fields and types against the schemas that the glob can reach.

        Args:
            glob: Of the subscription.
            received: Globs of topics that its principal may receive. Schemas of other topics do not count. None stands for all destinations.

        Raises:
            SelectorError: A field exists in none of them, or unlike types are compared.
        """
        key = (glob.text, None if received is None else received.texts)
        if key in self._fitting:
            return
        check(self._syntax, self._registry, glob, received)
        if len(self._fitting) >= REMEMBERED_MAX:
            self._fitting.clear()
        self._fitting.add(key)

    @property
    def paths(self) -> list[Path]:
        """Paths of the fields that the selector reads."""
        return list(self._fields)

    def reload(self, registry: Registry) -> None:
        """Use another registry for the values from now on. This never fails.

        A field that a schema no longer has is NULL, and so is a comparison of types that have become unlike. A value whose schema
        the registry no longer has does not match.
        """
        self._registry = registry
        self._plans.clear()
        self._fitting.clear()
        self._newer = {}
        self._older = {}
        self._last_revision = 0

    def matches(self, change: Change) -> bool:
        """Return True if the condition is true for the value of a change. Unknown is no match, and neither is a delete."""
        revision = change.revision
        if revision == self._last_revision:
            return self._last_matched
        matched = self._newer.get(revision)
        if matched is None:
            matched = self._older.get(revision)
            if matched is None:
                matched = self.evaluate(change)
            if 2 * len(self._newer) >= REMEMBERED_MAX:
                self._older = self._newer
                self._newer = {}
            self._newer[revision] = matched
        self._last_revision = revision
        self._last_matched = matched
        return matched

    def hold(self, destination: bytes) -> None:
        """Count a client that may hold a value of a destination from now on."""
        self.holders[destination] = self.holders.get(destination, 0) + 1

    def let_go(self, destination: bytes) -> None:
        """Count a client that no longer holds a value of a destination."""
        left = self.holders[destination] - 1
        if left:
            self.holders[destination] = left
        else:
            del self.holders[destination]

    def concerns(self, change: Change) -> bool:
        """Return False if a change concerns no client with this selector: it does not match, and none holds an older value."""
        return self.matches(change) or change.destination in self.holders

    def evaluate(self, change: Change) -> bool:
        """Return what `matches` returns, without the remembered results."""
        if change.deleted:
            return False
        row: Row = [None] * self._places
        if not self.headers_only:
            validation = change.validation
            fingerprint = validation.schema_fingerprint
            plan = self._plans.get(fingerprint)
            if plan is None and (not fingerprint or (plan := self._plan(fingerprint)) is None):
                return False
            start = change.body_at + validation.value_offset
            length = validation.value_length
            try:
                plan.read(change.content, start, len(change.content) if length < 0 else start + length, row)
            except IndexError:  # it takes too long, or the journal holds other bytes than those that were judged
                return False
        if self._headers and change.content[0]:
            headers, _ = unpack_headers(change.content)
            for name, value in reversed(headers):  # of a header that is there twice, the first counts
                place = self._headers.get(name)
                if place is not None:
                    row[place] = value if len(value) <= TEXT_BYTES_MAX else PRESENT
        return self._root.value(row) is True

    def _plan(self, fingerprint: bytes) -> Plan | None:
        """Return the plan for a schema. Versions with one fingerprint have the same bytes."""
        if fingerprint in self._plans:
            return None
        versions = self._registry.by_fingerprint(fingerprint)
        plan = Plan(versions[0].schema.type, self._fields) if versions else None
        if plan is not None or len(self._plans) < REMEMBERED_MAX:
            self._plans[fingerprint] = plan
        return plan


@final
class SelectorTable:
    """The selectors in use, one for each text."""

    __slots__ = ("_limits", "_registry", "_selectors", "_uses")

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self._registry = registry
        self._limits: Final = limits
        self._selectors: Final[dict[str, Selector]] = {}
        self._uses: Final[dict[str, int]] = {}

    @property
    def count(self) -> int:
        """The number of selectors in use."""
        return len(self._selectors)

    def take(self, text: str, glob: Glob, received: GlobSet | None = None) -> Selector:
        """Return the selector of a text for a subscription, and count its use.

        Args:
            text: Of the selector.
            glob: Of the subscription.
            received: As of `Selector.check`. If it contains nothing that the glob matches, no field is checked.

        Raises:
            SelectorError: The text is not a selector, or does not fit the schemas that the glob can reach.
        """
        selector = self._selectors.get(text)
        if selector is None:
            selector = Selector(text, self._registry, self._limits)
        if received is None or received.overlaps(glob):
            selector.check(glob, received)
        self._selectors[text] = selector
        self._uses[text] = self._uses.get(text, 0) + 1
        return selector

    def release(self, selector: Selector) -> bool:
        """Count the end of a use. A selector without uses is forgotten. Return True if it is still in use."""
        left = self._uses[selector.text] - 1
        if left:
            self._uses[selector.text] = left
            return True
        del self._uses[selector.text]
        del self._selectors[selector.text]
        return False

    def reload(self, registry: Registry) -> None:
        """Use another registry in all selectors."""
        self._registry = registry
        for selector in self._selectors.values():
            selector.reload(registry)


def compile_selector(text: str, registry: Registry, glob: Glob, limits: Limits) -> Selector:
    """Compile a selector and check it against the schemas that a glob can reach.

    Raises:
        SelectorError: The text is not a selector, exceeds a limit, or does not fit the schemas.
    """
    selector = Selector(text, registry, limits)
    selector.check(glob)
    return selector
