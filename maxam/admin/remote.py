"""The admin API as the `maxam-admin` command sees it: one connection, JSON in and out, and errors that say what to do.

Spoken with the standard library's `http.client`: one synchronous connection with small requests needs no more.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final
from urllib.parse import quote, urlencode

from maxam.counting import counted
from maxam.errors import MaxamError

TIMEOUT_S: Final = 20.0  # above the server's own time limit of a request
RESPONSE_BYTES_MAX: Final = 67_108_864  # far above any page
_SENT_AT_ONCE_BYTES: Final = 65_536  # what is as long has left, mostly, before it can be refused


class RemoteError(MaxamError):
    """Say why the gateway cannot be asked, or what it refused: one line of cause, one of remedy where there is one.

    Attributes:
        code: Of what it answered; empty when it did not.
        disposition: Of a SEND that it made of the request and that was rejected; else empty.
    """

    code = ""
    disposition = ""


@final
class NotFoundError(RemoteError):
    """Say that what was asked for does not exist."""


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the gateway is and who we are; a field is None while neither option nor variable has set it."""

    gateway: str
    certificate: Path | None
    key: Path | None
    ca: Path | None
    server_name: str | None = None  # checked against the certificate; None trusts by chain, as venues do
    client_file: str = ""  # which file might have set them; empty: none

    def address(self) -> tuple[str, int]:
        """Split `gateway` into host and port; raises RemoteError."""
        return split_address(self.gateway, "--gateway")

    def tls_context(self) -> ssl.SSLContext:
        """Make the TLS context; raises RemoteError naming the option, the variable and the file at fault."""
        files = {}
        for name, path in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key)):
            if path is None:
                raise RemoteError(
                    f"no {_FILES[name]} is given: use --{name} FILE or set MAXAM_{name.upper()}"
                    + (f', or write {name} = "FILE" into {self.client_file}' if self.client_file else "")
                )
            try:
                path.open("rb").close()
            except OSError as error:
                raise RemoteError(
                    f"the {_FILES[name]} {path} cannot be read ({error.strerror}): see --{name} or MAXAM_{name.upper()}"
                ) from error
            files[name] = path
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.server_name is not None
        try:
            context.load_verify_locations(files["ca"])
        except (ssl.SSLError, OSError) as error:
            raise RemoteError(f"{files['ca']} holds no PEM certificate: see --ca or MAXAM_CA") from error
        try:
            context.load_cert_chain(files["certificate"], files["key"], password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise RemoteError(
                f"{files['certificate']} and {files['key']} are not a PEM certificate and its unencrypted PEM key:"
                f" see --certificate and --key ({error})"
            ) from error
        return context


_FILES: Final = {
    "ca": "CA certificate of the gateway",
    "certificate": "client certificate",
    "key": "key of the client certificate",
}


def split_address(text: str, option: str) -> tuple[str, int]:
    """Split `HOST:PORT`, IPv6 hosts in brackets; raises RemoteError naming the option."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise RemoteError(f"{option} must be HOST:PORT, found {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class HttpsConnection(http.client.HTTPSConnection):
    """An HTTPS connection that checks the certificate for a given name, not for the address's."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, server_name: str | None, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._timeout_s = timeout_s
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        """Connect and complete the handshake."""
        transport = socket.create_connection((self.host, self.port), self._timeout_s)
        try:
            transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = self._tls.wrap_socket(transport, server_hostname=self._server_name)
        except BaseException:
            transport.close()
            raise

    def known_as(self) -> str:
        """Return what to call the other end, now connected: the name that was checked, else its address.

        A name that only leads there need not be one that the gateway has, and it refuses others, as browsers can be led there too.
        """
        if self._server_name is not None:
            return self._server_name
        host: str = self.sock.getpeername()[0]
        return f"[{host}]" if ":" in host else host


@final
class Remote:
    """The admin API of one gateway. Connects at the first request; use it as a context manager."""

    def __init__(self, credentials: Credentials, timeout_s: float = TIMEOUT_S) -> None:
        self._credentials: Final = credentials
        self._timeout_s: Final = timeout_s
        host, port = credentials.address()
        self._connection: Final = HttpsConnection(
            host, port, credentials.tls_context(), credentials.server_name, timeout_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str, **parameters: str | int) -> Any:  # noqa: ANN401 JSON of any shape
        """Return the JSON that the gateway holds under a path."""
        return json.loads(self.text(f"{path}?{urlencode(parameters)}" if parameters else path))

    def text(self, path: str) -> bytes:
        """Return what the gateway holds under a path, as it is."""
        return self._ask("GET", path)

    def pages(self, path: str, rows: str, **parameters: str | int) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of all pages of a listing."""
        while True:
            page = self.get(path, **parameters)
            yield from page[rows]
            if page["next"] is None:
                return
            parameters["after"] = page["next"]

    def post(self, path: str, body: object = None, **parameters: str | int) -> Any:  # noqa: ANN401 as above
        """Have something done; return what the gateway says of it. A body goes as JSON."""
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._ask("POST", f"{path}?{urlencode(parameters)}" if parameters else path, data))

    def put(self, path: str, body: bytes, **parameters: str | int) -> Any:  # noqa: ANN401 as above
        """Have a body stored as it is; return what the gateway says of it."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        return json.loads(self._ask("PUT", path + query, body, {"content-type": "application/octet-stream"}))

    def delete(self, path: str, **parameters: str | int) -> None:
        """Have something deleted."""
        self._ask("DELETE", f"{path}?{urlencode(parameters)}" if parameters else path)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        sends = False
        try:
            if self._connection.sock is None:
                self._connection.connect()
            marked = {} if method == "GET" else {"maxam-admin": "1", **(headers or {})}
            sends = body is not None and len(body) > _SENT_AT_ONCE_BYTES
            self._connection.request(method, path, body, headers={"Host": self._connection.known_as(), **marked})
            sends = False
            response = self._connection.getresponse()
            body = response.read(RESPONSE_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if sends and isinstance(error, (ConnectionError, ssl.SSLEOFError)):  # with its answer before it
                raise RemoteError(
                    f"{self._credentials.gateway} took no more of {counted(len(body or b''), 'byte')}: is that more than its frame_body_bytes_max?"
                ) from error
            raise RemoteError(self._explain(error)) from error
        if response.status == HTTPStatus.OK:
            return body
        disposition = ""
        try:
            answer = json.loads(body)
            code, detail = str(answer["error"]), str(answer["detail"])
            disposition = str(answer.get("disposition", ""))
        except (ValueError, TypeError, KeyError):
            code, detail = str(response.status), f"{self._credentials.gateway} does not answer as an admin listener"
        if code == "forbidden":
            detail += (
                f"; the certificate {self._credentials.certificate} has no such right: its fingerprint"
                f" (maxam-admin fingerprint {self._credentials.certificate}) must belong to a principal of the policy"
                " with a capability that has it"
            )
        refusal = (NotFoundError if code == "not-found" else RemoteError)(f"{code}: {detail}")
        refusal.code, refusal.disposition = code, disposition
        raise refusal

    def _explain(self, error: OSError | http.client.HTTPException) -> str:
        where = self._credentials
        match error:
            case ConnectionRefusedError():
                return (
                    f"nothing listens at {where.gateway}: is the gateway running, and is this its admin port?"
                    " (--gateway or MAXAM_GATEWAY; the gateway prints `ready ... admin=HOST:PORT`)"
                )
            case socket.gaierror():
                return f"the host of {where.gateway} is unknown: see --gateway or MAXAM_GATEWAY"
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {where.gateway} is not trusted ({error.verify_message}): is {where.ca} the CA"
                    " that signed it (--ca or MAXAM_CA), and does it carry this name (--server-name)?"
                )
            case ssl.SSLError() if "ALERT" in (error.reason or ""):
                return (
                    f"{where.gateway} refused the certificate {where.certificate} ({_alert(error)}): is it of the"
                    " gateway's client CA, not expired, not revoked? (--certificate or MAXAM_CERTIFICATE)"
                )
            case ssl.SSLError():
                return (
                    f"{where.gateway} does not speak TLS as expected ({error.reason or error}): is it the admin port?"
                )
            case TimeoutError():
                return f"{where.gateway} did not answer within {self._timeout_s:.0f} s"
            case http.client.RemoteDisconnected() | ConnectionResetError():
                return f"{where.gateway} closed the connection without an answer: is it the admin port?"
            case http.client.HTTPException():
                return f"{where.gateway} does not answer as an HTTP server: is it the admin port?"
            case _:
                return f"{where.gateway}: {error}"


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or "").rpartition("ALERT_")[2].lower().replace("_", " ")


def reject_path(reject_id: str) -> str:
    """Return the path of a rejected SEND."""
    return f"/v1/rejects/{quote(reject_id, safe='')}"


def topic_path(destination: str) -> str:
    """Return the path of a topic."""
    return "/v1/topics/" + quote(destination, safe="/")


def history_path(destination: str) -> str:
    """Return the path of a topic's history."""
    return "/v1/history/" + quote(destination, safe="/")


def session_path(principal: str, client_id: str) -> str:
    """Return the path of a session."""
    return f"/v1/sessions/{quote(principal, safe='')}/{quote(client_id, safe='')}"
