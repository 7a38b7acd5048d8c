"""The real gateway in a process of its own, on a free loopback port."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from maxam.demo import own_folder
from tests.support.patience import PATIENCE_S

COMMAND = "from maxam.main import gateway; gateway()"  # as the script maxam-gateway does


def fronts_table(settings: str = "") -> str:
    """Return the table that has all gateways of tests serve with fronts, except those that cannot: MAXAM_TEST_FRONTS is their number."""
    count = os.environ.get("MAXAM_TEST_FRONTS", "0")
    if count == "0" or any(table in settings for table in ("[fronts]", "[follow]")):
        return ""
    return f"[fronts]\ncount = {count}\n"


def kept_ports(count: int) -> list[int]:
    """Return ports on 127.0.0.1 for who comes back to them after a restart."""
    return own_folder.kept_ports(count)


def launch(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, program: str = sys.executable
) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Start Python with a gateway and wait until it is ready; return the process and the addresses of its listeners by name.

    Args:
        arguments: Of Python, such as `-c`, COMMAND, `--config` and a file.
        log: File that standard error is appended to.
        environment: Variables of the process; None for those of the tests.
        program: Takes the arguments instead of Python.
    """
    with log.open("a", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE_S, process.kill)  # ends the wait for a line that never comes
    watchdog.start()
    line = process.stdout.readline()
    watchdog.cancel()
    watchdog.join()
    if not line.startswith("ready "):
        end(process, signal.SIGKILL, log)
        raise AssertionError(f"the gateway did not start: {line!r}\n{log.read_text(encoding='utf-8')}")
    return process, dict(word.split("=", 1) for word in line.split()[1:])


def end(process: subprocess.Popen[str], number: signal.Signals, log: Path) -> int:
    """Send a signal to a gateway and wait for its end; return its exit code."""
    process.send_signal(number)
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(
            f"the gateway did not stop within {PATIENCE_S:g} s\n{log.read_text(encoding='utf-8')}"
        ) from None
    finally:
        assert process.stdout is not None
        process.stdout.close()


def port_of(address: str) -> int:
    """Return the port of `host:port`."""
    return int(address.rpartition(":")[2])


def admin_environment(admin_port: int | None, certificates: Path, who: str = "operator") -> dict[str, str | None]:
    """Return the variables by which `maxam-admin` finds a gateway on this machine and a client's certificate."""
    return {
        "MAXAM_GATEWAY": f"127.0.0.1:{admin_port}",
        "MAXAM_CERTIFICATE": str(certificates / f"{who}.pem"),
        "MAXAM_KEY": str(certificates / f"{who}.key"),
        "MAXAM_CA": str(certificates / "ca.pem"),
    }


class GatewayProcess:
    """A gateway with a folder of its own for configuration, policy, schemas and journal. Certificates are shared.

    A context manager: entering starts it and waits for its ready line, leaving stops it gracefully and asserts that it
    exited with 0. A test may `kill` and `start` it in between; the journal stays.

    Attributes:
        port: Where STOMP clients connect, on 127.0.0.1. A new one after each start, except with `keep_port`.
        admin_port: Where operators connect, or None when the gateway runs without.
        web_port: Where clients with a ticket connect, or None when the gateway runs without.
        folder: Its working folder: `maxam.toml`, `policy.toml`, `schemas/`, `journal/`, `log`.
        certificates: Folder as made by `issue_development_certificates`.
        program: An installed maxam-gateway, for the next start. None for the one of this tree.
    """

    program: Path | None = None

    def __init__(
        self,
        folder: Path,
        certificates: Path,
        policy: str,
        schemas: Mapping[str, str] | Path,
        settings: str = "",
    ) -> None:
        """Write the files; nothing runs yet.

        Args:
            folder: An empty folder for this gateway alone.
            certificates: The folder of certificates.
            policy: The text of `policy.toml`.
            schemas: A schema folder, or the texts of one by path within it.
            settings: Further tables of `maxam.toml`, such as `[limits]`.
        """
        self.folder = folder
        self.certificates = certificates
        self.port = 0
        self.admin_port: int | None = None
        self.web_port: int | None = None
        self._process: subprocess.Popen[str] | None = None
        if not isinstance(schemas, Path):
            texts, schemas = schemas, folder / "schemas"
            for path, text in texts.items():
                (schemas / path).parent.mkdir(parents=True, exist_ok=True)
                (schemas / path).write_text(text, encoding="utf-8")
        (folder / "policy.toml").write_text(policy, encoding="utf-8")
        (folder / "maxam.toml").write_text(
            f"""
            listener.port = 0
            admin.port = 0
            policy.file = "policy.toml"
            schemas.folder = "{schemas}"
            journal.folder = "journal"
            [tls]
            certificate = "{certificates}/server.pem"
            key = "{certificates}/server.key"
            client_ca = "{certificates}/ca.pem"
            crl = "{certificates}/crl.pem"
            {settings}
            {fronts_table(settings)}""",
            encoding="utf-8",
        )

    def keep_port(self, listener: Literal["listener", "admin"]) -> None:
        """Have each start from now on listen to one and the same port: before the first, or what runs has another."""
        configuration = self.folder / "maxam.toml"
        text = configuration.read_text(encoding="utf-8")
        configuration.write_text(
            re.sub(rf"\b{listener}\.port = \d+", f"{listener}.port = {kept_ports(1)[0]}", text), "utf-8"
        )

    def start(self) -> None:
        """Start the process and wait until it reports that it is ready."""
        arguments = ["--config", str(self.folder / "maxam.toml")]
        if self.program is None:
            self._process, addresses = launch(["-c", COMMAND, *arguments], self.folder / "log")
        else:
            alone = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            self._process, addresses = launch(arguments, self.folder / "log", alone, str(self.program))
        self.port = port_of(addresses["tls"]) if "tls" in addresses else 0  # 0: an observer
        self.admin_port = port_of(addresses["admin"]) if "admin" in addresses else None
        self.web_port = port_of(addresses["web"]) if "web" in addresses else None

    def stop(self) -> int:
        """Ask it to stop, as systemd does, and give its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        code = process.wait(PATIENCE_S)
        process.stdout.close()
        return code

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def reload(self) -> None:
        """Ask it to read certificates, policy and schemas again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def log(self) -> str:
        """Give all that it has logged so far, over all its starts."""
        return (self.folder / "log").read_text(encoding="utf-8")

    @property
    def pid(self) -> int:
        """Give the id of the running process."""
        assert self._process is not None
        return self._process.pid

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        return 0 if process is None else end(process, number, self.folder / "log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        code = self.stop()
        assert code == 0, f"the gateway exited with {code}\n{self.log()}"
