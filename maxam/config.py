"""Settings as frozen, validated objects with units in their names."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from keyword import iskeyword
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from maxam.errors import ConfigurationError
from maxam.link_config import ClusterSettings, FollowSettings, FrontSettings, LinkSettings, check_links
from maxam.setting_values import MistakeError, bounded, shown
from maxam.toml_lines import line_of, written_key
from maxam.web_config import WebSettings, check_web

_T = TypeVar("_T")
_Bounds = tuple[int, int, str]
_CORE_MAX: Final = 4095
_OF_FRONTS: Final = frozenset({"front", "tls", "listener", "link", "log"})  # sections of a front itself

# Connections of the admin listener, and of the enrolment listener. Half of them may be in their handshake.
LISTENER_PLACES: Final = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit that protects the broker from one peer or one mistake.

    Each can be set under `[limits]` of the configuration file. The comment gives unit and reason. A whole number is at least 1 and
    seconds are above 0, unless the field is bounded otherwise.
    """

    # One frame
    frame_headers_max: int = 100  # header lines
    frame_header_line_bytes_max: int = 8192  # one header line without its end
    # Command line and all header lines
    frame_headers_bytes_max: int = bounded(65536, 1024, 2**24, "the head of one frame is held in memory as a whole")
    frame_body_bytes_max: int = bounded(4_194_304, 1024, 2**30, "one body is held in memory as a whole")
    # Least rate of a frame that has begun, while the broker reads: a slow line passes, a frame that is held open does not.
    frame_rate_bytes_per_s_min: int = 1024
    # A whole CONNECT
    connect_frame_bytes_max: int = bounded(8192, 1024, 65_536, "an unauthenticated client may not make us hold more")
    destination_bytes_max: int = 512  # SEND destination and SUBSCRIBE glob, each
    subscription_id_bytes_max: int = 128  # SUBSCRIBE id
    # The `selector` of a SUBSCRIBE: its text, the uses of fields and headers in it, and different texts in use by one principal
    selector_bytes_max: int = bounded(1024, 16, 8192, "each distinct text is compiled and kept")
    selector_terms_max: int = bounded(32, 1, 1000, "each is evaluated for every value that the glob matches")
    selectors_per_principal_max: int = 64
    # Steps of 50 ns that these may take for each value in the worst case: 1 ms
    selector_steps_per_principal_max: int = bounded(20_000, 500, 10_000_000, "each value waits for all of them")
    # Body that is converted to JSON for subscribers that ask for it, or from the JSON of a SEND: some 15 ms at most
    json_bytes_max: int = bounded(65_536, 1024, 4_194_304, "other connections wait while a value is converted")
    # Destination, headers and body of the last will of a CONNECT
    will_bytes_max: int = bounded(
        4096, 64, 65_536, "it is held in memory and journalled as long as its session is connected"
    )
    glob_wildcards_max: int = 32  # `*`, `**`, `?` and sets of one glob, so that matching stays fast
    # One connection, session or principal
    # Unacknowledged messages of one connection, on any link
    window: int = bounded(100, 1, 100_000, "more in flight only makes values stale")
    subscriptions_per_session_max: int = 1000  # each costs a place per matching topic
    sessions_per_principal_max: int = 1000  # connected or waiting for their client
    wills_per_principal_max: int = 2000  # last wills of connected sessions, and those that wait for their delay
    # Durable subscriptions of all sessions of one principal. Recovery scans the topics once for each distinct glob of them.
    # 10,000 are ten for each of a thousand sessions.
    durable_subscriptions_per_principal_max: int = 10_000
    # Subscriptions in all sessions of one principal, durable or not. Each takes 1 to 3 KiB.
    subscriptions_per_principal_max: int = 20_000
    # Topics that all subscriptions of one principal may be owed, each counted once per subscription: some 60 bytes each. Above it
    # the session that owes most ends.
    owed_per_principal_max: int = bounded(0, 0, 2**50, "0 takes half of memory_bytes_max")
    subscriptions_max: int = 250_000  # of all principals: some 250 to 700 MiB
    # Durable SUBSCRIBEs and UNSUBSCRIBEs of one principal that are journalled, per second in the long run. A burst may be as large
    # as durable_subscriptions_per_principal_max, so that a principal can subscribe all of them again. Reading pauses above it.
    durable_changes_per_s_max: int = 200
    # Bytes of accepted SENDs of one principal in the long run, after a burst of 10 s of it. Destination, headers and body count.
    send_bytes_per_s_max: int = bounded(0, 0, 2**50, "0 sets no limit")
    # CONNECTs of one principal that are answered, in the long run. Each costs about 2 ms of CPU.
    connects_per_principal_per_s: int = 100
    connects_per_principal_burst: int = 2000  # before that rate holds: all its clients return at once after a restart
    # Connections accepted from one peer address (of IPv6: one /64) in the long run. A TLS handshake takes about 1 ms of CPU. Loopback
    # is exempt.
    connects_per_address_per_s: int = 200
    connects_per_address_burst: int = 2000  # before that rate holds: all clients that share one address return at once
    takeovers_per_minute_max: int = 30  # of one session, so that two clients with one id cannot spin the broker
    # Bytes received at a time before CONNECTED: an unauthenticated client may not make the gateway hold more.
    connect_receive_bytes_max: int = 4096
    receipts_pending_bytes_max: int = 262_144  # RECEIPTs waiting for one connection before its reading pauses
    # Bytes received before the TLS handshake is complete, on each listener. A certificate chain has 1 to 6 KiB. OpenSSL takes 40 ms
    # for 100 KiB of certificates.
    tls_handshake_bytes_max: int = bounded(16_384, 4096, 131_072, "OpenSSL takes no more than 100 KiB of certificates")
    connections_unauthenticated_max: int = 256  # before CONNECTED. Connected clients do not count
    connections_max: int = 10_000  # of clients, in all; fewer when the system allows fewer open files
    # The whole broker
    # Memory in use by the gateway. Building a snapshot may need as much again, so the default is 45 % of the machine's memory.
    memory_bytes_max: int = bounded(0, 0, 2**60, "0 takes 45 % of what there is")
    topics_max: int = 5_000_000  # live topics and deleted ones still needed: a runaway publisher stops here
    # Unfinished frames of all connections, or one frame: sixteen of the largest bodies at once
    frames_unfinished_bytes_max: int = 67_108_864
    # RECEIPTs waiting in all connections: some 600,000, as many as ten seconds of a disk that does not answer cause
    receipts_pending_total_bytes_max: int = 67_108_864
    schema_files_max: int = 20_000  # files and folders in the schema folder, of any kind: a mistaken path ends soon
    schema_bytes_max: int = 67_108_864  # content of all files of the schema folder
    # Rejected SENDs on their way to a journal of their own
    rejected_queue_records_max: int = 10_000  # waiting for the disk
    rejected_queue_bytes_max: int = 8_388_608  # the same, or one SEND alone
    rejected_principal_bytes_per_s: int = 4096  # of one principal in the long run: it must not crowd out others
    rejected_principal_burst_bytes: int = 4_194_304  # of one principal before that rate holds
    # Rejected SENDs that operators can read and send again: the last ones, a fair share of each principal's
    quarantine_records_max: int = bounded(1000, 1, 100_000, "they are held in memory, and searched for every page")
    # Memory for them, some 1 KiB of each beside headers and body
    quarantine_bytes_max: int = bounded(16_777_216, 65_536, 2**34, "they are held in memory")
    # Bodies on which candidate versions are tried, each counted with 256 bytes more: less than one percent of a processor's time
    shadow_bytes_per_s_max: int = 262_144
    # Thresholds of warnings to operators
    lag_threshold_s: float = 5.0  # a subscription that lacks something for longer is behind: people notice it
    # Waits
    tls_handshake_timeout_s: float = 10.0  # absolute
    connect_timeout_s: float = 10.0  # absolute, from the handshake to CONNECTED
    write_timeout_s: float = 30.0  # a peer that takes nothing for this long is closed
    # For a client that lost its rights to take the messages under way
    close_grace_s: float = bounded(4.0, 1, 4, "a client that lost its rights is gone within 5 s")
    linger_timeout_s: float = 1.0  # after ERROR or the last RECEIPT, for the peer to read it
    session_expiry_s: float = 604_800.0  # a detached session with durable subscriptions
    clock_jump_s_max: float = 3600.0  # that the clock may jump ahead: accepted values keep their time for ever
    dedup_retention_s: float = 604_800.0  # sequences of the sources of a deleted topic: no retry comes later
    # Deletes that are remembered, so that a client that resumes from a position learns of them
    delete_retention_s: float = bounded(86_400.0, 0, 31_536_000, "0 remembers only deletes that a subscription is owed")
    delete_retention_topics_max: int = bounded(100_000, 1, 10_000_000, "each takes some 600 bytes of memory")
    acknowledgement_delay_s: float = 0.1  # an ACK without receipt is journalled within this time
    # The gateway's sockets and passes of its event loop
    handshakes_per_pass_max: int = 4  # TLS handshake steps (about 1 ms of CPU each) in one pass of the event loop
    # TCP_NOTSENT_LOWAT
    send_unsent_bytes_max: int = bounded(8192, 4096, 2**20, "what the kernel holds unsent is stale when it leaves")
    # SO_SNDBUF of one connection, sent and unacknowledged bytes included
    send_buffer_bytes_max: int = bounded(65_536, 8192, 2**24, "what the kernel holds is stale when it leaves")
    scan_topics_per_pass_max: int = 250  # topics that eager scans check in one pass of the event loop
    log_lines_per_minute_max: int = 60  # of one kind of event from one peer address; the rest is counted
    # A graceful stop. The remaining connections are cut then.
    stop_timeout_s: float = bounded(8.0, 1, 8, "the whole stop stays below 10 s")

    @property
    def deletes_retained_max(self) -> int:
        """How many deletes are remembered: no more than there may be topics."""
        return min(self.delete_retention_topics_max, self.topics_max)


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Where STOMP clients connect, and what CONNECT answers them."""

    host: str = "127.0.0.1"
    port: int = bounded(61614, 0, 65_535, "0 picks a free port")
    virtual_hosts: tuple[str, ...] = ("MAXVAPI",)  # accepted `host` headers; "*" accepts any
    # Both numbers of CONNECTED's heart-beat
    heart_beat_ms: int = bounded(10_000, 10_000, 3_600_000, "clients rely on heart-beats of 10 s or more")
    # Messages that an ACK of the mode client-individual covers: its own, or those before it too, as in mode client
    client_individual: Literal["individual", "client"] = "individual"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The server's certificate and whose client certificates are accepted; all PEM files."""

    certificate: Path
    key: Path
    client_ca: Path
    crl: Path | None = None
    crl_expired: Literal["warn", "refuse"] = "warn"  # a CA that is late with its CRL must not stop a venue
    minimum: Literal["1.2", "1.3"] = "1.3"  # version of TLS; 1.2 for clients that cannot speak 1.3


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The principals and their rights."""

    file: Path
    unknown_clients: Literal["refuse", "connect-without-rights"] = "refuse"
    enrolled: Path | None = None  # written by the enrolment listener; the operators' file is never rewritten


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """The registry folder."""

    folder: Path
    allow_orphans: bool = False  # a reload may take the rule from topics with values


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where accepted changes are kept, and when files are closed."""

    folder: Path = Path("var/journal")
    durability: Literal["fsync", "none"] = "fsync"
    # A segment is sealed at this size. It bounds how long Spark waits for changes.
    segment_bytes_max: int = bounded(67_108_864, 65_536, 2**40, "a segment holds at least a few batches")
    segment_age_s_max: float = 3600.0  # a segment that holds a change is sealed at this age
    snapshot_segments: int = 4  # sealed segments since the last snapshot before the next is built; bounds recovery
    # Limits of the archive: sealed segments that snapshots stand for. The oldest go first.
    retention_days_max: float = bounded(90.0, 0, 36_500, "0 keeps all")
    retention_bytes_max: int = bounded(53_687_091_200, 0, 2**60, "0 keeps all")
    # Share of the disk's size: a full archive must not fill the disk
    retention_disk_share_max: float = bounded(0.5, 0, 1, "0 takes no account of the disk's size")
    # Limits of the rejected SENDs. The oldest go first.
    rejected_bytes_max: int = bounded(1_073_741_824, 0, 2**50, "0 keeps none")
    rejected_days_max: float = 90.0
    # Free room on the disk. With less, operators are warned.
    free_bytes_min: int = bounded(1_073_741_824, 0, 2**60, "0 never warns")
    # Room given up when the disk is full, so that ACKs can still be recorded
    reserve_bytes: int = bounded(262_144, 0, 2**40, "0 keeps no reserve")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Where operators connect."""

    host: str = "127.0.0.1"
    port: int = bounded(8643, 0, 65_535, "0 picks a free port")
    backups: Path | None = None  # folder of the backups that operators request. None disables backups
    # The newest whole backups that are kept. Older ones are removed.
    backups_kept: int = bounded(7, 1, 1000, "the last whole one always stays")
    backup_hook: tuple[
        str, ...
    ] = ()  # command that copies each backup to another place. The backup's path is its last argument
    backup_hook_timeout_s: float = 21_600.0  # after which the command is killed and counts as failed
    backup_timer: str = ""  # systemd timer that asks for backups, to show when the next one is due. Empty shows nothing
    hosts: tuple[str, ...] = ()  # accepted host names, besides addresses and the names in its certificate


@dataclass(frozen=True, slots=True)
class EnrolmentSettings:
    """Where new clients get a certificate for a one-time token, and old ones the next one."""

    folder: Path | None = None  # CA directory, as `maxam-admin certs ca` makes it. None disables enrolment
    passphrase_file: Path | None = None  # opens the CA's key. Required with `folder`: a service cannot ask for it
    host: str = "127.0.0.1"
    port: int = bounded(8644, 0, 65_535, "0 picks a free port")
    server_ca: Path | None = None  # signed the server's certificate, clients pin it. None is the same CA
    # Validity of issued certificates
    certificate_days: int = bounded(90, 1, 3650, "a stolen certificate is of use until then")
    overlap_days: float = 7.0  # that a certificate stays valid beside the one that renews it
    token_minutes_max: int = bounded(10_080, 1, 525_600, "an unused token is a risk")
    failures_per_minute_max: int = 10  # refused requests of one address, token or certificate in the long run


@dataclass(frozen=True, slots=True)
class ReloadSettings:
    """When changed files come into force by themselves."""

    watch: bool = True  # False: on SIGHUP and `maxam-admin gateway reload` only
    # Time without another change before a reload, so that a half-finished pull is not taken
    debounce_s: float = bounded(1.0, 0, 3600, "0 takes changes as they come")
    poll_interval_s: float = 30.0  # between checks of the files: network file systems report no change


@dataclass(frozen=True, slots=True)
class PresenceSettings:
    """Whether the gateway publishes who is connected."""

    enabled: bool = False
    # Time for which the topic of a session stays that is no longer connected
    away_kept_s: float = 604_800.0


@dataclass(frozen=True, slots=True)
class BridgesSettings:
    """The bridges that the gateway runs."""

    configs: tuple[Path, ...]  # a bridge.toml for each


@dataclass(frozen=True, slots=True)
class FrontsSettings:
    """Processes on this machine that have the clients, so that more than one core serves them."""

    # Number of processes. With 0 the gateway serves its clients itself
    count: int = bounded(0, 0, 64, "each one holds all topics")
    # Numbers of the processors of the fronts, in turn; the gateway is not bound. Empty: the system decides
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where the audit log is kept, and how much of it."""

    folder: Path | None = None  # None: beside the journal's folder, with the same name and `-audit`
    # The next file begins before one grows over this size, or at this age.
    file_bytes_max: int = bounded(16_777_216, 65_536, 2**30, "a file holds at least a few lines")
    file_age_s_max: float = 86_400.0
    files_max: int = bounded(90, 0, 100_000, "0 keeps no audit log")  # the oldest go first
    # Lines of one principal, and of all unauthenticated clients together. The rest is counted.
    lines_per_minute_max: int = bounded(60, 10, 100_000, "fewer are of no use, more fill the disk")
    syslog: str = ""  # `tcp://HOST:PORT` or `udp://HOST:PORT` of a collector of syslog; empty sends nothing


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The form of the log on standard error."""

    format: Literal["text", "json"] = "text"


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
    log: LogSettings = LogSettings()
    presence: PresenceSettings = PresenceSettings()
    link: LinkSettings | None = None  # None: no other gateway can connect
    follow: FollowSettings | None = None  # None: it serves clients
    cluster: ClusterSettings | None = None  # None: it is no member of a cluster
    bridge: BridgesSettings | None = None  # None: it runs no bridge
    fronts: FrontsSettings | None = None  # None: it serves its clients itself
    web: WebSettings | None = None  # None: each client shows a certificate
    front: FrontSettings | None = None  # None: it is a gateway, not a front of one


# Keys of the release before, by the key that has replaced each. They work for one release more.
_RENAMED: Final[Mapping[str, str]] = {
    "journal.archive_days_max": "retention_days_max",
    "journal.archive_bytes_max": "retention_bytes_max",
    "journal.archive_disk_share_max": "retention_disk_share_max",
    "limits.staleness_behind_s": "lag_threshold_s",
    "limits.expel_timeout_s": "close_grace_s",
    "limits.source_retention_s": "dedup_retention_s",
    "reload.quiet_s": "debounce_s",
}
# A limit that can never be reached, because another one comes first, is a mistake: (smaller, larger).
_ORDERED: Final = (
    ("destination_bytes_max", "frame_header_line_bytes_max"),
    ("subscription_id_bytes_max", "frame_header_line_bytes_max"),
    ("selector_bytes_max", "frame_header_line_bytes_max"),
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
            contradict each other. The text names file, line, key, what was expected and what to do.
    """
    try:
        return _load(text, folder)
    except MistakeError as error:
        raise mistake_in(text, source, error) from error


