"""The rights of principals: `policy.toml` as an immutable object. A request that no rule allows is denied."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Final, final

from maxam.broker.bound_wills import read_bound_will
from maxam.config import Limits
from maxam.errors import GlobError, PolicyError
from maxam.glob_sets import GlobSet, find_destination
from maxam.globs import Glob, compile_glob
from maxam.records import GATEWAY
from maxam.stomp.events import Will
from maxam.toml_lines import written_key

ADMIN_RIGHTS: Final = frozenset({"read", "write", "metrics", "enrol", "replicate", "ticket", "front"})
ANONYMOUS_PREFIX: Final = "fingerprint:"  # principals of unknown clients: no principal of a policy is called so
_PRINCIPAL_CHARACTERS_MAX: Final = 128
_NUMBERS: Final = count(1)
_GLOB_DECISIONS_MAX: Final = 1000  # subscribed globs remembered per principal
_DECISIONS_MAX: Final = 4096  # destinations remembered per principal and direction: topics remember too
_FINGERPRINT: Final = re.compile(r"[0-9A-Fa-f]{64}|(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}")


@final
class Rights:
    """The rights of one principal.

    Destinations are asked for again and again, so decisions are remembered, a bounded number of them.

    Attributes:
        admin: Which of `read`, `write`, `metrics`, `enrol` and `ticket` it has on the admin listener, and whether it may
            `replicate`: receive the journal over a link. With `front` too it may hand over operations of clients there.
        bridge: Whether its SENDs may have the provenance headers of bridges.
        pii: Whether its values as JSON have the fields that schemas mark as personal.
        number: That no other rights have in this process, for who must remember which they were and not keep them.
    """

    __slots__ = (
        "_bytes_max",
        "_glob_decisions",
        "_owns",
        "_receive",
        "_receive_decisions",
        "_receive_digest",
        "_receive_union",
        "_send",
        "_send_decisions",
        "admin",
        "bridge",
        "number",
        "pii",
    )

    def __init__(
        self,
        send: tuple[Glob, ...],
        receive: tuple[Glob, ...],
        admin: frozenset[str],
        owns: tuple[Glob, ...] | None,
        limits: Limits,
        bridge: bool = False,
        pii: bool = False,
    ) -> None:
        self.admin: Final = admin
        self.bridge: Final = bridge
        self.pii: Final = pii
        self.number: Final = next(_NUMBERS)
        self._send: Final = send
        self._receive: Final = receive
        self._receive_union: GlobSet | None = None  # made when it is first asked
        self._receive_digest = ""  # likewise
        self._glob_decisions: Final[dict[str, bool]] = {}
        self._owns: Final = owns
        self._bytes_max: Final = limits.destination_bytes_max
        self._send_decisions: Final[dict[bytes, bool]] = {}
        self._receive_decisions: Final[dict[bytes, bool]] = {}

    def may_send(self, destination: bytes) -> bool:
        """Return True if it may SEND to a destination, given as UTF-8. False for any that is not well-formed."""
        known = self._send_decisions.get(destination)
        return self._decide_send(destination) if known is None else known

    def may_receive(self, destination: bytes) -> bool:
        """Return True if it may receive a topic, given as UTF-8."""
        known = self._receive_decisions.get(destination)
        return self._decide_receive(destination) if known is None else known

    @property
    def receive_digest(self) -> str:
        """16 hex digits that change when the globs change that it may receive; the same in every process."""
        if not self._receive_digest:
            globs = "\n".join(sorted({glob.text for glob in self._receive}))
            self._receive_digest = blake2b(globs.encode(), digest_size=8).hexdigest()
        return self._receive_digest

    @property
    def globs(self) -> tuple[list[str], list[str]]:
        """The texts of the globs that it may receive, and of those that it may send to."""
        return [glob.text for glob in self._receive], [glob.text for glob in self._send]

    @property
    def received(self) -> GlobSet:
        """The globs of destinations that it may receive."""
        union = self._receive_union
        if union is None:
            union = self._receive_union = GlobSet(self._receive)
        return union

    def receives_all_of(self, other: "Rights") -> bool:
        """Return True if it may surely receive all that `other` may, because it was granted the same globs or more."""
        return set(other._receive) <= set(self._receive)  # noqa: SLF001  # of its own kind

    def received_beyond(self, other: "Rights") -> GlobSet:
        """Return the globs of destinations that it may receive and `other` was not granted."""
        known = set(other._receive)  # noqa: SLF001  # of its own kind
        return GlobSet([glob for glob in self._receive if glob not in known])

    def grants_the_same_as(self, other: "Rights") -> bool:
        """Return True if the same was granted in the same order, under the same limits."""
        return (
            self._send == other._send  # noqa: SLF001  # of its own kind
            and self._receive == other._receive  # noqa: SLF001  # of its own kind
            and self._owns == other._owns  # noqa: SLF001  # of its own kind
            and self.admin == other.admin
            and self.bridge == other.bridge
            and self.pii == other.pii
            and self._bytes_max == other._bytes_max  # noqa: SLF001  # of its own kind
        )

    def can_receive_any(self, glob: Glob) -> bool:
        """Return False if no destination that the glob matches may be received; True may mean "perhaps" for very long globs."""
        known = self._glob_decisions.get(glob.text)
        if known is not None:
            return known
        possible = self.received.overlaps(glob)
        if len(self._glob_decisions) >= _GLOB_DECISIONS_MAX:
            self._glob_decisions.clear()
        self._glob_decisions[glob.text] = possible
        return possible

    def missing(self, wanted: "Rights") -> str:
        """Return a right of `wanted` that it lacks, in words for people. Empty if it has all of them."""
        for right in sorted(wanted.admin - self.admin):
            return f"the admin right {right}"
        if wanted.bridge and not self.bridge:
            return "bridge = true"
        if wanted.pii and not self.pii:
            return "pii = true"
        narrowed = [] if wanted._owns is None else [wanted._owns]  # noqa: SLF001  # of its own kind
        granted = [self._send] if self._owns is None else [self._send, self._owns]
        for verb, globs, narrow, held in (
            ("send to", wanted._send, narrowed, granted),  # noqa: SLF001  # of its own kind
            ("receive", wanted._receive, [], [self._receive]),  # noqa: SLF001  # of its own kind
        ):
            for glob in globs:
                if len(held) == 1 and glob in held[0]:
                    continue
                try:
                    destination = find_destination([[glob], *narrow], held)
                except GlobError as error:
                    return f"perhaps the right to {verb} {glob.text}: {error}"
                if destination is not None:
                    return f"the right to {verb} {glob.text} (such as {destination})"
        return ""

    def _decide_send(self, destination: bytes) -> bool:
        if len(destination) > self._bytes_max:
            return False  # not remembered either: it is only bounded by the header line
        text = destination.decode()
        allowed = _any_matches(self._send, text) and (self._owns is None or _any_matches(self._owns, text))
        _remember(self._send_decisions, destination, allowed)
        return allowed

    def _decide_receive(self, destination: bytes) -> bool:
        if len(destination) > self._bytes_max:
            return False
        allowed = _any_matches(self._receive, destination.decode())
        _remember(self._receive_decisions, destination, allowed)
        return allowed


def _any_matches(globs: tuple[Glob, ...], destination: str) -> bool:
    for glob in globs:  # noqa: SIM110 - a generator costs more than most of the matches
        if glob.matches(destination):
            return True
    return False


def _remember(decisions: dict[bytes, bool], destination: bytes, allowed: bool) -> None:
    if len(decisions) >= _DECISIONS_MAX:
        decisions.clear()
    decisions[destination] = allowed


@dataclass(frozen=True, slots=True)
class Capability:
    """A set of rights that principals can have, as it was written.

    Attributes:
        file: File of the capability.
        place: Path into the file, such as `capabilities.Monitoring`.
        send, receive, admin: The rights that it grants.
        bridge: It allows the provenance headers of bridges.
        pii: It shows personal fields in values as JSON.
    """

    name: str
    file: str
    place: str
    send: tuple[Glob, ...]
    receive: tuple[Glob, ...]
    admin: tuple[str, ...]
    bridge: bool = False
    pii: bool = False


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal, as it was written.

    Attributes:
        file: File of the principal.
        place: Path into the file, such as `principals[3]`.
        fingerprints: In 64 lower-case hex digits, as often as they are written.
        capabilities: Their names.
        owns: Globs that narrow its sends. None if they are not narrowed.
        will: The last will of its sessions whose CONNECT has none, or None.
    """

    name: str
    file: str
    place: str
    fingerprints: tuple[str, ...]
    capabilities: tuple[str, ...]
    owns: tuple[Glob, ...] | None
    will: Will | None = None


