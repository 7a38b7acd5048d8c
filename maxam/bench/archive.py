"""Write a journal as a gateway would have left it after some days: `maxam-bench archive`, and the data of pipeline tests.

The records go through the journal's own encoder and writer, without syncing. Bodies are schema-true to the shipped schemas, in all
three encodings. The values of a few machines over many steps are encoded once. Each body consists of a machine's own first field, the
time, and the rest of such a value. So meters of a machine never decrease except after 8,192 readings, where its story begins again.
The same arguments give the same bytes.
"""

import datetime as dt
import io
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Final, final

import click
import fastavro
from rich.console import Console
from rich.progress import Progress

from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.registry import Registry
from maxam.avro.rule import ENVELOPE, NONE, SchemaVersion
from maxam.bench.bodies import SCHEMAS, read_schemas
from maxam.bench.errors import LoadError
from maxam.content import long, pack, text
from maxam.demo.machines import PROTOCOLS, THEMES, Machine, Value
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Headers,
    Identity,
    Record,
    RejectedSend,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    Validation,
)
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption

START: Final = dt.datetime(2026, 10, 1, tzinfo=dt.UTC)
_SEGMENT_AGE_S_MAX: Final = 3600.0  # as the gateway's default
TOPICS_PER_MACHINE: Final = 5

_STEPS: Final = 8192  # of each story that is encoded: more cost start and memory only
_BLOCK_RECORDS: Final = (100, 1000)  # of a group commit under load
_BURST: Final = 64  # changes that arrive together and so share their time
_LAG_MS: Final = 120  # from the reading of a machine to its acceptance
_NOW_MS: Final = 2**41 - 1  # stands for the time in what is encoded; as long as those of this century
_NOW: Final = long(_NOW_MS)
_VENUES: Final = 4  # each with a publisher of its own
_ACKNOWLEDGED_EVERY: Final = 20  # blocks
_DAILY_SWING: Final = 0.6  # rate at the busiest hour is 1.6 times the mean, at the quietest 0.4 times
_TYPES: Final = {
    "EGMMeterReading": 12,
    "EGMStatus": 5,
    "EGMMeteredGamePlay": 2,
    "EGMDetectedConfig": 1,
    "GameDetectedConfig": 1,
}
"""Values that each machine publishes, with the changes of each in 21."""

_Rest = (
    tuple[bytes, ...] | None
)  # the bytes after the first time in a datum, cut at each further one; None deletes the topic


@dataclass(frozen=True, slots=True)
class Written:
    """The result of `write_archive`.

    Attributes:
        records: Changes: revisions 1 to this.
        topics: Topics that a change can be of. In all but a few short archives, each has one.
        segments: Sealed ones, all of them.
        length_bytes: Of the segments.
        first_at_us: When the first change was accepted: microseconds since the epoch.
        last_at_us: When the last change was accepted.
    """

    records: int
    topics: int
    segments: int
    length_bytes: int
    first_at_us: int
    last_at_us: int


