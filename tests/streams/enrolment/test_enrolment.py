"""Enrolment against a running gateway: EST by curl and openssl, by our own client, and by clients that want more than a token gives."""

import base64
import datetime as dt
import hashlib
import json
import logging
import os
import ssl
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs7

from maxam.cli.main import main
from maxam.config import EnrolmentSettings
from maxam.enrolment.enrolment import Enrolment
from maxam.enrolment.tokens import TOKENS_FILE, RefusedError
from maxam.errors import ConfigurationError
from maxam.gateway.loaded_config import read_config
from maxam.gateway.tls import fingerprint as der_fingerprint
from maxam.pki.authority import INDEX_FILE, LIST_FILE, AuthorityFolder
from maxam.pki.certificates import fingerprint
from maxam.pki.est_client import ClientFolder, new_key, new_request
from maxam.records import Identity
from tests.support.enrolment_site import PASSPHRASE, EnrolmentSite
from tests.support.errors import code_in
from tests.support.living_gateway import NOW, Living, Site, cli, living, run
from tests.support.patience import PATIENCE_S


@pytest.fixture
def site(tmp_path: Path) -> EnrolmentSite:
    """The files of a gateway that enrols."""
    return EnrolmentSite(tmp_path)


class Est:
    """The enrolment listener as any HTTP client sees it."""

    def __init__(self, gateway: Living, certificate: str | None = None) -> None:
        self.port = gateway.enrolment_port
        self._context = gateway.site.context(certificate)

    async def ask(
        self,
        operation: str,
        token: str | None = None,
        request: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Ask for something; return status, body and headers."""

        def ask() -> tuple[int, bytes, dict[str, str]]:
            connection = HTTPSConnection("localhost", self.port, context=self._context, timeout=PATIENCE_S)
            sent = dict(headers or {})
            if token is not None:
                sent["authorization"] = "Basic " + base64.b64encode(f":{token}".encode()).decode()
            body = None if request is None else base64.encodebytes(request)
            with closing(connection):
                with suppress(ssl.SSLError, ConnectionError):  # refused by its head while the body is on its way
                    connection.request("GET" if body is None else "POST", f"/.well-known/est/{operation}", body, sent)
                answer = connection.getresponse()
                data = answer.read()
            return answer.status, data, {name.lower(): value for name, value in answer.getheaders()}

        return await trio.to_thread.run_sync(ask)

    async def certificate(self, operation: str, token: str | None, request: bytes) -> x509.Certificate:
        """Get a certificate."""
        status, data, headers = await self.ask(operation, token, request)
        assert (status, headers.get("content-type", "").partition(";")[0]) == (200, "application/pkcs7-mime"), data
        [found] = pkcs7.load_der_pkcs7_certificates(base64.b64decode(data))
        return found


class Operator:
    """maxam-admin of the operator."""

    def __init__(self, gateway: Living) -> None:
        folder = gateway.site.certificates
        self._options = ["--gateway", f"localhost:{gateway.admin_port}", "--ca", str(folder / "ca.pem")]
        self._options += ["--certificate", str(folder / "operator.pem"), "--key", str(folder / "operator.key")]

    async def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        """Run a command, and return its output."""
        command = [*self._options, *map(str, arguments)]
        done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    async def token(self, principal: str, *options: str) -> dict[str, Any]:
        """Make a token."""
        text = await self("enrolment", "token", "create", principal, "--json", *options)
        made: dict[str, Any] = json.loads(text)
        return made


def pkcs10(key: Any = None) -> bytes:
    """A request, DER."""
    return new_request(key or new_key("p256")).public_bytes(serialization.Encoding.DER)


def test_curl_and_openssl_enrol_a_client_that_is_served_at_once(site: EnrolmentSite, tmp_path: Path) -> None:
    """The standard way is cacerts, a token as password, and a request by openssl. The certificate is valid without a restart, with its rights only."""
    script = """
    set -e
    base=https://localhost:$PORT/.well-known/est
    curl -sf --cacert $CA $base/cacerts | base64 -d | openssl pkcs7 -inform DER -print_certs -out cacerts.pem
    curl -s -o /dev/null -w '%{http_code}' --cacert cacerts.pem $base/csrattrs > csrattrs
    openssl req -newkey rsa:2048 -nodes -keyout new.key -subj /CN=anna -outform DER 2>/dev/null | base64 > new.b64
    for name in new again; do
      curl -sf --cacert cacerts.pem -u user:$TOKEN -H 'Content-Type: application/pkcs10' --data-binary @new.b64 \
        $base/simpleenroll | base64 -d | openssl pkcs7 -inform DER -print_certs | openssl x509 -out $name.pem
    done
    cmp new.pem again.pem
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -keyout next.key -subj /CN=x -outform DER 2>/dev/null \
      | base64 > next.b64
    curl -sf --cacert cacerts.pem --cert new.pem --key new.key -H 'Content-Type: application/pkcs10' \
      --data-binary @next.b64 $base/simplereenroll | base64 -d | openssl pkcs7 -inform DER -print_certs \
      | openssl x509 -out next.pem
    """

    async def test() -> None:
        async with living(site) as gateway:
            token = await Operator(gateway).token("meters", "--capability", "Meters", "--owns", "X/M.1*")
            environment = {
                "PORT": str(gateway.enrolment_port),
                "CA": str(site.certificates / "ca.pem"),
                "TOKEN": token["token"],
                "PATH": "/usr/local/bin:/usr/bin:/bin",
            }
            done = await trio.run_process(
                ["bash", "-c", script], cwd=tmp_path, env=environment, check=False, capture_stderr=True
            )
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "csrattrs").read_text() == "204"
            assert (tmp_path / "cacerts.pem").read_text().count("BEGIN CERTIFICATE") == 2
            for name in ("new", "next"):
                for kind in ("pem", "key"):
                    (site.certificates / f"{name}.{kind}").write_bytes((tmp_path / f"{name}.{kind}").read_bytes())
            async with gateway.client("new", "line") as client:
                assert (await client.send("X/M.12", b"v"))[0] == b"accepted"
                assert await client.send("X/M.2", b"v") == (b"rejected-unauthorised", b"unauthorised")
                async with gateway.client("next", "line") as renewed:  # the same principal: its session goes over
                    assert (await client.error())[0].startswith(b"session taken over")
                    assert (await renewed.send("X/M.12", b"w"))[0] == b"accepted"

    run(test)


@pytest.mark.parametrize("lists", ["none", "another authority's", "both"])
def test_whose_certificates_cannot_be_revoked_is_told(
    site: EnrolmentSite, lists: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway that enrols without a CRL of its CA reports it when it starts, with the remedy."""
    crl = site.certificates / "crl.pem"
    if lists == "both":
        crl.write_bytes(crl.read_bytes() + (site.authority_folder / LIST_FILE).read_bytes())
    if lists == "none":
        site.settings = replace(site.settings, tls=replace(site.settings.tls, crl=None))
    else:
        assert site.settings.tls.crl == crl

    async def test() -> None:
        async with living(site) as gateway:
            await Operator(gateway)("enrolment", "list")

    with caplog.at_level(logging.WARNING, "maxam"):
        run(test)
    assert caplog.text.count("enrolment-without-revocation ") == (0 if lists == "both" else 1)


def test_a_token_is_good_once(site: EnrolmentSite) -> None:
    """A used token gives the same certificate for the same key and nothing for another; an unknown, an expired and a revoked one nothing."""

    async def test() -> None:
        async with living(site) as gateway:
            operator, est = Operator(gateway), Est(gateway)
            token = await operator.token("meters", "--capability", "Meters")
            assert token["ca_sha256"] == fingerprint(
                x509.load_pem_x509_certificate((site.certificates / "ca.pem").read_bytes())
            )
            stored = (site.authority_folder / TOKENS_FILE).read_text()
            assert token["token"] not in stored
            assert hashlib.sha256(token["token"].encode()).hexdigest() in stored
            key = new_key("p256")
            first = await est.certificate("simpleenroll", token["token"], pkcs10(key))
            assert await est.certificate("simpleenroll", token["token"], pkcs10(key)) == first
            status, said, _ = await est.ask("simpleenroll", token["token"], pkcs10())
            assert (status, b"another key" in said) == (403, True)
            status, _, headers = await est.ask("simpleenroll", "x" * 43, pkcs10())
            assert (status, headers["www-authenticate"].startswith("Basic")) == (401, True)
            assert (await est.ask("simpleenroll", None, pkcs10()))[0] == 401
            other = await operator.token("other", "--capability", "Meters")
            again = await operator("enrolment", "token", "create", "other", "--capability", "Meters", code=1)
            assert code_in(again) == "token-exists"
            await operator("enrolment", "token", "revoke", other["id"])
            assert (await est.ask("simpleenroll", other["token"], pkcs10()))[0] == 401
            late = await operator("enrolment", "token", "create", "late", "--minutes", "999999", code=2)
            assert "minutes" in late

    run(test)


def test_one_token_asked_for_at_once_gives_one_certificate(site: EnrolmentSite) -> None:
    """Of many that use one token at the same time with keys of their own exactly one gets a certificate."""
    outcomes: list[int] = []

    async def test() -> None:
        async with living(site) as gateway:
            token = await Operator(gateway).token("meters", "--capability", "Meters")

            async def use() -> None:
                outcomes.append((await Est(gateway).ask("simpleenroll", token["token"], pkcs10()))[0])

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(use)
            assert sorted(outcomes) == [200, *[403] * 5]
            assert (site.authority_folder / INDEX_FILE).read_text().count("\n") == 1

    run(test)


def test_nobody_grants_what_he_does_not_hold(site: EnrolmentSite) -> None:
    """Capabilities beyond the maker's rights, names that are taken and nonsense are refused. `owns` may narrow to what is held.

    Rights that the maker has lost since do not count when the token is used.
    """

    async def test() -> None:
        async with living(site) as gateway:
            operator, est = Operator(gateway), Est(gateway)

            async def refused(code: int, said: str, *arguments: str) -> None:
                assert said in await operator("enrolment", "token", "create", *arguments, code=code), said

            await refused(4, "cannot grant the right to send to X/**", "p", "--capability", "Everything")
            await refused(4, "cannot grant the right to receive", "p", "--capability", "Everything", "--owns", "X/M.1")
            await refused(1, "already", "anna", "--capability", "Meters")
            await refused(2, "expected one of", "p", "--capability", "None")
            await refused(2, "expected a glob", "p", "--capability", "Meters", "--owns", "[")
            await refused(2, "printable", "a\nb")
            await refused(2, "unknown clients are called so", "fingerprint:1")
            await refused(2, "surrogate", "p", "--capability", "\udc80")
            await refused(2, "surrogate", "p", "--capability", "Meters", "--owns", "\udc80")
            assert "right enrol" in await _as_anna(gateway)
            await operator("enrolment", "token", "create", "op-2", "--capability", "Operations")
            token = await operator.token("late", "--capability", "Meters")
            text = site.policy_file.read_text()
            site.policy_file.write_text(text.replace('"Operations", "Meters"', '"Operations"'))
            await gateway.reload()
            status, said, _ = await est.ask("simpleenroll", token["token"], pkcs10())
            assert (status, b"cannot grant" in said) == (403, True)
            site.policy_file.write_text(text.replace('"write", "enrol"', '"write"'))
            await gateway.reload()
            status, said, _ = await est.ask("simpleenroll", token["token"], pkcs10())
            assert (status, b"who made the token" in said) == (403, True)
            site.policy_file.write_text(text)
            await gateway.reload()
            await est.certificate("simpleenroll", token["token"], pkcs10())  # a refusal cost the token nothing

    async def _as_anna(gateway: Living) -> str:
        operator = Operator(gateway)
        operator._options = [option.replace("operator.", "anna.") for option in operator._options]
        return await operator("enrolment", "token", "create", "p", "--capability", "Meters", code=4)

    run(test)


def test_bad_requests_cost_the_token_nothing(site: EnrolmentSite) -> None:
    """Garbage, requests that are too large and weak keys are reported, and the token is valid afterwards."""

    async def test() -> None:
        async with living(site, enrolment=replace(site.settings.enrolment, failures_per_minute_max=100)) as gateway:
            token = (await Operator(gateway).token("meters", "--capability", "Meters"))["token"]
            est = Est(gateway)
            good = pkcs10()
            for request, status in [
                (b"", 400),
                (b"garbage", 400),
                (good[:-1] + bytes([good[-1] ^ 1]), 400),
                (b"\0" * 50_000, 413),
            ]:
                assert (await est.ask("simpleenroll", token, request))[0] == status
            assert (await est.ask("simpleenroll", None, good, {"authorization": "Basic !"}))[0] == 401
            assert (await est.ask("simpleenroll", None, good, {"authorization": "Bearer " + token}))[0] == 401
            assert (await est.ask("simplereenroll", None, good))[0] == 403
            assert (await est.ask("serverkeygen", None, good))[0] == 404
            await est.certificate("simpleenroll", token, good)

    run(test)


def test_whoever_tries_tokens_is_told_to_wait(site: EnrolmentSite) -> None:
    """After N guesses of one address within a minute further ones are answered 429.

    A known token and a valid certificate are served from there, and wait for failures of their own only.
    """

    async def test() -> None:
        async with living(site) as gateway:
            token = (await Operator(gateway).token("meters", "--capability", "Meters"))["token"]
            est = Est(gateway)
            failures_max = site.settings.enrolment.failures_per_minute_max
            for number in range(failures_max):
                assert (await est.ask("simpleenroll", f"guess-{number}", pkcs10()))[0] == 401
            status, _, headers = await est.ask("simpleenroll", "another guess", pkcs10())
            assert status == 429
            assert 1 <= int(headers["retry-after"]) <= 60
            assert (await est.ask("simpleenroll", None, pkcs10()))[0] == 429
            assert (await est.ask("cacerts"))[0] == 200
            await est.certificate("simpleenroll", token, pkcs10())
            await Est(gateway, "anna").certificate("simplereenroll", None, pkcs10())
            for _ in range(failures_max):
                assert (await est.ask("simpleenroll", token, b"garbage"))[0] == 400
                assert (await Est(gateway, "anna").ask("simplereenroll", None, b"garbage"))[0] == 400
            assert (await est.ask("simpleenroll", token, pkcs10()))[0] == 429
            assert (await Est(gateway, "anna").ask("simplereenroll", None, pkcs10()))[0] == 429

    run(test)


def test_renewal(site: EnrolmentSite) -> None:
    """A client with a valid certificate gets the next one, by our own client with a new key.

    Both are valid, then the old one is not. The same holds for one from the operators' file, which stays as it is. Once it is taken from
    that file, all that came of it is gone.
    """

    async def test() -> None:
        async with living(site) as gateway:
            before = site.policy_file.read_bytes()
            key = new_key("ed25519")
            new = await Est(gateway, "anna").certificate("simplereenroll", None, pkcs10(key))
            assert await Est(gateway, "anna").certificate("simplereenroll", None, pkcs10(key)) == new
            _write(site, "anna-2", new, key)
            async with gateway.client("anna") as old, gateway.client("anna-2") as client:
                assert (await client.send("X/a", b"v"))[0] == b"accepted"
                later = Enrolment(gateway.gateway, lambda: NOW + dt.timedelta(days=8))
                await later.retire()
                assert (await old.error())[0] == b"unknown client"
                assert (await client.send("X/a", b"v"))[0] == b"accepted"
            assert (await Est(gateway, "anna").ask("simplereenroll", None, pkcs10()))[0] == 403
            assert site.policy_file.read_bytes() == before
            assert "retired = true" in site.enrolled_file.read_text()
            read_config(site.settings)
            async with gateway.client("anna-2") as client:
                site.policy_file.write_bytes(before.replace(site.fingerprints["anna"].encode(), b"0" * 64))
                await gateway.reload()
                assert (await client.error())[0] == b"unknown client"

    run(test)


def test_a_line_of_renewals_is_bounded(site: EnrolmentSite) -> None:
    """No client collects certificates by renewing. A key in use, or one whose certificate was revoked, is not certified again."""

    async def test() -> None:
        async with living(site) as gateway:
            authority = AuthorityFolder(site.authority_folder)
            authority.unlock(PASSPHRASE)
            est, keys = Est(gateway, "anna"), [new_key("p256") for _ in range(4)]
            issued = [await est.certificate("simplereenroll", None, pkcs10(key)) for key in keys]
            status, said, _ = await est.ask("simplereenroll", None, pkcs10())
            assert (status, b"count already" in said) == (429, True)
            token = (await Operator(gateway).token("meters", "--capability", "Meters"))["token"]
            status, said, _ = await est.ask("simpleenroll", token, pkcs10(keys[0]))
            assert (status, b"stands for a principal already" in said) == (403, True)
            entry = authority.find(fingerprint(issued[1]))
            await trio.to_thread.run_sync(authority.revoke, entry, "stolen", NOW)
            status, said, _ = await est.ask("simpleenroll", token, pkcs10(keys[1]))
            assert (status, b"was revoked" in said) == (403, True)

    run(test)


def test_what_was_renewed_from_a_foreign_certificate_can_be_found(site: EnrolmentSite) -> None:
    """Asked to revoke a certificate of another CA, ours shows the certificates that it made from it."""

    async def test() -> None:
        async with living(site) as gateway:
            renewed = await Est(gateway, "anna").certificate("simplereenroll", None, pkcs10())
            with pytest.raises(ConfigurationError, match=f"renewed from it: {fingerprint(renewed)[:16]}$"):
                AuthorityFolder(site.authority_folder).find(str(site.certificates / "anna.pem"))

    run(test)


def test_nothing_is_renewed_from_what_was_revoked(site: EnrolmentSite) -> None:
    """From the moment in which the authority has revoked a certificate, before a CRL with it is in force, it gets no successor."""

    async def test() -> None:
        async with living(site) as gateway:
            authority = AuthorityFolder(site.authority_folder)
            authority.unlock(PASSPHRASE)
            key = new_key("p256")
            stolen = await Est(gateway, "anna").certificate("simplereenroll", None, pkcs10(key))
            _write(site, "stolen", stolen, key)
            await trio.to_thread.run_sync(authority.revoke, authority.find(fingerprint(stolen)), "stolen", NOW)
            before = authority.entries(), site.enrolled_file.read_bytes()
            status, said, _ = await Est(gateway, "stolen").ask("simplereenroll", None, pkcs10())
            assert (status, b"was revoked" in said) == (403, True)
            assert (authority.entries(), site.enrolled_file.read_bytes()) == before

    run(test)


def test_a_policy_that_cannot_be_used_lets_nobody_fill_the_index(site: EnrolmentSite) -> None:
    """While the operators' file is broken a renewal is put off, and leaves no certificate behind."""

    async def test() -> None:
        async with living(site) as gateway:
            est = Est(gateway, "anna")
            site.policy_file.write_text("broken")
            for _ in range(3):
                assert (await est.ask("simplereenroll", None, pkcs10()))[0] == 503
            assert AuthorityFolder(site.authority_folder).entries() == []

    run(test)


def test_our_client_pins_enrols_and_renews(site: EnrolmentSite, tmp_path: Path) -> None:
    """maxam-admin enrol sends nothing to a gateway with another authority. It writes key (0600), certificate and authorities.

    It renews with a new key, and completes what was cut short.
    """

    async def test() -> None:
        async with living(site) as gateway:
            operator = Operator(gateway)
            token = await operator.token("meters", "--capability", "Meters")
            (tmp_path / "token").write_text(token["token"])
            folder, at = tmp_path / "client", f"localhost:{gateway.enrolment_port}"
            enrol: list[str | Path] = ["enrol", folder, "--at", at, "--token-file", tmp_path / "token", "--ca-sha256"]
            assert "Nothing was sent" in await operator(*enrol, "00" * 32, code=4)
            assert "is not trusted" in await operator(*enrol, token["ca_sha256"], "--server-name", "other", code=4)
            key = (folder / "client.key").read_bytes()
            assert not json.loads(await operator("enrolment", "token", "list", "--json"))["used_at"]
            enrolled = json.loads(await operator(*enrol, token["ca_sha256"], "--json"))
            assert (folder / "client.key").read_bytes() == key
            assert (folder / "client.key").stat().st_mode & 0o777 == 0o600
            assert "--renew" in await operator(*enrol, token["ca_sha256"], code=1)
            renew: list[str | Path] = ["enrol", folder, "--at", at, "--renew"]
            assert "days more" in await operator(*renew, "--days-left", "30")
            renewed = json.loads(await operator(*renew, "--json"))
            assert renewed["fingerprint"] != enrolled["fingerprint"]
            assert (folder / "client.key").read_bytes() != key
            assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "client.key", "client.pem"]
            (folder / "client.pem").rename(folder / "client.pem.next")  # as if cut short between the two
            assert ClientFolder(folder).certificate is not None
            assert renewed["fingerprint"] in await operator("fingerprint", folder / "client.pem")
            for kind in ("pem", "key"):
                (site.certificates / f"meters.{kind}").write_bytes((folder / f"client.{kind}").read_bytes())
            async with gateway.client("meters") as client:
                assert (await client.send("X/M.1", b"v"))[0] == b"accepted"
                assert "meters" in await operator("enrolment", "list")
                await operator("enrolment", "remove", "meters")
                assert (await client.error())[0] == b"unknown client"
            status, said, _ = await Est(gateway).ask("simpleenroll", token["token"], pkcs10())
            assert (status, b"unknown" in said) == (401, True)

    run(test)


