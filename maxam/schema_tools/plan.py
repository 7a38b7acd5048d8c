"""The effect of a schema folder on a running gateway: every present value and every late rejection judged by it.

Everything is summed up on the way, so that a hundred thousand topics take no memory. The gateway is asked for a page at a time.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, final

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule
from maxam.broker.destinations import MatchIndex
from maxam.counting import counted
from maxam.https_client import NotFoundError, Remote
from maxam.records import Headers, Rejection, Validation
from maxam.schema_tools.validating import fetch_registry
from maxam.terminal.tables import print_line, print_table

PAGE_ROWS: Final = 200  # topics asked for at a time: the most that a page has
PROGRESS_TOPICS: Final = 1000
REJECTS_MAX: Final = 2000  # the newest ones, each asked for by itself
GROUPS_MAX: Final = 10_000  # of one sort: what comes later is counted in the last one

_INDEX: Final = re.compile(r"\[[0-9]+\]")  # of an item in a path: faults of one kind are to have one path

_SORTS: Final[dict[str, tuple[str, ...]]] = {
    "breaks": ("publisher", "destination", "schema", "result", "field"),
    "orphans": ("publisher", "destination"),
    "moves": ("from", "to"),
    "passes": ("publisher", "destination", "result"),
}
_EXPENDABLE: Final = ("SCHEMA", "FIELD", "EXAMPLE", "RESULT")  # columns that a narrow terminal does without
_WHATEVER_THE_SCHEMAS: Final = {"conflict", "bad-condition"}  # results that no schema folder changes
_TITLES: Final = {
    "breaks": "These publishers would be rejected:",
    "orphans": "These topics would have no rule, for which a reload is refused unless [schemas] allow_orphans. They would take no new values:",
    "moves": "These values would be judged by another version, or be carried otherwise:",
    "passes": "These SENDs were rejected lately and would not be:",
}

Progress = Callable[[str], object]


@dataclass(slots=True)
class Group:
    """Topics or rejections with the same fate: how many, and the first of them."""

    count: int = 0
    example: str = ""
    reason: str = ""


@dataclass(slots=True)
class Plan:
    """The consequences of a folder.

    Attributes:
        topics: Number of topics that were checked.
        withheld: How many of them the certificate may not receive, so that their values were not judged.
        breaks: By publisher, rule, type, result and field: values that pass now and would not.
        orphans: By publisher and the rule that they have now: topics that no rule would cover.
        moves: By the minor version that judged a value and the one that would.
        broken_already: Values that the rules in force would reject, too.
        passes: By publisher, destination's rule and result: rejections that would not be any.
        rejects: Number of rejections that were checked. None when the gateway keeps none.
        changes: Of rules and schemas.
    """

    topics: int = 0
    withheld: int = 0
    broken_already: int = 0
    rejects: int | None = None
    rejects_without_body: int = 0
    groups: dict[str, dict[tuple[str, ...], Group]] = field(default_factory=lambda: {sort: {} for sort in _SORTS})
    changes: list[dict[str, Any]] = field(default_factory=list)

    def note(self, sort: str, key: tuple[str, ...], example: str, reason: str = "") -> None:
        """Count one."""
        groups = self.groups[sort]
        if key not in groups and len(groups) >= GROUPS_MAX:
            key = ("(others)",) * len(key)
        group = groups.setdefault(key, Group(0, example, reason))
        group.count += 1

    def total(self, sort: str) -> int:
        """Return how many were counted."""
        return sum(group.count for group in self.groups[sort].values())

    def publishers(self, sort: str) -> int:
        """Return of how many publishers."""
        return len({key[0] for key in self.groups[sort]})

    @property
    def breaks(self) -> bool:
        """Somebody would be worse off."""
        return bool(self.groups["breaks"] or self.groups["orphans"])

    @property
    def verdict(self) -> str:
        """Return the verdict in one line."""
        parts = []
        if self.groups["breaks"]:
            parts.append(
                f"{counted(self.publishers('breaks'), 'publisher')} would break ({counted(self.total('breaks'), 'topic')})"
            )
        if self.groups["orphans"]:
            parts.append(f"{counted(self.total('orphans'), 'topic')} would have no rule")
        return "; ".join(parts) or "nothing would break"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over everything for programs, the sum last."""
        for change in self.changes:
            yield {"sort": "change", **change}
        for sort, names in _SORTS.items():
            for key, group in self._ordered(sort):
                row = {
                    "sort": sort,
                    **dict(zip(names, key, strict=True)),
                    "count": group.count,
                    "example": group.example,
                }
                yield row | ({"reason": group.reason} if group.reason else {})
        yield {
            "sort": "summary",
            "verdict": self.verdict,
            "publishers_broken": self.publishers("breaks"),
            **{sort: self.total(sort) for sort in _SORTS},
            "topics": self.topics,
            "withheld": self.withheld,
            "broken_already": self.broken_already,
            "rejects": self.rejects,
            "rejects_without_body": self.rejects_without_body,
        }

    def print(self, limit: int) -> None:
        """Print everything for people, at most `limit` rows of each sort."""
        if self.changes:
            print_table(["CHANGE", "OF", "WHAT"], [[c["change"], c["of"], c["what"]] for c in self.changes[:limit]])
            print_line("")
        for sort, names in _SORTS.items():
            found = self._ordered(sort)
            if not found:
                continue
            print_line(_TITLES[sort])
            columns = [
                *(name.upper() for name in names),
                "#COUNT",
                "EXAMPLE",
                *(["REASON"] if sort == "breaks" else []),
            ]
            cells = [
                [*key, group.count, group.example, *([group.reason] if sort == "breaks" else [])]
                for key, group in islice(found, limit)
            ]
            print_table(columns, cells, [title for title in _EXPENDABLE if title in columns])
            if len(found) > limit:
                print_line(f"{counted(len(found) - limit, 'row')} more: --limit shows them")
            print_line("")
        print_line(f"{counted(self.topics, 'topic')} checked: {self.verdict}")
        if self.withheld:
            print_line(f"{self.withheld} were not judged, as this certificate may not receive them")
        if self.broken_already:
            print_line(f"{self.broken_already} would be rejected by the rules in force, too")
        if self.rejects is not None:
            without = f", {self.rejects_without_body} without their bodies" if self.rejects_without_body else ""
            print_line(f"{counted(self.rejects, 'rejected SEND')} checked{without}: {self.total('passes')} would pass")

    def _ordered(self, sort: str) -> list[tuple[tuple[str, ...], Group]]:
        return sorted(self.groups[sort].items(), key=lambda item: (-item[1].count, item[0]))


