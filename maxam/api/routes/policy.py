"""The route that explains why the policy in force allows something or not."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Final, TypeVar, get_args

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError
from maxam.api.description import TEXT, described, listed, nullable, one_of, record
from maxam.api.parameters import Parameter, glob, text
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.broker.explaining import Verdict, explain_receive, explain_send

STATES_MAX: Final = 1000  # that globs may be in together when they are compared: a few ms
_T = TypeVar("_T")
_D = TypeVar("_D")
_PRINCIPAL: Final = text("principal", "name of the principal; or")
_FINGERPRINT: Final = text("fingerprint", "fingerprint of its certificate")
_SEND: Final = text("send", "the destination of a SEND; or")
_RECEIVE: Final = glob("receive", "a glob to subscribe to")
_GRANT: Final = record("Grant", by=TEXT, file=TEXT, place=TEXT, glob=TEXT, match=TEXT)


@Description(
    "Explain why the policy in force allows or forbids something",
    record(
        "Explanation",
        principal=TEXT,
        action=one_of("send", "receive"),
        target=TEXT,
        verdict=one_of(*get_args(Verdict)),
        why=TEXT,
        decisive=listed(_GRANT),
        grants=listed(_GRANT),
        owns=nullable(listed(_GRANT)),
        example=TEXT,
        remedies=listed(TEXT),
        will=described(TEXT, "the last will that the policy binds to the principal; empty without one"),
    ),
    (_PRINCIPAL, _FINGERPRINT, _SEND, _RECEIVE),
    errors={404: "`not-found`: the policy does not list the certificate."},
)
async def _explain(call: Call) -> Response:
    principal, fingerprint = _one(call, _PRINCIPAL, _FINGERPRINT)
    destination, wanted = _one(call, _SEND, _RECEIVE)
    policy = call.view.policy
    if fingerprint is not None:
        fingerprint = fingerprint.replace(":", "").lower()
        principal = policy.principal_of(fingerprint)
        if principal is None:
            raise not_found(f"the policy has no principal for the fingerprint {fingerprint}")
    name = principal or ""
    if wanted is not None:
        return Answer(asdict(await trio.to_thread.run_sync(explain_receive, policy, name, wanted, STATES_MAX)))
    bytes_max = call.gateway.broker.limits.destination_bytes_max
    return Answer(asdict(explain_send(policy, name, destination or "", bytes_max)))


def _one(call: Call, first: Parameter[_T], second: Parameter[_D]) -> tuple[_T, _D]:
    """Return two parameters of which exactly one is given; raises ApiError."""
    if (call[first] is None) == (call[second] is None):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"give either {first.name} or {second.name}")
    return call[first], call[second]


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/policy/explain", "read", _explain),)
