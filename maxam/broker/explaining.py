"""Why a policy allows something or not, what is odd in one, and what two of them differ in. All of it is asked rarely, none on the hot path."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from maxam.broker.policy import Capability, Policy, Principal
from maxam.errors import GlobError
from maxam.glob_sets import find_destination, overlap
from maxam.globs import Glob, destination_problem

Verdict = Literal["allowed", "denied", "all", "part", "nothing", "undecided"]
Match = Literal["matches", "no match", "all", "part", "nothing"]

STATES_MAX: Final = 10_000  # that two globs may be in together, when they are compared: well below a second
_REMEDIES_MAX: Final = 20  # capabilities that are named as those which would allow something
_EVERYTHING: Final = ("send", "receive")


@dataclass(frozen=True, slots=True)
class Grant:
    """One glob that was asked.

    Attributes:
        by: Name of the capability; empty where it is the principal's own `owns`.
        file: Where it is written.
        place: Where in the file, such as `capabilities.Monitoring.send[0]`.
        match: Result: whether it matches the destination, or how much of the other glob it covers.
    """

    by: str
    file: str
    place: str
    glob: str
    match: Match


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why somebody may or may not.

    Attributes:
        principal: Name of the principal. Empty if the policy has no principal with the fingerprint.
        verdict: `allowed` or `denied` for a SEND or an admin right. For a receive glob the granted share: `all`, `part` or `nothing`. `undecided` is `part`
            at least.
        why: One sentence with the rule that decides.
        decisive: That rule. Empty if the reason is that there is none.
        grants: All globs that were compared, in their order.
        owns: The same of the principal's `owns`. None if its sends are not narrowed.
        example: A destination of the glob that may not be received, when only a part may be.
        remedies: Capabilities of the policy that would allow it and that it has not.
        will: The last will that the policy binds to the principal, in words. Empty if there is none.
    """

    principal: str
    action: Literal["send", "receive", "admin"]
    target: str
    verdict: Verdict
    why: str
    decisive: tuple[Grant, ...]
    grants: tuple[Grant, ...]
    owns: tuple[Grant, ...] | None
    example: str
    remedies: tuple[str, ...]
    will: str = ""


def explain_send(policy: Policy, principal: str, destination: str, bytes_max: int) -> Explanation:
    """Return whether a principal may SEND to a destination, and why.

    Args:
        policy: Decides.
        principal: One of it, or any other name.
        destination: As clients send it.
        bytes_max: The longest destination there can be.
    """
    known = policy.principals.get(principal)
    problem = destination_problem(destination.encode("utf-8", "surrogateescape"), bytes_max)
    if known is None or problem is not None:
        why = f"nobody may: {problem}" if problem is not None else _unknown(policy, principal)
        return Explanation(principal, "send", destination, "denied", why, (), (), None, "", ())
    grants = [_asked(capability, "send", at, destination) for capability, at in _each(policy, known, "send")]
    owns = None
    if known.owns is not None:
        owns = tuple(
            Grant("", known.file, f"{known.place}.owns[{at}]", glob.text, _matched(glob, destination))
            for at, glob in enumerate(known.owns)
        )
    granted = [grant for grant in grants if grant.match == "matches"]
    owned = [grant for grant in owns or () if grant.match == "matches"]
    may = bool(granted) and (owns is None or bool(owned))
    if may:
        why = f"{granted[0].glob} of the capability {granted[0].by} grants it"
        why += f", and {owned[0].glob} of its owns holds it" if owned else ""
        decisive = (granted[0], *owned[:1])
    elif granted:
        decisive = (granted[0],)
        what = f"none of its owns ({_listed(owns or ())}) matches" if owns else "its owns is empty"
        why = f"{granted[0].glob} of the capability {granted[0].by} would grant it, but {what}"
    else:
        decisive = ()
        why = _lacking(known, grants, "send")
    remedies = () if granted else _remedies(policy, known, [destination])
    verdict: Verdict = "allowed" if may else "denied"
    will = _will(known)
    return Explanation(principal, "send", destination, verdict, why, decisive, tuple(grants), owns, "", remedies, will)


