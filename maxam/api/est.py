"""EST (RFC 7030): enrolment of clients, on a listener of its own.

These requests are served: `cacerts`, `simpleenroll`, `simplereenroll`, and `csrattrs`, whose answer is empty. `simpleenroll` takes a
token as the password of HTTP Basic; the user name does not matter. `simplereenroll` takes the certificate that is to be renewed.
Bodies are base64, as RFC 8951 specifies.
"""

import base64
import binascii
import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import trio
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from maxam.api.listener import CHAIN, FINGERPRINT
from maxam.enrolment.enrolment import Enrolment
from maxam.enrolment.tokens import RefusedError
from maxam.gateway.audit import ENROLMENT
from maxam.gateway.connect_rates import network_of_host
from maxam.gateway.log import LogLimit, log_event
from maxam.pki.authority import REQUEST_BYTES_MAX
from maxam.token_bucket import TokenBuckets

EST: Final = "/.well-known/est"
_BODY_BYTES_MAX: Final = REQUEST_BYTES_MAX * 3 // 2  # base64 with its line ends
_TIMEOUT_S: Final = 15.0
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="maxam enrolment", charset="UTF-8"'}
_CERTIFICATES: Final = {  # application/pkcs7-mime is the type; the parameter is RFC 7030's
    "content-type": "application/pkcs7-mime; smime-type=certs-only",
    "content-transfer-encoding": "base64",
}
_Handler = Callable[[Enrolment, Request, str], Awaitable[Response]]


class _Text(Response):
    """A text for people, as EST wants errors."""

    media_type = "text/plain"


def make_est(
    enrolment: Enrolment, denial: Callable[[Any], str | None], failures_per_minute_max: int, log_limit: LogLimit
) -> Starlette:
    """Return the ASGI application of the enrolment listener.

    Args:
        enrolment: The enrolment to serve.
        denial: Returns why a chain of certificates is not or no longer valid.
        failures_per_minute_max: Of one address, one certificate that counts, or one known token.
        log_limit: Of lines about refusals.
    """
    # A bucket grants until its balance is negative: `failures_per_minute_max` failures at once, then the same number each minute.
    failures = TokenBuckets(failures_per_minute_max / 60, failures_per_minute_max - 1)

    def party(request: Request) -> str:
        """Return the owner of a shown valid certificate or known token. Empty if there is none.

        Its failures count for itself. So a client that guesses tokens cannot keep others at the same address from theirs.
        """
        state = request.scope.get("state", {})
        fingerprint = state.get(FINGERPRINT)
        if fingerprint is not None and enrolment.is_principal(fingerprint) and denial(state[CHAIN]) is None:
            return f"certificate {fingerprint}"
        token_id = enrolment.token_id(_secret(request.headers.get("authorization", "")) or "")
        return "" if token_id is None else f"token {token_id}"

    def guarded(handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            address = "gone" if request.client is None else request.client.host
            counted = party(request) or network_of_host(address)
            now_s = trio.current_time()
            wait_s = failures.of(counted, now_s).ready_s(now_s) - now_s
            if wait_s > 0 and request.method == "POST":
                headers = {"retry-after": str(math.ceil(wait_s))}
                return _Text("too many failed attempts\n", HTTPStatus.TOO_MANY_REQUESTS, headers)
            try:
                with trio.move_on_after(_TIMEOUT_S):
                    return await handler(enrolment, request, address)
            except RefusedError as error:
                if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    failures.of(counted, now_s).take(1, now_s)
                enrolment.audit.record(
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
                headers = dict(_CHALLENGE) if error.status == HTTPStatus.UNAUTHORIZED else {}
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
        problem = denial(state[CHAIN])
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
    secret = _secret(authorization)
    if secret is None:
        raise RefusedError(
            HTTPStatus.UNAUTHORIZED, "no-token", "give the token as the password of HTTP Basic authentication"
        )
    return secret


def _secret(authorization: str) -> str | None:
    """Return the password of HTTP Basic authentication; None without one."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            pass
    return None


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
