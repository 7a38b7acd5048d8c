"""The configuration of a bridge: `bridge.toml`, read and checked."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from maxam.bridge.wishes import PRIORITIES, Plan, PlannedRoute
from maxam.config import Limits, LogSettings, mistake_in, read_section, unknown
from maxam.errors import ConfigurationError, GlobError
from maxam.files import read_file
from maxam.glob_sets import find_destination
from maxam.globs import Glob, compile_glob, destination_problem
from maxam.https_client import RemoteError, split_address
from maxam.links import DOWN, ROUTES_MAX, STORE, TIMEOUT_S_MAX, UP, LinkRoute
from maxam.setting_values import MistakeError, bounded
from maxam.stomp.events import INTERVAL_MS_MAX, INTERVAL_MS_MIN

SECTIONS: Final = ("from", "to", "bridge", "log", "route")
_STORE: Final = re.compile(r"[A-Za-z0-9_-]{1,16}")
_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class SideSettings:
    """The gateway at one side, and the certificate of the bridge there."""

    name: str  # of the venue, or of the centre: one token of a destination
    addresses: tuple[str, ...]  # HOST:PORT of its STOMP listener, tried in turn
    certificate: Path
    key: Path
    ca: Path  # signed the certificate of the gateway
    server_name: str = ""  # that the gateway's certificate must carry. Empty: any that `ca` signed
    virtual_host: str = "MAXVAPI"
    admin: str = ""  # HOST:PORT of its admin listener, to compare schemas. Empty: they are not compared

    def stomp_addresses(self) -> list[tuple[str, int]]:
        """Return hosts and ports."""
        return [split_address(text, "addresses") for text in self.addresses]


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """Limits of the bridge."""

    # SENDs to one side without RECEIPT. They grow old on a thin line
    window: int = bounded(256, 1, 100_000, "more under way only makes values stale")
    link_timeout_s: int = bounded(30, 3, TIMEOUT_S_MAX, "the bridge publishes its state three times in this time")


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Topics that the bridge forwards."""

    glob: str  # of the topics at the sending side
    store: str  # of the topics at the receiving side
    direction: Literal["up", "down"] = "up"  # up: from the venue to the centre
    min_interval_ms: int = bounded(0, 0, INTERVAL_MS_MAX, "0 sets no interval")  # between two values of one topic
    priority: Literal["high", "normal", "low"] = "normal"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A whole `bridge.toml`."""

    venue: SideSettings
    centre: SideSettings
    bridge: BridgeSettings
    routes: tuple[RouteSettings, ...]
    log: LogSettings

    def plan(self, host: str) -> Plan:
        """Return the configuration of the relay. `host` is the name of this machine."""
        routes = [
            PlannedRoute(
                LinkRoute(UP if route.direction == "up" else DOWN, route.glob, route.store),
                PRIORITIES.index(route.priority),
                route.min_interval_ms,
            )
            for route in self.routes
        ]
        return Plan(
            self.venue.name, self.centre.name, tuple(routes), self.bridge.window, self.bridge.link_timeout_s, host
        )


def read_configuration(path: Path) -> Configuration:
    """Read and check a `bridge.toml`.

    Raises:
        ConfigurationError: It cannot be used. The text has file, line, fault and remedy.
    """
    data = read_file(path, "the configuration file", "give its path with --config")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return load_configuration(text, str(path), path.parent)


def load_configuration(text: str, source: str, folder: Path) -> Configuration:
    """Parse the text of a `bridge.toml`. The arguments and errors are those of `maxam.config.load_settings`."""
    try:
        return _load(text, folder)
    except MistakeError as error:
        raise mistake_in(text, source, error) from error


def _load(text: str, folder: Path) -> Configuration:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MistakeError("", f"not valid TOML: {error}. Correct the syntax there") from error
    for name in tables:
        if name not in SECTIONS:
            raise unknown(name, "section", f"[{name}]", name, SECTIONS)
    for name in ("from", "to", "bridge", "log"):
        if not isinstance(tables.get(name, {}), dict):
            raise MistakeError(name, f"{name}: expected a section [{name}]")
    rows = tables.get("route", [])
    if not rows or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MistakeError("route", "there is no [[route]], so nothing would be forwarded; add one with glob and store")
    configuration = Configuration(
        read_section("from", SideSettings, tables.get("from", {}), folder),
        read_section("to", SideSettings, tables.get("to", {}), folder),
        read_section("bridge", BridgeSettings, tables.get("bridge", {}), folder),
        tuple([read_section(f"route[{index}]", RouteSettings, row, folder) for index, row in enumerate(rows)]),
        read_section("log", LogSettings, tables.get("log", {}), folder),
    )
    _check_sides(configuration)
    _check_routes(configuration)
    return configuration


def _check_sides(configuration: Configuration) -> None:
    for section, side in (("from", configuration.venue), ("to", configuration.centre)):
        if "." in side.name or "," in side.name or destination_problem(f"S/{side.name}".encode(), 100) is not None:
            raise MistakeError(
                f"{section}.name",
                f"[{section}] name = {side.name!r} cannot be a token of a destination; use letters, digits, _ and -",
            )
        for key, texts in (("addresses", side.addresses), ("admin", (side.admin,) if side.admin else ())):
            for text in texts:
                try:
                    split_address(text, f"[{section}] {key}")
                except RemoteError as error:
                    raise MistakeError(f"{section}.{key}", str(error)) from error
    if configuration.venue.name == configuration.centre.name:
        raise MistakeError("to.name", "[to] name equals [from] name; give each gateway a name of its own")


def _check_routes(configuration: Configuration) -> None:
    here: list[Glob] = []
    there: list[Glob] = []
    routes = configuration.routes
    if len(routes) > ROUTES_MAX:
        raise MistakeError(
            "route", f"there are {len(routes)} [[route]], at most {ROUTES_MAX} are possible; use wider globs"
        )
    for index, route in enumerate(routes):
        place = f"route[{index}]"
        if not _STORE.fullmatch(route.store) or route.store == STORE[:-1].decode():
            raise MistakeError(
                f"{place}.store",
                f"[[route]] store = {route.store!r}: expected 1 to 16 of A-Z a-z 0-9 _ -, and not B, which has the state of bridges",
            )
        if not _STORE.fullmatch(route.glob.partition("/")[0]) or "/" not in route.glob:
            raise MistakeError(
                f"{place}.glob",
                f"[[route]] glob = {route.glob!r}: expected a store without wildcards first, such as X/EGM.**",
            )
        if 0 < route.min_interval_ms < INTERVAL_MS_MIN:
            raise MistakeError(
                f"{place}.min_interval_ms", f"[[route]] min_interval_ms: expected 0, or at least {INTERVAL_MS_MIN}"
            )
        mapped = LinkRoute(UP, route.glob, route.store).mapped
        for text, globs in ((route.glob, here), (mapped, there)):
            try:
                globs.append(compile_glob(text, _LIMITS))
            except GlobError as error:
                raise MistakeError(f"{place}.glob", f"[[route]] glob {text}: {error}") from error
    for one, first in enumerate(routes):
        for other, second in enumerate(routes):
            if first.direction != second.direction:
                topic = find_destination([[there[one]], [here[other]]])
                if topic is not None:
                    raise MistakeError(
                        f"route[{other}].glob",
                        f"[[route]] {second.glob} ({second.direction}) would send back {topic}, which the route {first.glob}"
                        f" ({first.direction}) brings; make one of them narrower",
                    )
            elif one < other:
                topic = find_destination([[there[one]], [there[other]]])
                if topic is not None:
                    raise MistakeError(
                        f"route[{other}].glob",
                        f"[[route]] {first.glob} and {second.glob} would both publish {topic}; make one of them narrower",
                    )