def make_plan(remote: Remote, candidate: Registry, progress: Progress | None = None) -> Plan:
    """Judge what is in a gateway by a registry that is not in force there.

    Args:
        remote: The gateway; its admin right `read` is needed.
        candidate: The registry.
        progress: Called now and then with what to show.

    Raises:
        RemoteError: The gateway cannot be asked.
    """
    live = fetch_registry(remote)
    plan = Plan(changes=list(_changes(live, candidate)))
    planned, present = _Rules(candidate), _Rules(live)
    for row in remote.pages("/v1/topics", "topics", glob="**", limit=PAGE_ROWS, values="raw"):
        plan.topics += 1
        if progress is not None and plan.topics % PROGRESS_TOPICS == 0:
            progress(counted(plan.topics, "topic"))
        _validate_topic(plan, row, planned, present)
    _validate_rejects(plan, remote, planned)
    return plan


@final
class _Rules:
    """The rules of a registry, found by destination; a thousand of them take no longer than ten."""

    def __init__(self, registry: Registry) -> None:
        self._index: Final[MatchIndex[Rule]] = MatchIndex()
        for rule in registry.rules:
            self._index.add(rule.glob, rule)

    def first(self, destination: str) -> Rule | None:
        """Return the rule that decides."""
        return next(iter(self._index.matches(destination)), None)


def _validate_topic(plan: Plan, row: dict[str, Any], planned: _Rules, present: _Rules) -> None:
    destination: str = row["destination"]
    publisher: str = row["publisher"]
    rule, rule_now = planned.first(destination), present.first(destination)
    if rule is None:
        if rule_now is not None:
            plan.note("orphans", (publisher, rule_now.glob.text), destination)
        else:
            plan.broken_already += 1
        return
    if row["value_state"] != "raw":
        plan.withheld += 1
        return
    headers, body = _sent(row)
    validation = rule.validate(destination.encode(), headers, body)
    if isinstance(validation, Validation):
        before = _named(row["encoding"], row["schema"], row["schema_version"])
        after = _named(validation.encoding, validation.schema, validation.schema_version)
        if before != after:
            plan.note("moves", (before, after), destination)
        return
    if rule_now is not None and isinstance(rule_now.validate(destination.encode(), headers, body), Rejection):
        plan.broken_already += 1
        return
    key = (publisher, rule.glob.text, rule.schema, validation.result, _INDEX.sub("[]", validation.path))
    plan.note("breaks", key, destination, validation.reason)


