"""Routes that change a topic, each as a SEND of the caller's own principal: PUT with a body or a value, DELETE without.

The rules, schemas and rights of any client decide. Faults of a request as such are reported before anything is sent.
"""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, require_accepted
from maxam.api.bodies import mismatch
from maxam.api.description import ANYTHING, BASE64, TEXT, nullable, one_of, record
from maxam.api.errands import send
from maxam.api.parameters import text, whole
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.api.topic_schemas import HEADERS
from maxam.avro.json.encoding import read_json
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import Registry
from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.schema_tools.trial import encode_parsed
from maxam.stomp.events import DROPPED_HEADERS, NUMBER_MAX, SOURCE_BYTES_MAX, Condition, Send

BODY_TYPE: Final = "application/octet-stream"  # of a request that is the body itself, and may be as long as a frame's
# As long a request with a value may be: with a tree of the schema and Python for every number, encoding takes its time.
VALUE_REQUEST_BYTES_MAX: Final = 8192
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
_AS_KEY: Final = f"with {BODY_TYPE}: as the key"
_HEADERS: Final = text("headers", _AS_KEY + ", JSON")
_SCHEMA_VERSION: Final = text("schema_version", _AS_KEY)
_SOURCE: Final = text("source", _AS_KEY)
_SOURCE_REVISION: Final = whole("source_revision", _AS_KEY, 0, NUMBER_MAX, None)
_IF_REVISION: Final = whole(
    "if_revision",
    "only if the topic's value has this revision, or has none for 0. Otherwise 422 `conflict`",
    0,
    NUMBER_MAX,
    None,
)
_KEYS: Final = {
    "body": BASE64,
    "value": ANYTHING,
    "headers": HEADERS,
    "schema_version": TEXT,
    "if_revision": _NUMBER,
    "source": TEXT,
    "source_revision": _NUMBER,
}
_PUT: Final = record("Put", _KEYS, **_KEYS)
_SENT: Final = record(
    "Sent",
    destination=TEXT,
    disposition=one_of("accepted"),
    result=nullable(one_of("superseded")),
    reason=nullable(TEXT),
    revision=nullable(_NUMBER),
)
_REFUSED: Final[dict[int, str]] = {
    HTTPStatus.FORBIDDEN: "`unauthorised`: this principal may not send there",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Rejected, with the result code of the RECEIPT. `invalid-value` means that the value cannot be encoded",
}
_OWN_HEADERS: Final = {b"schema-version": "schema_version", b"source-revision": "source_revision"}
_OTHER_HEADERS: Final = 3  # of a SEND: destination, content-length, receipt
_RECEIPT: Final = b"admin"


@dataclass(frozen=True, slots=True)
class _Request:
    """The contents of a request.

    Attributes:
        body: Body to send. None if `value` is to be encoded.
        value: As `read_json` returns it.
        headers: User headers.
    """

    body: bytes | None
    value: Any
    headers: tuple[tuple[bytes, bytes], ...]
    schema_version: str | None
    condition: Condition | None


def is_body(request: Request) -> bool:
    """Return True if the content of a request is itself the body to send. Only such requests may be long."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return request.method == "PUT" and given == BODY_TYPE


@Description(
    "Send a value to a topic",
    _SENT,
    (_HEADERS, _SCHEMA_VERSION, _IF_REVISION, _SOURCE, _SOURCE_REVISION),
    body=_PUT,
    bodies={BODY_TYPE: ANYTHING},
    errors={
        **_REFUSED,
        HTTPStatus.BAD_REQUEST: "`invalid-request`: the request is no valid SEND",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body, or a request with a value, is too long",
    },
    text=f"""A SEND of the caller's own principal. Either `body` or `value` is required. `value` is encoded by the newest schema of the
