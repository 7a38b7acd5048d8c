"""Pictures of the console, and of `maxam-admin top`, in front of the demo, for the documents."""

import datetime as dt
import fcntl
import io
import os
import pty
import re
import string
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page, expect
from rich.console import Console
from rich.text import Text

from maxam.pki.certificates import issue_development_certificates
from tests.console.operator_browser import ROWS, open_browser, operator
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_client import RawClient

ROOT: Final = Path(__file__).parents[2]
SETTLED_MS: Final = 15_000  # of traffic, so that charts and sparklines show something
_LOOK_MS: Final = 7_000
_TERMINAL: Final = (32, 124)  # lines and columns of `top`
_FRAME: Final = "\x1b[H"  # each begins at the upper left
_OTHER_CODES: Final = re.compile(r"\x1b\[[?0-9;]*[A-Za-ln-z]")  # what is neither text nor colour
_FONT_FACES: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # from elsewhere; what the reader has does as well


@dataclass(frozen=True)
class Picture:
    """One picture: where it is taken, and what is done before."""

    name: str
    view: str
    act: Callable[[Page], None] = lambda _page: None
    colours: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 800


def _open_topic(page: Page) -> None:
    page.locator(ROWS).nth(3).click()
    expect(page.locator(".panel .json")).to_be_visible()


def _open_reject(page: Page) -> None:
    page.locator("tbody button.open").first.click()
    expect(page.locator(".panel .hexdump").first).to_be_visible()


PICTURES: Final = (
    Picture("console-overview", "overview", height=1010),
    Picture("console-topics", "topics?glob=X/EGM.*.EGMStatus", height=660),
    Picture("console-topic-dark", "topics?glob=X/EGM.*.EGMStatus", _open_topic, "dark", height=700),
    Picture("console-slow", "slow", height=420),
    Picture("console-reject", "rejects", _open_reject),
    Picture("console-schema-diff", "schemas?type=egm.EGMMeterReading_v1"),
    Picture("console-narrow", "topics", width=360, height=740),
    Picture("console-narrow-overview", "overview", colours="dark", width=360, height=740),
)


def take_pictures(folder: Path) -> None:
    """Play the demo against a gateway of its own, and write each picture as a PNG; the demo runs meanwhile."""
    with tempfile.TemporaryDirectory() as name, _venue(Path(name)) as gateway, open_browser() as browser:
        origin = f"https://localhost:{gateway.admin_port}"
        with operator(browser, origin, gateway.certificates) as tab:
            tab.open().wait_for_timeout(SETTLED_MS)
        (folder / "top.svg").write_text(_picture_of_top(gateway), encoding="utf-8")
        for picture in PICTURES:
            with operator(
                browser,
                origin,
                gateway.certificates,
                width=picture.width,
                height=picture.height,
                colours=picture.colours,
                scale=2 if picture.width < 500 else 1,
            ) as tab:
                page = tab.open(picture.view)
                page.wait_for_timeout(_LOOK_MS)
                picture.act(page)
                page.screenshot(path=folder / f"{picture.name}.png")


def _picture_of_top(gateway: GatewayProcess) -> str:
    """Run `maxam-admin top` on a terminal, and draw what it showed last."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_TERMINAL, 0, 0))
    folder = gateway.certificates
    variables = {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "MAXAM_GATEWAY": f"localhost:{gateway.admin_port}",
        "MAXAM_CERTIFICATE": str(folder / "operator.pem"),
        "MAXAM_KEY": str(folder / "operator.key"),
        "MAXAM_CA": str(folder / "ca.pem"),
    }
    command = [sys.executable, "-c", "from maxam.cli.main import main; main(prog_name='maxam-admin')"]
    with subprocess.Popen(
        [*command, "top", "--count", "3"], cwd=ROOT, env=os.environ | variables, stdin=theirs, stdout=theirs
    ) as process:
        os.close(theirs)
        written = b""
        while data := _read(ours):
            written += data
    os.close(ours)
    assert process.returncode == 0
    last = written.decode().split(_FRAME)[-1].partition("\x1b[?1049l")[0]
    lines, columns = _TERMINAL
    drawing = Console(record=True, width=columns, height=lines, file=io.StringIO(), force_terminal=True)
    drawing.print(Text.from_ansi(_OTHER_CODES.sub("", last).replace("\r", "")), soft_wrap=True)
    return _FONT_FACES.sub("", drawing.export_svg(title="maxam-admin top")).replace("Fira Code", "DejaVu Sans Mono")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux reports it when the other end has closed
        return b""


@contextmanager
def _venue(folder: Path) -> Iterator[GatewayProcess]:
    certificates = folder / "certificates"
    fingerprints = issue_development_certificates(certificates, dt.datetime.now(dt.UTC))
    template = string.Template((ROOT / "certs-dev" / "policy-dev.template.toml").read_text(encoding="utf-8"))
    with GatewayProcess(folder, certificates, template.substitute(fingerprints), ROOT / "schemas") as gateway:
        command = [sys.executable, "-m", "maxam.demo", "--gateway", f"127.0.0.1:{gateway.port}"]
        command += ["--certificates", str(certificates), "--machines", "300", "--rate", "2", "--slow-ms", "200"]
        with (
            RawClient(gateway, "publisher") as faulty,
            RawClient(gateway, "subscriber", client_id="cashier-desk-3") as stuck,
        ):
            playing = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                stuck.write("SUBSCRIBE", {"id": "floor", "destination": "X/EGM.*.EGMStatus", "ack": "client"})
                for body in (b"\xc3\x01" + bytes(8), b"\x02\x0eVENUE-7\x08SC-1\x0c"):
                    length = str(len(body))
                    headers = {"destination": "X/EGM.Q.10042.EGMMeterReading", "content-length": length, "receipt": "1"}
                    faulty.write("SEND", headers, body)
                    faulty.read()
                yield gateway
            finally:
                playing.terminate()
                playing.wait()
