"""The schema registry over the admin API, by hash, type and destination, with caching, and as Confluent's clients ask."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from maxam.api.answers import IMMUTABLE, REVALIDATED, problem
from maxam.api.application import make_application
from maxam.api.listener import CHAIN, FINGERPRINT
from maxam.api.registry import schemas as registry_api
from maxam.api.registry.compatibility_process import MESSAGE_CHARACTERS_MAX, MESSAGES_MAX
from maxam.api.registry.confluent import CONFLUENT_TYPE, PARSED_BYTES_MAX
from maxam.api.view import View
from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import SchemaVersion
from maxam.broker.broker import Broker
from maxam.broker.policy import load_policy
from maxam.config import AuditSettings, Limits
from maxam.gateway.audit import Audit
from maxam.gateway.role import Alone
from maxam.gateway.seen_certificates import SeenCertificates
from maxam.gateway.server import Gateway
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal

MEMBER = "1" * 64
POLICY = f'[[principals]]\nname = "member"\nfingerprints = ["{MEMBER}"]\ncapabilities = []\n'
TOML = """
[[rule]]
destination = "X/*.Raw"
encoding = "none"
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "confluent"
require_version = false
[type."t.U_v1"]
compatibility = "BACKWARD"
"""
FIRST: dict[str, Any] = {
    "type": "record",
    "name": "T_v1",
    "namespace": "t",
    "doc": "A thing.",
    "fields": [{"name": "text", "type": "string"}],
}
SECOND = FIRST | {"fields": [*FIRST["fields"], {"name": "more", "type": ["null", "int"], "default": None}]}
ENUM = {"type": "enum", "name": "U_v1", "namespace": "t", "doc": "Größe", "symbols": ["A"]}
FILES = {
    "registry.toml": TOML.encode(),
    "t/T_v1/1.0.avsc": json.dumps(FIRST).encode(),
    "t/T_v1/1.4.avsc": json.dumps(SECOND).encode(),
    "t/T_v1/1.5.avsc": json.dumps(SECOND | {"doc": "Only the text differs."}).encode(),
    "t/U_v1/1.0.avsc": json.dumps(ENUM, ensure_ascii=False).encode(),
}


class World:
    """A broker with a registry, and the API on top."""

    def __init__(self, files: dict[str, bytes] = FILES) -> None:
        limits = Limits()
        self.broker = Broker(limits, load_policy(POLICY.encode(), "policy", limits), load_registry(files))
        self.audit = Audit(AuditSettings(files_max=0), Path(), OsDisk())
        self.role = Alone(cast("Journal", None))
        self.seen = SeenCertificates(lambda: 0)
        self.access = SimpleNamespace(valid_until=lambda _chain: None)
        self.application = make_application(View(cast("Gateway", self)))

    @property
    def registry(self) -> Registry:
        """The registry in force."""
        return self.broker.registry

    def denial(self, _chain: object) -> None:
        """Stand in for the gateway, which knows of no revocation here."""

    def version(self, minor: str, name: str = "t.T_v1") -> SchemaVersion:
        """Give one of the schemas."""
        found = self.registry.schema(name, minor)
        assert found is not None
        return found

    def ask(self, path: str, method: str = "GET", content: bytes | None = None, **headers: str) -> httpx.Response:
        """Send one request as a principal without any capability."""

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await self.application({**scope, "state": {FINGERPRINT: MEMBER, CHAIN: ()}}, receive, send)

        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="https://admin") as client:
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, content=content, headers=sent)

        return trio.run(main)

    def get(self, path: str) -> Any:
        """Get JSON that must be there."""
        response = self.ask(path)
        assert response.status_code == 200, response.text
        return response.json()

    def look_up(self, subject: str, schema: object, **more: object) -> tuple[int, Any]:
        """Request a schema as Confluent's clients do, without the header that writes need."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = json.dumps({"schema": text} | more).encode()
        response = self.ask(f"/subjects/{subject}?normalize=False", "POST", body, content_type=CONFLUENT_TYPE)
        assert response.headers["content-type"] == CONFLUENT_TYPE
        return response.status_code, response.json()


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


# Our own paths.


