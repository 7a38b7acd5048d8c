"""Read what operators and integrators wrote: configuration, policy, schema folder, certificates, revocation lists."""

import hashlib
import logging
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from maxam.avro.folder import SCHEMA_SUFFIXES, read_schema_texts
from maxam.avro.registry import Registry, load_registry
from maxam.broker.policy import Policy, inspect_policies
from maxam.config import Limits, Settings, deprecated_keys, load_settings
from maxam.errors import ConfigurationError, PolicyError
from maxam.files import FileStamp, Places, places_of_file, read_file, stamp_file, stamp_folder
from maxam.gateway.log import log_bug, log_event
from maxam.gateway.revocation import Revocations, load_revocations, refuse_older
from maxam.gateway.tls_credentials import Authorities, ServerCertificate, server_context, web_context
from maxam.gateway.web_tokens import TokenKeys
from maxam.toml_lines import line_of

POLICY: Final = "policy"
SCHEMAS: Final = "schemas"
CERTIFICATE: Final = "certificate"
CLIENT_CA: Final = "client_ca"
CRL: Final = "crl"
WEB: Final = "web"
ITEMS: Final = (
    POLICY,
    SCHEMAS,
    CERTIFICATE,
    CLIENT_CA,
    CRL,
    WEB,
)  # what is reloaded, each by itself; lists after who signs them

_CERTIFICATE_REMEDY: Final = (
    "correct the path (relative to the configuration file), or make development certificates with"
    " `maxam-admin certs dev FOLDER`"
)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Everything that can be reloaded, checked. Immutable, so that a holder sees all of one moment.

    Attributes:
        policy: Principals and their rights.
        registry: Rules and schemas of the destinations.
        certificate: The server's.
        authorities: Authorities whose clients are accepted.
        revocations: CRLs of those authorities.
        tls: Context of new connections.
        digests: Digest of the content of each item.
        contents: Content of each item, for fronts; empty without fronts.
        web: The certificate of the listener of web clients, if it has one of its own.
        web_tls: Context of new connections without a certificate. None without a listener for them.
        web_keys: Keys of the issuer of tokens. None without an issuer.
    """

    policy: Policy
    registry: Registry
    certificate: ServerCertificate
    authorities: Authorities
    revocations: Revocations
    tls: ssl.SSLContext
    digests: Mapping[str, str]
    contents: Mapping[str, "Content"] = field(default_factory=dict)
    web: ServerCertificate | None = None
    web_tls: ssl.SSLContext | None = None
    web_keys: TokenKeys | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of the files of one item: by the name of the setting, or by the path in the schema folder."""

    texts: Mapping[str, bytes]

    def digest(self, *others: str) -> str:
        """Return a digest of the content and of `others`, the content by which it was judged."""
        digest = hashlib.sha256()
        for part in (*others, *(part for name, text in sorted(self.texts.items()) for part in (name, text))):
            data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return digest.hexdigest()


def read_settings(path: Path) -> Settings:
    """Read the configuration file, and log each key that has a new name; raises ConfigurationError."""
    data = read_file(path, "the configuration file", "give its path with --config")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    settings = load_settings(text, str(path), path.parent)
    for key, now, line in deprecated_keys(text):
        action = f"rename it to {now}; the next release does not accept the old name"
        log_event(logging.WARNING, "setting-deprecated", file=f"{path}:{line}", key=key, action=action)
    return settings


def read_config(settings: Settings) -> LoadedConfig:
    """Read policy, schemas and certificates; raise ConfigurationError when any of them cannot be used."""
    loaded, refused = reread_config(settings, None)
    for error in refused.values():
        raise error
    if loaded is None:
        raise AssertionError("nothing was refused and nothing read")
    return loaded


def reread_config(
    settings: Settings, before: LoadedConfig | None
) -> tuple[LoadedConfig | None, dict[str, ConfigurationError]]:
    """Read everything again, each item by itself. Blocks for as long as the disk does.

    Args:
        settings: Where to read.
        before: The items in force. None at start, where everything must be valid.

    Returns:
        The items that may come into force, and the errors of the others by item. An item that cannot be used is replaced by the one
        in force. The first is None if there is none.
    """
    reading = _Reading(settings, before)
    refused: dict[str, ConfigurationError] = {}
    for item in ITEMS:
        try:
            reading.read(item)
        except ConfigurationError as error:
            refused[item] = error
        except Exception as error:  # whatever files make of us: a gateway that serves goes on
            if before is None:
                raise
            log_bug("internal-error", error, action=f"{item} stays as it was")
            refused[item] = ConfigurationError(
                f"[{item}]: a bug kept it from being read: {type(error).__name__}: {error}; the log says where, report it"
            )
    return reading.loaded(), refused


