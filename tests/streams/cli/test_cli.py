"""`maxam-admin` against a running gateway: its output, its exit codes, and its errors when something is missing."""

import datetime as dt
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from maxam.api.application import ROUTES
from maxam.api.routing import ANY_CERTIFICATE
from maxam.cli.main import main
from maxam.client_tls import client_context
from maxam.pki.certificates import Authority, issue_development_certificates
from tests.support.errors import code_in
from tests.support.patience import PATIENCE_S
from tests.support.running_gateway import Running, plain, running_gateway

REGISTRY = """
[[rule]]
destination = "X/*.Raw"
encoding = "none"
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "datum"
"""
POLICY = """
[capabilities.publish]
send = ["X/**"]
receive = ["X/**"]
[capabilities.operate]
send = ["X/A.**", "X/D.**"]
receive = ["X/A.**", "X/D.**", "X/W.**"]
admin = ["read", "write"]
[[principals]]
name = "op"
fingerprints = ["{operator}"]
capabilities = ["operate"]
[[principals]]
name = "pub"
fingerprints = ["{publisher}"]
capabilities = ["publish"]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway with the admin listener beside it."""
    schema = {"type": "record", "name": "T_v1", "namespace": "t", "fields": [{"name": "text", "type": "string"}]}
    schemas = {"registry.toml": REGISTRY, "t/T_v1/1.0.avsc": json.dumps(schema)}
    with running_gateway(tmp_path_factory.mktemp("gateway"), POLICY, schemas) as running:
        yield running


def datum(text: str) -> bytes:
    """Encode a value of the schema."""
    encoded = text.encode()
    length = 2 * len(encoded)
    return (bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])) + encoded


def test_topics_by_a_condition(running: Running) -> None:
    """--where finds topics by their values, of those that the certificate may receive; an error points at its character."""
    for name, text in (("1", "yes"), ("2", "no"), ("3", "yes")):
        running.send(f"X/W.{name}", datum(text))
    running.send("X/V.1", datum("yes"))  # the operator may not receive it
    found = running.cli("topics", "list", "X/[VW].*", "--where", "text LIKE 'y%'", "--json")
    assert [json.loads(line)["destination"] for line in found.stdout.splitlines()] == ["X/W.1", "X/W.3"]
    assert [json.loads(line).get("value") for line in found.stdout.splitlines()] == [None, None]
    table = running.cli("topics", "list", "X/W.*", "--where", "text = 'no'", "--values").stdout
    assert "X/W.2" in table
    assert '"no"' in table
    wrong = running.cli("topics", "list", "--where", "text = 'yes' AND txet = 'no'")
    assert (wrong.exit_code, code_in(wrong.stderr)) == (2, "invalid-selector")
    assert "character 18 " in wrong.stderr
    for name in ("W.1", "W.2", "W.3", "V.1"):
        running.send(f"X/{name}", b"")


