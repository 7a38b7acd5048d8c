"""A disk in memory that forgets what was not synced, runs full, and fails or loses power at any call."""

import errno
from collections.abc import Callable

Choose = Callable[[int], int]  # a number from 0 to n-1; 0 loses the most
SECTOR_BYTES = 512
KILL = -1


class PowerCut(Exception):  # noqa: N818 - what happens, not what is wrong
    """The machine is gone; all that is left is what `SimulatedDisk.restarted` finds."""


class Killed(Exception):  # noqa: N818 - what happens, not what is wrong
    """The process is gone; what it wrote is there."""


class File:
    """Contents as every process sees them, and what of them would survive."""

    def __init__(self, synced: bytes = b"", folder: bool = False) -> None:
        self.folder = folder
        self.synced = synced
        self.data = bytearray(synced)
        self.pending: list[tuple[int, bytes | None]] = []  # writes since the last sync; None is a cut to that size

    def apply(self, offset: int, data: bytes | None) -> None:
        """Do one write or cut."""
        if data is None:
            self.data = self.data[:offset].ljust(offset, b"\0")
        else:
            if len(self.data) < offset:
                self.data.extend(bytes(offset - len(self.data)))
            self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        """Make the contents survive."""
        self.synced = bytes(self.data)
        self.pending = []

    def survivor(self, choose: Choose) -> "File":
        """Return what a power cut leaves: some of the pending writes, the next one torn."""
        left = File(self.synced, self.folder)
        if choose(2):  # the disk writes in any order
            for offset, data in self.pending:
                if data is None or (fate := choose(3)) == 2:
                    left.apply(offset, data)
                elif fate == 1:
                    left.apply(offset, _torn(data, choose))
            left.sync()
            return left
        kept = choose(len(self.pending) + 1)
        for offset, data in self.pending[:kept]:
            left.apply(offset, data)
        if kept < len(self.pending):
            offset, data = self.pending[kept]
            if data:
                left.apply(offset, _torn(data, choose))
        left.sync()
        return left


def _torn(data: bytes, choose: Choose) -> bytes:
    """Return what is left of a write: its beginning, with zeros after it perhaps, or any of its sectors."""
    cut = choose(len(data) + 1)
    match choose(3):
        case 0:
            return data[:cut]
        case 1:
            return data[:cut].ljust(len(data), b"\0")
        case _:
            sectors = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
            return b"".join(sector if choose(2) else bytes(len(sector)) for sector in sectors)


