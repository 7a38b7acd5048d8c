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
        if globs:
            self.links[link] = globs
        else:
            self.links.pop(link, None)
        self._stores = {}
        for name, those in self.links.items():
            for glob in those:
                store, slash, _ = glob.prefix.partition("/")
                self._stores.setdefault((store + slash).encode() if slash else b"", []).append((name, glob))

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