def test_topics(running: Running) -> None:
    """Listing, values, one topic and its deletion, for people and as JSON; exit code 1 for what is not there."""
    running.send("X/A.1", datum("v"))
    running.send("X/A.1.Raw", b"\0\xff")
    running.send("X/B.1", datum("secret"))

    result = running.cli("topics", "list", "X/[AB]*", "--values")
    assert (result.exit_code, result.stderr) == (0, "")
    assert plain(re.sub(r" +\d+ +<time>", " <revision> <time>", plain(result.stdout))) == (
        "DESTINATION  REVISION  ACCEPTED AT  PUBLISHER  SCHEMA  BYTES  VALUE\n"
        "─\n"
        'X/A.1 <revision> <time>  pub  t.T_v1 1.0  2  {"text":"v"}\n'
        "X/A.1.Raw <revision> <time>  pub  (none)  2  (it was accepted without a schema)\n"
        "X/B.1 <revision> <time>  pub  t.T_v1 1.0  7  (withheld)\n"
    )
    rows = [json.loads(line) for line in running.cli("topics", "list", "X/[AB]*", "--json").stdout.splitlines()]
    assert [row["destination"] for row in rows] == ["X/A.1", "X/A.1.Raw", "X/B.1"]
    assert running.cli("topics", "list", "X/[AB]*", "--json", "--limit", "1").stdout.count("\n") == 1

    assert plain(running.cli("topics", "get", "X/A.1").stdout) == (
        "destination  X/A.1\n"
        f"revision  {rows[0]['revision']}\n"
        "accepted_at  <time>\n"
        "publisher  pub\n"
        "fingerprint  <fingerprint>\n"
        "encoding  datum\n"
        "schema  t.T_v1\n"
        "schema_version  1.0\n"
        f"schema_fingerprint  {rows[0]['schema_fingerprint']}\n"
        "body_bytes  2\n"
        "updates  1\n"
        "header h  1\n"
        '{\n  "text": "v"\n}\n'
    )
    assert json.loads(running.cli("topics", "get", "X/A.1", "--json").stdout)["value"] == {"text": "v"}
    assert running.cli("topics", "get", "X/A.1.Raw").stdout.endswith("\nAP8=\n")
    assert "withheld" in running.cli("topics", "get", "X/B.1").stdout

    result = running.cli("topics", "delete", "X/A.1")
    assert (result.exit_code, result.stdout) == (0, "deleted X/A.1\n")
    for verb in ("get", "delete"):
        result = running.cli("topics", verb, "X/A.1")
        assert (result.exit_code, result.stdout) == (3, "")
        assert code_in(result.stderr) == "not-found"
    result = running.cli("topics", "delete", "X/B.1")
    assert result.exit_code == 4
    assert "unauthorised" in result.stderr


def test_a_large_value_is_decoded_here(running: Running) -> None:
    """A value that is too large for the gateway to decode is shown decoded all the same."""
    running.send("X/D.1", datum("x" * 8191))
    topic = json.loads(running.cli("topics", "get", "X/D.1", "--json").stdout)
    assert topic["value"] == {"text": "x" * 8191}
    assert topic["value_state"] == "decoded"
    assert not {"body", "problem"} & set(topic)


def test_hostile_text_reaches_no_terminal(running: Running) -> None:
    """No command prints a control character that a publisher chose."""
    hostile = "\x1b[2J\x1b]0;owned\x07\r\n\u202e\u2066\x9b31m[bold]"
    running.send("X/D.1.evil", datum(hostile))
    for arguments in (
        ["topics", "list", "X/D.*evil", "--values"],
        ["topics", "list", "X/D.*evil", "--values", "--json"],
        ["topics", "get", "X/D.1.evil"],
        ["topics", "get", "X/D.1.evil", "--json"],
        ["topics", "watch", "X/D.*evil", "--count", "1"],
        ["topics", "watch", "X/D.*evil", "--count", "1", "--json"],
        ["topics", "get", hostile.replace("\r\n", "")],
        ["sessions", "show", hostile, hostile],
    ):
        result = running.cli(*arguments)
        assert all(line.isprintable() for line in result.output.split("\n")), arguments
        assert "owned" in result.output or "sessions" in arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "X/D.full.long"),
        ("history", "X/D.full.long"),
        ("watch", "X/D.full.long", "--count", "1"),
    ],
)
def test_a_long_value_is_whole_when_asked_for(running: Running, arguments: tuple[str, ...]) -> None:
    """Without --full it is cut, and a remark shows the option. With --full not a character is missing, and there is no remark."""
    running.send("X/D.full.long", datum("ab" * 500))
    cut = running.cli("topics", *arguments, *([] if "watch" in arguments else ["--values"]))
    assert cut.exit_code == 0
    assert "ab" * 150 in cut.stdout
    assert "ab" * 210 not in cut.stdout
    assert cut.stderr.endswith("VALUE: cut where it ends in \N{HORIZONTAL ELLIPSIS}; --full shows all of it\n")
    whole = running.cli("topics", *arguments, "--full")
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert "ab" * 500 in whole.stdout


