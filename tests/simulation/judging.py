"""The checks that the tests of each simulation make: mutants are noticed, one seed repeats, and the command runs it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from unittest.mock import patch

import pytest

from maxam.compiled import MODULES, core
from tests.simulation.__main__ import main
from tests.simulation.mutants import Mutant


def each_of(mutants: Iterable[Mutant]) -> pytest.MarkDecorator:
    """Run a test for each mutant that changes byte code. Of a module that is machine code there is none.

    Where both cores are tested, the interpreted run has only those that the compiled one cannot have.
    """
    found = [mutant for mutant in mutants if not mutant.compiled]
    if "BOTH_CORES" in os.environ and core() == "interpreted":
        found = [mutant for mutant in found if mutant.module.__name__ in MODULES]
    return pytest.mark.parametrize("mutant", found, ids=lambda mutant: mutant.name)


def require_noticed(mutant: Mutant, simulate: Callable[[int], object], seeds: int) -> None:
    """Fail if this many seeds go well with a mutant, from its first one on."""
    with mutant.applied():
        noticed = any(_fails(simulate, seed) for seed in range(mutant.first, mutant.first + seeds))
        assert noticed, f"the simulation does not notice: {mutant.name}"


def _fails(simulate: Callable[[int], object], seed: int) -> bool:
    try:
        simulate(seed)
    except Exception:  # noqa: BLE001  # a Violation, or the code under test itself stumbles
        return True
    return False


def outputs_of(code: str) -> set[bytes]:
    """Return what a program prints with two different hashes of strings."""
    command = [sys.executable, "-c", code]
    return {
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }


def require_kind(kind: str, seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Fail if the command does not run seeds of a kind."""
    with patch.object(sys, "argv", ["simulation", "--kinds", kind, "--seeds", str(seeds), "--jobs", "1"]):
        assert main() == 0
    assert capsys.readouterr().out.startswith(f"{seeds} seeds, ")
