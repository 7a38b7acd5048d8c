"""Addresses and certificate of a gateway's client, for all programs: the options, their variables, `client.toml` and the defaults.

The first of these that sets a key decides. `client.toml` is in the user's configuration folder, or for the whole machine in `/etc/maxam`.
Its keys are those of `KEYS`. A table `[profiles.NAME]` holds the keys that are different for one gateway of several.
"""

import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

import click
from click.core import ParameterSource

from maxam.errors import ConfigurationError
from maxam.https_client import Credentials
from maxam.terminal.options import RenamedOption

DEFAULTS: Final = {"admin": "localhost:8643", "server": "localhost:61614"}
MACHINE_FILE: Final = Path("/etc/maxam/client.toml")
KEYS: Final = ("admin", "server", "cert", "key", "ca", "server_name")
FILES: Final = ("cert", "key", "ca")
FORMER: Final = {"gateway": "admin", "certificate": "cert"}  # former names of keys
PROFILES: Final = "profiles"
NO_ORIGIN: Final = "default"
_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_F = TypeVar("_F", bound=Callable[..., object])


def server_option(*former: str, default: str = DEFAULTS["server"], several: bool = False) -> Callable[[_F], _F]:
    """Return the option for the address of the STOMP listener, or of several, with its former names in one program."""
    further = " Separate several addresses, such as those of a cluster, by commas." if several else ""
    return click.option(
        "-s",
        "--server",
        cls=RenamedOption,
        former=former,
        envvar=["MAXAM_SERVER", "MAXAM_STOMP"],
        show_envvar=True,
        metavar="HOST:PORT",
        help=f"STOMP listener of the gateway.{further} [default: {default}]",
    )


admin_option: Final = click.option(
    "-a",
    "--admin",
    cls=RenamedOption,
    former=["--gateway"],
    envvar=["MAXAM_ADMIN", "MAXAM_GATEWAY"],
    show_envvar=True,
    metavar="HOST:PORT",
    help=f"Admin listener of the gateway. [default: {DEFAULTS['admin']}]",
)


def identity_options(command: _F) -> _F:
    """Give a command the options for certificate, CA and profile."""
    for option in reversed(_IDENTITY):
        command = option(command)
    return command


_IDENTITY: Final = (
    click.option(
        "--cert",
        cls=RenamedOption,
        former=["--certificate"],
        envvar=["MAXAM_CERT", "MAXAM_CERTIFICATE"],
        show_envvar=True,
        type=_FILE,
        help="Certificate of the client, PEM.",
    ),
    click.option(
        "--key",
        envvar="MAXAM_KEY",
        show_envvar=True,
        type=_FILE,
        help="Private key of the client, PEM, without a password.",
    ),
    click.option(
        "--ca",
        envvar="MAXAM_CA",
        show_envvar=True,
        type=_FILE,
        help="Certificate of the CA that signed the gateway's certificate, PEM.",
    ),
    click.option(
        "--server-name",
        envvar="MAXAM_SERVER_NAME",
        show_envvar=True,
        metavar="NAME",
        help="Name that the gateway's certificate must carry. [default: any that the CA signed]",
    ),
    click.option(
        "--client-config",
        envvar="MAXAM_CLIENT_CONFIG",
        show_envvar=True,
        type=_FILE,
        help="Client configuration with defaults of these options. [default: ~/.config/maxam/client.toml, /etc/maxam/client.toml]",
    ),
    click.option(
        "-p",
        "--profile",
        envvar="MAXAM_PROFILE",
        show_envvar=True,
        metavar="NAME",
        help="Profile of the client configuration, one per gateway.",
    ),
)
PARAMETERS: Final = (*KEYS, "client_config", "profile")  # of a command with all these options


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        key: One of `KEYS`.
        value: None if nothing sets it.
        origin: An option, a variable, or a file with the key's place.
    """

    key: str
    value: str | None
    origin: str


@final
@dataclass(frozen=True, slots=True)
class Given:
    """The settings of options and variables. No file has been read yet, so commands without a gateway need none.

    Attributes:
        settings: Those that are given, by key.
        file: The client configuration to read. None: the user's, else the machine's, if there is one.
        profile: Name of the profile in it, or None.
    """

    settings: dict[str, Setting]
    file: Path | None
    profile: str | None

    def resolve(self) -> dict[str, Setting]:
        """Return all settings in the order of `KEYS`; raises ConfigurationError naming file and place of what is wrong."""
        path = self.file or next((path for path in default_files() if _is_there(path)), None)
        found: dict[str, Setting] = {}
        if path is not None:
            found = _read(path, self.profile)
        elif self.profile is not None:
            where = " nor ".join(str(path) for path in default_files())
            raise ConfigurationError(f"there is no profile {self.profile!r}: there is neither {where}")
        missing = {key: Setting(key, DEFAULTS.get(key), NO_ORIGIN) for key in KEYS}
        return missing | found | self.settings

    def credentials(self) -> Credentials:
        """Return what a connection needs; raises ConfigurationError as `resolve` does."""
        found = {key: setting.value for key, setting in self.resolve().items()}
        certificate, key, ca = [None if (path := found[name]) is None else Path(path) for name in FILES]
        file = str(self.file or default_files()[0])
        return Credentials(
            found["admin"] or "", certificate, key, ca, found["server_name"], file, found["server"] or ""
        )


def given_options(context: click.Context) -> Given:
    """Return the settings of a command's options and of their variables."""
    settings = {}
    for option in context.command.params:
        key = option.name or ""
        if key in KEYS and context.params.get(key) is not None:
            named = context.get_parameter_source(key) is ParameterSource.COMMANDLINE
            origin = "--" + key.replace("_", "-") if named else _variable(option)
            settings[key] = Setting(key, str(context.params[key]), origin)
    return Given(settings, context.params.get("client_config"), context.params.get("profile"))


def _variable(option: click.Parameter) -> str:
    """Return the variable that sets an option: the present one, else a former one."""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return next((name for name in names if os.environ.get(name)), names[0])


def default_files() -> tuple[Path, ...]:
    """Return the places of a client configuration: the user's, then the machine's. A service may be a user without a home."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(folder).expanduser() / "maxam/client.toml", MACHINE_FILE
    except RuntimeError:
        return (MACHINE_FILE,)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:  # the home of the user who called `runuser` or `setpriv`
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
    for name, table in profiles.items():  # all are checked: a mistake is reported before that profile is needed
        own = {setting.key: setting for setting in _settings(path, f"{PROFILES}.{name}.", table)}
        if name == profile:
            settings |= own
    if profile is not None and profile not in profiles:
        there_are = f"it has {', '.join(profiles)}" if profiles else "it has none"
        raise ConfigurationError(f"{path} has no profile {profile!r}; {there_are}")
    return settings


def _settings(path: Path, place: str, table: dict[str, object]) -> Iterator[Setting]:
    for name, value in table.items():
        key = FORMER.get(name, name)
        if key not in KEYS:
            known = ", ".join(KEYS if place else (*KEYS, f"[{PROFILES}.NAME]"))
            raise ConfigurationError(f"{path}: unknown key {place}{name}; there are {known}")
        if not (isinstance(value, str) and value):
            raise ConfigurationError(f"{path}: {place}{name} must be a text, found {value!r}")
        whole = str(path.parent / Path(value).expanduser()) if key in FILES else value
        yield Setting(key, whole, f"{path}: {place}{name}")
