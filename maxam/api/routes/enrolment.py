"""Routes of enrolment for operators: one-time tokens, and the principals that were enrolled."""

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.bodies import read_body
from maxam.api.description import (
    COUNT,
    FLAG,
    HEX,
    TEXT,
    TIME,
    described,
    extended,
    listed,
    nullable,
    record,
    row_of,
)
from maxam.api.parameters import text
from maxam.api.routing import Call, Description, RouteSpec
from maxam.enrolment.enrolment import Enrolment
from maxam.enrolment.policy_file import EnrolledPrincipal, Renewal
from maxam.enrolment.tokens import RefusedError, Token

_INVALID: Final = "invalid-token"  # code of the error for a body that is not valid
_ENROL: Final = "enrol"  # the admin right
_ROWS_PER_SLICE: Final = 100  # written before the event loop runs other tasks: less than 1 ms
_PRINCIPAL: Final = text("principal", "name of the principal", required=True)
_TOKEN: Final = record(
    "TokenRow",
    id=TEXT,
    principal=TEXT,
    capabilities=listed(TEXT),
    owns=nullable(listed(TEXT)),
    made_by=TEXT,
    made_at=TIME,
    expires_at=TIME,
    used_at=described(TEXT, "empty until it is used"),
)
_WISH: Final = record(
    "TokenWish",
    ("capabilities", "owns", "minutes"),
    principal={"type": "string", "minLength": 1},
    capabilities=listed(TEXT),
    owns=nullable(listed(TEXT)),
    minutes={"type": "integer", "default": 60},
)
_ENROLLED: Final = record(
    "Enrolled", principal=TEXT, fingerprints=listed(HEX), capabilities=listed(TEXT), owns=nullable(listed(TEXT))
)
_RENEWAL: Final = record("Renewal", renews=TEXT, fingerprints=listed(HEX), retired=FLAG)
_OFF: Final = {409: "`enrolment-off`: this gateway has no enrolment."}


@Description(
    "Make a one-time token with which a client enrols itself",
    extended(_TOKEN, "Token", token=TEXT, ca_sha256=HEX, host=TEXT, port=COUNT),
    body=_WISH,
    errors={
        400: "`invalid-token`: the body, or a part of the wish, is not valid.",
        403: "`beyond-maker`: a right that the caller does not hold.",
        409: "`enrolment-off`, `principal-exists`, `token-exists`.",
    },
)
async def _make_token(call: Call) -> Response:
    enrolment = _enrolment(call)
    wanted = await read_body(call.request, _WISH, _INVALID)
    minutes, owns = wanted.get("minutes"), wanted.get("owns")
    try:
        token, secret = await enrolment.make_token(
            call.caller, wanted["principal"], wanted.get("capabilities") or [], owns, 60 if minutes is None else minutes
        )
    except RefusedError as error:
        raise ApiError(error.status, error.code, str(error)) from error
    host, port = enrolment.address
    return Answer(_token_row(token) | {"token": secret, "ca_sha256": enrolment.pinned, "host": host, "port": port})


@Description("Tokens of the last 30 days", record(tokens=listed(_TOKEN)), errors=_OFF)
async def _tokens(call: Call) -> Response:
    rows = Rows("tokens")
    await rows.add_all(_enrolment(call).tokens(), _ROWS_PER_SLICE, _token_row)
    return rows.within()


@Description(
    "Revoke a token that was not used",
    record(id=TEXT, revoked={"const": True}),
    errors=_OFF | {404: "`not-found`: there is no unused token with this id."},
)
async def _revoke_token(call: Call) -> Response:
    token_id = call.segment("id")
    if not await _asked(_enrolment(call).revoke_token(token_id)):
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no token {token_id} waits to be used")
    return Answer({"id": token_id, "revoked": True})


@Description(
    "Principals that were enrolled",
    record(principals=listed(_ENROLLED), renewals=listed(_RENEWAL)),
    errors=_OFF,
)
async def _enrolled(call: Call) -> Response:
    policy = await _asked(_enrolment(call).enrolled())
    principals, renewals = Rows("principals"), Rows("renewals")
    await principals.add_all(policy.principals, _ROWS_PER_SLICE, _principal_row)
    await renewals.add_all(policy.renewals, _ROWS_PER_SLICE, _renewal_row)
    return principals.within(renewals)


@Description(
    "Remove a principal that was enrolled",
    record(principal=TEXT, removed={"const": True}),
    (_PRINCIPAL,),
    errors=_OFF | {404: "`not-found`."},
)
async def _remove(call: Call) -> Response:
    principal = call[_PRINCIPAL] or ""
    if not await _asked(_enrolment(call).remove(principal)):
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no principal {principal!r} has been enrolled")
    return Answer({"principal": principal, "removed": True})


def _enrolment(call: Call) -> Enrolment:
    if call.view.enrolment is None:
        raise ApiError(
            HTTPStatus.CONFLICT,
            "enrolment-off",
            "this gateway has no enrolment: see [enrolment] folder of its configuration",
        )
    return call.view.enrolment


async def _asked(asked: Awaitable[Any]) -> Any:  # noqa: ANN401  # whatever it comes to
    try:
        return await asked
    except RefusedError as error:
        raise ApiError(error.status, error.code, str(error)) from error


def _token_row(token: Token) -> dict[str, object]:
    return row_of(_TOKEN, token)


def _principal_row(one: EnrolledPrincipal) -> dict[str, object]:
    return row_of(_ENROLLED, one, principal=one.name)


def _renewal_row(one: Renewal) -> dict[str, object]:
    return row_of(_RENEWAL, one)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("POST", "/v1/enrolment-tokens", _ENROL, _make_token),
    ("GET", "/v1/enrolment-tokens", _ENROL, _tokens),
    ("DELETE", "/v1/enrolment-tokens/{id}", _ENROL, _revoke_token),
    ("GET", "/v1/enrolments", _ENROL, _enrolled),
    ("DELETE", "/v1/enrolments", _ENROL, _remove),
)
