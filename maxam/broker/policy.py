"""Who may do what: `policy.toml` as an immutable object. What no rule allows is denied."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from maxam.config import Limits
from maxam.errors import GlobError, PolicyError
from maxam.globs import Glob, compile_glob

ADMIN_RIGHTS: Final = frozenset({"read", "write", "metrics", "enrol"})
ANONYMOUS_PREFIX: Final = "fingerprint:"  # principals of unknown clients: no principal of a policy is called so
_PRINCIPAL_CHARACTERS_MAX: Final = 128
_DECISIONS_MAX: Final = 4096  # destinations remembered per principal and direction: topics remember too
_FINGERPRINT: Final = re.compile(r"[0-9A-Fa-f]{64}|(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}")


@final
class Rights:
    """What one principal may do.

    Destinations are asked for again and again, so decisions are remembered, a bounded number of them.

    Attributes:
        admin: Which of `read`, `write`, `metrics` and `enrol` it may on the admin listener.
    """

    __slots__ = ("_bytes_max", "_owns", "_receive", "_receive_decisions", "_send", "_send_decisions", "admin")

    def __init__(
        self,
        send: tuple[Glob, ...],
        receive: tuple[Glob, ...],
        admin: frozenset[str],
        owns: tuple[Glob, ...] | None,
        limits: Limits,
    ) -> None:
        self.admin: Final = admin
        self._send: Final = send
        self._receive: Final = receive
        self._owns: Final = owns
        self._bytes_max: Final = limits.destination_bytes_max
        self._send_decisions: Final[dict[bytes, bool]] = {}
        self._receive_decisions: Final[dict[bytes, bool]] = {}

    def may_send(self, destination: bytes) -> bool:
        """Tell whether it may SEND to a destination, given as UTF-8. Never to one that is not well-formed."""
        known = self._send_decisions.get(destination)
        return self._decide_send(destination) if known is None else known

    def may_receive(self, destination: bytes) -> bool:
        """Tell whether it may receive a topic, given as UTF-8."""
        known = self._receive_decisions.get(destination)
        return self._decide_receive(destination) if known is None else known

    def receives_all_of(self, other: "Rights") -> bool:
        """Tell whether it may surely receive whatever `other` may: it was granted the same globs, or more."""
        return set(other._receive) <= set(self._receive)  # noqa: SLF001  # of its own kind

    def can_receive_any(self, glob: Glob) -> bool:
        """Tell whether there is a destination that the glob matches and that it may receive."""
        return any(granted.overlaps(glob) for granted in self._receive)

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


@final
class Policy:
    """Which principal a certificate stands for, and the rights of each; see `load_policy`."""

    __slots__ = ("_nobody", "_principals", "_rights")

    def __init__(self, principals: Mapping[str, str], rights: Mapping[str, Rights], limits: Limits) -> None:
        self._principals: Final = dict(principals)  # by fingerprint
        self._rights: Final = dict(rights)
        self._nobody: Final = Rights((), (), frozenset(), None, limits)

    def principal_of(self, fingerprint: str) -> str | None:
        """Give the principal of a certificate's SHA-256 in 64 lower-case hex digits; None when it is unknown."""
        return self._principals.get(fingerprint)

    def rights(self, principal: str) -> Rights:
        """Give the rights of a principal: none at all when the policy does not know it."""
        return self._rights.get(principal, self._nobody)


@dataclass(frozen=True, slots=True)
class _Capability:
    send: tuple[Glob, ...]
    receive: tuple[Glob, ...]
    admin: tuple[str, ...]


def load_policy(text: bytes, source: str, limits: Limits) -> Policy:
    """Load a policy.

    Args:
        text: The TOML file.
        source: Its name, for error texts.
        limits: Bounds of the globs.

    Raises:
        PolicyError: It cannot be used; the text names source, key, what was expected and what was found.
    """
    try:
        document = tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        raise PolicyError(f"{source}: byte {error.start}: expected UTF-8") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise PolicyError(f"{source}: expected TOML: {error}") from None
    return _Loader(source, limits).load(document)


