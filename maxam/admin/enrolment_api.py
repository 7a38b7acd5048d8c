"""Enrolment over HTTP: what operators do on the admin listener, and EST (RFC 7030) for clients on a listener of its own.

Of EST: `cacerts`, `simpleenroll` with a token as the password of HTTP Basic (the user name does not matter), `simplereenroll` with the
certificate that is to be renewed, and `csrattrs`, which asks for nothing. Bodies are base64, as RFC 8951 says.
"""

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

import trio
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from maxam.admin.answers import Answer, ApiError, RouteSpec, Rows
from maxam.admin.authority import REQUEST_BYTES_MAX
from maxam.admin.description import (
    COUNT,
    FLAG,
    HEX,
    TEXT,
    TIME,
    Parameter,
    described,
    extended,
    listed,
    nullable,
    record,
)
from maxam.admin.enrolled_policy import EnrolledPrincipal, Renewal
from maxam.admin.enrolment import Attempts, Enrolment, RefusedError, Token
from maxam.admin.listener import CHAIN, FINGERPRINT
from maxam.admin.view import View
from maxam.gateway.audit import ENROLMENT
from maxam.gateway.log import LogLimit, log_event
from maxam.records import Identity

EST: Final = "/.well-known/est"
_BODY_BYTES_MAX: Final = REQUEST_BYTES_MAX * 3 // 2  # base64 with its line ends
_TIMEOUT_S: Final = 15.0
_ENROL: Final = "enrol"  # the admin right
_ROWS_PER_SLICE: Final = 100  # written before the event loop has its turn: less than 1 ms
_Found = TypeVar("_Found")
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="maxam enrolment", charset="UTF-8"'}
_CERTIFICATES: Final = {  # application/pkcs7-mime is the type; the parameter is RFC 7030's
    "content-type": "application/pkcs7-mime; smime-type=certs-only",
    "content-transfer-encoding": "base64",
}


# For operators.


TOKEN: Final = record(
    "TokenRow",
    id=TEXT,
    principal=TEXT,
    capabilities=listed(TEXT),
    owns=nullable(listed(TEXT)),
    made_by=TEXT,
    made_at=TIME,
    expires_at=TIME,
    used_at={"type": "string", "description": "empty until then"},
)
_OFF: Final = {409: "`enrolment-off`: this gateway enrols nobody."}


@described(
    "Make a one-time token with which a client enrols itself",
    extended(TOKEN, "Token", token=TEXT, ca_sha256=HEX, host=TEXT, port=COUNT),
    body=record(
        "TokenWish",
        ("capabilities", "owns", "minutes"),
        principal={"type": "string", "minLength": 1},
        capabilities=listed(TEXT),
        owns=nullable(listed(TEXT)),
        minutes={"type": "integer", "default": 60},
    ),
    errors={
        400: "`invalid-token`, or what of the wish cannot be.",
        403: "`beyond-maker`: a right that the caller does not hold.",
        409: "`enrolment-off`, `principal-exists`, `token-exists`.",
    },
)
async def _make_token(view: View, request: Request, caller: Identity) -> Response:
    enrolment = _enrolment(view)
    wanted = await _json_object(request)
    principal, minutes, owns = wanted.get("principal"), wanted.get("minutes", 60), wanted.get("owns")
    if not isinstance(principal, str) or not principal:
        raise _invalid("principal must be a text")
    if isinstance(minutes, bool) or not isinstance(minutes, int):
        raise _invalid("minutes must be a whole number")
    capabilities = _texts(wanted, "capabilities")
    owned = None if owns is None else _texts(wanted, "owns")
    try:
        "".join([principal, *capabilities, *(owned or ())]).encode()
    except UnicodeEncodeError as error:  # JSON can say so, and no file can hold it
        raise _invalid("texts must be whole characters, found half a surrogate pair") from error
    try:
        token, secret = await enrolment.make_token(caller, principal, capabilities, owned, minutes)
    except RefusedError as error:
        raise ApiError(error.status, error.code, str(error)) from error
    host, port = enrolment.address
    return Answer(_token_row(token) | {"token": secret, "ca_sha256": enrolment.pinned, "host": host, "port": port})


