"""Measure this project: `python -m tests.benchmarks COMMAND` for the source tree, `make bench` and its relatives for the wheel.

The Makefile starts this file by its path with PYTHONSAFEPATH. Then the file finds the installed maxam, because the tree comes last on
the path, and only for `tests`. Processes of the load get the same path.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # a process of the load loads this file again
    if not __package__:
        sys.path.append(str(Path(__file__).resolve().parents[2]))
    from tests.benchmarks.main import main

    main(prog_name="python -m tests.benchmarks")
