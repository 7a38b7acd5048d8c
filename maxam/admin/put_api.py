"""Routes that change a topic, each as a SEND of the caller's own principal: PUT with a body or a value, DELETE without.

The rules, schemas and rights that any client meets decide. What is wrong with a request as such is told before anything is sent.
"""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, ApiError, RouteSpec, require_accepted
from maxam.admin.description import (
    ANYTHING,
    BASE64,
    TEXT,
    Parameter,
    described,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.admin.encoding import ValueEncodeError, read_json
from maxam.admin.trial import encode_parsed
from maxam.admin.view import View
from maxam.avro.registry import Registry
from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.records import Identity
from maxam.stomp.events import NUMBER_DIGITS_MAX, NUMBER_MAX, SOURCE_BYTES_MAX, Condition, Send
from maxam.stomp.protocol import DROPPED_HEADERS

TOPIC_PATH: Final = "/v1/topics/{destination:path}"
BODY_TYPE: Final = "application/octet-stream"  # of a request that is the body itself, and may be as long as a frame's
# As long a request with a value may be: with a tree of the schema and Python for every number, encoding takes its time.
VALUE_REQUEST_BYTES_MAX: Final = 8192
_KEYS: Final = ("body", "value", "headers", "schema_version", "if_revision", "source", "source_revision")
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
_PAIRS: Final = {**listed(TEXT), "minItems": 2, "maxItems": 2}
_IF_REVISION: Final = Parameter(
    "if_revision", _NUMBER, "only if the topic's value has this revision, 0: only if it has none; else 422 `conflict`"
)
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
    HTTPStatus.UNPROCESSABLE_ENTITY: "Rejected, with the result code of the RECEIPT; `invalid-value`: the value cannot be encoded",
}
_OWN_HEADERS: Final = {b"schema-version": "schema_version", b"source-revision": "source_revision"}
_OTHER_HEADERS: Final = 3  # of a SEND: destination, content-length, receipt
_RECEIPT: Final = b"admin"


@dataclass(frozen=True, slots=True)
class _Request:
    """What a request asks for.

    Attributes:
        body: What to send; None: `value` is to be encoded.
        value: As `read_json` has it.
        headers: User headers.
    """

    body: bytes | None
    value: Any
    headers: tuple[tuple[bytes, bytes], ...]
    schema_version: str | None
    condition: Condition | None


def is_body(request: Request) -> bool:
    """Tell whether a request is one whose content is a body as it is: only these may be longer than others."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return request.method == "PUT" and given == BODY_TYPE


@described(
    "Send a value to a topic",
    _SENT,
    (
        Parameter("headers", TEXT, f"with {BODY_TYPE}: as the key, JSON"),
        Parameter("schema_version", TEXT, f"with {BODY_TYPE}: as the key"),
        _IF_REVISION,
        Parameter("source", TEXT, f"with {BODY_TYPE}: as the key"),
        Parameter("source_revision", _NUMBER, f"with {BODY_TYPE}: as the key"),
    ),
    body=record(
        "Put",
        _KEYS,
        body=BASE64,
        value=ANYTHING,
        headers=listed(_PAIRS),
        schema_version=TEXT,
        if_revision=_NUMBER,
        source=TEXT,
        source_revision=_NUMBER,
    ),
    bodies={BODY_TYPE: ANYTHING},
    errors={
        **_REFUSED,
        HTTPStatus.BAD_REQUEST: "`invalid-request`: what is asked for cannot be sent",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body, or a request with a value, is too long",
    },
    text=f"""A SEND of the caller's own principal. Of `body` and `value` one must be there; `value` is encoded by the newest schema of the
destination's rule, or that of `schema_version`, if the whole request has at most {VALUE_REQUEST_BYTES_MAX} bytes. A content-type of
`{BODY_TYPE}` makes the request the body itself, as long as a frame's may be, and parameters say the rest.""",
)
async def _put(view: View, request: Request, caller: Identity) -> Response:
    destination: str = request.path_params["destination"]
    content = await request.body()
    if is_body(request):
        wish = _of_parameters(request, content, view.limits)
    else:
        if request.query_params:
            raise _bad(f"parameters go with a content-type of {BODY_TYPE}; else all is in the JSON object")
        # what a client sent can keep Python busy for milliseconds: a thread leaves the event loop its turns
        wish = await trio.to_thread.run_sync(_of_json, content, view.limits)
    if wish.body is None:
        _require_right(view, caller, destination)  # before anything is said of its schema
        while True:
            registry = view.registry
            body, headers = await trio.to_thread.run_sync(_encoded, registry, destination, wish)
            if registry is view.registry:  # else a schema would judge what another one has encoded
                break
    else:
        body, headers = wish.body, wish.headers
    if len(body) > view.limits.frame_body_bytes_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"the body has {len(body)} bytes, at most {view.limits.frame_body_bytes_max} are allowed",
        )
    if not body:
        raise _bad("an empty body would delete the topic's value: DELETE does that")
    answer = await view.send(caller, Send(destination.encode(), body, headers, _RECEIPT, wish.condition))
    return _answered(destination, answer)


