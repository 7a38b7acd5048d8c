"""The results of a run: figures with their units, and problems that make them untrue."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from maxam.bench.histogram import Histogram, merged
from maxam.bench.plan import Plan, SubscriberGroup
from maxam.bench.publishing import Published
from maxam.bench.subscribing import Received
from maxam.bench.worker import Times, Use

SATURATED: Final = 0.85  # share of its core that a load process wants, from which it may be what limits
_REACHED: Final = 0.98  # share of the rate that was asked for
QUANTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
UNSETTLED_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The results of the processes of one group of subscribers."""

    group: SubscriberGroup
    received: Sequence[Received]


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The observations of one group of subscribers."""

    name: str
    connections: int
    messages: int
    messages_per_s: float
    values_possible: int  # SENDs on topics that each wants, summed over the subscribers
    latency: Histogram
    staleness: Histogram
    staleness_with_drain: Histogram  # also of values taken up after the publishers stopped
    staleness_by_second: list[Histogram]
    messages_by_second: list[int]
    observe: int
    observed: int
    foreign: int
    unsettled: int  # subscribers that did not end on the last value of every topic they want
    settled_after_send_ms: float | None
    settled_after_receipt_ms: float | None

    @property
    def conflated(self) -> float:
        """Share of the values that their subscriber never saw."""
        return 1.0 - self.messages / self.values_possible if self.values_possible else 0.0


@dataclass(slots=True)
class Report:
    """One run. `problems` make its figures untrue. `warnings` explain how to read them."""

    plan: Plan
    began_at: str
    seconds: float
    sends: int
    sends_per_s: float
    accepted: int
    rejected: dict[str, tuple[int, str]]
    unanswered: int
    receipt: Histogram
    lag: Histogram
    sends_by_second: list[int]
    groups: list[GroupReport]
    uses: list[tuple[str, Use]]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def messages_per_s(self) -> float:
        """MESSAGEs of all subscribers together."""
        return sum(group.messages_per_s for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        """Return all of it under the keys that docs/develop/bench.md explains."""
        plan = self.plan
        return {
            "broker": plan.syntax.name,
            "began_at": self.began_at,
            "publishers": plan.publishers,
            "topics": plan.topics,
            "body_bytes": max(map(len, plan.bodies)),
            "rate_asked_per_s": plan.per_second or None,
            "window": None if plan.per_second or not plan.receipts else plan.window,
            "receipts_asked": plan.receipts,
            "stamp": "intended" if plan.per_second else "written",
            "warm_up_s": plan.warm_up_s,
            "measured_s": self.seconds,
            "sends": self.sends,
            "sends_per_s": self.sends_per_s,
            "messages_per_s": self.messages_per_s,
            "accepted": self.accepted,
            "rejected": {name: {"count": count, "reason": reason} for name, (count, reason) in self.rejected.items()},
            "unanswered": self.unanswered,
            "receipt_ms": quantiles_ms(self.receipt),
            "send_lag_ms": quantiles_ms(self.lag),
            "sends_by_second": self.sends_by_second,
            "groups": [_group_json(group) for group in self.groups],
            "load_processes": [
                {"name": name, "busy": round(use.busy, 3), "wanted": round(use.wanted, 3)} for name, use in self.uses
            ],
            "warnings": self.warnings,
            "problems": self.problems,
        }


def quantiles_ms(histogram: Histogram) -> dict[str, float] | None:
    """Return the percentiles that are reported, in ms; None when nothing was seen."""
    if not histogram.count:
        return None
    return {name: round(histogram.quantile_ns(share) / 1e6, 4) for name, share in QUANTILES.items()}


def _group_json(group: GroupReport) -> dict[str, Any]:
    return {
        "name": group.name,
        "connections": group.connections,
        "messages": group.messages,
        "messages_per_s": group.messages_per_s,
        "values_possible": group.values_possible,
        "conflated": group.conflated,
        "latency_ms": quantiles_ms(group.latency),
        "staleness_ms": quantiles_ms(group.staleness),
        "staleness_with_drain_ms": quantiles_ms(group.staleness_with_drain),
        "observe": group.observe,
        "observed": group.observed,
        "foreign": group.foreign,
        "ended_on_last_value": not group.unsettled,
        "unsettled_subscribers": group.unsettled,
        "last_value_after_last_send_ms": group.settled_after_send_ms,
        "last_value_after_last_receipt_ms": group.settled_after_receipt_ms,
        "messages_by_second": group.messages_by_second,
        "staleness_ms_by_second": [quantiles_ms(histogram) for histogram in group.staleness_by_second],
    }


def sum_up(
    plan: Plan,
    times: Times,
    wanted: Mapping[str, Sequence[int]],
    published: Sequence[Published],
    results: Sequence[GroupResult],
    relays: Sequence[Use] = (),
) -> Report:
    """Combine the results of all processes, and the CPU time of relays."""
    last_sent_ns = max(part.last_sent_ns for part in published)
    last_receipt_ns = max(part.last_receipt_ns for part in published)
    seconds = (times.end_ns - times.measure_ns) / 1e9
    if plan.once:
        seconds = (max(last_sent_ns, last_receipt_ns) - times.origin_ns) / 1e9
    topic_sends: dict[int, int] = {}
    for part in published:
        topic_sends.update(part.topic_sends)
    possible = {glob: sum(topic_sends.get(topic, 0) for topic in topics) for glob, topics in wanted.items()}
    measured = sum(part.measured_accepted if plan.receipts else part.measured for part in published)
    report = Report(
        plan=plan,
        began_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        seconds=seconds,
        sends=sum(part.sent for part in published),
        sends_per_s=measured / seconds,
        accepted=sum(part.accepted for part in published),
        rejected=_rejected(published),
        unanswered=sum(part.unanswered for part in published),
        receipt=merged(part.receipt for part in published),
        lag=merged(part.lag for part in published),
        sends_by_second=[sum(counts) for counts in zip(*(part.per_second for part in published), strict=True)],
        groups=[_group(result, possible, seconds, last_sent_ns, last_receipt_ns) for result in results],
        uses=[
            *[("publishers", part.use) for part in published],
            *[(result.group.name, part.use) for result in results for part in result.received],
            *[("relays", use) for use in relays],
        ],
    )
    _validate(report, results)
    return report


def _rejected(published: Sequence[Published]) -> dict[str, tuple[int, str]]:
    rejected: dict[str, tuple[int, str]] = {}
    for part in published:
        for name, (count, reason) in part.rejected.items():
            key = name.decode(errors="replace")
            before, first = rejected.get(key, (0, reason.decode(errors="replace")))
            rejected[key] = (before + count, first)
    return rejected


def _group(
    result: GroupResult, possible: Mapping[str, int], seconds: float, last_sent_ns: int, last_receipt_ns: int
) -> GroupReport:
    group, received = result.group, result.received
    unsettled = sum(len(part.unsettled) for part in received)
    settled_ns = max(part.settled_ns for part in received)
    by_second = [merged(column) for column in zip(*(part.staleness for part in received), strict=True)]
    staleness = merged(by_second)
    return GroupReport(
        name=group.name,
        connections=group.connections,
        messages=sum(part.messages for part in received),
        messages_per_s=sum(part.measured for part in received) / seconds,
        values_possible=sum(possible[group.globs[n % len(group.globs)]] for n in range(group.connections)),
        latency=merged(part.latency for part in received) if group.delay_ms else staleness,
        staleness=staleness,
        staleness_with_drain=merged([staleness, *(part.drain for part in received)]),
        staleness_by_second=by_second,
        messages_by_second=[sum(counts) for counts in zip(*(part.per_second for part in received), strict=True)],
        observe=group.observe if group.counts_only else 1,
        observed=sum(part.observed for part in received),
        foreign=sum(part.foreign for part in received),
        unsettled=unsettled,
        settled_after_send_ms=None if unsettled else (settled_ns - last_sent_ns) / 1e6,
        settled_after_receipt_ms=None if unsettled or not last_receipt_ns else (settled_ns - last_receipt_ns) / 1e6,
    )


def _validate(report: Report, results: Sequence[GroupResult]) -> None:
    """Record problems that make the figures untrue, and warnings how to read them."""
    plan, problems, warnings = report.plan, report.problems, report.warnings
    for name, (count, reason) in sorted(report.rejected.items()):
        problems.append(f"{count} of {report.sends} SENDs were answered {name}: {reason or 'no reason given'}")
    if report.unanswered:
        problems.append(f"{report.unanswered} SENDs had no RECEIPT {plan.settle_s:g} s after the last of them")
    if plan.per_second and report.sends_per_s < _REACHED * plan.per_second:
        problems.append(
            f"the rate was not reached: {plan.per_second:,.0f}/s asked, {report.sends_per_s:,.0f}/s reached"
        )
    for result in results:
        unsettled = sorted(lacking for part in result.received for lacking in part.unsettled)
        if unsettled:
            named = ", ".join(f"{number} lacks {topics} topics" for number, topics in unsettled[:UNSETTLED_NAMED_MAX])
            problems.append(
                f"{len(unsettled)} of {result.group.connections} {result.group.name} did not end on the last value {plan.settle_s:g} s after the last RECEIPT: number {named}{', ...' if len(unsettled) > UNSETTLED_NAMED_MAX else ''}"
            )
        disordered = sum(part.disordered for part in result.received)
        if disordered:
            problems.append(
                f"{disordered} values came to {result.group.name} twice or after a newer one of their topic"
            )
        unwanted = sum(part.unwanted for part in result.received)
        if unwanted:
            problems.append(f"{unwanted} topics came to {result.group.name} that their glob does not match")
        foreign = sum(part.foreign for part in result.received)
        if foreign:
            warnings.append(f"{foreign} messages came to {result.group.name} that this run did not send")
    saturated = sorted({name for name, use in report.uses if use.wanted > SATURATED})
    if saturated:
        warnings.append(
            f"the load itself may be the limit. Processes of the {', '.join(saturated)} wanted more than {SATURATED:.0%} of a core. Rates are a lower bound, latencies hold waits of our own"
        )