def mistake_in(text: str, source: str, error: "MistakeError") -> ConfigurationError:
    """Return the error for a mistake in a text, with its line."""
    line = line_of(text.encode("utf-8", "surrogatepass"), error.place, error.problem)
    return ConfigurationError(f"{source if line is None else f'{source}:{line}'}: {error.problem}")


def deprecated_keys(text: str) -> list[tuple[str, str, int | None]]:
    """Return each key of a valid `maxam.toml` that has a new name, as `[section] key`, with the new name and its line."""
    tables = tomllib.loads(text)
    found = []
    for place, now in _RENAMED.items():
        section, _, name = place.partition(".")
        if name in tables.get(section, {}):
            found.append((f"[{section}] {name}", now, line_of(text.encode(), place)))
    return found


def _load(text: str, folder: Path) -> Settings:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise MistakeError("", f"not valid TOML: {error}. Correct the syntax there") from error
    sections = get_type_hints(Settings)
    if "front" in tables:
        tables = {**tables, **_of_the_gateway(tables)}
    built: dict[str, Any] = {}
    for name in tables:
        if name not in sections:
            raise unknown(written_key(name), "section", f"[{name}]", name, sections)
    for name, hint in sections.items():
        kind = hint
        if get_origin(hint) is UnionType:  # a section that does nothing unless it is there
            if name not in tables:
                built[name] = None
                continue
            kind = get_args(hint)[0]
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise MistakeError(name, f"{name}: expected a section [{name}], found {shown(table)}")
        built[name] = read_section(name, kind, table, folder)
    settings = Settings(**built)
    _check(settings, tables)
    return settings