def explain_receive(policy: Policy, principal: str, glob: Glob, states_max: int = STATES_MAX) -> Explanation:
    """Return how much of what a glob matches a principal may receive, and why.

    Args:
        policy: Decides.
        principal: One of it, or any other name.
        glob: As clients subscribe to it.
        states_max: Bounds how long two globs are compared, as of `glob_sets.find_destination`.
    """
    known = policy.principals.get(principal)
    if known is None:
        why = _unknown(policy, principal)
        return Explanation(principal, "receive", glob.text, "nothing", why, (), (), None, "", ())
    grants: list[Grant] = []
    held: list[Glob] = []
    for capability, at in _each(policy, known, "receive"):
        granted = capability.receive[at]
        held.append(granted)
        match: Match = "nothing"
        if overlap(granted, glob):
            match = "all" if covers([granted], glob, states_max) else "part"
        grants.append(Grant(capability.name, capability.file, _place(capability, "receive", at), granted.text, match))
    whole = tuple(grant for grant in grants if grant.match == "all")[:1]
    parts = tuple(grant for grant in grants if grant.match == "part")
    example = ""
    verdict: Verdict
    if whole:
        verdict, decisive = "all", whole
        why = f"{whole[0].glob} of the capability {whole[0].by} grants all of it"
    elif parts:
        decisive = parts
        try:
            example = find_destination([[glob]], [held], states_max) or ""
            verdict = "part" if example else "all"
        except GlobError:
            verdict = "undecided"
        together = ", ".join(f"{grant.glob} of {grant.by}" for grant in parts)
        why = {
            "all": f"together all of it: {together}",
            "part": f"only what these match: {together}, and not {example}, for example",
        }.get(verdict, f"what these match: {together}. The globs are too complex to decide whether that is all")
    else:
        verdict, decisive, why = "nothing", (), _lacking(known, grants, "receive")
    remedies = () if verdict == "all" else _remedies_of_glob(policy, known, glob, states_max)
    compared, will = tuple(grants), _will(known)
    return Explanation(principal, "receive", glob.text, verdict, why, decisive, compared, None, example, remedies, will)


def explain_right(policy: Policy, principal: str, right: str) -> Explanation:
    """Return whether a principal has an admin right, and why."""
    known = policy.principals.get(principal)
    if known is None:
        why = _unknown(policy, principal)
        return Explanation(principal, "admin", right, "denied", why, (), (), None, "", ())
    held = [policy.capabilities[name] for name in dict.fromkeys(known.capabilities)]
    grants = tuple(
        Grant(one.name, one.file, f"{one.place}.admin[{at}]", granted, "matches" if granted == right else "no match")
        for one in held
        for at, granted in enumerate(one.admin)
    )
    decisive = tuple(grant for grant in grants if grant.match == "matches")[:1]
    if decisive:
        verdict: Verdict = "allowed"
        why = f"the capability {decisive[0].by} grants it"
    else:
        verdict, why = "denied", f"none of its capabilities ({', '.join(known.capabilities)}) grants it"
        if not known.capabilities:
            why = f"{known.name} has no capabilities"
    remedies = () if decisive else tuple(one.name for one in policy.capabilities.values() if right in one.admin)
    return Explanation(principal, "admin", right, verdict, why, decisive, grants, None, "", remedies[:_REMEDIES_MAX])


def covers(wide: Sequence[Glob], narrow: Glob, states_max: int = STATES_MAX) -> bool:
    """Return True if some globs together surely match all that another matches."""
    if narrow in wide:
        return True
    try:
        return find_destination([[narrow]], [wide], states_max) is None
    except GlobError:
        return False


