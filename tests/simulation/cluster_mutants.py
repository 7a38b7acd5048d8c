"""Bugs put in on purpose into the roles of a cluster's members; the simulation of clusters must notice each."""

import types

from maxam.cluster import log_place, logged, member, placing, swap, trimming
from maxam.journal import segments
from tests.simulation import simulated_log
from tests.simulation.mutants import Mutant


def _mutant(name: str, module: types.ModuleType, old: str, new: str, first: int = 0) -> Mutant:
    return Mutant(name, module, old, new, first=first)


_COMPARED = "        if _identity(now) != _identity(before):\n"
_BEHIND = "    return Place(BEHIND if ours < oldest or (ours == oldest and first > 1) else FORKED)\n"

CLUSTER_MUTANTS = (
    # Of swaps.
    _mutant("append without comparing", simulated_log, _COMPARED, _COMPARED.replace("if _", "if not entry and _"), first=1),
    _mutant("beat without comparing", simulated_log, _COMPARED, _COMPARED.replace("if _", "if entry and _")),
    _mutant("retry compares with the new head", logged, "self._log.append(data, head, before)", "self._log.append(data, head, self._log.head())"),
    _mutant("unknown taken for refused", swap, "            pause(pause_s)\n", '            from maxam.cluster.log import LogFullError\n            raise LogFullError("full")\n'),
    _mutant("unknown taken for written", simulated_log, "            self._unknown.add(head.nonce)\n            raise\n", "            return head\n"),
    _mutant("refused by the log, kept", logged, "                self._encoder.position = place.position\n", "                pass\n"),
    _mutant("stored before the log has it", logged, "        size = self._swap(entry, self._leading(), entry.index, entry.after)\n", "        self._keeper.offer(entry)\n        size = self._swap(entry, self._leading(), entry.index, entry.after)\n"),
    _mutant("lease counted from the last try", logged, "        return self._log.append(data,", "        self._swaps.began(self._monotonic())\n        return self._log.append(data,", first=3),
    # Of claims.
    _mutant("claim without linearizable read", member, "        return self._read() if not self._reading and self._may_claim(now_s) else []\n", "        if not self._may_claim(now_s):\n            return []\n        self.role = Role.CLAIMING\n        return [Claim(self.head)]\n", first=2),
    _mutant("claim before caught up", member, "        if self.applied != head.index or self.journalled != head.index:\n            return False\n", "", first=18),
    _mutant("leads before its own term entry", member, "        if own is None or self.applied < own.index or self.journalled < own.index:\n", "        if own is None:\n"),
    _mutant("claim by a read that is older than the silence", member, "        if head.version != self._read_after:", "        if False:", first=10134),
    _mutant("silence goes on while the engine does not answer", member, '        """A watch or a call to the engine has failed: the silence begins again."""\n        self._silent_since_s = now_s\n', ""),
    _mutant("claims within the lease", member, "return self._lease_s + max(MARGIN_S_MIN, self._lease_s * MARGIN_OF_LEASE)", "return self._lease_s * 0.5"),
    _mutant("no margin for clocks", member, "return self._lease_s + max(MARGIN_S_MIN, self._lease_s * MARGIN_OF_LEASE)", "return self._lease_s"),
    _mutant("a read that is older than the watch taken for a log that was set back", member, "        if head.version < self._read_after:\n", "        if head.version < self.head.version:\n", first=13),
    _mutant("a new head does not end the silence", member, "        self.head = head\n        self._silent_since_s = now_s\n", "        self.head = head\n"),
    # Of the lease.
    _mutant("a refusal taken for a proof", member, "            self.shown_s = self._began_s\n", "            self.shown_s = self.proof_s = self._began_s\n", first=3),
    _mutant("lease counted from the answer", member, "        self.proof_s = self.shown_s = began_s\n", "        self.proof_s = self.shown_s = now_s\n"),
    _mutant("serves suspended", member, " and not self._handed_over and now_s - self.proof_s < self._lease_s", " and not self._handed_over"),
    _mutant("wakes and answers", member, "        if 0 < self._cut_off_s <= now_s - self.shown_s:\n", "        if False:\n", first=1),
    _mutant("stays although superseded", member, '        return self._end(RESTART, "superseded")\n', "        return []\n"),
    _mutant("never resumes", member, "            self.suspended = not self.suspended\n", "            self.suspended = True\n", first=6),
    _mutant("no beats", member, "            wishes.append(Beat())\n", "            pass\n"),
    # Of the handover.
    _mutant("serves after it handed over", member, "self.role in _SERVING and not self._handed_over and", "self.role in _SERVING and"),
    _mutant("the successor waits", member, "        if self._handover_at == head.index:\n            return True\n", ""),
    _mutant("a leader with a full disk leads on", member, "        if self.role is Role.LEADING and not able:\n", "        if False:\n"),
    _mutant("hands over without an end", member, "            if self.role is Role.LEAVING and now_s >= self._deadline_s:\n", "            if False:\n", first=3),
    # Of following.
    _mutant("place by revision alone", placing, "        if same_position(before, position):\n            return Place(FOLLOW, index)\n", "        if before.revision == position.revision:\n            return Place(FOLLOW, index)\n"),
    _mutant("place by the hint alone", placing, "            if same_position(entry_at(hint).after, position):\n", "            if entry_at(hint):\n", first=1),
    _mutant("forked member follows", placing, _BEHIND, "    if ours < oldest or (ours == oldest and first > 1):\n        return Place(BEHIND)\n    return Place(FOLLOW, head.index + 1)\n", first=9),
    _mutant("a member that is behind is taken for forked", placing, _BEHIND, "    return Place(FORKED)\n"),
    _mutant("follower skips the chain", log_place, "        if not follows(entry.before, self.position, entry.begins):\n", "        if False:\n", first=29),
    _mutant("follower skips a gap", log_place, "        if entry.index != self.index + 1:\n", "        if entry.index <= self.index:\n", first=5),
    _mutant("a log that was set back is claimed", logged, "            if not same_position(self.place.position, before.position):\n", "            if False:\n", first=324),
    _mutant("a follower waits for a lower term to end", log_place, '            raise ForkedError(f"entry {entry.index} has term', '            raise EntryError(f"entry {entry.index} has term', first=7123),
    _mutant("the first block follows any of its revision", segments, "position.chain != 0 or position.revision == position.accepted_at_us == 0", "position.chain != 0", first=7883),
    # Of trimming.
    _mutant("trim at one copy", trimming, "held = copied[needed - 1]", "held = copied[0]"),
    _mutant("trim with members missing", trimming, "        if len(copied) < needed:\n            return 0\n        held = copied[needed - 1]\n", "        held = copied[-1]\n", first=53),
    _mutant("an old announcement that is read late counts", trimming, "(number, index, self._asked_s)", "(number, index, asked_s)", first=9585),
)  # fmt: skip
