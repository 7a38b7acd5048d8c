"""Globs as conditions of Spark."""

import functools
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.globs import Glob


def matches(globs: Sequence[Glob], destination: str = "destination") -> Column:
    """Return the condition that a column matches one of these globs, exactly as the broker matches.

    The text before a glob's first wildcard is a condition of its own, by which a data source can leave out files.
    """

    def one(glob: Glob) -> Column:
        column = F.col(destination)
        if glob.prefix == glob.text:
            return column == glob.text
        whole = column.rlike(f"\\A(?:{glob.expression})\\z")
        return column.startswith(glob.prefix) & whole if glob.prefix else whole

    return functools.reduce(lambda either, other: either | other, [one(glob) for glob in globs])
