"""The exit codes of all programs."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    PARTIAL = 5
    REPLACED = 6


MEANINGS: Final = {
    ExitCode.DONE: "The command did what it was asked to do.",
    ExitCode.CHECK_FAILED: "A check failed, or the request was refused: a rejected SEND, a damaged file, an invalid schema.",
    ExitCode.USAGE: "The command line is wrong. Nothing was done.",
    ExitCode.NOT_FOUND: "The thing that the command names does not exist: a topic, a session, a file.",
    ExitCode.UNREACHABLE: "The gateway cannot be reached, or does not allow it; or a file may not be read.",
    ExitCode.PARTIAL: "The command is done, but part of its input could not be read. Standard error lists the parts.",
    ExitCode.REPLACED: "Another process has taken the place of this one, so it has ended and must not come back by itself.",
}


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an expected error: its own attribute `exit_code`, else that of the nearest cause that has one."""
    at: BaseException | None = error
    while at is not None:
        found = getattr(at, "exit_code", None)
        if isinstance(found, ExitCode):
            return found
        match at:
            case FileNotFoundError() | NotADirectoryError():
                return ExitCode.NOT_FOUND
            case PermissionError() | ConnectionError() | TimeoutError():
                return ExitCode.UNREACHABLE
            case _:
                at = at.__cause__
    return ExitCode.CHECK_FAILED
