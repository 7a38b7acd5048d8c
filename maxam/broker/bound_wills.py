"""The last will that a policy binds to a principal: the key `will` of a principal, checked as far as a policy can be."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Final

from maxam.config import Limits
from maxam.globs import destination_problem
from maxam.stomp.events import DELAY_S_MAX, DROPPED_HEADERS, SOURCE_REVISION, Will

_KEYS: Final = ("destination", "delay_s", "body", "body_base64", "headers")
_RESERVED: Final = DROPPED_HEADERS | {SOURCE_REVISION}

OnProblem = Callable[[str, str, object], None]  # place, what was expected, the value found


def read_bound_will(table: Mapping[str, object], key: str, limits: Limits, on_problem: OnProblem) -> Will | None:
    """Return the will of a table, None if something is wrong with it.

    Args:
        table: The value of the key `will`.
        key: Its place in the file.
        limits: Bound its bytes and its destination.
        on_problem: Called for each mistake.
    """
    mistakes = 0

    def wrong(name: str, expected: str, found: object) -> None:
        nonlocal mistakes
        mistakes += 1
        on_problem(f"{key}.{name}", expected, found)

    for name in table:
        if name not in _KEYS:
            wrong(name, f"one of {', '.join(_KEYS)}", "an unknown key")
    destination = table.get("destination")
    problem = "text" if not isinstance(destination, str) else _problem(destination, limits)
    if problem is not None:
        wrong("destination", f"a destination ({problem})", destination)
    delay_s = table.get("delay_s", 0)
    if not isinstance(delay_s, int) or isinstance(delay_s, bool) or not 0 <= delay_s <= DELAY_S_MAX:
        wrong("delay_s", f"0 to {DELAY_S_MAX} seconds", delay_s)
    given = table.get("headers", {})
    headers: list[tuple[bytes, bytes]] = []
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        wrong("headers", "a table of texts", given)
    elif reserved := [name for name in given if not name or name.encode() in _RESERVED]:
        wrong("headers", "names that a SEND passes on, and no condition", reserved[0])
    else:
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
    body = _body(table)
    if body is None:
        wrong("body", "one text, or base64 under body_base64", table.get("body", table.get("body_base64")))
    if mistakes or not isinstance(destination, str) or not isinstance(delay_s, int) or body is None:
        return None
    will = Will(destination.encode(), body, tuple(headers), delay_s)
    if will.size > limits.will_bytes_max:
        wrong("body", f"at most {limits.will_bytes_max} bytes with destination and headers (will_bytes_max)", will.size)
        return None
    return will


def _problem(destination: str, limits: Limits) -> str | None:
    return destination_problem(destination.encode(), limits.destination_bytes_max)


def _body(table: Mapping[str, object]) -> bytes | None:
    body, encoded = table.get("body", ""), table.get("body_base64", "")
    if not isinstance(body, str) or not isinstance(encoded, str) or (body and encoded):
        return None
    try:
        return body.encode() or b64decode(encoded, validate=True)
    except (Base64Error, ValueError):
        return None
