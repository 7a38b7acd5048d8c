"""The name that this module had before 0.2.0; it ends with 0.3.0. Import from `maxam.pipeline.spark.java`."""

from maxam.pipeline.spark.java import find_java

__all__ = ["find_java"]
