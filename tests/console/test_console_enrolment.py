"""Tokens and enrolled clients in the console: a real browser, and real clients that enrol for real certificates."""

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Browser, expect

from maxam.cli.main import main
from maxam.pki.authority import AuthorityFolder
from maxam.pki.certificates import issue_development_certificates
from tests.console.operator_browser import operator, wait_for_answer
from tests.support.gateway_process import GatewayProcess, admin_environment
from tests.support.raw_client import RawClient

PASSPHRASE = "correct horse battery staple"  # noqa: S105  # of nothing but this test


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Run a gateway with enrolment. Its operator may enrol clients."""
    certificates, ca, now = tmp_path / "certs", tmp_path / "ca", dt.datetime.now(dt.UTC)
    fingerprints = issue_development_certificates(certificates, now, ["operator", "observer"])
    AuthorityFolder.create(ca, "clients", PASSPHRASE, now, 100)
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (tmp_path / "passphrase").chmod(0o600)
    (tmp_path / "clients.pem").write_bytes((certificates / "ca.pem").read_bytes() + (ca / "ca.pem").read_bytes())
    policy = f"""
        [capabilities]
        Operations.admin = ["read", "write", "enrol"]
        Observations.admin = ["read"]
        Meters.send = ["X/*"]
        [[principals]]
        name = "operator"
        fingerprints = ["{fingerprints["operator"]}"]
        capabilities = ["Operations", "Meters"]
        [[principals]]
        name = "observer"
        fingerprints = ["{fingerprints["observer"]}"]
        capabilities = ["Observations"]
        """
    enrolment = f"""
        [enrolment]
        folder = "ca"
        passphrase_file = "passphrase"
        server_ca = "{certificates}/ca.pem"
        port = 0
        """
    rules = {"registry.toml": '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'}
    gateway = GatewayProcess(tmp_path, certificates, policy, rules, enrolment)
    file = tmp_path / "maxam.toml"
    text = file.read_text().replace(
        f'"{certificates}/ca.pem"\n            crl', f'"{tmp_path}/clients.pem"\n            crl'
    )
    text = text.replace('policy.file = "policy.toml"', 'policy.file = "policy.toml"\npolicy.enrolled = "enrolled.toml"')
    file.write_text(text.replace(f'crl = "{certificates}/crl.pem"', ""))
    with gateway:
        yield gateway


def command(gateway: GatewayProcess, *words: str) -> Result:
    """Run `maxam-admin` as the operator."""
    return CliRunner().invoke(main, words, env=admin_environment(gateway.admin_port, gateway.certificates))


def make_token(gateway: GatewayProcess, principal: str) -> dict[str, Any]:
    """Make a token for a principal."""
    made = command(gateway, "enrolment", "token", "create", principal, "--capability", "Meters", "--json")
    assert made.exit_code == 0, made.output
    token: dict[str, Any] = json.loads(made.output)
    return token


def enrol(gateway: GatewayProcess, token: dict[str, Any]) -> Result:
    """Enrol a client with a token. Its certificate is then beside the others, under the name of its principal."""
    folder, secret = gateway.folder / token["principal"], gateway.folder / "token"
    secret.write_text(token["token"])
    words = ["enrol", str(folder), "--at", f"localhost:{token['port']}", "--ca-sha256", token["ca_sha256"]]
    done = command(gateway, *words, "--token-file", str(secret))
    for kind in ("pem", "key"):
        if (folder / f"client.{kind}").exists():
            shutil.copy(folder / f"client.{kind}", gateway.certificates / f"{token['principal']}.{kind}")
    return done


def test_tokens_and_enrolled_clients_are_followed(browser: Browser, gateway: GatewayProcess) -> None:
    """A token waits, is used by a client, or is revoked. The client is a principal that connects, until it is removed."""
    origin = f"https://localhost:{gateway.admin_port}"
    with operator(browser, origin, gateway.certificates) as tab:
        page = tab.open("principals")
        tokens, principals = page.locator(".tokens tbody tr"), page.locator(".listing tbody tr")
        expect(page.locator(".tokens")).to_contain_text("None. Make one with")
        token, spare = make_token(gateway, "meters-7"), make_token(gateway, "meters-8")
        expect(tokens.filter(has_text="meters-7")).to_contain_text("waits for its client")
        expect(principals).to_have_count(2)
        done = enrol(gateway, token)
        assert done.exit_code == 0, done.output
        expect(tokens.filter(has_text="meters-7")).to_contain_text("used")
        enrolled = principals.filter(has_text="meters-7")
        expect(enrolled).to_contain_text("not since the start")
        with RawClient(gateway, "meters-7", client_id="m") as client:
            client.send("X/M.7", b"v")
            expect(enrolled).to_contain_text("connected")
            tokens.filter(has_text="meters-8").get_by_role("button", name="Revoke …").click()
            page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            expect(page.locator("#toasts")).to_contain_text("the token for meters-8 was revoked")
            expect(tokens).to_have_count(1)
            assert enrol(gateway, spare).exit_code == 4
            page.get_by_label("Filter principals").fill("meters-")
            wait_for_answer(page, find="meters-")
            expect(principals).to_have_count(1)
            enrolled.get_by_role("button").click()
            expect(page.locator(".panel .facts").first).to_contain_text("X/*")
            page.get_by_role("button", name="Remove …").click()
            page.get_by_role("dialog").get_by_role("textbox").fill("meters-7")
            page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
            expect(page.get_by_text("No principal matches.")).to_be_visible()
            assert client.read().command == "ERROR"
    with operator(browser, origin, gateway.certificates, name="observer") as tab:
        page = tab.open("principals?find=operator")
        wait_for_answer(page, find="operator")
        expect(page.locator(".listing tbody tr")).to_have_count(1)
        expect(page.locator(".tokens")).to_be_hidden()
