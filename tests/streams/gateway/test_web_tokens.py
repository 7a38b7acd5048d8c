"""JSON Web Tokens on the web listener: what counts, what does not, and what ends a connection."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from maxam.config import FrontsSettings
from maxam.errors import ConfigurationError
from maxam.gateway.web_tokens import TokenKeys
from maxam.web_config import JwtSettings, WebSettings
from tests.support.living_gateway import EVERYTHING, Site, living, run
from tests.support.web_client import page, refusal

ISSUER, AUDIENCE = "https://login.example", "floor"
KEYS: dict[str, Any] = {
    "ES256": generate_private_key(SECP256R1()),
    "RS256": generate_rsa_key(65537, 2048),
    "EdDSA": Ed25519PrivateKey.generate(),
}
_ALGORITHMS: dict[str, Any] = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}


def public(algorithm: str, key: Any, **more: object) -> dict[str, Any]:
    """Return a public key as a member of a JWKS."""
    found: dict[str, Any] = json.loads(_ALGORITHMS[algorithm].to_jwk(key.public_key()))
    return {"kid": algorithm, "use": "sig", **found, **more}


def claims(**changed: Any) -> dict[str, Any]:
    """Return valid claims, with some changed, or removed where the value is None."""
    valid = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 600, "floor": ["X/Floor.*"]}
    return {name: value for name, value in (valid | changed).items() if value is not None}


def signed(algorithm: str = "ES256", headers: Mapping[str, Any] | None = None, **changed: Any) -> str:
    """Return a token."""
    return jwt.encode(claims(**changed), KEYS[algorithm], algorithm, {"kid": algorithm, **(headers or {})})


def part(content: object) -> str:
    """Return one part of a token."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """A site that trusts an issuer with three keys; its gateway has fronts only if the test has a parameter for it."""
    site = Site(tmp_path, "anna", "viewer")
    site.settings = replace(site.settings, fronts=FrontsSettings(getattr(request, "param", 0)))
    site.policy({"anna": EVERYTHING, "viewer": {"receive": ["X/Floor.*", "X/Bar.*"]}})
    write_keys(site)
    return site


def write_keys(site: Site, *names: str) -> None:
    """Write the JWKS file with some keys of the issuer, or all."""
    keys = [public(name, KEYS[name]) for name in names or KEYS]
    (site.folder / "jwks.json").write_text(json.dumps({"keys": keys}))


def settings(site: Site, **changed: Any) -> WebSettings:
    """Return the settings of a listener with an issuer."""
    values = {"capability": "viewer", "receive_claim": "floor"} | changed
    return WebSettings("127.0.0.1:0", jwt=JwtSettings(ISSUER, AUDIENCE, site.folder / "jwks.json", **values))


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_gives_the_values_of_its_globs(site: Site, algorithm: str) -> None:
    """A token of each algorithm connects its subject, who receives the globs of its claim."""

    async def test() -> None:
        async with (
            living(site, web=settings(site)) as gateway,
            gateway.client("anna") as anna,
            page(gateway, signed(algorithm), login="jwt") as client,
        ):
            await client.subscribe("X/**")
            await anna.send("X/Bar.1", b"v")
            await anna.send("X/Floor.1", b"v")
            assert await client.values(1) == {"X/Floor.1": b"v"}
            assert [name for name, _ in gateway.gateway.broker.sessions if name != "anna"] == ["alice"]
            assert (await client.send("X/Floor.1", b"w"))[0] == b"rejected-unauthorised"

    run(test)


FORGED: dict[str, Callable[[], str]] = {
    "unsigned": lambda: f"{part({'alg': 'none', 'kid': 'ES256'})}.{part(claims())}.",
    "none in other letters": lambda: f"{part({'alg': 'nOnE'})}.{part(claims())}.",
    "a public key as a secret": lambda: _confused("RS256"),
    "a public key of a curve as a secret": lambda: _confused("ES256"),
    "the algorithm of another key": lambda: signed("RS256", {"kid": "ES256"}),
    "a key of its own": lambda: jwt.encode(
        claims(), (own := generate_private_key(SECP256R1())), "ES256", {"kid": "ES256", "jwk": public("ES256", own)}
    ),
    "an unknown key": lambda: signed(headers={"kid": "other"}),
    "a key that is no text": lambda: f"{part({'alg': 'ES256', 'kid': ['ES256']})}.{part(claims())}.AA",
    "no text at all": lambda: "",
    "a long nonsense": lambda: "." * 4000,
    "another issuer": lambda: signed(iss="https://evil.example"),
    "no issuer": lambda: signed(iss=None),
    "another audience": lambda: signed(aud="console"),
    "no audience": lambda: signed(aud=None),
    "no end": lambda: signed(exp=None),
    "an end that is no number": lambda: signed(exp="soon"),
    "the future": lambda: signed(nbf=int(time.time()) + 600),
    "no subject": lambda: signed(sub=None),
    "a subject that is no text": lambda: signed(sub=["alice"]),
    "a principal of the policy": lambda: signed(sub="anna"),
    "the gateway": lambda: signed(sub="$gateway"),
    "no globs": lambda: signed(floor=None),
    "globs beyond the capability": lambda: signed(floor=["X/**"]),
    "too many globs": lambda: signed(floor=["X/Floor.1"] * 65),
    "a malformed glob": lambda: signed(floor=["X/["]),
    "a critical extension": lambda: signed(headers={"crit": ["b64"], "b64": False}),
}


def _confused(algorithm: str) -> str:
    """Return a token whose signature is an HMAC with the public key of the issuer as the secret."""
    secret = KEYS[algorithm].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = f"{part({'alg': 'HS256', 'kid': algorithm})}.{part(claims())}"
    mark = base64.urlsafe_b64encode(hmac.new(secret, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    return f"{text}.{mark}"


@pytest.mark.parametrize("site", [0, pytest.param(2, marks=pytest.mark.slow)], indirect=True, ids=["alone", "fronts"])
def test_only_a_valid_token_connects_while_it_its_key_and_its_capability_last(site: Site) -> None:
    """A forged or foreign token gets the code token-invalid, one that has expired its own. A connection ends with its token.

    At `exp` comes `token expired, reconnect`; without the key or the right a reload ends the connection.
    """

    async def test() -> None:
        async with living(site, web=settings(site)) as gateway:
            found = {name: await refusal(gateway, token(), "jwt") for name, token in FORGED.items()}
            assert found == dict.fromkeys(FORGED, b"token-invalid")
            assert await refusal(gateway, signed(exp=int(time.time()) - 1), "jwt") == b"token-expired"
            assert not gateway.gateway.broker.sessions
            async with page(gateway, signed(exp=int(time.time()) + 3), login="jwt") as client:
                assert (await client.error())[0] == b"token expired, reconnect"
            async with page(gateway, signed(), login="jwt") as client:
                write_keys(site, "RS256")
                await gateway.reload()
                assert (await client.error())[0] == b"policy changed, reconnect"
            assert await refusal(gateway, signed(), "jwt") == b"token-invalid"
            async with page(gateway, signed("RS256"), login="jwt") as client:
                site.policy({"anna": EVERYTHING, "viewer": {"receive": ["X/Bar.*"]}})
                await gateway.reload()
                assert (await client.error())[0] == b"policy changed, reconnect"

    run(test)


def test_without_a_claim_the_capability_decides(site: Site) -> None:
    """If the configuration has no claim for globs, the globs are those of the capability. Without an issuer no token counts."""

    async def test() -> None:
        async with (
            living(site, web=settings(site, receive_claim="")) as gateway,
            gateway.client("anna") as anna,
            page(gateway, signed(), login="jwt") as client,
        ):
            await client.subscribe("X/**")
            await anna.send("X/Bar.1", b"v")
            assert await client.values(1) == {"X/Bar.1": b"v"}
        async with living(site, web=WebSettings("127.0.0.1:0")) as gateway:
            assert await refusal(gateway, signed(), "jwt") == b"unauthenticated"

    run(test)


@pytest.mark.parametrize(
    "keys",
    [
        "no JSON",
        "[]",
        '{"keys": 1}',
        '{"keys": []}',
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}),
        json.dumps({"keys": [json.loads(ECAlgorithm.to_jwk(KEYS["ES256"]))]}),
        json.dumps({"keys": [public("ES256", generate_private_key(SECP384R1()))]}),
        json.dumps({"keys": [public("RS256", generate_rsa_key(65537, 1024))]}),  # noqa: S505 too short, and so refused
        json.dumps({"keys": [public("ES256", KEYS["ES256"], use="enc")]}),
        json.dumps({"keys": [public("RS256", KEYS["RS256"])]}),
    ],
)
def test_a_file_without_a_usable_public_key_is_refused(tmp_path: Path, keys: str) -> None:
    """Secrets, short keys, keys of other algorithms and nonsense are refused with the name of the file."""
    wanted = JwtSettings(ISSUER, AUDIENCE, tmp_path / "jwks.json", "viewer", algorithms=("ES256",))
    with pytest.raises(ConfigurationError, match=r"jwks\.json"):
        TokenKeys(keys.encode(), wanted)


def test_no_token_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Neither log nor audit log contains a token or its signature, accepted, expired or forged, also with the level debug."""
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        async with living(site, web=settings(site)) as gateway, gateway.client("anna") as anna:
            accepted, expired, forged = signed(), signed(exp=int(time.time()) - 3600), FORGED["an unknown key"]()
            async with page(gateway, accepted, login="jwt") as client:
                await client.subscribe("X/**")
                await anna.send("X/Floor.1", b"v")
                assert await client.values(1) == {"X/Floor.1": b"v"}
            for token in (expired, forged):
                await refusal(gateway, token, login="jwt")
            await refusal(gateway, accepted)  # as a ticket, by mistake
        audit = "".join(file.read_text() for file in gateway.site.folder.rglob("*.jsonl"))
        assert all(text in caplog.text for text in ("token expired", "token invalid", "ticket invalid"))
        assert "token expired" in audit
        for token in (accepted, expired, forged):
            assert not any(one in text for text in (caplog.text, audit) for one in (token, token.rpartition(".")[2]))

    run(test)
