"""The audit log and the policy commands, asked of a living gateway: events of every kind, and what an operator sees of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.audit_chain import Checker, read_folder
from maxam.gateway.audit import (
    ADMIN,
    CONNECTED,
    DISCONNECTED,
    EVENTS,
    EXPELLED,
    REFUSED,
    RELOADED,
    SEND_REJECTED,
    STARTED,
    STOPPED,
    TAKEN_OVER,
    audit_folder,
)
from tests.support.errors import code_in
from tests.support.living_gateway import EVERYTHING, Living, Site, cli, living, run, until

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "security.md"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with two clients."""
    return Site(tmp_path, "anna", "bert")


async def greeted_without_certificate(gateway: Living) -> bool:
    """Connect without a certificate. Return True if anything is answered. TLS 1.3 refuses only after its handshake."""
    try:
        async with await gateway.dial(None) as stream:
            await stream.send_all(b"CONNECT\n\n\0")
            return bool(await stream.receive_some(10))
    except trio.BrokenResourceError:
        return False


def lines(site: Site) -> list[dict[str, Any]]:
    """Read the audit log of a gateway; its chain holds."""
    checker = Checker()
    found = [line.facts for line in read_folder(audit_folder(site.settings), checker)]
    assert checker.proof.breaks == []
    return found


def test_every_kind_of_event_is_told_with_who_and_why(site: Site) -> None:
    """One event of each kind: principal, fingerprint, outcome and reason are in the log, bodies and tokens are not."""

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna", "session-1") as first:
                assert (await first.send("Y/secret", b"the body"))[0] == b"rejected-unauthorised"
                for _ in range(5):
                    await first.send("Y/secret", b"the body")
                async with gateway.client("anna", "session-1") as second:
                    assert (await first.error())[0] == b"session taken over by a newer connection"
                    assert (await cli(gateway, "sessions", "kick", "anna", "session-1")).exit_code == 0
                    assert (await second.error())[0] == b"closed by an operator"
            assert (await cli(gateway, "sessions", "kick", "anna", "nobody")).exit_code == 3
            assert (await cli(gateway, "reload", who="anna")).exit_code == 4
            assert not await greeted_without_certificate(gateway)
            async with gateway.client("bert") as bert:
                site.policy({"anna": EVERYTHING})
                await gateway.reload()
                assert (await bert.error())[0] == b"unknown client"
            assert (await gateway.refusal("bert"))[0] == b"unknown client"
            site.policy_file.write_text("nonsense")
            await gateway.reload()

    run(test)
    found = lines(site)
    fingerprints = site.fingerprints

    def one(event: str, **wanted: str) -> dict[str, Any]:
        matching = [
            line for line in found if line["event"] == event and all(line.get(key) == wanted[key] for key in wanted)
        ]
        assert matching, (event, wanted, found)
        return matching[0]

    assert found[0]["event"] == STARTED
    assert found[-1]["event"] == STOPPED
    connected = one(CONNECTED, principal="anna")
    assert (connected["fingerprint"], connected["session"]) == (fingerprints["anna"], "session-1")
    rejected = [line for line in found if line["event"] == SEND_REJECTED]
    assert [line.get("count") for line in rejected] == [None, 5]
    assert (rejected[0]["outcome"], rejected[0]["destination"]) == ("rejected-unauthorised", "Y/secret")
    assert one(TAKEN_OVER)["session"] == "session-1"
    assert "closed by an operator" in one(DISCONNECTED, principal="anna")["reason"]
    assert one(ADMIN, outcome="done", principal="operator")["path"].endswith("/session-1/kick")
    assert "not-found" in one(ADMIN, outcome="refused", principal="operator")["reason"]
    assert one(ADMIN, outcome="refused", principal="anna")["fingerprint"] == fingerprints["anna"]
    assert "certificate" in one(REFUSED)["reason"]
    assert one(EXPELLED, principal="bert")["fingerprint"] == fingerprints["bert"]
    assert one(REFUSED, fingerprint=fingerprints["bert"])["reason"] == "error: unknown client"
    assert one(RELOADED, outcome="reloaded")["item"] == "policy"
    assert "expected TOML" in one(RELOADED, outcome="refused")["reason"]
    assert "the body" not in json.dumps(found)


def test_what_operators_drop_is_told(site: Site) -> None:
    """The end of a subscription and of a session is a line each, with who did it and which one; so is a refused one."""

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna", "one") as anna:
                await anna.subscribe("X/**", durable=True)
                drop = ("subscriptions", "drop", "anna", "one", "s")
                assert (await cli(gateway, *drop)).exit_code == 1
            await until(lambda: gateway.gateway.broker.sessions["anna", "one"].connection is None)
            assert (await cli(gateway, *drop)).exit_code == 0
            async with gateway.client("anna", "one") as anna:
                await anna.subscribe("X/**", durable=True)
            assert (await cli(gateway, "sessions", "drop", "anna", "one")).exit_code == 0

    run(test)
    told = [line for line in lines(site) if line["event"] == ADMIN]
    assert {line["principal"] for line in told} == {"operator"}
    assert [(line["outcome"], line["method"], line["path"]) for line in told] == [
        ("refused", "DELETE", "/v1/subscriptions/anna/one/s"),
        ("done", "DELETE", "/v1/subscriptions/anna/one/s"),
        ("done", "DELETE", "/v1/sessions/anna/one"),
    ]


