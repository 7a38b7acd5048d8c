"""Everything the broker accepted and rejected, as tables on Spark: read the journal, run jobs over it, publish back."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from maxam.pipeline.catalogue import Catalogue
    from maxam.pipeline.errors import PipelineError
    from maxam.pipeline.examining import Archive, Problem, examine
    from maxam.pipeline.jobs.job import Job, job_options
    from maxam.pipeline.publish.bodies import BodyEncoder
    from maxam.pipeline.publish.gateway import gateway_options
    from maxam.pipeline.publish.publisher import Counts, PublishError, Rejected, Row, Target, publish_rows
    from maxam.pipeline.spark.reading import read_journal, register

__all__ = [
    "Archive",
    "BodyEncoder",
    "Catalogue",
    "Counts",
    "Job",
    "PipelineError",
    "Problem",
    "PublishError",
    "Rejected",
    "Row",
    "Target",
    "examine",
    "gateway_options",
    "job_options",
    "publish_rows",
    "read_journal",
    "register",
]
_MODULES: Final = {
    "catalogue": ("Catalogue",),
    "errors": ("PipelineError",),
    "jobs.job": ("Job", "job_options"),
    "publish.bodies": ("BodyEncoder",),
    "publish.gateway": ("gateway_options",),
    "publish.publisher": ("Counts", "PublishError", "Rejected", "Row", "Target", "publish_rows"),
    "examining": ("Archive", "Problem", "examine"),
    "spark.reading": ("read_journal", "register"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: some need Spark, which the `--help` of a command does not."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
