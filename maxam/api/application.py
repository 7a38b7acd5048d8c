"""The ASGI application of the admin API: all routes, and the checks that each request must pass.

The fingerprint that the listener found in the TLS handshake identifies the caller, and the policy decides on its rights. A certificate
without the right gets 403 whether or not the requested thing exists. Every error is `{"code": <code>, "detail": <text>}`. Routes of
Confluent's API answer in its form. For the console's files, a browser gets a page.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from maxam.api import openapi
from maxam.api.answers import Answer, ApiError, problem
from maxam.api.browsers import check_site
from maxam.api.listener import CHAIN, FINGERPRINT
from maxam.api.refusal_page import refusal_page, wants_page
from maxam.api.registry import confluent, schemas
from maxam.api.registry.confluent import WRITING, ConfluentError, error_answer, no_such_route, speaks_confluent
from maxam.api.routes import (
    audit,
    backups,
    bridges,
    cluster,
    connections,
    console,
    deletions,
    enrolment,
    freshness,
    health,
    history,
    journal,
    live,
    metrics,
    policy,
    put,
    rates,
    rejects,
    reload,
    sessions,
    shadow,
    subscriptions,
    tickets,
    topics,
    values,
    wills,
)
from maxam.api.routing import ANY_CERTIFICATE, ANY_PRINCIPAL, Call, Handler, RouteSpec
from maxam.api.values.reader import Reader
from maxam.api.view import View
from maxam.avro.json.decoding import iso_time
from maxam.error_codes import INTERNAL
from maxam.errors import ProtocolError
from maxam.gateway.listener import address_text
from maxam.gateway.log import log_event
from maxam.records import Identity

REQUEST_BODY_BYTES_MAX: Final = 65_536
ROLE_HEADER: Final = "maxam-role"
AS_OF_HEADER: Final = "maxam-as-of"
REQUEST_TIMEOUT_S: Final = 15.0  # a request that waits for the disk longer than this is answered 503
# Writes that a gateway that follows makes too: they change its own files alone.
_OWN_WRITES: Final = frozenset({reload.RELOAD_PATH, backups.BACKUPS_PATH})
WRITE_HEADER: Final = "maxam-admin"  # a browser sends certificates by itself, but this header only from our own pages


def make_application(view: View) -> Starlette:
    """Return the ASGI application of the admin listener."""
    console.console_files()  # read now, so that no request waits for a disk
    return Starlette(
        routes=[
            Route(path, _guarded(view, method, right, handler), methods=[method])
            for method, path, right, handler in ROUTES
        ],
        exception_handlers=_ON_ERRORS,
    )


def make_values_application(view: View, reader_of: Callable[[Request], Reader]) -> Starlette:
    """Return the ASGI application of the routes of values alone, for clients that present no certificate.

    Args:
        view: The gateway.
        reader_of: Returns the client of a request; raises ApiError.
    """

    def endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            reader = reader_of(request)
            return await _answered(Call(view, request, reader.identity, reader), handler)

        return answer

    return Starlette(
        routes=[Route(path, endpoint(handler), methods=[method]) for method, path, _, handler in values.ROUTES],
        exception_handlers=_ON_ERRORS,
    )


def _guarded(view: View, method: str, right: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    writes = method != "GET" and right != ANY_PRINCIPAL  # what every principal may do changes nothing

    async def endpoint(request: Request) -> Response:
        fingerprint = request.scope.get("state", {}).get(FINGERPRINT)
        principal = None if fingerprint is None else view.principal_of(fingerprint)
        call = Call(view, request, Identity(principal or "", fingerprint or ""))
        try:
            _admit(call, principal, right, writes)
            _record_use(call)
            if writes and request.scope["path"] not in _OWN_WRITES:
                _require_serving(call)
            response = await _answered(call, handler)
        except ApiError as error:
            refused = error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
            if writes or refused:
                call.audit("refused", f"{error.body['error']}: {error}")
            if not (refused and wants_page(request)):
                raise
            return refusal_page(error, right, principal, fingerprint)
        if writes:
            call.audit("done", "")
        return response

    async def observed(request: Request) -> Response:
        """Answer with the role of a gateway that follows, and the time of the state that the answer shows."""
        role = view.gateway.role
        if role.serves:
            return await endpoint(request)
        as_of = iso_time(role.as_of_us)
        try:
            response = await endpoint(request)
        except ApiError as error:
            response = await _on_api_error(request, error)
        response.headers[ROLE_HEADER] = role.name
        response.headers[AS_OF_HEADER] = as_of
        return response

    return observed


def _record_use(call: Call) -> None:
    """Record that a principal has used its certificate."""
    request, gateway = call.request, call.gateway
    address = "" if request.client is None else address_text(*request.client)
    gateway.seen.record(call.caller, address, gateway.access.valid_until(request.scope["state"][CHAIN]) or "")


def _require_serving(call: Call) -> None:
    """Raise ApiError for a change that a gateway that follows cannot make."""
    role = call.gateway.role
    if not role.serves:
        where = role.where or "its source"
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "following",
            f"this gateway follows {where} and takes no changes; make the change there",
            source=role.where,
        )


def _admit(call: Call, principal: str | None, right: str, writes: bool) -> None:
    """Check whether a caller may make a request; raises ApiError."""
    view, request, fingerprint = call.view, call.request, call.caller.fingerprint
    if not fingerprint:
        raise ApiError(HTTPStatus.UNAUTHORIZED, "unauthenticated", "no client certificate was presented")
    denial = view.denial(request.scope["state"][CHAIN])
    if denial is not None:
        raise ApiError(HTTPStatus.FORBIDDEN, "certificate-refused", denial)
    if right == ANY_PRINCIPAL and principal is None:
        raise ApiError(
            HTTPStatus.FORBIDDEN, "forbidden", f"this needs {right}; the policy has no principal for this certificate"
        )
    if right not in {ANY_CERTIFICATE, ANY_PRINCIPAL} and right not in view.admin_rights(principal or ""):
        who = "the certificate is unknown to the policy" if principal is None else f"principal {principal!r} lacks it"
        raise ApiError(HTTPStatus.FORBIDDEN, "forbidden", f"this needs the admin right {right}; {who}")
    _check_request(call, writes)
    check_site(request, writes)
    if writes:
        log_event(
            logging.INFO,
            "admin-write",
            principal=principal,
            fingerprint=fingerprint,
            method=request.method,
            path=request.scope["path"],
        )


async def _answered(call: Call, handler: Handler) -> Response:
    """Return the answer of a handler; raises ApiError, also if that takes too long."""
    try:
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            return await handler(call)
    except ProtocolError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", error.detail) from error
    raise ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-slow",
        f"not done within {REQUEST_TIMEOUT_S:.0f} s; a write may still take effect",
    )


def _check_request(call: Call, writes: bool) -> None:
    request = call.request
    if writes and WRITE_HEADER not in request.headers:
        raise ApiError(
            HTTPStatus.FORBIDDEN, "missing-header", f"a request that changes something needs a header {WRITE_HEADER}: 1"
        )
    declared = request.headers.get("content-length", "0")
    bytes_max = call.gateway.broker.limits.frame_body_bytes_max if put.is_body(request) else REQUEST_BODY_BYTES_MAX
    if "transfer-encoding" in request.headers or int(declared) > bytes_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"a request body needs a content-length of at most {bytes_max}",
        )


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 registered for nothing else
    confluent = {"error_code": error.status, "message": str(error)} if speaks_confluent(request.scope["path"]) else {}
    return Answer(error.body | confluent, error.status)


async def _on_confluent_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ConfluentError)  # noqa: S101 registered for nothing else
    return error_answer(error.status, error.code, str(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 registered for nothing else
    status = HTTPStatus(error.status_code)
    headers = {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(openapi.allowed_methods(ROUTES, request.scope["raw_path"].decode("latin-1")))
    if speaks_confluent(request.scope["path"]):
        unknown = status == HTTPStatus.NOT_FOUND or request.method in WRITING
        response = no_such_route(request.method) if unknown else error_answer(status, status, error.detail)
        response.headers.update(headers)
        return response
    code = {HTTPStatus.NOT_FOUND: "not-found", HTTPStatus.METHOD_NOT_ALLOWED: "method-not-allowed"}.get(status, "bad")
    return Answer(problem(code, "no such path" if code == "not-found" else error.detail), status, headers)


async def _on_bug(_request: Request, _error: Exception) -> Response:
    # starlette raises the error on to the server, which logs it with its traceback
    return Answer(problem(INTERNAL, "internal error"), HTTPStatus.INTERNAL_SERVER_ERROR)


_ON_ERRORS: Final[Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]] = {
    ApiError: _on_api_error,
    ConfluentError: _on_confluent_error,
    HTTPException: _on_http_error,
    Exception: _on_bug,
}

_ROUTES: Final[tuple[RouteSpec, ...]] = (
    *health.ROUTES,
    *topics.ROUTES,
    *sessions.ROUTES,
    *wills.ROUTES,
    *connections.ROUTES,
    *cluster.ROUTES,
    *freshness.ROUTES,
    *bridges.ROUTES,
    *rates.ROUTES,
    *put.ROUTES,
    *deletions.ROUTES,
    *history.ROUTES,
    *journal.ROUTES,
    *backups.ROUTES,
    *metrics.ROUTES,
    *policy.ROUTES,
    *audit.ROUTES,
    *reload.ROUTES,
    *subscriptions.ROUTES,
    *enrolment.ROUTES,
    *tickets.ROUTES,
    *schemas.ROUTES,
    *rejects.ROUTES,
    *shadow.ROUTES,
    *confluent.ROUTES,
    *console.ROUTES,
    *live.ROUTES,
    *values.ROUTES,
)
ROUTES: Final[tuple[RouteSpec, ...]] = (*_ROUTES, *openapi.routes(_ROUTES))
