"""The credentials of links: what a gateway shows to others, and which of their certificates it accepts."""

import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final, final

from maxam.config import TlsSettings
from maxam.errors import ConfigurationError
from maxam.files import read_file, stamp_file
from maxam.gateway.access import chain_problem
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.revocation import Revocations, load_revocations, read_chain, refuse_older
from maxam.gateway.tls import verified_chain
from maxam.gateway.tls_credentials import Authorities, ServerCertificate, server_context
from maxam.link_config import LinkSettings

_REMEDY: Final = "correct the path (relative to the configuration file)"


@final
class LinkCredentials:
    """The TLS contexts of links, and which certificates of peers are valid, by the files of `[link]`, or by those of `[tls]`.

    The files of `[link]` are read for each new link. `ca` and `crl` are also checked for changes as long as a link lasts.
    """

    def __init__(self, tls: TlsSettings, link: LinkSettings, loaded: Callable[[], LoadedConfig]) -> None:
        """Read the files once, to find mistakes.

        Args:
            tls: Settings of the clients' listener.
            link: Settings of links.
            loaded: Returns the configuration in force.

        Raises:
            ConfigurationError: A file cannot be used.
        """
        self._refuse_expired: Final = tls.crl_expired == "refuse"
        self._link: Final = link
        self._loaded: Final = loaded
        self._lock: Final = threading.Lock()
        self._own: tuple[Authorities, Revocations] | None = None  # of `ca` and `crl`, as they were used last
        self._stamps: tuple[object, ...] = ()  # of these files, as they were read last
        self.server()
        self._trusted()

    def server(self) -> ssl.SSLContext:
        """Return the context of a link that another gateway makes. Raises ConfigurationError."""
        return server_context(self._certificate(), self._authorities(), "1.3")

    def client(self) -> ssl.SSLContext:
        """Return the context of a link to another gateway. Raises ConfigurationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._certificate().load_into(context)
        self._authorities().load_into(context)
        return context

    def denial_of(self, tls: ssl.SSLSocket) -> Callable[[], str]:
        """Return a function that returns why the certificates of a peer are not valid now; empty if they are.

        It reads files, so it is not for the event loop. Raises ValueError for a certificate that cannot be read.
        """
        chain = read_chain(verified_chain(tls))

        def problem() -> str:
            found = chain_problem(chain, *self._trusted(), time.time(), self._refuse_expired)
            return "" if found is None else found.detail

        return problem

    def _trusted(self) -> tuple[Authorities, Revocations]:
        """Return the CAs of peers and their CRLs that are in force. Files that cannot be used leave those before in force."""
        link = self._link
        if link.ca is None:
            loaded = self._loaded()
            return loaded.authorities, loaded.revocations
        stamps = (stamp_file(link.ca), None if link.crl is None else stamp_file(link.crl))
        with self._lock:
            if self._own is None or stamps != self._stamps:
                try:
                    self._own = self._read_own(self._own)
                except ConfigurationError as error:
                    if self._own is None:
                        raise
                    log_event(logging.ERROR, "link-files-refused", error=error, action="those before stay in force")
                self._stamps = stamps
            return self._own

    def _read_own(self, before: tuple[Authorities, Revocations] | None) -> tuple[Authorities, Revocations]:
        authorities, path = self._authorities(), self._link.crl
        if path is None:
            return authorities, Revocations()
        content = read_file(path, "[link] crl", _REMEDY)
        try:
            found = load_revocations(content, str(path), authorities.certificates)
            if before is not None:
                refuse_older(str(path), found, before[1], authorities.certificates, time.time())
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("[tls]", "[link]", 1)) from error
        return authorities, found

    def _certificate(self) -> ServerCertificate:
        link = self._link
        if link.certificate is None or link.key is None:
            return self._loaded().certificate
        chain = read_file(link.certificate, "[link] certificate", _REMEDY)
        key = read_file(link.key, "[link] key", _REMEDY)
        try:
            return ServerCertificate(chain, key, f"certificate {link.certificate} and key {link.key}")
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("[tls]", "[link]", 1)) from error

    def _authorities(self) -> Authorities:
        if self._link.ca is None:
            return self._loaded().authorities
        try:
            return Authorities(read_file(self._link.ca, "[link] ca", _REMEDY), str(self._link.ca))
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("[tls] client_ca", "[link] ca", 1)) from error
