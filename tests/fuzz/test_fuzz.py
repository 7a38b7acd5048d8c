"""Each target over its corpus and a few thousand mutations of it, the same in each run. `make fuzz` makes long and new ones."""

import random
from pathlib import Path

import pytest

from tests.fuzz.admin_api import run_schemathesis
from tests.fuzz.live import run_live
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import CORPUS, TARGETS, Target, corpus

MUTATIONS = {"broker": 400, "frames": 1500, "globs": 800}
LIVE_ROUNDS = 60
LONG = r"^/(subjects|schemas|compatibility|config|mode)|^/v1/backups"  # what `make api-fuzz` asks too


@pytest.mark.parametrize("of", TARGETS, ids=[target.name for target in TARGETS])
def test_nothing_is_found(of: Target) -> None:
    """No input of the corpus and no mutation of one makes a target raise."""
    inputs = corpus(of)
    for data in inputs:
        of.check(data)
    rng = random.Random(6)  # noqa: S311  # to be repeatable
    for _ in range(MUTATIONS.get(of.name, 2500)):
        of.check(mutated(rng, inputs, of.words))


def test_the_corpus_is_of_targets_and_small() -> None:
    """Each folder of the corpus is a target's; all of it stays small enough to be read and run by everyone."""
    assert {folder.name for folder in CORPUS.iterdir()} <= {target.name for target in TARGETS}
    files = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.slow
def test_a_mutating_client_harms_nobody(tmp_path: Path) -> None:
    """Mutated sessions, TLS records and requests end their own connections only; the log stays clean and the exit graceful."""
    assert f"seed {LIVE_ROUNDS}" in run_live(tmp_path, 60.0, LIVE_ROUNDS, LIVE_ROUNDS)


@pytest.mark.slow
def test_the_admin_api_is_as_it_is_described(tmp_path: Path) -> None:
    """Every route, asked over mutual TLS for what its description allows and for what it does not, answers as described and never breaks."""
    code, said = run_schemathesis(tmp_path, 1, "coverage", 1, LONG)
    assert code == 0, said
