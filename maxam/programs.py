"""The console scripts: start each program, or name the extra that this installation lacks.

`pip install maxam` is the client library alone, yet brings all six scripts: a script cannot belong to an extra.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final, NoReturn

_MISSING: Final = 2  # exit code: the command cannot be started as given, as for a wrong option


def gateway() -> None:
    """Run `maxam-gateway`."""
    _run("gateway", "maxam.main", "gateway")


def admin() -> None:
    """Run `maxam-admin`."""
    _run("admin", "maxam.cli.main", "main")


def bench() -> None:
    """Run `maxam-bench`."""
    _run("bench", "maxam.bench.main", "main")


def pipeline() -> None:
    """Run `maxam-pipeline`."""
    _run("pipeline", "maxam.pipeline.main", "main")


def bridge() -> None:
    """Run `maxam-bridge`."""
    _run("bridge", "maxam.bridge.main", "bridge")


def conformance() -> None:
    """Run `maxam-conformance`."""
    _run("conformance", "maxam.conformance.main", "conformance")


def _run(extra: str, module: str, name: str) -> None:
    """Run the command `name` of a module; exit with a message if a package of the extra is missing, now or in a subcommand."""
    try:
        command: Callable[[], object] = getattr(import_module(module), name)
        command()
    except ModuleNotFoundError as error:
        _exit_without(extra, error)


def _exit_without(extra: str, error: ModuleNotFoundError) -> NoReturn:
    package = (error.name or "").partition(".")[0]
    if package in {"", "maxam"}:
        raise error  # a defect or a damaged installation, not an extra
    sys.stderr.write(
        f"maxam-{extra}: the Python package {package} is not installed."
        f" Run: {sys.executable} -m pip install 'maxam[{extra}]'\n"
    )
    raise SystemExit(_MISSING) from error
