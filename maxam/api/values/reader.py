"""A client that reads values over HTTP: who it is, what it may receive, and whether that still holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from maxam.broker.policy import Rights
from maxam.records import Identity


@final
@dataclass(frozen=True, slots=True)
class Reader:
    """A client of the routes of values, however it was authenticated.

    Attributes:
        identity: Its principal and certificate.
        rights: Returns the rights in force.
        denial: Returns code and text of why it may no longer read, or None.
        granted: Rights of its own, which no policy has. None for those of the principal.
    """

    identity: Identity
    rights: Callable[[], Rights]
    denial: Callable[[], tuple[str, str] | None]
    granted: Rights | None = None
