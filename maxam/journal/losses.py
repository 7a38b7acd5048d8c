"""Revisions that repairs have removed from a journal: a known gap is not reported again, and an unknown one is not skipped.

`damaged/<when>/repair.json` is the report of one repair. Its key `lost` holds the ranges of revisions that no file holds.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from maxam.journal.disk import Disk

FOLDER: Final = "damaged"
REPORT: Final = "repair.json"
_CHECK: Final = "check"  # key with the CRC-32 of all others


@dataclass(frozen=True, slots=True)
class Losses:
    """The gaps that repairs left.

    Attributes:
        ranges: First and last revision of each, by folder: `segments` or `rejected`.
        unreadable: Reports that cannot be believed.
    """

    ranges: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def cover(self, folder: str, first: int, last: int) -> bool:
        """Return True if all of a range of revisions is known to be lost."""
        for low, high in sorted(self.ranges.get(folder, ())):
            if low <= first <= high:
                first = high + 1
        return first > last


def read_losses(root: str, disk: Disk) -> Losses:
    """Return what the repairs of a journal have lost."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    unreadable: list[str] = []
    for path in report_paths(root, disk):
        try:
            report = json.loads(disk.read(path, 0, disk.size(path)))
            if report.pop(_CHECK) != _check(report):
                raise ValueError("the report does not match its check")  # noqa: TRY301 - reported like the errors of json
            for one in report["lost"]:
                ranges.setdefault(one["folder"], []).append((one["first"], one["last"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            unreadable.append(path)
    return Losses(ranges, tuple(unreadable))


def report_paths(root: str, disk: Disk) -> list[str]:
    """Return the paths of the reports, oldest first."""
    if FOLDER not in disk.names(root):
        return []
    paths = [f"{root}/{FOLDER}/{when}" for when in sorted(disk.names(f"{root}/{FOLDER}"))]
    return [f"{path}/{REPORT}" for path in paths if REPORT in disk.names(path)]


def encode_report(report: dict[str, Any]) -> bytes:
    """Return the bytes of a report, with its check."""
    return json.dumps({**report, _CHECK: _check(report)}, indent=1, ensure_ascii=False).encode()


def _check(report: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(report, sort_keys=True).encode()):08x}"
