"""Sizes and durations as people read them."""

from maxam.counting import counted

UNKNOWN = "unknown"


def size(count: int | None) -> str:
    """Return a number of bytes, in the largest unit that leaves one digit before the point."""
    if count is None:
        return UNKNOWN
    if count < 10_240:
        return counted(count, "byte")
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def duration(seconds: float) -> str:
    """Return seconds in two units at most."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 100:
        return f"{minutes} m {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds, with three digits or all those before the point."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds * 1000:.0f} ms"
