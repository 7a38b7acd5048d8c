"""Settings as frozen, validated objects with units in their names."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from maxam.errors import ConfigurationError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit that protects the broker from one peer or one mistake.

    Each can be set under `[limits]` of the configuration file; the comment gives unit and reason.
    """

    # what one frame may hold
    frame_headers_max: int = 100  # header lines of one frame
    frame_header_line_bytes_max: int = 8192  # one header line without its end
    frame_headers_bytes_max: int = 65536  # command line and all header lines of one frame
    frame_body_bytes_max: int = 4_194_304  # body of one frame
    connect_frame_bytes_max: int = 8192  # a whole CONNECT: a stranger may not make us hold more
    destination_bytes_max: int = 512  # SEND destination and SUBSCRIBE glob, each
    subscription_id_bytes_max: int = 128  # SUBSCRIBE id
    glob_wildcards_max: int = 32  # `*`, `**`, `?` and sets of one glob, so that matching stays cheap
    # what one connection, session or principal may hold
    window: int = 100  # un-acked messages of one connection, whatever the link
    subscriptions_per_session_max: int = 1000  # each costs a place per matching topic
    sessions_per_principal_max: int = 1000  # connected or waiting for their client
    takeovers_per_minute_max: int = 30  # of one session, so that two clients with one id cannot spin the broker
    connect_receive_bytes_max: int = 4096  # received at a time before CONNECTED: a stranger may not make us hold more
    receipts_pending_bytes_max: int = 262_144  # RECEIPTs waiting for one connection before its reading pauses
    connections_unauthenticated_max: int = 256  # before CONNECTED, apart from those behind it
    connections_max: int = 10_000  # of clients, in all; fewer when the system allows fewer open files
    # what the broker as a whole may hold
    memory_bytes_max: int = (
        0  # in use by the gateway; 0: 45 % of what there is, as building a snapshot may need as much again
    )
    topics_max: int = 5_000_000  # live topics: a runaway publisher stops here, not at the machine's memory
    schema_files_max: int = 20_000  # files and folders in the schema folder, of any kind: a mistaken path ends soon
    schema_bytes_max: int = 67_108_864  # what all files of the schema folder hold together
    # rejected SENDs on their way to a journal of their own
    rejected_queue_records_max: int = 10_000  # waiting for the disk
    rejected_queue_bytes_max: int = 8_388_608  # the same, or one SEND alone
    rejected_principal_bytes_per_s: int = 4096  # of one principal in the long run: it must not crowd out others
    rejected_principal_burst_bytes: int = 4_194_304  # of one principal before that rate holds
    # rejected SENDs that operators can look at and send again
    quarantine_records_max: int = 1000  # the last ones, a fair share of each principal's
    quarantine_bytes_max: int = 16_777_216  # that they may take, some 1 KiB of each beside headers and body
    # candidate versions that are tried on live traffic
    shadow_bytes_per_s_max: int = (
        262_144  # of bodies, each counted with 256 more: less than one percent of a processor's time
    )
    # when operators are to be told
    staleness_behind_s: float = 5.0  # a subscription that lacks something for longer is behind: people notice it
    # waits
    tls_handshake_timeout_s: float = 10.0  # absolute
    connect_timeout_s: float = 10.0  # absolute, from the handshake to CONNECTED
    write_timeout_s: float = 30.0  # a peer that takes nothing for so long is closed
    expel_timeout_s: float = 4.0  # for whoever is entitled no more to take what is under way; the whole stays below 5 s
    linger_timeout_s: float = 1.0  # after ERROR or the last RECEIPT, for the peer to read it
    session_expiry_s: float = 604_800.0  # a detached session with durable subscriptions
    source_retention_s: float = 604_800.0  # what a deleted topic keeps of its sources: no retry comes later than that
    acknowledgement_delay_s: float = 0.1  # an ACK without receipt is journalled within this time
    # the gateway's sockets and turns
    handshakes_per_pass_max: int = 4  # TLS handshake steps (about 1 ms of CPU each) in one pass of the event loop
    send_unsent_bytes_max: int = 8192  # TCP_NOTSENT_LOWAT: what the kernel holds unsent is stale when it leaves
    send_buffer_bytes_max: int = 65_536  # SO_SNDBUF of one connection, sent and unacknowledged bytes included
    scan_topics_per_pass_max: int = 250  # topics that eager scans look at in one pass of the event loop
    log_lines_per_minute_max: int = 60  # of one kind of event from one peer address; the rest is counted
    stop_timeout_s: float = 8.0  # a graceful stop: then what is left is cut, so that the whole stays below 10 s


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Where STOMP clients connect, and what CONNECT answers them."""

    host: str = "127.0.0.1"
    port: int = 61614  # 0 picks a free one
    virtual_hosts: tuple[str, ...] = ("MAXVAPI",)  # accepted `host` headers; "*" accepts any
    heart_beat_ms: int = 10_000  # both numbers of CONNECTED's heart-beat; never below 10000


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The server's certificate and whose client certificates are accepted; all PEM files."""

    certificate: Path
    key: Path
    client_ca: Path
    crl: Path | None = None
    crl_expired: Literal["warn", "refuse"] = "warn"  # an authority that is late with its list must not stop a venue


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Who may do what."""

    file: Path
    unknown_clients: Literal["refuse", "connect-without-rights"] = "refuse"
    enrolled: Path | None = None  # written by the enrolment listener; what operators write is never rewritten


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """The registry folder."""

    folder: Path
    allow_orphans: bool = False  # may a reload take the rule from topics with values


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where accepted changes are kept, and when files are closed."""

    folder: Path = Path("var/journal")
    durability: Literal["fsync", "none"] = "fsync"
    segment_bytes_max: int = 67_108_864  # a segment is sealed at this size; bounds what Spark waits for
    segment_age_s_max: float = 3600.0  # or at this age, when it holds a change
    snapshot_segments: int = 4  # sealed segments since the last snapshot before the next is built; bounds recovery
    archive_days_max: float = 90.0  # of sealed segments that snapshots stand for, after which they go; 0 keeps them
    archive_bytes_max: int = 53_687_091_200  # of the same in all, the oldest go first; 0 keeps them
    rejected_bytes_max: int = 1_073_741_824  # of rejected SENDs in all; the oldest go first; 0 keeps none
    rejected_days_max: float = 90.0  # of age, for the same
    free_bytes_min: int = 1_073_741_824  # on its disk; with fewer operators are warned, 0: they are not
    reserve_bytes: int = 262_144  # given up when the disk is full, so that ACKs can still be recorded


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Where operators connect."""

    host: str = "127.0.0.1"
    port: int = 8643  # 0 picks a free one
    backups: Path | None = None  # where those go that operators ask for; none: none are made
    backups_kept: int = 7  # of the newest whole ones; the older ones go
    hosts: tuple[str, ...] = ()  # names that it may be called by, besides addresses and its certificate's


@dataclass(frozen=True, slots=True)
class EnrolmentSettings:
    """Where new clients get a certificate for a one-time token, and old ones the next one."""

    folder: Path | None = None  # of the authority, as `maxam-admin certs ca` makes it; none: no enrolment
    passphrase_file: Path | None = None  # opens the authority's key; required then, as a service has nobody to ask
    host: str = "127.0.0.1"
    port: int = 8644  # 0 picks a free one
    server_ca: Path | None = None  # signed the server's certificate, clients pin it; none: the same authority
    certificate_days: int = 90  # of validity: a stolen one is of use for no longer
    overlap_days: float = 7.0  # that a certificate stays valid beside the one that renews it
    token_minutes_max: int = 10_080  # of validity: a token that lies about is a risk
    failures_per_minute_max: int = 10  # refused requests of one address before it is told to wait


@dataclass(frozen=True, slots=True)
class ReloadSettings:
    """When changed files come into force by themselves."""

    watch: bool = True  # False: on SIGHUP and `maxam-admin reload` only
    quiet_s: float = 1.0  # without another change, so that a half-finished pull is not taken
    poll_interval_s: float = 30.0  # the files are looked at so often anyway: network file systems tell of no change


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where it is kept who did what, and how much of it."""

    folder: Path | None = None  # none: beside the journal's folder, which is named like it with `-audit` behind
    file_bytes_max: int = 16_777_216  # a file is followed by the next one before it grows over this
    file_age_s_max: float = 86_400.0  # or at this age
    files_max: int = 90  # the oldest go first; 0 keeps no audit log
    lines_per_minute_max: int = 60  # of one principal, and of all strangers together; the rest is counted


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration of a gateway; every path is absolute or relative to the working folder."""

    tls: TlsSettings
    policy: PolicySettings
    schemas: SchemaSettings
    listener: ListenerSettings = ListenerSettings()
    journal: JournalSettings = JournalSettings()
    admin: AdminSettings = AdminSettings()
    reload: ReloadSettings = ReloadSettings()
    limits: Limits = Limits()
    enrolment: EnrolmentSettings = EnrolmentSettings()
    audit: AuditSettings = AuditSettings()


# Ranges other than "at least 1" for whole numbers and "above 0" for seconds: (lowest, highest, why).
_RANGES: Final[Mapping[str, tuple[int, int, str]]] = {
    "listener.port": (0, 65_535, "0 picks a free port"),
    "admin.port": (0, 65_535, "0 picks a free port"),
    "admin.backups_kept": (1, 1000, "the last whole one always stays"),
    "enrolment.port": (0, 65_535, "0 picks a free port"),
    "enrolment.certificate_days": (1, 3650, "a stolen certificate is of use for so long"),
    "enrolment.token_minutes_max": (1, 525_600, "a token that lies about is a risk"),
    "listener.heart_beat_ms": (10_000, 3_600_000, "clients rely on heart-beats of 10 s or more"),
    "journal.reserve_bytes": (0, 2**40, "0 keeps no reserve"),
    "journal.free_bytes_min": (0, 2**60, "0 never warns"),
    "limits.memory_bytes_max": (0, 2**60, "0 takes 45 % of what there is"),
    "journal.archive_days_max": (0, 36_500, "0 keeps all"),
    "journal.archive_bytes_max": (0, 2**60, "0 keeps all"),
    "journal.rejected_bytes_max": (0, 2**50, "0 keeps none"),
    "journal.segment_bytes_max": (65_536, 2**40, "a segment holds at least a few batches"),
    "limits.frame_headers_bytes_max": (1024, 2**24, "the head of one frame is held in memory as a whole"),
    "limits.frame_body_bytes_max": (1024, 2**30, "one body is held in memory as a whole"),
    "limits.connect_frame_bytes_max": (1024, 65_536, "a stranger may not make us hold more"),
    "limits.quarantine_records_max": (1, 100_000, "they are held in memory, and looked through for every page"),
    "limits.quarantine_bytes_max": (65_536, 2**34, "they are held in memory"),
    "limits.window": (1, 100_000, "more in flight only makes values stale"),
    "limits.send_unsent_bytes_max": (4096, 2**20, "what the kernel holds unsent is stale when it leaves"),
    "limits.send_buffer_bytes_max": (8192, 2**24, "what the kernel holds is stale when it leaves"),
    "limits.expel_timeout_s": (1, 4, "who is entitled no more is gone within 5 s"),
    "audit.file_bytes_max": (65_536, 2**30, "a file holds at least a few lines"),
    "audit.files_max": (0, 100_000, "0 keeps no audit log"),
    "audit.lines_per_minute_max": (10, 100_000, "less tells nothing, more fills the disk"),
    "reload.quiet_s": (0, 3600, "0 takes changes as they come"),
    "limits.stop_timeout_s": (1, 8, "the whole stop stays below 10 s"),
}
# A limit that can never be reached, because another one comes first, is a mistake: (smaller, larger).
_ORDERED: Final = (
    ("destination_bytes_max", "frame_header_line_bytes_max"),
    ("subscription_id_bytes_max", "frame_header_line_bytes_max"),
    ("frame_header_line_bytes_max", "frame_headers_bytes_max"),
    ("connect_frame_bytes_max", "frame_headers_bytes_max"),
    ("connections_unauthenticated_max", "connections_max"),
)


def load_settings(text: str, source: str, folder: Path) -> Settings:
    """Parse the text of a `maxam.toml`.

    Args:
        text: The file's text.
        source: Its name, for error texts.
        folder: The folder that relative paths in it are relative to.

    Raises:
        ConfigurationError: Not TOML, an unknown or missing key, a wrong type, a value out of range or two that
            contradict each other. The text names file, key, what was expected and what to do.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise ConfigurationError(f"{source}: not valid TOML: {error}; correct the syntax there") from error
    sections = get_type_hints(Settings)
    built = {}
    for name in tables:
        if name not in sections:
            raise _unknown(source, "section", f"[{name}]", name, sections)
    for name, kind in sections.items():
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{source}: {name}: expected a section [{name}], found {_shown(table)}")
        built[name] = _section(source, name, kind, table, folder)
    settings = Settings(**built)
    for smaller, larger in _ORDERED:
        low, high = getattr(settings.limits, smaller), getattr(settings.limits, larger)
        if low > high:
            raise ConfigurationError(
                f"{source}: [limits] {smaller} = {low} is above {larger} = {high}, so it could never be reached;"
                f" lower the first or raise the second"
            )
    for name in settings.admin.hosts:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise ConfigurationError(
                f"{source}: [admin] hosts: expected names of hosts without scheme and port, such as 'gateway.example.org',"
                f" '*.example.org' for one label more, or '*' for any; found {_shown(name)}"
            )
    backups = settings.admin.backups
    if backups is not None and backups.is_relative_to(settings.journal.folder):
        raise ConfigurationError(
            f"{source}: [admin] backups = {backups} is in the journal's folder; name one elsewhere, best on another disk"
        )
    enrolment = settings.enrolment
    if enrolment.folder is not None:
        for place, needed in (
            ("[enrolment] passphrase_file", enrolment.passphrase_file),
            ("[policy] enrolled", settings.policy.enrolled),
        ):
            if needed is None:
                raise ConfigurationError(
                    f"{source}: [enrolment] folder needs {place} too; add it, or take the folder away to enrol nobody"
                )
    return settings


