"""Trials of candidate versions on live traffic, which change nothing: what would become of it, whose and why.

A rule of the registry may have a candidate (`shadow`). Each SEND that the rule judges is *seen*. As many as `shadow_bytes_per_s_max`
allows are *tried*: the first of each second, and of each principal at most its share of them. A body of more than TRIED_BYTES_MAX is
never tried. A trial has one of these results:

* `fits`: the candidate alone would accept the SEND as it is;
* `older`: the candidate would not accept it, because the body is of an older version. All of it can be read as the candidate, by
  Avro's schema resolution. Such a SEND is accepted for as long as the older version stays, and its publisher has yet to move;
* `rejected`: the datum is no value of the candidate, or the SEND claims the candidate and is none;
* `newly_accepted`: the SEND is rejected today, and the candidate would accept it.

A SEND that is rejected today for another reason does not concern the candidate and is not counted as tried. Figures are of this run. A
reload keeps those of a rule whose destination, encoding and candidate stay the same. Belongs to the event loop.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final, final

from maxam.avro.registry import Registry
from maxam.avro.resolution import Resolution
from maxam.avro.rule import Rule, SchemaVersion
from maxam.metrics import Counters
from maxam.records import Identity, Rejection, Validation
from maxam.stomp.events import Send

PRINCIPALS_MAX: Final = 1000  # counted one by one in one rule; SENDs of others are counted as OTHERS'
REASONS_MAX: Final = 500  # the same, of pairs of principal and reason
OTHERS: Final = "(others)"
# A longer body is not tried. Reading an older version's as the candidate takes up to a microsecond a byte, four of them interpreted.
# No other connection is served meanwhile.
TRIED_BYTES_MAX: Final = 16_384
_TRIAL_BYTES: Final = 256  # what a trial counts for beside the body
_SECOND_US: Final = 1_000_000
# Results by which a SEND that claims the candidate is refused today.
_UNKNOWN: Final = frozenset(("unknown-fingerprint", "unknown-schema-id", "unknown-schema-version"))
_INDEX: Final = re.compile(r"\[[0-9]+\]")


@final
@dataclass(slots=True)
class Tally:
    """The results of the SENDs of one principal, or of all. `aside` counts checked ones that do not concern the candidate."""

    seen: int = 0
    tried: int = 0
    fits: int = 0
    older: int = 0
    rejected: int = 0
    newly_accepted: int = 0
    aside: int = 0

    def add(self, counts: Iterable[int]) -> None:
        """Add the figures of another tally, in the order of the fields."""
        for one, count in zip(fields(self), counts, strict=True):
            setattr(self, one.name, getattr(self, one.name) + count)

    @property
    def relevant(self) -> float:
        """Estimate from the trials how many of those seen have to do with the candidate."""
        return self.seen * self.tried / (self.tried + self.aside) if self.tried else 0.0


@final
@dataclass(slots=True)
class Reason:
    """Why SENDs of one principal would have been rejected, with the last of them as an example.

    `problem` leaves out everything that differs from one SEND to the next.
    """

    principal: str
    problem: str
    first_at_us: int
    at_us: int
    count: int = 0
    destination: bytes = b""
    reason: str = ""


@final
class Trials:
    """The figures of one rule's candidate.

    Attributes:
        rule: As it is in force.
        candidate: Version that is tried.
        total: Of all principals.
        principals: By name.
        reasons: By principal and problem.
    """

    def __init__(self, rule: Rule, candidate: SchemaVersion) -> None:
        self.rule = rule
        self.candidate: Final = candidate
        self.total: Final = Tally()
        self.principals: Final[dict[str, Tally]] = {}
        self.reasons: Final[dict[tuple[str, str], Reason]] = {}
        self._resolutions: dict[str, Resolution] = {}

    def tally(self, principal: str) -> Tally:
        """Return the figures of a principal, or those of OTHERS if there are too many principals."""
        tally = self.principals.get(principal)
        if tally is None:
            if len(self.principals) >= PRINCIPALS_MAX:
                principal = OTHERS
            tally = self.principals.setdefault(principal, Tally())
        return tally

    def blame(
        self,
        principal: str,
        problem: str,
        reason: str,
        destination: bytes,
        at_us: int,
        count: int = 1,
        first_at_us: int = 0,
    ) -> None:
        """Count SENDs that would have been rejected, and keep the last one as the example of its kind."""
        if principal not in self.principals:
            principal = OTHERS
        found = self.reasons.get((principal, problem))
        if found is None:
            if len(self.reasons) >= REASONS_MAX:
                principal, problem = OTHERS, "other reasons"
            first = Reason(principal, problem, first_at_us or at_us, at_us)
            found = self.reasons.setdefault((principal, problem), first)
        found.count += count
        found.at_us = at_us
        found.destination = destination
        found.reason = reason

    def resolution(self, writer: SchemaVersion) -> Resolution:
        """Return how the candidate reads what a version wrote."""
        found = self._resolutions.get(writer.text_sha256)
        if found is None:
            found = Resolution(writer.schema.type, self.candidate.schema.type)
            self._resolutions[writer.text_sha256] = found
        return found

    def rejected_share(self) -> float | None:
        """Return which share of all would have been rejected, estimated from the trials of each principal. None without any."""
        known = [tally for tally in self.principals.values() if tally.tried]
        relevant = sum([tally.relevant for tally in known])
        return sum([tally.relevant * tally.rejected / tally.tried for tally in known]) / relevant if relevant else None

    def go_on(self, rule: Rule) -> None:
        """Go on with the same rule of another registry, whose older versions may be others."""
        self.rule = rule
        self._resolutions = {}


@final
class Shadows:
    """Tries candidates within a budget, and counts."""

    def __init__(self, bytes_per_s_max: int, counters: Counters, registry: Callable[[], Registry]) -> None:
        """Begin with no figures.

        Args:
            bytes_per_s_max: Of bodies that are tried, each with 256 more than it has.
            counters: Where trials are counted.
            registry: Gives the one in force.
        """
        self._budget: Final = bytes_per_s_max
        self._counters: Final = counters
        self._registry: Final = registry
        self._bound: Registry | None = None
        self._trials: dict[Rule, Trials] = {}
        self._second = 0
        self._left = bytes_per_s_max
        self._share = bytes_per_s_max
        self._used: Final[dict[str, int]] = {}  # in this second, by principal

    def trials(self) -> list[Trials]:
        """Return the figures of each rule that has a candidate, in the order of the registry."""
        self._bind()
        return list(self._trials.values())

    def record(
        self, identity: Identity, event: Send, rule: Rule, verdict: Validation | Rejection, wall_us: int
    ) -> None:
        """Record a SEND that a rule with a candidate has judged. As `OnShadowed` of the broker."""
        if self._bound is not self._registry():
            self._bind()
        trials = self._trials[rule]
        principal = identity.principal
        tally = trials.tally(principal)
        tally.seen += 1
        trials.total.seen += 1
        size = len(event.body)
        if size <= TRIED_BYTES_MAX and self._affordable(principal, size + _TRIAL_BYTES, wall_us):
            self._try(trials, tally, principal, event, verdict, wall_us)

    def take(self) -> list[object]:
        """Return the figures as JSON, and begin again. A front reports them to its gateway."""
        self._bind()
        told: list[object] = []
        for rule, trials in self._trials.items():
            if trials.total.seen:
                tallies = {name: astuple(tally) for name, tally in trials.principals.items()}
                reasons = [
                    (*astuple(reason)[:5], reason.destination.decode(), reason.reason)
                    for reason in trials.reasons.values()
                ]
                told.append((_key(rule, trials.candidate), tallies, reasons))
                self._trials[rule] = Trials(rule, trials.candidate)
        return told

    def add(self, told: Sequence[Any]) -> None:
        """Add figures that a front has reported. Those of rules that are no longer in force are dropped."""
        if not told:
            return
        self._bind()
        found = {_key(trials.rule, trials.candidate): trials for trials in self._trials.values()}
        for key, tallies, reasons in told:
            trials = found.get(tuple(key))
            if trials is None:
                continue
            for principal, counts in tallies.items():
                trials.tally(principal).add(counts)
                trials.total.add(counts)
            for principal, problem, first_at_us, at_us, count, destination, reason in reasons:
                trials.blame(principal, problem, reason, destination.encode(), at_us, count, first_at_us)

    def _bind(self) -> None:
        """Begin figures for the rules of the registry in force, or go on with those there are."""
        registry = self._registry()
        before = {_key(trials.rule, trials.candidate): trials for trials in self._trials.values()}
        self._trials = {}
        for rule in registry.rules:
            if rule.candidate is not None:
                trials = before.pop(_key(rule, rule.candidate), None)
                if trials is None:
                    trials = Trials(rule, rule.candidate)
                else:
                    trials.go_on(rule)
                self._trials[rule] = trials
        self._bound = registry

    def _affordable(self, principal: str, cost: int, wall_us: int) -> bool:
        """Return True if there is budget for a trial, and take it."""
        second = wall_us // _SECOND_US
        if second != self._second:
            elapsed = max(1, second - self._second)  # the clock may be set back
            self._second = second
            self._left = min(self._budget, self._left + elapsed * self._budget)
            self._share = self._budget // max(1, len(self._used))
            self._used.clear()
        used = self._used.get(principal, 0)
        if self._left <= 0 or (used and used + cost > self._share):
            return False
        if used or len(self._used) < PRINCIPALS_MAX:
            self._used[principal] = used + cost
        self._left -= cost  # below 0 after a large body
        return True

    def _try(
        self,
        trials: Trials,
        tally: Tally,
        principal: str,
        event: Send,
        verdict: Validation | Rejection,
        wall_us: int,
    ) -> None:
        shadow = trials.rule.shadow
        if shadow is None:
            return
        alone = shadow.validate(event.destination, event.headers, event.body)
        total = trials.total
        if isinstance(alone, Validation):
            if isinstance(verdict, Validation):
                tally.fits += 1
                total.fits += 1
            else:
                tally.newly_accepted += 1
                total.newly_accepted += 1
        elif isinstance(verdict, Rejection):
            if verdict.result not in _UNKNOWN or alone.result != "schema-mismatch":
                tally.aside += 1
                total.aside += 1
                return
            problem = f"{_INDEX.sub('[]', alone.path) or 'value'}: expected {alone.expected}"
            self._blame(trials, tally, principal, problem, alone.reason, event.destination, wall_us)
        else:
            problem = self._unreadable(trials, event.body, verdict)
            if problem:
                reason = f"{verdict.schema} {verdict.schema_version} as {trials.candidate.minor}: {problem}"
                self._blame(trials, tally, principal, problem, reason, event.destination, wall_us)
            else:
                tally.older += 1
                total.older += 1
        tally.tried += 1
        total.tried += 1
        self._counters.shadow_trials += 1

    def _blame(
        self,
        trials: Trials,
        tally: Tally,
        principal: str,
        problem: str,
        reason: str,
        destination: bytes,
        wall_us: int,
    ) -> None:
        tally.rejected += 1
        trials.total.rejected += 1
        self._counters.shadow_rejections += 1
        trials.blame(principal, problem, reason, destination, wall_us)

    def _unreadable(self, trials: Trials, body: bytes, verdict: Validation) -> str:
        """Return why a body of an older version cannot be read as the candidate. Empty when it can."""
        writer = self._registry().schema(verdict.schema, verdict.schema_version)
        if writer is None:
            return ""  # a tombstone alone
        resolution = trials.resolution(writer)
        if resolution.certain:
            return ""
        start = verdict.value_offset
        datum = body[start:] if verdict.value_length < 0 else body[start : start + verdict.value_length]
        failures = resolution.failures(datum)
        if not failures:
            return ""
        first = failures[0]
        return f"{first.path or 'value'}: {first.problem}"


def _key(rule: Rule, candidate: SchemaVersion) -> tuple[str, str, str, str]:
    return rule.glob.text, rule.encoding, candidate.minor, candidate.text_sha256
