"""The operator's command that copies each backup to another place: `[admin] backup_hook`."""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import trio

from maxam.config import AdminSettings

_COPIED: Final = "copied"  # file beside the backups: names of those that were copied, one a line
_TAIL_BYTES_MAX: Final = 500  # of the output of a command that failed
_TAIL_LINES_MAX: Final = 2


@final
class BackupHook:
    """Runs the command, and remembers which backups it has copied."""

    def __init__(self, command: tuple[str, ...], timeout_s: float, folder: Path) -> None:
        """Make one that has run nothing.

        Args:
            command: Program and first arguments. The path of the backup follows as the last argument.
            timeout_s: Seconds after which the command is killed.
            folder: Folder of the backups.
        """
        self._command: Final = command
        self._timeout_s: Final = timeout_s
        self._folder: Final = folder.absolute()

    @staticmethod
    def of(settings: AdminSettings) -> "BackupHook | None":
        """Return the hook that is configured, or None."""
        if settings.backups is None or not settings.backup_hook:
            return None
        return BackupHook(settings.backup_hook, settings.backup_hook_timeout_s, settings.backups)

    async def run(self, name: str) -> str:
        """Run the command for a backup. Return the reason why it failed, or an empty text. Cancelled, it kills the command."""
        with tempfile.TemporaryFile() as output:
            try:
                process = await trio.lowlevel.open_process(
                    [*self._command, os.fspath(self._folder / name)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    start_new_session=True,  # its children are killed with it
                )
            except OSError as error:
                return f"{self._command[0]}: {error.strerror}"
            try:
                with trio.move_on_after(self._timeout_s):
                    await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    status = await process.wait()
            if status == 0:
                await trio.to_thread.run_sync(self._note, name)
                return ""
            if status == -signal.SIGKILL:
                ended = f"was killed, after {self._timeout_s:g} s at the latest"
            else:
                ended = f"ended with {status}" if status > 0 else f"was ended by the signal {-status}"
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES_MAX))
            told = output.read().decode(errors="replace").strip().splitlines()[-_TAIL_LINES_MAX:]
            return ": ".join([f"{self._command[0]} {ended}", *told])

    def copied(self) -> frozenset[str]:
        """Return the names of the backups that were copied. Reads the disk."""
        try:
            return frozenset((self._folder / _COPIED).read_text(encoding="ascii", errors="replace").split())
        except OSError:
            return frozenset()

    def _note(self, name: str) -> None:
        """Add a name, and leave out those of backups that are gone. If it fails, the backup counts as not copied."""
        names = sorted(one for one in self.copied() | {name} if (self._folder / one).is_dir())
        new = self._folder / f"{_COPIED}.new"
        with suppress(OSError):
            new.write_text("".join(f"{one}\n" for one in names), encoding="ascii")
            new.replace(self._folder / _COPIED)
