"""What goes wrong in the pipeline on purpose."""

from maxam.errors import MaxamError


class PipelineError(MaxamError):
    """A job cannot do what it was asked to; the text says why, where and what to do."""
