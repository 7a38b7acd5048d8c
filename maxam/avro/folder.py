"""Read a schema folder: the one reader of the gateway, `maxam-admin` and the pipeline."""

import stat
from pathlib import Path
from typing import Final

from maxam.avro.registry import Registry, load_registry
from maxam.avro.registry_file import REGISTRY_FILE
from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.files import read_folder

SCHEMA_SUFFIXES: Final = (".avsc", ".toml", ".lock")


def read_registry(folder: Path, limits: Limits) -> Registry:
    """Read a schema folder as a registry.

    Raises:
        ConfigurationError: The folder cannot be read, or what it holds is not a valid registry.
    """
    return load_registry(read_schema_texts(folder, limits), limits)


def read_schema_texts(folder: Path, limits: Limits | None = None) -> dict[str, bytes]:
    """Return the content of the files of a schema folder by their paths relative to it.

    Raises:
        ConfigurationError: The folder or its registry file is missing or cannot be read, or the folder exceeds a limit.
    """
    # Check the registry file first. A folder without one is hardly a schema folder, and its other files are not to be read.
    for path in (folder, folder / REGISTRY_FILE):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise ConfigurationError(
                f"[schemas] folder: cannot read {path}: {error.strerror}; correct the path of the folder or its permissions,"
                " or write one"
            ) from error
        if path is folder and not stat.S_ISDIR(mode):
            raise ConfigurationError(f"[schemas] folder: {folder} is not a folder; correct the path")
    try:
        return read_folder(folder, SCHEMA_SUFFIXES, limits or Limits())
    except ConfigurationError as error:
        raise ConfigurationError(f"[schemas] folder: {error}") from error
