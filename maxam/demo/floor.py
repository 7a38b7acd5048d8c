"""The floor as the eager subscriber sees it: one row per machine, made from nothing but what came."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from maxam.demo.bodies import Bodies

SMOOTHING_S: Final = 3.0  # period over which update rates are averaged


@final
@dataclass(slots=True)
class Row:
    """The known state of one machine. Amounts are in cents, -1 while unknown."""

    gmid: str
    position: str = ""
    game: str = ""
    credit: int = -1
    money_in: int = -1
    turnover: int = -1
    status: str = ""
    urgent: bool = False  # somebody should go there
    playing: bool = False
    updated_ms: int = 0
    updates: int = 0
    updates_per_s: float = 0.0
    updates_counted: int = 0  # of them, in `updates_per_s`


@final
class Floor:
    """All machines that were heard of."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies: Final = bodies
        self._rows: Final[dict[str, Row]] = {}

    def take(self, destination: str, body: bytes) -> None:
        """Update a machine's row; a deletion leaves it as it is.

        Raises:
            ClientError: The body does not fit its schema.
        """
        subject = destination.split(".")
        row = self._rows.setdefault(subject[2], Row(subject[2]))
        row.updates += 1
        if not body:
            return
        value = self._bodies.decode(destination, body)
        base = value["from"]
        row.position = base["floorPosition"]
        row.updated_ms = int(base["updatedTime"].timestamp() * 1000)
        match subject[-1]:
            case "EGMMeterReading":
                row.money_in, row.turnover = _meters(*value["meters"])
            case "EGMStatus":
                row.credit = int(value["gamePlay"]["creditBalance"] * 100)
                row.status, row.urgent, row.playing = _status(value)
            case "GameDetectedConfig":
                row.game = value["theme"]
            case _:
                pass

    def rows(self) -> list[Row]:
        """Return all rows by machine; what is true of them goes on changing."""
        return [self._rows[gmid] for gmid in sorted(self._rows)]

    def urgent(self) -> Iterator[Row]:
        """Return the machines that somebody should go to."""
        return (row for row in self.rows() if row.urgent)

    def pass_time(self, elapsed_s: float) -> None:
        """Bring the rates up to date, `elapsed_s` after the last time."""
        weight = min(1.0, elapsed_s / SMOOTHING_S)
        for row in self._rows.values():
            rate = (row.updates - row.updates_counted) / elapsed_s
            row.updates_counted = row.updates
            row.updates_per_s += weight * (rate - row.updates_per_s)


def _meters(kind: str, meters: dict[str, Any]) -> tuple[int, int]:
    """Return money in and turnover in cents, whatever protocol the machine speaks."""
    credit, auxiliary = meters["credit"], meters["auxiliary"]
    match kind:
        case "egm.QMeters_v1":
            return sum(credit.values()), auxiliary["turnover"]
        case "egm.SMeters_v1":
            cents = meters["creditValue"] * 100
            return int(sum(credit.values()) * cents), int(auxiliary["played"] * cents)
        case _:
            return credit["totalIn"], auxiliary["turnover"]


def _status(value: dict[str, Any]) -> tuple[str, bool, bool]:
    """Return in words what matters most, whether somebody should go there, and whether somebody plays."""
    if not value["communications"]["online"]:
        return "offline", True, False
    if value["lockUps"]:
        return value["lockUps"][0].lower().replace("_", " "), True, False
    if value["faults"]:
        return value["faults"][0]["text"], True, False
    for door in value["doors"]:
        if door["open"]:
            return f"{door['door'].lower().replace('_', ' ')} door open", True, False
    state = value["gamePlay"]["state"]
    return state.lower(), False, state != "IDLE"
