"""The promises of every library: connections, heart-beats, pauses and refusals."""

from itertools import pairwise
from typing import Final

import trio

from maxam.conformance.server import Server
from maxam.conformance.stage import POLL_S, Promise, Stage, check

_LIBRARIES: Final = 6  # clients that lose their connections together
_ATTEMPTS: Final = 4  # of each
_SPREAD: Final = 0.5  # the least pause is below this part of the greatest
_PAUSE_S_MIN: Final = 0.05  # mean of all pauses
_LATE: Final = 3.5  # heart-beat intervals


async def reconnects(stage: Stage) -> None:
    """Lose connections in several ways, also in the middle of CONNECTED."""
    await stage.connect()
    server = stage.server
    losses = ["cut", "stop", "cut in CONNECTED"]
    stage.random.shuffle(losses)
    for loss in losses:
        before = len(server.connections)
        if loss == "stop":
            server.restart(graceful=True)
        else:
            if loss != "cut":
                server.faults.cut_after = stage.random.randint(1, 60)
            server.cut()
        await stage.reconnected(before)


async def pauses(stage: Stage) -> None:
    """Lose several clients at once, refuse them for a while, and compare their pauses."""
    servers = [await stage.serve() for _ in range(_LIBRARIES)]
    async with trio.open_nursery() as tasks:
        for server in servers:
            tasks.start_soon(stage.connect, server)
    for server in servers:
        server.faults.refusing = True
        server.cut("the broker is gone")
    for server in servers:
        await stage.until(
            lambda server=server: len(_pauses(server)) >= _ATTEMPTS,  # type: ignore[misc]  # bound by its default
            lambda server=server: f"a library made {len(_pauses(server))} of {_ATTEMPTS} attempts",  # type: ignore[misc]
        )
    rows = [_pauses(server)[:_ATTEMPTS] for server in servers]
    mean_s = sum(map(sum, rows)) / (_LIBRARIES * _ATTEMPTS)
    check(mean_s >= _PAUSE_S_MIN, f"the mean pause before an attempt is {mean_s * 1000:.0f} ms: the broker is flooded")
    spreads = [min(row) / max(row) for row in zip(*rows, strict=True)][-2:]
    texts = [", ".join(f"{pause_s:.2f}" for pause_s in row) for row in list(zip(*rows, strict=True))[-2:]]
    check(
        min(spreads) < _SPREAD,
        f"{_LIBRARIES} clients of one broker waited nearly the same time before an attempt, in seconds: {' / '.join(texts)}",
    )


def _pauses(server: Server) -> list[float]:
    """Return the time from the end of each connection to the next one, from the loss on."""
    ends = [one for one in server.connections if one.ended_at_s is not None]
    pairs = list(pairwise([*ends, *[one for one in server.connections if one.ended_at_s is None]]))
    return [later.accepted_at_s - (earlier.ended_at_s or 0) for earlier, later in pairs]


async def final_refusal(stage: Stage) -> None:
    """Refuse the next CONNECT as every one after it would be."""
    driver = await stage.connect()
    stage.world.move()
    stage.server.cut()
    await stage.report(driver, "closed")
    await _comes_not_back(stage, "connected again after ERROR `unknown host`")


async def takeover(stage: Stage) -> None:
    """Connect with the same client-id, as a second instance of the program does."""
    driver = await stage.connect()
    live = stage.server.live
    assert live is not None  # noqa: S101 - just connected
    stage.world.take_over(live.client_id)
    live.wake()
    await stage.report(driver, "closed")
    await _comes_not_back(stage, "took the session back from the newer connection")


async def _comes_not_back(stage: Stage, problem: str) -> None:
    count = len(stage.server.connections)
    await stage.stays(lambda: len(stage.server.connections) == count, f"the library {problem}")


async def heart_beats_sent(stage: Stage) -> None:
    """Let a connection be idle, and listen."""
    await stage.connect(heart_beat_ms=stage.plan.heart_beat_ms)
    live = stage.server.live
    assert live is not None  # noqa: S101 - just connected
    can_ms = live.heart_beat_ms[0]
    if not can_ms:
        check(stage.plan.transport == "wss", "CONNECT offers no heart-beats of the client")
        return
    interval_s = max(can_ms, 1000) / 1000
    began_s = trio.current_time()
    while live.ended_at_s is None and trio.current_time() < began_s + 2.5 * interval_s:  # noqa: ASYNC110
        await trio.sleep(POLL_S)
    check(live.ended_at_s is None, f"the library was silent for twice the {interval_s:g} s that it agreed to")
    check(
        sum(at_s > began_s for at_s in live.heard) >= 2,
        f"less than 2 heart-beats came in 2.5 intervals of {interval_s:g} s",
    )


async def heart_beats_missed(stage: Stage) -> None:
    """Freeze the server: the connection stays, and nothing comes."""
    await stage.connect(heart_beat_ms=stage.plan.heart_beat_ms)
    live = stage.server.live
    assert live is not None  # noqa: S101 - just connected
    wants_ms = live.heart_beat_ms[1]
    check(wants_ms, "CONNECT asks for no heart-beats of the server")
    interval_s = max(wants_ms, 1000) / 1000
    live.frozen = True
    began_s = trio.current_time()
    count = len(stage.server.connections)
    while len(stage.server.connections) == count:
        late = (trio.current_time() - began_s) / interval_s
        check(
            late < _LATE + stage.plan.timeout_s / interval_s,
            f"the library has not left a server that was silent for {late:.1f} heart-beats of {interval_s:g} s",
        )
        await trio.sleep(POLL_S)
    late = (trio.current_time() - began_s) / interval_s
    check(late > 0.9, f"the library left a server that was silent for {late:.1f} heart-beats only")
    await stage.reconnected(count)


async def server_trusted(stage: Stage) -> None:
    """Show the certificate of another authority."""
    stage.server = await stage.serve(foreign=True)
    await stage.connect(stage.server, waits=False)
    await stage.until(
        lambda: any(one.ended_at_s for one in stage.server.connections), "the library has not ended the connection"
    )
    await stage.stays(
        lambda: not any(one.heard for one in stage.server.connections),
        "the library sent data to a server whose certificate it must not trust",
    )


PROMISES: Final = (
    Promise("reconnects", "connection", "A lost connection is made again.", reconnects, needs=(), seeded=True),
    Promise(
        "server-trusted", "connection", "Only a server of the given authority gets data.", server_trusted, needs=()
    ),
    Promise("pauses-differ", "connection", "The pause before each attempt is random (full jitter).", pauses),
    Promise("refusal-final", "connection", "A final refusal of CONNECT is reported and not repeated.", final_refusal),
    Promise("takeover-final", "connection", "A session that a newer connection took is left to it.", takeover),
    Promise("heart-beats-sent", "connection", "Heart-beats are sent as agreed.", heart_beats_sent, needs=()),
    Promise("heart-beats-missed", "connection", "A server without heart-beats counts as lost.", heart_beats_missed),
)
