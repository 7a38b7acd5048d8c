"""The topics by which a bridge and the gateways at its two ends know of each other: `B/<venue>.Link` and `B/<venue>.Wanted`.

The values are the bare data of `maxam.Link_v1` and `maxam.Wanted_v1`, version 1.0, in the folder `schemas/maxam`. Bytes after the known fields
are ignored, as later versions append fields.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from maxam.content import long, text

STORE: Final = b"B/"
LINKS: Final = "B/*.Link"
HEADERS: Final = ((b"schema-version", b"1.0"),)  # of a SEND of either value

# States of a link.
UP: Final = "UP"
SYNCING: Final = "SYNCING"
PAUSED: Final = "PAUSED"
DRILL: Final = "DRILL"
STATES: Final = ("UNKNOWN", UP, SYNCING, PAUSED, DRILL)

# Directions of a route: UP as above, and DOWN.
DOWN: Final = "DOWN"
DIRECTIONS: Final = ("UNKNOWN", UP, DOWN)

# Sides of a bridge.
VENUE: Final = "VENUE"
CENTRE: Final = "CENTRE"
SIDES: Final = ("UNKNOWN", VENUE, CENTRE)

# Bounds on values, which any client with the right to send them makes. Those of a bridge are within them.
BYTES_MAX: Final = 262_144  # of a value
ROUTES_MAX: Final = 256
TIMEOUT_S_MAX: Final = 3600
DRILL_S_MAX: Final = 3600
REASON_CHARACTERS_MAX: Final = 1000
_DRILL_ID_CHARACTERS_MAX: Final = 64

_LINK: Final = b".Link"
_BITS: Final = 64  # of an Avro long

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class LinkRoute:
    """A route of a bridge.

    Attributes:
        direction: UP or DOWN.
        glob: Topics at the sending side.
        store: Store of the topics at the receiving side, in place of that of the glob.
    """

    direction: str
    glob: str
    store: str

    @property
    def mapped(self) -> str:
        """The glob of the topics at the receiving side."""
        return mapped(self.glob, self.store)


@dataclass(frozen=True, slots=True)
class LinkRejection:
    """A topic whose newest value the other side rejects.

    Attributes:
        topic: Destination at the receiving side.
        reason: Result and reason of the rejection.
    """

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class LinkDrill:
    """The last drill.

    Attributes:
        id: Identifier of the request.
        seconds: Length of the cut.
        done: The other figures are final.
        moved: Values and deletes that were sent after the cut until both sides were equal.
        converged_ms: Time from the end of the cut until all of them were confirmed.
        differences: Topics that still differed when both sides were compared afterwards.
    """

    id: str
    seconds: int
    done: bool
    moved: int
    converged_ms: int
    differences: int


@dataclass(frozen=True, slots=True)
class Link:
    """The state of a bridge; see `schemas/maxam/Link_v1`. Times are milliseconds since the epoch, by the clock of the bridge."""

    venue: str
    centre: str
    side: str
    state: str
    because: str
    since_ms: int
    updated_ms: int
    host: str
    link_timeout_s: int
    venue_incarnation: str
    centre_incarnation: str
    routes: tuple[LinkRoute, ...]
    quarantined: int = 0
    rejections: tuple[LinkRejection, ...] = ()
    behind_ms: int = 0
    loops: int = 0
    drill: LinkDrill | None = None

    @property
    def timeout_s(self) -> int:
        """The age in seconds at which this value counts as silence, within bounds."""
        return min(max(self.link_timeout_s, 1), TIMEOUT_S_MAX)

    @property
    def globs_here(self) -> tuple[str, ...]:
        """Globs of the topics that the bridge publishes at the side of this value."""
        direction = {CENTRE: UP, VENUE: DOWN}.get(self.side)
        return tuple(route.mapped for route in self.routes if route.direction == direction)

    def encoded(self) -> bytes:
        """Return the datum."""
        parts = [
            _text(self.venue),
            _text(self.centre),
            long(SIDES.index(self.side)),
            long(STATES.index(self.state)),
            _text(self.because),
            _signed(self.since_ms),
            _signed(self.updated_ms),
            _text(self.host),
            _signed(self.link_timeout_s),
            _text(self.venue_incarnation),
            _text(self.centre_incarnation),
            _array(
                [
                    long(DIRECTIONS.index(route.direction)) + _text(route.glob) + _text(route.store)
                    for route in self.routes
                ]
            ),
            _signed(self.quarantined),
            _array([_text(one.topic) + _text(one.reason) for one in self.rejections]),
            _signed(self.behind_ms),
            _signed(self.loops),
        ]
        drill = self.drill
        if drill is None:
            parts.append(b"\x00")
        else:
            parts += (b"\x02", _text(drill.id), _signed(drill.seconds), b"\x01" if drill.done else b"\x00")
            parts += (_signed(drill.moved), _signed(drill.converged_ms), _signed(drill.differences))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class WantedDrill:
    """A drill that an operator requests.

    Attributes:
        id: Identifier of the request.
        seconds: Length of the cut.
    """

    id: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requests of operators to a bridge; see `schemas/maxam/Wanted_v1`."""

    paused: bool = False
    because: str = ""
    drill: WantedDrill | None = None

    def encoded(self) -> bytes:
        """Return the datum."""
        head = (b"\x01" if self.paused else b"\x00") + _text(self.because)
        if self.drill is None:
            return head + b"\x00"
        return head + b"\x02" + _text(self.drill.id) + _signed(self.drill.seconds)


