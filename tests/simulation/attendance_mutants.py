"""Bugs put in on purpose into last wills, presence and the expiry of values; `Attendance` must notice each."""

import types

from maxam.broker import expiry, last_wills, operations, rollback, wills
from maxam.gateway import freshness, handshake, presence, server_connection
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 1) -> Mutant:
    return Mutant(name, module, old, new, first=first, attending=True)


ATTENDANCE_MUTANTS = (
    # Of last wills.
    _mutant("will fired after a reconnect", wills, "        self._disarm(found)\n        content, body_at", "        content, body_at"),
    _mutant("will fired though a CONNECT has none", wills, "return 0 if found is None else self._cancel(found)\n        if found is None:", "return 0\n        if found is None:"),
    _mutant("will fired after DISCONNECT", server_connection, "            self._broker.last_wills.disconnected(connection)\n", "", first=15),
    _mutant("will fired after a takeover", last_wills, "        if present is None or present.connection is None:\n            self.wills.lose(key, now_s)", "        self.wills.lose(key, now_s)"),
    _mutant("will fired early", wills, "found.lost_s + found.current.delay_s", "found.lost_s + found.current.delay_s * 0.5"),
    _mutant("will never armed", wills, "            found.lost_s = now_s\n            self._arm(found)\n", "            found.lost_s = now_s\n"),
    _mutant("will fired twice", wills, "        self._disarm(found)\n        found.current = None\n        found.pending += 1\n", "        if not fired:\n            self._disarm(found)\n        found.pending += 1\n"),
    _mutant("will judged only when it is set", last_wills, "                rejection = self._publishing.publish(record.publisher, rights, event, wall_us)\n", "                topic = self._store.topics.get(event.destination)\n                from maxam.records import UNJUDGED as verdict\n                self._publishing.append(record.publisher, event, topic, verdict, not event.body, wall_us)\n                rejection = None\n"),
    _mutant("will judged only when it fires", last_wills, "        if type(verdict) is Rejection and verdict.result not in UNAVAILABLE_RESULTS:\n            self._counters.wills_rejected += 1\n            raise", "        if False:\n            raise"),
    _mutant("will of the policy not judged", last_wills, "if type(verdict) is not Rejection or verdict.result in UNAVAILABLE_RESULTS:\n            return will", "if True:\n            return will"),
    _mutant("will of the policy ignored", handshake, "            event.will = self._broker.last_wills.bound(identity, wall_us)", "            pass", first=47),
    _mutant("will of a lost certificate fired", last_wills, "            if self._stands_for(record.publisher) and not revoked:", "            rights = rights if self._stands_for(record.publisher) else self._routing.policy._rights['anna']\n            if True:"),
    _mutant("rejected will not reported", last_wills, "                self._publishing.report(record.publisher, event, UNAUTHORISED, wall_us)\n", "                pass\n", first=215),
    _mutant("wills lost in a restart", wills, "        for key in list(self._wills):\n            self.lose(key, now_s)", "        pass", first=39),
    _mutant("wills of a restart fire at once", wills, "            self.lose(key, now_s)", "            self.lose(key, now_s - 3600)"),
    _mutant("snapshot without wills", wills, "            if found.stored is not None:\n                yield found.stored", "            if False:\n                yield found.stored", first=47),
    _mutant("end of a will is not replayed", wills, "        elif found is not None:\n", "        elif False:\n"),
    _mutant("end of a will outlives its change", operations, "type(operation) is WillRecord or (type(operation) is WillEndRecord and operation.fired)", "type(operation) is WillRecord", first=347),
    _mutant("refused will stays", wills, "            found.current = None if found.cancelling else found.stored\n", "", first=1143),
    _mutant("refused will goes on without ERROR", last_wills, "        session.connection.expel(_REFUSED)", "        pass"),
    _mutant("RECEIPT of a refused will", rollback, "            if connection.identity in setters:\n", "            if False:\n", first=87),
    _mutant("RECEIPT before the will is stored", last_wills, "        connection.position = max(connection.position, position)\n", "", first=275),
    _mutant("delay of a refused will", wills, "            self._disarm(found)\n            if found.lost_s >= 0:\n                self._arm(found)", "            if found.lost_s >= 0 and found.due_s < 0:\n                self._arm(found)", first=227),
    _mutant("wills fired while nothing is due", wills, "return found if now_s >= due_s else None", "return found"),
    # Of presence.
    _mutant("presence wrong after a crash", presence, "elif state.since_us <= self._started_us and name not in self._wishes:", "elif False:"),
    _mutant("presence of a start at once", presence, 'self._want(name, b"" if _MADE.fullmatch(client_id) else body, self._back_by_s)', 'self._want(name, b"" if _MADE.fullmatch(client_id) else body, 0.0)\n                self._wishes[name].body = body'),
    _mutant("presence of who came back before the scan", presence, "and name not in self._wishes:", ":", first=127),
    _mutant("presence of who connects is not shown", presence, "            self._want(name, State(True, now_us, now_us, address).encoded(), due_s)", "            pass"),
    _mutant("presence of who leaves is not shown", presence, "        self._want(name, body, now_s)\n\n    # Work.", "        pass\n\n    # Work."),
    _mutant("presence ends with a takeover", presence, "        if session is not None and session.connection is not None:\n            return\n        name", "        name"),
    _mutant("presence of a refused block is not repeated", presence, '            if rejection is None or rejection.result == "memory-low":\n                self._again(name, wish, now_s + INTERVAL_S)', "            if rejection is None:\n                del self._wishes[name]", first=13),
    _mutant("presence keeps the first wish", presence, "            wish.body = body\n            if wish.sent", "            if wish.sent"),
    # Of expiry.
    _mutant("values expire early", expiry, "int(limit_s * 1e6)", "int(limit_s * 5e5)"),
    _mutant("values never expire", freshness, "        if 0 <= expire_us < now_us:\n            self._expire(topic, now_us)", "        if 0 <= expire_us < now_us:\n            pass"),
    _mutant("an expired value is deleted twice", expiry, "        if revision != topic.change.revision:\n            return False\n", "", first=57),
    _mutant("a refused delete of an expired value is not repeated", freshness, "            expire_us = now_us + _AGAIN_US\n", "            expire_us = -1\n", first=71),
)  # fmt: skip
