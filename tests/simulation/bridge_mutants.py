"""Bugs put in on purpose into what a bridge decides; the simulation of bridges must notice each."""

import types

from maxam.bridge import drills, flow, forwarding, provenance, relay
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first)


BRIDGE_MUTANTS = (
    # Of the way of a value.
    _mutant("ack before the RECEIPT", forwarding, "        self.outstanding += self.taking\n", "        self._acknowledge(taken, entry)\n        self.outstanding += self.taking\n"),
    _mutant("source-revision left out", forwarding, '        source = f"{sender}-{self._asks.lanes[taken.lane]}", revision\n', "        source = None\n"),
    _mutant("source without the incarnation", forwarding, 'f"{sender}-{self._asks.lanes[taken.lane]}"', 'f"{sender}"'),
    _mutant("deletes are not forwarded", forwarding, "        if onward is None:\n", "        if onward is None or not body:\n"),
    _mutant("refused SEND dropped", flow, "        self._refused.append(item)\n", "        pass\n", first=17),
    _mutant("refused SEND acknowledged", forwarding, "                flow.refuse(item, self._asks.now_s)\n", "                self._confirm(lane, item)\n", first=11),
    _mutant("loop not refused", provenance, 'if headers.get(ORIGIN_GATEWAY) == target or (via and target in via.split(",")):', "if False:", first=2),
    _mutant("via forgotten", provenance, '    found[VIA] = f"{via},{sender}" if via else sender\n', '    found[VIA] = "elsewhere"\n'),
    _mutant("values of a lost connection go on", forwarding, "        for flow in self._flows.values():\n            flow.clear()\n", "", first=14),
    _mutant("window ignored", flow, "len(self.flying) < self._window", "True", first=2),
    # Of Link.
    _mutant("Link complete before the values", forwarding, "        self.outstanding += self.taking\n", "", first=517),
    _mutant("inventory skipped after a restore of the venue", relay, "and (link.venue_incarnation, link.centre_incarnation) == self._incarnations", "and link.centre_incarnation == self._incarnations[1]", first=12),
    _mutant("inventory skipped after a restore of the centre", relay, "and (link.venue_incarnation, link.centre_incarnation) == self._incarnations", "and link.venue_incarnation == self._incarnations[0]"),
    _mutant("inventory skipped after a change of routes", relay, "            and set(link.routes) == set(ours)\n", ""),
    _mutant("inventory always", relay, "            and not self._force\n", "            and False\n"),
    _mutant("old routes at the centre forgotten", relay, "(*_routes_of(link), *_routes_of(self._seen_home))", "_routes_of(self._seen_home)", first=5),
    _mutant("old routes at the venue forgotten", relay, "(*_routes_of(link), *_routes_of(self._seen_home))", "_routes_of(link)", first=1),
    _mutant("paused is not resumed", relay, "        if self._paused() != (self.phase is Phase.PAUSED):\n", "        if self._paused() and self.phase is not Phase.PAUSED:\n"),
    _mutant("Link not marked before an inventory", relay, "            self._publish()\n        else:\n            self.quarantine.whole = True\n", "            self._publish() if self._paused() else self._read()\n        else:\n            self.quarantine.whole = True\n", first=302),
    _mutant("Link complete before the deletes", relay, "                    if not self._values.outstanding:\n", "                    if True:\n", first=10),
    # Of an inventory.
    _mutant("ghosts stay", forwarding, "            for topic, (_, revision) in table.items():\n", "            for topic, (_, revision) in ():\n"),
    _mutant("topics of others are deleted", relay, " and body and written_by(headers, values.sender(lane)):", " and body:"),
    _mutant("topics that were shown are deleted", forwarding, "there = self.tables[lane].pop(topic_there, None)", "there = self.tables[lane].get(topic_there)"),
    _mutant("all equal values are skipped", forwarding, "there is not None and body and there[0] == digest(headers, body)", "there is not None and body"),
    _mutant("a superseded value of an inventory is given up", forwarding, 'result == "superseded" and item.found is not None', "False", first=9),
    _mutant("the collected values alone", relay, "True, everything, planned.min_interval_ms)", "True, False, planned.min_interval_ms)"),
    # Of the quarantine.
    _mutant("quarantined is acknowledged and forgotten", forwarding, "        self.quarantine.put(lane, item, reason)\n        if item.taken is None", "        self._confirm(lane, item)\n        return\n        if item.taken is None"),
    _mutant("quarantine is not sent again", relay, "            if len(values.quarantine) and now_s >= self._quarantine_at_s:\n", "            if False:\n", first=6),
    _mutant("quarantine in Link ignored", relay, "(link.quarantined == 0 or (link in self._own and self.quarantine.whole))", "True", first=177),
    # Of drills.
    _mutant("a drill counts no difference", forwarding, "                self._drills.differ(1)\n", "                pass\n"),
    _mutant("a drill counts topics that are equal", forwarding, "            self._acknowledge(taken, entry)\n            return\n        found = None\n", "            self._drills.differ(1)\n            self._acknowledge(taken, entry)\n            return\n        found = None\n"),
    _mutant("a drill counts what it has moved twice", drills, "moved=sent - self._sent", "moved=2 * (sent - self._sent) + 1"),
    # Of two bridges.
    _mutant("a doubled venue is not refused", relay, "link.venue_incarnation != asks.lanes.get(self._home):", "False:"),
)  # fmt: skip
