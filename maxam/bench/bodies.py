"""Schema-true bodies for the load: meter readings of the shipped schemas."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from maxam.avro.registry import load_registry


def _schema(schemas: Path) -> Any:  # noqa: ANN401  # as fastavro has it
    registry = load_registry({str(p.relative_to(schemas)): p.read_bytes() for p in schemas.rglob("*") if p.is_file()})
    return fastavro.parse_schema(json.loads(registry.versions("egm.EGMMeterReading_v1")[0].schema.text))


def meter_reading_reader(schemas: Path) -> Callable[[], object]:
    """Return what reads such a body once with fastavro."""
    schema, body = _schema(schemas), meter_reading(schemas, 1)
    return lambda: fastavro.schemaless_reader(io.BytesIO(body), schema)


def meter_reading(schemas: Path, number: int) -> bytes:
    """Return the newest minor of `egm.EGMMeterReading_v1` as a bare datum, 84 bytes of 24 fields."""
    reading = {
        "from": {
            "venueId": "venue-7",
            "scId": "sc-1",
            "interfaceId": "if-3",
            "egmElectronicId": f"{number:05}",
            "manufacturerId": "ACME",
            "floorPosition": "A-12",
            "updatedTime": 1_790_000_000_000,
        },
        "meters": (
            "egm.QMeters_v1",
            {
                "credit": {"notesIn": 1_250_000, "coinsIn": 40_000, "ticketsIn": 310_000, "transfersIn": 0},
                "debit": {"coinsOut": 12_000, "ticketsOut": 900_000, "transfersOut": 0, "cancelledCredit": 100_000},
                "auxiliary": {"turnover": 9_800_000, "totalWins": 8_700_000, "jackpotWins": 50_000},
                "nonMonetary": {"gamesPlayed": 98_000, "gamesWon": 31_000, "doorOpenings": 12, "powerUps": 3},
            },
        ),
        "resetDateTime": None,
        "reason": "PERIODIC",
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _schema(schemas), reading)
    return out.getvalue()
