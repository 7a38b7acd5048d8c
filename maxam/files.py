"""Read files that others write: regular ones only, up to a limit of bytes, and none outside its folder.

Theory of operation. A path is opened with O_PATH first: that reads nothing, blocks on nothing and wakes no device. The kernel then
reports the kind and the place of the opened file, and the same file is read through its descriptor. So an attacker gains nothing by
exchanging a path between check and read. A *stamp* distinguishes one state of a file from another without reading it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from maxam.config import Limits
from maxam.errors import ConfigurationError

FILE_BYTES_MAX: Final = 16_777_216  # of one file: a mistaken path must not fill the memory
_LINKS_MAX: Final = 40  # that one path leads over, as in Linux
_FOLDERS_DEEP_MAX: Final = 64  # in each other: each takes two descriptors while it is read, and a part of the stack
_LOOKS_MAX: Final = 5  # at a folder that changes while it is read

FileStamp = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where changes of a file or folder show: what to watch for them.

    Attributes:
        folders: Real paths of folders of which every entry matters.
        names: Paths of files and links that matter, whatever else their folders hold.
    """

    folders: frozenset[str]
    names: frozenset[str]


@dataclass(slots=True)
class _Found:
    """The results of a scan of a folder so far."""

    texts: dict[str, bytes] = field(default_factory=dict)
    stamps: list[FileStamp] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    entries: int = 0
    bytes: int = 0


def read_file(path: Path, what: str, remedy: str) -> bytes:
    """Read a whole file.

    Args:
        path: Links in it are followed: the author of the configuration may specify any file.
        what: Setting that has the path, for the error text.
        remedy: Advice for the error text.

    Raises:
        ConfigurationError: It cannot be read, is no regular file or is too large.
    """
    try:
        with _opened(path, None) as (descriptor, status):
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{what}: {path} is {_kind(status)}, expected a file; {remedy}")
            return _content(descriptor, f"{what}: {path}", FILE_BYTES_MAX)
    except OSError as error:
        reason = error.strerror if Path("/proc/self/fd").exists() else "/proc is not mounted"
        raise ConfigurationError(f"{what}: cannot read {path} ({reason}); {remedy}") from error


def stamp_file(path: Path) -> FileStamp:
    """Return the state of a file: equal as long as no process wrote it, moved it or led its path elsewhere."""
    links, real = _resolve(path)
    try:
        return (real, len(links), *_stamp(path.stat()))
    except OSError as error:
        return (real, len(links), error.errno)


def places_of_file(path: Path) -> Places:
    """Return where a change of the file at `path` shows."""
    links, real = _resolve(path)
    return Places(frozenset(), frozenset([*links, real]))


def read_folder(folder: Path, suffixes: tuple[str, ...], limits: Limits) -> dict[str, bytes]:
    """Read all files with certain suffixes in a folder and the folders in it, as they were at one moment.

    Names that begin with a dot are skipped. The folder may be reached over links. Links in it may lead to files in it.

    Returns:
        The contents by path relative to the folder, with `/`.

    Raises:
        ConfigurationError: Something in it cannot be read, leads out of it, is no regular file, is too large or too many; or it
            kept changing.
    """
    for _ in range(_LOOKS_MAX):
        found, again = _Found(), _Found()
        _walk(folder, suffixes, limits, found, reading=True)
        _walk(folder, suffixes, limits, again)
        if again.stamps == found.stamps:
            return found.texts
    raise ConfigurationError(f"{folder}: keeps changing while it is read; reload when it has come to rest")


def stamp_folder(folder: Path, suffixes: tuple[str, ...], limits: Limits) -> tuple[FileStamp, Places]:
    """Return the state of the files of a folder, and where a change of it shows. A fault in it is a state too."""
    links, real = _resolve(folder)
    found = _Found()
    try:
        _walk(folder, suffixes, limits, found)
    except ConfigurationError as error:
        # Also the folders found so far: the repair will be made where the mistake is.
        return (real, str(error)), Places(frozenset([real, *found.folders]), frozenset([*links, real]))
    return (real, *found.stamps), Places(frozenset(found.folders), frozenset([*links, real]))