def test_watch_shows_values_decoded(running: Running) -> None:
    """Current values first, then each update; without the right to receive it reports that."""
    running.send("X/W.1", datum("v"))
    running.send("X/W.2.Raw", b"\0")
    result = running.cli("topics", "watch", "X/W.*", "--count", "2", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = {row["destination"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert rows["X/W.1"] | {"received_at": "", "revision": 0} == {
        "destination": "X/W.1",
        "revision": 0,
        "received_at": "",
        "kind": "value",
        "reason": "",
        "deleted": False,
        "schema": "t.T_v1 1.0",
        "value": {"text": "v"},
        "problem": "",
    }
    assert rows["X/W.2.Raw"]["problem"]
    host, port = running.gateway.address
    result = running.cli("topics", "watch", "X/W.1", "--count", "1", "--stomp", f"{host}:{port}", who="publisher")
    assert re.fullmatch(r'\d+ X/W\.1 \{"text":"v"\}\n', result.stdout)


def test_watch_continues_after_a_lost_connection(running: Running) -> None:
    """It shows what changed meanwhile. With --where it shows a topic that no longer satisfies the condition, if it was shown."""
    running.send("X/W.1.C", datum("v1"))
    running.send("X/W.2.C", datum("other"))
    command = ["topics", "watch", "X/W.*.C", "--json", "--where", "text LIKE 'v%'", "--min-interval", "10ms"]
    with subprocess.Popen(
        [sys.executable, "-c", "from maxam.cli.main import main; main()", *command],
        env={name: text for name, text in running.environment().items() if text is not None},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        rows: list[dict[str, Any]] = []

        def read_until(kind: str, value: object) -> None:
            assert process.stdout is not None
            while not rows or (rows[-1]["kind"], rows[-1]["value"]) != (kind, value):
                rows.append(json.loads(process.stdout.readline()))

        read_until("value", {"text": "v1"})
        sessions = map(json.loads, running.cli("sessions", "list", "--json").stdout.splitlines())
        (session,) = [row for row in sessions if row["principal"] == "op" and row["connected"]]
        assert running.cli("sessions", "kick", "op", session["client_id"]).exit_code == 0
        assert "closed by an operator" in process.stderr.readline()
        running.send("X/W.1.C", datum("v2"))
        read_until("value", {"text": "v2"})
        running.send("X/W.1.C", datum("other"))
        read_until("left", None)
        process.send_signal(signal.SIGINT)
        watchdog.cancel()
    assert process.returncode == 0
    assert {row["destination"] for row in rows} == {"X/W.1.C"}
    assert rows[-1]["reason"] == "selector"


def test_watch_reports_a_selector_that_cannot_be_used(running: Running) -> None:
    """The error has the text of the gateway, and the command ends."""
    result = running.cli("topics", "watch", "X/W.*", "--where", "no_such_field = 1")
    assert (result.exit_code, code_in(result.stderr), result.stdout) == (1, "stomp-error", "")
    assert "no_such_field" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "topics list",
        "topics list --watch",
        "topics list --json",
        "topics watch X/W.P",
        "topics watch X/W.P --json",
        "topics history X/W.P",
        "top --json",
        "top",
        "health --watch",
        "journal dump {journal}",
        "schemas encode - --type t.T_v1",
    ],
)
def test_a_closed_pipe_ends_a_command_quietly(running: Running, command: str) -> None:
    """A command whose reader has gone, as that of `| head` has, ends without a message."""
    running.send("X/W.P", datum("v"))
    environment = {name: text for name, text in running.environment().items() if text is not None}
    environment["MAXAM_SCHEMAS"] = str(running.folder / "schemas")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from maxam.cli.main import main; main()",
            *command.format(journal=running.folder / "journal").split(),
        ],
        env=environment,
        cwd=Path(__file__).parents[3],
        input='{"text": "v"}',
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    os.close(writer)
    assert (done.returncode, code_in(done.stderr), "Traceback" in done.stderr) == (1, "", False)


def test_a_full_disk_behind_standard_output_is_one_line(running: Running) -> None:
    """Output that cannot be written is reported like any other error, without a traceback."""
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", "from maxam.cli.main import main; main()", "schemas", "list", "--json"],
            env={"MAXAM_SCHEMAS": str(running.folder / "schemas"), "PYTHONUNBUFFERED": "1"},
            cwd=Path(__file__).parents[3],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, code_in(result.stderr)) == (1, "input-output")


