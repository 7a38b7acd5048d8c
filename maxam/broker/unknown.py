"""Topics whose values are not known to be current, as the link to the gateway that they come from is down.

They are known by the globs of the link. No topic has a mark of it, so nothing is kept for each of them, and a SEND costs nothing.
"""

from typing import Final, final

from maxam.globs import Glob


@final
class UnknownTopics:
    """The globs of all links that are down.

    Attributes:
        links: By the name of the link.
        resumed: Number of subscriptions with markers that began so far with topics that their clients may hold.
    """

    __slots__ = ("_stores", "links", "resumed")

    def __init__(self) -> None:
        self.links: Final[dict[str, tuple[Glob, ...]]] = {}
        self.resumed = 0
        self._stores: dict[
            bytes, list[tuple[str, Glob]]
        ] = {}  # by the store and its slash; b"" if a glob leaves it open

    def set(self, link: str, globs: tuple[Glob, ...]) -> None:
        """Call the topics of a link unknown; without globs it is up."""
        for glob in self.links.pop(link, ()):
            store = _store_of(glob)
            left = [one for one in self._stores.pop(store, []) if one[0] != link]
            if left:
                self._stores[store] = left
        if globs:
            self.links[link] = globs
        for glob in globs:
            self._stores.setdefault(_store_of(glob), []).append((link, glob))

    def link_of(self, destination: bytes) -> str:
        """Return a link that makes a topic unknown, empty if it is not unknown."""
        if not self.links:
            return ""
        for store in (destination[: destination.find(b"/") + 1], b""):
            globs = self._stores.get(store)
            if globs is not None:
                text = destination.decode()
                for link, glob in globs:
                    if glob.matches(text):
                        return link
        return ""


def _store_of(glob: Glob) -> bytes:
    """Return the store of all topics of a glob, with its slash; empty if the glob leaves it open."""
    store, slash, _ = glob.prefix.partition("/")
    return (store + slash).encode() if slash else b""
