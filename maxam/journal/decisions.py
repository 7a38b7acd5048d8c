"""Decisions of operators about the journal of a gateway that is stopped, for the audit log of its next start.

The commands run without the gateway, whose audit log they do not know. So they leave a line in the journal's folder.
"""

import json
import os
from pathlib import Path
from typing import Any

from maxam.durable_files import replace_durably
from maxam.journal.names import DECISIONS


def note_decision(folder: str, decision: str, now_us: int, **facts: object) -> None:
    """Leave a decision in the folder of a journal, which is made if it is missing. Raises OSError.

    New files belong to the owner of the folder around them. So the gateway can remove them if root has run the command.
    """
    path = Path(folder)
    if not path.exists():
        path.mkdir(mode=0o750)
        _give(path)
    line = {"decision": decision, "decided_at_us": now_us, **facts}
    noted = [*read_decisions(folder), line]
    replace_durably(path / DECISIONS, b"".join(b"%s\n" % json.dumps(one).encode() for one in noted), 0o640)
    _give(path / DECISIONS)


def read_decisions(folder: str) -> list[dict[str, Any]]:
    """Return the decisions that no start has recorded yet, oldest first. Raises OSError."""
    try:
        text = Path(folder, DECISIONS).read_text("utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


def forget_decisions(folder: str) -> None:
    """Remove the decisions, which are in the audit log now. Raises OSError."""
    Path(folder, DECISIONS).unlink()


def _give(path: Path) -> None:
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
