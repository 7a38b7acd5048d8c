"""Principals with rights, certificates and last use, and what a caller may do: `/v1/principals`, `/v1/whoami`, `/v1/can-i`."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from maxam.gateway import seen_certificates
from maxam.gateway.audit import CONNECTED
from maxam.gateway.seen_certificates import SeenCertificates
from maxam.records import Identity
from tests.support.living_gateway import Living, Site, cli, living, run


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with two clients that the policy lists, and one that it does not."""
    site = Site(tmp_path, "anna", "bert", "stranger")
    site.policy({"anna": {"send": ["X/A.*"], "receive": ["X/**"]}, "bert": {"admin": ["read"]}})
    return site


async def rows(gateway: Living, *options: str) -> dict[str, dict[str, Any]]:
    """Return what `principals list` shows, by name."""
    shown = await cli(gateway, "principals", "list", "--json", *options)
    assert shown.exit_code == 0, shown.output
    return {row["principal"]: row for row in map(json.loads, shown.stdout.splitlines())}


def test_principals_are_listed_with_rights_certificates_and_use(site: Site) -> None:
    """A principal that never came has no last use. One that is connected, or asks the API, has one, with the end of its certificate."""

    async def test() -> None:
        async with living(site) as gateway:
            found = await rows(gateway)
            assert list(found) == ["anna", "bert", "operator"]
            anna, operator = found["anna"], found["operator"]
            assert (anna["send"], anna["receive"], anna["owns"]) == (["X/A.*"], ["X/**"], None)
            assert (anna["admin"], found["bert"]["admin"]) == ([], ["read"])
            assert (anna["last_seen_at"], anna["valid_until"], anna["sessions"]) == (None, None, 0)
            assert isinstance(operator["last_seen_at"], str)
            async with gateway.client("anna", "1"), gateway.client("anna", "2"):
                anna = (await rows(gateway, "--find", "ANN"))["anna"]
                assert (anna["sessions"], anna["connected"]) == (2, 2)
            [certificate] = anna["certificates"]
            assert certificate["fingerprint"] == site.fingerprints["anna"]
            ends = x509.load_pem_x509_certificate((site.certificates / "anna.pem").read_bytes()).not_valid_after_utc
            assert datetime.fromisoformat(certificate["valid_until"]) == ends
            assert anna["valid_until"] == certificate["valid_until"]
            assert datetime.fromisoformat(certificate["last_seen_at"]) <= datetime.now(UTC)
            assert set(await rows(gateway, "--unseen-for", "1d", "-q")) == {"bert"}
            assert not await rows(gateway, "--expires-within", "1s")
            assert set(await rows(gateway, "--expires-within", "100000d")) == {"anna", "operator"}
            shown = await cli(gateway, "principals", "show", "anna")
            assert site.fingerprints["anna"] in shown.stdout
            assert (await cli(gateway, "principals", "show", "nobody")).exit_code == 3
            page = json.loads((await cli(gateway, "principals", "show", "anna", "--json")).stdout)
            assert page["capabilities"] == ["anna"]

    run(test)


def test_a_caller_learns_who_it_is_and_what_it_may_do(site: Site) -> None:
    """A client without admin rights too. A certificate that the policy does not list has no principal, and exits with 1."""

    async def test() -> None:
        async with living(site) as gateway:
            for who, principal, code in (("anna", "anna", 0), ("operator", "operator", 0), ("stranger", None, 1)):
                shown = await cli(gateway, "whoami", "--json", who=who)
                answer = json.loads(shown.stdout)
                assert (answer["principal"], shown.exit_code) == (principal, code)
                assert answer["fingerprint"] == site.fingerprints[who]
                assert (await cli(gateway, "whoami", who=who)).exit_code == code
            asked = [
                ("anna", "send", "X/A.1", 0, "allowed"),
                ("anna", "send", "X/B.1", 1, "denied"),
                ("anna", "receive", "X/A.*", 0, "all"),
                ("bert", "receive", "X/A.*", 1, "nothing"),
                ("bert", "admin", "read", 0, "allowed"),
                ("anna", "admin", "write", 1, "denied"),
            ]
            for who, action, what, code, verdict in asked:
                shown = await cli(gateway, "can-i", action, what, "--json", who=who)
                assert (shown.exit_code, json.loads(shown.stdout)["verdict"]) == (code, verdict), (who, action, what)
            assert (await cli(gateway, "can-i", "admin", "nonsense")).exit_code == 2
            assert (await cli(gateway, "can-i", "send", "X/a", who="stranger")).exit_code == 4
            explained = await cli(gateway, "policy", "explain", "--principal", "anna", "--right", "write", "--json")
            answer = json.loads(explained.stdout)
            assert (answer["verdict"], answer["remedies"], explained.exit_code) == ("denied", ["operator"], 1)

    run(test)


def test_the_table_of_uses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate that was seen least recently makes room, and those without a principal take none."""
    monkeypatch.setattr(seen_certificates, "ROWS_MAX", 2)
    seen = SeenCertificates(lambda: 7)
    for name in ("a", "b", "a", "c"):
        seen.observe(CONNECTED, Identity(name, "f"), "1.2.3.4:5", "", {"certificate_until": "2027-01-01T00:00:00Z"})
    seen.observe(CONNECTED, Identity("", "f"), "1.2.3.4:5", "", {})
    assert [seen.of(name, "f") is not None for name in ("a", "b", "c", "")] == [True, False, True, False]
    found = seen.of("a", "f")
    assert found is not None
    assert (found.at_us, found.address, found.valid_until) == (7, "1.2.3.4:5", "2027-01-01T00:00:00Z")