@described("Tokens of the last 30 days", record(tokens=listed(TOKEN)), errors=_OFF)
async def _tokens(view: View, _request: Request, _caller: Identity) -> Response:
    return (await _written("tokens", _enrolment(view).tokens(), _token_row)).within()


@described(
    "Take back a token that was not used",
    record(id=TEXT, revoked={"const": True}),
    errors=_OFF | {404: "`not-found`: no such token waits to be used."},
)
async def _revoke_token(view: View, request: Request, _caller: Identity) -> Response:
    token_id: str = request.path_params["id"]
    if not await _asked(_enrolment(view).revoke_token(token_id)):
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no token {token_id} waits to be used")
    return Answer({"id": token_id, "revoked": True})


@described(
    "Who was enrolled",
    record(
        principals=listed(
            record(
                "Enrolled",
                principal=TEXT,
                fingerprints=listed(HEX),
                capabilities=listed(TEXT),
                owns=nullable(listed(TEXT)),
            )
        ),
        renewals=listed(record("Renewal", renews=TEXT, fingerprints=listed(HEX), retired=FLAG)),
    ),
    errors=_OFF,
)
async def _enrolled(view: View, _request: Request, _caller: Identity) -> Response:
    policy = await _asked(_enrolment(view).enrolled())
    principals = await _written("principals", policy.principals, _principal_row)
    return principals.within(await _written("renewals", policy.renewals, _renewal_row))


@described(
    "Take out a principal that was enrolled",
    record(principal=TEXT, removed={"const": True}),
    (Parameter("principal", TEXT, "its name", required=True),),
    errors=_OFF | {404: "`not-found`."},
)
async def _remove(view: View, request: Request, _caller: Identity) -> Response:
    principal = request.query_params.get("principal", "")
    if not await _asked(_enrolment(view).remove(principal)):
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no principal {principal!r} has been enrolled")
    return Answer({"principal": principal, "removed": True})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("POST", "/v1/enrolment-tokens", _ENROL, _make_token),
    ("GET", "/v1/enrolment-tokens", _ENROL, _tokens),
    ("DELETE", "/v1/enrolment-tokens/{id}", _ENROL, _revoke_token),
    ("GET", "/v1/enrolments", _ENROL, _enrolled),
    ("DELETE", "/v1/enrolments", _ENROL, _remove),
)


def _enrolment(view: View) -> Enrolment:
    if view.enrolment is None:
        raise ApiError(
            HTTPStatus.CONFLICT,
            "enrolment-off",
            "this gateway enrols nobody: see [enrolment] folder of its configuration",
        )
    return view.enrolment


async def _asked(asked: Awaitable[Any]) -> Any:  # noqa: ANN401  # whatever it comes to
    try:
        return await asked
    except RefusedError as error:
        raise ApiError(error.status, error.code, str(error)) from error


