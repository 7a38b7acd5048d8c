"""Where `maxam-admin` learns which gateway it asks and who it is: an option, else a variable, else a small file, else a default.

The file is `client.toml` in the user's configuration folder, or for the whole machine `/etc/maxam/client.toml`. Its keys are those of
`KEYS`; a table `[profiles.NAME]` holds what is different for one gateway of several.
"""

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import click
from click.core import ParameterSource

from maxam.admin.remote import Credentials
from maxam.errors import ConfigurationError

DEFAULT_GATEWAY: Final = "localhost:8643"
MACHINE_FILE: Final = Path("/etc/maxam/client.toml")
KEYS: Final = ("gateway", "certificate", "key", "ca", "server_name")
FILES: Final = ("certificate", "key", "ca")
PROFILES: Final = "profiles"
NO_ORIGIN: Final = "default"


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value, None where nothing sets it, and what says so."""

    key: str
    value: str | None
    origin: str  # an option, a variable, or a file with the key's place


@final
@dataclass(frozen=True, slots=True)
class Given:
    """What options and variables say; no file was looked at yet, so that verbs without a gateway need none.

    Attributes:
        settings: By key, those that are given.
        file: The client configuration that was asked for; None: the user's, else the machine's, where there is one.
        profile: Which of its profiles; None: none.
    """

    settings: dict[str, Setting]
    file: Path | None
    profile: str | None

    def resolve(self) -> tuple[Setting, ...]:
        """Return all settings in the order of `KEYS`; raises ConfigurationError naming file and place of what is wrong."""
        path = self.file or next((path for path in default_files() if _is_there(path)), None)
        found: dict[str, Setting] = {}
        if path is not None:
            found = _read(path, self.profile)
        elif self.profile is not None:
            where = " nor ".join(str(path) for path in default_files())
            raise ConfigurationError(f"there is no profile {self.profile!r}: there is neither {where}")
        found |= self.settings
        missing = {key: Setting(key, None, NO_ORIGIN) for key in KEYS}
        missing["gateway"] = Setting("gateway", DEFAULT_GATEWAY, NO_ORIGIN)
        return tuple((missing | found).values())

    def credentials(self) -> Credentials:
        """Return what a connection needs; raises ConfigurationError as `resolve` does."""
        gateway, certificate, key, ca, server_name = [setting.value for setting in self.resolve()]
        return Credentials(
            gateway or DEFAULT_GATEWAY,
            None if certificate is None else Path(certificate),
            None if key is None else Path(key),
            None if ca is None else Path(ca),
            server_name,
            str(self.file or default_files()[0]),
        )


def given_options(root: click.Context) -> Given:
    """Return what the options of the whole command, and their variables, say."""
    settings = {}
    for key in KEYS:
        value = root.params.get(key)
        if value is not None:
            named = root.get_parameter_source(key) is ParameterSource.COMMANDLINE
            settings[key] = Setting(key, str(value), "--" + key.replace("_", "-") if named else f"MAXAM_{key.upper()}")
    return Given(settings, root.params.get("client_config"), root.params.get("profile"))


def default_files() -> tuple[Path, ...]:
    """Return where a client configuration is looked for: the user's, then the machine's. A service may be a user without a home."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(folder).expanduser() / "maxam/client.toml", MACHINE_FILE
    except RuntimeError:
        return (MACHINE_FILE,)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:  # the home of whoever called `runuser` or `setpriv`
        return False


def _read(path: Path, profile: str | None) -> dict[str, Setting]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"the client configuration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the client configuration {path} is not TOML: {error}") from error
    profiles = content.pop(PROFILES, {})
    if not (isinstance(profiles, dict) and all(isinstance(table, dict) for table in profiles.values())):
        raise ConfigurationError(f"{path}: {PROFILES} must be tables [{PROFILES}.NAME]")
    settings = {setting.key: setting for setting in _settings(path, "", content)}
    for (
        name,
        table,
    ) in profiles.items():  # all are checked: a mistake is told before the day on which that one is needed
        own = {setting.key: setting for setting in _settings(path, f"{PROFILES}.{name}.", table)}
        if name == profile:
            settings |= own
    if profile is not None and profile not in profiles:
        there_are = f"it has {', '.join(profiles)}" if profiles else "it has none"
        raise ConfigurationError(f"{path} has no profile {profile!r}; {there_are}")
    return settings


def _settings(path: Path, place: str, table: dict[str, object]) -> Iterator[Setting]:
    for key, value in table.items():
        if key not in KEYS:
            known = ", ".join(KEYS if place else (*KEYS, f"[{PROFILES}.NAME]"))
            raise ConfigurationError(f"{path}: unknown key {place}{key}; there are {known}")
        if not (isinstance(value, str) and value):
            raise ConfigurationError(f"{path}: {place}{key} must be a text, found {value!r}")
        whole = str(path.parent / Path(value).expanduser()) if key in FILES else value
        yield Setting(key, whole, f"{path}: {place}{key}")