def test_sessions(running: Running) -> None:
    """Listing, one session, closing its connection, and its end."""

    async def while_subscribed(client: Any) -> None:
        async with client.subscribe("X/S.*", id="s 1", durable=True):
            await trio.to_thread.run_sync(look)
            assert "closed by an operator" in str(await client.ended())

    async def subscribe_again(client: Any) -> None:
        async with client.subscribe("X/S.*", id="t", durable=True):
            pass

    def look() -> None:
        assert plain(running.cli("sessions", "list").stdout) == (
            "PRINCIPAL  CLIENT-ID  CONNECTED  DURABLE  PEER  SINCE"
            "  SUBSCRIPTIONS  BEHIND BY  OWED  UN-ACKED  WINDOW\n─\n"
            "pub  dash/board  yes  yes  <peer>  <time>  1  0  0  64\n"
        )
        assert json.loads(running.cli("sessions", "list", "--json").stdout)["client_id"] == "dash/board"
        assert plain(running.cli("sessions", "show", "pub", "dash/board").stdout) == (
            "principal  pub\nclient_id  dash/board\nconnected  yes\ndurable  yes\npeer  <peer>\nfingerprint  <fingerprint>\nconnected_at  <time>\nwindow  64\n"
            "unacked  0\nowed  0\nconflated  0\nstaleness_s  0.0\nbehind  no\n"
            "SUBSCRIPTION  GLOB  ACK  DURABLE  DELIVERING  BEHIND BY  OWED  UN-ACKED  CONFLATED  WHY\n─\n"
            "s 1  X/S.*  client  yes  yes  0  0  0\n"
        )
        assert running.cli("sessions", "kick", "pub", "dash/board").stdout == "kicked pub dash/board\n"

    running.client(while_subscribed, "dash/board")
    result = running.cli("sessions", "kick", "pub", "dash/board")
    assert (result.exit_code, code_in(result.stderr)) == (1, "not-connected")
    assert running.cli("subscriptions", "drop", "pub", "dash/board", "s 1").stdout == "dropped pub dash/board s 1\n"
    assert running.cli("subscriptions", "drop", "pub", "dash/board", "s 1").exit_code == 3
    running.client(subscribe_again, "dash/board")
    assert running.cli("sessions", "drop", "pub", "dash/board").stdout == "dropped pub dash/board\n"
    result = running.cli("sessions", "drop", "pub", "dash/board")
    assert (result.exit_code, code_in(result.stderr)) == (3, "not-found")


def test_connections(running: Running) -> None:
    """A connection is listed, shown and closed by its number; an unknown number is not found, and an operator's is left alone."""

    async def while_connected(client: Any) -> None:
        del client
        await trio.to_thread.run_sync(look)

    def look() -> None:
        rows = [json.loads(line) for line in running.cli("connections", "list", "--json").stdout.splitlines()]
        assert rows[0]["id"] == json.loads(running.cli("connections", "--json").stdout.splitlines()[0])["id"]
        (row,) = [row for row in rows if row["client_id"] == "board 8"]
        number = str(row["id"])
        assert json.loads(running.cli("connections", "show", number, "--json").stdout)["client_id"] == "board 8"
        assert "board 8" in running.cli("connections", "show", number).stdout
        assert running.cli("connections", "close", number).stdout == f"closed {number}\n"

    running.client(while_connected, "board 8")
    for command in ("show", "close"):
        result = running.cli("connections", command, "999999")
        assert (result.exit_code, code_in(result.stderr)) == (3, "not-found")


def unused_address() -> str:
    """Return an address where nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


@pytest.mark.parametrize(
    ("variables", "option", "code", "exit_code"),
    [
        ({"MAXAM_CA": None}, "--ca", "usage", 2),
        ({"MAXAM_CERTIFICATE": None}, "--cert", "usage", 2),
        ({"MAXAM_KEY": None}, "--key", "usage", 2),
        ({"MAXAM_KEY": "/nonesuch"}, "--key", "certificate-invalid", 4),
        ({"MAXAM_CA": __file__}, "--ca", "certificate-invalid", 4),
        ({"MAXAM_KEY": __file__}, "--key", "certificate-invalid", 4),
        ({"MAXAM_GATEWAY": "here"}, "--admin", "usage", 2),
        ({"MAXAM_GATEWAY": "h:99999"}, "--admin", "usage", 2),
        ({"MAXAM_SERVER_NAME": "other.example"}, "--server-name", "tls-failed", 4),
    ],
)
def test_what_is_missing_is_named(
    running: Running, variables: dict[str, str | None], option: str, code: str, exit_code: int
) -> None:
    """Each missing or invalid setting is reported with its option, on one line."""
    result = running.cli("topics", "list", variables=variables)
    assert (result.exit_code, code_in(result.stderr), result.stdout) == (exit_code, code, "")
    assert option in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_name_can_be_checked(running: Running) -> None:
    """With --server-name the gateway's certificate must carry that name."""
    assert running.cli("--server-name", "localhost", "sessions", "list").exit_code == 0