def _section(source: str, name: str, kind: type[_T], table: dict[str, Any], folder: Path) -> _T:
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise _unknown(source, "key", f"[{name}] {key}", key, hints)
        values[key] = _value(f"{source}: [{name}] {key}", f"{name}.{key}", hints[key], value)
    for field in fields(kind):  # type: ignore[arg-type]  # every section is a dataclass
        if field.name not in values:
            if field.default is MISSING:
                raise ConfigurationError(
                    f"{source}: [{name}] {field.name} is missing and has no default; add it under [{name}]"
                )
            values[field.name] = field.default
        if isinstance(values[field.name], Path):
            values[field.name] = folder / values[field.name]
    return kind(**values)


def _value(place: str, key: str, hint: Any, value: Any) -> Any:  # noqa: ANN401  # TOML holds anything
    """Return `value` as `hint` has it, or raise naming `place`."""
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        if value not in allowed:
            near = get_close_matches(str(value), allowed, 1)
            remedy = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"{place}: expected {' or '.join(map(repr, allowed))}, found {_shown(value)}{remedy}"
            )
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{place}: expected true or false without quotes, found {_shown(value)}")
        return value
    if hint is int or hint is float:
        return _number(place, key, hint, value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise ConfigurationError(f"{place}: expected a list of texts with at least one, found {_shown(value)}")
        return tuple(value)
    if not isinstance(value, str) or not value or "\0" in value:
        kind = "a text" if hint is str else "the path of a file or folder"
        raise ConfigurationError(f"{place}: expected {kind} in quotes, not empty, found {_shown(value)}")
    return value if hint is str else Path(value)


def _number(place: str, key: str, kind: type[int] | type[float], value: Any) -> int | float:  # noqa: ANN401  # as above
    whole = kind is int
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ConfigurationError(
            f"{place}: expected a {'whole number' if whole else 'number'} without quotes, found {_shown(value)}"
        )
    if key in _RANGES:
        low, high, why = _RANGES[key]
        if not low <= value <= high:
            raise ConfigurationError(f"{place}: expected {low} to {high} ({why}), found {value}")
    elif not (1 if whole else 0) <= value < 2**53 or value == 0 or math.isnan(value):
        least = "at least 1" if whole else "above 0"
        raise ConfigurationError(f"{place}: expected a number {least} and below 2^53, found {value}")
    return value if whole else float(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unknown(source: str, what: str, place: str, name: str, known: Iterable[str]) -> ConfigurationError:
    near = get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return ConfigurationError(f"{source}: unknown {what} {place}; {remedy}")
