"""The C library's heap: how much of it is free, and giving that back to the system.

Theory of operation. Values lie in Python's own arenas. Larger objects than 512 bytes come from `malloc`. So do TLS states:
some 25 KiB for each connection, in pieces of tens of bytes up to 8 KiB. When connections come and go, the freed pieces never quite fit the
next connection. So free room among used pieces grows to about as much again (measured: docs/develop/reliability-tests.md). The library
returns only pages at the heap's end, unless it is asked. Its other settings (one arena, fixed thresholds) change nothing about
that: all is in the main arena, in small pieces.

Only glibc can be asked. Elsewhere nothing is known and nothing done.
"""

import ctypes
from dataclasses import dataclass
from typing import Final, final

# An allocation while memory is returned waits for some milliseconds, which must be rare and worth it.
_FREE_SHARE: Final = 0.25  # of the heap: below it there is little to give back
_GROWN: Final = 1.02  # times what was in use after the last time
_FREED_SHARE: Final = 0.05  # of the heap more is free than at the last time


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


@dataclass(frozen=True, slots=True)
class Heap:
    """Memory that the C library has from the system, except blocks that it maps one by one.

    Attributes:
        size: Bytes.
        free: Unused bytes of them. Some may have been returned already.
    """

    size: int
    free: int


@final
class Slack:
    """Decides whether to give memory back: much must be free, and more of it than at the last time, or memory have grown. No I/O."""

    __slots__ = ("_free", "_used")

    def __init__(self) -> None:
        self._free = 0
        self._used = 0

    def worth(self, heap: Heap, used_bytes: int) -> bool:
        """Return True if it is worth to return memory, by the heap and the memory in use on the machine."""
        grown = used_bytes > self._used * _GROWN or heap.free > self._free + heap.size * _FREED_SHARE
        return grown and heap.free > heap.size * _FREE_SHARE

    def given_back(self, heap: Heap, used_bytes: int) -> None:
        """Record the free memory, by the library's count, which does not fall, and the memory in use now."""
        self._free = heap.free
        self._used = used_bytes


_LIBRARY: Final = ctypes.CDLL(None)


def look() -> Heap | None:
    """Return the state of the heap. None if the C library does not report it (it is not glibc, or one before 2.33).

    Takes some 0.1 ms for each thousand free pieces, and holds up allocations meanwhile.
    """
    mallinfo2 = getattr(_LIBRARY, "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    state = mallinfo2()
    return Heap(state.arena, state.fordblks)


def give_back() -> None:
    """Return all unused whole pages to the system, if the C library can. Takes milliseconds: call it in a thread."""
    trim = getattr(_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)