def _each(policy: Policy, principal: Principal, action: Literal["send", "receive"]) -> Iterator[tuple[Capability, int]]:
    for name in dict.fromkeys(principal.capabilities):
        capability = policy.capabilities[name]
        for at in range(len(capability.send if action == "send" else capability.receive)):
            yield capability, at


def _place(capability: Capability, action: str, at: int) -> str:
    return f"{capability.place}.{action}[{at}]"


def _asked(capability: Capability, action: Literal["send"], at: int, destination: str) -> Grant:
    glob = capability.send[at]
    place = _place(capability, action, at)
    return Grant(capability.name, capability.file, place, glob.text, _matched(glob, destination))


def _matched(glob: Glob, destination: str) -> Match:
    return "matches" if glob.matches(destination) else "no match"


def _unknown(policy: Policy, principal: str) -> str:
    near = get_close_matches(principal, policy.principals, 1)
    return f"the policy has no principal {principal!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _lacking(principal: Principal, grants: Sequence[Grant], action: str) -> str:
    if not principal.capabilities:
        return f"{principal.name} has no capabilities"
    if not grants:
        return f"none of its capabilities ({', '.join(principal.capabilities)}) grants any {action}"
    return f"none of its {action} globs ({_listed(grants)}) matches"


def _listed(grants: Sequence[Grant]) -> str:
    shown = ", ".join(grant.glob for grant in grants[:5])
    return shown if len(grants) <= 5 else f"{shown} and {len(grants) - 5} more"


def _remedies(policy: Policy, principal: Principal, destinations: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        capability.name
        for capability in policy.capabilities.values()
        if capability.name not in principal.capabilities
        and all(any(glob.matches(destination) for glob in capability.send) for destination in destinations)
    )[:_REMEDIES_MAX]


def _remedies_of_glob(policy: Policy, principal: Principal, glob: Glob, states_max: int) -> tuple[str, ...]:
    return tuple(
        capability.name
        for capability in policy.capabilities.values()
        if capability.name not in principal.capabilities
        and capability.receive
        and covers(capability.receive, glob, states_max)
    )[:_REMEDIES_MAX]


# --- what is odd


@dataclass(frozen=True, slots=True)
class Oddity:
    """A valid part of a policy that is probably a mistake.

    Attributes:
        file: File of the part.
        place: Path into the file.
        problem: Description of the mistake and remedy.
    """

    file: str
    place: str
    problem: str


def find_oddities(policy: Policy, rules: Sequence[Glob] | None = None) -> Iterator[Oddity]:
    """Name what is odd.

    Args:
        policy: One that was loaded without mistakes.
        rules: Globs of the rules of a schema registry, to find globs that match none of its destinations. None if they are unknown.
    """
    held = {name for principal in policy.principals.values() for name in principal.capabilities}
    for capability in policy.capabilities.values():
        if capability.name not in held:
            yield Oddity(capability.file, capability.place, "no principal has it; give it to one, or remove it")
        if not _grants(capability):
            yield Oddity(
                capability.file, capability.place, "grants nothing; give it send, receive, admin, bridge or pii"
            )
        yield from _odd_globs(capability.file, f"{capability.place}.send", capability.send, rules)
        yield from _odd_globs(capability.file, f"{capability.place}.receive", capability.receive, rules)
    for principal in policy.principals.values():
        yield from _odd_principal(policy, principal, rules)


def _grants(capability: Capability) -> bool:
    flags = capability.bridge or capability.pii
    return bool(capability.send or capability.receive or capability.admin or flags)