def decode_link(datum: bytes) -> Link | None:
    """Return the value of a topic `B/<venue>.Link`, None if it is none, or larger than any that a bridge publishes."""
    if len(datum) > BYTES_MAX:
        return None
    reader = _Reader(datum)
    try:
        link = Link(
            venue=reader.text(),
            centre=reader.text(),
            side=reader.choice(SIDES),
            state=reader.choice(STATES),
            because=reader.text(),
            since_ms=reader.number(),
            updated_ms=reader.number(),
            host=reader.text(),
            link_timeout_s=reader.number(),
            venue_incarnation=reader.text(),
            centre_incarnation=reader.text(),
            routes=reader.array(reader.route),
            quarantined=reader.number(),
            rejections=reader.array(reader.rejection),
            behind_ms=reader.number(),
            loops=reader.number(),
            drill=reader.drill() if reader.number() else None,
        )
    except (IndexError, ValueError):
        return None
    return link if len(link.routes) <= ROUTES_MAX else None


def decode_wanted(datum: bytes) -> Wanted | None:
    """Return the value of a topic `B/<venue>.Wanted`, None if it is none.

    A reason that is too long is cut. A drill with an impossible length, or with an identifier that is too long, is left out.
    """
    if len(datum) > BYTES_MAX:
        return None
    reader = _Reader(datum)
    try:
        paused, because = reader.flag(), reader.text()
        drill = WantedDrill(reader.text(), reader.number()) if reader.number() else None
    except (IndexError, ValueError):
        return None
    if drill is not None and not (1 <= drill.seconds <= DRILL_S_MAX and len(drill.id) <= _DRILL_ID_CHARACTERS_MAX):
        drill = None
    return Wanted(paused, because[:REASON_CHARACTERS_MAX], drill)


def link_topic(venue: str) -> bytes:
    """Return the topic of the state of a bridge."""
    return STORE + venue.encode() + _LINK


def wanted_topic(venue: str) -> bytes:
    """Return the topic of the requests to a bridge."""
    return STORE + venue.encode() + b".Wanted"


def venue_of(destination: bytes) -> str:
    """Return the venue whose Link a topic is, empty if it is another topic."""
    if not destination.startswith(STORE) or not destination.endswith(_LINK):
        return ""
    return destination[len(STORE) : -len(_LINK)].decode()


def mapped(glob: str, store: str) -> str:
    """Return a glob, or a destination, with another store in place of its own."""
    return f"{store}/{glob.partition('/')[2]}"


def _text(value: str) -> bytes:
    return text(value.encode())


def _signed(number: int) -> bytes:
    """Return an Avro long."""
    zigzag = number << 1 ^ number >> _BITS - 1
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _array(items: list[bytes]) -> bytes:
    return long(len(items)) + b"".join(items) + b"\x00" if items else b"\x00"


class _Reader:
    """Reads the parts of a datum one after another.

    Methods raise IndexError if the datum ends too early, and ValueError for what no writer writes.
    """

    def __init__(self, datum: bytes) -> None:
        self._datum: Final = datum
        self._at = 0

    def number(self) -> int:
        """Read an int, a long, or an index."""
        shift = zigzag = 0
        while True:
            byte = self._datum[self._at]
            self._at += 1
            zigzag |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift >= _BITS + 6:
                raise ValueError("number too long")
        return zigzag >> 1 ^ -(zigzag & 1)

    def choice(self, symbols: tuple[str, ...]) -> str:
        """Read an enum."""
        index = self.number()
        if index < 0:
            raise ValueError("negative index")
        return symbols[index]

    def flag(self) -> bool:
        """Read a boolean."""
        self._at += 1
        return self._datum[self._at - 1] == 1

    def text(self) -> str:
        """Read a string."""
        length = self.number_of_bytes()
        end = self._at + length
        data = self._datum[self._at : end]
        self._at = end
        return data.decode()

    def number_of_bytes(self) -> int:
        """Read a length; the bytes follow."""
        length = self.number()
        if length < 0:
            raise ValueError("negative length")
        if self._at + length > len(self._datum):
            raise IndexError
        return length

    def array(self, read: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Read an array, in any number of blocks."""
        items: list[_Item] = []
        while (count := self.number()) != 0:
            if count < 0:
                self.number()  # the size of the block
            if abs(count) > len(self._datum):  # each item has a byte at least
                raise ValueError("array too long")
            items += [read() for _ in range(abs(count))]
        return tuple(items)

    def route(self) -> LinkRoute:
        """Read a route."""
        return LinkRoute(self.choice(DIRECTIONS), self.text(), self.text())

    def rejection(self) -> LinkRejection:
        """Read a rejection."""
        return LinkRejection(self.text(), self.text())

    def drill(self) -> LinkDrill:
        """Read a drill."""
        return LinkDrill(self.text(), self.number(), self.flag(), self.number(), self.number(), self.number())