def test_any_name_that_a_principal_may_have_can_be_enrolled(site: EnrolmentSite) -> None:
    """A name that is too long for a certificate's common name is cut there, between characters. In the policy it stays whole."""

    async def test() -> None:
        async with living(site) as gateway:
            for name in ("é" * 128, "a" * 63 + "é", "..", 'a"b\\c'):
                token = (await Operator(gateway).token(name, "--capability", "Meters"))["token"]
                certificate = await Est(gateway).certificate("simpleenroll", token, pkcs10())
                assert gateway.gateway.policy.principal_of(fingerprint(certificate)) == name
                [shown] = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
                assert name.startswith(str(shown.value))

    run(test)


def test_names_that_cannot_stand_in_a_certificate_are_told(site: EnrolmentSite) -> None:
    """Of clients and of servers."""
    authority = AuthorityFolder(site.authority_folder)
    authority.unlock(PASSPHRASE)
    for name, servers in (("", []), ("\udc80", []), ("server", ["é.example"])):
        with pytest.raises(ConfigurationError, match=r"cannot stand|expected DNS names"):
            authority.sign(name, new_key("p256").public_key(), NOW, 1, servers)


def test_an_expired_token_is_refused_and_said_to_be(site: EnrolmentSite) -> None:
    """A token is valid until its time is over, and no longer in that moment."""

    async def test() -> None:
        async with living(site) as gateway:
            now = NOW
            enrolment = Enrolment(gateway.gateway, lambda: now)
            who = Identity("operator", site.fingerprints["operator"])
            _, secret = await enrolment.make_token(who, "meters", ["Meters"], None, 5)
            now = NOW.replace(microsecond=0) + dt.timedelta(minutes=5)
            with pytest.raises(RefusedError, match="has expired"):
                await enrolment.enrol(secret, pkcs10(), "test")
            now -= dt.timedelta(seconds=1)
            assert der_fingerprint((await enrolment.enrol(secret, pkcs10(), "test")).public_bytes(_DER))

    run(test)