def _odd_principal(policy: Policy, principal: Principal, rules: Sequence[Glob] | None) -> Iterator[Oddity]:
    file, place = principal.file, principal.place
    who = f"{principal.name}: "
    capabilities = [policy.capabilities[name] for name in dict.fromkeys(principal.capabilities)]
    send = [glob for capability in capabilities for glob in capability.send]
    if not any(_grants(capability) for capability in capabilities):
        yield Oddity(file, place, f"{who}has no rights except to connect; give it a capability")
    if not principal.fingerprints:
        yield Oddity(file, place, f"{who}has no certificate, so no client can be it; list one under fingerprints")
    for at, fingerprint in enumerate(principal.fingerprints):
        if fingerprint in principal.fingerprints[:at]:
            yield Oddity(file, f"{place}.fingerprints[{at}]", f"{who}names {fingerprint} twice; remove one")
    for at, name in enumerate(principal.capabilities):
        if name in principal.capabilities[:at]:
            yield Oddity(file, f"{place}.capabilities[{at}]", f"{who}names {name} twice; remove one")
    owns = principal.owns
    if owns is None:
        return
    if not send:
        yield Oddity(file, f"{place}.owns", f"{who}narrows nothing, as no capability of it grants a send; remove it")
        return
    if not owns:
        yield Oddity(file, f"{place}.owns", f"{who}is empty, so it may send nothing; remove it or name globs")
    for at, glob in enumerate(owns):
        if not any(overlap(glob, granted) for granted in send):
            problem = f"{who}{glob.text} has nothing in common with what its capabilities grant it to send"
            yield Oddity(file, f"{place}.owns[{at}]", problem)
    yield from _odd_globs(file, f"{place}.owns", owns, rules)


def _odd_globs(file: str, place: str, globs: Sequence[Glob], rules: Sequence[Glob] | None) -> Iterator[Oddity]:
    for at, glob in enumerate(globs):
        wider = next((other for i, other in enumerate(globs) if _shadows(globs, i, at)), None)
        if wider is not None:
            what = "is there twice" if wider == glob else f"is part of {wider.text}"
            yield Oddity(file, f"{place}[{at}]", f"{glob.text} {what}, which is there too; remove it")
        if rules is not None and not any(overlap(glob, rule) for rule in rules):
            problem = f"{glob.text} matches no destination that a rule of the schemas covers"
            yield Oddity(file, f"{place}[{at}]", problem)


def _shadows(globs: Sequence[Glob], wide: int, narrow: int) -> bool:
    """Return True if a glob makes another superfluous. Of two that match the same, the first does."""
    one, other = globs[wide], globs[narrow]
    if wide == narrow or not (one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)):
        return False
    if one == other:
        return wide < narrow
    return covers([one], other) and (wide < narrow or not covers([other], one))


# --- what two differ in

