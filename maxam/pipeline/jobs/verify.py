"""Verify that a live gateway delivers what its journal holds, byte for byte, under load.

The head of the journal is read first, H0. Then an eager subscription must deliver

* at least one message of each topic that holds a value at H0 and that we may receive, unless the topic is deleted later. It has
  that revision or a later one;
* no message that is older than its topic's change at H0 or than an earlier message, and none twice;
* only messages whose revision, destination, headers and body the journal holds, which is fsynced before a message leaves;
* no update of a topic too late. A message shows that everything of lower revisions was there to be delivered. The newest value of
  each topic among these, or a later one, must come before listening ends. The least delay that counts is `quiet_s`, and twice the
  time of the snapshot.

So publishers may go on. Bodies are compared by length and SHA-256. A topic of which one message came takes at most 600 bytes of
memory (measured; 600 MB for a million topics). Each further message takes some 120 bytes and its headers.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import click
import pyarrow as pa
import trio
from cryptography import x509
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documents call it

from maxam.broker.policy import Rights, load_policy
from maxam.config import Limits
from maxam.errors import ClientError
from maxam.exit_codes import ExitCode
from maxam.globs import Glob
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.examining import Archive, examine
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.publish.gateway import gateway_options
from maxam.pipeline.publish.publisher import PROTOCOL_HEADERS, Target
from maxam.pipeline.spark.glob_filter import matches
from maxam.pipeline.spark.selection import GlobType
from maxam.pki.certificates import fingerprint as fingerprint_of
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES_MAX: Final = 5_000_000  # then it stops listening: what was received is in memory
CHUNK_MESSAGES: Final = 10_000
LAG_S_MAX: Final = 10.0  # for what was delivered to show up in the journal, on a shared file system
LAG_POLL_S: Final = 0.2
SAMPLE_S: Final = 0.25  # between the moments that we remember the highest revision of
NAMED_MAX: Final = 5  # topics in a remark

_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
_RECEIVED: Final = pa.schema(
    [
        ("got_revision", pa.int64()),
        ("got_destination", pa.string()),
        ("got_headers", _HEADERS),
        ("got_bytes", pa.int64()),
        ("got_sha256", pa.string()),
    ]
)
_DIFFERENCE_COLUMNS: Final = "destination string, revision long, what string, detail string"
_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """Where gateway and journal disagree.

    Attributes:
        destination: The topic.
        revision: Of the message; of `missing` and `not updated` that of the value in the journal.
        what: `missing`, `not updated`, `stale`, `out of order`, `repeated`, `no right`, `not in the journal`, `other topic`, `deleted`,
            `body` or `headers`.
        detail: One line of text.
    """

    destination: str
    revision: int
    what: str
    detail: str


@final
@dataclass(slots=True)
class Known:
    """The topics in the journal at H0.

    Attributes:
        head: H0.
        newest: Revision of each topic's newest change; once one of its messages came, that of its newest message, negative.
        expected: Topics that hold a value and that we may receive, with its revision; while listening, those not delivered yet.
        withheld: How many topics hold a value that we may not receive.
    """

    head: int
    newest: dict[str, int]
    expected: dict[str, int]
    withheld: int = 0


@final
@dataclass(slots=True)
class Received:
    """The messages that were delivered.

    Attributes:
        batches: All messages, in order.
        messages: How many.
        topics: Of how many topics.
        highest: Highest revision, 0 for none.
        settled: Of each topic the newest change up to this revision, or a later one, must have been delivered. 0 if it is unknown.
        seconds: How long it took from SUBSCRIBE to the end.
        filtered: The gateway reported that no right of ours can match the glob.
        differences: Those that the messages alone show.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    messages: int = 0
    topics: int = 0
    highest: int = 0
    settled: int = 0
    seconds: float = 0.0
    filtered: bool = False
    differences: list[Difference] = field(default_factory=list)


def rights_of(policy: Path, certificate: str) -> Rights:
    """Return what a certificate may do.

    Raises:
        PolicyError: The policy cannot be used.
        PipelineError: A file cannot be read, or the policy does not know the certificate.
    """
    try:
        loaded = load_policy(policy.read_bytes(), str(policy), Limits())
        shown = fingerprint_of(x509.load_pem_x509_certificate(Path(certificate).read_bytes()))
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise PipelineError(f"{certificate} is no PEM certificate") from error
    principal = loaded.principal_of(shown)
    if principal is None:
        raise PipelineError(f"{policy} has no principal with the certificate {certificate} (fingerprint {shown})")
    return loaded.rights(principal)


