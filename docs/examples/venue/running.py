"""Live totals of venues: what their machines counted in the running period and in the one before it, ready to be published.

The totals are a fold over the journal. `take` adds a batch of readings, with the revision up to which the journal has been read.
`save` writes everything to one file, which it replaces at once. A process that loads the file reads the journal from there on.
So each reading counts once, however the former process ended: its later readings are counted again. The gateway may have newer
totals for a while. It keeps them, because they are published with the revision as `source-revision`.

The list of venues comes from the readings alone. A machine that makes up a venue for each reading must not fill this process or
the gateway. After VENUES_MAX venues no further one is added, and the known ones continue.
"""

import datetime as dt
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxam.pipeline import BodyEncoder, PipelineError, Row
from venue.meters import DELTA_COLUMNS, MARKS, METERS, READING_COLUMNS, count, no_readings
from venue.periods import GAMING_DAY, Periods

VENUE_METER_TOTALS: Final = "venue.VenueMeterTotals_v1"
STATE_FILE: Final = "venue-totals.arrows"
LOCK_FILE: Final = ".lock"
VENUES_MAX: Final = 10_000  # several times what any jurisdiction has

_KEYS: Final = ("venue", "machine", "period_start_us", "period_end_us")
_SUMS: Final = (*METERS, *MARKS)
_TOTAL_COLUMNS: Final = pa.schema([DELTA_COLUMNS.field(name) for name in (*_KEYS, "time_us", *_SUMS)])
_FIELDS: Final = {  # of PeriodMeterTotals in schemas/venue
    "readings": "readings",
    "money_in_cents": "moneyIn",
    "money_out_cents": "moneyOut",
    "turnover_cents": "turnover",
    "wins_cents": "wins",
    "games_played": "gamesPlayed",
    "resets": "resets",
    "roll_overs": "rollOvers",
    "baselines": "baselines",
    "gaps": "gaps",
    "moves": "moves",
    "late": "lateReadings",
    "undated": "undatedReadings",
    "unusable": "unusableReadings",
}
_NOT_IN_TOKEN: Final = frozenset("./\\*?[]%")
_STATE: Final = b"maxam.venue-totals"  # key of the metadata of the state file
_STATE_VERSION: Final = 1

Value = dict[str, Any]


