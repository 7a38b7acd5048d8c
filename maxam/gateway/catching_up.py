"""A member of a cluster gets from another member what the log has forgotten: by its feed, or by a copy of its journal."""

import logging
from typing import Final

import trio

from maxam.cluster.follower import CopiedError, Follower
from maxam.cluster.keeper import Keeper
from maxam.cluster.steps import Step
from maxam.gateway.link_credentials import LinkCredentials
from maxam.gateway.log import log_event
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import Position

_LOOK_S: Final = 0.05  # between two checks whether all is there


async def catch_up(
    addresses: list[tuple[str, int]],
    credentials: LinkCredentials,
    keeper: Keeper,
    folder: str,
    position: Position,
    incarnation: str,
) -> None:
    """Follow other members until the journal has all that they had at their last sign of life, or is a copy of theirs.

    The broker learns nothing of it: the gateway has to be opened again.

    Args:
        addresses: Links of the other members, in the order in which they are tried.
        credentials: For them.
        keeper: Stores what comes.
        folder: Of the own journal.
        position: Where it ends.
        incarnation: Of the own journal.
    """
    follower = Follower(
        addresses, credentials.client, keeper, folder, OsDisk(), position, incarnation, credentials.denial_of
    )
    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_head, follower, scope)
                await follower.run(_ignore)
    except CopiedError as error:
        log_event(logging.WARNING, "journal-copied", result=error, action="the gateway starts again")


async def _ignore(steps: list[Step]) -> None:
    """Leave steps to the next start, which reads them from the journal."""


async def _cancel_at_head(follower: Follower, scope: trio.CancelScope) -> None:
    """Cancel a scope as soon as a follower has all that its source had at its last sign of life."""
    while True:
        await trio.sleep(_LOOK_S)
        head = follower.head
        if head is not None and follower.steps.position.revision >= head.position.revision:
            scope.cancel()
            return