def know(changes: "DataFrame", head: int, glob: Glob, rights: Rights | None) -> Known:
    """Find the value of each topic in the journal.

    Args:
        changes: Of the journal, up to `head`.
        head: H0.
        glob: Which topics.
        rights: Our rights. None for the right to everything.
    """
    newest = changes.where(F.col("revision") <= head)
    if glob.text != "**":
        newest = newest.where(matches([glob]))
    state = newest.groupBy("destination").agg(F.max(F.struct("revision", "kind")).alias("last"))
    known = Known(head, {}, {})
    for row in state.select("destination", "last.revision", "last.kind").toLocalIterator(prefetchPartitions=True):
        destination, revision, kind = row
        known.newest[destination] = revision
        if kind != "value":
            continue
        if rights is None or rights.may_receive(destination.encode()):
            known.expected[destination] = revision
        else:
            known.withheld += 1
    return known


def listen(
    target: Target, glob: Glob, known: Known, rights: Rights | None, least_s: float, quiet_s: float, most_s: float
) -> Received:
    """Subscribe, and take what is delivered until it is enough.

    Args:
        target: The gateway.
        glob: Which topics.
        known: Of the journal; its dictionaries are brought up to date.
        rights: Our rights, None if they are unknown.
        least_s: Listen for at least this time.
        quiet_s: Take values as missing when no further topic was delivered for this time.
        most_s: Listen no longer than this.

    Raises:
        PipelineError: The connection cannot be made, or was lost.
    """
    listener = _Listener(known, rights)
    try:
        trio.run(listener.run, target, glob, least_s, quiet_s, most_s)
    except ClientError as error:
        raise PipelineError(f"listening to {target.address}:{target.port}: {error}") from error
    return listener.received


