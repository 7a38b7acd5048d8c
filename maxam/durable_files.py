"""Replace files so that a crash or power cut leaves either the old content or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_MODE: Final = 0o666  # of a new file, less the umask


@contextmanager
def replacing(path: Path, mode: int = _MODE) -> Iterator[BinaryIO]:
    """Open a file beside `path` that replaces it, durably, when the block ends; an exception leaves `path` as it was.

    Raises:
        OSError: It cannot be written there.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    aside.unlink(missing_ok=True)  # a process of the same id was killed here
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def replace_durably(path: Path, content: bytes, mode: int = _MODE) -> None:
    """Replace a file as a whole; when this returns, that survives a power cut. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(content)


def sync(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