def write_archive(
    folder: Path,
    records: int,
    *,
    topics: int = 10_000,
    days: float = 3.0,
    seed: int = 0,
    schemas: Path = SCHEMAS,
    rejected_every: int = 0,
    segment_bytes_max: int = 67_108_864,
    show: Callable[[int], None] | None = None,
) -> Written:
    """Write a journal of `records` changes, sealed, with its schemas and some session records.

    Memory grows with the topics only, some 1.5 kB for each.

    Args:
        folder: The journal's, without one in it; made if need be.
        records: Changes; at least one.
        topics: Approximate number of topics: five for each machine.
        days: That the changes are spread over, with a rate that rises and falls by the hour of the day.
        seed: Of all that is left to chance.
        schemas: The schema folder; it must hold the shipped types.
        rejected_every: Changes per rejected SEND in the journal's folder `rejected`. 0 for none.
        segment_bytes_max: A segment rolls before it grows over this.
        show: Called now and then with the changes written so far.

    Raises:
        LoadError: There is a journal already, or the schemas are not the shipped ones.
        JournalError: Another process writes there.
        OSError: The folder cannot be written; what is there then is a journal of less.
    """
    chance = random.Random(seed)  # noqa: S311 - a game
    registry = read_schemas(schemas)
    if folder.is_dir() and any(folder.glob("segments/*")):
        raise LoadError(f"{folder} holds a journal already; name another folder, or remove it first")
    floor = [_Machine(number, registry) for number in range(max(1, topics // TOPICS_PER_MACHINE))]
    _begin_stories(floor, registry, chance)
    schedule = [topic for machine in floor for topic in machine.topics for _ in range(_TYPES[topic.attribute])]
    chance.shuffle(schedule)

    settings = JournalSettings(segment_bytes_max, _SEGMENT_AGE_S_MAX, durable=False, reserve_bytes=0)
    incarnation = random.Random(f"incarnation {seed}").randbytes(8).hex()  # noqa: S311  # the changes stay as they were
    journal = Journal.open(folder, OsDisk(), settings, chance.randbytes(16), incarnation)
    try:
        list(journal.recover())
        journal.keep_schemas(registry.texts())
        clock = _Clock(int(START.timestamp() * 1_000_000), days, records)
        rejected = None
        mischance = random.Random(seed)  # noqa: S311  # one of its own: the changes are the same without rejected SENDs
        if rejected_every:
            stored = RejectedSettings(segment_bytes_max, _SEGMENT_AGE_S_MAX, durable=False)
            rejected = RejectedJournal.open(str(folder), OsDisk(), stored, mischance.randbytes(16))
        revision = 0
        block = 0
        while revision < records:
            count = min(chance.randint(*_BLOCK_RECORDS), records - revision)
            changes = _changes(schedule, chance, revision, count, clock)
            revision += count
            journal.write(journal.encode(_with_sessions(changes, block, last=revision == records)))
            block += 1
            if rejected is not None:
                due = revision // rejected_every - rejected.head
                if due:
                    rejected.append(_rejections(changes, mischance, rejected.head, due))
            if show is not None:
                show(revision)
        if rejected is not None:
            rejected.close()
    finally:
        journal.close()
    segments = sealed_segments(folder, OsDisk())
    length = sum(Path(segment.path).stat().st_size for segment in segments)
    return Written(
        records, len(floor) * TOPICS_PER_MACHINE, len(segments), length, clock.at_us(0), clock.at_us(records - 1)
    )


@final
class _Topic:
    """One topic and how far its story is.

    Attributes:
        head: Bytes before the time in its datum, after the prefix of the encoding. The prefix of an envelope is in `envelope`.
        envelope: Bytes before the length of the datum, empty when there is no envelope.
    """

    __slots__ = (
        "attribute",
        "deletion",
        "destination",
        "envelope",
        "head",
        "headers",
        "publisher",
        "rests",
        "step",
        "validation",
    )

    def __init__(
        self,
        attribute: str,
        destination: str,
        first_field: bytes,
        publisher: Identity,
        encoding: str,
        version: SchemaVersion,
        keys: EnvelopeKeys,
    ) -> None:
        fingerprint = version.crc_64
        self.attribute: Final = attribute
        self.destination: Final = destination.encode()
        self.publisher: Final = publisher
        self.headers: Headers = ()
        self.head = version.head(encoding) + first_field
        self.envelope = b""
        if encoding == ENVELOPE:
            self.headers = ((b"content-type", b"avro/binary"),)
            items = long(keys.fingerprint) + text(fingerprint) + long(keys.topic) + text(self.destination)
            self.envelope = long(3) + items + long(keys.body)
        offset = len(version.head(encoding))
        self.validation: Final = Validation(encoding, version.type_name, version.minor, fingerprint, offset)
        self.deletion: Final = Validation(encoding, version.type_name, "", b"")
        self.rests: Sequence[_Rest] = ()
        self.step = 0


@final
class _Machine:
    """A machine's topics."""

    def __init__(self, number: int, registry: Registry) -> None:
        gmid = 10_000 + number
        venue = 1 + number % _VENUES
        self.letter: Final = PROTOCOLS[number % len(PROTOCOLS)]
        self.game: Final = number % len(THEMES)
        subject = f"X/EGM.{self.letter}.{gmid}"
        manufacturer = ("AGI", "BLW", "KON")[gmid % 3]
        position = f"{'ABCDEFGHJK'[number // 30 % 10]}{number % 30 + 1:02}"
        first = (f"VENUE-{venue}", f"SC-{venue}", f"IF-{gmid % 16:02}", str(gmid), manufacturer, position)
        first_field = b"".join([text(value.encode()) for value in first])
        name = f"venue-{venue}-monitor"
        publisher = Identity(name, sha256(name.encode()).hexdigest())
        self.topics: Final[list[_Topic]] = []
        for attribute in _TYPES:
            middle = f"Game.{_game_id(THEMES[self.game])}." if attribute == "GameDetectedConfig" else ""
            destination = f"{subject}.{middle}{attribute}"
            rule = registry.rule_for(destination)
            # half of the machines are read by newer software
            minor = "1.1" if attribute == "EGMMeterReading" and gmid % 2 else "1.0"
            version = registry.schema(rule.schema, minor) if rule is not None else None
            if rule is None or version is None or rule.encoding == NONE:
                raise LoadError(f"the schemas have no {attribute} {minor}: an archive needs the shipped ones")
            topic = _Topic(
                attribute, destination, first_field, publisher, rule.encoding, version, registry.envelope_keys
            )
            self.topics.append(topic)


@final
class _Clock:
    """When each change was accepted."""

    def __init__(self, start_us: int, days: float, records: int) -> None:
        self._start_us: Final = start_us
        self._days: Final = days
        self._records: Final = records

    def at_us(self, number: int) -> int:
        """Return microseconds since the epoch, never less than for a smaller number."""
        passed = self._days * number / self._records
        swing = _DAILY_SWING / (2 * math.pi) * (1 - math.cos(2 * math.pi * passed))
        whole = _DAILY_SWING / (2 * math.pi) * (1 - math.cos(2 * math.pi * self._days))
        return self._start_us + int((passed + swing - whole * number / self._records) * 86_400_000_000)


def _changes(schedule: list[_Topic], chance: random.Random, revision: int, count: int, clock: _Clock) -> list[Record]:
    """Return the changes after a revision."""
    changes: list[Record] = []
    at = 0
    now = b""
    begin = chance.randrange(len(schedule))
    for number in range(revision, revision + count):
        if not (number - revision) % _BURST:
            at = clock.at_us(number)
            now = long(at // 1000 - _LAG_MS)
        topic = schedule[(begin + number) % len(schedule)]
        step = topic.step
        topic.step = step + 1
        rest = topic.rests[step % _STEPS]
        headers = topic.headers
        if rest is None:
            deleted = True
            validation = topic.deletion
            headers = ()
            body = b""
        else:
            deleted = False
            validation = topic.validation
            body = topic.head + now + now.join(rest)
            if topic.envelope:
                head = topic.envelope + long(len(body))
                validation = Validation(
                    validation.encoding,
                    validation.schema,
                    validation.schema_version,
                    validation.schema_fingerprint,
                    len(head),
                    len(body),
                )
                body = head + body + b"\0"
        changes.append(
            Change(number + 1, at, topic.destination, deleted, topic.publisher, validation, *pack(headers, body))
        )
    return changes


def _with_sessions(changes: list[Record], block: int, last: bool) -> list[Record]:
    """Return them with what two durable subscribers leave in the journal: one stays, one goes at the end."""
    begin = changes[0].accepted_at_us
    end = changes[-1].accepted_at_us
    records = changes
    if block == 0:
        records = [
            SubscriptionRecord(begin, "floor-screen", "screen-1", b"all", b"X/EGM.*", eager=True),
            SubscriptionRecord(begin, "reporting", "nightly", b"readings", b"X/EGM.*.EGMMeterReading", eager=False),
            *changes,
        ]
    if block % _ACKNOWLEDGED_EVERY == 0:
        seen = tuple((c.destination, c.revision) for c in changes[:10] if isinstance(c, Change))
        records = [*records, AcknowledgementRecord(end, "floor-screen", "screen-1", b"all", seen)]
    if last:
        records = [*records, SessionEndRecord(end, "reporting", "nightly")]
    return records


def _rejections(changes: list[Record], chance: random.Random, revision: int, count: int) -> list[RejectedSend]:
    """Return SENDs that were refused beside these changes: from a principal without the right, damaged, or of an unknown minor."""
    accepted = [change for change in changes if isinstance(change, Change) and not change.deleted]
    sends = []
    for number in range(1, count + 1):
        like = chance.choice(accepted) if accepted else None
        if like is None:
            destination, publisher, body, expected = b"X/EGM.Q.0.EGMStatus", _STRANGER, b"", UNJUDGED
        else:
            destination, publisher, body = like.destination, like.publisher, like.body
            expected = Validation(like.validation.encoding, like.validation.schema, "", b"")
        headers: Headers = ()
        disposition = "rejected-invalid"
        match chance.randrange(3):
            case 0:
                disposition = "rejected-unauthorised"
                publisher = _STRANGER
                why = Rejection("unauthorised", f"{_STRANGER.principal} may not send there")
                headers = (
                    (b"content-length", b"%d" % len(body)),
                    (b"body-sha256", sha256(body).hexdigest().encode()),
                )
                body = b""
            case 1:
                body = body[: len(body) // 2]
                why = Rejection("schema-mismatch", f"{expected.schema}: the body ends too early")
            case _:
                headers = ((b"schema-version", b"9.9"),)
                why = Rejection("unknown-schema-version", f"{expected.schema} has no version '9.9'")
        at = changes[-1].accepted_at_us
        sends.append(
            RejectedSend(
                revision + number, at, destination, False, publisher, expected, headers, body, disposition, why
            )
        )
    return sends


_STRANGER: Final = Identity("venue-9-monitor", sha256(b"venue-9-monitor").hexdigest())


# stories


def _begin_stories(floor: list[_Machine], registry: Registry, chance: random.Random) -> None:
    """Give each topic the rests of its bodies, shared by all machines of its kind, and a place to begin."""
    told = {letter: _play(letter, chance) for letter in sorted({machine.letter for machine in floor})}
    plays = _game_plays(chance)
    stories: dict[tuple[str, str | int, str], list[_Rest]] = {}
    for machine in floor:
        begin = chance.randrange(_STEPS // 2)
        for topic in machine.topics:
            kind: str | int = machine.game if topic.attribute == "GameDetectedConfig" else machine.letter
            minor = topic.validation.schema_version
            key = (topic.attribute, kind, minor)
            if key not in stories:
                match topic.attribute:
                    case "EGMMeteredGamePlay":
                        values = plays
                    case "GameDetectedConfig":
                        values = _games(THEMES[machine.game])
                    case _:
                        values = told[machine.letter][topic.attribute]
                version = registry.schema(topic.validation.schema, minor)
                assert version is not None  # noqa: S101  # the topic was made with it
                stories[key] = _rests(version, values)
            topic.rests = stories[key]
            topic.step = begin


def _play(letter: str, chance: random.Random) -> dict[str, list[Value | None]]:
    """Return the values of one machine, step by step."""
    machine = Machine(PROTOCOLS.index(letter), chance)
    newest = {told.destination.rpartition(".")[2]: told.value for told in machine.switch_on(_NOW_MS)}
    story: dict[str, list[Value | None]] = {attribute: [] for attribute in newest}
    for _ in range(_STEPS):
        for told in machine.play(_NOW_MS):
            if told.value is not None:
                newest[told.destination.rpartition(".")[2]] = told.value
        for attribute, value in newest.items():
            story[attribute].append(value)
    return story


def _game_plays(chance: random.Random) -> list[Value | None]:
    """Return the games of a machine; now and then its topic is deleted."""
    plays: list[Value | None] = []
    credit = 10_000
    for step in range(_STEPS):
        bet = chance.choice((20, 50, 100, 250, 500))
        win = bet * chance.choice((0, 0, 0, 1, 2, 10))
        credit = max(0, credit + win - bet)
        digits = f"{chance.getrandbits(128):032x}"
        play = {
            "from": _FROM,
            "gamePlayId": f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}",
            "gameId": _game_id(THEMES[step // 100 % len(THEMES)]),
            "sequence": step + 1,
            "bet": Decimal(bet).scaleb(-2),
            "win": Decimal(win).scaleb(-2),
            "jackpotWin": None,
            "started": _NOW_MS,
            "ended": _NOW_MS,
            "finalCredit": Decimal(credit).scaleb(-2),
        }
        plays.append(None if step % 64 == 63 else play)
    return plays


def _games(theme: str) -> list[Value | None]:
    """Return the configuration of a game; every sixteenth time it is taken away."""
    games: list[Value | None] = []
    for step in range(_STEPS):
        game = {
            "from": _FROM,
            "gameId": _game_id(theme),
            "theme": theme,
            "rateReturn": 0.85 + step % 10 / 100,
            "payTable": _game_id(theme).partition(":")[2],
            "activeDenoms": [1, 2, 5, 10][: 1 + step % 4],
            "version": f"1.{step % 8}",
            "enabled": step % 5 != 0,
        }
        games.append(None if step % 16 == 15 else game)
    return games


_FROM: Final = {
    "venueId": "",
    "scId": "",
    "interfaceId": "",
    "egmElectronicId": "",
    "manufacturerId": "",
    "floorPosition": "",
    "updatedTime": _NOW_MS,
}


def _game_id(theme: str) -> str:
    return f"{theme.replace(' ', '-')}:{theme[0]}{len(theme)}"


def _rests(version: SchemaVersion, values: Sequence[Value | None]) -> list[_Rest]:
    """Encode values as data of a minor, without their first field, cut at each time."""
    parsed = fastavro.parse_schema(json.loads(version.schema.text))
    rests: list[_Rest] = []
    for number, value in enumerate(values):
        if number and value is values[number - 1]:  # the same value again
            rests.append(rests[-1])
        elif value is None:
            rests.append(None)
        else:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
            rests.append(tuple(out.getvalue().split(_NOW)[1:]))
    return rests


@click.command("archive")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--records", type=click.IntRange(1), default=10_000_000, show_default=True, help="Changes in it.")
@click.option("--topics", type=click.IntRange(1), default=10_000, show_default=True, help="About so many.")
@click.option(
    "--span",
    cls=RenamedOption,
    former=["--days"],
    type=Duration(bare="d"),
    default="3d",
    show_default=True,
    help="Time from the first change to the last.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another one gives other changes.")
@click.option(
    "--rejected-every",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Changes per rejected SEND, in a journal of their own beside it. 0 for none.",
)
@click.option(
    "--schemas",
    type=click.Path(path_type=Path),
    default=SCHEMAS,
    show_default="schemas",
    metavar="FOLDER",
    help="Schema folder of the demo, as a clone has it.",
)
def archive_command(
    folder: Path, records: int, topics: int, span: dt.timedelta, seed: int, rejected_every: int, schemas: Path
) -> None:
    """Write a journal of schema-true changes to FOLDER, as a gateway would have left it after some days.

    For the pipeline's tests and measurements: no gateway runs, and no publisher. Ten million changes take 2.9 GB.
    """
    try:
        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("changes", total=records)
            written = write_archive(
                folder,
                records,
                topics=topics,
                days=span / dt.timedelta(days=1),
                seed=seed,
                schemas=schemas,
                rejected_every=rejected_every,
                show=lambda done: bars.update(task, completed=done),
            )
    except OSError as error:
        raise LoadError(str(error)) from error
    size = written.length_bytes / 1e9
    click.echo(f"{folder}: {written.records:,} changes in {written.segments} segments, {size:.2f} GB")