def test_any_name_that_leads_there_will_do(running: Running) -> None:
    """A way to write the address that the gateway is not known by is a way to it all the same."""
    gateway: dict[str, str | None] = {"MAXAM_GATEWAY": running.admin.replace("127.0.0.1", "127.1")}
    assert running.cli("sessions", "list", variables=gateway).exit_code == 0


def test_no_gateway_is_told(running: Running) -> None:
    """Nothing listens, or something that is no admin listener."""
    result = running.cli("topics", "list", variables={"MAXAM_GATEWAY": unused_address()})
    assert (result.exit_code, code_in(result.stderr)) == (4, "gateway-unreachable")
    host, port = running.gateway.address
    result = running.cli("topics", "list", variables={"MAXAM_GATEWAY": f"{host}:{port}"})
    assert (result.exit_code, f"{host}:{port}" in result.stderr) == (4, True)


def test_untrusted_certificates_are_told(running: Running, tmp_path: Path) -> None:
    """The error shows whether our certificate or the gateway's is not accepted, and what to check."""
    now = dt.datetime.now(dt.UTC)
    Authority.create("other", now).issue("x", now, now + dt.timedelta(days=1)).write(tmp_path, "x")
    files: dict[str, str | None] = {"MAXAM_CERTIFICATE": str(tmp_path / "x.pem"), "MAXAM_KEY": str(tmp_path / "x.key")}
    result = running.cli("topics", "list", variables=files)
    assert result.exit_code == 4
    assert "refused the certificate" in result.stderr
    assert "unknown ca" in result.stderr
    issue_development_certificates(tmp_path, now)
    result = running.cli("topics", "list", variables={"MAXAM_CA": str(tmp_path / "ca.pem")})
    assert result.exit_code == 4
    assert "is not trusted" in result.stderr


@pytest.mark.parametrize("who", ["publisher", "subscriber"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "get", "X/A.1"],
        ["topics", "delete", "X/A.1"],
        ["topics", "watch", "X/**"],
        ["sessions", "list"],
        ["sessions", "show", "a", "b"],
        ["sessions", "kick", "a", "b"],
        ["sessions", "drop", "a", "b"],
        ["subscriptions", "drop", "a", "b", "c"],
    ],
)
def test_no_right_is_told(running: Running, who: str, arguments: list[str]) -> None:
    """A certificate without the right, or unknown to the policy, is refused with the missing right."""
    result = running.cli(*arguments, who=who)
    assert (result.exit_code, result.stdout) == (4, "")
    assert code_in(result.stderr) == "forbidden"
    assert f"maxam-admin certs fingerprint {running.folder}/certs/{who}.pem" in result.stderr


@pytest.mark.parametrize(("method", "path", "right"), [(m, p, r) for m, p, r, _ in ROUTES])
def test_every_route_refuses_an_unprivileged_certificate(running: Running, method: str, path: str, right: str) -> None:
    """Over real TLS, a certificate that the policy does not know gets 403 everywhere but at /livez."""
    certificates = running.folder / "certs"
    context = client_context(
        certificates / "ca.pem", certificates / "subscriber.pem", certificates / "subscriber.key", name_checked=False
    )
    host, _, port = running.admin.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE_S)
    connection.request(method, path.replace("{", "x").replace("}", "x"), headers={"maxam-admin": "1"})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    assert (response.status, body.get("error")) == ((200, None) if right == ANY_CERTIFICATE else (403, "forbidden"))


