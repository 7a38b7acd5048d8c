"""Fuzz for a while: `python -m tests.fuzz --minutes 10`, or `make fuzz MINUTES=10`.

Every target gets its share of the time, in a process of its own under atheris. That is led by the branches that an input reaches. Without
atheris, a target gets the mutations that CI makes too, from a new seed. A live gateway gets a share too (`tests.fuzz.live`). Each finding
is written to `fuzz-findings/` and printed, and the exit code is 1. Make it a regression test, or put it into
`tests/fuzz/corpus/TARGET/`, which CI runs.
"""

import argparse
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.live import run_live
from tests.fuzz.mutation import BYTES_MAX, mutated
from tests.fuzz.targets import CORPUS, TARGETS, Target, corpus, target

FINDINGS = Path("fuzz-findings")
_KEPT_FILES_MAX = 25  # of a target's corpus: each is run by CI, twice
_KEPT_BYTES_MAX = 800
_WORD_BYTES_MAX = 60  # libFuzzer takes no longer ones in a dictionary
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


def fuzz_guided(of: Target, seconds: float, keep: bool) -> tuple[int, str, bool]:
    """Run a target under atheris; return executions, what it reached, and whether all was well."""
    with tempfile.TemporaryDirectory() as scratch:
        found, seeds, dictionary = Path(scratch) / "found", Path(scratch) / "seeds", Path(scratch) / "words"
        found.mkdir()
        seeds.mkdir()
        for number, data in enumerate(corpus(of)):
            (seeds / f"{number:04}").write_bytes(data)
        words = [word for word in dict.fromkeys(of.words) if 0 < len(word) <= _WORD_BYTES_MAX]
        dictionary.write_text("".join('"{}"\n'.format("".join(f"\\x{byte:02x}" for byte in word)) for word in words))
        FINDINGS.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "tests.fuzz.guided", of.name, str(found), str(seeds)),
            *(f"-max_total_time={seconds:.0f}", f"-max_len={BYTES_MAX}", "-timeout=20", "-rss_limit_mb=2048"),
            *("-print_final_stats=1", f"-dict={dictionary}", f"-artifact_prefix={FINDINGS}/{of.name}-"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        executions = _EXECUTIONS.search(done.stderr)
        reached = _COVERAGE.findall(done.stderr)
        if done.returncode:
            sys.stdout.write(done.stdout[-4000:] + done.stderr[-4000:])
        elif keep:
            _keep(of, found)
        covered = f"{reached[-1][0]} branches, {reached[-1][1]} features" if reached else ""
        return int(executions[1]) if executions else 0, covered, done.returncode == 0


def _keep(of: Target, found: Path) -> None:
    """Put some of the small inputs that reached something new into the corpus that is committed."""
    folder = CORPUS / of.name
    folder.mkdir(parents=True, exist_ok=True)
    small = sorted((file for file in found.iterdir() if file.stat().st_size <= _KEPT_BYTES_MAX), key=_size)
    for file in small[:: max(1, len(small) // _KEPT_FILES_MAX)][:_KEPT_FILES_MAX]:
        shutil.copy(file, folder / file.name[:12])


def _size(file: Path) -> tuple[int, str]:
    return file.stat().st_size, file.name


def fuzz_plain(of: Target, seconds: float, seed: int) -> tuple[int, str, bool]:
    """Mutate blindly; return executions, the seed, and whether all was well."""
    rng = random.Random(seed)  # noqa: S311  # to be repeatable
    inputs = corpus(of)
    until_s = time.monotonic() + seconds
    executions = 0
    good = True
    while time.monotonic() < until_s and good:
        data = mutated(rng, inputs, of.words)
        executions += 1
        try:
            of.check(data)
        except Exception:  # noqa: BLE001  # any is a finding
            traceback.print_exc()
            FINDINGS.mkdir(exist_ok=True)
            (FINDINGS / f"{of.name}-{seed}-{executions}").write_bytes(data)
            good = False
    return executions, f"seed {seed}", good


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="in all")
    parser.add_argument("--target", action="append", choices=[one.name for one in TARGETS] + ["live"], default=[])
    parser.add_argument("--keep", action="store_true", help="add what reaches something new to tests/fuzz/corpus")
    parser.add_argument("--repeat", type=Path, help="one file, with the one --target given")
    arguments = parser.parse_args()
    if arguments.repeat is not None:
        target(arguments.target[0]).check(arguments.repeat.read_bytes())
        return 0
    chosen = [one for one in TARGETS if not arguments.target or one.name in arguments.target]
    live = not arguments.target or "live" in arguments.target
    share_s = arguments.minutes * 60 / (len(chosen) + live)
    guided = importlib.util.find_spec("atheris") is not None
    seed = int.from_bytes(os.urandom(4), "big")
    sys.stdout.write(f"{'atheris' if guided else 'no atheris here: blind mutations'}, {share_s:.0f} s each\n")
    clean = True
    total = 0
    for one in chosen:
        executions, note, good = fuzz_guided(one, share_s, arguments.keep) if guided else fuzz_plain(one, share_s, seed)
        total += executions
        clean &= good
        sys.stdout.write(f"{one.name:9} {executions:11,} executions  {note}{'' if good else '  FOUND SOMETHING'}\n")
        sys.stdout.flush()
    if live:
        with tempfile.TemporaryDirectory() as scratch:
            tally = run_live(Path(scratch), share_s, seed)
        sys.stdout.write(f"{'live':9} {tally}\n")
    sys.stdout.write(f"{total:,} executions in all; {'nothing found' if clean else f'see {FINDINGS}/'}\n")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
