"""The admin API as the `maxam-admin` command sees it: one connection, JSON in and out, and errors with advice.

Spoken with the standard library's `http.client`, which is enough for one synchronous connection with small requests.
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

from maxam.client_tls import CertificateFileError, client_context
from maxam.counting import counted
from maxam.error_codes import USAGE
from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode

TIMEOUT_S: Final = 20.0  # above the server's own time limit of a request
RESPONSE_BYTES_MAX: Final = 67_108_864  # far above any page
_SENT_AT_ONCE_BYTES: Final = 65_536  # what is as long has left, mostly, before it can be refused


class RemoteError(MaxamError):
    """The gateway cannot be reached, or refused a request. The text has one line of cause and one of remedy, if there is one.

    Attributes:
        code: That of the answer, if there was one.
        disposition: Of a SEND that it made of the request and that was rejected. Else empty.
        exit_code: Of a command that ends with this error.
    """

    code = "gateway-unreachable"
    disposition = ""
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, text: str = "", code: str = "", exit_code: ExitCode | None = None) -> None:
        super().__init__(text)
        self.code = code or self.code  # type: ignore[misc]  # mypyc wants a class variable in the compiled base
        self.exit_code = exit_code or self.exit_code


@final
class NotFoundError(RemoteError):
    """The requested thing does not exist."""

    code = "not-found"
    exit_code = ExitCode.NOT_FOUND


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """Addresses of a gateway, and the identity of a client. A field is None if nothing sets it."""

    gateway: str
    certificate: Path | None
    key: Path | None
    ca: Path | None
    server_name: str | None = None  # checked against the certificate; None trusts by chain, as venues do
    client_file: str = ""  # file that might have set them, empty for none
    server: str = ""  # of the STOMP listener

    def address(self) -> tuple[str, int]:
        """Split `gateway` into host and port; raises RemoteError."""
        return split_address(self.gateway, "--admin")

    def files(self) -> dict[str, Path]:
        """Return certificate, key and CA by the names of their options; raises RemoteError if one is not given."""
        files = {}
        for name, path in (("ca", self.ca), ("cert", self.certificate), ("key", self.key)):
            if path is None:
                raise _usage(
                    f"no {_FILES[name]} is given: use --{name} FILE or set MAXAM_{name.upper()}"
                    + (f', or write {name} = "FILE" into {self.client_file}' if self.client_file else "")
                )
            files[name] = path
        return files

    def tls_context(self) -> ssl.SSLContext:
        """Make the TLS context; raises RemoteError naming the option, the variable and the file at fault."""
        files = self.files()
        try:
            return client_context(files["ca"], files["cert"], files["key"], name_checked=self.server_name is not None)
        except CertificateFileError as error:
            raise RemoteError(f"{error}: see --{error.kind} or MAXAM_{error.kind.upper()}", error.code) from error


_FILES: Final = {
    "ca": "CA certificate of the gateway",
    "cert": "client certificate",
    "key": "key of the client certificate",
}


EXIT_CODES: Final[dict[int, ExitCode]] = {
    HTTPStatus.BAD_REQUEST: ExitCode.USAGE,
    HTTPStatus.UNAUTHORIZED: ExitCode.UNREACHABLE,
    HTTPStatus.FORBIDDEN: ExitCode.UNREACHABLE,
    HTTPStatus.NOT_FOUND: ExitCode.NOT_FOUND,
    HTTPStatus.MISDIRECTED_REQUEST: ExitCode.UNREACHABLE,
    HTTPStatus.TOO_MANY_REQUESTS: ExitCode.UNREACHABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.UNREACHABLE,
}


def _usage(text: str) -> RemoteError:
    """Return an error about an option of the command line."""
    return RemoteError(text, USAGE, ExitCode.USAGE)


def split_address(text: str, option: str) -> tuple[str, int]:
    """Split `HOST:PORT`, IPv6 hosts in brackets; raises RemoteError naming the option."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise _usage(f"{option} must be HOST:PORT, found {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def split_addresses(text: str, option: str) -> list[tuple[str, int]]:
    """Split addresses as `split_address` does. There may be several, with commas between them."""
    return [split_address(one.strip(), option) for one in text.split(",")]


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
    """The admin API of one gateway. Connects at the first request; use it as a context manager.

    Attributes:
        incomplete: An answer lacked what a front of the gateway has.
    """

    def __init__(self, credentials: Credentials, timeout_s: float = TIMEOUT_S) -> None:
        self._credentials: Final = credentials
        self._timeout_s: Final = timeout_s
        self.incomplete = False
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

    def get(self, path: str, **parameters: str | int | None) -> Any:  # noqa: ANN401 JSON of any shape
        """Return the JSON that the gateway holds under a path."""
        answer = json.loads(self.text(_with_query(path, parameters)))
        if isinstance(answer, dict) and answer.get("incomplete") is True:
            self.incomplete = True
        return answer

    def text(self, path: str) -> bytes:
        """Return what the gateway holds under a path, as it is."""
        return self._ask("GET", path)

    def pages(self, path: str, rows: str, **parameters: str | int | None) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of all pages of a listing."""
        while True:
            page = self.get(path, **parameters)
            yield from page[rows]
            if page["next"] is None:
                return
            parameters["after"] = page["next"]

    def post(self, path: str, body: object = None, **parameters: str | int | None) -> Any:  # noqa: ANN401 as above
        """Have something done, and return the gateway's answer. A body goes as JSON."""
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._ask("POST", _with_query(path, parameters), data))

    def put(self, path: str, body: bytes, **parameters: str | int | None) -> Any:  # noqa: ANN401 as above
        """Have a body stored as it is, and return the gateway's answer."""
        return json.loads(
            self._ask("PUT", _with_query(path, parameters), body, {"content-type": "application/octet-stream"})
        )

    def delete(self, path: str, **parameters: str | int | None) -> None:
        """Have something deleted."""
        self._ask("DELETE", _with_query(path, parameters))

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
                    f"{self._credentials.gateway} stopped reading {counted(len(body or b''), 'byte')}: is that more than its frame_body_bytes_max?",
                    "too-large",
                    ExitCode.CHECK_FAILED,
                ) from error
            code = "tls-failed" if isinstance(error, ssl.SSLError) else ""
            raise RemoteError(self._explain(error), code) from error
        if response.status in {HTTPStatus.OK, HTTPStatus.CREATED}:
            return body
        disposition = ""
        try:
            answer = json.loads(body)
            code, detail = str(answer.get("code", answer["error"])), str(answer["detail"])
            disposition = str(answer.get("disposition", ""))
        except (ValueError, TypeError, KeyError):
            code, detail = (
                "",
                f"{self._credentials.gateway} does not answer as an admin listener: status {response.status}",
            )
        if code == "forbidden":
            detail += (
                f". The certificate is {self._credentials.certificate}. Add its fingerprint"
                f" (maxam-admin certs fingerprint {self._credentials.certificate}) to a principal of the policy"
                " whose capabilities have this right"
            )
        exit_code = EXIT_CODES.get(response.status, ExitCode.CHECK_FAILED)
        refusal = (NotFoundError if code == "not-found" else RemoteError)(detail, code, exit_code)
        refusal.disposition = disposition
        raise refusal

    def _explain(self, error: OSError | http.client.HTTPException) -> str:
        where = self._credentials
        match error:
            case ConnectionRefusedError():
                return (
                    f"no program listens at {where.gateway}. Start the gateway, or give its admin address with --admin or MAXAM_ADMIN."
                    " The gateway prints it at its start: `ready ... admin=HOST:PORT`"
                )
            case socket.gaierror():
                return f"the host of {where.gateway} is unknown: see --admin or MAXAM_ADMIN"
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {where.gateway} is not trusted ({error.verify_message}): is {where.ca} the CA"
                    " that signed it (--ca or MAXAM_CA), and does it carry this name (--server-name)?"
                )
            case ssl.SSLError() if "ALERT" in (error.reason or ""):
                return (
                    f"{where.gateway} refused the certificate {where.certificate} ({_alert(error)}): is it of the"
                    " gateway's client CA, not expired, not revoked? (--cert or MAXAM_CERT)"
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


def _with_query(path: str, parameters: Mapping[str, str | int | None]) -> str:
    """Return a path with the parameters that are not None."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return f"{path}?{query}" if query else path


def session_path(principal: str, client_id: str) -> str:
    """Return the path of a session."""
    return f"/v1/sessions/{quote(principal, safe='')}/{quote(client_id, safe='')}"


def subscription_path(principal: str, client_id: str, subscription: str) -> str:
    """Return the path of a subscription."""
    return "/v1/subscriptions/" + "/".join(quote(part, safe="") for part in (principal, client_id, subscription))