class SimulatedDisk:
    """Implements `maxam.journal.disk.Disk`; `calls` counts every operation from 1.

    Args:
        faults: Number of a call -> errno it fails with, before it does anything. 0 cuts the power in the midst of it. KILL ends the process.
        capacity: Bytes of all files together, or None.
        write_bytes_max: Of one pwrite, or None.
    """

    def __init__(
        self,
        faults: dict[int, int] | None = None,
        capacity: int | None = None,
        write_bytes_max: int | None = None,
    ) -> None:
        self.faults = faults or {}
        self.capacity = capacity
        self.write_bytes_max = write_bytes_max
        self.calls = 0
        self.meanwhile: dict[
            int, Callable[[], None]
        ] = {}  # number of a call -> what another process does right before it
        self.log: list[str] = []
        self.files: dict[str, File] = {"/": File(folder=True)}
        self._synced_files = dict(self.files)
        self._pending_names: list[dict[str, File | None]] = []
        self._handles: dict[int, File] = {}
        self._locks: dict[int, str] = {}
        self._next_handle = 3
        self._end: type[Exception] | None = None  # of the process

    def restarted(self, choose: Choose) -> "SimulatedDisk":
        """Return the disk after a power cut: any of the unsynced names and bytes may be lost."""
        left = SimulatedDisk(capacity=self.capacity)
        names = dict(self._synced_files)
        for change in self._pending_names:
            if choose(2):
                _rename(names, change)
        survivors: dict[int, File] = {}
        for path in sorted(names):
            if path == "/" or _parent(path) in left.files:
                file = names[path]
                left.files[path] = survivors.setdefault(id(file), file.survivor(choose))
        left._synced_files = dict(left.files)
        return left

    @property
    def faulted(self) -> bool:
        """True if a call has failed as configured."""
        return any(call <= self.calls for call in self.faults)

    def killed(self) -> "SimulatedDisk":
        """Return the disk after the process was killed: everything written is there, locks are not."""
        self._end = self._end or Killed
        return self.beside()

    def beside(self, faults: dict[int, int] | None = None) -> "SimulatedDisk":
        """Return the same disk as another process sees it, with calls and faults of its own."""
        other = SimulatedDisk(faults, self.capacity, self.write_bytes_max)
        other.files = self.files
        other._synced_files = self._synced_files
        other._pending_names = self._pending_names
        return other

    def contents(self) -> dict[str, bytes]:
        """Return every file."""
        return {path: bytes(file.data) for path, file in self.files.items() if not file.folder}

    def put(self, path: str, data: bytes) -> None:
        """Replace a file behind everyone's back, durably."""
        self.files[path] = self._synced_files[path] = File(data)

    # Disk

    def make_folder(self, path: str) -> bool:
        """As of `Disk`."""
        self._call("make_folder", path)
        if path in self.files:
            return False
        self._file(_parent(path))
        self._change_names({path: File(folder=True)})
        return True

    def lock(self, path: str) -> int:
        """As of `Disk`."""
        self._call("lock", path)
        if path in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, path)
        if path not in self.files:
            self._change_names({path: File()})
        handle = self._handle(self._file(path))
        self._locks[handle] = path
        return handle

    def names(self, folder: str) -> list[str]:
        """As of `Disk`."""
        self._call("names", folder)
        self._file(folder)
        return [path.rpartition("/")[2] for path in self.files if path != "/" and _parent(path) == folder]

    def size(self, path: str) -> int:
        """As of `Disk`."""
        self._call("size", path)
        return len(self._file(path).data)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """As of `Disk`."""
        self._call("read", path)
        return bytes(self._file(path).data[offset : offset + length])

    def create(self, path: str) -> int:
        """As of `Disk`."""
        self._call("create", path)
        self._file(_parent(path))
        if path in self.files:
            file = self.files[path]
            file.apply(0, None)
            file.pending.append((0, None))
        else:
            self._change_names({path: File()})
        return self._handle(self._file(path))

    def open(self, path: str) -> int:
        """As of `Disk`."""
        self._call("open", path)
        return self._handle(self._file(path))

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        """As of `Disk`."""
        file = self._opened(handle)
        cut = self._call("pwrite", f"{len(data)} bytes", midway=True)
        if self.write_bytes_max is not None:
            data = data[: self.write_bytes_max]
        if self.capacity is not None:
            room = self.capacity - self._used() + len(file.data) - offset
            if room <= 0:
                raise OSError(errno.ENOSPC, "simulated")
            data = data[:room]
        file.apply(offset, data)
        file.pending.append((offset, data))
        if cut and self._end is not None:
            raise self._end
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        """As of `Disk`."""
        self._call("truncate", f"to {size}")
        self._opened(handle).apply(size, None)
        self._opened(handle).pending.append((size, None))

    def allocate(self, handle: int, size: int) -> None:
        """As of `Disk`."""
        self._call("allocate", f"{size} bytes")
        file = self._opened(handle)
        if self.capacity is not None and self._used() - len(file.data) + size > self.capacity:
            raise OSError(errno.ENOSPC, "simulated")
        zeros = bytes(max(0, size - len(file.data)))  # one that is larger stays so
        file.pending.append((len(file.data), zeros))
        file.apply(len(file.data), zeros)

    def fsync(self, handle: int) -> None:
        """As of `Disk`."""
        self._call("fsync", "")
        self._opened(handle).sync()

    def fdatasync(self, handle: int) -> None:
        """As of `Disk`."""
        self._call("fdatasync", "")
        self._opened(handle).sync()

    def close(self, handle: int) -> None:
        """As of `Disk`."""
        self._call("close", "")
        self._opened(handle)
        del self._handles[handle]
        self._locks.pop(handle, None)

    def rename(self, old: str, new: str) -> None:
        """As of `Disk`."""
        self._call("rename", new)
        moved = [path for path in self.files if path == old or path.startswith(f"{old}/")]
        self._file(old)
        change: dict[str, File | None] = dict.fromkeys(moved)
        self._change_names(change | {new + path.removeprefix(old): self.files[path] for path in moved})

    def link(self, old: str, new: str) -> None:
        """As of `Disk`."""
        self._call("link", new)
        self._file(_parent(new))
        if new in self.files:
            raise FileExistsError(errno.EEXIST, new)
        self._change_names({new: self._file(old)})

    def unlink(self, path: str) -> None:
        """As of `Disk`."""
        self._call("unlink", path)
        self._file(path)
        self._change_names({path: None})

    def remove_folder(self, path: str) -> None:
        """As of `Disk`."""
        self._call("remove_folder", path)
        self._file(path)
        if any(_parent(other) == path for other in self.files):
            raise OSError(errno.ENOTEMPTY, path)
        self._change_names({path: None})

    def hold_folder(self, path: str) -> int:
        """As of `Disk`."""
        self._call("hold_folder", path)
        return self._handle(self._file(path))

    def fsync_folder(self, path: str) -> None:
        """As of `Disk`."""
        self._call("fsync_folder", path)
        self._file(path)
        later = []
        for change in self._pending_names:
            if all(
                _parent(name) == path for name in change if _parent(name) not in change
            ):  # what is in a folder goes along
                _rename(self._synced_files, change)
            else:
                later.append(change)
        self._pending_names[:] = later

    def _call(self, name: str, what: str, midway: bool = False) -> bool:
        """Count a call and let it fail; return True when the power is to go after a write has begun."""
        if self._end is not None:
            raise self._end
        self.calls += 1
        self.log.append(f"{name} {what}")
        other = self.meanwhile.pop(self.calls, None)
        if other is not None:
            other()
        fault = self.faults.get(self.calls)
        if fault is None:
            return False
        if fault > 0:
            raise OSError(fault, "simulated")
        self._end = PowerCut if fault == 0 else Killed
        if midway:
            return True
        raise self._end

    def _file(self, path: str) -> File:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        return self.files[path]

    def _opened(self, handle: int) -> File:
        if handle not in self._handles:
            raise OSError(errno.EBADF, "closed")
        return self._handles[handle]

    def _handle(self, file: File) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = file
        return self._next_handle

    def _change_names(self, change: dict[str, File | None]) -> None:
        _rename(self.files, change)
        self._pending_names.append(change)

    def _used(self) -> int:
        return sum(len(file.data) for file in self.files.values())


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _rename(names: dict[str, File], change: dict[str, File | None]) -> None:
    for path, file in change.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file
