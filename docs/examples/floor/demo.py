"""Run the venue floor on this machine: a gateway, machines that play, and the backend of the page. It prints one address.

`make demo-web` builds the page and calls this. Ctrl-C ends everything.
"""

import argparse
import datetime as dt
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from maxam.pki.certificates import issue_development_certificates

HERE: Final = Path(__file__).parent
MARK: Final = "floor.txt"  # in a folder that this program may remove
POLICY: Final = """
[capabilities.machines]
send = ["X/EGM.**"]
receive = ["X/EGM.*"]
[capabilities.tickets]
admin = ["ticket"]
receive = ["X/EGM.*.EGMStatus"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["machines"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["machines"]
[[principals]]
name = "backend"
fingerprints = ["{backend}"]
capabilities = ["tickets"]
"""
SETTINGS: Final = """
listener.port = 0
admin.port = 0
tls.certificate = "certs/server.pem"
tls.key = "certs/server.key"
tls.client_ca = "certs/ca.pem"
policy.file = "policy.toml"
schemas.folder = "{schemas}"
journal.folder = "journal"
[web]
listen = "127.0.0.1:0"
origins = ["http://127.0.0.1:{port}"]
"""


def main() -> None:
    """Start all processes and wait until one of them, or the user, ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True, help="folder with the built page")
    parser.add_argument("--folder", type=Path, default=Path("var/floor"), help="made again at each start [var/floor]")
    parser.add_argument("--schemas", type=Path, default=Path("schemas"), help="the shipped schemas [schemas]")
    parser.add_argument("--machines", type=int, default=300, help="number of machines [300]")
    parser.add_argument("--rate", type=float, default=1.0, help="readings per second and machine [1]")
    parser.add_argument("--port", type=int, default=8090, help="port of the page, 0 for any [8090]")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    if folder.exists() and not (folder / MARK).exists():
        parser.error(f"{folder} is not of this program, so it was not changed: choose another --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    with socket.create_server(("127.0.0.1", options.port)) as free:
        port = free.getsockname()[1]
    names = ("publisher", "subscriber", "backend")
    prints = issue_development_certificates(folder / "certs", dt.datetime.now(dt.UTC), names)
    (folder / "policy.toml").write_text(POLICY.format(**prints), encoding="utf-8")
    settings = SETTINGS.format(schemas=options.schemas.absolute(), port=port)
    (folder / "maxam.toml").write_text(settings, encoding="utf-8")

    processes: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str | Path, answers: bool = True) -> str:
        """Start a Python program. If it `answers`, return its first line."""
        with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
            command = [sys.executable, *map(str, arguments)]
            out = subprocess.PIPE if answers else log
            processes.append(subprocess.Popen(command, stdout=out, stderr=log, text=True))  # noqa: S603 - ours
        return processes[-1].stdout.readline() if processes[-1].stdout else ""

    signal.signal(signal.SIGTERM, _stop)
    try:
        ready = start(
            "gateway", "-c", "from maxam.programs import gateway; gateway()", "--config", folder / "maxam.toml"
        )
        places = dict(word.split("=", 1) for word in ready.split()[1:])
        if "web" not in places:
            sys.exit(f"the gateway did not start: see {folder}/gateway.log")
        shared = ("--certificates", folder / "certs")
        wanted = ("--page", options.page, "--port", str(port))
        address = start(
            "backend", HERE / "backend.py", *wanted, "--admin", places["admin"], "--web", places["web"], *shared
        )
        print(f"The floor is at {address.strip()} (Ctrl-C ends it).", flush=True)  # noqa: T201 - its output
        venue = ("--schemas", options.schemas, "--machines", str(options.machines), "--rate", str(options.rate))
        start("machines", "-m", "maxam.demo", "--server", places["tls"], *venue, *shared, answers=False)
        processes[0].wait()
        sys.exit(f"the gateway ended: see {folder}/gateway.log")
    except KeyboardInterrupt:
        pass
    finally:
        for process in reversed(processes):  # the machines wait for the answers to their last values
            process.terminate()
            process.communicate()


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