@described(
    "Delete the value of a topic",
    _SENT,
    (_IF_REVISION,),
    errors={**_REFUSED, HTTPStatus.NOT_FOUND: "There is no such topic"},
    text="A SEND of the caller's own principal, with an empty body.",
)
async def _delete(view: View, request: Request, caller: Identity) -> Response:
    destination: str = request.path_params["destination"]
    expected = _digits(request, "if_revision")
    if view.topic(destination.encode()) is None:
        _require_right(view, caller, destination)  # before it is said that there is none
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"there is no topic {destination}")
    condition = None if expected is None else Condition(None, -1, expected)
    answer = await view.send(caller, Send(destination.encode(), b"", (), _RECEIPT, condition))
    return _answered(destination, answer)


def _answered(destination: str, answer: dict[str, str]) -> Response:
    require_accepted(answer)
    revision = answer.get("revision")
    return Answer(
        {
            "destination": destination,
            "disposition": answer["disposition"],
            "result": answer.get("result"),
            "reason": answer.get("reason"),
            "revision": None if revision is None else int(revision),
        }
    )


def _require_right(view: View, caller: Identity, destination: str) -> None:
    if not view.policy.rights(caller.principal).may_send(destination.encode()):
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
    if not isinstance(document, dict):
        raise _bad("the request must be a JSON object")
    for key in document:
        if key not in _KEYS:
            raise _bad(f"unknown key {key[:60]!r}; there are {', '.join(_KEYS)}")
    if ("body" in document) == ("value" in document):
        raise _bad("either `body` (base64) or `value` (JSON by the schema of the destination's rule) must be there")
    if "value" in document and len(content) > VALUE_REQUEST_BYTES_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"a request with a value may have {VALUE_REQUEST_BYTES_MAX} bytes; encode it, as `maxam-admin topics put` does, and "
            f"send the body, best as {BODY_TYPE}",
        )
    texts = {key: document.get(key) for key in ("schema_version", "source")}
    numbers = {key: document.get(key) for key in ("if_revision", "source_revision")}
    for key, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise _bad(f"`{key}` must be a text")
    for key, number in numbers.items():
        if number is not None and not (type(number) is int and 0 <= number <= NUMBER_MAX):
            raise _bad(f"`{key}` must be a whole number from 0 to {NUMBER_MAX}")
    return _made(
        _body_of(document["body"]) if "body" in document else None,
        document.get("value"),
        _pairs_of(document.get("headers", [])),
        texts["schema_version"],
        texts["source"],
        numbers["source_revision"],
        numbers["if_revision"],
        limits,
    )


def _of_parameters(request: Request, content: bytes, limits: Limits) -> _Request:
    try:
        pairs = read_json(request.query_params.get("headers", "[]").encode(), "the parameter headers")
    except (ValueEncodeError, UnicodeEncodeError) as error:
        raise _bad(str(error)) from error
    return _made(
        content,
        None,
        _pairs_of(pairs),
        request.query_params.get("schema_version"),
        request.query_params.get("source"),
        _digits(request, "source_revision"),
        _digits(request, "if_revision"),
        limits,
    )


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
    """Check what both forms have in common, and put it together as frames have it."""
    _check_headers(pairs, source)
    if (source is None) != (source_revision is None):
        raise _bad("`source` and `source_revision` go together; a header that is only called so goes to the headers")
    own: list[tuple[bytes, bytes]] = []
    if schema_version is not None:
        own.append((b"schema-version", _line(_utf8(schema_version), "schema_version")))
    condition = None
    if source is not None and source_revision is not None:
        named = _line(_utf8(source), "source")
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
            raise _bad(f"a header {shown!r} is for the broker to say")
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
    """Refuse what clients of STOMP 1.1 could not be sent, or is no text."""
    if any(byte < 0x20 or byte == 0x7F for byte in text):
        raise _bad(f"{what} must hold no control characters")
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a pair of surrogates, which JSON can write
        raise _bad("a text is no Unicode") from error


def _pairs_of(pairs: object) -> list[tuple[bytes, bytes]]:
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in pairs
    ):
        raise _bad('`headers` must be a list of pairs of texts, such as [["reason", "test"]]')
    return [(_utf8(name), _utf8(value)) for name, value in pairs]


def _body_of(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return b64decode(text, validate=True)
    except ValueError:
        pass
    raise _bad("`body` must be a text of base64")


def _digits(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX and int(text) <= NUMBER_MAX):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"{name} must be a number from 0 to {NUMBER_MAX}")
    return int(text)


def _bad(detail: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid-request", detail)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("PUT", TOPIC_PATH, "write", _put),
    ("DELETE", TOPIC_PATH, "write", _delete),
)
