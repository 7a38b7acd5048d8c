"""A process that brings a history table up to date and kills itself, as by `kill -9`, at a point that the caller names."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from maxam.pipeline.history.command import Form, update_history


def kill() -> None:
    """End without a trace."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_when(point: str, out: Path) -> None:
    """Arrange the end.

    Args:
        point: `splicing` while a worker writes the first file. `writing` when some files are there. `listing` when all is written but
            the commit's list. `moving` when half the files are in their places. `stating` when all are, but the state is not
            written. `logging` when one type has its Delta log and another one has not. `forgetting` when only the list is still there.
        out: The table.
    """
    if point in {"splicing", "writing"}:
        wanted = {"splicing": 1, "writing": 4}[point]

        def watch() -> None:
            while len(list((out / "_maxam" / "work").glob("*/*/*.parquet"))) < wanted:
                time.sleep(0.001)
            kill()

        threading.Thread(target=watch, daemon=True).start()
        point = "listing"  # at the latest, where the watch is too slow
    moved = [0]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename":
            target = str(arguments[1])
            moved[0] += target.endswith(".parquet")
            end = {"listing": "commit.json", "moving": ".parquet", "stating": "state.json"}.get(point, "?")
            if target.endswith(end) and (point != "moving" or moved[0] == 3):
                kill()
        elif event == "open" and point == "logging" and "_delta_log" in str(arguments[0]):
            kill()  # to sync what was written
        elif event == "os.remove" and point == "forgetting" and str(arguments[0]).endswith("commit.json"):
            kill()

    sys.addaudithook(hook)


def main() -> None:
    """Run."""
    journal, out, point = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    kill_when(point, out)
    form: Form = "delta" if sys.argv[5] == "delta" else "parquet"
    update_history(None, journal, out, round_bytes=int(sys.argv[4]), form=form)


if __name__ == "__main__":
    main()