def test_usage_errors_have_their_own_exit_code(running: Running) -> None:
    """A wrong command, option or argument is exit code 2."""
    for arguments in (["nothing"], ["topics", "get"], ["topics", "list", "--limit", "0"], ["--nothing"]):
        assert running.cli(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["topics", "get"], ["topics", "history"], ["topics", "overdue"], ["topics", "list"]]
)
def test_arguments_that_are_no_text_are_told(running: Running, arguments: list[str]) -> None:
    """As bytes of another character set come from a shell; one line, and exit code 1."""
    result = running.cli(*arguments, "X/\udcff")
    assert (result.exit_code, result.stderr.count("\n"), "'X/\\udcff'" in result.stderr) == (2, 1, True)


def test_file_verbs_need_no_gateway(running: Running, tmp_path: Path) -> None:
    """Certificates, schemas, policy and journal are checked without a connection; what is wrong is named."""
    nothing = dict.fromkeys(("MAXAM_GATEWAY", "MAXAM_CERTIFICATE", "MAXAM_KEY", "MAXAM_CA"))

    def cli(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, env=nothing)

    made = json.loads(cli("dev-certs", str(tmp_path / "certs"), "--json").stdout)
    assert set(made) == {"publisher", "subscriber", "operator", "pipeline"}
    pem = str(tmp_path / "certs/operator.pem")
    assert cli("fingerprint", pem).stdout == made["operator"] + "\n"
    assert json.loads(cli("fingerprint", pem, "--json").stdout) == {"file": pem, "fingerprint": made["operator"]}
    for bad, code in ((__file__, 1), ("/nonesuch", 3)):
        result = cli("fingerprint", bad)
        assert (result.exit_code, result.stdout) == (code, "")
        assert bad in result.stderr

    schemas, policy = running.folder / "schemas", running.folder / "policy.toml"
    assert cli("schemas", "check", str(schemas)).stdout == f"{schemas}: valid, 2 rules, 1 type\nt.T_v1  1.0\n"
    assert json.loads(cli("schemas", "check", str(schemas), "--json").stdout)["types"] == {"t.T_v1": ["1.0"]}
    assert cli("policy", "check", str(policy)).stdout == f"{policy}: valid, 2 principals, 2 capabilities\n"
    (tmp_path / "bad.toml").write_text("[capability.x]")
    result = cli("policy", "check", str(tmp_path / "bad.toml"))
    assert result.exit_code == 1
    assert "bad.toml: capability: " in result.stdout
    assert "1 error" in result.stderr
    assert cli("schemas", "check", str(tmp_path)).exit_code == 3

    result = cli("journal", "verify", str(running.folder / "journal"))
    assert result.exit_code == 0
    assert "segments/00000000000000000001.open.avro" in result.stdout
    assert cli("journal", "verify", str(tmp_path)).exit_code == 1
    broken = tmp_path / "journal"
    for name in ("segments", "snapshots", "schemas"):
        (broken / name).mkdir(parents=True)
    (broken / "segments/00000000000000000001-00000000000000000002.avro").write_bytes(b"not a segment")
    result = cli("journal", "verify", str(broken), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[0])["problem"]
    assert "1 of 1 file damaged" in result.stderr