destination's rule, or that of `schema_version`. The whole request may then have at most {VALUE_REQUEST_BYTES_MAX} bytes. A content-type of
`{BODY_TYPE}` makes the request the body itself, as long as a frame's may be, and parameters have the rest.""",
)
async def _put(call: Call) -> Response:
    limits = call.gateway.broker.limits
    content = await call.request.body()
    if is_body(call.request):
        wish = _of_parameters(call, content, limits)
    else:
        if call.request.query_params:
            raise _bad(f"parameters go with a content-type of {BODY_TYPE}; else all is in the JSON object")
        # input of a client can keep Python busy for milliseconds: in a thread, so that the event loop runs other tasks
        wish = await trio.to_thread.run_sync(_of_json, content, limits)
    if wish.body is None:
        _require_right(call)  # before anything about its schema is shown
        while True:
            registry = call.view.registry
            body, headers = await trio.to_thread.run_sync(_encoded, registry, call.destination, wish)
            if registry is call.view.registry:  # else a schema would judge a body that another one has encoded
                break
    else:
        body, headers = wish.body, wish.headers
    if len(body) > limits.frame_body_bytes_max:
        problem = f"the body has {len(body)} bytes, at most {limits.frame_body_bytes_max} are allowed"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", problem)
    if not body:
        raise _bad("an empty body would delete the topic's value: DELETE does that")
    return await _sent(call, body, headers, wish.condition)


@Description(
    "Delete the value of a topic",
    _SENT,
    (_IF_REVISION,),
    errors={**_REFUSED, HTTPStatus.NOT_FOUND: "There is no such topic"},
    text="A SEND of the caller's own principal, with an empty body.",
)
async def _delete(call: Call) -> Response:
    if call.view.topic(call.destination.encode()) is None:
        _require_right(call)  # before the answer shows that there is none
        raise not_found(f"there is no topic {call.destination}")
    expected = call[_IF_REVISION]
    return await _sent(call, b"", (), None if expected is None else Condition(None, -1, expected))


async def _sent(
    call: Call, body: bytes, headers: tuple[tuple[bytes, bytes], ...], condition: Condition | None
) -> Response:
    event = Send(call.destination.encode(), body, headers, _RECEIPT, condition)
    answer = await send(call.gateway, call.caller, event)
    require_accepted(answer)
    revision = answer.get("revision")
    return Answer(
        {
            "destination": call.destination,
            "disposition": answer["disposition"],
            "result": answer.get("result"),
            "reason": answer.get("reason"),
            "revision": None if revision is None else int(revision),
        }
    )


def _require_right(call: Call) -> None:
    if not call.view.policy.rights(call.caller.principal).may_send(call.destination.encode()):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "unauthorised",
            "this principal may not send to this destination",
            disposition="rejected-unauthorised",
        )


def _encoded(registry: Registry, destination: str, wish: _Request) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """Return the body of a value, and the headers that go with it."""
    rule = registry.rule_for(destination)
    version, headers = wish.schema_version, wish.headers
    if rule is not None and rule.version_required and version is None:
        version = rule.minors[0]
        headers = ((b"schema-version", version.encode()), *headers)
    try:
        return encode_parsed(registry, wish.value, destination, None, None, version), headers
    except ValueEncodeError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-value",
            str(error),
            disposition="rejected-invalid",
        ) from error
    except ConfigurationError as error:
        code = "no-rule" if rule is None else "unknown-schema-version"
        reason = "no rule of the schema registry covers this destination" if rule is None else str(error)
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, code, reason, disposition="rejected-invalid") from error


# Reading requests.


def _of_json(content: bytes, limits: Limits) -> _Request:
    try:
        document = read_json(content, "the request")
    except ValueEncodeError as error:
        raise _bad(str(error)) from error
    reason = mismatch(_PUT, document, "the request")
    if reason:
        raise _bad(reason)
    if ("body" in document) == ("value" in document):
        raise _bad("either `body` (base64) or `value` (JSON by the schema of the destination's rule) must be there")
    if "value" in document and len(content) > VALUE_REQUEST_BYTES_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"a request with a value may have {VALUE_REQUEST_BYTES_MAX} bytes; encode it, as `maxam-admin topics put` does, and "
            f"send the body, best as {BODY_TYPE}",
        )
    return _made(
        _body_of(document["body"]) if "body" in document else None,
        document.get("value"),
        _pairs(document.get("headers") or []),
        document.get("schema_version"),
        document.get("source"),
        document.get("source_revision"),
        document.get("if_revision"),
        limits,
    )


