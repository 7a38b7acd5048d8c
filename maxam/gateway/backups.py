"""Backups that operators ask the gateway for: made in a process of low priority, `python -m maxam.gateway.backups JOURNAL FOLDER NAME KEPT`.

One at a time. `[admin] backup_hook` then copies each one to another place. The process copies beside the gateway that writes, and asks it nothing (`journal/backup.py`): what a backup costs is reads.
"""

import json
import logging
import os
import re
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, final

import trio

from maxam.background import enter_background
from maxam.compiled import child_environment
from maxam.config import AdminSettings
from maxam.errors import ConfigurationError, JournalError, MaxamError
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.backup_hook import BackupHook
from maxam.gateway.backup_timer import BackupTimer
from maxam.gateway.log import log_event
from maxam.journal.backup import LOCK, MANIFEST, UNFINISHED, back_up, clear, read_manifest
from maxam.journal.disk import OsDisk

State = Literal["running", "done", "failed"]

_NICENESS: Final = 19
_FAILURES_KEPT: Final = 20
_REASON_CHARACTERS_MAX: Final = 500
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")  # as `name_of` makes them
_NAME_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"
_ENDED: Final = "it was ended before it was done: it is no backup, and the next one removes what is left"


@final
@dataclass(frozen=True, slots=True)
class BackupRow:
    """One backup, or the attempt at one.

    Attributes:
        name: Its folder's, the time at which it was begun.
        state: Of a `failed` one nothing can be restored.
        begun_at_us: The same time, microseconds since the epoch.
        revision: The last one in it; None unless it is done, as the next two.
        bytes: Of all its files, those that it shares with others included.
        files: How many there are.
        verified: Every file was read again and found whole after it was made; False for a backup of a release that did not do that.
        copied: Whether `[admin] backup_hook` has copied it. None without a hook.
        reason: The reason why it failed, or was not copied; else empty.
    """

    name: str
    state: State
    begun_at_us: int
    revision: int | None = None
    bytes: int | None = None
    files: int | None = None
    verified: bool | None = None
    copied: bool | None = None
    reason: str = ""


@final
class BackupsOffError(MaxamError):
    """This gateway makes no backups."""

    code = "backup-off"


@final
class BackupRunningError(MaxamError):
    """A backup is under way already."""

    code = "backup-running"


