"""Each role of the distribution imports what its extra brings, and a program without its extra shows its name."""

import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "gateway": ["maxam.main"],
    "admin": ["maxam.cli", "maxam.demo"],
    "bench": ["maxam.bench"],
    "bridge": ["maxam.bridge"],
    "conformance": ["maxam.conformance"],
    "pipeline": ["maxam.pipeline"],
}
packages_distributions = cache(metadata.packages_distributions)  # it reads the files of every distribution
ROLES = {
    "": ["maxam.client", "maxam.programs"],
    **PROGRAMS,
    "cluster": ["maxam.cluster.etcd"],
    "delta": ["maxam.pipeline.history.delta"],
    "web": ["maxam.client.web"],
}
LATER = {
    "maxam.cluster.etcd",
    "maxam.client.web",
    "maxam.pipeline.history.delta",
}  # loaded only when they are needed, with an error that shows the extra
HIDE = """
import sys

hidden = set(sys.argv.pop(1).split(","))

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def requirements(extra: str) -> list[Requirement]:
    """Return what pyproject.toml names for `maxam`, or for `maxam[extra]`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]]


def closure(extra: str) -> set[str]:
    """Return the distributions that `pip install maxam[extra]` brings, by their canonical names."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = requirements(extra)
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        if (name, frozenset(needed.extras)) in seen:
            continue
        seen.add((name, frozenset(needed.extras)))
        try:
            names = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # for another system or an older Python
        found.add(name)
        environments = [{"extra": wanted} for wanted in ("", *needed.extras)]
        for dependency in map(Requirement, names):
            if dependency.marker is None or any(map(dependency.marker.evaluate, environments)):
                waiting.append(dependency)
    return found


def distributions(module: str) -> set[str]:
    """Return the distributions that install a module, by their canonical names."""
    return {canonicalize_name(name) for name in packages_distributions().get(module, [])}


def run(program: str, extra: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as its script does, where only `maxam[extra]` is installed."""
    allowed = closure(extra) | {"maxam"}
    hidden = [
        module
        for module, names in packages_distributions().items()
        if not allowed.intersection(map(canonicalize_name, names))
    ]
    code = f"{HIDE}\nfrom maxam.programs import {program}\nsys.argv[0] = 'maxam-{program}'\n{program}()"
    command = [sys.executable, "-c", code, ",".join(hidden), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports of maxam, those inside functions included."""
    return grimp.build_graph("maxam", include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("extra", ROLES)
def test_a_role_imports_what_its_extra_brings(graph: grimp.ImportGraph, extra: str) -> None:
    """No module that a role can reach imports a package of another role, at its top or inside a function."""
    own = {name for root in ROLES[extra] for name in {root, *graph.find_descendants(root)}}
    own -= LATER - set(ROLES[extra])
    reached = LATER - own
    waiting = list(own)
    packages: dict[str, str] = {}
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if not graph.is_module_squashed(imported):
                waiting.append(imported)
            elif imported not in sys.stdlib_module_names:
                packages[imported] = module
    allowed = closure(extra)
    assert {package: module for package, module in packages.items() if not distributions(package) & allowed} == {}


def test_the_client_needs_two_packages() -> None:
    """`pip install maxam` names anyio and mypy-extensions: an application on asyncio installs no trio."""
    assert {requirement.name for requirement in requirements("")} == {"anyio", "mypy-extensions"}
    assert "trio" not in closure("")


def test_all_is_every_extra() -> None:
    """`maxam[all]` lists each of the other extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert Requirement(extras["all"][0]).extras == set(extras) - {"all"}


@pytest.mark.slow
def test_the_engine_of_a_cluster_shows_its_extra() -> None:
    """Without `maxam[cluster]` the gateway is not importing it, and `open_log` fails with what to install."""
    code = (
        "from pathlib import Path\nimport maxam.assembly\nfrom maxam.cluster.engine import open_log\n"
        "from maxam.errors import ConfigurationError\nassert 'maxam.cluster.etcd' not in sys.modules\n"
        "try:\n    open_log('x', [], Path(), Path(), Path())\nexcept ConfigurationError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", HIDE + code, "grpc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "maxam[gateway,cluster]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_starts_with_its_extra_alone(program: str) -> None:
    """It prints its help where nothing else is installed."""
    done = run(program, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_its_extra_names_it(program: str) -> None:
    """Exit code 2 and one line with the extra to install."""
    done = run(program, "", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"'maxam[{program}]'" in line
