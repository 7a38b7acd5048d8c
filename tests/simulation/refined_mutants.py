"""Bugs put in on purpose into what refines subscriptions; the clients of `refined` must notice each."""

import types

from maxam.broker import (
    outbox,
    positions,
    refined_delivery,
    refinement,
    scans,
    selected_routes,
    session,
    session_table,
    subscribing,
)
from maxam.selectors import selector
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first, refined=True)


def _selective(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first, selective=True)


REFINED_MUTANTS = (
    # Of positions.
    _mutant("position too high by one", refinement, "return heap[0][0] - 1 if heap else head", "return heap[0][0] if heap else head"),
    _mutant("position ignores what is owed", refinement, "return heap[0][0] - 1 if heap else head", "return head"),
    _mutant("position ignores what is un-acked", refinement, "        if acknowledged:\n            self.lacks(change)\n        else:\n", "        if True:\n"),
    _mutant("position ignores what waits", refined_delivery, "            subscription.put_back(topic)\n", "            subscription.put_back(topic)\n            refinement.delivered(change.destination, change.revision, False)\n", first=161),
    _mutant("position ignores what was conflated with what is un-acked", refinement, "        if again and self.markers:\n", "        if False:\n"),
    _mutant("position follows the newest change of a topic", refinement, "if self.markers and destination not in self._missing:", "if self.markers:"),
    _mutant("position ignores scans", refined_delivery, "if complete and subscription.applied and not subscription.scans and", "if complete and subscription.applied and"),
    _mutant("position ignores what a scan found", session, "            self.refinement.lacks(topic.change)\n        self.owed", "        self.owed"),
    _mutant("position before the state is complete", refined_delivery, "complete = refinement.initial_left == COMPLETE and not refinement.completing", "complete = True"),
    _mutant("position stays at what was withheld", refined_delivery, "        refinement.delivered(topic.destination, topic.change.revision, False)\n        self._note_taken", "        self._note_taken"),
    _mutant("position stays at what was skipped", refined_delivery, "            refinement.delivered(change.destination, change.revision, False)\n        self._note_taken", "        self._note_taken"),
    _mutant("position never reported", refined_delivery, "            if 0 <= refinement.marker_due_s <= now_s:\n                self._marking[subscription] = None\n", "            if 0 <= refinement.marker_due_s <= now_s:\n                refinement.reported_s = now_s\n"),
    _mutant("marker's timer forgotten", refined_delivery, "        refinement.reported_s = now_s\n        self.arm(subscription, refinement)\n", "        refinement.reported_s = now_s\n"),
    _mutant("floor ignored", positions, "if not floor <= revision <= head", "if not revision <= head", first=350),
    _mutant("rights digest ignored", positions, " or parts[2] != rights.receive_digest.encode():", ":"),
    _mutant("rights that grow before a SUBSCRIBE is done", session_table, "after if checked.receives_all_of(rights) else 0", "after", first=700),
    # Of catching up.
    _mutant("since skips deletes", scans, "(change.deleted if scan.after < 0 else change.revision <= scan.after)", "(change.deleted or change.revision <= scan.after)"),
    _mutant("since skips the first change", scans, "change.revision <= scan.after)", "change.revision <= scan.after + 1)", first=75),
    _mutant("since skips everything", session_table, "        elif after >= 0:\n", "        elif after >= 0 and not after:\n"),
    _mutant("since is never usable", positions, "    if not floor <= revision <= head", "    if True or not floor <= revision <= head"),
    _mutant("since that cannot be used is not reported", subscribing, "                    result = _SINCE_UNAVAILABLE\n", "                    pass\n"),
    _mutant("an eager SUBSCRIBE ends a catch-up", scans, "        if after < 0 and self.scans.owe_deletes(subscription):\n            after = 0\n", "", first=4930),
    _mutant("granted topics without their deletes", scans, "        after = 0 if refinement is not None and refinement.markers else -1\n", "        after = -1\n", first=80),
    _mutant("markers without what is granted", session, "return self.durable or self.eager or (self.refinement is not None and self.refinement.markers)", "return self.durable or self.eager"),
    _mutant("complete too early", refined_delivery, "            if refinement.initial_left == 0:\n                self.complete", "            if refinement.initial_left <= 1:\n                self.complete"),
    _mutant("complete before scans end", session, "self.connection is not None and self.scans == 0:", "self.connection is not None:", first=1270),
    _mutant("complete twice", session, "            if refinement.initial_left == SCANNED:\n", "            if refinement.initial_left < 0:\n"),
    _mutant("complete never", session, "            if refinement.initial_left == SCANNED:\n", "            if False:\n"),
    _mutant("complete waits for what was withheld", refined_delivery, "topic.change.revision, False)\n        self._note_taken(subscription, refinement)\n\n", "topic.change.revision, False)\n\n"),
    _mutant("complete counts markers", refined_delivery, "% refinement.sent))", "% (refinement.sent + 1)))"),
    # Of intervals.
    _mutant("interval stamped on a drop", refined_delivery, "            refinement.replaced(change.destination)\n            refinement.delivered", "            if refinement._interval_s > 0 and change.destination not in refinement._due_s:\n                refinement._due_s[change.destination] = now_s + refinement._interval_s\n                refinement._pace.append((now_s + refinement._interval_s, change.destination))\n            refinement.delivered", first=96),
    _mutant("last value of an interval dropped", session, "                    self._to_back(topic, self.held.pop(topic))\n\n    def owe_present", "                    self.held.pop(topic)\n                    self.owed.discard(topic)\n\n    def owe_present"),
    _mutant("interval of another length", refinement, "due_s = now_s + self._interval_s", "due_s = now_s + self._interval_s * 0.9", first=161),
    _mutant("interval ends late", refinement, "due_s = now_s + self._interval_s", "due_s = now_s + self._interval_s * 1.1"),
    _mutant("a delete ends an interval", refinement, "            self._bodies.pop(destination, None)\n            self._leave_focus(destination)\n        else:\n            if self._changes", "            self._bodies.pop(destination, None)\n            self._due_s.pop(destination, None)\n            self._pace = deque(one for one in self._pace if one[1] != destination)\n            self._leave_focus(destination)\n        else:\n            if self._changes"),
    _mutant("a delete waits", refinement, "return change.deleted or (self.selector", "return (self.selector"),
    _mutant("what waits is lost with its connection", session, "            for topic in self.waiting.values():\n                self._to_back(topic, self.held[topic])\n", ""),
    _mutant("timer of an interval forgotten", refined_delivery, "        if due_s >= 0 and (refinement.armed_s < 0", "        if due_s >= 0 and not refinement._pace and (refinement.armed_s < 0"),
    # Of changes only.
    _mutant("changes-only remembers what did not arrive", refinement, "self._bodies: Final[dict[bytes, bytes]] = {}", "self._bodies: Final[dict[bytes, bytes]] = _digest.__dict__"),
    _mutant("changes-only sends equal bodies", refinement, "self._changes_only and self._bodies.get(destination) == self._digest(change)", "False"),
    _mutant("changes-only remembers a deleted value", refinement, "        if change.deleted or verdict == LEAVE:\n            self._bodies.pop(destination, None)\n", "        if change.deleted or verdict == LEAVE:\n", first=149),
    _mutant("changes-only compares lengths", refinement, "blake2b(memoryview(change.content)[change.body_at :], digest_size=16).digest()", "b'%d' % len(change.content)"),
    # Of metadata.
    _mutant("conflated without what was replaced", session, "            self.conflated += 1\n            refinement.replaced(change.destination)\n", "            self.conflated += 1\n"),
    _mutant("conflated without what was skipped", refined_delivery, "            refinement.replaced(change.destination)\n", "", first=96),
    _mutant("conflated never begins again", refinement, "return self._skipped.pop(destination, 0)", "return self._skipped.get(destination, 0)"),
    # Of markers and notices.
    _mutant("a marker takes part in the window", refined_delivery, "            out.append(marker(self._version, subscription.id, tuple(headers)))\n", "            out.append(marker(self._version, subscription.id, tuple(headers)))\n            if subscription.session.connection is not None:\n                subscription.session.connection.in_flight += 1\n"),
    _mutant("a marker is acknowledged", refined_delivery, "            if position:\n                headers.append", "            headers.append((b'ack', b's 0'))\n            if position:\n                headers.append"),
    _mutant("RECEIPT of an ACK with a position at all times", outbox, "subscription if refinement is not None and refinement.markers else ()", "((b'position', self.refined.position(subscription, refinement).encode()),) if refinement is not None and self.refined is not None else ()"),
    _mutant("withdrawn topics leave without notice", scans, "        if lost and subscription", "        if False and subscription"),
    _mutant("an eager SUBSCRIBE ends a catch-up on its way", session_table, "0 if after >= 0 else -1", "-1", first=492),
    _mutant("a right that goes before a SUBSCRIBE is done", session_table, "            if not rights.receives_all_of(checked):\n", "            if False:\n", first=116),
    _mutant("withdrawn topics leave before a position", refined_delivery, "            out += self._void(subscription, refinement, dropped=True)\n", ""),
    _mutant("topics leave whose right came back", refined_delivery, "            if subscription.session.rights.may_receive(destination):\n", "            if False:\n", first=80),
    _mutant("a position of other rights goes on", refined_delivery, "[*self._void(subscription, refinement, dropped=False), *parts]", "parts", first=11480),
    # Of selectors.
    _selective("left not sent", refinement, "return SEND if change.deleted else LEAVE", "return SEND if change.deleted else SKIP"),
    _selective("left sent twice", refinement, "            self._leave_focus(destination)\n        else:\n            if self._changes", "            if change.deleted:\n                self._leave_focus(destination)\n        else:\n            if self._changes"),
    _selective("left with the value", refined_delivery, 'b"selector", EMPTY_CONTENT, len(EMPTY_CONTENT))', 'b"selector", change.content, change.body_at)'),
    _selective("left waits for the interval", refinement, "return change.deleted or (self.selector is not None and not self.selector.matches(change))", "return change.deleted"),
    _selective("left forgets no body", refinement, "        if change.deleted or verdict == LEAVE:\n            self._bodies.pop(destination, None)\n", "        if change.deleted or verdict == LEAVE:\n            if change.deleted:\n                self._bodies.pop(destination, None)\n", first=1690),
    _selective("left without its kind", refined_delivery, 'b"left" if refinement.metadata or refinement.markers else b""', 'b"left" if refinement.metadata else b""'),
    _selective("selector only where a change is routed", refinement, "        if self.selector is not None and not self.selector.matches(change):\n            if not self.is_held", "        if False:\n            if not self.is_held"),
    _selective("what no longer matches is not owed", refinement, "selector is None or selector.matches(change) or self.is_held(change.destination)", "selector is None or selector.matches(change)"),
    _selective("what is not held is mentioned", refinement, "            if not self.is_held(destination):\n                return SKIP\n", "            pass\n"),
    _selective("a resumed client holds nothing", refinement, "self._inside: Final = resumed or since >= 0", "self._inside: Final = False"),
    _selective("a topic leaves the focus before the notice", refinement, "        self.withdrawals[destination] = None\n        return True", "        self.withdrawals[destination] = None\n        self._leave_focus(destination)\n        return True"),
    _selective("routes by selector skip who holds a value", selected_routes, "if selector.concerns(change):", "if selector.matches(change):"),
    _selective("routes by selector skip who was resumed", selected_routes, "refinement is None or refinement.resumed else", "refinement is None else"),
    _selective("routes by selector are not made again", selected_routes, "if self._version != self._refinements.version:", "if self._version < 0:", first=207),
    _selective("holders are not counted", refinement, "                    self.selector.hold(destination)", "                    self.selector.holders.setdefault(b'', 1)"),
    _selective("a result of another change", selector, "        if revision == self._last_revision:", "        if 0 < self._last_revision >= revision - 1:"),
    _selective("unknown is true", selector, "return self._root.value(row) is True", "return self._root.value(row) is not False"),
    # Of edges.
    _selective("a position of another journal", positions, "len(parts) != 3 or parts[0] != incarnation.encode():", "len(parts) != 3:"),
    _selective("a takeover keeps the refinement", session, "            self.waiting = None\n        self.refinement = None\n", "            self.waiting = None\n", first=63),
)  # fmt: skip