Flag: TypeAlias = Literal["bridge", "pii"]
_FLAGS: Final[Mapping[Flag, str]] = {"bridge": "origin headers", "pii": "personal fields"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A right that a principal gains or loses.

    Attributes:
        principal: Name of the principal.
        change: Whether it gains or loses the right.
        right: Kind of right: `principal` (to be known at all), `fingerprint`, `send`, `receive`, `admin`, `bridge` or `pii`. `will`
            is the last will that is bound to it.
        what: The glob, fingerprint, admin right or will.
        example: A destination that proves the difference. Empty if there is none.
        exact: False if the globs are too complex to decide whether the new text means anything else.
    """

    principal: str
    change: Literal["gains", "loses"]
    right: Literal["principal", "fingerprint", "send", "receive", "admin", "bridge", "pii", "will"]
    what: str
    example: str = ""
    exact: bool = True


def differences(old: Policy, new: Policy) -> Iterator[Difference]:
    """Yield what each principal gains and loses when one policy replaces another. The meanings are compared, not the texts."""
    held, holds = _fingerprints(old), _fingerprints(new)
    for name in dict.fromkeys([*old.principals, *new.principals]):
        before, after = old.principals.get(name), new.principals.get(name)
        if before is None:
            yield Difference(name, "gains", "principal", name)
        elif after is None:
            yield Difference(name, "loses", "principal", name)
        had, has = held.get(name, set()), holds.get(name, set())
        for fingerprint in sorted(has - had):
            yield Difference(name, "gains", "fingerprint", fingerprint)
        for fingerprint in sorted(had - has):
            yield Difference(name, "loses", "fingerprint", fingerprint)
        for action in _EVERYTHING:
            was, now = _granted(old, before, action), _granted(new, after, action)
            yield from _gained(name, "gains", action, was, now)
            yield from _gained(name, "loses", action, now, was)
        had_admin, has_admin = _admin(old, before), _admin(new, after)
        for right in sorted(has_admin - had_admin):
            yield Difference(name, "gains", "admin", right)
        for right in sorted(had_admin - has_admin):
            yield Difference(name, "loses", "admin", right)
        had_flags, has_flags = _flags(old, before), _flags(new, after)
        for flag in sorted(has_flags - had_flags):
            yield Difference(name, "gains", flag, _FLAGS[flag])
        for flag in sorted(had_flags - has_flags):
            yield Difference(name, "loses", flag, _FLAGS[flag])
        had_will, has_will = _will(before), _will(after)
        if _facts(before) != _facts(after):
            if had_will:
                yield Difference(name, "loses", "will", had_will)
            if has_will:
                yield Difference(name, "gains", "will", has_will)


def _will(principal: Principal | None) -> str:
    """Return the bound will of a principal in words; empty if there is none."""
    will = None if principal is None else principal.will
    if will is None:
        return ""
    what = f"{len(will.body)} bytes to" if will.body else "a delete of"
    return f"{what} {will.destination.decode()} after {will.delay_s} s"


def _facts(principal: Principal | None) -> tuple[object, ...]:
    will = None if principal is None else principal.will
    return () if will is None else (will.destination, will.body, will.headers, will.delay_s)


def _fingerprints(policy: Policy) -> dict[str, set[str]]:
    """Return the certificates of each principal."""
    found: dict[str, set[str]] = {}
    for fingerprint, owner in policy.fingerprints.items():
        found.setdefault(owner, set()).add(fingerprint)
    return found


def _admin(policy: Policy, principal: Principal | None) -> frozenset[str]:
    return frozenset() if principal is None else policy.rights(principal.name).admin


def _flags(policy: Policy, principal: Principal | None) -> set[Flag]:
    if principal is None:
        return set()
    rights = policy.rights(principal.name)
    held: dict[Flag, bool] = {"bridge": rights.bridge, "pii": rights.pii}
    return {flag for flag, granted in held.items() if granted}


def _granted(policy: Policy, principal: Principal | None, action: str) -> list[Sequence[Glob]]:
    """Return rows of globs of which each must match; the first is of the capabilities."""
    if principal is None:
        return [()]
    capabilities = [policy.capabilities[name] for name in principal.capabilities]
    globs = [glob for one in capabilities for glob in (one.send if action == "send" else one.receive)]
    rows: list[Sequence[Glob]] = [tuple(dict.fromkeys(globs))]
    if action == "send" and principal.owns is not None:
        rows.append(principal.owns)
    return rows


def _gained(
    name: str, change: Literal["gains", "loses"], action: str, was: list[Sequence[Glob]], now: list[Sequence[Glob]]
) -> Iterator[Difference]:
    right: Literal["send", "receive"] = "send" if action == "send" else "receive"
    for glob in now[0]:
        if len(was) == 1 and glob in was[0]:
            continue
        try:
            example = find_destination([[glob], *now[1:]], was)
        except GlobError:
            if glob not in was[0] or was[1:] != now[1:]:
                yield Difference(name, change, right, glob.text, exact=False)
            continue
        if example is not None:
            yield Difference(name, change, right, glob.text, example)


def moved_fingerprints(old: Policy, new: Policy) -> Mapping[str, tuple[str, str | None]]:
    """Return the certificates whose connections another policy would end.

    Returns:
        For each fingerprint the present principal, and the one of the other policy or None.
    """
    return {
        fingerprint: (owner, new.principal_of(fingerprint))
        for fingerprint, owner in old.fingerprints.items()
        if new.principal_of(fingerprint) != owner
    }
