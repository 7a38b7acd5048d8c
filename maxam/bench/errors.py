"""What the load tool raises on purpose: it cannot start, or what it would report would not be true."""

from typing import final

from maxam.errors import MaxamError


@final
class LoadError(MaxamError):
    """Say why a run cannot go on: what was wrong, where, what to do."""
