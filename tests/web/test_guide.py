"""docs/integrate/web.md is true: its page, program and backend run as they stand, in a folder beside the clone."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from maxam.cli.main import main
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from tests.web.browsers import chromium, until
from tests.web.node import PACKAGE, require_package, run_node

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "docs" / "integrate" / "web.md").read_text()
MACHINES: Final = 5
POLICY: Final = """
[capabilities.machines]
send = ["X/EGM.**"]
receive = ["X/EGM.*"]
[capabilities.tickets]
admin = ["ticket"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["machines"]
[[principals]]
name = "operator"
fingerprints = ["{operator}"]
capabilities = ["machines", "tickets"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["machines"]
"""


def block(language: str, after: str) -> str:
    """Return the first block of a language after a text of the guide."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE[GUIDE.index(after) :], re.DOTALL)
    assert found, after
    return found[1]


def npm(*arguments: str, cwd: Path) -> str:
    """Run npm to its end and return its output."""
    done = subprocess.run(["npm", *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path, certificates: Path) -> Path:
    """Follow the guide up to the backend: pack the package, and install it in an empty folder."""
    require_package()
    package = tmp_path / "package"
    run_node("build.mjs", "--out", str(package / "dist"))
    shutil.copy(PACKAGE / "package.json", package)
    (archive,) = json.loads(npm("pack", "--ignore-scripts", "--json", cwd=package))
    folder = tmp_path / "page"
    (folder / "public").mkdir(parents=True)
    npm("init", "-y", cwd=folder)
    npm("install", "--offline", "--no-audit", str(package / archive["filename"]), cwd=folder)
    (folder / "public" / "index.html").write_text(block("html", "`public/index.html`"))
    (folder / "page.ts").write_text(block("typescript", "`page.ts`"))
    (folder / "backend.mjs").write_text(block("javascript", "`backend.mjs`"))
    (tmp_path / "maxam").mkdir()
    (tmp_path / "maxam" / "certs-dev").symlink_to(certificates)
    return folder


def bundle(project: Path, program: str = "page.ts", *options: str) -> None:
    """Build the page of a project as the guide does it."""
    bundler = str(PACKAGE / "node_modules" / ".bin" / "esbuild")
    subprocess.run([bundler, program, "--bundle", "--format=esm", "--outdir=public", *options], cwd=project, check=True)


def with_options(project: Path, changed: str) -> None:
    """Make the live map of the page with other options, and build it."""
    page, count = re.subn(r"const machines = .*\n", lambda _: changed, block("typescript", "`page.ts`"))
    assert count == 1
    (project / "page.ts").write_text(page)
    bundle(project)


def react_page() -> str:
    """Return the program of the guide for React, with the options of the client of `page.ts`."""
    client = re.search(r"new Client\(.*?\n}\);", block("typescript", "`page.ts`"), re.DOTALL)
    assert client
    program = block("tsx", "## React")
    assert "new Client({ url, ticket });" in program
    program = program.replace("new Client({ url, ticket });", client[0])
    return program.replace("{ Client }", "{ Client, MaxamError }")


def install_react(project: Path) -> None:
    """Put React and its types into a project, from the packages of @maxam/client."""
    installed = PACKAGE / "node_modules"
    (project / "node_modules" / "@types").mkdir()
    for name in ("react", "react-dom", "@types/react", "@types/react-dom"):
        (project / "node_modules" / name).symlink_to(installed / name)


def test_the_programs_of_the_guide_have_correct_types(project: Path) -> None:
    """The strict compiler finds nothing in the pages and the example of types, with the types of the installed package alone."""
    install_react(project)
    (project / "page.tsx").write_text(react_page())
    done = CliRunner().invoke(
        main, ["schemas", "types", "egm.EGMStatus_v1", "--language", "typescript", "--folder", str(ROOT / "schemas")]
    )
    (project / "egm-status.ts").write_text(done.output)
    examples = block("typescript", "## Types") + block("typescript", "With the option `fields`")
    (project / "types.ts").write_text(
        f'import type {{ Client }} from "@maxam/client";\ndeclare const client: Client;\n{examples}'
    )
    options = ["--ignoreConfig", "--strict", "--noUncheckedIndexedAccess", "--noEmit", "--module", "esnext"]
    options += [
        "--moduleResolution",
        "bundler",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
        "--types",
        "",
        "--jsx",
        "react-jsx",
    ]
    run_node("node_modules/.bin/tsc", *options, *(str(project / name) for name in ("page.ts", "page.tsx", "types.ts")))


@contextmanager
def running(*command: str, cwd: Path) -> Iterator[None]:
    """Run a program for the length of a block."""
    process = subprocess.Popen(command, cwd=cwd)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_the_page_of_the_guide_shows_every_machine(project: Path, tmp_path: Path, certificates: Path) -> None:
    """A page built by the guide's steps shows the state of each machine, those of its filter, and why a filter is refused.

    The page with React shows each machine too, and the program for Node.js runs beside it.
    """
    bundle(project)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    web = f'[web]\nlisten = "127.0.0.1:0"\norigins = ["http://localhost:{port}"]\n'
    policy = POLICY.format(**json.loads((certificates / "fingerprints.json").read_text()))
    (tmp_path / "gateway").mkdir()
    with GatewayProcess(tmp_path / "gateway", certificates, policy, ROOT / "schemas", web) as gateway:
        text = (project / "backend.mjs").read_text()
        for guide, here in ((8643, gateway.admin_port), (61616, gateway.web_port), (8000, port)):
            assert text.count(str(guide)) == 1
            text = text.replace(str(guide), str(here))
        (project / "backend.mjs").write_text(text)
        venue = [
            "--server",
            f"127.0.0.1:{gateway.port}",
            "--machines",
            str(MACHINES),
            "--schemas",
            str(ROOT / "schemas"),
        ]
        machines = [sys.executable, "-m", "maxam.demo", *venue, "--certificates", str(certificates)]
        with running(*machines, cwd=ROOT), running("node", "backend.mjs", cwd=project), chromium() as tab:
            assert prints_a_value(project, gateway.port)
            wait_for(port)
            tab.open(f"http://localhost:{port}/")
            until(tab, "document.querySelector('#status').textContent.trim()", lambda status: status == "connected")
            until(tab, "document.querySelectorAll('tbody tr').length", lambda rows: rows == MACHINES)
            assert tab.run("[...document.querySelectorAll('tbody td:last-child')].every((cell) => cell.textContent)")
            install_react(project)
            (project / "page.tsx").write_text(react_page())
            bundle(project, "page.tsx", "--jsx=automatic")
            page = project / "public" / "index.html"
            plain = page.read_text()
            page.write_text(re.sub(r"<p .*</table>", '<div id="root"></div>', plain, flags=re.DOTALL))
            tab.open(f"http://localhost:{port}/")
            until(tab, "document.querySelectorAll('tbody tr').length", lambda rows: rows == MACHINES)
            page.write_text(plain)
            filtered = block("typescript", "### Next steps")
            with_options(project, filtered)
            tab.open(f"http://localhost:{port}/")
            states = "[...document.querySelectorAll('tbody td:last-child')].map((cell) => cell.textContent).join()"
            until(tab, states, lambda shown: set(shown.split(",")) == {"PLAYING"})
            with_options(project, filtered.replace("gamePlay.state =", "gamePlay.nothing ="))
            tab.open(f"http://localhost:{port}/")
            until(tab, "document.querySelector('#problem').textContent")
            until(tab, "document.querySelector('#status').textContent.trim()", lambda status: status == "connected")
            assert tab.run("document.querySelectorAll('tbody tr').length") == 0


def prints_a_value(project: Path, port: int) -> bool:
    """Return True if the guide's program for Node.js prints the value of a machine."""
    program = block("javascript", "`live.mjs`")
    assert program.count("61614") == 1
    (project / "live.mjs").write_text(program.replace("61614", str(port)))
    with subprocess.Popen(["node", "live.mjs"], cwd=project, stdout=subprocess.PIPE, text=True) as live:
        watchdog = threading.Timer(PATIENCE_S, live.kill)  # ends the wait for a line that never comes
        watchdog.start()
        assert live.stdout is not None
        found = any(line.startswith("value X/EGM.Q.10000.EGMStatus") for line in live.stdout)
        live.kill()
        watchdog.cancel()
    return found


def wait_for(port: int) -> None:
    """Wait until something listens on a port of localhost."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("localhost", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