def test_bench_is_maxam_bench(tmp_path: Path) -> None:
    """Arguments, options among them, output and exit code are those of maxam-bench; a missing program is reported."""
    program = tmp_path / "maxam-bench"
    program.write_text(f"#!{sys.executable}\nfrom maxam.bench.main import main\nmain(prog_name='maxam-bench')\n")
    program.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def run(path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", "from maxam.cli.main import main; main()", "bench", *arguments],
            env=environment | {"PATH": path},
            cwd=tmp_path.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    result = run(str(tmp_path), "run", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: maxam-bench run")
    assert run(str(tmp_path), "--nonsense").returncode == 2
    linked = tmp_path / "bin" / "maxam-admin"  # as an installed gateway has it
    linked.parent.mkdir()
    (tmp_path / "maxam-admin").write_text(f"#!{sys.executable}\nfrom maxam.cli.main import main\nmain()\n")
    (tmp_path / "maxam-admin").chmod(0o755)
    linked.symlink_to(tmp_path / "maxam-admin")
    command = [str(linked), "bench", "run", "--help"]
    done = subprocess.run(command, env=environment | {"PATH": "/nonesuch"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("Usage: maxam-bench run")) == (0, True), done.stderr
    result = run("/nonesuch")
    assert (result.returncode, code_in(result.stderr)) == (1, "configuration-invalid")


def completed(
    running: Running, *words: str, asks: str = "bash", variables: dict[str, str | None] | None = None
) -> list[str]:
    """Return what a shell is offered for the last word."""
    environment: dict[str, str | None] = {
        **running.environment(),
        "_MAXAM_ADMIN_COMPLETE": f"{asks}_complete",
        "COMP_WORDS": shlex.join(("maxam-admin", *words)),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(main, [], prog_name="maxam-admin", env=environment | (variables or {}))
    return [line.removeprefix("plain,") for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    """Each shell gets one that asks this command; bash can read its own."""
    script = CliRunner().invoke(main, ["completion", shell]).stdout
    assert f"_MAXAM_ADMIN_COMPLETE={shell}_complete" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0


def test_completion_knows_verbs_and_names(running: Running) -> None:
    """Commands without a gateway, destinations, principals and client-ids of the gateway. Nothing, and no error, where it cannot ask."""
    assert {"delete", "get", "list", "watch"} <= set(completed(running, "topics", ""))
    running.send("X/A.1.complete", datum("v"))
    running.send("X/A.2.complete", datum("v"))
    assert completed(running, "topics", "get", "X/A.1.c") == ["X/A.1.complete"]
    assert {"X/A.1.complete", "X/A.2.complete"} <= set(completed(running, "topics", "get", ""))

    async def while_subscribed(client: Any) -> None:
        async with client.subscribe("X/S.*"):
            await trio.to_thread.run_sync(look)

    def look() -> None:
        assert completed(running, "sessions", "show", "p") == ["pub"]
        assert completed(running, "sessions", "show", "pub", "") == ["'board 7'"]
        assert completed(running, "sessions", "show", "op", "") == []

    running.client(while_subscribed, "board 7")
    for variables in ({"MAXAM_GATEWAY": unused_address()}, {"MAXAM_CA": "/nonesuch"}):
        assert completed(running, "topics", "get", "X/A.1.c", variables=dict(variables)) == []


@pytest.mark.parametrize(
    "name", ["X/H.`touch${IFS}harm`", "X/H.$(touch${IFS}harm)", "X/H.a;b", "X/H.it's&b", "X/H.~|<>#!b"]
)
def test_no_name_of_a_client_is_run_by_the_shell_that_completes_it(running: Running, tmp_path: Path, name: str) -> None:
    """Bash puts any name into the command line as one word. zsh quotes by itself."""
    running.send(name, datum("v"))
    [offered] = completed(running, "topics", "get", name[:4])
    shell = subprocess.run(
        ["bash", "-c", f"printf %s {offered}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (shell.stdout, list(tmp_path.iterdir())) == (name, [])
    assert name in completed(running, "topics", "get", name[:4], asks="zsh")
    running.send(name, b"")


@pytest.mark.parametrize("arguments", [["backup", "list", "--help"], ["backup", "--help"]])
def test_help_needs_no_client_configuration(tmp_path: Path, arguments: list[str]) -> None:
    """A configuration that cannot be read is reported by the command that uses it, not by a help text."""
    (tmp_path / "maxam").mkdir()
    (tmp_path / "maxam" / "client.toml").write_text("nonsense")
    variables = {"XDG_CONFIG_HOME": str(tmp_path), "MAXAM_CLIENT_CONFIG": str(tmp_path / "maxam" / "client.toml")}
    result = CliRunner().invoke(main, arguments, env=variables)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage:")
    assert CliRunner().invoke(main, ["backup", "list"], env=variables).exit_code == 1


@pytest.mark.parametrize("option", ["--ca-sha256", "--token-file", "--server-name"])
def test_enrol_ignores_no_option(tmp_path: Path, option: str) -> None:
    """Without the gateway's address they would do nothing: that is an error, and no key is made."""
    result = CliRunner().invoke(main, ["enrol", str(tmp_path / "new"), option, "x"])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "new").exists()


def test_json_before_or_behind_the_verb(running: Running) -> None:
    """`backup --json list` prints JSON as `backup list --json` does."""
    results = [running.cli("backup", *arguments) for arguments in (("--json", "list"), ("list", "--json"))]
    assert results[0].output == results[1].output
    assert not results[0].output.startswith("NAME")
