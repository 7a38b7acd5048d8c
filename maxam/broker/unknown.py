"""Topics whose values are not known to be current, as the link to the gateway that they come from is down.

They are known by the globs of the link. No topic has a mark of it, so nothing is kept for each of them, and a SEND costs nothing.

A link lists its globs itself. So of these, only topics count that its publisher has written, or may write: no venue can make the
topics of another one unknown.
"""

from typing import Final, final

from maxam.broker.policy import Rights
from maxam.globs import Glob


@final
class UnknownTopics:
    """The globs of all links that are down.

    Attributes:
        links: By the name of the link.
        resumed: Number of subscriptions with markers that began so far with topics that their clients may hold.
    """

    __slots__ = ("_owners", "_stores", "links", "resumed")

    def __init__(self) -> None:
        self.links: Final[dict[str, tuple[Glob, ...]]] = {}
        self.resumed = 0
        self._owners: Final[dict[str, tuple[str, Rights]]] = {}  # publisher of each link, and its rights
        self._stores: dict[
            bytes, list[tuple[str, Glob]]
        ] = {}  # by the store and its slash; b"" if a glob leaves it open

    def set(self, link: str, globs: tuple[Glob, ...], publisher: str, rights: Rights) -> None:
        """Call the topics of a link unknown; without globs it is up.

        Args:
            link: Its name.
            globs: Of its topics.
            publisher: Principal that has published the link.
            rights: Of that principal.
        """
        self._owners[link] = publisher, rights
        for glob in self.links.pop(link, ()):
            store = _store_of(glob)
            left = [one for one in self._stores.pop(store, []) if one[0] != link]
            if left:
                self._stores[store] = left
        if globs:
            self.links[link] = globs
        else:
            del self._owners[link]
        for glob in globs:
            self._stores.setdefault(_store_of(glob), []).append((link, glob))

    def link_of(self, destination: bytes, publisher: str) -> str:
        """Return a link that makes a topic unknown, empty if it is not unknown. `publisher` has written its newest value."""
        if not self.links:
            return ""
        for store in (destination[: destination.find(b"/") + 1], b""):
            globs = self._stores.get(store)
            if globs is not None:
                text = destination.decode()
                for link, glob in globs:
                    if glob.matches(text):
                        owner, rights = self._owners[link]
                        if owner == publisher or rights.may_send(destination):
                            return link
        return ""


def _store_of(glob: Glob) -> bytes:
    """Return the store of all topics of a glob, with its slash; empty if the glob leaves it open."""
    store, slash, _ = glob.prefix.partition("/")
    return (store + slash).encode() if slash else b""