def test_events_are_the_ones_documented() -> None:
    """docs/operate/security.md has a row for each event that the code names."""
    section = PAGE.read_text().partition("\n## Audit log\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)) == EVENTS


def test_the_log_is_shown_and_proved_beside_the_gateway_that_writes_it(site: Site) -> None:
    """`audit show` filters, `audit verify` shows the first break, an anchor shows a missing end."""

    async def test() -> None:
        async with living(site) as gateway:
            folder = str(audit_folder(site.settings))
            async with gateway.client("anna") as anna:
                await anna.send("Y/a", b"v")
                await until(lambda: gateway.gateway.audit.head.sequence >= 3)
                result = await cli(gateway, "audit", "verify", folder, "--live", "--json")
                assert (result.exit_code, json.loads(result.output)["good"]) == (0, True)
                head = (await cli(gateway, "audit", "head")).output.strip()
                assert head == str(gateway.gateway.audit.head)
            shown = await cli(gateway, "audit", "show", folder, "--event", SEND_REJECTED, "--since", "1h", "--json")
            (line,) = [json.loads(text) for text in shown.output.splitlines()]
            assert (line["principal"], line["destination"]) == ("anna", "Y/a")
            table = await cli(gateway, "audit", "show", folder, "--principal", "anna")
            assert (table.exit_code, "send-rejected" in table.output) == (0, True)
            assert (await cli(gateway, "audit", "show", str(site.folder))).exit_code == 1
            (path,) = audit_folder(site.settings).glob("*.jsonl")
            whole = path.read_bytes()
            copy = site.folder / "copy"
            copy.mkdir()
            (copy / path.name).write_bytes(whole.replace(b"Y/a", b"Y/b", 1))
            result = await cli(gateway, "audit", "verify", str(copy))
            assert result.exit_code == 1
            assert re.search(rf"{path.name}:\d+: names another line", result.output)
            (copy / path.name).write_bytes(whole[: whole.index(b"\n") + 1])
            assert (await cli(gateway, "audit", "verify", str(copy))).exit_code == 0
            result = await cli(gateway, "audit", "verify", str(copy), "--anchor", head)
            assert (result.exit_code, code_in(result.stderr)) == (1, "audit-broken")
            assert (await cli(gateway, "audit", "verify", str(copy), "--anchor", "x")).exit_code == 2

    run(test)


def test_what_is_in_force_is_explained(site: Site) -> None:
    """The gateway names capability, glob and place; who asks needs the right to read."""

    async def test() -> None:
        async with living(site) as gateway:
            result = await cli(gateway, "policy", "explain", "--principal", "anna", "--send", "X/a", "--json")
            answer = json.loads(result.output)
            assert (result.exit_code, answer["verdict"], answer["decisive"][0]["by"]) == (0, "allowed", "anna")
            assert answer["decisive"][0]["file"] == str(site.policy_file)
            certificate = str(site.certificates / "bert.pem")
            result = await cli(gateway, "policy", "explain", "--certificate", certificate, "--receive", "**")
            assert (result.exit_code, "part" in result.output) == (0, True)
            result = await cli(gateway, "policy", "explain", "--principal", "anna", "--send", "Y/a")
            assert (result.exit_code, result.output.startswith("denied: "), "X/**" in result.output) == (1, True, True)
            for arguments, who, code in (
                (["--principal", "anna", "--send", "X/a"], "anna", 4),
                (["--fingerprint", "00" * 32, "--send", "X/a"], "operator", 3),
                (["--principal", "anna", "--receive", "["], "operator", 2),
            ):
                assert (await cli(gateway, "policy", "explain", *arguments, who=who)).exit_code == code

    run(test)


def test_a_policy_that_is_about_to_come_is_compared_with_who_is_there(site: Site) -> None:
    """Which connections it would close, and which present topics somebody would lose."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna", "a") as anna, gateway.client("bert", "b"):
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            new = site.folder / "new.toml"
            before = site.policy_file.read_text()
            site.policy({"anna": {"send": ["X/**"], "receive": ["X/b*"]}})
            site.policy_file.rename(new)
            site.policy_file.write_text(before)
            result = await cli(gateway, "policy", "diff", str(site.policy_file), str(new), "--live", "--json")
            rows = [json.loads(text) for text in result.output.splitlines()]
            effects = {(row["effect"], row["principal"]): row for row in rows if "effect" in row}
            assert set(effects) == {("closed", "bert"), ("lost", "anna")}
            assert effects["lost", "anna"]["example"] == "X/a"
            result = await cli(gateway, "policy", "diff", str(new), str(new), "--live")
            assert result.exit_code == 0
            assert not {"anna", "bert"} & set(re.findall(r"\w+", result.output))

    run(test)
