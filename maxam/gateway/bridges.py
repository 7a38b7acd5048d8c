"""The bridges that the gateway runs, each as a process `maxam-bridge` of its own: `[bridge] configs`.

A bridge writes its log to the gateway's standard error. One that ends is started again after a delay, which doubles with each failure.
If another bridge has taken its place, it is not started again: the two would take the place from each other for ever.
"""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

import trio

from maxam.compiled import child_environment
from maxam.exit_codes import ExitCode
from maxam.gateway.log import log_event

RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 60.0
STEADY_S: Final = 300.0  # after a bridge has run for this long, the delay begins again at its minimum


@final
class Bridges:
    """Runs the bridges of one gateway.

    Attributes:
        down: The reason why a bridge does not run, by the path of its configuration.
        running: Process ids of those that run, by the path of the configuration.
    """

    def __init__(self, configs: Sequence[Path]) -> None:
        """Make one that runs nothing yet."""
        self.down: Final[dict[Path, str]] = {}
        self.running: Final[dict[Path, int]] = {}
        self._configs: Final = tuple(configs)

    @property
    def count(self) -> int:
        """Number of bridges that are configured."""
        return len(self._configs)

    async def run(self) -> None:
        """Run all bridges until cancelled, and end them with it."""
        async with trio.open_nursery() as nursery:
            for config in self._configs:
                nursery.start_soon(self._keep, config)

    def degraded(self) -> list[str]:
        """Return a line for each bridge that does not run."""
        return [f"bridge-down: {config}: {reason}" for config, reason in self.down.items()]

    async def _keep(self, config: Path) -> None:
        delay_s = RESTART_S_MIN
        while True:
            began_s = trio.current_time()
            reason, again = await self._run_once(config)
            if trio.current_time() - began_s > STEADY_S:
                delay_s = RESTART_S_MIN
            self.down[config] = reason
            restart_s = delay_s if again else None
            action = None if again else "end the other bridge, then restart the gateway"
            log_event(logging.ERROR, "bridge-ended", config=config, error=reason, restart_s=restart_s, action=action)
            if not again:
                return
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_S_MAX)

    async def _run_once(self, config: Path) -> tuple[str, bool]:
        """Run a bridge to its end. Return the reason for the end, and whether to start it again."""
        problem, code = "", 0
        command = [sys.executable, "-m", "maxam.bridge", "--config", str(config)]
        try:
            async with trio.open_nursery() as nursery:
                process = await nursery.start(partial(trio.run_process, check=False, env=child_environment()), command)
                self.running[config] = process.pid
                self.down.pop(config, None)
                code = await process.wait()
        except* OSError as group:
            problem = f"no process can be started: {group.exceptions[0]}"
        finally:
            self.running.pop(config, None)
        return problem or f"its process ended with {code}; see its log", code != ExitCode.REPLACED
