"""Errors of the load tool: it cannot start, or its report would not be true."""

from typing import final

from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode


class LoadError(MaxamError):
    """A run cannot go on. The text has fault, place and remedy."""

    code = "load-failed"


@final
class UnreachableError(LoadError):
    """Report that the broker cannot be reached, or refuses or closes the connection."""

    code = "gateway-unreachable"
    exit_code = ExitCode.UNREACHABLE