def take_contents(settings: Settings, contents: Mapping[str, Content], before: LoadedConfig | None) -> LoadedConfig:
    """Return the items of these contents, which another process has read and checked.

    Args:
        settings: Where they were read.
        contents: Of items; those that are missing stay as they are.
        before: The items in force; None at start.

    Raises:
        ConfigurationError: One cannot be used here, as by a certificate that has expired since.
    """
    reading = _Reading(settings, before)
    for item in ITEMS:
        if item in contents:
            reading.take(item, contents[item])
    loaded = reading.loaded()
    if loaded is None:
        raise ConfigurationError("the gateway did not send all items of its configuration. Restart it")
    return loaded


def read_credentials(settings: Settings) -> LoadedConfig:
    """Read the certificates of a front on another machine, whose gateway has policy and schemas; raises ConfigurationError."""
    reading = _Reading(settings, None)
    reading.take(POLICY, Content({"file": b""}))
    reading.take(SCHEMAS, Content({"registry.toml": b""}))
    for item in (CERTIFICATE, CLIENT_CA, CRL):
        reading.read(item)
    loaded = reading.loaded()
    assert loaded is not None  # noqa: S101  # all items were taken
    return loaded


def _load_policy(files: list[tuple[str, bytes]], limits: Limits) -> Policy:
    """Load a policy; raise PolicyError with the line of the first mistake, and how many more there are."""
    policy, problems = inspect_policies(files, limits)
    if not problems:
        return policy
    first = problems[0]
    line = line_of(dict(files).get(first.file, b""), first.place, first.problem)
    more = f" ({len(problems) - 1} more: maxam-admin policy check)" if len(problems) > 1 else ""
    raise PolicyError(first.problem + more, first.file if line is None else f"{first.file}:{line}", first.place)


def stamp_files(settings: Settings) -> tuple[FileStamp, Places]:
    """Return the state of all files of all items, and where a change of them shows. Blocks for as long as the disk does."""
    stamps, places = stamp_folder(settings.schemas.folder, SCHEMA_SUFFIXES, settings.limits)
    names = set(places.names)
    for paths in _files(settings).values():
        for path in paths.values():
            stamps = (*stamps, stamp_file(path))
            names |= places_of_file(path).names
    return stamps, Places(places.folders, frozenset(names))


def _files(settings: Settings) -> dict[str, dict[str, Path]]:
    """Return the files of each item but the schemas, by the name of their setting."""
    tls = settings.tls
    return {
        POLICY: {"file": settings.policy.file}
        | ({} if settings.policy.enrolled is None else {"enrolled": settings.policy.enrolled}),
        CERTIFICATE: {"certificate": tls.certificate, "key": tls.key},
        CLIENT_CA: {"client_ca": tls.client_ca},
        CRL: {} if tls.crl is None else {"crl": tls.crl},
        WEB: {} if settings.web is None else settings.web.files,
    }


def files_of(item: str, settings: Settings) -> list[Path]:
    """Return the files of an item, or its folder."""
    return [settings.schemas.folder] if item == SCHEMAS else list(_files(settings)[item].values())


def _read_item(item: str, settings: Settings, *, starting: bool) -> dict[str, bytes]:
    if item == SCHEMAS:
        return read_schema_texts(settings.schemas.folder, settings.limits)
    section, remedy = ("policy", "correct the path or write one") if item == POLICY else ("tls", _CERTIFICATE_REMEDY)
    section = WEB if item == WEB else section
    paths = _files(settings)[item]
    may_lack = starting or settings.cluster is not None  # no client has been enrolled yet, or a member gets it later
    if item == POLICY and may_lack and "enrolled" in paths and not os.path.lexists(paths["enrolled"]):
        del paths["enrolled"]
    return {name: read_file(path, f"[{section}] {name}", remedy) for name, path in paths.items()}


