"""The route that says why the policy in force allows something or not."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Final, get_args

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, ApiError, RouteSpec, glob_of
from maxam.admin.description import TEXT, Parameter, described, listed, nullable, one_of, record
from maxam.admin.view import View
from maxam.broker.explaining import Verdict, explain_receive, explain_send
from maxam.records import Identity

STATES_MAX: Final = 1000  # that globs may be in together when they are compared: a few ms


GRANT: Final = record("Grant", by=TEXT, file=TEXT, place=TEXT, glob=TEXT, match=TEXT)


@described(
    "Why the policy in force allows something, or not",
    record(
        "Explanation",
        principal=TEXT,
        action=one_of("send", "receive"),
        target=TEXT,
        verdict=one_of(*get_args(Verdict)),
        why=TEXT,
        decisive=listed(GRANT),
        grants=listed(GRANT),
        owns=nullable(listed(GRANT)),
        example=TEXT,
        remedies=listed(TEXT),
    ),
    (
        Parameter("principal", TEXT, "whose rights; or"),
        Parameter("fingerprint", TEXT, "of whose certificate"),
        Parameter("send", TEXT, "the destination of a SEND; or"),
        Parameter("receive", TEXT, "a glob to subscribe to"),
    ),
    errors={400: "`invalid-glob`.", 404: "`not-found`: the policy does not name the certificate."},
)
async def _explain(view: View, request: Request, _caller: Identity) -> Response:
    principal, fingerprint = _one(request, "principal", "fingerprint")
    destination, glob_text = _one(request, "send", "receive")
    policy = view.policy
    if fingerprint is not None:
        fingerprint = fingerprint.replace(":", "").lower()
        principal = policy.principal_of(fingerprint)
        if principal is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND, "not-found", f"the policy names no principal for the fingerprint {fingerprint}"
            )
    name = principal or ""
    if destination is not None:
        return Answer(asdict(explain_send(policy, name, destination, view.destination_bytes_max)))
    glob = glob_of(view, glob_text or "")
    explanation = await trio.to_thread.run_sync(explain_receive, policy, name, glob, STATES_MAX)
    return Answer(asdict(explanation))


def _one(request: Request, first: str, second: str) -> tuple[str | None, str | None]:
    """Return two parameters of which exactly one is given; raises ApiError."""
    values = request.query_params.get(first), request.query_params.get(second)
    if (values[0] is None) == (values[1] is None):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"give either {first} or {second}")
    return values


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/policy/explain", "read", _explain),)