@final
class Policy:
    """Which principal a certificate stands for, and the rights of each; see `load_policy`.

    Attributes:
        capabilities: By name.
        principals: By name, in the order in which they were written.
    """

    __slots__ = ("_nobody", "_principals", "_rights", "capabilities", "principals")

    def __init__(
        self,
        fingerprints: Mapping[str, str],
        rights: Mapping[str, Rights],
        limits: Limits,
        capabilities: Mapping[str, Capability] | None = None,
        principals: Mapping[str, Principal] | None = None,
        unknown: Rights | None = None,
    ) -> None:
        """Make a policy; `unknown` are the rights of a principal that is not in `rights`, None for no rights at all."""
        self._principals: Final = dict(fingerprints)
        self._rights: Final = dict(rights)
        self._nobody = Rights((), (), frozenset(), None, limits) if unknown is None else unknown
        self.capabilities: Final = dict(capabilities or {})
        self.principals: Final = dict(principals or {})

    def principal_of(self, fingerprint: str) -> str | None:
        """Give the principal of a certificate's SHA-256 in 64 lower-case hex digits; None when it is unknown."""
        return self._principals.get(fingerprint)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """All certificates that count, renewed ones too, with the principal of each."""
        return self._principals

    def keep_rights_of(self, before: "Policy") -> None:
        """Use the Rights of the policy before for each principal whose rights are the same, so that what depends on them stays valid."""
        for principal, rights in before._rights.items():  # noqa: SLF001  # of its own kind
            mine = self._rights.get(principal)
            if mine is not None and mine.grants_the_same_as(rights):
                self._rights[principal] = rights
        if self._nobody.grants_the_same_as(before._nobody):  # noqa: SLF001  # of its own kind
            self._nobody = before._nobody  # noqa: SLF001  # of its own kind

    def rights(self, principal: str) -> Rights:
        """Return the rights of a principal; if the policy does not know it, those of `unknown`."""
        return self._rights.get(principal, self._nobody)


