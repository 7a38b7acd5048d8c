"""Bugs put in on purpose into the order of fronts; the simulation of fronts must notice each."""

import types

from maxam.broker import fronting, intake, ledger
from maxam.cluster import recent
from maxam.front import replica
from maxam.gateway import claims, commit, front_orders, resuming
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first)


_ACTIVATE = "                self._table.activate(operation.subscription, operation.eager, operation.after)\n"
_LATE = """
                def at_end(before=self.on_receipts, late=operation):
                    self.on_receipts = None
                    self._table.activate(late.subscription, late.eager, late.after)
                    if before is not None:
                        before()

                self.on_receipts = at_end
"""

FRONTS_MUTANTS = (
    # Of an entry at a front.
    _mutant("barrier before its change", fronting, "        self._flight.extend(operations)\n", "        self._flight.extend(operations)\n        for one in operations:\n            if type(one) is TransientSubscribe:\n                self._table.activate(one.subscription, one.eager, one.after)\n", first=3),
    _mutant("barriers at the end of the entry", fronting, _ACTIVATE, _LATE, first=4),
    _mutant("front delivers above its entry", fronting, "        self._flight.extend(operations)\n", "        self._flight.extend(operations)\n        for one in operations:\n            if type(one) is Change:\n                self._routing.deliver(one)\n"),
    _mutant("own record applied as that of another", fronting, "            self._table.activate(operation.target, operation.eager, after)\n        else:\n            self._following.apply(operation)\n", "            self._following.apply(record)\n        else:\n            self._following.apply(record)\n"),
    _mutant("refusal forgotten", fronting, "            self._refuse(refused, self._flight[at])\n", "            self._refused.add(refused.number)\n"),
    _mutant("receipts of a front before its entry", fronting, "        finished = self._log.finish_to(done)\n", "        finished = self._log.finish_to(self.taken)\n"),
    _mutant("records of others left out", fronting, "next leader\n            for record in records:\n                self._apply_foreign(record)\n            return\n", "next leader\n            return\n"),
    _mutant("revision of a conditional SEND forgotten", fronting, 'b"%d" % record.revision', 'b"%d" % self._log.applied_seq'),
    # Of sessions.
    _mutant("session at two fronts", claims, "        self._waiting[key] = (front, now_s + WAIT_S)\n        self._effects.expel(key, holder)\n", "        del self._holders[key]\n        self._give(key, front)\n"),
    _mutant("session not given on", claims, "        else:\n            self._give(key, waiting[0])\n", "        else:\n            pass\n"),
    _mutant("sessions of a dead front are not released", claims, "        for key in [key for key, holder in self._holders.items() if holder == front]:\n", "        for key in []:\n", first=1),
    _mutant("queues are not restored at a grant", fronting, "                subscription.restore(subscription.owed_since_us() or self._log.accepted_at_us)\n", "                pass\n"),
    _mutant("ACKs are not recorded at a release", fronting, "        self.record(session.subscriptions.values())\n        self.ask(", "        self.ask(", first=1),
    # Of the order.
    _mutant("entry sent before it is written", commit, "                if self.fronted is not None:\n                    self._block = block\n                return block\n", "                if self.fronted is not None:\n                    self.fronted.committed(block)\n                return block\n", first=1),
    _mutant("condition not compared", intake, "        if terms.expected >= 0:\n", "        if False:\n"),
    _mutant("source not compared", intake, "            if number >= terms.number:\n", "            if False:\n"),
    _mutant("old verdict behind the swap", front_orders, "        judge = operations.epoch != self.epoch\n", "        judge = False\n", first=18),
    _mutant("an operation taken twice", intake, "            order.taken = number\n", "            if type(operation) is Change:\n                self._send(order, number, operation, None, judge, wall_us)\n            order.taken = number\n"),
    _mutant("number of another front", ledger, "            if goes_on and last.front == front and last.refused is None:\n", "            if goes_on and last.refused is None:\n", first=2),
    _mutant("refused operation taken for done", ledger, "                origin.refusals.append(stretch.refused)\n", "                pass\n"),
    _mutant("positions do not move when the disk is full", ledger, "                position = refusal.moved.get(stretch.position + at, 0)\n", "                position = stretch.position + at\n", first=1),
    _mutant("given back and not refused", ledger, "                    origin.refusals.append(RefusedOperation(number, DISK_FULL, NO_ROOM))\n", "                    pass\n", first=20),
    _mutant("what was compared with given back stays refused", ledger, "                    self.note_refused(stretch.front, RefusedOperation(number, DISK_FULL, NO_ROOM), position)\n", "                    self.note_refused(stretch.front, stretch.refused, position)\n", first=10),
)  # fmt: skip

OUTLIVING_MUTANTS = (
    _mutant("origins counted twice", fronting, "        if origin is None or 0 < origin.done <= self._log.applied_seq:", "        if origin is None:"),
    _mutant("origins forgotten at placing", recent, "        index = 1\n", "        index = first\n"),
    _mutant("origins are not logged", front_orders, "        return encode_origins([origin for origin in self._origins if self.knows(origin.front)])\n", '        return b""\n'),
    _mutant("answered ones are sent again", fronting, "            if number in self._refused or type(operation) is Proof:\n", "            if type(operation) is Proof:\n"),
    _mutant("old operations are sent again", recent, "        return found if same_position(reached, end) else None\n", "        return found\n"),
    _mutant("same leader forgets what it took", intake, "        if order.lasting:\n", "        if False:\n"),
    _mutant("a front that was ended comes back", resuming, "    if recent.ended(state.front) or orders.knows(state.front):\n", "    if False:\n"),
    _mutant("front goes back to a lower term", resuming, "    if recent is None or state.term >= term:\n", "    if recent is None:\n"),
    _mutant("refusal of the former leader forgotten", fronting, "            if done not in self._refused and type(operation) in _GIVEN_BACK:\n", "            if False:\n"),
    _mutant("SENDs of a broken connection take effect at the next leader", front_orders, "            front.order.broken[int(connection)] = ", "            _ = "),
    _mutant("claims are not made again", replica, "            for _ in range(len(peers) - waiting[key]):\n", "            for _ in ():\n"),
    _mutant("sessions are free after a leader change", resuming, "        lost = [key for key in state.held if not orders.claims.resume(key, state.front)]\n", "        lost = []\n"),
    _mutant("session kept that another connection has used", fronting, "            if self.resuming and isinstance(", "            if False and isinstance("),
    _mutant("old verdict at the next leader", replica, "terms, _UNJUDGED)))\n", "terms, self.epoch)))\n"),
)  # fmt: skip
