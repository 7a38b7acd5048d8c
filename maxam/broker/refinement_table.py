"""The refinements in use: their selectors, one for each text, and how many each principal has."""

from typing import Final, final

from maxam.avro.json.selection import Fields
from maxam.avro.registry import Registry
from maxam.broker.json_values import JsonValues, JsonView
from maxam.broker.policy import Rights
from maxam.broker.refinement import Refinement
from maxam.broker.unknown import UnknownTopics
from maxam.config import Limits
from maxam.errors import ProtocolError, SelectorError
from maxam.glob_sets import GlobSet
from maxam.globs import Glob
from maxam.selectors.selected_fields import checked_fields
from maxam.selectors.selector import Selector, SelectorTable
from maxam.stomp.events import Subscribe


@final
class RefinementTable:
    """The refinements of all subscriptions of one broker.

    Attributes:
        markers: How many have markers.
        selective: How many have a selector.
        version: Counts the changes of `selective`.
        json_values: Values as JSON, for the subscriptions that asked for it.
        unknown: Topics that are stale because of a link.
    """

    __slots__ = (
        "_limit",
        "_limits",
        "_registry",
        "_selectors",
        "_steps",
        "_steps_limit",
        "_texts",
        "json_values",
        "markers",
        "selective",
        "unknown",
        "version",
    )

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self.markers = 0
        self.selective = 0
        self.version = 0
        self.unknown: Final = UnknownTopics()
        self._selectors: Final = SelectorTable(registry, limits)
        self.json_values: Final = JsonValues(registry, limits.json_bytes_max)
        self._registry = registry
        self._limits: Final = limits
        self._limit: Final = limits.selectors_per_principal_max
        self._steps_limit: Final = limits.selector_steps_per_principal_max
        self._steps: Final[dict[str, int]] = {}  # by principal: those of its different selectors
        self._texts: Final[dict[str, dict[str, int]]] = {}  # by principal: subscriptions with each text

    def selector(self, principal: str, event: Subscribe, glob: Glob, received: GlobSet) -> Selector | None:
        """Return the compiled selector of a SUBSCRIBE, None for none. It is in use until `remove`.

        Args:
            principal: Of the session.
            event: The SUBSCRIBE.
            glob: Its destination.
            received: Globs of topics that the principal may receive.

        Raises:
            ProtocolError: The selector is wrong, or the principal has too many.
        """
        text = None if event.options is None else event.options.selector
        if text is None:
            return None
        texts = self._texts.get(principal, {})
        if text not in texts and len(texts) >= self._limit:
            raise ProtocolError(
                "too many selectors",
                f"the principal {principal} has {len(texts)} different selectors in use (limit selectors_per_principal_max); "
                "UNSUBSCRIBE one, or use one of them",
                event.receipt,
            )
        try:
            selector = self._selectors.take(text, glob, received)
        except SelectorError as error:
            raise ProtocolError("bad selector", str(error), event.receipt) from error
        if text not in texts:
            steps = self._steps.get(principal, 0)
            if steps + selector.steps > self._steps_limit:
                self._selectors.release(selector)
                raise ProtocolError(
                    "selectors too expensive",
                    f"the selector takes up to {selector.steps} steps for each value. The other {len(texts)} selectors of the "
                    f"principal {principal} take up to {steps}, and the limit selector_steps_per_principal_max is "
                    f"{self._steps_limit}. UNSUBSCRIBE one, or use fewer and shorter LIKE patterns with text between two %",
                    event.receipt,
                )
            self._steps[principal] = steps + selector.steps
        texts[text] = texts.get(text, 0) + 1
        self._texts[principal] = texts
        return selector

    def json_view(self, event: Subscribe, glob: Glob, rights: Rights) -> JsonView | None:
        """Return the part of values that a SUBSCRIBE asks for as JSON, None if it wants bodies as they were sent.

        Args:
            event: The SUBSCRIBE.
            glob: Its destination.
            rights: Of the principal.

        Raises:
            ProtocolError: The selected fields are malformed, or no schema has one of them.
        """
        if event.options is None or not event.options.json:
            return None
        fields: Fields = ()
        if event.options.fields is not None:
            try:
                fields = checked_fields(event.options.fields, self._registry, glob, rights.received, self._limits)
            except ValueError as error:
                raise ProtocolError("bad fields", f"the fields of SUBSCRIBE: {error}", event.receipt) from error
        return JsonView(self.json_values, fields, rights.pii)

    def add(self, refinement: Refinement) -> None:
        """Count a refinement, whose selector was taken before."""
        self.markers += refinement.markers
        if refinement.selector is not None:
            self.selective += 1
            self.version += 1

    def remove(self, principal: str, refinement: Refinement) -> None:
        """Let go of a refinement and its selector."""
        self.markers -= refinement.markers
        selector = refinement.selector
        if selector is not None:
            self.selective -= 1
            self.version += 1
            if self._selectors.release(selector):
                refinement.end()
            texts = self._texts[principal]
            texts[selector.text] -= 1
            if not texts[selector.text]:
                del texts[selector.text]
                self._steps[principal] -= selector.steps
            if not texts:
                del self._texts[principal]
                del self._steps[principal]

    def replace_registry(self, registry: Registry) -> None:
        """Read the fields of selectors by the schemas of another registry."""
        self._registry = registry
        self._selectors.reload(registry)
        self.json_values.replace_registry(registry)
