"""The errors that the pipeline raises."""

import errno
import os
from typing import Final, final

from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode

_SPACE: Final = "Free space on its disk"
_RIGHT: Final = "Give this user the right to it, or name another folder"
_REMEDIES: Final = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: _RIGHT,
}


class PipelineError(MaxamError):
    """A job cannot do what it was asked to. The text has cause, place and remedy."""

    code = "job-failed"


@final
class MissingError(PipelineError):
    """A file or folder that a job needs does not exist."""

    code = "file-not-found"
    exit_code = ExitCode.NOT_FOUND


@final
class OtherFilesError(PipelineError):
    """Another program added or removed files of a table that were to be replaced. Nothing was replaced."""


@final
class NotInstalledError(PipelineError):
    """A package of the extra maxam[pipeline] is not installed."""

    exit_code = ExitCode.USAGE


def not_installed(error: ModuleNotFoundError, extra: str = "pipeline") -> PipelineError:
    """Return the error for a missing package of the pipeline's. A missing module of maxam's own is a bug, and raised again.

    Args:
        error: Of the import.
        extra: The extra of maxam that has the package.
    """
    if error.name is None or error.name.partition(".")[0] == "maxam":
        raise error
    return NotInstalledError(f"the pipeline needs {error.name.partition('.')[0]}: install maxam[{extra}]")


def unusable(path: str | os.PathLike[str], error: OSError) -> PipelineError:
    """Return the error of a file or folder that cannot be read or written, with its cause and a remedy.

    Args:
        path: Used in the text if the error has no file name.
        error: Of the system, or of pyarrow, whose text is not only the cause.
    """
    name = os.fspath(path if error.filename is None else error.filename)
    cause = os.strerror(error.errno) if error.errno else str(error)
    remedy = _REMEDIES.get(error.errno or 0, "Check the disk")
    return PipelineError(f"{name}: {cause}. {remedy}, and run the command again")
