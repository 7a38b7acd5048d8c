"""The name that this module had before 0.2.0; it ends with 0.3.0. Import from `maxam.pipeline.jobs.load`."""

from maxam.pipeline.jobs.load import encode

__all__ = ["encode"]