@final
class _Loader:
    """Reads one parsed document, and says where in it something is wrong."""

    __slots__ = ("_limits", "_source")

    def __init__(self, source: str, limits: Limits) -> None:
        self._source: Final = source
        self._limits: Final = limits

    def load(self, document: Mapping[str, object]) -> Policy:
        self._check_keys(document, "", ("capabilities", "principals"))
        capabilities = {
            name: self._capability(value, f"capabilities.{_key(name)}")
            for name, value in self._table(document.get("capabilities", {}), "capabilities").items()
        }
        fingerprints: dict[str, str] = {}
        rights: dict[str, Rights] = {}
        for at, value in enumerate(self._array(document.get("principals", []), "principals")):
            key = f"principals[{at}]"
            table = self._table(value, key)
            self._check_keys(table, key, ("name", "fingerprints", "capabilities", "owns"))
            name = self._principal_name(table.get("name"), f"{key}.name")
            if name in rights:
                raise self._error(f"{key}.name", "a name of its own", f"another principal called {name!r}")
            key = f"{key} ({name!r})"
            for where, fingerprint in self._fingerprints(table, f"{key}.fingerprints"):
                owner = fingerprints.setdefault(fingerprint, name)
                if owner != name:
                    raise self._error(where, "a certificate of one principal", f"{fingerprint}, which is {owner!r} too")
            rights[name] = self._rights(table, key, capabilities)
        return Policy(fingerprints, rights, self._limits)

    def _capability(self, value: object, key: str) -> _Capability:
        table = self._table(value, key)
        self._check_keys(table, key, ("send", "receive", "admin"))
        admin = self._strings(table.get("admin", []), f"{key}.admin")
        for at, right in enumerate(admin):
            if right not in ADMIN_RIGHTS:
                raise self._error(f"{key}.admin[{at}]", _one_of(ADMIN_RIGHTS), repr(right))
        return _Capability(
            self._globs(table.get("send", []), f"{key}.send"),
            self._globs(table.get("receive", []), f"{key}.receive"),
            tuple(admin),
        )

    def _principal_name(self, value: object, key: str) -> str:
        if isinstance(value, str) and 0 < len(value) <= _PRINCIPAL_CHARACTERS_MAX and value.isprintable():
            if not value.startswith(ANONYMOUS_PREFIX):
                return value
            expected = f"a name that does not start with {ANONYMOUS_PREFIX!r} (unknown clients are called so)"
        else:
            expected = f"1 to {_PRINCIPAL_CHARACTERS_MAX} printable characters"
        raise self._error(key, expected, _found(value))

    def _fingerprints(self, table: Mapping[str, object], key: str) -> list[tuple[str, str]]:
        fingerprints: list[tuple[str, str]] = []
        for at, written in enumerate(self._strings(table.get("fingerprints"), key)):
            if _FINGERPRINT.fullmatch(written) is None:
                raise self._error(f"{key}[{at}]", "64 hex digits (SHA-256 of the certificate's DER)", repr(written))
            fingerprints.append((f"{key}[{at}]", written.replace(":", "").lower()))
        return fingerprints

    def _rights(self, table: Mapping[str, object], key: str, capabilities: Mapping[str, _Capability]) -> Rights:
        held: list[_Capability] = []
        for at, name in enumerate(self._strings(table.get("capabilities", []), f"{key}.capabilities")):
            if name not in capabilities:
                raise self._error(f"{key}.capabilities[{at}]", _one_of(capabilities), repr(name))
            held.append(capabilities[name])
        # `owns = []` owns nothing, and so may send nothing; only without the key are sends not narrowed.
        owns = self._globs(table["owns"], f"{key}.owns") if "owns" in table else None
        return Rights(
            tuple(dict.fromkeys(glob for capability in held for glob in capability.send)),
            tuple(dict.fromkeys(glob for capability in held for glob in capability.receive)),
            frozenset(right for capability in held for right in capability.admin),
            owns,
            self._limits,
        )

    def _globs(self, value: object, key: str) -> tuple[Glob, ...]:
        globs: list[Glob] = []
        for at, text in enumerate(self._strings(value, key)):
            try:
                globs.append(compile_glob(text, self._limits))
            except GlobError as error:
                raise self._error(f"{key}[{at}]", "a glob over destinations", f"{text!r}: {error}") from None
        return tuple(globs)

    def _strings(self, value: object, key: str) -> list[str]:
        strings: list[str] = []
        for at, element in enumerate(self._array(value, key)):
            if not isinstance(element, str):
                raise self._error(f"{key}[{at}]", "a string", _found(element))
            strings.append(element)
        return strings

    def _array(self, value: object, key: str) -> list[object]:
        if not isinstance(value, list):
            raise self._error(key, "an array", _found(value))
        return value

    def _table(self, value: object, key: str) -> dict[str, object]:
        if not isinstance(value, dict):
            raise self._error(key, "a table", _found(value))
        return value

    def _check_keys(self, table: Mapping[str, object], key: str, known: tuple[str, ...]) -> None:
        for name in table:
            if name not in known:
                where = f"{key}.{_key(name)}" if key else _key(name)
                raise self._error(where, _one_of(known), "an unknown key")

    def _error(self, key: str, expected: str, found: str) -> PolicyError:
        return PolicyError(f"{self._source}: {key}: expected {expected}, found {found}")


def _key(name: str) -> str:
    """Write a key as TOML does: quoted unless it is a bare one."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name)


def _one_of(names: Iterable[str]) -> str:
    listed = ", ".join(sorted(names))
    return f"one of {listed}" if listed else "no name, as none is defined"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str | int | float):
        return repr(value)
    return {"dict": "a table", "list": "an array"}.get(type(value).__name__, f"a {type(value).__name__}")
