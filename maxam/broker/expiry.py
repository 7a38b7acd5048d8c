"""Topics that expire: a topic that was not updated for `expire_after_s` of its rule is deleted by the gateway itself.

The caller finds topics that may have expired, and knows the time (`gateway/freshness.py`). This module decides, and appends the delete.
It is a delete like a client's, with the publisher GATEWAY and the header `reason:expired`. It needs no right. It is compared with the
newest change that was appended, committed or not. So a value that is accepted before the delete keeps the topic, and a value that is
accepted after it makes the topic again.
"""

from typing import Final, final

from maxam.broker.admission import Admission
from maxam.broker.conditions import Conditions
from maxam.broker.publishing import Publishing
from maxam.broker.session import Topic
from maxam.metrics import Counters
from maxam.records import GATEWAY
from maxam.stomp.events import Send

_REASON: Final = ((b"reason", b"expired"),)


@final
class Expiry:
    """Deletes the topics of one broker that have expired."""

    __slots__ = ("_admission", "_conditions", "_counters", "_publishing")

    def __init__(
        self, conditions: Conditions, admission: Admission, publishing: Publishing, counters: Counters
    ) -> None:
        self._publishing: Final = publishing
        self._conditions: Final = conditions
        self._admission: Final = admission
        self._counters: Final = counters

    def due_us(self, topic: Topic) -> int:
        """Return when the value of a topic expires by the registry in force, microseconds since the epoch; -1 for never."""
        at = -1 if topic.change.deleted else self._admission.rule_of(topic)
        limit_s = None if at < 0 else self._admission.registry.expire_after_s[at]
        return -1 if limit_s is None else topic.change.accepted_at_us + int(limit_s * 1e6)

    def expire(self, topic: Topic, now_us: int) -> bool:
        """Append the delete of a topic if its value has expired and no newer change is on its way; return True if that was so.

        Args:
            topic: Any topic of the store.
            now_us: The broker's time, microseconds since the epoch.
        """
        due_us = self.due_us(topic)
        if not 0 <= due_us < now_us:
            return False
        revision, _ = self._conditions.newest(topic.destination, topic)
        if revision != topic.change.revision:
            return False
        rule = self._admission.registry.rules[self._admission.rule_of(topic)]
        event = Send(topic.destination, b"", _REASON, None)
        self._publishing.append(GATEWAY, event, topic, rule.deletion, True, now_us)
        self._counters.topics_expired += 1
        return True
