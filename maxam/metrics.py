"""Counters of what the broker did since it started; plain integers that one thread writes."""

from typing import final


@final
class Counters:
    """Totals since start-up, each counting events unless its name says bytes."""

    __slots__ = (
        "acks",
        "acks_ignored",
        "changes",
        "messages",
        "sends_invalid",
        "sends_unauthorised",
        "sends_unavailable",
        "sessions_expired",
        "takeovers",
    )

    def __init__(self) -> None:
        self.changes = 0  # accepted values and deletes that were applied
        self.sends_invalid = 0
        self.sends_unauthorised = 0
        self.sends_unavailable = 0
        self.messages = 0  # MESSAGE frames handed to connections
        self.acks = 0
        self.acks_ignored = 0
        self.takeovers = 0
        self.sessions_expired = 0
