"""The policy file that enrolment writes: its principals and renewed certificates. `broker.policy.load_policies` defines it."""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self, final

_HEAD: Final = """\
# Written by the enrolment listener of maxam-gateway: changes by hand may be lost.
# See it with `maxam-admin enrolment list`, take somebody out with `maxam-admin enrolment remove`.
"""


@final
@dataclass(frozen=True, slots=True)
class EnrolledPrincipal:
    """A principal that was enrolled.

    Attributes:
        name: Of the principal.
        fingerprints: Of its certificates, oldest first.
        capabilities: Names of the operators' capabilities.
        owns: Globs to which its sends are narrowed. None does not narrow them.
    """

    name: str
    fingerprints: tuple[str, ...]
    capabilities: tuple[str, ...]
    owns: tuple[str, ...] | None


@final
@dataclass(frozen=True, slots=True)
class Renewal:
    """The renewals of one certificate that operators gave to a principal.

    Attributes:
        renews: Its fingerprint.
        fingerprints: Of those that stand for the same principal, for as long as it is in the operators' file.
        retired: The certificate itself no longer stands for a principal.
    """

    renews: str
    fingerprints: tuple[str, ...]
    retired: bool


@final
@dataclass(frozen=True, slots=True)
class EnrolledPolicy:
    """The file as a value; every change gives another."""

    principals: tuple[EnrolledPrincipal, ...] = ()
    renewals: tuple[Renewal, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read a file that `load_policies` has found to be good."""
        document: dict[str, Any] = tomllib.loads(text.decode())
        return cls(
            tuple(
                EnrolledPrincipal(
                    table["name"],
                    tuple(table["fingerprints"]),
                    tuple(table.get("capabilities", ())),
                    tuple(table["owns"]) if "owns" in table else None,
                )
                for table in document.get("principals", ())
            ),
            tuple(
                Renewal(table["renews"], tuple(table["fingerprints"]), table.get("retired", False))
                for table in document.get("renewals", ())
            ),
        )

    def render(self) -> bytes:
        """Write it."""
        lines = [_HEAD]
        for one in self.principals:
            lines += ["[[principals]]", f"name = {_string(one.name)}", f"fingerprints = {_array(one.fingerprints)}"]
            lines += [f"capabilities = {_array(one.capabilities)}"]
            lines += [] if one.owns is None else [f"owns = {_array(one.owns)}"]
            lines += [""]
        for renewal in self.renewals:
            lines += ["[[renewals]]", f"renews = {_string(renewal.renews)}"]
            lines += [f"fingerprints = {_array(renewal.fingerprints)}"]
            lines += ["retired = true"] if renewal.retired else []
            lines += [""]
        return "\n".join(lines).encode()

    def with_principal(self, principal: EnrolledPrincipal) -> "EnrolledPolicy":
        """Add a principal, unless it is there."""
        return self if principal in self.principals else replace(self, principals=(*self.principals, principal))

    def without(self, name: str) -> "EnrolledPolicy":
        """Take a principal out."""
        return replace(self, principals=tuple(one for one in self.principals if one.name != name))

    def renewed(self, old: str, new: str) -> "EnrolledPolicy":
        """Let a new fingerprint stand for whomever the old one stands for, beside it."""
        principals = tuple(
            replace(one, fingerprints=_with(one.fingerprints, new)) if old in one.fingerprints else one
            for one in self.principals
        )
        renewals = tuple(
            replace(one, fingerprints=_with(one.fingerprints, new))
            if old == one.renews or old in one.fingerprints
            else one
            for one in self.renewals
        )
        known = any(old in one.fingerprints for one in self.principals)
        known = known or any(old == one.renews or old in one.fingerprints for one in self.renewals)
        return EnrolledPolicy(principals, renewals if known else (*renewals, Renewal(old, (new,), retired=False)))

    def retired(self, old: str) -> "EnrolledPolicy":
        """Retire a fingerprint that was renewed, so that it stands for no principal. The last one of a principal stays."""
        return EnrolledPolicy(
            tuple(
                replace(one, fingerprints=_without(one.fingerprints, old)) if one.fingerprints != (old,) else one
                for one in self.principals
            ),
            tuple(
                replace(one, retired=True)
                if old == one.renews and one.fingerprints
                else replace(one, fingerprints=_without(one.fingerprints, old))
                if one.fingerprints != (old,)
                else one
                for one in self.renewals
            ),
        )


def _with(fingerprints: tuple[str, ...], new: str) -> tuple[str, ...]:
    return fingerprints if new in fingerprints else (*fingerprints, new)


def _without(fingerprints: tuple[str, ...], old: str) -> tuple[str, ...]:
    return tuple(one for one in fingerprints if one != old)


def _string(text: str) -> str:
    # A string of JSON is one of TOML, with two exceptions: DEL, and half characters, which no file that was read holds.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _array(texts: Iterable[str]) -> str:
    return "[" + ", ".join([_string(text) for text in texts]) + "]"
