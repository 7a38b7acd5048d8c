"""Running cases: each in a world of its own, several at a time, and none before those that it needs."""

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, final

import trio

from maxam.conformance import connecting, publishing, resuming, subscribing
from maxam.conformance.driver import BrokenPromiseError
from maxam.conformance.server import Entry, Transport
from maxam.conformance.stage import Plan, Promise, Stage
from maxam.errors import first_error
from maxam.pki.certificates import issue_development_certificates

PROMISES: Final = {
    one.code: one for one in (*connecting.PROMISES, *publishing.PROMISES, *subscribing.PROMISES, *resuming.PROMISES)
}
_CLIENT: Final = "library"
Outcome = Literal["pass", "fail", "not-claimed", "blocked"]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict about one promise.

    Attributes:
        code: Of the promise.
        level: Of the promise.
        verdict: `blocked` if a promise that it needs failed.
        seed: Of the case that failed, or of the first one.
        steps: Numbers of the steps that are enough for the failure. None for all.
        reason: Why it failed or was blocked. Empty otherwise.
    """

    code: str
    level: str
    verdict: Outcome
    seed: int
    steps: tuple[int, ...] | None = None
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """Return its fields for JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class Case:
    """The result of one case.

    Attributes:
        reason: Why the promise was broken; empty if it was kept.
        played: Number of steps of a seeded case.
        transcript: All that happened.
    """

    reason: str
    played: int
    transcript: list[Entry]


def make_plan(
    folder: Path,
    command: Sequence[str],
    transport: Transport,
    heart_beat_ms: int,
    timeout_s: float,
    quiet_s: float,
    errors: int | None,
) -> Plan:
    """Make certificates in a folder, and return the plan of a run; see `Plan`."""
    now = dt.datetime.now(dt.UTC)
    fingerprints = issue_development_certificates(folder / "known", now, [_CLIENT])
    issue_development_certificates(folder / "foreign", now, [_CLIENT])
    known, foreign = folder / "known", folder / "foreign"
    return Plan(command, transport, known, foreign, fingerprints[_CLIENT], heart_beat_ms, timeout_s, quiet_s, errors)


async def claims_of(plan: Plan) -> frozenset[str]:
    """Start the driver once, and return the codes of the promises that it claims; raises BrokenPromiseError."""
    claims: frozenset[str] = frozenset()

    async def ask(stage: Stage) -> None:
        nonlocal claims
        claims = (await stage.driver()).claims

    case = await play(plan, Promise("ready", "connection", "", ask), 0)
    if case.reason:
        raise BrokenPromiseError(case.reason)
    levels = claims | {"connection"}
    return frozenset(one.code for one in PROMISES.values() if one.level in levels and f"-{one.code}" not in levels)


async def play(plan: Plan, promise: Promise, seed: int, steps: Collection[int] | None = None) -> Case:
    """Play the case of a promise once."""
    transcript: list[Entry] = []
    reason = ""
    played = 0
    async with trio.open_nursery() as tasks:
        chosen = None if steps is None else frozenset(steps)
        stage = Stage(plan, seed, chosen, tasks, transcript)
        try:
            await promise.play(stage)
        except* BrokenPromiseError as errors:
            reason = str(first_error(errors))
        played = stage.played
        tasks.cancel_scope.cancel()
    return Case(reason, played, transcript)


async def shrink(plan: Plan, promise: Promise, seed: int, case: Case) -> tuple[tuple[int, ...], Case]:
    """Leave out steps of a case that failed, one by one, as long as it fails. Return the rest and the case with them."""
    kept = list(range(case.played))
    for step in list(kept):
        fewer = [one for one in kept if one != step]
        tried = await play(plan, promise, seed, fewer)
        if tried.reason:
            kept, case = fewer, tried
    return tuple(kept), case


@final
class Run:
    """A run over all promises.

    Attributes:
        verdicts: Those so far, by code.
        transcripts: Of the cases that failed, by code.
    """

    def __init__(
        self,
        plan: Plan,
        only: Sequence[str],
        seed: int,
        runs: int,
        steps: Sequence[int] | None,
        shrinks: bool,
        jobs: int,
    ) -> None:
        """Make it.

        Args:
            plan: Of the run.
            only: Codes of the promises that are judged; empty for all.
            seed: Of the first case of each promise.
            runs: Cases of each seeded promise, with seeds in sequence.
            steps: Of seeded cases; None for all.
            shrinks: Leave out steps of a seeded case that failed.
            jobs: Cases at the same time.
        """
        self.verdicts: Final[dict[str, Verdict]] = {}
        self.transcripts: Final[dict[str, list[Entry]]] = {}
        self._plan: Final = plan
        self._only: Final = only
        self._seed: Final = seed
        self._runs: Final = runs
        self._steps: Final = steps
        self._shrinks: Final = shrinks
        self._jobs: Final = trio.CapacityLimiter(jobs)
        self._done: Final = {code: trio.Event() for code in PROMISES}

    async def judge(self) -> list[Verdict]:
        """Judge all promises and return the verdicts in the order of the table; raises BrokenPromiseError if the driver is not ready."""
        claims = await claims_of(self._plan)
        wanted = [one for one in PROMISES.values() if not self._only or one.code in self._only]
        async with trio.open_nursery() as tasks:
            for promise in PROMISES.values():
                if promise in wanted:
                    tasks.start_soon(self._judge, promise, promise.code in claims)
                else:
                    self._done[promise.code].set()
        return [self.verdicts[one.code] for one in wanted]

    async def _judge(self, promise: Promise, claimed: bool) -> None:
        for code in promise.needs:
            await self._done[code].wait()
        failed = [code for code in promise.needs if self._blocks(code)]
        if not claimed:
            verdict = Verdict(promise.code, promise.level, "not-claimed", self._seed)
        elif failed:
            reason = f"it needs {', '.join(failed)}"
            verdict = Verdict(promise.code, promise.level, "blocked", self._seed, reason=reason)
        else:
            async with self._jobs:
                verdict = await self._try(promise)
        self.verdicts[promise.code] = verdict
        self._done[promise.code].set()

    def _blocks(self, code: str) -> bool:
        verdict = self.verdicts.get(code)
        return verdict is not None and verdict.verdict in ("fail", "blocked")

    async def _try(self, promise: Promise) -> Verdict:
        for seed in range(self._seed, self._seed + (self._runs if promise.seeded else 1)):
            case = await play(self._plan, promise, seed, self._steps)
            if case.reason:
                steps = None if self._steps is None else tuple(self._steps)
                if self._shrinks and case.played:
                    steps, case = await shrink(self._plan, promise, seed, case)
                self.transcripts[promise.code] = case.transcript
                return Verdict(promise.code, promise.level, "fail", seed, steps, case.reason)
        return Verdict(promise.code, promise.level, "pass", self._seed)