@final
class VenueTotals:
    """Running totals of all venues.

    Attributes:
        periods: How time is cut.
        as_of: Every reading up to this revision is counted and none after it; 0 at the beginning.
        left_out: How many readings of venues beyond the limit were left out, since it was made or loaded.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods: Final = periods
        self.as_of = 0
        self.left_out = 0
        self._baselines: pa.RecordBatch = no_readings()
        self._totals: pa.Table = (
            _TOTAL_COLUMNS.empty_table()
        )  # of each machine: the periods that are shown of its venue

    def take(self, readings: pa.RecordBatch, as_of: int) -> list[str]:
        """Count readings.

        Args:
            readings: Rows of `meters.READING_COLUMNS`: all those of revisions after `self.as_of`, up to `as_of`.
            as_of: The revision up to which the journal has been read.

        Returns:
            The venues whose totals may be others now.
        """
        concerned = pc.is_in(self._baselines["machine"], value_set=readings["machine"])
        deltas, baselines = count(readings, self._baselines.filter(concerned), self.periods)
        others = pa.Table.from_batches([self._baselines.filter(pc.invert(concerned)), baselines])
        arrays = [column.combine_chunks() for column in others.columns]
        venues = self.add(deltas)  # first, so that what fails leaves nothing counted by half
        self._baselines = pa.RecordBatch.from_arrays(arrays, schema=READING_COLUMNS)
        self.as_of = as_of
        return venues

    def add(self, deltas: pa.RecordBatch | pa.Table) -> list[str]:
        """Add what was counted elsewhere.

        Args:
            deltas: Rows of `meters.DELTA_COLUMNS`, or sums of such by machine, venue and period. Rows that cannot be read have no
                venue and are left out. So are those of new venues beyond VENUES_MAX.

        Returns:
            The venues that they are of.
        """
        table = pa.table(deltas).select(_TOTAL_COLUMNS.names).filter(pc.is_valid(deltas["venue"]))
        table = self._of_few_venues(table)
        # The time and the newest period are those of readings that count.
        counts = pc.greater(pc.add(table["readings"], table["baselines"]), 0)
        at = table.column_names.index("time_us")
        table = table.set_column(at, "time_us", pc.if_else(counts, table["time_us"], 0))
        merged = pa.concat_tables([self._totals, table]).group_by(list(_KEYS))
        merged = merged.aggregate([("time_us", "max"), *((name, "sum") for name in _SUMS)])
        names = {"time_us_max": "time_us"} | {f"{name}_sum": name for name in _SUMS}
        merged = merged.rename_columns([names.get(name, name) for name in merged.column_names])
        self._totals = _shown(merged.select(_TOTAL_COLUMNS.names).combine_chunks())
        return sorted(pc.unique(table["venue"]).to_pylist())

    def _of_few_venues(self, table: pa.Table) -> pa.Table:
        """Leave out what would be one venue too many."""
        known = pc.unique(self._totals["venue"])
        new = pc.unique(table["venue"].filter(pc.invert(pc.is_in(table["venue"], value_set=known))))
        room = max(0, VENUES_MAX - len(known))
        if len(new) <= room:
            return table
        taken = pc.invert(pc.is_in(table["venue"], value_set=new.slice(room)))
        kept = table.filter(taken)
        self.left_out += table.num_rows - kept.num_rows
        return kept

    def values(self, venues: Iterable[str] | None = None) -> list[tuple[str, Value]]:
        """Return the value of VenueMeterTotals of each of these venues, or of all, that anything was counted for."""
        table = self._totals
        if venues is not None:
            table = table.filter(pc.is_in(table["venue"], value_set=pa.array(venues, pa.string())))
        counting = pc.cast(pc.greater(table["readings"], 0), pa.int64())
        by_period = table.append_column("machines", counting).group_by(["venue", "period_start_us", "period_end_us"])
        sums = by_period.aggregate([("time_us", "max"), *((name, "sum") for name in ("machines", *_SUMS))])
        found: dict[str, list[dict[str, Any]]] = {}
        for row in sums.sort_by([("venue", "ascending"), ("period_start_us", "descending")]).to_pylist():
            found.setdefault(row["venue"], []).append(row)
        values = []
        for venue, rows in found.items():
            current = next(
                (row for row in rows if row["time_us_max"]), None
            )  # one that has begun only for unusable ones waits
            if current is None:
                continue
            before = next((row for row in rows if row["period_end_us"] == current["period_start_us"]), None)
            values.append((venue, self._value(venue, current, before)))
        return values

    def rows(self, encoder: BodyEncoder, venues: Iterable[str] | None = None) -> list[Row]:
        """Return what to publish of these venues, or of all.

        Raises:
            PipelineError: The registry has no rule for it, or another schema.
        """
        rows = []
        for venue, value in self.values(venues):
            destination = destination_of(venue, self.periods)
            rule = encoder.rule(destination)
            if rule is None or rule.schema != VENUE_METER_TOTALS:
                raise PipelineError(
                    f"{destination}: the registry has no rule that gives it {VENUE_METER_TOTALS}; see schemas/registry.toml"
                )
            body, headers = encoder.encode(destination, value)
            rows.append(Row(self.as_of, destination, body, headers))
        return rows

    def save(self, folder: Path) -> None:
        """Write everything to one file in a folder, in place of the former one.

        Raises:
            PipelineError: It cannot be written.
        """
        state = {"version": _STATE_VERSION, "as_of": self.as_of, "periods": _settings(self.periods)}
        baselines = READING_COLUMNS.with_metadata({_STATE: json.dumps(state)})
        path = folder / STATE_FILE
        aside = folder / f".{STATE_FILE}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                for table in (pa.Table.from_batches([self._baselines]).cast(baselines), self._totals):
                    with pa.ipc.new_stream(file, table.schema) as stream:
                        stream.write_table(table)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError as error:
            raise PipelineError(f"{path} cannot be written: {error.strerror or error}") from error

    @classmethod
    def load(cls, folder: Path, periods: Periods) -> "VenueTotals":
        """Read what `save` wrote to a folder; nothing there is the beginning.

        Raises:
            PipelineError: It cannot be read, or was written for other periods.
        """
        path = folder / STATE_FILE
        remedy = "name another --state, or delete it to count everything again"
        totals = cls(periods)
        try:
            with path.open("rb") as file:
                baselines = pa.ipc.open_stream(file).read_all()
                table = pa.ipc.open_stream(file).read_all()
            state = json.loads(baselines.schema.metadata[_STATE])
            if state["version"] != _STATE_VERSION:
                raise PipelineError(f"{path} was written by another version of maxam: {remedy}")
            if state["periods"] != _settings(periods):
                raise PipelineError(f"{path} has totals by {state['periods']}, not by {_settings(periods)}: {remedy}")
            arrays = [column.combine_chunks() for column in baselines.columns]
            totals._baselines = pa.RecordBatch.from_arrays(arrays, schema=READING_COLUMNS)
            totals._totals = table.cast(_TOTAL_COLUMNS)
            totals.as_of = int(state["as_of"])
        except FileNotFoundError:
            return totals
        except OSError as error:
            raise PipelineError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, LookupError, TypeError) as error:  # Arrow's errors are ValueErrors
            raise PipelineError(f"{path} is damaged ({error}): {remedy}") from error
        return totals

    def _value(self, venue: str, current: dict[str, Any], before: dict[str, Any] | None) -> Value:
        of_day = self.periods.kind == GAMING_DAY
        start = self.periods.day_start
        return {
            "venueId": venue,
            "asOfRevision": self.as_of,
            "updatedTime": current["time_us_max"] // 1000,
            "periodKind": "GAMING_DAY" if of_day else "HOUR",
            "timeZone": self.periods.zone.key,
            "dayStart": (start.hour * 60 + start.minute) * 60_000 if of_day else None,
            "current": self._period(current),
            "previous": None if before is None else self._period(before),
        }

    def _period(self, row: dict[str, Any]) -> Value:
        date = self.periods.around(row["period_end_us"]).date
        value = {
            "periodStart": row["period_start_us"] // 1000,
            "periodEnd": row["period_end_us"] // 1000,
            "localDate": (date - dt.date(1970, 1, 1)).days,
            "machines": row["machines_sum"],
        }
        return value | {field: row[f"{name}_sum"] for name, field in _FIELDS.items()}


@contextmanager
def hold_state(folder: Path) -> Iterator[None]:
    """Keep a state folder for this process, until the end of the block or of the process, whichever way.

    Raises:
        PipelineError: Another process has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                f"another process follows with the state in {folder}: stop it, or name another --state"
            ) from None
        yield
    finally:
        os.close(lock)


