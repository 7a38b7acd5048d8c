"""Measure the first value of a topic under globs that are hard to find: `python -m tests.benchmarks globs`.

Each row has an index with the globs of some principals, as a broker has one, and looks up one topic that is new.
"""

import sys
import time
from collections.abc import Callable, Iterable
from itertools import combinations, count, islice
from string import ascii_lowercase
from typing import Final

import click

from maxam.broker.destinations import MatchIndex
from maxam.config import Limits
from maxam.globs import compile_glob

_ORDINARY: Final = "X/EGM.Q.00500-00001.EGMMeterReading"
_LONG: Final = {"one letter": "X/" + "a" * 490, "two letters": "X/" + "ab" * 245}
_REPEATS: Final = 7
_FEW: Final = 16  # globs of each principal that tries to take long with few

# A title, and the globs of the principal with a number, endless or not.
_MANY: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "X/EGM.*.N.EGMStatus": lambda: (f"X/EGM.*.{n}.EGMStatus" for n in count()),
    "X/EGM.Q.*-N.EGMMeterReading": lambda: (f"X/EGM.Q.*-{n:05}.EGMMeterReading" for n in count()),
    "X/*aNb*": lambda: (f"X/*a{n}b*" for n in count()),
    "**N*z": lambda: (f"**{n}*z" for n in count()),
    "X/E?M.*xNy.*": lambda: (f"X/E?M.*x{n}y.*" for n in count()),
    "X/[A-E]GM.N*[a-z]N*": lambda: (f"X/[A-E]GM.*[{c}-z]{n}*" for n in count() for c in ascii_lowercase),
    "X/* and 8 of the topic's characters": lambda: (f"X/*{'*'.join(each)}*" for each in combinations(_ORDINARY[2:], 8)),
}
_OF_FEW: Final[dict[str, Callable[[int], Iterable[str]]]] = {
    "two stars, as honest clients have them": lambda p: ["X/EGM.*.*.EGMStatus", "X/EGM.Q.*", f"X/EGM.*.{p}.*"],
    "sets after stars": lambda p: (f"X/*{'[ab]' * (5 + n)}*{'[ab]*' * 5}c{p}" for n in range(_FEW)),
    "labels that begin alike": lambda p: (f"X/*{'a' * n}*b{p}" for n in range(1, _FEW + 1)),
    "question marks": lambda p: (f"X/{'?a' * n}*{p}" for n in range(1, _FEW)),
    "twelve stars": lambda p: (f"X/*{'*'.join('a' * (1 + (n + k) % 3) for k in range(12))}{p}" for n in range(_FEW)),
}


@click.command("globs")
@click.option("--globs", default=10_000, help="Globs of one principal.")
@click.option("--principals", default=100, help="Principals that have a few globs each.")
def globs_command(globs: int, principals: int) -> None:
    """Measure the first value of a topic under hostile sets of globs."""
    sys.stdout.write(f"one principal with {globs} globs, us for an ordinary topic\n")
    for title, texts in _MANY.items():
        _show(title, _took_us([islice(texts(), globs)], [_ORDINARY]))
    for number in (1, principals):
        sys.stdout.write(f"{number} with at most {_FEW} globs each, us for an ordinary topic, {', '.join(_LONG)}\n")
        for title, of_principal in _OF_FEW.items():
            _show(title, _took_us([of_principal(p) for p in range(number)], [_ORDINARY, *_LONG.values()]))


def _show(title: str, took_us: list[float]) -> None:
    sys.stdout.write(f"  {title:40}" + "".join(f"{one:12,.1f}" for one in took_us) + "\n")


def _took_us(principals: list[Iterable[str]], destinations: list[str]) -> list[float]:
    """Return the shortest of some lookups of each destination."""
    index: MatchIndex[int] = MatchIndex()
    items = count()
    for principal, texts in enumerate(principals):
        for text in texts:
            index.add(compile_glob(text, Limits()), next(items), str(principal))
    for harmless in range(_FEW + 1):  # so that the index does not try each glob
        index.add(compile_glob(f"X/none.{harmless}", Limits()), next(items), f"other {harmless}")
    shortest = []
    for destination in destinations:
        took_s = []
        for _ in range(_REPEATS):
            began_s = time.perf_counter()
            index.matches(destination, 0, _may_see, may_cut=True)
            took_s.append(time.perf_counter() - began_s)
        shortest.append(min(took_s) * 1e6)
    return shortest


def _may_see(_owner: str, _destination: str) -> bool:
    return True
