"""Run `maxam-gateway` on a disk that fails while a file named in FAULT exists and holds an errno and a call's name."""

import errno
import os
from pathlib import Path
from typing import Any

from maxam.journal.disk import OsDisk
from maxam.main import gateway

FAULT = Path(os.environ["FAULT"])


def _failing(name: str) -> Any:
    call = getattr(OsDisk, name)

    def attempt(*arguments: Any) -> Any:
        try:
            code, _, where = FAULT.read_text().partition(" ")
        except FileNotFoundError:  # which a test may remove at any moment
            code = where = ""
        if name in where.split():
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return call(*arguments)

    return attempt


for method in ("pwrite", "fdatasync", "fsync"):
    setattr(OsDisk, method, _failing(method))
gateway()
