"""Everything the broker accepted and rejected, as tables on Spark: read the journal, run jobs over it, publish back."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxam.pipeline.reading import Archive, Problem, examine, read_journal, register

__all__ = ["Archive", "Problem", "examine", "read_journal", "register"]


def __getattr__(name: str) -> object:
    """Import what needs Spark only for those who want it: a command's `--help` does not."""
    if name in __all__:
        return getattr(import_module("maxam.pipeline.reading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