def test_a_policy_that_cannot_be_used_holds_up_enrolment_and_loses_nothing(site: EnrolmentSite) -> None:
    """While the operators' file is invalid no client is enrolled and no token is used up. After its repair the same token works."""

    async def test() -> None:
        async with living(site) as gateway:
            token = (await Operator(gateway).token("meters", "--capability", "Meters"))["token"]
            good = site.policy_file.read_text()
            site.policy_file.write_text("nonsense")
            status, _, _ = await Est(gateway).ask("simpleenroll", token, pkcs10())
            assert status == 503
            listed = await cli(gateway, "enrolment", "list", "--json")
            assert listed.exit_code == 0, listed.output
            site.policy_file.write_text(good)
            await Est(gateway).certificate("simpleenroll", token, pkcs10())

    run(test)


def test_a_token_whose_use_was_interrupted_can_be_taken_back(site: EnrolmentSite) -> None:
    """A token can be revoked until it has enrolled a client. Then neither another request nor a restart enrols one."""

    async def test() -> None:
        key = new_key("p256")
        async with living(site) as gateway:
            operator = Operator(gateway)
            made = await operator.token("meters", "--capability", "Meters")
            in_the_way = site.enrolled_file.with_name(f".{site.enrolled_file.name}.{os.getpid()}.new")
            in_the_way.mkdir()
            assert (await Est(gateway).ask("simpleenroll", made["token"], pkcs10(key)))[0] == 503
            in_the_way.rmdir()
            await operator("enrolment", "token", "revoke", made["id"])
            assert (await Est(gateway).ask("simpleenroll", made["token"], pkcs10(key)))[0] == 401
        async with living(site) as gateway:
            assert gateway.gateway.policy.principals.keys() == {"operator", "anna"}

    run(test)