def test_the_listing_tells_rules_and_minors(world: World) -> None:
    """It has what a client needs to judge bodies, except the texts; types by name, minors newest first."""
    listing = world.get("/v1/schemas")
    assert listing["types"] == {"t.T_v1": ["1.5", "1.4", "1.0"], "t.U_v1": ["1.0"]}
    assert listing["fingerprint"] == "CRC-64-AVRO"
    assert listing["envelope_keys"] == {"body": 1, "fingerprint": 2, "topic": 3, "tombstone": 4}
    assert listing["rules"][1] == {
        "destination": "X/**",
        "schema": "t.T_v1",
        "encoding": "confluent",
        "require_version": False,
        "versions": ["1.5", "1.4", "1.0"],
        "shadow": None,
        "store_rejected_bodies": True,
    }


def test_the_listing_is_the_same_however_it_is_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of many rules is made in batches, between which the event loop runs other tasks."""
    whole = World().get("/v1/schemas")
    monkeypatch.setattr(registry_api, "ROWS_PER_SLICE", 1)
    assert World().get("/v1/schemas") == whole
    assert World({"registry.toml": b""}).get("/v1/schemas")["rules"] == []


def test_a_type_tells_its_versions_by_every_name(world: World) -> None:
    """Fingerprints, the text's hash, the schema's id, its mode and the rules that name it."""
    told = world.get("/v1/schemas/t.T_v1")
    newest = world.version("1.5")
    assert told["compatibility"] == "FULL_TRANSITIVE"
    assert [row["minor"] for row in told["versions"]] == ["1.5", "1.4", "1.0"]
    assert told["versions"][0] == {
        "minor": "1.5",
        "fingerprints": {"CRC-64-AVRO": newest.crc_64.hex(), "SHA-256": newest.sha_256.hex()},
        "text_sha256": newest.text_sha256,
        "schema_id": newest.schema_id,
    }
    assert [rule["destination"] for rule in told["rules"]] == ["X/**"]
    assert world.get("/v1/schemas/t.U_v1")["compatibility"] == "BACKWARD"


def test_a_destination_tells_its_rule_and_versions(world: World) -> None:
    """The first matching rule, and the minors that may judge; without a rule it is 404 with the gateway's own code."""
    told = world.get("/v1/schemas/by-destination/X/A:1.Thing")
    assert told["destination"] == "X/A:1.Thing"
    assert told["rule"]["schema"] == "t.T_v1"
    assert [(row["type"], row["minor"]) for row in told["versions"]] == [("t.T_v1", m) for m in ("1.5", "1.4", "1.0")]
    assert world.get("/v1/schemas/by-destination/X/A.Raw")["versions"] == []
    missing = world.ask("/v1/schemas/by-destination/Y/A")
    assert (missing.status_code, missing.json()["error"]) == (404, "no-rule")


def test_a_fingerprint_gives_the_newest_text_and_names_all(world: World) -> None:
    """Both algorithms, hexadecimal digits of either case; minors that share one are named, newest first."""
    newest = world.version("1.5")
    for fingerprint in (newest.crc_64.hex(), newest.sha_256.hex(), newest.sha_256.hex().upper()):
        response = world.ask(f"/v1/schemas/by-fingerprint/{fingerprint}")
        assert response.content == newest.schema.text
        assert response.headers["maxam-schema"] == "t.T_v1 1.5, t.T_v1 1.4"
        assert response.headers["cache-control"] == REVALIDATED


def test_a_texts_hash_gives_that_text_for_ever(world: World) -> None:
    """A text that is requested by its hash cannot change, so caches need not ask again."""
    older = world.version("1.4")
    response = world.ask(f"/v1/schemas/by-text/{older.text_sha256}")
    assert response.content == older.schema.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == IMMUTABLE
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_type_and_minor_give_the_text(world: World) -> None:
    """`latest` stands for the newest minor."""
    assert world.ask("/v1/schemas/t.T_v1/1.0").content == world.version("1.0").schema.text
    assert world.ask("/v1/schemas/t.T_v1/latest").content == world.version("1.5").schema.text


