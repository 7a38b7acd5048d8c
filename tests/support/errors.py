"""The code of the error that a command printed."""

import json
import re


def code_in(stderr: str) -> str:
    """Return the code of the error that ends standard error; empty for none."""
    if stderr.startswith("{"):
        return str(json.loads(stderr)["error"]["code"])
    found = re.search(r"^Error \[([a-z-]+)\]: .+\n\Z", stderr, re.MULTILINE)
    return found[1] if found else ""
