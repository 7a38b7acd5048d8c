"""Read what operators and integrators wrote: configuration, policy, schema folder, certificates."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxam.avro.registry import REGISTRY_FILE, Registry, load_registry
from maxam.broker.policy import Policy, load_policy
from maxam.config import Limits, Settings, load_settings
from maxam.errors import ConfigurationError
from maxam.gateway.tls import server_context

_SCHEMA_SUFFIXES: Final = (".avsc", ".toml", ".lock")
_FILE_BYTES_MAX: Final = 16_777_216  # of one such file: a mistaken path must not fill the memory


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that can be reloaded, read and checked as a whole."""

    policy: Policy
    registry: Registry
    tls: ssl.SSLContext


def read_settings(path: Path) -> Settings:
    """Read the configuration file; raise ConfigurationError when it cannot be used."""
    data = _read(path, "the configuration file", "give its path with --config")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return load_settings(text, str(path), path.parent)


def read_sources(settings: Settings) -> Sources:
    """Read policy, schemas and certificates; raise ConfigurationError when any of them cannot be used."""
    return Sources(
        read_policy(settings.policy.file, settings.limits),
        read_registry(settings.schemas.folder, settings.limits),
        server_context(settings.tls),
    )


def read_policy(path: Path, limits: Limits) -> Policy:
    """Read a policy; raise ConfigurationError when it cannot be used."""
    return load_policy(_read(path, "[policy] file", "correct the path or write one"), str(path), limits)


def read_registry(folder: Path, limits: Limits) -> Registry:
    """Read a schema folder; raise ConfigurationError when it cannot be used."""
    return load_registry(read_schema_texts(folder), limits)


def read_schema_texts(folder: Path) -> dict[str, bytes]:
    """Read the files of a schema folder, by their paths in it; raise ConfigurationError when that cannot be done."""
    if not folder.is_dir():
        raise ConfigurationError(f"[schemas] folder: {folder} is not a folder; correct the path")
    # First: without it this is hardly a schema folder, and what else is in there is nobody's business.
    registry = _read(folder / REGISTRY_FILE, "[schemas] folder", "correct the path of the folder or write one")
    root = folder.resolve()
    texts = {REGISTRY_FILE: registry}
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix not in _SCHEMA_SUFFIXES or name.startswith("."):
                continue
            try:
                target = path.resolve()
            except (OSError, RuntimeError) as error:  # a loop of links
                raise ConfigurationError(f"[schemas] folder: cannot follow {path}: {error}; remove the link") from error
            if not target.is_relative_to(root):
                raise ConfigurationError(
                    f"[schemas] folder: {path} leads out of {folder}; put a copy of the file there"
                )
            texts[path.relative_to(folder).as_posix()] = _read(path, "[schemas] folder", "make it readable")
    return texts


def _read(path: Path, what: str, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{what}: cannot read {path}: {error.strerror}; {remedy}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigurationError(f"{what}: {path} is larger than {_FILE_BYTES_MAX} bytes; is it the right file?")
    return data
