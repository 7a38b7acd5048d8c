"""The admin HTTP API: routes, the right that each needs, and their JSON.

Who asks is the fingerprint that the listener found in the TLS handshake; what they may do is the policy's. A certificate
without the right gets 403 whether or not what it asked for exists. Every error is `{"error": <code>, "detail": <text>}`;
where Confluent's API is spoken, in its form; of the console's files, where a browser asks, a page.
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from maxam import __version__
from maxam.admin import (
    audit_api,
    backup_api,
    confluent_api,
    connections_api,
    console,
    enrolment_api,
    freshness_api,
    health_api,
    history_api,
    journal_api,
    live_api,
    metrics_api,
    openapi,
    policy_api,
    put_api,
    rates_api,
    registry_api,
    rejects_api,
    reload_api,
    subscriptions_api,
)
from maxam.admin.answers import (
    ANY_CERTIFICATE,
    ANY_PRINCIPAL,
    Answer,
    ApiError,
    Handler,
    RouteSpec,
    Rows,
    flag_of,
    glob_of,
    limit_of,
)
from maxam.admin.browsers import check_site
from maxam.admin.confluent_api import WRITING, ConfluentError, error_answer, no_such_route, speaks_confluent
from maxam.admin.description import (
    AFTER,
    COUNT,
    ERROR,
    FLAG,
    GLOB,
    HEX,
    LIMIT,
    NUMBER,
    TEXT,
    TIME,
    Parameter,
    described,
    extended,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.admin.listener import CHAIN, FINGERPRINT
from maxam.admin.live import EVERY_TOPIC
from maxam.admin.personal import PII, tell_given, wants_personal
from maxam.admin.refusal_page import refusal_page, wants_page
from maxam.admin.subscriptions_api import SUBSCRIPTION, fields_of
from maxam.admin.topic_rows import WITHHELD, may_be_personal, topic_row, value_fields
from maxam.admin.topic_schemas import VALUED_TOPIC
from maxam.admin.values import iso_time
from maxam.admin.view import FIGURES, SessionRow, View
from maxam.compiled import core
from maxam.errors import ProtocolError
from maxam.gateway.audit import ADMIN
from maxam.gateway.listener import address_text
from maxam.gateway.log import log_event
from maxam.gateway.staleness import Pace
from maxam.records import Change, Identity

REQUEST_BODY_BYTES_MAX: Final = 65_536
REQUEST_TIMEOUT_S: Final = 15.0  # a request that waits for the disk longer than this is answered 503
PAGE_SLICES_MAX: Final = 40  # slices of topics that one page looks at, so that a glob matching little cannot last
VALUES_PER_SLICE: Final = 5  # decoded before the event loop has its turn
ROWS_PER_SLICE: Final = 100
PAGE_VALUE_BYTES_MAX: Final = 32_768  # of headers and bodies behind the values of one page, but for the last one
RAW_VALUES: Final = "raw"
RAW_PAGE_VALUE_BYTES_MAX: Final = 131_072  # the same of a page of bodies as they are, which are not decoded
SESSIONS_PER_SLICE: Final = 50
SESSIONS_PATH: Final = "/v1/sessions"
# Larger values are decoded by whoever asks, with the schema's text: a value of 1-byte numbers takes 0.2 us a byte here.
DECODED_BYTES_MAX: Final = 8192
WRITE_HEADER: Final = "maxam-admin"  # a browser sends certificates by itself, but this header only from our own pages


def make_application(view: View) -> Starlette:
    """Return the ASGI application of the admin listener."""
    console.console_files()  # read now, so that no request waits for a disk
    return Starlette(
        routes=[
            Route(path, _guarded(view, method, right, handler), methods=[method])
            for method, path, right, handler in ROUTES
        ],
        exception_handlers={
            ApiError: _on_api_error,
            ConfluentError: _on_confluent_error,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )


def _guarded(view: View, method: str, right: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    writes = method != "GET" and right != ANY_PRINCIPAL  # what every principal may do changes nothing

    async def endpoint(request: Request) -> Response:
        try:
            response = await answer(request)
        except ApiError as error:
            if writes or error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                _audit(view, request, "refused", f"{error.body['error']}: {error}")
            if error.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or not wants_page(request):
                raise
            fingerprint = request.scope.get("state", {}).get(FINGERPRINT)
            return refusal_page(error, right, fingerprint and view.principal_of(fingerprint), fingerprint)
        if writes:
            _audit(view, request, "done", "")
        return response

    async def answer(request: Request) -> Response:
        fingerprint = request.scope.get("state", {}).get(FINGERPRINT)
        if fingerprint is None:
            raise ApiError(HTTPStatus.UNAUTHORIZED, "unauthenticated", "no client certificate was presented")
        objection = view.objection(request.scope["state"][CHAIN])
        if objection is not None:
            raise ApiError(HTTPStatus.FORBIDDEN, "certificate-refused", objection)
        principal = view.principal_of(fingerprint)
        if right != ANY_CERTIFICATE:
            known = principal is not None and (right == ANY_PRINCIPAL or right in view.admin_rights(principal))
            if not known:
                raise ApiError(
                    HTTPStatus.FORBIDDEN,
                    "forbidden",
                    f"this needs {right}; the policy knows none with this certificate"
                    if right == ANY_PRINCIPAL
                    else f"this needs the admin right {right}, which {_named(principal)} has not",
                )
        _check_request(view, request, writes)
        check_site(request, writes)
        if writes:
            path = request.scope["path"]
            log_event(
                logging.INFO, "admin-write", principal=principal, fingerprint=fingerprint, method=method, path=path
            )
        try:
            with trio.move_on_after(REQUEST_TIMEOUT_S):
                return await handler(view, request, Identity(principal or "", fingerprint))
        except ProtocolError as error:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", error.detail) from error
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "too-slow",
            f"not done within {REQUEST_TIMEOUT_S:.0f} s; a write may still take effect",
        )

    return endpoint


def _named(principal: str | None) -> str:
    return "a certificate that the policy does not know" if principal is None else f"principal {principal!r}"


def _audit(view: View, request: Request, outcome: str, reason: str) -> None:
    fingerprint = request.scope.get("state", {}).get(FINGERPRINT) or ""
    who = Identity(view.principal_of(fingerprint) or "", fingerprint)
    address = "" if request.client is None else address_text(*request.client)
    view.audit.tell(ADMIN, outcome, who, address, reason, method=request.method, path=request.scope["path"])


def _check_request(view: View, request: Request, writes: bool) -> None:
    if writes and WRITE_HEADER not in request.headers:
        raise ApiError(
            HTTPStatus.FORBIDDEN, "missing-header", f"a request that changes something needs a header {WRITE_HEADER}: 1"
        )
    declared = request.headers.get("content-length", "0")
    bytes_max = view.limits.frame_body_bytes_max if put_api.is_body(request) else REQUEST_BODY_BYTES_MAX
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
    return Answer({"error": code, "detail": "no such path" if code == "not-found" else error.detail}, status, headers)


async def _on_bug(_request: Request, _error: Exception) -> Response:
    # starlette raises the error on to the server, which logs it with its traceback
    return Answer({"error": "internal", "detail": "internal error"}, HTTPStatus.INTERNAL_SERVER_ERROR)


# Health and what this is.


@described("Whether the process answers", record(status=one_of("alive")), dialect="lenient")
async def _livez(_view: View, _request: Request, _caller: Identity) -> Response:
    return Answer({"status": "alive"})


READINESS: Final = record(
    "Readiness", ("reasons",), status=one_of("ready", "not ready"), reasons=listed(TEXT), degraded=listed(TEXT)
)


@described(
    "Whether the broker is in service",
    READINESS,
    also={503: ("Not ready, and why; or `too-slow` or `busy`.", {"anyOf": [READINESS, ERROR]})},
    dialect="lenient",
    text="`degraded`: what an operator should see to, though the broker serves.",
)
async def _readyz(view: View, _request: Request, _caller: Identity) -> Response:
    reasons = view.unready_reasons()
    degraded = view.degraded_reasons()
    if reasons:
        body = {"status": "not ready", "reasons": reasons, "degraded": degraded}
        return Answer(body, HTTPStatus.SERVICE_UNAVAILABLE)
    return Answer({"status": "ready", "degraded": degraded})


@described(
    "What this is, who asks, and sizes",
    record(
        "About",
        server=TEXT,
        core=one_of("compiled", "interpreted"),
        stomp=record(host=TEXT, port=COUNT, virtual_host=TEXT),
        principal=TEXT,
        admin_rights=listed(TEXT),
        **dict.fromkeys(FIGURES, COUNT),
    ),
)
async def _about(view: View, _request: Request, caller: Identity) -> Response:
    host, port = view.stomp_address()
    return Answer(
        {
            "server": f"maxam/{__version__}",
            "core": core(),
            "stomp": {"host": host, "port": port, "virtual_host": view.virtual_host()},
            "principal": caller.principal,
            "admin_rights": sorted(view.admin_rights(caller.principal)),
            **view.figures(),
        }
    )


# Topics.


@described(
    "Topics that hold a value, in byte order of their destinations",
    page("topics", VALUED_TOPIC),
    (
        GLOB,
        AFTER,
        LIMIT,
        Parameter(
            "values",
            {"type": "string", "enum": ["true", "false", RAW_VALUES], "default": "false"},
            "with their values, as far as the caller may receive them; `raw`: bodies as they were sent",
        ),
        PII,
    ),
    errors={400: "`invalid-glob`."},
)
async def _topics(view: View, request: Request, caller: Identity) -> Response:
    limit = limit_of(request)
    glob = glob_of(view, request.query_params.get("glob", EVERY_TOPIC))
    as_sent = request.query_params.get("values") == RAW_VALUES
    values = as_sent or flag_of(request, "values")
    with_pii, given = wants_personal(request), False
    after = request.query_params.get("after")
    cursor = None if after is None else after.encode()
    rows = Rows("topics")
    value_bytes = 0
    for _ in range(PAGE_SLICES_MAX):
        matches_max = min(limit - len(rows), VALUES_PER_SLICE if values and not as_sent else ROWS_PER_SLICE)
        bytes_max = (RAW_PAGE_VALUE_BYTES_MAX if as_sent else PAGE_VALUE_BYTES_MAX) if values else None
        changes, cursor = view.topics_slice(glob, cursor, matches_max, bytes_max)
        if values:
            found: list[dict[str, object]] = []
            for change in changes:
                value, personal = _value(view, change, caller, with_pii, as_sent)
                found.append(_topic_row(view, change) | value)
                given = given or personal
            rows.add(found)
            value_bytes += sum([len(change.content) for change in changes])
        else:
            rows.add([_topic_row(view, change) for change in changes])
        if cursor is None or len(rows) == limit or (bytes_max is not None and value_bytes >= bytes_max):
            break
        await trio.lowlevel.checkpoint()
    if given:
        tell_given(view, request, caller, glob.text)
    return rows.answer(None if cursor is None else cursor.decode())


@described("One topic with its value", VALUED_TOPIC, (PII,), errors={404: "`not-found`."})
async def _topic(view: View, request: Request, caller: Identity) -> Response:
    destination: str = request.path_params["destination"]
    with_pii = wants_personal(request)
    change = _present(view, destination)
    value, given = _value(view, change, caller, with_pii)
    if given:
        tell_given(view, request, caller, destination)
    return Answer(_topic_row(view, change) | value)


def _topic_row(view: View, change: Change) -> dict[str, object]:
    return topic_row(change) | {"updates": view.updates(change.destination)}


def _present(view: View, destination: str) -> Change:
    change = view.topic(destination.encode())
    if change is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"there is no topic {destination}")
    return change


def _value(
    view: View, change: Change, caller: Identity, with_pii: bool, as_sent: bool = False
) -> tuple[dict[str, object], bool]:
    """Return what is in a topic, as far as the caller may receive it, and whether personal fields may be in that."""
    if not view.may_receive(caller.principal, change.destination):
        return WITHHELD, False
    text = view.schema_text(change.judgement)
    why = "it was asked for as it was sent" if as_sent else ""
    fields = value_fields(change, text, DECODED_BYTES_MAX, "is not in force any more", why, with_pii=with_pii)
    return fields, with_pii and may_be_personal(change, text)


# Sessions. Principal and client-id are one path segment each, percent-encoded, and may hold any character, `/` too: so
# they are taken from the raw path.


SESSION: Final = record(
    "SessionRow",
    principal=TEXT,
    client_id=TEXT,
    connected=FLAG,
    durable=FLAG,
    peer=nullable({"type": "string", "description": "address of the live connection"}),
    fingerprint=nullable(HEX),
    connected_at=nullable(TIME),
    window=nullable(COUNT),
    unacked=COUNT,
    owed=COUNT,
    conflated=COUNT,
    staleness_s={**NUMBER, "description": "the largest of its subscriptions; 0.0: they have everything"},
    behind={**FLAG, "description": "one of its subscriptions is"},
    subscriptions=COUNT,
)
_SESSION_PATH: Final = SESSIONS_PATH + "/{principal}/{client_id}"
_NO_SESSION: Final = {404: "`not-found`: there is no such session."}


@described(
    "Sessions in order of principal and client-id",
    page("sessions", SESSION),
    (
        Parameter("principal", TEXT, "only those of this principal"),
        Parameter("client_id", TEXT, "only those with this client-id"),
        Parameter("find", TEXT, "only those with this text in principal, client-id or address, in either case"),
        AFTER,
        LIMIT,
    ),
)
async def _sessions(view: View, request: Request, _caller: Identity) -> Response:
    after = request.query_params.get("after")
    limit = limit_of(request)
    cursor = None if after is None else _cursor(after)
    parameters = request.query_params
    principal, client_id, find = parameters.get("principal"), parameters.get("client_id"), parameters.get("find", "")
    rows, pace = Rows("sessions"), Pace()
    more = True
    while more and len(rows) < limit:
        size = min(limit - len(rows), SESSIONS_PER_SLICE)
        found, cursor, more = view.sessions_after(cursor, size, principal, client_id, find.lower())
        staleness_s = [await view.staleness.of_session(row.principal, row.client_id, pace) for row in found]
        rows.add([_session_row(view, row, one_s) for row, one_s in zip(found, staleness_s, strict=True)])
        await trio.lowlevel.checkpoint()
    following = f"{quote(cursor[0], safe='')}/{quote(cursor[1], safe='')}" if more and cursor is not None else None
    return rows.answer(following)


@described(
    "One session with its subscriptions",
    extended(
        SESSION,
        "Session",
        subscriptions=listed(SUBSCRIPTION),
    ),
    path=_SESSION_PATH,
    errors=_NO_SESSION,
)
async def _session(view: View, request: Request, _caller: Identity) -> Response:
    found = await view.session(*_session_key(request, b""))
    if found is None:
        raise _no_session()
    row, subscriptions = found
    rows = Rows("subscriptions")
    for start in range(0, len(subscriptions), ROWS_PER_SLICE):
        rows.add([fields_of(one) for one in subscriptions[start : start + ROWS_PER_SLICE]])
        await trio.lowlevel.checkpoint()
    fields = _session_row(view, row, max([one.staleness_s for one in subscriptions], default=0.0))
    del fields["subscriptions"]  # how many there are
    return rows.within(**fields)


@described(
    "Close the live connection with an ERROR; the session stays",
    record(kicked={"const": True}),
    path=_SESSION_PATH + "/kick",
    errors=_NO_SESSION | {409: "`not-connected`."},
)
async def _session_kick(view: View, request: Request, _caller: Identity) -> Response:
    key = _session_key(request, b"/kick")
    if not view.has_session(*key):
        raise _no_session()
    if not view.kick(*key):
        raise ApiError(HTTPStatus.CONFLICT, "not-connected", "the session has no live connection")
    return Answer({"kicked": True})


@described(
    "End a session with its durable subscriptions, answered after the commit",
    record(dropped={"const": True}),
    path=_SESSION_PATH,
    errors=_NO_SESSION,
)
async def _session_drop(view: View, request: Request, caller: Identity) -> Response:
    if not await view.drop(*_session_key(request, b""), caller):
        raise _no_session()
    return Answer({"dropped": True})


def _session_row(view: View, row: SessionRow, staleness_s: float) -> dict[str, object]:
    fields = fields_of(row)
    since_us = fields.pop("connected_at_us")
    behind = staleness_s > view.staleness.behind_after_s
    return fields | {
        "connected_at": None if since_us is None else iso_time(since_us),
        "staleness_s": staleness_s,
        "behind": behind,
    }


def _session_key(request: Request, action: bytes) -> tuple[str, str]:
    raw_path: bytes = request.scope["raw_path"]
    if not raw_path.endswith(action):
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)  # there is only one that ends so
    return _pair(raw_path.removeprefix(SESSIONS_PATH.encode() + b"/").removesuffix(action))


def _cursor(after: str) -> tuple[str, str]:
    try:
        return _pair(after.encode())
    except ApiError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "invalid-parameter", "after must be the `next` of the page before"
        ) from error


def _pair(encoded: bytes) -> tuple[str, str]:
    parts = encoded.split(b"/")
    if len(parts) != 2:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", "expected <principal>/<client-id>, each percent-encoded")
    return unquote_to_bytes(parts[0]).decode(errors="replace"), unquote_to_bytes(parts[1]).decode(errors="replace")


def _no_session() -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not-found", "there is no such session")


_ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/livez", ANY_CERTIFICATE, _livez),
    ("GET", "/readyz", "metrics", _readyz),
    ("GET", "/v1/about", "read", _about),
    ("GET", "/v1/topics", "read", _topics),
    ("GET", "/v1/topics/{destination:path}", "read", _topic),
    ("GET", SESSIONS_PATH, "read", _sessions),
    ("GET", SESSIONS_PATH + "/{key:path}", "read", _session),
    ("POST", SESSIONS_PATH + "/{key:path}", "write", _session_kick),
    ("DELETE", SESSIONS_PATH + "/{key:path}", "write", _session_drop),
    *health_api.ROUTES,
    *connections_api.ROUTES,
    *freshness_api.ROUTES,
    *rates_api.ROUTES,
    *put_api.ROUTES,
    *history_api.ROUTES,
    *journal_api.ROUTES,
    *backup_api.ROUTES,
    *metrics_api.ROUTES,
    *policy_api.ROUTES,
    *audit_api.ROUTES,
    *reload_api.ROUTES,
    *subscriptions_api.ROUTES,
    *enrolment_api.ROUTES,
    *registry_api.ROUTES,
    *rejects_api.ROUTES,
    *confluent_api.ROUTES,
    *console.ROUTES,
    *live_api.ROUTES,
)
ROUTES: Final[tuple[RouteSpec, ...]] = (*_ROUTES, *openapi.routes(_ROUTES))