def _of_the_gateway(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the required sections that a front has from its gateway, with no files; raise MistakeError if it has others itself."""
    for name in tables:
        if name not in _OF_FRONTS and name in get_type_hints(Settings):
            raise MistakeError(
                name,
                f"[{name}] is not possible beside [front]: a front has its policy, schemas and limits from its gateway. Remove one of"
                " the two sections",
            )
    return {"policy": {"file": "policy.toml"}, "schemas": {"folder": "schemas"}}


def _check(settings: Settings, tables: Mapping[str, Any]) -> None:
    """Raise MistakeError if values contradict each other."""
    for smaller, larger in _ORDERED:
        low, high = getattr(settings.limits, smaller), getattr(settings.limits, larger)
        if low > high:
            raise MistakeError(
                f"limits.{larger if larger in tables.get('limits', {}) else smaller}",
                f"[limits] {smaller} = {low} is above {larger} = {high}, so it could never be reached;"
                f" lower the first or raise the second",
            )
    syslog = settings.audit.syslog
    if syslog and not re.fullmatch(r"(tcp|udp)://(\[[0-9A-Fa-f:.]+\]|[^:/@\[\]\s]+):[0-9]{1,5}", syslog):
        raise MistakeError(
            "audit.syslog",
            f"[audit] syslog: expected 'tcp://HOST:PORT' or 'udp://HOST:PORT', found {shown(syslog)}",
        )
    for name in settings.admin.hosts:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise MistakeError(
                "admin.hosts",
                f"[admin] hosts: expected names of hosts without scheme and port, such as 'gateway.example.org',"
                f" '*.example.org' for one label more, or '*' for any; found {shown(name)}",
            )
    backups = settings.admin.backups
    if backups is not None and backups.is_relative_to(settings.journal.folder):
        raise MistakeError(
            "admin.backups",
            f"[admin] backups = {backups} is in the journal's folder; name one elsewhere, best on another disk",
        )
    if settings.admin.backup_hook:
        if backups is None:
            raise MistakeError(
                "admin.backup_hook",
                "[admin] backup_hook needs [admin] backups too; add it, or take the command away",
            )
        if not Path(settings.admin.backup_hook[0]).is_absolute():
            raise MistakeError(
                "admin.backup_hook",
                f"[admin] backup_hook: expected the absolute path of a program, then its arguments; found {shown(settings.admin.backup_hook[0])}",
            )
    enrolment = settings.enrolment
    if enrolment.folder is not None:
        for place, needed in (
            ("[enrolment] passphrase_file", enrolment.passphrase_file),
            ("[policy] enrolled", settings.policy.enrolled),
        ):
            if needed is None:
                raise MistakeError(
                    "enrolment.folder",
                    f"[enrolment] folder needs {place} too; add it, or take the folder away to enrol nobody",
                )
    check_links(settings.link, settings.follow, settings.front, settings.cluster, settings.limits.frame_body_bytes_max)
    if settings.fronts is not None and settings.follow is not None:
        raise MistakeError(
            "fronts", "[fronts] excludes [follow]: a gateway that follows another one has no clients. Remove one"
        )
    check_web(settings.web)


def read_section(name: str, kind: type[_T], table: dict[str, Any], folder: Path) -> _T:
    """Return the settings of a section as an object of a dataclass. Relative paths are relative to `folder`; raises MistakeError."""
    hints = get_type_hints(kind)
    known_settings = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]  # every section is a dataclass
    values: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{name}.{written_key(key)}"
        now = f"{key}_" if iskeyword(key) else _RENAMED.get(place, key)
        if now not in hints or key.endswith("_"):
            raise unknown(place, "key", f"[{name}] {key}", key, [one.removesuffix("_") for one in hints])
        if now != key and now in table:
            raise _wrong(place, f"this is the old name of {now}, and both are set. Remove {key}")
        below = _section_of(hints[now])
        if below is not None:
            if not isinstance(value, dict):
                raise _wrong(place, f"expected a section [{place}], found {shown(value)}")
            values[now] = read_section(place, below, value, folder)
            continue
        values[now] = _value(place, hints[now], value, known_settings[now].metadata.get("bounds"))
    for setting, known in known_settings.items():
        if setting not in values:
            if known.default is MISSING:
                key = setting.removesuffix("_")
                raise MistakeError(name, f"[{name}] {key} is missing and has no default; add it under [{name}]")
            values[setting] = known.default
        if isinstance(values[setting], Path):
            values[setting] = folder / values[setting]
        elif hints[setting] == tuple[Path, ...]:
            values[setting] = tuple([folder / one for one in values[setting]])
    return kind(**values)


def _section_of(hint: Any) -> type[Any] | None:  # noqa: ANN401  # as `get_type_hints` gives it
    """Return the dataclass of a section within a section, None for a setting."""
    kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) is UnionType else ()
    return kinds[0] if kinds and isinstance(kinds[0], type) and is_dataclass(kinds[0]) else None


def _value(key: str, hint: Any, value: Any, bounds: _Bounds | None) -> Any:  # noqa: ANN401  # TOML holds anything
    """Return a value as the type of its setting.

    Args:
        key: Its place, for errors.
        hint: Type of the setting.
        value: The value in the file.
        bounds: Lowest and highest number and the reason. None for the usual range.
    """
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        if value not in allowed:
            near = get_close_matches(str(value), allowed, 1)
            remedy = f"; did you mean {near[0]!r}?" if near else ""
            raise _wrong(key, f"expected {' or '.join(map(repr, allowed))}, found {shown(value)}{remedy}")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise _wrong(key, f"expected true or false without quotes, found {shown(value)}")
        return value
    if hint is int or hint is float:
        return _number(key, hint, value, bounds)
    if hint == tuple[int, ...]:
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= _CORE_MAX for item in value):
            raise _wrong(key, f"expected a list of whole numbers from 0 to {_CORE_MAX}, found {shown(value)}")
        return tuple(value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise _wrong(key, f"expected a list of texts with at least one, found {shown(value)}")
        return tuple(value)
    if not isinstance(value, str) or not value or "\0" in value:
        kind = "a text" if hint is str else "the path of a file or folder"
        raise _wrong(key, f"expected {kind} in quotes, not empty, found {shown(value)}")
    return value if hint is str else Path(value)


def _number(
    key: str,
    kind: type[int] | type[float],
    value: Any,  # noqa: ANN401  # as above
    bounds: _Bounds | None,
) -> int | float:
    whole = kind is int
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise _wrong(key, f"expected a {'whole number' if whole else 'number'} without quotes, found {shown(value)}")
    if bounds is not None:
        low, high, why = bounds
        if not low <= value <= high:
            raise _wrong(key, f"expected {low} to {high} ({why}), found {value}")
    elif not (1 if whole else 0) <= value < 2**53 or value == 0 or math.isnan(value):
        least = "at least 1" if whole else "above 0"
        raise _wrong(key, f"expected a number {least} and below 2^53, found {value}")
    return value if whole else float(value)


def _wrong(key: str, problem: str) -> MistakeError:
    section, _, name = key.partition(".")
    return MistakeError(key, f"[{section}] {name}: {problem}")


def unknown(key: str, what: str, place: str, name: str, known: Iterable[str]) -> MistakeError:
    """Return the error for an unknown name, with the one that was perhaps meant."""
    near = get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return MistakeError(key, f"unknown {what} {place}; {remedy}")