def load_policy(text: bytes, source: str, limits: Limits) -> Policy:
    """Load a policy of one file; see `load_policies`."""
    return load_policies([(source, text)], limits)


def load_policies(files: Sequence[tuple[str, bytes]], limits: Limits) -> Policy:
    """Load a policy.

    Args:
        files: Name, for error texts, and text of each TOML file. The operators' file is first, then the one that enrolment writes. That
            has principals with the operators' capabilities, and renewals of certificates. No file may repeat a definition of another.
        limits: Bounds of the globs.

    Raises:
        PolicyError: It cannot be used; the text names source, key, what was expected and what was found, of the first mistake.
    """
    policy, problems = inspect_policies(files, limits)
    if problems:
        raise problems[0]
    return policy


def inspect_policies(files: Sequence[tuple[str, bytes]], limits: Limits) -> tuple[Policy, list[PolicyError]]:
    """Load the valid parts of a policy, and return all faults as well. The arguments are those of `load_policies`."""
    return _Loader(limits).load(files)


@final
class _Loader:
    """Reads parsed documents and collects their faults with places."""

    __slots__ = ("_capabilities", "_fingerprints", "_limits", "_principals", "_problems", "_source")

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self._source = ""  # of what is read now
        self._problems: Final[list[PolicyError]] = []
        self._capabilities: Final[dict[str, Capability]] = {}
        self._principals: Final[dict[str, Principal]] = {}
        self._fingerprints: Final[dict[str, str]] = {}

    def load(self, files: Sequence[tuple[str, bytes]]) -> tuple[Policy, list[PolicyError]]:
        documents: list[tuple[str, Mapping[str, object]]] = []
        for source, text in files:
            self._source = source
            try:
                documents.append((source, self._parse(text)))
            except PolicyError as error:
                self._problems.append(error)
        # Principals of any file name capabilities of all.
        for source, document in documents:
            self._source = source
            first = source == files[0][0]
            self._check_keys(document, "", ("capabilities", "principals") if first else ("principals", "renewals"))
            for name, value in self._tables(document.get("capabilities", {}), "capabilities"):
                self._add_capability(name, value, f"capabilities.{written_key(name)}")
        for source, document in documents:
            self._source = source
            for at, value in enumerate(self._array(document.get("principals", []), "principals")):
                self._add_principal(value, f"principals[{at}]")
        for source, document in documents:
            if source == files[0][0]:
                continue
            self._source = source
            for at, value in enumerate(self._array(document.get("renewals", []), "renewals")):
                self._add_renewal(self._table(value, f"renewals[{at}]"), f"renewals[{at}]")
        rights = {name: self._rights(principal) for name, principal in self._principals.items()}
        for name, principal in self._principals.items():
            if principal.will is not None and not rights[name].may_send(principal.will.destination):
                self._source = principal.file
                expected = f"a destination that {name!r} may send to"
                self._found_problem(
                    f"{principal.place}.will.destination", expected, principal.will.destination.decode()
                )
        policy = Policy(self._fingerprints, rights, self._limits, self._capabilities, self._principals)
        return policy, self._problems

    def _parse(self, text: bytes) -> Mapping[str, object]:
        try:
            return tomllib.loads(text.decode())
        except UnicodeDecodeError as error:
            raise PolicyError(f"byte {error.start}: expected UTF-8", self._source) from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
            raise PolicyError(f"expected TOML: {error}", self._source) from None

    def _add_capability(self, name: str, value: object, key: str) -> None:
        other = self._capabilities.get(name)
        if other is not None:
            self._problem(key, "a name of its own", f"another capability called {name!r} in {other.file}")
        table = self._table(value, key)
        self._check_keys(table, key, ("send", "receive", "admin", "bridge", "pii"))
        admin: list[str] = []
        for at, right in self._strings(table.get("admin", []), f"{key}.admin"):
            if right in ADMIN_RIGHTS:
                admin.append(right)
            else:
                self._problem(f"{key}.admin[{at}]", _one_of(ADMIN_RIGHTS), repr(right))
        send = self._globs(table.get("send", []), f"{key}.send")
        receive = self._globs(table.get("receive", []), f"{key}.receive")
        bridge, pii = self._flag(table, key, "bridge"), self._flag(table, key, "pii")
        granted = Capability(name, self._source, key, send, receive, tuple(admin), bridge, pii)
        self._capabilities.setdefault(name, granted)

    def _add_principal(self, value: object, key: str) -> None:
        if not isinstance(value, dict):
            self._problem(key, "a table", _found(value))
            return
        table: Mapping[str, object] = value
        self._check_keys(table, key, ("name", "fingerprints", "capabilities", "owns", "will"))
        name = self._principal_name(table.get("name"), f"{key}.name")
        other = self._principals.get(name)
        if other is not None and name:
            where = "" if other.file == self._source else f" in {other.file}"
            self._problem(f"{key}.name", "a name of its own", f"another principal called {name!r}{where}")
        place = key
        if name:
            key = f"{key} ({name!r})"
        fingerprints: list[str] = []
        for where, fingerprint in self._read_fingerprints(table, f"{key}.fingerprints"):
            owner = self._fingerprints.setdefault(fingerprint, name)
            if owner != name:
                self._problem(where, "a certificate of one principal", f"{fingerprint}, which is {owner!r} too")
            fingerprints.append(fingerprint)
        held: list[str] = []
        for at, capability in self._strings(table.get("capabilities", []), f"{key}.capabilities"):
            if capability in self._capabilities:
                held.append(capability)
            else:
                self._problem(f"{key}.capabilities[{at}]", _one_of(self._capabilities), repr(capability))
        # `owns = []` owns nothing, and so may send nothing; only without the key are sends not narrowed.
        owns = self._globs(table["owns"], f"{key}.owns") if "owns" in table else None
        will = None
        if "will" in table:
            will = read_bound_will(
                self._table(table["will"], f"{key}.will"), f"{key}.will", self._limits, self._found_problem
            )
        principal = Principal(name, self._source, place, tuple(fingerprints), tuple(held), owns, will)
        self._principals.setdefault(name, principal)

    def _add_renewal(self, table: Mapping[str, object], key: str) -> None:
        """Let further fingerprints stand for the principal of one; if that is gone, they hang on nothing and count for nothing."""
        self._check_keys(table, key, ("renews", "fingerprints", "retired"))
        renewed = self._read_fingerprints({"fingerprints": [table.get("renews")]}, f"{key}.renews")
        retired = self._flag(table, key, "retired")
        name = self._fingerprints.get(renewed[0][1]) if renewed else None
        for where, fingerprint in self._read_fingerprints(table, f"{key}.fingerprints"):
            if name is not None and self._fingerprints.setdefault(fingerprint, name) != name:
                owner = self._fingerprints[fingerprint]
                self._problem(where, "a certificate of one principal", f"{fingerprint}, which is {owner!r} too")
        if name is not None and retired:
            del self._fingerprints[renewed[0][1]]

    def _principal_name(self, value: object, key: str) -> str:
        """Return the name, empty if it is none."""
        if isinstance(value, str) and 0 < len(value) <= _PRINCIPAL_CHARACTERS_MAX and value.isprintable():
            if value == GATEWAY.principal:
                expected = f"another name than {value!r}, which the gateway has"
            elif not value.startswith(ANONYMOUS_PREFIX):
                return value
            else:
                expected = f"a name that does not start with {ANONYMOUS_PREFIX!r} (unknown clients are called so)"
        else:
            expected = f"1 to {_PRINCIPAL_CHARACTERS_MAX} printable characters"
        self._problem(key, expected, _found(value))
        return ""

    def _read_fingerprints(self, table: Mapping[str, object], key: str) -> list[tuple[str, str]]:
        fingerprints: list[tuple[str, str]] = []
        for at, written in self._strings(table.get("fingerprints"), key):
            if _FINGERPRINT.fullmatch(written) is None:
                self._problem(f"{key}[{at}]", "64 hex digits (SHA-256 of the certificate's DER)", repr(written))
            else:
                fingerprints.append((f"{key}[{at}]", written.replace(":", "").lower()))
        return fingerprints

    def _rights(self, principal: Principal) -> Rights:
        held = [self._capabilities[name] for name in principal.capabilities]
        return Rights(
            tuple(dict.fromkeys(glob for capability in held for glob in capability.send)),
            tuple(dict.fromkeys(glob for capability in held for glob in capability.receive)),
            frozenset(right for capability in held for right in capability.admin),
            principal.owns,
            self._limits,
            any(capability.bridge for capability in held),
            any(capability.pii for capability in held),
        )

    def _flag(self, table: Mapping[str, object], key: str, name: str) -> bool:
        value = table.get(name, False)
        if not isinstance(value, bool):
            self._problem(f"{key}.{name}", "true or false", _found(value))
        return value is True

    def _globs(self, value: object, key: str) -> tuple[Glob, ...]:
        globs: list[Glob] = []
        for at, text in self._strings(value, key):
            try:
                globs.append(compile_glob(text, self._limits))
            except GlobError as error:
                self._problem(f"{key}[{at}]", "a glob over destinations", f"{text!r}: {error}")
        return tuple(globs)

    def _strings(self, value: object, key: str) -> list[tuple[int, str]]:
        """Return the strings of an array, each with its place."""
        strings: list[tuple[int, str]] = []
        for at, element in enumerate(self._array(value, key)):
            if isinstance(element, str):
                strings.append((at, element))
            else:
                self._problem(f"{key}[{at}]", "a string", _found(element))
        return strings

    def _array(self, value: object, key: str) -> list[object]:
        if isinstance(value, list):
            return value
        self._problem(key, "an array", _found(value))
        return []

    def _tables(self, value: object, key: str) -> list[tuple[str, object]]:
        return list(self._table(value, key).items())

    def _table(self, value: object, key: str) -> dict[str, object]:
        if isinstance(value, dict):
            return value
        self._problem(key, "a table", _found(value))
        return {}

    def _check_keys(self, table: Mapping[str, object], key: str, known: tuple[str, ...]) -> None:
        for name in table:
            if name not in known:
                self._problem(
                    f"{key}.{written_key(name)}" if key else written_key(name), _one_of(known), "an unknown key"
                )

    def _found_problem(self, key: str, expected: str, found: object) -> None:
        self._problem(key, expected, _found(found))

    def _problem(self, key: str, expected: str, found: str) -> None:
        self._problems.append(PolicyError(f"expected {expected}, found {found}", self._source, key))


def _one_of(names: Iterable[str]) -> str:
    listed = ", ".join(sorted(names))
    return f"one of {listed}" if listed else "no name, as none is defined"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str | int | float):
        return repr(value)
    return {"dict": "a table", "list": "an array"}.get(type(value).__name__, f"a {type(value).__name__}")
