"""A last-value-queue broker: the current state of many things, sent to many clients."""

from typing import Final

__version__: Final = "0.2.0"