@pytest.mark.parametrize(
    ("path", "status", "code", "detail"),
    [
        ("/v1/schemas/t.X_v1", 404, "not-found", "there is no type t.X_v1; GET /v1/schemas lists them"),
        ("/v1/schemas/t.T_v1/1.1", 404, "not-found", "there is no schema t.T_v1 1.1; known: 1.5, 1.4, 1.0"),
        (
            "/v1/schemas/t.X_v1/1.0",
            404,
            "not-found",
            "there is no schema t.X_v1 1.0; GET /v1/schemas lists what there is",
        ),
        ("/v1/schemas/by-fingerprint/" + "0" * 16, 404, "not-found", "no schema has the fingerprint " + "0" * 16),
        ("/v1/schemas/by-text/" + "0" * 64, 404, "not-found", "no schema's text has the SHA-256 " + "0" * 64),
        ("/v1/schemas/by-fingerprint/12", 400, "invalid-parameter", "a fingerprint has 16 or 64 hexadecimal digits"),
        (
            "/v1/schemas/by-text/" + "0" * 16,
            400,
            "invalid-parameter",
            "the SHA-256 of a text has 64 hexadecimal digits",
        ),
        (
            "/v1/schemas/by-text/" + "g" * 64,
            400,
            "invalid-parameter",
            "the SHA-256 of a text has 64 hexadecimal digits",
        ),
    ],
)
def test_what_is_not_there_is_told(world: World, path: str, status: int, code: str, detail: str) -> None:
    """Each error has a code, and a detail that shows what would be right."""
    response = world.ask(path)
    assert (response.status_code, response.json()) == (status, problem(code, detail))


