"""The name that this module had before 0.2.0; it ends with 0.3.0. Import from `maxam.pipeline.spark.sink`."""

from maxam.pipeline.spark.sink import publish

__all__ = ["publish"]