def test_strangers_that_only_connect_leave_room(site: EnrolmentSite) -> None:
    """One address has eight connections at most; where all places are taken from many addresses, the oldest makes room."""

    async def test() -> None:
        async with living(site) as gateway:
            idle = [await trio.open_tcp_stream("127.0.0.1", gateway.enrolment_port) for _ in range(9)]
            assert await _left(idle[8]) == b""
            for number in range(80):
                source = f"127.0.1.{1 + number // 8}"
                idle.append(await trio.open_tcp_stream("127.0.0.1", gateway.enrolment_port, local_address=source))
            assert await _left(idle[0]) == b""
            await idle[0].aclose()
            assert (await Est(gateway).ask("cacerts"))[0] == 200
            for stream in idle:
                await stream.aclose()

    async def _left(stream: trio.SocketStream) -> bytes:
        try:
            return bytes(await stream.receive_some(1))
        except trio.BrokenResourceError:
            return b""

    run(test)


def test_without_enrolment_nothing_listens_and_operators_are_told(tmp_path: Path) -> None:
    """It is off by default: there is no listener, and its routes answer a caller with the right that it is off."""

    async def test() -> None:
        site = EnrolmentSite(tmp_path)
        async with living(site, enrolment=EnrolmentSettings()) as gateway:
            assert gateway.enrolment_port == 0
            assert "has no enrolment" in await Operator(gateway)("enrolment", "list", code=1)

    run(test)


_DER = serialization.Encoding.DER


def _write(site: Site, name: str, certificate: x509.Certificate, key: Any) -> None:
    pem = serialization.Encoding.PEM
    (site.certificates / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    (site.certificates / f"{name}.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