def _of_parameters(call: Call, content: bytes, limits: Limits) -> _Request:
    try:
        pairs = read_json((call[_HEADERS] or "[]").encode(), "the parameter headers")
    except (ValueEncodeError, UnicodeEncodeError) as error:
        raise _bad(str(error)) from error
    reason = mismatch(HEADERS, pairs, "`headers`")
    if reason:
        raise _bad(f'{reason}: a list of pairs, such as [["note", "test"]]')
    given = call[_SCHEMA_VERSION], call[_SOURCE], call[_SOURCE_REVISION], call[_IF_REVISION]
    return _made(content, None, _pairs(pairs), *given, limits)


def _made(
    body: bytes | None,
    value: object,
    pairs: list[tuple[bytes, bytes]],
    schema_version: str | None,
    source: str | None,
    source_revision: int | None,
    if_revision: int | None,
    limits: Limits,
) -> _Request:
    """Check the common part of both forms of a request, and convert it to headers and condition of a frame."""
    _check_headers(pairs, source)
    if (source is None) != (source_revision is None):
        raise _bad("`source` and `source_revision` go together; a header that is only called so goes to the headers")
    own: list[tuple[bytes, bytes]] = []
    if schema_version is not None:
        own.append((b"schema-version", _line(schema_version.encode(), "schema_version")))
    condition = None
    if source is not None and source_revision is not None:
        named = _line(source.encode(), "source")
        if not 0 < len(named) <= SOURCE_BYTES_MAX:
            raise _bad(f"`source` must have 1 to {SOURCE_BYTES_MAX} bytes")
        own += [(b"source", named), (b"source-revision", b"%d" % source_revision)]
        condition = Condition(named, source_revision, -1 if if_revision is None else if_revision)
    elif if_revision is not None:
        condition = Condition(None, -1, if_revision)
    # Spec: STOMP 1.2 "If a client or a server receives repeated frame header entries, only the first header entry SHOULD be used"
    headers = tuple({name: (name, content) for name, content in reversed([*own, *pairs])}.values())[::-1]
    _check_lengths(headers, limits)
    return _Request(body, value, headers, schema_version, condition)


def _check_headers(pairs: Iterable[tuple[bytes, bytes]], source: str | None) -> None:
    for name, value in pairs:
        shown = name.decode()[:60]
        if name in DROPPED_HEADERS:
            raise _bad(f"a header {shown!r} is set by the broker, or by bridges")
        if name in _OWN_HEADERS or (name == b"source" and source is not None):
            raise _bad(f"a header {shown!r} is given as {_OWN_HEADERS.get(name, 'source')!r}, beside the headers")
        if not name:
            raise _bad("the name of a header must not be empty")
        _line(name, "the name of a header")
        _line(value, f"the header {shown!r}")


def _check_lengths(headers: tuple[tuple[bytes, bytes], ...], limits: Limits) -> None:
    lengths = [len(name) + 1 + len(value) for name, value in headers]
    if len(headers) > limits.frame_headers_max - _OTHER_HEADERS:
        raise _bad(f"there are {len(headers)} headers, at most {limits.frame_headers_max - _OTHER_HEADERS} are allowed")
    if max(lengths, default=0) > limits.frame_header_line_bytes_max:
        raise _bad(f"a header has {max(lengths)} bytes, at most {limits.frame_header_line_bytes_max} are allowed")
    if sum(lengths) > limits.frame_headers_bytes_max:
        raise _bad(f"the headers have {sum(lengths)} bytes, at most {limits.frame_headers_bytes_max} are allowed")


def _line(text: bytes, what: str) -> bytes:
    """Refuse control characters, which clients of STOMP 1.1 cannot receive."""
    if any(byte < 0x20 or byte == 0x7F for byte in text):
        raise _bad(f"{what} must hold no control characters")
    return text


def _pairs(pairs: list[list[str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def _body_of(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return b64decode(text, validate=True)
    except ValueError:
        pass
    raise _bad("`body` must be a text of base64")


def _bad(detail: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid-request", detail)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("PUT", "/v1/topics/{destination:path}", "write", _put),
    ("DELETE", "/v1/topics/{destination:path}", "write", _delete),
)
