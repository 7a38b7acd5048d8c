"""A last-value-queue broker: the current state of many things, told to many clients."""

from typing import Final

__version__: Final = "0.1.0"
