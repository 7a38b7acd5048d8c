"""The OpenAPI 3.1 description of the admin API, made of what stands beside the routes; nothing is written here twice."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from maxam import __version__
from maxam.api.answers import cacheable, rendered
from maxam.api.description import CODE, ERROR, TEXT, WHOLE, Schema, record
from maxam.api.parameters import Parameter
from maxam.api.routing import ANY_CERTIFICATE, ANY_PRINCIPAL, Call, Described, Description, RouteSpec
from maxam.config import AdminSettings

PATH: Final = "/v1/openapi.json"
_RIGHTS: Final = {
    ANY_CERTIFICATE: "Any certificate that the listener accepts.",
    ANY_PRINCIPAL: "Any principal of the policy.",
}
_CONFLUENT_ERROR: Final = record(
    "ConfluentError", ("code", "error", "detail"), error_code=WHOLE, message=TEXT, code=CODE, error=TEXT, detail=TEXT
)
# The first is the server that the document came from, whatever name and port that was: tools that fetched it ask there. A file of it
# has no such server: for that there is the second.
_SERVERS: Final = (
    {"url": "/", "description": "the gateway that this description was fetched from"},
    {
        "url": "https://{host}:{port}",
        "description": "any gateway, by [admin] host and port of its configuration",
        "variables": {
            "host": {"default": "localhost", "description": "an address, or a name that the gateway knows as its own"},
            "port": {"default": str(AdminSettings().port)},
        },
    },
)
_CATCH_ALL: Final = re.compile(r":path\}")
_NAME: Final = re.compile(r"\{(\w+)\}")
_SEGMENT_NAME: Final = re.compile(r"\\\{\w+\\\}")  # in a path that was escaped to be a pattern
_REST_NAME: Final = re.compile(r"\\\{\w+:path\\\}")
_SEGMENT: Final[Schema] = {"type": "string", "minLength": 1}


def routes(others: Sequence[RouteSpec]) -> tuple[RouteSpec, ...]:
    """Return the route of the description of these routes, and of itself.

    It is made when the application is: this many small objects take longer than a request may hold the loop.
    """
    content: list[tuple[bytes, str]] = []

    @Description("This description", {"type": "object"}, also={304: ("It matches `If-None-Match`.", None)})
    async def openapi(call: Call) -> Response:
        return cacheable(call.request, *content[0])

    own: tuple[RouteSpec, ...] = (("GET", PATH, "read", openapi),)
    content.append(rendered(document([*others, *own])))
    return own


def allowed_methods(specs: Sequence[RouteSpec], raw_path: str) -> list[str]:
    """Return the methods that a path has, as clients wrote it; empty for a path that there is not.

    Spec: RFC 9110 "10.2.1. Allow"
    """
    found = set()
    for method, path, _, handler in specs:
        shown = handler.description.path if isinstance(handler, Described) else None
        if re.fullmatch(_SEGMENT_NAME.sub("[^/]+", _REST_NAME.sub(".*", re.escape(shown or path))), raw_path):
            found |= {method, "HEAD"} if method == "GET" else {method}
    return sorted(found)


def document(specs: Sequence[RouteSpec]) -> dict[str, Any]:
    """Return the description of routes. Those without a description are left out."""
    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, Any] = {}
    for method, path, right, handler in specs:
        if isinstance(handler, Described):
            shown = handler.description.path or _CATCH_ALL.sub("}", path)
            operation = _operation(method, shown, right, handler.description)
            paths.setdefault(shown, {})[method.lower()] = _hoisted(operation, components)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "maxam admin API",
            "version": __version__,
            "description": "Of one gateway, for its operators. The client certificate identifies the caller, and the policy decides on its rights. "
            "Path segments are percent-encoded; a destination keeps its slashes. See docs/operate/admin.md.",
        },
        "servers": list(_SERVERS),
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"certificate": {"type": "mutualTLS"}},
        },
        "security": [{"certificate": []}],
    }


def _operation(method: str, path: str, right: str, description: Description) -> dict[str, Any]:
    writes = method != "GET" and right != ANY_PRINCIPAL
    needs = _RIGHTS.get(right, f"The admin right `{right}`.")
    responses: dict[str, Any] = {
        str(description.status.value): _answer("Done.", description.answer, description.media_type)
    }
    for status, (text, schema) in description.also.items():
        responses[str(status)] = _answer(text, schema, "application/json")
    confluent = description.dialect == "confluent"
    error_type = "application/vnd.schemaregistry.v1+json" if confluent else "application/json"
    error = _CONFLUENT_ERROR if confluent else ERROR
    for status, text in sorted(_errors(right, writes, description).items()):
        media_types = {error_type, "application/json"} if status in _BEFORE_HANDLERS else {error_type}
        responses.setdefault(
            str(status),
            {"description": text, "content": {one: {"schema": error} for one in sorted(media_types)}},
        )
    operation: dict[str, Any] = {
        "summary": description.summary,
        "description": f"Needs: {needs}" + (f"\n\n{description.text}" if description.text else ""),
        "operationId": _operation_id(method, path),
        "parameters": _parameters(path, writes, description),
        "responses": responses,
    }
    bodies = {**({} if description.body is None else {"application/json": description.body}), **description.bodies}
    if bodies:
        content = {media_type: {"schema": schema} for media_type, schema in bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_BEFORE_HANDLERS: Final = (401, 403, 413, 421, 503)  # of the listener, whatever application it serves


def _errors(right: str, writes: bool, description: Description) -> dict[int, str]:
    refused = "`certificate-refused`: it was revoked meanwhile"
    if right != ANY_CERTIFICATE:
        refused = "`forbidden`: the right is missing; " + refused
    if writes:
        refused += "; `missing-header`"
    errors = {
        HTTPStatus.UNAUTHORIZED.value: "`unauthenticated`: no client certificate.",
        HTTPStatus.FORBIDDEN.value: refused + ".",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value: "`too-large`: a body of unknown length, or longer than 64 KiB.",
        HTTPStatus.MISDIRECTED_REQUEST.value: "`unknown-host`: the `Host` is none of the gateway's names.",
        HTTPStatus.SERVICE_UNAVAILABLE.value: "`too-slow`: not done within 15 s, a write may still take effect; `busy`.",
    }
    if description.dialect == "own":
        others = sorted({parameter.code for parameter in description.query} - {"invalid-parameter"})
        text = "`invalid-parameter`: the parameter is unknown, given twice, missing or invalid."
        errors[HTTPStatus.BAD_REQUEST.value] = " ".join([text, *[f"`{code}`." for code in others]])
    for status, text in description.errors.items():
        errors[status] = f"{errors[status]} {text}" if status in errors else text
    return errors


def _answer(text: str, schema: Schema | None, media_type: str) -> dict[str, Any]:
    return {"description": text} | ({} if schema is None else {"content": {media_type: {"schema": schema}}})


def _parameters(path: str, writes: bool, description: Description) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "schema": _SEGMENT, "required": True} for name in _NAME.findall(path)
    ]
    found += [_parameter(parameter) for parameter in description.query]
    if writes:
        text = "Any value: a browser sends the certificate by itself, but not this header."
        found.append(
            {"name": "maxam-admin", "in": "header", "required": True, "description": text, "schema": {"const": "1"}}
        )
    return found


def _parameter(parameter: Parameter[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": parameter.name, "in": "query", "schema": parameter.schema}
    if parameter.text:
        found["description"] = parameter.text
    return found | ({"required": True} if parameter.required else {})


def _operation_id(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1/"))
    return "_".join([method.lower(), *words])


def _hoisted(value: Any, components: dict[str, Any]) -> Any:  # noqa: ANN401 JSON of any shape
    """Return a description with each schema that has a title moved to the components; raises ValueError if two differ."""
    if isinstance(value, Mapping):
        found = {key: _hoisted(one, components) for key, one in value.items()}
        title = found.get("title")
        if not isinstance(title, str) or "properties" not in found:
            return found
        if components.setdefault(title, found) != found:
            raise ValueError(f"two schemas have the title {title}")
        return {"$ref": f"#/components/schemas/{title}"}
    if isinstance(value, list | tuple):
        return [_hoisted(one, components) for one in value]
    return value
