"""The name that this module had before 0.2.0; it ends with 0.3.0. Import from `maxam.pipeline.spark.session`."""

from maxam.pipeline.spark.session import open_session

__all__ = ["open_session"]
