"""The code of the error that a command printed."""

import re


def code_in(stderr: str) -> str:
    """Return the code of the error that ends standard error; empty for none."""
    found = re.search(r"^Error \[([a-z-]+)\]: .+\n\Z", stderr, re.MULTILINE)
    return found[1] if found else ""
