"""Chromium, Firefox and WebKit with one small interface, so that each test of a page runs in all three.

A browser that is given the certificate of a server accepts it, although it does not trust its authority. Chromium accepts that one key, the
others any certificate.
Chromium is driven by Playwright, as for the console. Debian's Firefox and WebKit are driven by the protocols that they speak
themselves: WebDriver BiDi over a WebSocket, and WebDriver over HTTP.
"""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import Page
from wsproto import ConnectionType, WSConnection
from wsproto.events import Message, Request, TextMessage

from tests.console.operator_browser import open_browser, require
from tests.support.patience import PATIENCE_S

MINI_BROWSER: Final = "webkit2gtk-4.1/MiniBrowser"


class Tab(Protocol):
    """A tab of any browser."""

    def open(self, url: str) -> None:
        """Load a page."""

    def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, as JSON holds it."""


def until(tab: Tab, expression: str, wanted: Callable[[Any], bool] = bool) -> Any:
    """Wait until an expression has a wanted value and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(value := tab.run(expression)):
        assert time.monotonic() < deadline, (expression, value)
        time.sleep(0.05)
    return value


class ChromiumTab:
    """A tab of Chromium."""

    def __init__(self, page: Page) -> None:
        """Use a page of Playwright."""
        self.page: Final = page

    def open(self, url: str) -> None:
        """Load a page."""
        self.page.goto(url)

    def run(self, expression: str) -> Any:
        """Return the value of an expression."""
        return self.page.evaluate(f"() => ({expression})")


@contextmanager
def chromium(certificate: Path | None = None) -> Iterator[Tab]:
    """Run Chromium."""
    flags = []
    if certificate is not None:
        key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
        flags.append(f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}")
    with open_browser(*flags) as browser:
        yield ChromiumTab(browser.new_context().new_page())


class FirefoxTab:
    """A tab of Firefox, over WebDriver BiDi."""

    def __init__(self, port: int, accepting: bool) -> None:
        """Connect and begin a session. If `accepting`, any certificate will do."""
        self._socket: Final = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._frames: Final = WSConnection(ConnectionType.CLIENT)
        self._ids: Final = count(1)
        self._text = ""
        self._socket.sendall(self._frames.send(Request(f"127.0.0.1:{port}", "/session")))
        self._read(lambda event: not isinstance(event, Message))
        self._call("session.new", capabilities={"alwaysMatch": {"acceptInsecureCerts": accepting}})
        self._context: Final = self._call("browsingContext.getTree")["contexts"][0]["context"]

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def run(self, expression: str) -> Any:
        """Return the value of an expression."""
        target = {"context": self._context}
        text = f"(async () => JSON.stringify({{value: await ({expression})}}))()"
        found = self._call("script.evaluate", expression=text, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"]).get("value")

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        command = {"id": number, "method": method, "params": parameters}
        self._socket.sendall(self._frames.send(TextMessage(json.dumps(command))))
        answer: Any = {}
        while answer.get("id") != number:
            answer = json.loads(self._read(lambda event: isinstance(event, TextMessage) and event.message_finished))
        assert answer["type"] == "success", answer
        return answer["result"]

    def _read(self, last: Callable[[Any], bool]) -> str:
        """Read up to an event and return the text up to there."""
        while True:
            for event in self._frames.events():
                if isinstance(event, TextMessage):
                    self._text += event.data
                if last(event):
                    text, self._text = self._text, ""
                    return text
            data = self._socket.recv(65_536)
            assert data, "Firefox closed the connection"
            self._frames.receive_data(data)


@contextmanager
def firefox(certificate: Path | None = None) -> Iterator[Tab]:
    """Run Firefox without a screen, with a profile of its own."""
    program = require(next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None), "firefox")
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless",
            "--no-remote",
            "--profile",
            profile,
            "--remote-debugging-port",
            "0",
            "about:blank",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            lines = (re.search(r"BiDi listening on ws://127\.0\.0\.1:(\d+)", line) for line in process.stderr)
            tab = FirefoxTab(int(next(filter(None, lines))[1]), certificate is not None)
            try:
                yield tab
            finally:
                tab.close()
        finally:
            _end(process)


class WebKitTab:
    """A tab of WebKitGTK, over WebDriver."""

    def __init__(self, port: int, browser: str, accepting: bool) -> None:
        """Begin a session. If `accepting`, any certificate will do."""
        self._port: Final = port
        options = {"binary": browser, "args": ["--automation"]}
        wanted = {"webkitgtk:browserOptions": options, "acceptInsecureCerts": accepting}
        self._session: Final = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("POST", f"/{self._session}/url", {"url": url})

    def run(self, expression: str) -> Any:
        """Return the value of an expression."""
        script = f"const done = arguments[0]; Promise.resolve({expression}).then(done)"
        return self._call("POST", f"/{self._session}/execute/async", {"script": script, "args": []})

    def close(self) -> None:
        """End the session, and the browser with it."""
        self._call("DELETE", f"/{self._session}")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, f"/session{path}", None if body is None else json.dumps(body))
            answer = json.load(connection.getresponse())["value"]
        finally:
            connection.close()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer


@contextmanager
def webkit(certificate: Path | None = None) -> Iterator[Tab]:
    """Run WebKitGTK's small browser on a virtual screen."""
    program = require(shutil.which("WebKitWebDriver"), "webkit2gtk-driver")
    screen = require(shutil.which("Xvfb"), "xvfb")
    browser = next(
        (str(path) for folder in ("lib", "libexec") for path in Path("/usr", folder).glob(f"*/{MINI_BROWSER}")), None
    )
    require(browser, MINI_BROWSER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    show = [screen, "-displayfd", "1", "-screen", "0", "1280x900x24", "-nolisten", "tcp"]
    x = subprocess.Popen(show, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert x.stdout is not None
        # Without a graphics card, and as root, which WebKit's sandbox does not support.
        settings = {"DISPLAY": f":{x.stdout.readline().strip()}", "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1"}
        settings |= {"LIBGL_ALWAYS_SOFTWARE": "1", "WEBKIT_DISABLE_DMABUF_RENDERER": "1"}
        driver = subprocess.Popen(
            [program, f"--port={port}"], env={**os.environ, **settings}, stderr=subprocess.DEVNULL
        )
        try:
            _await_port(port)
            tab = WebKitTab(port, str(browser), certificate is not None)
            try:
                yield tab
            finally:
                tab.close()
        finally:
            _end(driver)
    finally:
        _end(x)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


BROWSERS: Final[dict[str, Callable[..., AbstractContextManager[Tab]]]] = {
    "chromium": chromium,
    "firefox": firefox,
    "webkit": webkit,
}