def destination_of(venue: str, periods: Periods) -> str:
    """Return the topic of a venue's totals.

    Some characters of the venue's id cannot stand in a token of a destination. These, `.` and `%` stand as `%` and two hexadecimal
    digits for each byte of their UTF-8.
    """
    token = "".join(
        character
        if character.isprintable() and character != " " and character not in _NOT_IN_TOKEN
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in venue
    )
    return (
        f"X/Venue.{token}.VenueMeterTotals" if periods.kind == GAMING_DAY else f"X/Venue.{token}.Hour.VenueMeterTotals"
    )


def _shown(totals: pa.Table) -> pa.Table:
    """Leave out what is older than the two newest periods of its venue in which readings counted."""
    if not totals.num_rows:
        return totals
    venues = totals["venue"].combine_chunks().dictionary_encode().indices.to_numpy()
    starts, ends = totals["period_start_us"].to_numpy(), totals["period_end_us"].to_numpy()
    newest = np.full(int(venues.max()) + 1, -1, np.int64)
    counts = totals["time_us"].to_numpy() > 0
    np.maximum.at(newest, venues[counts], starts[counts])
    uncounted = newest[venues] < 0  # of these venues only readings that are skipped came: they shall not pile up either
    np.maximum.at(newest, venues[uncounted], starts[uncounted])
    return totals.filter(pa.array((starts >= newest[venues]) | (ends == newest[venues])))


def _settings(periods: Periods) -> str:
    text = f"{periods.kind} in {periods.zone.key}"
    return f"{text} from {periods.day_start:%H:%M}" if periods.kind == GAMING_DAY else text