PATHS = [
    "/v1/schemas",
    "/v1/schemas/t.T_v1",
    "/v1/schemas/t.T_v1/1.0",
    "/v1/schemas/by-destination/X/A",
    "/subjects",
    "/subjects/t.T_v1/versions",
    "/subjects/t.T_v1/versions/latest",
    "/subjects/t.T_v1/versions/1/schema",
    "/schemas/types",
    "/config",
    "/mode",
]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_can_be_asked_for_again(world: World, path: str) -> None:
    """With the ETag that it had, the answer is 304 without a body; with another one it is the whole."""
    first = world.ask(path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == REVALIDATED
    for known in (etag, f'"other", W/{etag}', "*"):
        again = world.ask(path, if_none_match=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert world.ask(path, if_none_match='"other"').content == first.content


def test_another_registry_gives_other_tags(world: World) -> None:
    """After a reload, what changed has another ETag, the rendered listing too, and what did not has the same."""
    paths = ["/v1/schemas", "/subjects/t.T_v1/versions/latest", "/v1/schemas/t.T_v1/1.0"]
    before = [world.ask(path).headers["etag"] for path in paths]
    world.broker.replace_registry(
        load_registry(FILES | {"t/T_v1/1.6.avsc": json.dumps(SECOND | {"doc": "Newer."}).encode()})
    )
    after = [world.ask(path).headers["etag"] for path in paths]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]


# As Confluent's clients ask.


def test_subjects_are_types_and_versions_are_minors(world: World) -> None:
    """Version n is the minor n - 1, `latest` and -1 the newest; ids are those that bodies carry."""
    assert world.get("/subjects") == ["t.T_v1", "t.U_v1"]
    assert world.get("/subjects?subjectPrefix=t.U") == ["t.U_v1"]
    assert world.get("/subjects?offset=1&limit=5") == ["t.U_v1"]
    assert world.get("/subjects?offset=0&limit=1") == ["t.T_v1"]
    assert world.get("/subjects/t.T_v1/versions") == [1, 5, 6]
    first, newest = world.version("1.0"), world.version("1.5")
    assert world.get("/subjects/t.T_v1/versions/1") == {
        "subject": "t.T_v1",
        "version": 1,
        "id": first.schema_id,
        "schema": first.schema.text.decode(),
    }
    for name in ("latest", "-1", "6"):
        assert world.get(f"/subjects/t.T_v1/versions/{name}")["id"] == newest.schema_id
    assert world.ask("/subjects/t.T_v1/versions/latest/schema").content == newest.schema.text
    assert world.get("/subjects/t.T_v1/versions/1/referencedby") == []


def test_ids_give_texts_and_who_has_them(world: World) -> None:
    """The text never changes, as the id is a hash of it; who has it may."""
    version = world.version("1.0", "t.U_v1")
    path = f"/schemas/ids/{version.schema_id}"
    assert world.get(path) == {"schema": version.schema.text.decode()}
    assert world.ask(path).headers["cache-control"] == IMMUTABLE
    assert world.ask(path + "/schema").content == version.schema.text
    assert world.get(path + "/versions") == [{"subject": "t.U_v1", "version": 1}]
    assert world.get(path + "/subjects") == ["t.U_v1"]
    assert world.get("/schemas/types") == ["AVRO"]


def test_settings_are_told(world: World) -> None:
    """The default mode of compatibility, that of a type, and that nothing can be written."""
    assert world.get("/config") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert world.get("/config/t.U_v1") == {"compatibilityLevel": "BACKWARD"}
    assert world.get("/mode") == world.get("/mode/t.T_v1") == {"mode": "READONLY"}


def test_a_lookup_finds_the_text_or_what_writes_the_same_bytes(world: World) -> None:
    """The same text finds its own version; one without docs, or written otherwise, the newest of the same form."""
    assert world.look_up("t.T_v1", FIRST) == (200, world.get("/subjects/t.T_v1/versions/1"))
    assert world.look_up("t.T_v1", SECOND)[1]["version"] == 5
    assert world.look_up("t.T_v1", world.version("1.4").schema.text.decode(), schemaType="AVRO")[1]["version"] == 5
    bare = {key: value for key, value in SECOND.items() if key != "doc"}
    assert world.look_up("t.T_v1", bare)[1]["version"] == 6
    spelt_out = {"fields": [{"type": {"type": "string"}, "name": "text"}], "name": "t.T_v1", "type": "record"}
    assert world.look_up("t.T_v1", spelt_out)[1]["version"] == 1


def test_a_long_text_is_only_found_as_it_is() -> None:
    """A text that would take long to parse is compared with the texts that are known, and not parsed."""
    fields = [{"name": f"f{n}", "type": "string", "doc": "x" * 80} for n in range(200)]
    long = FIRST | {"fields": fields}
    world = World(FILES | {"t/L_v1/1.0.avsc": json.dumps(long | {"name": "L_v1"}).encode()})
    text = world.version("1.0", "t.L_v1").schema.text.decode()
    assert len(text) > PARSED_BYTES_MAX
    assert world.look_up("t.L_v1", text)[0] == 200
    assert world.look_up("t.L_v1", text.replace("xxx", "yyy"))[1]["error_code"] == 40403


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        ("/subjects/t.X_v1/versions", 404, 40401, "Subject 't.X_v1' not found: the subjects are the types' names"),
        ("/subjects/t.X_v1/versions/1", 404, 40401, "Subject 't.X_v1' not found"),
        ("/config/t.X_v1", 404, 40401, "Subject 't.X_v1' not found"),
        ("/mode/t.X_v1", 404, 40401, "Subject 't.X_v1' not found"),
        ("/subjects/t.T_v1/versions/2", 404, 40402, "Version 2 not found."),
        ("/subjects/t.T_v1/versions/0", 422, 42202, "The specified version '0' is not a valid version id. Allowed"),
        ("/subjects/t.T_v1/versions/x", 422, 42202, "The specified version 'x' is not a valid version id. Allowed"),
        ("/schemas/ids/1", 404, 40403, "Schema 1 not found"),
        ("/schemas/ids/99999999999999999999", 404, 40403, "Schema 99999999999999999999 not found"),
        ("/schemas/ids/-1/versions", 404, 40403, "Schema -1 not found"),
        ("/subjects?offset=x", 400, 400, "offset and limit must be whole numbers"),
        ("/contexts", 404, 404, "no such path: this registry is in read-only mode"),
        ("/subjects/t.T_v1/metadata", 404, 404, "no such path: this registry is in read-only mode"),
    ],
)
def test_errors_have_confluents_form(world: World, path: str, status: int, code: int, message: str) -> None:
    """Each has the number that Confluent's registry gives, and its content type."""
    response = world.ask(path)
    assert response.status_code == status
    assert response.headers["content-type"] == CONFLUENT_TYPE
    assert response.json()["error_code"] == code
    assert response.json()["message"].startswith(message)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/subjects/t.T_v1/versions"),
        ("DELETE", "/subjects/t.T_v1"),
        ("DELETE", "/subjects/t.T_v1/versions/1"),
        ("PUT", "/config"),
        ("PUT", "/config/t.T_v1"),
        ("PUT", "/mode"),
        ("DELETE", "/mode/t.T_v1"),
        ("POST", "/subjects/t.New_v1/versions"),
        ("DELETE", "/contexts/x"),
    ],
)
def test_nothing_can_be_written(world: World, method: str, path: str) -> None:
    """Registering, deleting and setting are answered as by Confluent's registry in mode READONLY; the text shows where schemas come from."""
    response = world.ask(path, method, b"{}", maxam_admin="1")
    assert response.status_code == 422
    assert response.json()["error_code"] == 42205
    assert "files of the gateway's schema folder" in response.json()["message"]
    assert "auto.register.schemas = false" in response.json()["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        (b"", 400, 400, "expected a JSON object"),
        (b"\xff", 400, 400, "expected a JSON object"),
        (b"[" * 60_000, 400, 400, "expected a JSON object"),
        (b"[]", 422, 42201, "expected {"),
        (b'{"schema": 1}', 422, 42201, "expected {"),
        (b'{"schema": "{"}', 422, 42201, "Invalid schema: schema:1: not JSON"),
        (b'{"schema": "\\"nothing\\""}', 422, 42201, "Invalid schema: schema:1: unknown type 'nothing'"),
        (b'{"schema": "\\ud800"}', 422, 42201, "Invalid schema: "),
        (b'{"schema": "\\"\\\\ud800\\""}', 422, 42201, "Invalid schema: "),
        (
            b'{"schema": "' + b"[" * 30_000 + b"]" * 30_000 + b'"}',
            422,
            42201,
            "Invalid schema: schema: nested too deeply",
        ),
        (b'{"schema": "' + b"[" * 960 + b"]" * 960 + b'"}', 422, 42201, "Invalid schema: schema: "),
        (b'{"schema": "{}", "schemaType": "JSON"}', 422, 42201, "expected schemaType AVRO"),
        (b'{"schema": "{}", "references": [{}]}', 422, 42201, "references: send the self-contained text"),
        (b'{"schema": "\\"int\\""}', 404, 40403, "Schema not found among the versions of t.T_v1"),
        (b"x" * 65_537, 413, 413, "a request body needs a content-length of at most 65536"),
    ],
)
def test_a_lookup_that_makes_no_sense_is_told(world: World, body: bytes, status: int, code: int, message: str) -> None:
    """A wrong request is an error of the client, with Confluent's numbers, and no bug of ours."""
    response = world.ask("/subjects/t.T_v1", "POST", body)
    assert (response.status_code, response.json()["error_code"]) == (status, code)
    assert response.json()["message"].startswith(message)


