"""What goes wrong in the pipeline on purpose."""

from maxam.errors import MaxamError


class PipelineError(MaxamError):
    """A job cannot do what it was asked to; the text says why, where and what to do."""


def not_installed(error: ModuleNotFoundError) -> PipelineError:
    """Return what to say when a package of the pipeline's is missing; a module of maxam's own is a bug, and raised again."""
    if error.name is None or error.name.partition(".")[0] == "maxam":
        raise error
    return PipelineError(f"the pipeline needs {error.name.partition('.')[0]}: install maxam[pipeline]")
