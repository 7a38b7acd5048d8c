"""A service manager in one file, for units below a folder: `service_manager.py ROOT VERB [OPTION] UNIT`, as systemctl is called.

It runs the command of a unit's ExecStart, with its environment and credentials, waits for READY=1, and knows a service by its process.
It confines nothing, which is systemd's part.
"""

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

WAIT_S = 200  # its caller waits longer


def settings_of(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a unit, those of all sections by their names, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def main(root: Path, verb: str, name: str) -> int:
    """Do what `systemctl VERB NAME` does."""
    process = root / f"run/{name}.pid"
    if name.endswith((".timer", ".path")):  # no time comes and nothing is watched here: a test starts what they would
        return 0 if (root / f"usr/local/lib/systemd/system/{name}").exists() else 1
    if verb in ("stop", "restart"):
        _stop(process)
    if verb in ("start", "restart", "enable"):
        return _start(root, name, process)
    if verb in ("reload", "kill"):
        os.kill(int(process.read_text()), signal.SIGHUP if verb == "reload" else signal.SIGKILL)
    return 0


def _start(root: Path, name: str, process: Path) -> int:
    settings = settings_of(root / f"usr/local/lib/systemd/system/{name}.service")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        environment = dict(os.environ)
        for line in settings["Environment"]:
            for word in shlex.split(line.replace("%d", folder)):
                variable, _, value = word.partition("=")
                environment[variable] = value
        for credential in settings.get("LoadCredential", []):
            key, _, path = credential.partition(":")
            (scratch / key).write_bytes((root / path.lstrip("/")).read_bytes())
        lines = [re.sub(r"/(?=opt/|etc/|var/)", f"{root}/", line) for line in settings["ExecStart"]]
        commands = [shlex.split(line) for line in lines]
        if settings["Type"] == ["oneshot"]:
            codes = (subprocess.run(command, env=environment, check=False).returncode for command in commands)
            return next((code for code in codes if code != 0), 0)
        (command,) = commands
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, (root / f"run/{name}.log").open("ab") as log:
            told.bind(f"{folder}/notify")
            told.settimeout(WAIT_S)
            environment["NOTIFY_SOCKET"] = f"{folder}/notify"
            begun = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            process.write_text(str(begun.pid))
            try:
                while told.recv(100) != b"READY=1":
                    pass
            except TimeoutError:
                begun.kill()
                sys.stderr.write(f"{name} did not say that it is ready:\n{Path(log.name).read_text()}")
                return 1
    return 0


def _stop(process: Path) -> None:
    if not process.exists():
        return
    try:
        descriptor = os.pidfd_open(int(process.read_text()))
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], WAIT_S)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.unlink()


if __name__ == "__main__":
    several = sys.argv[2] == "enable"
    units = [name for name in sys.argv[3:] if not name.startswith("-")] if several else sys.argv[-1:]
    sys.exit(max(main(Path(sys.argv[1]), sys.argv[2], unit) for unit in units))