def compatibility(world: World, path: str, schema: object) -> tuple[int, Any]:
    """Have a schema tested as Confluent's clients do, without the header that writes need."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    response = world.ask("/compatibility/subjects/" + path, "POST", json.dumps({"schema": text}).encode())
    assert response.headers["content-type"] == CONFLUENT_TYPE
    return response.status_code, response.json()


@pytest.mark.slow
def test_a_schema_is_tested_as_its_types_mode_asks() -> None:
    """One version or those that registering would compare with, in the directions of the mode; reasons on demand."""
    modes = b'\n[type."t.W_v1"]\ncompatibility = "FORWARD"\n'
    wide: dict[str, Any] = {"type": "record", "name": "t.W_v1", "fields": []}
    wider = wide | {"fields": [{"name": "a", "type": "int"}]}
    world = World(
        FILES
        | {
            "registry.toml": TOML.encode() + modes,
            "t/W_v1/1.0.avsc": json.dumps(wide).encode(),
            "t/W_v1/1.1.avsc": json.dumps(wider).encode(),
        }
    )
    compatible = (200, {"is_compatible": True})
    assert compatibility(world, "t.T_v1/versions/latest?normalize=False&verbose=False", FIRST) == compatible
    assert compatibility(world, "t.T_v1/versions/1?verbose=true", SECOND) == (
        200,
        {"is_compatible": True, "messages": []},
    )
    incompatible = FIRST | {"fields": [{"name": "text", "type": "int"}]}
    assert compatibility(world, "t.T_v1/versions/1", incompatible) == (200, {"is_compatible": False})
    status, answer = compatibility(world, "t.T_v1/versions?verbose=True", incompatible)
    assert (status, answer["is_compatible"], len(answer["messages"])) == (
        200,
        False,
        6,
    )  # three minors, both directions
    assert answer["messages"][0].startswith(
        "text: string is not readable as int. FULL_TRANSITIVE asks that the schema given reads all"
    )
    # FORWARD: of the newest only, and what was written before need not be readable
    needs = wider | {"fields": [*wider["fields"], {"name": "b", "type": "int"}]}
    assert compatibility(world, "t.W_v1/versions", needs) == compatible
    assert compatibility(world, "t.W_v1/versions", wide) == (200, {"is_compatible": False})
    assert compatibility(world, "t.W_v1/versions/1", wide) == compatible


@pytest.mark.slow
def test_reasons_are_bounded() -> None:
    """With any number of faults, some reasons are shown, with a remark that there may be more."""
    fields = [{"name": f"f{n}", "type": "int"} for n in range(100)]
    other = [{"name": f"g{n}", "type": "int"} for n in range(100)]
    many = [{"name": "u", "type": [{"type": "record", "name": f"N{n}", "fields": []} for n in range(300)]}]
    few = [{"name": "u", "type": [{"type": "record", "name": f"M{n}", "fields": []} for n in range(300)]}]
    files = {
        "t/L_v1/1.0.avsc": json.dumps(FIRST | {"name": "L_v1", "fields": fields}).encode(),
        "t/M_v1/1.0.avsc": json.dumps(FIRST | {"name": "M_v1", "fields": many}).encode(),
    }
    world = World(FILES | files)
    for name, changed in (("L_v1", other), ("M_v1", few)):
        answer = compatibility(world, f"t.{name}/versions?verbose=true", FIRST | {"name": name, "fields": changed})[1]
        assert len(answer["messages"]) == MESSAGES_MAX + 1
        assert answer["messages"][-1].startswith("there may be more")
        assert max(len(message) for message in answer["messages"]) <= MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("path", "schema", "status", "code", "message"),
    [
        ("t.X_v1/versions/latest", FIRST, 404, 40401, "Subject 't.X_v1' not found"),
        ("t.X_v1/versions", FIRST, 404, 40401, "Subject 't.X_v1' not found"),
        ("t.T_v1/versions/2", FIRST, 404, 40402, "Version 2 not found."),
        ("t.T_v1/versions/x", FIRST, 422, 42202, "The specified version 'x' is not a valid version id."),
        ("t.T_v1/versions/1", "{", 422, 42201, "Invalid schema: schema:1: not JSON"),
        ("t.T_v1/versions/1", '"\\ud800"', 422, 42201, "Invalid schema: "),
        ("t.T_v1/versions/1", "\n\ud800", 422, 42201, "Invalid schema: "),
        ("t.T_v1/versions/1", "[" * 30_000 + "]" * 30_000, 422, 42201, "Invalid schema: schema: nested too deeply"),
    ],
)
def test_a_test_that_makes_no_sense_is_told(path: str, schema: object, status: int, code: int, message: str) -> None:
    """Each has the number that Confluent's registry gives."""
    found, answer = compatibility(World(), path, schema)
    assert (found, answer["error_code"]) == (status, code)
    assert answer["message"].startswith(message)


@pytest.mark.slow
def test_tests_of_compatibility_hold_nobody_up(world: World) -> None:
    """While several are under way all else is answered, and each has its own answer."""
    done: list[object] = []
    texts = [FIRST, FIRST | {"fields": []}, SECOND]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await world.application({**scope, "state": {FINGERPRINT: MEMBER, CHAIN: ()}}, receive, send)

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="https://admin") as client:

            async def test(number: int) -> None:
                body = {"schema": json.dumps(texts[number])}
                response = await client.post("/compatibility/subjects/t.T_v1/versions", json=body)
                done.append((number, response.json()["is_compatible"]))

            async with trio.open_nursery() as nursery:
                for number in range(len(texts)):
                    nursery.start_soon(test, number)
                await trio.testing.wait_all_tasks_blocked()
                assert (await client.get("/subjects")).status_code == 200
                done.append("another")

    trio.run(main)
    assert done[0] == "another"
    assert set(done[1:]) == {(0, True), (1, False), (2, True)}
