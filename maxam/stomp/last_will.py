"""The last will in CONNECT: a SEND that the broker makes if the connection ends without DISCONNECT.

Its headers begin with `will-`. `will-destination`, `will-delay`, `will-body` and `will-body-base64` have a meaning of their own. Any
other `will-<name>` is the header `<name>` of the SEND. A will has no condition: the state that it expects would be that of the CONNECT.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import DELAY_S_MAX, DROPPED_HEADERS, SOURCE_REVISION, Will, parse_number

_PREFIX: Final = b"will-"
_DESTINATION: Final = b"will-destination"
_DELAY: Final = b"will-delay"
_BODY: Final = b"will-body"
_BASE64: Final = b"will-body-base64"
_OWN: Final = frozenset((_DESTINATION, _DELAY, _BODY, _BASE64))
_FORBIDDEN: Final = (b"transaction", SOURCE_REVISION, b"if-revision")


def read_will(headers: Mapping[bytes, bytes], limits: Limits) -> Will | None:
    """Return the last will of a CONNECT, None without one.

    Args:
        headers: Of the CONNECT.
        limits: Bound its bytes.

    Raises:
        ProtocolError: `bad will`: its headers cannot be used.
    """
    given = [name for name in headers if name.startswith(_PREFIX)]
    if not given:
        return None
    destination = headers.get(_DESTINATION)
    if destination is None:
        raise bad_will(f"CONNECT has {given[0].decode()} and no will-destination; add the topic of the will")
    delay_s = parse_number(headers.get(_DELAY, b"0"))
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise bad_will(f"the will-delay of CONNECT is malformed or out of range; expected 0 to {DELAY_S_MAX} seconds")
    for name in _FORBIDDEN:
        if _PREFIX + name in headers:
            raise bad_will(f"a will cannot have the header {name.decode()}; leave out will-{name.decode()}")
    passed = []
    for name in given:
        plain = name[len(_PREFIX) :]
        if not plain:
            raise bad_will("CONNECT has a header will- without a name; expected will-<name of the header>")
        if name not in _OWN and plain not in DROPPED_HEADERS:
            passed.append((plain, headers[name]))
    will = Will(destination, _body(headers), tuple(passed), delay_s)
    if will.size > limits.will_bytes_max:
        raise bad_will(
            f"destination, headers and body of the will have {will.size} bytes; expected at most {limits.will_bytes_max}, the limit "
            "will_bytes_max"
        )
    return will


def bad_will(reason: str) -> ProtocolError:
    """Return the ERROR for a will that cannot be set."""
    return ProtocolError("bad will", f"The last will was refused: {reason}.")


def _body(headers: Mapping[bytes, bytes]) -> bytes:
    encoded = headers.get(_BASE64)
    if encoded is None:
        return headers.get(_BODY, b"")
    if _BODY in headers:
        raise bad_will("CONNECT has will-body and will-body-base64; expected one of them")
    try:
        return b64decode(encoded, validate=True)
    except Base64Error:
        raise bad_will("the will-body-base64 of CONNECT is not base64; expected its alphabet, padded with =") from None