async def _json_object(request: Request) -> dict[str, object]:
    try:
        value = await request.json()
    except (ValueError, RecursionError) as error:
        raise _invalid(f"the body must be JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    return value


def _texts(wanted: dict[str, object], name: str) -> list[str]:
    value = wanted.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _invalid(f"{name} must be a list of texts")
    return value


async def _written(name: str, found: Sequence[_Found], row: Callable[[_Found], dict[str, object]]) -> Rows:
    """Write all rows of a list, slice by slice."""
    rows = Rows(name)
    for start in range(0, len(found), _ROWS_PER_SLICE):
        rows.add([row(one) for one in found[start : start + _ROWS_PER_SLICE]])
        await trio.lowlevel.checkpoint()
    return rows


def _invalid(detail: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid-token", detail)


def _token_row(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "principal": token.principal,
        "capabilities": list(token.capabilities),
        "owns": None if token.owns is None else list(token.owns),
        "made_by": token.made_by,
        "made_at": token.made_at,
        "expires_at": token.expires_at,
        "used_at": token.used_at,
    }


def _principal_row(one: EnrolledPrincipal) -> dict[str, object]:
    return {
        "principal": one.name,
        "fingerprints": list(one.fingerprints),
        "capabilities": list(one.capabilities),
        "owns": None if one.owns is None else list(one.owns),
    }


def _renewal_row(one: Renewal) -> dict[str, object]:
    return {"renews": one.renews, "fingerprints": list(one.fingerprints), "retired": one.retired}


# For clients.

_Handler = Callable[[Enrolment, Request, str], Awaitable[Response]]


class _Text(Response):
    """A text for people, as EST wants errors."""

    media_type = "text/plain"


def make_est(
    enrolment: Enrolment, objection: Callable[[Any], str | None], failures_per_minute_max: int, log_limit: LogLimit
) -> Starlette:
    """Return the ASGI application of the enrolment listener.

    Args:
        enrolment: What it is about.
        objection: Says why a chain of certificates does not count any more.
        failures_per_minute_max: Of one address.
        log_limit: Of lines about refusals.
    """
    attempts = Attempts(failures_per_minute_max)

    def guarded(handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            address = "gone" if request.client is None else request.client.host
            wait_s = attempts.wait_s(address)
            if wait_s:
                return _Text("too many failed attempts\n", HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": str(wait_s)})
            try:
                with trio.move_on_after(_TIMEOUT_S):
                    return await handler(enrolment, request, address)
            except RefusedError as error:
                if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    attempts.failed(address)
                enrolment.audit.tell(
                    ENROLMENT, "refused", address=address, reason=f"{error.code}: {error}", path=request.scope["path"]
                )
                if log_limit.admit("enrolment-refused", address, trio.current_time()):
                    log_event(
                        logging.WARNING,
                        "enrolment-refused",
                        address=address,
                        path=request.scope["path"],
                        reason=error.code,
                        detail=error,
                    )
                headers = _CHALLENGE if error.status == HTTPStatus.UNAUTHORIZED else {}
                if error.status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}:
                    headers = {"retry-after": "60"}
                return _Text(f"{error}\n", error.status, headers)
            return _Text("not done in time; ask again\n", HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "60"})

        return endpoint

    async def renew(enrolment: Enrolment, request: Request, address: str) -> Response:
        state = request.scope.get("state", {})
        fingerprint = state.get(FINGERPRINT)
        if fingerprint is None:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "no-certificate",
                "show the certificate that is to be renewed, or enrol with a token",
            )
        problem = objection(state[CHAIN])
        if problem is not None:
            raise RefusedError(HTTPStatus.FORBIDDEN, "certificate-refused", problem)
        data = await _pkcs10(request)
        return _certificates([await enrolment.renew(fingerprint, data, address)])

    return Starlette(
        routes=[
            Route(f"{EST}/cacerts", guarded(_cacerts), methods=["GET"]),
            Route(f"{EST}/csrattrs", guarded(_csrattrs), methods=["GET"]),
            Route(f"{EST}/simpleenroll", guarded(_enrol), methods=["POST"]),
            Route(f"{EST}/simplereenroll", guarded(renew), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_bug},
    )


async def _cacerts(enrolment: Enrolment, _request: Request, _address: str) -> Response:
    return _certificates(enrolment.authorities)


async def _csrattrs(_enrolment: Enrolment, _request: Request, _address: str) -> Response:
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _enrol(enrolment: Enrolment, request: Request, address: str) -> Response:
    secret = _password(request.headers.get("authorization", ""))
    data = await _pkcs10(request)
    return _certificates([await enrolment.enrol(secret, data, address)])


def _password(authorization: str) -> str:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            pass
    raise RefusedError(
        HTTPStatus.UNAUTHORIZED, "no-token", "give the token as the password of HTTP Basic authentication"
    )


async def _pkcs10(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdigit() and len(declared) < 8 and int(declared) <= _BODY_BYTES_MAX):
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"a body needs a content-length of at most {_BODY_BYTES_MAX}",
        )
    body = await request.body()
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "bad-request", f"the body must be the DER of a PKCS 10 request in base64: {error}"
        ) from error


def _certificates(certificates: Any) -> Response:  # noqa: ANN401  # a sequence, for which cryptography wants a list
    der = pkcs7.serialize_certificates(list(certificates), Encoding.DER)
    return Response(base64.encodebytes(der), headers=_CERTIFICATES)


async def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for nothing else
    return _Text(f"{error.detail}\n", error.status_code)


async def _on_bug(_request: Request, _error: Exception) -> Response:
    return _Text("internal error\n", HTTPStatus.INTERNAL_SERVER_ERROR)
