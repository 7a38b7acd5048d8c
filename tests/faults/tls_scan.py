"""Compare the output of sslscan and testssl.sh for a listener with what must hold: `python -m tests.faults.tls_scan`, or `make tls-scan`.

sslscan takes two seconds and CI runs it; testssl.sh takes half a minute.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

_GOOD = frozenset(("OK", "INFO", "LOW"))  # severities that are no finding
# Findings of testssl.sh about a broker that it takes for a web server, or about the development certificates.
_NOT_OF_THE_LISTENER = frozenset(("service", "engine_problem", "scanTime", "scanProblem"))
_MODERN = re.compile(r"TLS_(AES|CHACHA20)|ECDHE-(ECDSA|RSA)-(AES\d+-GCM|CHACHA20)")


def sslscan(port: int, certificates: Path, allowed: set[str]) -> list[str]:
    """Run sslscan with a client certificate. Return a line for each fault, such as a version of TLS that is not allowed."""
    command = ["sslscan", "--no-colour", f"--certs={certificates}/publisher.pem", f"--pk={certificates}/publisher.key"]
    text = _run([*command, f"127.0.0.1:{port}"])
    problems = []
    versions = dict(re.findall(r"^((?:SSL|TLS)v[\d.]+) +(enabled|disabled)$", text, re.MULTILINE))
    for version in ("SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"):
        wanted = "enabled" if version in allowed else "disabled"
        if versions.get(version) != wanted:
            problems.append(f"{version} is {versions.get(version)}")
    for section, wanted in (
        ("TLS renegotiation", "Session renegotiation not supported"),
        ("Heartbleed", "not vulnerable"),
    ):
        said = text.partition(f"{section}:\n")[2].partition("\n\n")[0]
        if wanted not in said:
            problems.append(f"{section}: {said!r}")
    if re.search(r"Compression enabled", text):
        problems.append("compression is enabled")
    ciphers = re.findall(r"^(?:Preferred|Accepted) +(TLSv[\d.]+) +(\d+) bits +(\S+)", text, re.MULTILINE)
    if {version for version, _, _ in ciphers} != allowed:
        problems.append(f"no ciphers of all versions: {ciphers}")
    problems += [
        f"{version} with {name}"
        for version, _, name in ciphers
        if not _MODERN.fullmatch(name) and not _MODERN.match(name)
    ]
    return problems


def testssl(port: int) -> list[str]:
    """Run testssl.sh over protocols and known vulnerabilities; return its findings that are not good."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        _run(
            [
                "testssl",
                "--quiet",
                "--color",
                "0",
                "--warnings",
                "off",
                "-p",
                "-U",
                f"--jsonfile={report}",
                f"127.0.0.1:{port}",
            ]
        )
        findings = json.loads(report.read_text())
    if len(findings) < 20:
        return [f"only {len(findings)} findings: did it reach the listener?"]
    return [
        f"{one['id']}: {one['finding']} ({one['severity']})"
        for one in findings
        if one["severity"] not in _GOOD and one["id"] not in _NOT_OF_THE_LISTENER
    ]


def without_certificate(port: int) -> str:
    """Connect without a client certificate in TLS 1.2 and in 1.3; return the alert that OpenSSL reports."""
    said = []
    for version in ("-tls1_2", "-tls1_3"):
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-ign_eof"]
        done = subprocess.run(
            command, input="CONNECT\n", capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        said.append(
            "refused" if "alert" in done.stderr and "CONNECTED\n" not in done.stdout[50:] else done.stderr[-500:]
        )
    return ", ".join(said)


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.stdout


def scan(process: GatewayProcess, scanners: list[str], *allowed: str) -> list[str]:
    """Scan both listeners, which take only these versions of TLS; return what is wrong with them."""
    certificates = process.files.folder / "certs"
    runs: dict[str, Callable[[int], list[str]]] = {
        "sslscan": lambda port: sslscan(port, certificates, set(allowed)),
        "testssl": testssl,
    }
    return [
        f"{name} of {what}: {problem}"
        for what, port in (("the clients' listener", process.port), ("the admin listener", process.admin_port))
        for name in scanners
        for problem in runs[name](port)
    ]


def main() -> int:
    """Run both scanners against both listeners of a gateway of our own."""
    missing = [name for name in ("sslscan", "testssl") if shutil.which(name) is None]
    if missing:
        sys.stdout.write(f"not installed: {', '.join(missing)}; make test-deps installs them\n")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        files = GatewayFolder(Path(scratch))
        files.configure(limits="tls_handshake_timeout_s = 3")
        with files.start() as process:
            problems = scan(process, ["sslscan", "testssl"], "TLSv1.3")
            sys.stdout.write(f"without a certificate: {without_certificate(process.port)}\n")
            process.stop()
    sys.stdout.write("".join(f"{problem}\n" for problem in problems) or "nothing is wrong\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
