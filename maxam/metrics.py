"""Counters of what the broker did since it started; plain integers, each written by one thread."""

from typing import final


@final
class Counters:
    """Totals since start-up, each counting events unless its name says bytes."""

    __slots__ = (
        "acks",
        "acks_ignored",
        "changes",
        "messages",
        "rejects_failed",
        "rejects_over_queue",
        "rejects_over_rate",
        "rejects_stored",
        "sends_invalid",
        "sends_superseded",
        "sends_unauthorised",
        "sends_unavailable",
        "sessions_expired",
        "shadow_rejections",
        "shadow_trials",
        "takeovers",
    )

    def __init__(self) -> None:
        self.changes = 0  # accepted values and deletes that were applied
        self.sends_invalid = 0
        self.sends_superseded = 0  # accepted, but of a source that has sent the topic something as new or newer
        self.sends_unauthorised = 0
        self.sends_unavailable = 0
        # rejected SENDs in their journal; the first two are written by the thread that stores them
        self.rejects_stored = 0
        self.rejects_failed = 0  # not stored: no room, or the disk failed
        self.rejects_over_rate = 0  # not stored: their principal had too many
        self.rejects_over_queue = 0  # not stored: too many waited
        self.shadow_trials = 0  # SENDs on which a candidate version was tried
        self.shadow_rejections = 0  # of these, what it would have rejected
        self.messages = 0  # MESSAGE frames handed to connections
        self.acks = 0
        self.acks_ignored = 0
        self.takeovers = 0
        self.sessions_expired = 0
