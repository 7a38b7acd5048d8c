"""Routes of the policy in force: principals with their rights and certificates, and why something is allowed or not."""

from bisect import bisect_right
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final, get_args

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.description import (
    COUNT,
    FLAG,
    HEX,
    TEXT,
    TIME,
    Schema,
    described,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.api.listener import CHAIN
from maxam.api.parameters import LIMIT, Parameter, choice, glob, text
from maxam.api.routing import ANY_CERTIFICATE, ANY_PRINCIPAL, Call, Description, RouteSpec, not_found
from maxam.avro.json.decoding import iso_time
from maxam.broker.explaining import Explanation, Verdict, explain_receive, explain_right, explain_send
from maxam.broker.policy import ADMIN_RIGHTS, Principal
from maxam.gateway.seen_certificates import Seen
from maxam.globs import Glob

STATES_MAX: Final = 1000  # that globs may be in together when they are compared: a few ms
ROWS_PER_SLICE: Final = 50  # made before the event loop runs other tasks: less than 1 ms
_SESSIONS_PER_SLICE: Final = 1000  # counted before the event loop runs other tasks: less than 1 ms
_PRINCIPAL: Final = text("principal", "name of the principal; or")
_FINGERPRINT: Final = text("fingerprint", "fingerprint of its certificate")
_SEND: Final = text("send", "the destination of a SEND; or")
_RECEIVE: Final = glob("receive", "a glob to subscribe to; or")
_RIGHT: Final = choice("right", "an admin right", tuple(sorted(ADMIN_RIGHTS)), None)
_FIND: Final = text("find", "only principals with this text in their name or in that of a capability")
_AFTER: Final = text("after", "`next` of the page before. Without it, begin")
_GRANT: Final = record("Grant", by=TEXT, file=TEXT, place=TEXT, glob=TEXT, match=TEXT)
_ACTION: Final = one_of("send", "receive", "admin")
_VERDICT: Final = one_of(*get_args(Verdict))
_RIGHTS: Final[dict[str, Schema]] = {
    "capabilities": listed(TEXT),
    "admin": listed(described(TEXT, "its admin rights")),
    "send": listed(described(TEXT, "globs that its capabilities let it send to")),
    "receive": listed(described(TEXT, "globs that it may receive")),
    "owns": nullable(described(listed(TEXT), "globs that narrow its sends; null if they are not narrowed")),
    "bridge": FLAG,
    "pii": FLAG,
}
_CERTIFICATE: Final = record(
    "PrincipalCertificate",
    fingerprint=HEX,
    last_seen_at=nullable(described(TIME, "null if it was not used since the start")),
    valid_until=nullable(described(TIME, "null until it was used since the start")),
    address=nullable(described(TEXT, "the last one")),
)
_ROW: Final = record(
    "Principal",
    principal=TEXT,
    file=described(TEXT, "the policy file that has it"),
    place=described(TEXT, "where in the file"),
    enrolled=described(FLAG, "it was enrolled by a token"),
    **_RIGHTS,
    certificates=listed(_CERTIFICATE),
    last_seen_at=nullable(described(TIME, "now while it is connected. Null if it did not come since the start")),
    valid_until=nullable(described(TIME, "of the certificate that it used last")),
    sessions=COUNT,
    connected=described(COUNT, "sessions with a connection"),
)


@Description(
    "Principals of the policy in force with rights, certificates and sessions, in order of their names",
    page("principals", _ROW, since=described(TIME, "the start of the gateway, since which use is known")),
    (_PRINCIPAL, _FIND, _AFTER, LIMIT),
)
async def _principals(call: Call) -> Response:
    policy, after, wanted = call.view.policy, call[_AFTER], call[_PRINCIPAL]
    find = (call[_FIND] or "").lower()
    names = sorted(policy.principals) if wanted is None else [name for name in (wanted,) if name in policy.principals]
    names = names[0 if after is None else bisect_right(names, after) :]
    if find:
        names = [name for name in names if find in "\n".join([name, *policy.principals[name].capabilities]).lower()]
    following = names[call[LIMIT] - 1] if len(names) > call[LIMIT] else None
    names = names[: call[LIMIT]]
    fingerprints: dict[str, list[str]] = {name: [] for name in names}
    for fingerprint, name in policy.fingerprints.items():
        if name in fingerprints:
            fingerprints[name].append(fingerprint)
    rows = Rows("principals")
    for start in range(0, len(names), ROWS_PER_SLICE):
        rows.add(
            [
                await _row(call, policy.principals[name], fingerprints[name])
                for name in names[start : start + ROWS_PER_SLICE]
            ]
        )
        await trio.lowlevel.checkpoint()
    return rows.answer(following, since=iso_time(call.gateway.started_at_us))


async def _row(call: Call, principal: Principal, fingerprints: list[str]) -> dict[str, object]:
    seen = call.gateway.seen
    used = [(one, seen.of(principal.name, one)) for one in fingerprints]
    uses = [one for _, one in used if one is not None]
    ticket = seen.of(principal.name, "")  # a page has no certificate
    last = max(uses, key=lambda one: one.at_us, default=None)
    sessions, connected = await _sessions(call, principal.name)
    at_us = max([one.at_us for one in (*uses, ticket) if one is not None], default=0)
    if connected:
        at_us = call.gateway.clock.now_us()
    enrolled = call.gateway.settings.policy.enrolled
    return {
        "principal": principal.name,
        "file": principal.file,
        "place": principal.place,
        "enrolled": enrolled is not None and principal.file == str(enrolled),
        **_rights(call, principal),
        "certificates": [_certificate(fingerprint, one) for fingerprint, one in used],
        "last_seen_at": iso_time(at_us) if at_us else None,
        "valid_until": (last.valid_until or None) if last is not None else None,
        "sessions": sessions,
        "connected": connected,
    }


def _certificate(fingerprint: str, seen: Seen | None) -> dict[str, object]:
    return {
        "fingerprint": fingerprint,
        "last_seen_at": None if seen is None else iso_time(seen.at_us),
        "valid_until": None if seen is None else seen.valid_until or None,
        "address": None if seen is None else seen.address or None,
    }


async def _sessions(call: Call, principal: str) -> tuple[int, int]:
    """Return the number of sessions of a principal, and of those with a connection."""
    sessions = call.gateway.broker.sessions
    count = connected = 0
    for key in sessions.irange((principal, "")):
        if key[0] != principal:
            break
        count += 1
        session = sessions[key]
        connected += session.connection is not None or bool(session.holder)
    if count >= _SESSIONS_PER_SLICE:
        await trio.lowlevel.checkpoint()
    return count, connected


def _rights(call: Call, principal: Principal) -> dict[str, object]:
    capabilities = [call.view.policy.capabilities[name] for name in dict.fromkeys(principal.capabilities)]
    return {
        "capabilities": list(principal.capabilities),
        "admin": sorted({right for one in capabilities for right in one.admin}),
        "send": list(dict.fromkeys(glob.text for one in capabilities for glob in one.send)),
        "receive": list(dict.fromkeys(glob.text for one in capabilities for glob in one.receive)),
        "owns": None if principal.owns is None else [glob.text for glob in principal.owns],
        "bridge": any(one.bridge for one in capabilities),
        "pii": any(one.pii for one in capabilities),
    }


_NO_RIGHTS: Final[dict[str, object]] = {name: [] for name in _RIGHTS} | {"owns": None, "bridge": False, "pii": False}


@Description(
    "The principal of your certificate, and its rights",
    record(
        "WhoAmI",
        principal=nullable(described(TEXT, "null if the policy has no principal for the certificate")),
        fingerprint=HEX,
        valid_until=nullable(TIME),
        **_RIGHTS,
    ),
)
async def _whoami(call: Call) -> Response:
    principal = call.view.policy.principals.get(call.caller.principal)
    return Answer(
        {
            "principal": None if principal is None else principal.name,
            "fingerprint": call.caller.fingerprint,
            "valid_until": call.gateway.access.valid_until(call.request.scope["state"][CHAIN]),
            **(_NO_RIGHTS if principal is None else _rights(call, principal)),
        }
    )


@Description(
    "Whether your principal may send, receive or administer something",
    record(
        "CanI",
        action=_ACTION,
        target=TEXT,
        verdict=_VERDICT,
        why=TEXT,
        example=described(TEXT, "a destination that may not be received, when only a part may be"),
    ),
    (_SEND, _RECEIVE, _RIGHT),
)
async def _can_i(call: Call) -> Response:
    found = await _explained(call, call.caller.principal)
    return Answer({name: getattr(found, name) for name in ("action", "target", "verdict", "why", "example")})


@Description(
    "Explain why the policy in force allows or forbids something",
    record(
        "Explanation",
        principal=TEXT,
        action=_ACTION,
        target=TEXT,
        verdict=_VERDICT,
        why=TEXT,
        decisive=listed(_GRANT),
        grants=listed(_GRANT),
        owns=nullable(listed(_GRANT)),
        example=TEXT,
        remedies=listed(TEXT),
        will=described(TEXT, "the last will that the policy binds to the principal; empty without one"),
    ),
    (_PRINCIPAL, _FINGERPRINT, _SEND, _RECEIVE, _RIGHT),
    errors={404: "`not-found`: the policy does not list the certificate."},
)
async def _explain(call: Call) -> Response:
    _one(call, _PRINCIPAL, _FINGERPRINT)
    principal, fingerprint = call[_PRINCIPAL], call[_FINGERPRINT]
    if fingerprint is not None:
        fingerprint = fingerprint.replace(":", "").lower()
        principal = call.view.policy.principal_of(fingerprint)
        if principal is None:
            raise not_found(f"the policy has no principal for the fingerprint {fingerprint}")
    return Answer(asdict(await _explained(call, principal or "")))


async def _explained(call: Call, principal: str) -> Explanation:
    """Explain what a principal may do with the destination, the glob or the right of the query; raises ApiError."""
    _one(call, _SEND, _RECEIVE, _RIGHT)
    policy = call.view.policy
    wanted: Glob | None = call[_RECEIVE]
    if wanted is not None:
        return await trio.to_thread.run_sync(explain_receive, policy, principal, wanted, STATES_MAX)
    right = call[_RIGHT]
    if right is not None:
        return explain_right(policy, principal, right)
    return explain_send(policy, principal, call[_SEND] or "", call.gateway.broker.limits.destination_bytes_max)


def _one(call: Call, *parameters: Parameter[Any]) -> None:
    """Check that exactly one of some parameters is given; raises ApiError."""
    if sum(call[one] is not None for one in parameters) != 1:
        names = [one.name for one in parameters]
        wanted = f"either {names[0]} or {names[1]}" if len(names) == 2 else f"one of {', '.join(names)}"
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"give {wanted}")


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/policy/explain", "read", _explain),
    ("GET", "/v1/principals", "read", _principals),
    ("GET", "/v1/whoami", ANY_CERTIFICATE, _whoami),
    ("GET", "/v1/can-i", ANY_PRINCIPAL, _can_i),
)
