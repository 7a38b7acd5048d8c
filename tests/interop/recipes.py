"""The recipes of docs/integrate/recipes as processes, and a line that tests can silence and cut."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

from tests.interop.third_party import PROGRAMS
from tests.support.patience import PATIENCE_S

BUILD: Final = Path(__file__).parents[2] / "deploy" / "build-recipes"
FOLDER: Final = Path(__file__).parents[2] / "docs" / "integrate" / "recipes"


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
        command: Starts its program.
        probe: A command that ends with 0 where its library is installed.
        admin: It connects over WebSocket to the admin listener.
        rejections_end: A rejected SEND costs it the connection.
        since: It continues by `since` if it has a file for its position.
    """

    command: tuple[str, ...]
    probe: tuple[str, ...]
    admin: bool = False
    rejections_end: bool = False
    since: bool = False


def _node(folder: str) -> tuple[str, ...]:
    """Return the command of a program for Node.js that finds the packages of tests/interop/clients."""
    return ("node", "--import", str(PROGRAMS / "packages.mjs"), str(FOLDER / folder / "recipe.mjs"))


def _built(name: str) -> str:
    """Return the path of a program that deploy/build-recipes builds."""
    done = subprocess.run([BUILD, "--check"], capture_output=True, text=True, check=False)  # 1: one is missing
    return f"{done.stdout.strip()}/{name}"


_JARS: Final = BUILD.with_name("fetch-jars")
_HAS_SPRING: Final = ("sh", "-c", f"javac --version && {_JARS} --check")


def _spring(folder: str) -> tuple[str, ...]:
    """Return the command of a program that uses Spring, which Java compiles at each start."""
    done = subprocess.run([_JARS, "--check"], capture_output=True, text=True, check=False)
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{done.stdout.strip()}/*")
    return ("java", *options, str(FOLDER / folder / "Recipe.java"))


RECIPES: Final = {
    "python": Recipe(
        (sys.executable, str(FOLDER / "python" / "recipe.py")), (sys.executable, "-c", "import stomp"), since=True
    ),
    "stompjs": Recipe(_node("stompjs"), ("node", str(PROGRAMS / "stompjs.mjs"), "--probe"), since=True),
    "rx-stomp": Recipe(_node("rx-stomp"), ("node", str(PROGRAMS / "rx_stomp.mjs"), "--probe"), admin=True, since=True),
    "spring": Recipe(_spring("spring"), _HAS_SPRING),
    "spring-websocket": Recipe(_spring("spring-websocket"), _HAS_SPRING, admin=True),
    "go-stomp": Recipe((_built("go-stomp"),), ("test", "-x", _built("go-stomp")), rejections_end=True, since=True),
    "dotnet": Recipe((_built("dotnet"),), ("test", "-x", _built("dotnet")), since=True),
    "rust": Recipe((_built("rust"),), ("test", "-x", _built("rust"))),
}


class RecipeProcess:
    """A recipe that runs. A context manager: leaving ends its process.

    Attributes:
        lines: Its output so far.
        seen: Number of these lines up to the one that was expected last.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start it.

        Args:
            command: The program with its arguments.
        """
        self._changed: Final = threading.Condition()
        self.lines: Final[list[str]] = []
        self.seen = 0
        self._ended = False
        self._process: Final = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        assert self._process.stdout is not None
        self._reader: Final = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def publish(self, destination: str, body: str) -> None:
        """Let it publish a value."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{destination} {body}\n")

    def expect(self, *words: str) -> str:
        """Wait for a line that begins with these words, after the one that was expected last, and return its rest."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while True:
                for index in range(self.seen, len(self.lines)):
                    if self.lines[index].split(" ")[: len(words)] == list(words):
                        self.seen = index + 1
                        return " ".join(self.lines[index].split(" ")[len(words) :]).strip()
                if self._ended or time.monotonic() > deadline:
                    raise AssertionError(f"no line {words} in {self.lines}")
                self._changed.wait(1)

    def close_input(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return self._process.wait(PATIENCE_S)

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