@final
class Backups:
    """Makes the backups of one journal in one folder.

    Attributes:
        running: Name of the one that is under way, or None.
        made: Since the start.
        failed: Since the start.
        newest: The newest whole one. None when there is none, or it is not known yet.
        failure: Why the last one failed, until one succeeds. Empty if it did not.
        timer: When the next one is due.
        copy_failure: The reason why the last one was not copied to the other place, until one is. Empty without one.
    """

    def __init__(self, journal: Path, settings: AdminSettings) -> None:
        """Make one that has not read the folder yet.

        Args:
            journal: The journal's folder.
            settings: Folder of the backups, number of those to keep, and the command that copies them.
        """
        self._journal: Final = journal
        self._folder: Final = settings.backups
        self.kept: Final = settings.backups_kept
        self.hook: Final = BackupHook.of(settings)
        self.timer: Final = BackupTimer(settings.backup_timer)
        self.running: str | None = None
        self.made = 0
        self.failed = 0
        self.newest: BackupRow | None = None
        self._looked = False
        self.failure = ""
        self.copy_failure = ""
        self._failures: Final[deque[BackupRow]] = deque(maxlen=_FAILURES_KEPT)
        self._asked: Final = AutoResetEvent()
        self._manifests: dict[str, BackupRow] = {}  # of whole ones, which do not change

    @property
    def folder(self) -> Path:
        """Folder of the backups; raises BackupsOffError if none is configured."""
        if self._folder is None:
            raise BackupsOffError(
                "this gateway makes no backups: set [admin] backups to a folder, best on another disk, and start it again. Or copy the "
                "journal with `maxam-admin journal backup`"
            )
        return self._folder

    def degraded(self) -> list[str]:
        """Return what an operator should see to, though the broker serves."""
        if self.failure:
            return [f"backup-failed: {self.failure}"]
        if self._looked and self.newest is None:
            return [
                f"backup-missing: {self._folder} holds no whole backup of this journal. Make one with `maxam-admin backup create`, "
                "and enable maxam-gateway-backup.timer"
            ]
        if self.newest is not None and self.newest.copied is False:
            return [
                f"backup-not-copied: {self.copy_failure or f'{self.newest.name}: [admin] backup_hook has not copied it'}"
            ]
        return []

    @property
    def on(self) -> bool:
        """True if a folder for backups is configured."""
        return self._folder is not None

    async def begin(self) -> BackupRow:
        """Start a backup, and return before it is made.

        Raises:
            BackupsOffError: None are made.
            BackupRunningError: One is under way, perhaps of another process.
        """
        folder = self.folder
        if self.running is None and await trio.to_thread.run_sync(_made_by_others, folder):
            raise BackupRunningError(f"somebody else makes a backup in {folder}; wait for it")
        if self.running is not None:
            raise BackupRunningError(f"{self.running} is under way; wait for it")
        self.running = name_of(time.time())
        self._asked.set()
        return _row_of(self.running, "running")

    async def rows(self) -> list[BackupRow]:
        """Return all there are, newest first, and the last failures.

        Raises:
            BackupsOffError: None are made.
        """
        found = await trio.to_thread.run_sync(self._look, self.folder, self.running)
        rows = {row.name: row for row in found}
        for row in self._failures:  # which know more than what is left of them
            if row.name not in rows or rows[row.name].state == "failed":
                rows[row.name] = row
        if self.running is not None and self.running not in rows:
            rows[self.running] = _row_of(self.running, "running")
        return sorted(rows.values(), key=lambda row: row.name, reverse=True)

    async def run(self) -> None:
        """Make the requested backups until cancelled. A backup under way then is ended, and leaves nothing that could pass for whole."""
        if self._folder is None:
            return
        await trio.to_thread.run_sync(_clear, self._folder)
        await self._note_newest()
        while True:
            while self.running is None:
                await self._asked.wait()
            try:
                await self._make(self.running)
                await self._note_newest()
            finally:
                self.running = None

    async def _make(self, name: str) -> None:
        began_s = trio.current_time()
        arguments = [os.fspath(self._journal), os.fspath(self.folder), name, str(self.kept)]
        told: dict[str, Any] = {}
        try:
            done = await trio.run_process(
                [sys.executable, "-m", "maxam.gateway.backups", *arguments],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=child_environment(),
            )
            if done.returncode == 0:
                told = json.loads(done.stdout)
            last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            problem = last_line[:_REASON_CHARACTERS_MAX] or f"its process ended with {done.returncode}"
        except OSError as error:
            problem = f"there is no process to be had: {error}"
        seconds = f"{trio.current_time() - began_s:.3f}"
        if told:
            self.made += 1
            self.failure = ""
            figures = {key: told[key] for key in ("folder", "head", "files", "bytes", "copied")}
            log_event(logging.INFO, "backup-made", **figures, removed=" ".join(told["removed"]), seconds=seconds)
            await self._copy(name)
            return
        self.failed += 1
        self.failure = f"{name}: {problem}"
        self._failures.append(_row_of(name, "failed", problem))
        action = "see error, and have another one made"
        log_event(logging.ERROR, "backup-failed", backup=name, error=problem, seconds=seconds, action=action)

    async def _copy(self, name: str) -> None:
        """Have a backup copied to the other place, if there is one."""
        if self.hook is None:
            return
        began_s = trio.current_time()
        problem = await self.hook.run(name)
        seconds = f"{trio.current_time() - began_s:.3f}"
        self.copy_failure = f"{name}: {problem}" if problem else ""
        if problem:
            action = "see error, then `maxam-admin backup create`"
            log_event(logging.ERROR, "backup-not-copied", backup=name, error=problem, seconds=seconds, action=action)
        else:
            log_event(logging.INFO, "backup-copied", backup=name, seconds=seconds)

    async def _note_newest(self) -> None:
        rows = await trio.to_thread.run_sync(self._look, self.folder, None)
        whole = [row for row in rows if row.state == "done"]
        self.newest = max(whole, key=lambda row: row.begun_at_us, default=None)
        self._looked = True

    def _look(self, folder: Path, running: str | None) -> list[BackupRow]:
        """Read the folder, in a thread."""
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names are wanted
        except OSError:  # not made yet, or gone: then there is none
            return []
        others = _made_by_others(folder)
        copied = None if self.hook is None else self.hook.copied()
        rows = []
        for found in names:
            name = found.removesuffix(UNFINISHED)
            if not _NAME.fullmatch(name):
                continue
            if name == running:  # though it may be whole: it is done when its process is
                rows.append(_row_of(name, "running"))
            elif name == found:
                rows.append(self._whole(folder, name, copied))
            elif others:
                rows.append(_row_of(name, "running"))
            else:
                rows.append(_row_of(name, "failed", _ENDED))
        self._manifests = {row.name: row for row in rows if row.state == "done"}
        return rows

    def _whole(self, folder: Path, name: str, copied: frozenset[str] | None) -> BackupRow:
        was_copied = None if copied is None else name in copied
        reason = self.copy_failure.removeprefix(f"{name}: ") if self.copy_failure.startswith(name) else ""
        known = self._manifests.get(name)
        if known is not None and (folder / name / MANIFEST).exists():
            return replace(known, copied=was_copied, reason=reason)
        try:
            manifest = read_manifest(f"{folder}/{name}", OsDisk())
        except (JournalError, OSError) as error:
            return _row_of(name, "failed", str(error))
        size = sum(file.bytes for file in manifest.files)
        verified = manifest.verified
        return BackupRow(
            name, "done", _begun_at_us(name), manifest.head, size, len(manifest.files), verified, was_copied, reason
        )