def _validate_rejects(plan: Plan, remote: Remote, planned: _Rules) -> None:
    """Judge what was rejected lately; a gateway without quarantine has none."""
    try:
        for row in islice(remote.pages("/v1/rejects", "rejects", limit=PAGE_ROWS), REJECTS_MAX):
            plan.rejects = (plan.rejects or 0) + 1
            _validate_reject(plan, remote, row, planned)
    except NotFoundError:
        return
    plan.rejects = plan.rejects or 0


def _validate_reject(plan: Plan, remote: Remote, row: dict[str, Any], planned: _Rules) -> None:
    destination: str = row["destination"]
    rule = planned.first(destination)
    if rule is None or row["disposition"] != "rejected-invalid" or row["result"] in _WHATEVER_THE_SCHEMAS:
        return
    try:
        found = remote.get(f"/v1/rejects/{row['id']}")
    except NotFoundError:  # it has made room for a newer one meanwhile
        return
    if "body" not in found:
        plan.rejects_without_body += 1
        return
    headers, body = _sent(found)
    if body and isinstance(rule.validate(destination.encode(), headers, body), Validation):
        plan.note("passes", (row["principal"], rule.glob.text, row["result"]), destination)


def _sent(row: dict[str, Any]) -> tuple[Headers, bytes]:
    headers = tuple((name.encode(), value.encode()) for name, value in row["headers"])
    return headers, b64decode(row["body"])


def _named(encoding: str, schema: str, minor: str) -> str:
    return f"{schema} {minor} ({encoding})".lstrip()


def _changes(live: Registry, candidate: Registry) -> Iterator[dict[str, Any]]:
    """Name what differs in rules and schemas."""
    for name in sorted({*live.types(), *candidate.types()}):
        before = {version.minor: version for version in live.versions(name)}
        after = {version.minor: version for version in candidate.versions(name)}
        for minor in [*(m for m in before if m not in after), *after]:
            if minor not in after:
                yield {"change": "removed", "of": "schema", "what": f"{name} {minor}"}
            elif minor not in before:
                yield {"change": "added", "of": "schema", "what": f"{name} {minor}"}
            elif before[minor].text_sha256 != after[minor].text_sha256:
                what = f"{name} {minor}: its text is another one, though readers may know it by this name"
                yield {"change": "changed", "of": "schema", "what": what}
    rules_before = {rule.glob.text: rule for rule in reversed(live.rules)}
    rules_after = {rule.glob.text: rule for rule in reversed(candidate.rules)}
    for text in [
        *(r.glob.text for r in live.rules if r.glob.text not in rules_after),
        *dict.fromkeys(r.glob.text for r in candidate.rules),
    ]:
        old, new = rules_before.get(text), rules_after.get(text)
        if new is None:
            yield {"change": "removed", "of": "rule", "what": text}
        elif old is None:
            yield {"change": "added", "of": "rule", "what": f"{text}: {_said(new)}"}
        elif _said(old) != _said(new):
            yield {"change": "changed", "of": "rule", "what": f"{text}: {_said(new)}, was {_said(old)}"}
    common = [r.glob.text for r in candidate.rules if r.glob.text in rules_before]
    if common != [r.glob.text for r in live.rules if r.glob.text in rules_after]:
        yield {"change": "changed", "of": "rule", "what": "the order of the rules: the first that matches decides"}
    for what, old_value, new_value in (
        ("fingerprint", live.fingerprint, candidate.fingerprint),
        ("envelope_keys", sorted(live.envelope_keys.all), sorted(candidate.envelope_keys.all)),
    ):
        if old_value != new_value:
            yield {"change": "changed", "of": "registry", "what": f"{what}: {new_value}, was {old_value}"}


def _said(rule: Rule) -> str:
    required = ", schema-version required" if rule.version_required else ""
    return f"{rule.schema or 'no schema'}, {rule.encoding}{required}"