@final
class _Reading:
    """One reading of everything: what each item is in the end."""

    def __init__(self, settings: Settings, before: LoadedConfig | None) -> None:
        self._settings: Final = settings
        self._before: Final = before
        self._now_s: Final = time.time()
        self._digests: Final[dict[str, str]] = {} if before is None else dict(before.digests)
        self._contents: Final[dict[str, Content]] = {} if before is None else dict(before.contents)
        self._policy = None if before is None else before.policy
        self._registry = None if before is None else before.registry
        self._certificate = None if before is None else before.certificate
        self._authorities = None if before is None else before.authorities
        self._revocations = None if before is None else before.revocations
        self._web = None if before is None else before.web
        self._web_keys = None if before is None else before.web_keys

    def read(self, item: str) -> None:
        """Read one item, and take it instead of what is in force unless it is the same; raises ConfigurationError."""
        self.take(item, Content(_read_item(item, self._settings, starting=self._before is None)))

    def take(self, item: str, content: Content) -> None:
        """Take the content of an item, unless it is the same as in force; raises ConfigurationError."""
        # A list is judged by who may sign it, too.
        digest = content.digest(self._digests.get(CLIENT_CA, "")) if item == CRL else content.digest()
        if self._digests.get(item) == digest:
            return
        texts = content.texts
        if item == POLICY:
            files = self._settings.policy
            written = [(str(files.file), texts["file"])]
            if "enrolled" in texts:
                written.append((str(files.enrolled), texts["enrolled"]))
            self._policy = _load_policy(written, self._settings.limits)
        elif item == SCHEMAS:
            self._registry = load_registry(texts, self._settings.limits)
        elif item == CERTIFICATE:
            self._certificate = self._load_certificate(texts)
        elif item == CLIENT_CA:
            self._authorities = Authorities(texts["client_ca"], str(self._settings.tls.client_ca))
        elif item == WEB:
            self._web, self._web_keys = self._load_web(texts)
        elif self._authorities is not None:
            self._revocations = self._load_revocations(texts, self._authorities)
        self._digests[item] = digest
        if self._settings.fronts is not None:
            self._contents[item] = content

    def loaded(self) -> LoadedConfig | None:
        """Return the whole, None if something is missing."""
        before, certificate, authorities = self._before, self._certificate, self._authorities
        if self._policy is None or self._registry is None or certificate is None or authorities is None:
            return None
        if self._revocations is None:
            return None
        if before is not None and certificate is before.certificate and authorities is before.authorities:
            context = before.tls
        else:
            context = server_context(certificate, authorities, self._settings.tls.minimum)
        web_tls = None
        if self._settings.web is not None:
            shown = self._web or certificate
            same = before is not None and (before.web or before.certificate) is shown
            web_tls = before.web_tls if before is not None and same else web_context(shown, self._settings.tls.minimum)
        return LoadedConfig(
            self._policy,
            self._registry,
            certificate,
            authorities,
            self._revocations,
            context,
            self._digests,
            self._contents,
            self._web,
            web_tls,
            self._web_keys,
        )

    def _load_certificate(self, texts: Mapping[str, bytes]) -> ServerCertificate:
        tls = self._settings.tls
        where = f"certificate {tls.certificate} and key {tls.key}"
        return self._in_time("tls", tls.certificate, ServerCertificate(texts["certificate"], texts["key"], where))

    def _load_web(self, texts: Mapping[str, bytes]) -> tuple[ServerCertificate | None, TokenKeys | None]:
        web = self._settings.web
        keys = None if web is None or web.jwt is None else TokenKeys(texts["jwks"], web.jwt)
        if web is None or web.certificate is None:
            return None, keys
        where = f"certificate {web.certificate} and key {web.key}"
        certificate = ServerCertificate(texts["certificate"], texts["key"], where, WEB)
        return self._in_time(WEB, web.certificate, certificate), keys

    def _in_time(self, section: str, path: Path, certificate: ServerCertificate) -> ServerCertificate:
        """Return a certificate, which must be valid now unless the gateway starts with it; raises ConfigurationError."""
        if self._before is None:
            return certificate  # a start is not made impossible by time alone
        if certificate.valid_until.timestamp() < self._now_s:  # but what works is not given up for what cannot
            raise ConfigurationError(
                f"[{section}] certificate {path}: expired on {certificate.valid_until:%Y-%m-%d %H:%M}Z; renew it"
            )
        if certificate.valid_from.timestamp() > self._now_s:
            raise ConfigurationError(
                f"[{section}] certificate {path}: is not valid before {certificate.valid_from:%Y-%m-%d %H:%M}Z;"
                " wait, or compare the clocks"
            )
        return certificate

    def _load_revocations(self, texts: Mapping[str, bytes], authorities: Authorities) -> Revocations:
        path = self._settings.tls.crl
        if path is None:
            return Revocations()
        found = load_revocations(texts["crl"], str(path), authorities.certificates)
        if self._revocations is not None:
            refuse_older(str(path), found, self._revocations, authorities.certificates, self._now_s)
        return found