def name_of(now_s: float) -> str:
    """Return the name of a backup that is begun then. Later ones sort after it."""
    return datetime.fromtimestamp(now_s, UTC).strftime(_NAME_FORMAT)


def _row_of(name: str, state: State, reason: str = "") -> BackupRow:
    return BackupRow(name, state, _begun_at_us(name), reason=reason)


def _begun_at_us(name: str) -> int:
    try:
        moment = datetime.strptime(name, _NAME_FORMAT).replace(tzinfo=UTC)
    except ValueError:  # month 13 matches the pattern too
        return 0
    return round(moment.timestamp() * 1e6)


def _made_by_others(folder: Path) -> bool:
    """Return True if a process holds the lock of the folder. It is not tried: that could hinder one that is about to begin."""
    try:
        with (folder / LOCK).open("rb") as file:
            told = Path(f"/proc/self/fdinfo/{file.fileno()}").read_text()
            inode = os.fstat(file.fileno()).st_ino
        held = f" {_device_of_mount(told)}:{inode} "  # another disk, such as the journal's, may give its lock the same number
        return held in Path("/proc/locks").read_text()
    except (OSError, LookupError):  # there is none, or nothing to ask: then the process that would make one finds out
        return False


def _device_of_mount(told: str) -> str:
    """Return the kernel's name of the file system of an open file in /proc/locks, by its fdinfo. On some, `st_dev` is another's.

    Raises:
        LookupError: The kernel does not report it.
        OSError: The same.
    """
    mount = dict(line.split(":", 1) for line in told.splitlines())["mnt_id"].strip()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        number, _, device = line.split(" ", 3)[:3]
        if number == mount:
            major, minor = map(int, device.split(":"))
            return f"{major:02x}:{minor:02x}"
    raise LookupError(mount)


def _clear(folder: Path) -> None:
    """Remove what a crash of the gateway, or of the machine, left behind, unless the process that makes it lives on."""
    disk = OsDisk()
    with suppress(OSError):  # there is none yet, or the holder of the lock cleans up
        lock = disk.lock(f"{folder}/{LOCK}")
        try:
            clear(os.fspath(folder), disk)
        finally:
            disk.close(lock)


def main() -> int:
    """Run the process; what was made goes to standard output, as JSON."""
    enter_background(_NICENESS)
    journal, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    try:
        if folder.is_relative_to(journal):
            raise ConfigurationError(f"{folder} is in the journal {journal}: name a folder elsewhere")
        done = back_up(os.fspath(journal), os.fspath(folder), sys.argv[3], OsDisk(), int(sys.argv[4]))
    except MaxamError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'the disk'}: {error.strerror}\n")
        return 1
    json.dump(asdict(done), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
