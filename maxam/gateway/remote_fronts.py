"""Fronts on other machines: each is a process with `[front]` that connects to the link, and is served as the others are.

Such a front accepts its clients itself, with a certificate of its own. It is trusted: it hands over operations in the name of any
principal. So its certificate needs the admin right `front`. Its messages are those of this release alone.
"""

import logging
import threading
from itertools import count
from typing import TYPE_CHECKING, Final, final

from maxam import __version__
from maxam.cluster.link import Link
from maxam.cluster.wire import Frame, FrameReader
from maxam.gateway.front_children import Front
from maxam.gateway.front_link import UNSENT_BYTES_MAX, FrontLink
from maxam.gateway.log import log_event

if TYPE_CHECKING:
    from maxam.gateway.fronts import Fronts


@final
class RemoteFront:
    """A front on another machine, as its link has it.

    Attributes:
        ended: Set once it is served no longer.
    """

    def __init__(self, front: Front) -> None:
        self.ended: Final = threading.Event()
        self.front: Final = front

    def end(self, reason: str) -> None:
        """End its link."""
        self.front.link.end(reason)


@final
class RemoteFronts:
    """Serves fronts whose link was accepted."""

    def __init__(self, fronts: "Fronts") -> None:
        """Serve them beside those of this machine, and with the same order."""
        self._fronts: Final = fronts
        self._slots: Final[set[int]] = set()

    def problem(self, software: str) -> str:
        """Return why a front of a release is not served now; empty if it is."""
        if self._fronts.tasks is None or self._fronts.stopping:
            return "this gateway does not serve fronts at this moment"
        if software != __version__:
            return f"the front has release {software}, and this gateway {__version__}. Install the same on both"
        return ""

    def serve(self, link: Link, name: str, resumes: bool, reader: FrameReader, received: list[Frame]) -> RemoteFront:
        """Begin to serve a front of this name that has sent HELLO, over a link that was handed over.

        With `resumes` another leader has served it, and it sends its state first.
        """
        reader.large = True
        slot = next(slot for slot in count(self._fronts.count) if slot not in self._slots)
        front_link = FrontLink(link.tls, UNSENT_BYTES_MAX, reader, received)
        remote = RemoteFront(Front(slot, 0, front_link, None, name))
        remote.front.note = link.note
        remote.front.resumes = resumes
        tasks = self._fronts.tasks
        if tasks is None or self._fronts.stopping:
            remote.ended.set()
        else:
            self._slots.add(slot)
            tasks.start_soon(self._serve, remote)
        return remote

    async def _serve(self, remote: RemoteFront) -> None:
        front = remote.front
        try:
            reason = await self._fronts.run_front(front)
        finally:
            self._slots.remove(front.slot)
            remote.ended.set()
        if not self._fronts.stopping:
            log_event(logging.WARNING, "front-ended", front=front.slot, name=front.name, error=reason)
