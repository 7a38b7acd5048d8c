"""The wishes of a member of a cluster, by which its state machine drives the process; see `member`."""

from dataclasses import dataclass
from typing import final

from maxam.cluster.log import Head


@final
@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head of the log, linearizably. Answer with `Member.head_read` or `Member.engine_failed`."""


@final
@dataclass(frozen=True, slots=True)
class FindPlace:
    """Find the place of the own journal with `placing.find_place`. Answer with `Member.placed` or `Member.engine_failed`.

    Attributes:
        head: The head of the log.
    """

    head: Head


@final
@dataclass(frozen=True, slots=True)
class Follow:
    """Start to read the log. Report each step with `Member.progressed`, `Member.head_seen` and `Member.engine_failed`.

    Attributes:
        first: Index of the first entry.
    """

    first: int


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the journal of another member. Answer with `Member.copied`."""


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """Append the own `term` entry. Announce each swap with `Member.swap_began`.

    Answer with `Member.swap_succeeded`, `Member.superseded` or `Member.refused`.

    Attributes:
        before: The head to compare. The new one has its position, and an index and term that are higher by one.
    """

    before: Head


@final
@dataclass(frozen=True, slots=True)
class Lead:
    """Start to serve clients. The own `term` entry is applied.

    Attributes:
        head: The own head.
    """

    head: Head


@final
@dataclass(frozen=True, slots=True)
class Beat:
    """Swap the head, with or without an entry. Announce and answer the swap as for `Claim`."""


@final
@dataclass(frozen=True, slots=True)
class Suspend:
    """Accept no connection. Deliver only what is committed."""


@final
@dataclass(frozen=True, slots=True)
class Resume:
    """Accept connections again."""


@final
@dataclass(frozen=True, slots=True)
class StopReading:
    """Read nothing more from clients, and commit what was read. Answer with `Member.drained`."""


@final
@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The handover that was asked for is not begun. Nothing changes.

    Attributes:
        why: The reason.
    """

    why: str


@final
@dataclass(frozen=True, slots=True)
class HandOver:
    """Append a `handover` entry. Answer as for `Claim`.

    Attributes:
        successor: Name of the member that is to lead.
    """

    successor: str


@final
@dataclass(frozen=True, slots=True)
class End:
    """Close the connections of clients, and end the process.

    Attributes:
        status: Exit status of the process. 75 for a start as a follower.
        code: Why: `superseded`, `cut-off`, `handed-over`, `copied`, `set-back`, `no-log`, `other-cluster` or
            `forked`.
    """

    status: int
    code: str


Wish = (
    ReadHead
    | FindPlace
    | Follow
    | Copy
    | Claim
    | Lead
    | Beat
    | Suspend
    | Resume
    | StopReading
    | ReadAgain
    | HandOver
    | End
)