def _walk(folder: Path, suffixes: tuple[str, ...], limits: Limits, found: _Found, *, reading: bool = False) -> None:
    """Go over a folder, and note what is in it until something is wrong."""
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot read it as a folder: {error.strerror}. Correct the path") from error
    try:
        _visit(root, "", (), _Walk(folder, _real(root), suffixes, limits, reading, found))
    except OSError as error:  # of the folder itself: errors about its contents are reported with their paths
        raise ConfigurationError(
            f"{folder}: cannot read the folder: {error.strerror}. See what its file system lacks"
        ) from error
    finally:
        os.close(root)
    found.stamps.sort(key=repr)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The constant part of a scan of a folder."""

    folder: Path
    real: str
    suffixes: tuple[str, ...]
    limits: Limits
    reading: bool
    found: _Found

    def inside(self, descriptor: int) -> bool:
        """Return True if an open file lies in the folder."""
        real = _real(descriptor)
        return real == self.real or real.startswith(self.real.rstrip("/") + "/")


def _visit(descriptor: int, relative: str, above: tuple[tuple[int, int], ...], walk: _Walk) -> None:
    """Visit everything in an open folder. `above` are the folders that it is in, so that links cannot lead round."""
    status = os.fstat(descriptor)
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise ConfigurationError(f"{walk.folder / relative}: a link that leads back to a folder it is in; remove it")
    if len(above) > _FOLDERS_DEEP_MAX:
        raise ConfigurationError(
            f"{walk.folder}: has folders nested deeper than {_FOLDERS_DEEP_MAX}; is it the right folder?"
        )
    found = walk.found
    found.folders.add(_real(descriptor))
    found.stamps.append((relative, *here))
    for name in sorted(os.listdir(descriptor)):
        if name.startswith("."):
            continue
        found.entries += 1
        if found.entries > walk.limits.schema_files_max:
            raise ConfigurationError(
                f"{walk.folder}: holds more than {walk.limits.schema_files_max} files and folders"
                f" (limit schema_files_max); is it the right folder?"
            )
        _enter(descriptor, name, f"{relative}/{name}" if relative else name, (*above, here), walk)


def _enter(parent: int, name: str, relative: str, above: tuple[tuple[int, int], ...], walk: _Walk) -> None:
    matters = wanted = name.endswith(walk.suffixes)
    path = walk.folder / relative
    try:
        with _opened(name, parent) as (descriptor, status):
            folder = stat.S_ISDIR(status.st_mode)
            if not folder and not wanted:
                return
            matters = wanted or name.isidentifier()  # `lost+found` holds no types
            if not walk.inside(descriptor):
                raise ConfigurationError(f"{path} leads out of {walk.folder}; put a copy of the file there")
            if folder:
                inner = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _visit(inner, relative, above, walk)
                finally:
                    os.close(inner)
                return
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{path} is {_kind(status)}, expected a file; remove it")
            walk.found.stamps.append((relative, *_stamp(status)))
            walk.found.bytes += status.st_size
            if walk.found.bytes > walk.limits.schema_bytes_max:
                raise ConfigurationError(
                    f"{walk.folder}: its files hold more than {walk.limits.schema_bytes_max} bytes"
                    f" (limit schema_bytes_max); is it the right folder?"
                )
            if walk.reading:
                # No more than what was counted: a file that grows now is read again.
                walk.found.texts[relative] = _content(descriptor, str(path), min(FILE_BYTES_MAX, status.st_size))
    except OSError as error:
        if matters:
            reason = "a loop of links" if error.errno == errno.ELOOP else error.strerror
            raise ConfigurationError(f"cannot read {path}: {reason}. Correct or remove it") from error


@contextlib.contextmanager
def _opened(path: Path | str, parent: int | None) -> Iterator[tuple[int, os.stat_result]]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _content(descriptor: int, where: str, bytes_max: int) -> bytes:
    # Through the descriptor: the same file, whatever its path leads to by now.
    with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        if bytes_max < FILE_BYTES_MAX:
            return data[:bytes_max]
        raise ConfigurationError(f"{where} is larger than {FILE_BYTES_MAX} bytes; is it the right file?")
    return data


def _real(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _stamp(status: os.stat_result) -> FileStamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _kind(status: os.stat_result) -> str:
    mode = status.st_mode
    for test, kind in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return kind
    return "a device"


def _resolve(path: Path) -> tuple[list[str], str]:
    """Follow a path by hand: return every link that it leads over, and where it ends, which may not exist."""
    links: list[str] = []
    steps = list(reversed(path.absolute().parts[1:]))
    at = Path("/")
    while steps:
        name = steps.pop()
        if name == "..":
            at = at.parent
            continue
        at /= name
        try:
            target = Path(at.readlink())
        except OSError:
            continue  # no link, or not there
        links.append(str(at))
        if len(links) > _LINKS_MAX:
            break
        at = Path("/") if target.is_absolute() else at.parent
        steps += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return links, str(at)