@final
class _Listener:
    def __init__(self, known: Known, rights: Rights | None) -> None:
        self.received: Final = Received()
        self._known: Final = known
        self._rights: Final = rights
        self._columns: list[list[object]] = [[] for _ in _RECEIVED.names]

    async def run(self, target: Target, glob: Glob, least_s: float, quiet_s: float, most_s: float) -> None:
        received, expected = self.received, self._known.expected
        began_s = trio.current_time()
        async with target.connect() as client, client.subscribe(glob.text, eager=True) as subscription:
            received.filtered = subscription.filtered
            first_s = began_s  # when a topic was last delivered for the first time
            samples: deque[tuple[float, int]] = deque()  # of time and highest revision until then
            while received.messages < MESSAGES_MAX:
                enough_s = began_s + least_s
                if expected:
                    enough_s = max(enough_s, first_s + quiet_s)
                with trio.move_on_at(min(enough_s, began_s + most_s)) as patience:
                    message = await anext(subscription)
                if patience.cancelled_caught:
                    break
                topics = received.topics
                self._take(message.destination, int(message.message_id), message.headers, message.body)
                now_s = trio.current_time()
                if received.topics != topics:
                    first_s = now_s
                if not samples or now_s >= samples[-1][0] + SAMPLE_S:
                    samples.append((now_s, received.highest))
                if now_s >= min(enough_s, began_s + most_s):
                    break
            settled_s = trio.current_time() - max(quiet_s, 2 * (first_s - began_s))
            while samples and samples[0][0] <= settled_s:
                received.settled = samples.popleft()[1]
        received.seconds = trio.current_time() - began_s
        self._close_chunk()

    def _take(self, destination: str, revision: int, headers: dict[str, str], body: bytes) -> None:
        received, known = self.received, self._known
        received.messages += 1
        received.highest = max(received.highest, revision)
        before = known.newest.get(destination, 0)
        again = before < 0
        before = abs(before)
        if revision < before:
            what = "out of order" if again else "stale"
            detail = f"revision {before} was {'delivered' if again else 'in the journal'} before"
            self._differ(destination, revision, what, detail)
            known.expected.pop(destination, None)  # reported, and not missing besides
        elif again and revision == before:
            self._differ(destination, revision, "repeated", "the same change was delivered before")
        if not again:
            received.topics += 1
            if self._rights is not None and not self._rights.may_receive(destination.encode()):
                self._differ(destination, revision, "no right", "the policy does not let this certificate receive it")
        known.newest[destination] = -max(revision, before)
        if revision >= known.expected.get(destination, revision + 1):
            del known.expected[destination]
        own = [{"name": name, "value": text} for name, text in headers.items() if name not in PROTOCOL_HEADERS]
        row = (revision, destination, own, len(body), hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if len(self._columns[0]) >= CHUNK_MESSAGES:
            self._close_chunk()

    def _differ(self, destination: str, revision: int, what: str, detail: str) -> None:
        self.received.differences.append(Difference(destination, revision, what, detail))

    def _close_chunk(self) -> None:
        arrays = [pa.array(column, kind) for column, kind in zip(self._columns, _RECEIVED.types, strict=True)]
        self.received.batches.append(pa.RecordBatch.from_arrays(arrays, schema=_RECEIVED))
        self._columns = [[] for _ in _RECEIVED.names]


def wait_for_revision(folder: Path, revision: int) -> None:
    """Wait until the journal holds a revision, or for as long as a shared file system may lag behind."""

    async def wait() -> None:
        with trio.move_on_after(LAG_S_MAX):
            while revision and examine(None, folder, from_revision=revision).last < revision:  # noqa: ASYNC110 - a file sends no event
                await trio.sleep(LAG_POLL_S)

    trio.run(wait)


def compare(spark: "SparkSession", changes: "DataFrame", received: Received) -> Iterator[Difference]:
    """Compare messages with the changes of the journal that have their revisions.

    Args:
        spark: The session.
        changes: Of the journal, written before or after the messages came.
        received: The messages that were delivered.

    Yields:
        The differences. Messages whose revision the journal does not hold are `not in the journal`.
    """
    if not received.messages:
        return
    got = spark.createDataFrame(pa.Table.from_batches(received.batches))
    body = F.when(F.col("kind") == "delete", F.lit(b"")).otherwise(F.col("body"))
    judged = (
        got.join(changes, F.col("got_revision") == F.col("revision"), "left")
        .withColumn("sha256", F.sha2(body, 256))
        .withColumn("bytes", F.octet_length(body))
        .withColumn(
            "what",
            F.when(F.col("revision").isNull(), "not in the journal")
            .when(F.col("got_destination") != F.col("destination"), "other topic")
            .when((F.col("kind") == "delete") & (F.col("got_bytes") > 0), "deleted")
            .when(F.col("got_sha256") != F.col("sha256"), "body")
            .when(~F.col("got_headers").eqNullSafe(F.col("headers")), "headers"),
        )
        .where("what is not null")
    )
    for row in judged.toLocalIterator():
        match row["what"]:
            case "not in the journal":
                detail = f"delivered {row['got_bytes']} bytes; the journal has no such revision"
            case "other topic":
                detail = f"the journal has a change of {row['destination']} at this revision"
            case "deleted":
                detail = f"delivered {row['got_bytes']} bytes; in the journal this revision deletes the topic"
            case "body":
                detail = (
                    f"delivered {row['got_bytes']} bytes, SHA-256 {row['got_sha256'][:16]}...;"
                    f" in the journal {row['bytes']} bytes, SHA-256 {row['sha256'][:16]}..."
                )
            case _:
                detail = f"delivered {_shown(row['got_headers'])}; in the journal {_shown(row['headers'])}"
        yield Difference(row["got_destination"], row["got_revision"], row["what"], detail)


def missing(spark: "SparkSession", changes: "DataFrame", known: Known) -> list[Difference]:
    """Return the expected topics that were neither delivered nor deleted since H0.

    Args:
        spark: The session.
        changes: Of the journal, read after listening.
        known: After listening.
    """
    if not known.expected:
        return []
    names = spark.createDataFrame(pa.table({"destination": list(known.expected)}))
    since = changes.where(F.col("revision") > known.head).where("kind = 'delete'")
    deleted = since.join(F.broadcast(names), "destination").select("destination").distinct()
    excused = {row[0] for row in deleted.collect()}
    return [
        Difference(destination, revision, "missing", "the journal holds this value; it was not delivered")
        for destination, revision in known.expected.items()
        if destination not in excused
    ]


def not_updated(
    spark: "SparkSession", changes: "DataFrame", glob: Glob, known: Known, received: Received, rights: Rights | None
) -> list[Difference]:
    """Return the topics of which, while we listened, a value was not delivered, nor a later change.

    Args:
        spark: The session.
        changes: Of the journal, read after listening.
        glob: Which topics.
        known: After listening.
        received: The messages that were delivered.
        rights: Our rights. None if only delivered topics show them.
    """
    since = changes.where(F.col("revision") > known.head)
    if glob.text != "**":
        since = since.where(matches([glob]))
    newest = (
        since.where(F.col("revision") <= received.settled)
        .groupBy("destination")
        .agg(F.max(F.struct("revision", "kind")).alias("last"))
        .where("last.kind = 'value'")
    )
    late: dict[str, int] = {}
    for destination, revision in newest.select("destination", "last.revision").toLocalIterator():
        came = -known.newest.get(destination, 0)  # not positive: nothing came
        if came >= revision or (came <= 0 and (rights is None or not rights.may_receive(destination.encode()))):
            continue
        late[destination] = revision
    if not late:
        return []
    names = spark.createDataFrame(pa.table({"destination": list(late)}))
    deleted = since.where("kind = 'delete'").join(F.broadcast(names), "destination")
    for destination, revision in deleted.groupBy("destination").agg(F.max("revision")).collect():
        if revision > late[destination]:  # of a topic that is gone before it is sent, nothing is delivered
            del late[destination]
    detail = "the journal holds this value; neither it nor a later one was delivered although later ones of other topics were"
    return [Difference(destination, revision, "not updated", detail) for destination, revision in late.items()]


def _shown(headers: object) -> str:
    if not isinstance(headers, list) or not headers:
        return "no headers"
    return ", ".join(f"{each['name']}:{each['value']}" for each in headers)


def _comparable(differences: Iterator[Difference], archive: Archive) -> tuple[list[Difference], int]:
    """Take away what is only not in the journal because that part of it is gone; return how many those were."""
    lost = [(problem.first, problem.last) for problem in archive.problems if problem.lost or problem.kind == "expired"]
    kept: list[Difference] = []
    gone = 0
    for one in differences:
        if one.what == "not in the journal" and (
            one.revision < archive.first or any(first <= one.revision <= last for first, last in lost)
        ):
            gone += 1
        else:
            kept.append(one)
    return kept, gone


@click.command("verify")
@job_options
@gateway_options
@click.option("--glob", type=GlobType(), default="**", show_default=True, help="Which topics.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's policy, with the rights of this certificate.",
)
@click.option(
    "--duration",
    cls=RenamedOption,
    former=["--seconds"],
    type=Duration(zero=True, bare="s"),
    default="10s",
    show_default=True,
    help="Listen for at least this time.",
)
@click.option(
    "--quiet-time",
    cls=RenamedOption,
    former=["--quiet-seconds"],
    type=Duration(timedelta(milliseconds=100), bare="s"),
    default="5s",
    show_default=True,
    help="Take values as missing when no further topic was delivered for this time.",
)
@click.option(
    "--duration-max",
    cls=RenamedOption,
    former=["--seconds-max"],
    type=Duration(timedelta(milliseconds=100), bare="s"),
    default="10m",
    show_default=True,
    help="Listen no longer than this.",
)
def verify_command(
    job: Job,
    target: Callable[[], Target],
    glob: Glob,
    policy: Path | None,
    duration: timedelta,
    quiet_time: timedelta,
    duration_max: timedelta,
) -> None:
    """Verify that a live gateway delivers what its journal holds, byte for byte; publishers may go on meanwhile.

    Each difference is shown with destination, revision and cause. The exit code is 1 then.

    Without --policy, topics of which nothing was delivered may be missing or not ours to receive: they are only counted.

    \b
    maxam-pipeline verify --journal var/journal --policy policy.toml \\
      --cert me.pem --key me.key --ca ca.pem
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    gateway = target()
    rights = None if policy is None else rights_of(policy, gateway.certificate)
    before = job.examine()
    with job.progress("finding what the journal holds"):
        known = know(job.changes(archive=before), before.last, glob, rights)
    live = len(known.expected)
    with job.progress("listening"):
        received = listen(
            gateway, glob, known, rights, *(one.total_seconds() for one in (duration, quiet_time, duration_max))
        )
    with job.progress("comparing"):
        wait_for_revision(job.journal, received.highest)
        after = examine(job.spark, job.journal)
        changes = job.changes(archive=after)
        compared, gone = _comparable(compare(job.spark, changes, received), after)
        absent = missing(job.spark, changes, known)
        behind = not_updated(job.spark, changes, glob, known, received, rights)
    told = {one.destination for one in absent}
    received.differences += [one for one in behind if one.destination not in told]
    differences = [*received.differences, *compared]
    job.remark(
        f"journal up to revision {known.head}: {live} topics have a value that this certificate may receive,"
        f" {known.withheld} one that it may not. {received.messages} messages of {received.topics} topics were compared in"
        f" {received.seconds:.1f} s, up to revision {received.highest}"
    )
    if rights is not None:
        differences += absent
    elif absent:
        named = ", ".join(one.destination for one in absent[:NAMED_MAX])
        job.warn(
            f"of {len(absent)} topics no value was delivered. They are missing, or this certificate may not receive them (--policy"
            f" decides): {named}{', ...' if len(absent) > NAMED_MAX else ''}"
        )
    if received.filtered:
        job.warn(f"this certificate may receive no topic that matches {glob.text}")
    if gone:
        job.warn(f"{gone} messages are older than the archive, or of a part of it that cannot be read: not compared")
    if received.messages >= MESSAGES_MAX:
        job.warn(f"stopped listening after {MESSAGES_MAX} messages")
    if differences:
        rows = [(one.destination, one.revision, one.what, one.detail) for one in differences]
        found = job.spark.createDataFrame(rows, _DIFFERENCE_COLUMNS)
        job.emit(found.orderBy("destination", "revision", "what"))
        click.get_current_context().exit(ExitCode.CHECK_FAILED)
    job.remark("no differences")
