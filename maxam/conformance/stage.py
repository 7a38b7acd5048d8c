"""One case under way: a world, its servers, the drivers, and what a case waits for."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, final

import trio

from maxam.conformance.driver import BrokenPromiseError, Driver, Report
from maxam.conformance.server import Entry, Server, Transport
from maxam.conformance.world import HOST, World

POLL_S: Final = 0.02
_HEART_BEAT_MS: Final = 10_000  # except where heart-beats are judged, as a loaded machine stands still for seconds


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run.

    Attributes:
        command: Starts the driver.
        transport: How the library connects.
        certificates: Folder with those of the server and of the library.
        foreign: The same of an authority that the library does not trust.
        fingerprint: Of the library's certificate.
        heart_beat_ms: Asked of the library where heart-beats are judged.
        timeout_s: Time in which a library must do what it promises.
        quiet_s: Time in which a library must not do what it promised not to do.
        errors: Gets the standard error of drivers; None passes it on.
    """

    command: Sequence[str]
    transport: Transport
    certificates: Path
    foreign: Path
    fingerprint: str
    heart_beat_ms: int
    timeout_s: float
    quiet_s: float
    errors: int | None = None


@final
class Stage:
    """The world of a case, and what it waits for.

    Attributes:
        plan: Of the run.
        random: Of the seed, and of the step under way; a case takes all that it varies from here.
        steps: Numbers of the steps of a seeded case that are played; None plays all.
        played: Number of steps that the case has without `steps`.
        world: The broker.
        server: The first server.
        transcript: All that happened.
    """

    def __init__(
        self, plan: Plan, seed: int, steps: frozenset[int] | None, tasks: trio.Nursery, transcript: list[Entry]
    ) -> None:
        self.plan: Final = plan
        self.random = Random(seed)  # noqa: S311 - to be repeatable
        self._seed: Final = seed
        self.steps: Final = steps
        self.played = 0
        self.world: Final = World(plan.fingerprint)
        self.transcript: Final = transcript
        self._tasks: Final = tasks
        self._clients = 0
        self.server = self._make_server(plan.certificates)

    async def serve(self, *, foreign: bool = False) -> Server:
        """Start a server and return it. A `foreign` one has a certificate of an authority that the library does not trust."""
        folder = self.plan.foreign if foreign else self.plan.certificates
        server = self._make_server(folder)
        await self._tasks.start(server.run)
        return server

    def _make_server(self, folder: Path) -> Server:
        random = Random(self._seed)  # noqa: S311 - of its own, as the pieces of a write depend on the library
        authority = self.plan.certificates / "ca.pem"  # a foreign server accepts the library's certificate too
        return Server(self.world, folder, authority, self.plan.transport, random, self.transcript)

    async def driver(self) -> Driver:
        """Start a driver and wait until it is ready."""
        driver = Driver(self.plan.command, self.plan.certificates / "ca.pem", self.transcript, self.plan.errors)
        driver.wants_ticket = self.world.new_ticket
        await self._tasks.start(driver.run)
        ready = await self.report(driver, "ready")
        driver.claims = frozenset(ready.get("claims", ())) | {f"-{code}" for code in ready.get("except", ())}
        return driver

    async def connect(
        self, server: Server | None = None, *, waits: bool = True, heart_beat_ms: int = _HEART_BEAT_MS
    ) -> Driver:
        """Start a driver and have it connect. With `waits`, wait until the broker has answered CONNECTED."""
        if server is None:
            server = self.server = await self.serve()
        driver = await self.driver()
        await self.have_connect(driver, server, heart_beat_ms)
        if waits:
            await self.until(lambda: server.live is not None, "the library has not connected")
        return driver

    async def have_connect(
        self, driver: Driver, server: Server, heart_beat_ms: int = _HEART_BEAT_MS, *, again: bool = False
    ) -> None:
        """Order a driver to connect. With `again` it has the client-id of the driver before."""
        self._clients += not again
        files = self.plan.certificates
        own = (
            {}
            if self.plan.transport == "wss"
            else {
                "certificate": str(files / "library.pem"),
                "key": str(files / "library.key"),
            }
        )
        await driver.command(
            "connect",
            url=server.url,
            ca=str(files / "ca.pem"),
            host=HOST,
            client_id=f"library-{self._clients}",
            heart_beat_ms=heart_beat_ms,
            **own,
        )

    async def until(self, condition: Callable[[], object], problem: str | Callable[[], str]) -> None:
        """Wait until a condition holds.

        Raises:
            BrokenPromiseError: It did not within `timeout_s`; `problem` is the reason.
        """
        with trio.move_on_after(self.plan.timeout_s):
            while not condition():  # noqa: ASYNC110 - of many kinds, and a run takes seconds
                await trio.sleep(POLL_S)
            return
        text = problem if isinstance(problem, str) else problem()
        raise BrokenPromiseError(f"{text} within {self.plan.timeout_s:g} s")

    async def report(self, driver: Driver, saw: str, **where: object) -> Report:
        """Wait for a report of the driver and return it; see `Driver.seen`."""
        found: list[Report] = []

        def look() -> bool:
            report = driver.seen(saw, **where)
            found.extend([report] if report else [])
            return bool(found)

        about = "".join(f" {name}={value!r}" for name, value in where.items())
        await self.until(look, f"the driver has not reported `{saw}`{about}")
        return found[0]

    async def stays(self, condition: Callable[[], object], problem: str) -> None:
        """Check that a condition holds for `quiet_s`, or raise BrokenPromiseError."""
        until_s = trio.current_time() + self.plan.quiet_s
        while trio.current_time() < until_s:
            if not condition():
                raise BrokenPromiseError(problem)
            await trio.sleep(POLL_S)

    async def reconnected(self, before: int) -> None:
        """Wait until the library is connected by a connection after the first `before`."""
        at = self.server
        await self.until(lambda: at.live is not None and at.live.number > before, "the library has not connected again")

    async def equal(self, driver: Driver, subscription: str) -> None:
        """Wait until the application holds what the broker has."""

        def alike() -> bool:
            driver.check()
            return driver.values.get(subscription, {}) == self.world.values()

        def problem() -> str:
            return f"the application and the broker differ: {difference(driver.values.get(subscription, {}), self.world.values())}"

        await self.until(alike, problem)

    def chosen(self, steps: Sequence[str]) -> Iterator[str]:
        """Yield the steps that are to be played. The effect of a step depends on the seed and its own number alone."""
        self.played = len(steps)
        for at, step in enumerate(steps):
            self.random = Random(f"{self._seed} {at}")  # noqa: S311 - as above
            if self.steps is None or at in self.steps:
                self.transcript.append(Entry(trio.current_time(), 0, "kit", remark=f"step {at}: {step}"))
                yield step


@final
@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of a library.

    Attributes:
        code: Stable name.
        level: The level that includes it.
        text: The promise, for people.
        play: The case that checks it; raises BrokenPromiseError.
        needs: Codes of promises without which it cannot be judged.
        seeded: True if another seed gives another case.
        transports: Those for which it exists.
    """

    code: str
    level: str
    text: str
    play: Callable[[Stage], Awaitable[None]]
    needs: tuple[str, ...] = ("reconnects",)
    seeded: bool = False
    transports: tuple[Transport, ...] = field(default=("tls", "wss"))


def check(condition: object, problem: str) -> None:
    """Raise BrokenPromiseError unless a condition holds."""
    if not condition:
        raise BrokenPromiseError(problem)


def difference(held: dict[str, bytes], wanted: dict[str, bytes]) -> str:
    """Return which topics differ, for people."""
    missing = sorted(wanted.keys() - held.keys())
    gone = sorted(held.keys() - wanted.keys())
    old = sorted(topic for topic in held.keys() & wanted.keys() if held[topic] != wanted[topic])
    parts = (("lacks", missing), ("still has", gone), ("has another value of", old))
    return "; ".join(f"it {verb} {', '.join(topics[:5])}" for verb, topics in parts if topics)
