"""Measure this project: `python -m tests.benchmarks COMMAND` for the source tree, `make bench` and its relatives for the wheel.

Started by its path with PYTHONSAFEPATH, as the Makefile does, this file finds the installed maxam: the tree comes last on the path,
and only for `tests`. Processes of the load get the same path.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # a process of the load loads this file again
    if not __package__:
        sys.path.append(str(Path(__file__).resolve().parents[2]))
    from tests.benchmarks.main import main

    main(prog_name="python -m tests.benchmarks")
