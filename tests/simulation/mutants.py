"""Bugs put in on purpose: each is a change of a few words in the broker that the model or the simulation must notice."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from maxam.broker import broker, delivery, marks, session
from maxam.gateway import commit, committer, entitlement, orphans, peer, reload, snapshot
from maxam.journal import files, retention


@dataclass(frozen=True)
class Mutant:
    """One bug: in a module, some text becomes another.

    Attributes:
        venue: Only the simulation of a whole venue can notice it.
        first: The seed to begin with: who is rarely noticed is looked for where it was.
    """

    name: str
    module: types.ModuleType
    old: str
    new: str
    venue: bool = False
    first: int = 0

    @property
    def compiled(self) -> bool:
        """Whether the module is machine code, which cannot be changed so."""
        return not str(self.module.__file__).endswith(".py")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the bug, in every function of the module, while the context lasts."""
        path = Path(str(self.module.__file__))
        source = path.read_text()
        if self.old not in source:
            raise LookupError(f"{path.name} has no more {self.old!r}: the mutant {self.name} must be written anew")
        changed = _codes(compile(source.replace(self.old, self.new), str(path), "exec"))
        functions = [function for function in _functions(self.module) if function.__qualname__ in changed]
        originals = [function.__code__ for function in functions]
        try:
            for function in functions:
                function.__code__ = changed[function.__qualname__]
            yield
        finally:
            for function, original in zip(functions, originals, strict=True):
                function.__code__ = original


def _codes(code: types.CodeType) -> dict[str, types.CodeType]:
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found[constant.co_qualname] = constant
            found |= _codes(constant)
    return found


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for item in vars(module).values():
        members = vars(item).values() if isinstance(item, type) and item.__module__ == module.__name__ else [item]
        for member in members:
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


MUTANTS = (
    Mutant("receipt before fsync", delivery, "receipts and receipts[0][0] <= done and", "receipts and"),
    Mutant(
        "delivery above committed",
        commit,
        "                self._writing = operations\n",
        "                self._writing = operations\n"
        "                for operation in operations:\n"
        "                    if hasattr(operation, 'body'):\n"
        "                        self._broker._apply_change(operation)\n",
    ),
    Mutant("written before it is synced", files, "self._sync(segment.handle, data_only=True)", "pass"),
    Mutant("refused block left in the file", files, "            self._cut_back()\n            return False", "            return False"),
    Mutant(
        "cumulative ACK by revision",
        session,
        "        while acked != revision:\n            acked = sent.popleft()\n",
        "        for acked in sorted(r for r in list(sent) if r <= revision):\n            sent.remove(acked)\n",
    ),
    Mutant(
        "ACK not cumulative",
        session,
        "        while acked != revision:\n            acked = sent.popleft()\n",
        "        for acked in (revision,):\n            sent.remove(acked)\n",
    ),
    Mutant("low water without settled exceptions", broker, "yield AcknowledgementRecord(self.accepted_at_us, *names, chunk)", "pass"),
    Mutant(
        "low water without owed exceptions",
        broker,
        "            yield OwedRecord(self.accepted_at_us, *names, tuple(again[start : start + _POSITIONS_PER_RECORD]))",
        "            pass",
    ),
    Mutant("snapshot without tombstones", broker, "needed |= subscription.owed & self.store.tombstones.keys()", "pass"),
    Mutant("tombstone of a snapshot ignored", broker, "if record.deleted and not self.sessions and", "if False and"),
    Mutant("lost tombstone for durable", broker, "if change.deleted:\n                return\n            topic", "topic"),
    Mutant("delete owes nobody", broker, "        removed = False\n        for subscription in topic.routes:", "        removed = False\n        for subscription in topic.routes if not change.deleted else ():"),
    Mutant("conflation moves a waiting topic", session, "            self.conflated += 1\n", "            if topic not in self.held:\n                self._back = [*(t for t in self.queue if t is not topic), topic]\n                self._front = []\n"),
    Mutant("conflation moves it to the head", session, "            self.conflated += 1\n", "            if topic not in self.held:\n                self._back = [topic, *(t for t in self.queue if t is not topic)]\n                self._front = []\n"),
    Mutant("new topic to the head", session, "        self._back.append(topic)\n        return not", "        self._front.append(topic)\n        return not"),
    Mutant("re-armed topic to the head", session, "                self._back.append(topic)\n        return stamp", "                self._front.append(topic)\n        return stamp"),
    Mutant("re-armed topic forgotten", session, "            if topic in self.owed:\n                self._back.append(topic)\n        return stamp", "        return stamp"),
    Mutant("un-acked topic sent again", session, "        if self.held and topic in self.held:\n            self.since", "        if False:\n            self.since"),
    Mutant("rights checked only when owed", delivery, "if current.checked is not self.rights and not current.permits(topic, self.rights):", "if False:"),
    Mutant("rights of the connection never change", broker, "                session.connection.rights = session.rights", "                pass"),
    Mutant("routes outlive a policy", broker, "        self._generation += 1  # every", "        self._generation += 0  # every"),
    Mutant("routes in force dropped like void ones", broker, "            if topic.epoch != self._epoch:\n                topics -=", "            if True:\n                topics -="),
    Mutant("rights that come back cover what others made owed", broker, "subscription.checked = None if subscription.owed else session.rights", "pass"),
    Mutant("what an eager resume owes again counts as written", broker, "            connection.unconfirm(subscription)\n", "", first=78),
    Mutant("eager of an earlier SUBSCRIBE forgotten", broker, "event.eager or (subscription.eager and not subscription.applied)", "event.eager"),
    Mutant("snapshots forget what no right allows", snapshot, 'Rights((), (compile_glob("**", limits),)', 'Rights((), (compile_glob("X/a.*", limits),)'),
    Mutant("granted topics not owed", broker, "if grows and subscription.applied and (subscription.durable or subscription.eager):", "if False:"),
    Mutant("what grows is told the wrong way round", broker, "not before.receives_all_of(session.rights)", "not session.rights.receives_all_of(before)"),
    Mutant("un-acked dropped at disconnect", session, "            self.owed.add(topic)\n            self._to_front(topic)\n            self._lack", "            continue\n            self._lack"),
    Mutant("un-acked to the tail at disconnect", session, "            self._to_front(topic)\n            self._lack(topic, since_us)\n        self.sent", "            self._back.append(topic)\n            self._lack(topic, since_us)\n        self.sent"),
    Mutant("unwritten counts as written", delivery, "        for subscription, topic, _, since_us in reversed(self.unwritten):", "        for subscription, topic, _, since_us in ():"),
    Mutant("durable auto never settled", delivery, "            if not subscription.removed:\n                self._broker.settle(", "            if False:\n                self._broker.settle("),
    Mutant("eager scan with double", broker, "                or change.revision > scan.revision\n", ""),
    Mutant("eager scan with gap", broker, "            if seen >= topics:\n                break\n", "            if seen >= topics:\n                scan.cursor = name\n                break\n"),
    Mutant("eager scan delivers deletes", broker, "                change.deleted\n                or change", "                change"),
    Mutant("eager resume doubles", broker, "                or topic in scan.owed\n", ""),
    Mutant("subscription never routed", broker, "        self._index.add(subscription.glob, subscription)", "        pass"),
    Mutant("new subscription sees earlier SENDs", broker, "        if not event.durable:\n            self._append(connection, Barrier(subscription, event.eager))\n", "        if not event.durable:\n            self._activate(subscription, event.eager)\n"),
    Mutant("window ignored for auto", delivery, "if self.in_flight >= self.window.size:", "if self.in_flight >= self.window.size and (subscription or turns[0]).acknowledged:"),
    Mutant("window off by one", delivery, "if self.in_flight >= self.window.size:", "if self.in_flight > self.window.size:"),
    Mutant("UNSUBSCRIBE keeps its window slots", broker, "connection.in_flight -= subscription.release()", "subscription.release()", first=30),
    Mutant("subscriptions take no turns", delivery, "                turns.append(current)\n                subscription = None\n", "                turns.appendleft(current)\n                subscription = None\n"),
    Mutant("ACK recorded at a lower revision", session, "self.settled[topic.destination] = acked\n", "self.settled[topic.destination] = acked - 1\n"),
    Mutant("ACK settles what came later", broker, "                tuple(subscription.settled.items()),", "                tuple((d, r + 9) for d, r in subscription.settled.items()),"),
    Mutant("ACK record before its message's revision", broker, "topic.change.revision <= revision:", "True:"),
    Mutant("ACK's receipt does not wait", broker, "                self._record_settled(subscription)\n                connection.position = self.appended\n", "                self._record_settled(subscription)\n"),
    Mutant("ACK with receipt not recorded", broker, "                self._record_settled(subscription)\n                connection.position", "                connection.position"),
    Mutant("lazy ACKs never recorded", broker, "            if subscription.settled:\n                self._record_settled(subscription)\n\n", "            pass\n\n"),
    Mutant("refused revisions not given back", broker, "        self.head = self.revision\n        before", "        before"),
    Mutant("refused ACKs dropped", broker, "                kept.append(operation)\n                moved", "                moved"),
    Mutant("refused SENDs called accepted", delivery, "answer = headers if refused else answer", "answer = answer"),
    Mutant("refused SUBSCRIBE lives on", broker, "        if not subscription.applied and not subscription.removed:\n", "        if False:\n"),
    Mutant("replaced subscription not recorded", broker, "                self._record_removal(connection, old)", "                pass"),
    Mutant("head not taken from the journal", broker, "        self.head = self.revision = revision\n", ""),
    Mutant("conflated change lacked since the newest", session, "                self._lack(topic, max(before_us, self._floor_us))\n", "                pass\n"),
    Mutant("un-acked lacked since the newest after a disconnect", session, "            self._lack(topic, since_us)\n        self.sent", "            pass\n        self.sent"),
    Mutant("un-acked lacked since it was accepted", delivery, "since_us = subscription.taken_us or change.accepted_at_us", "since_us = change.accepted_at_us"),
    Mutant("handed out before a walk came to it lacked since it changed", session, "            self.connection.lacked_before(self, topic, since_us)\n", "            pass\n", first=1201),
    Mutant("what was sent is lacked still", session, "since_us = self.since.pop(topic, 0)", "since_us = self.since.get(topic, 0)"),
    Mutant("what an eager subscriber asks for lacked since it was accepted", broker, "began_us = subscription.asked_us", "began_us = 0"),
    Mutant("nothing lacked while a walk is under way", session, "oldest_us = self._walking_us if self.walks else 0", "oldest_us = 0"),
    Mutant("walk that ended goes on to be lacked", broker, "                scan.subscription.end_walk()\n", "                pass\n"),
    Mutant("takeover keeps un-acked", broker, "        old.lost()\n        self._release_all(session)", "        old.lost()"),
    Mutant("writer not woken by an ACK", broker, "            connection.promise(event.receipt, ())\n        self._rouse(connection)\n\n    def detach", "            connection.promise(event.receipt, ())\n\n    def detach"),
    Mutant("writer not woken by a commit", broker, "        for connection in self._in_flight.popleft():\n            self._rouse(connection)\n", "        self._in_flight.popleft()\n"),
    Mutant("writer not woken by a value", broker, "                self.woken.append(connection)\n\n    def _rouse", "                pass\n\n    def _rouse"),
    Mutant("chunk outlives a commit", broker, "        self.chunks.clear()\n        if self.sampled", "        if self.sampled"),
    Mutant("chunk for another subscription id", delivery, "            and chunk.prefix == prefix\n", ""),
    Mutant("chunk for another version", delivery, "            and chunk.variant == variant\n", ""),
    Mutant("chunk for whoever is owed its first topic", session, "if self._front[-count:] != topics:", "if self._front[-1:] != topics[-1:]:"),
    Mutant("source compared with what is committed only", broker, "number, position = self._coming_marks.get((destination, source), (-1, 0))", "number, position = -1, 0"),
    Mutant("if-revision compared with what is committed only", broker, "        if coming is not None:\n            return coming\n", ""),
    Mutant("mark lost at recovery", broker, "                self.marks.keep(record)\n", "                pass\n"),
    Mutant("marks missing in a snapshot", broker, "            changes = [self.marks.told(change) for change in changes]\n", ""),
    Mutant("marks of deleted topics missing in a snapshot", broker, "            changes += self.marks.absentees(self.accepted_at_us, told)\n", ""),
    Mutant("superseded answered before commit", broker, "            connection.position = max(connection.position, position)\n", ""),
    Mutant("superseded by what was refused", delivery, "else type(answer) is Compared and answer.position > done", "else False"),
    Mutant("marks of what was refused", broker, "        self._coming_marks.clear()\n        self._indexed", "        self._indexed"),
    Mutant("values of what was refused", broker, "        self._coming.clear()\n        self._coming_marks", "        self._coming_marks"),
    Mutant("index of what is coming lags", broker, "        self._indexed = self.appended\n\n", "        self._indexed = self.appended + 1\n\n"),
    Mutant("the same number again", broker, "if number >= condition.number:", "if number > condition.number:"),
    Mutant("takeover erases marks", marks, "                numbers = self._numbers[destination] = {}\n            source, number = mark\n", "                numbers = {}\n            numbers = self._numbers[destination] = {}\n            source, number = mark\n"),
    Mutant("value without a mark erases marks", marks, "        if mark is not None:\n            if numbers is None:", "        if mark is None:\n            self._numbers.pop(destination, None)\n            numbers = None\n        if mark is not None:\n            if numbers is None:"),
    Mutant("delete erases marks", marks, "            self._gone[destination] = (change.accepted_at_us, change.revision)\n            self.forget(change.accepted_at_us)", "            del self._numbers[destination]"),
    Mutant("marks of deleted topics for ever", marks, "return now_us - deleted_at_us > self._retention_us", "return False"),
    Mutant("marks end with the first delete", marks, "            deleted_at_us, _ = self._gone.pop(destination)\n", "            deleted_at_us, _ = self._gone[destination] if change.deleted else self._gone.pop(destination)\n            change = change if not change.deleted else type(change)(change.revision, deleted_at_us, destination, True, change.publisher, change.judgement, change.content, change.body_at)\n"),
    Mutant("mark of the wrong source forgotten", marks, "            numbers.pop(source, None)\n", ""),
    Mutant("stale bytes from the cache", broker, "        change = topic.change\n        shared = message_shared(", "        change = topic.change\n        if change.revision > 3 and change.wire is None:\n            change = next((c for c in self._encoded if c.destination == topic.destination), change)\n        shared = message_shared("),
    # Of reloads.
    Mutant("rights checked only at SUBSCRIBE", broker, "            session.rights = policy.rights(session.principal)\n", ""),
    Mutant("old policy for what a topic remembers of sends", broker, "if topic is None or topic.permitted", "if topic is None or not topic.permitted and topic.permitted", venue=True, first=16),
    Mutant("old schemas for what a topic remembers", broker, "if topic is not None and topic.registry == self._registries:", "if topic is not None and topic.registry:", venue=True, first=12),
    Mutant("policy swapped, schemas not", reload, "        if after.registry is not before.registry:\n            self._broker", "        if after.registry is not before.registry and after.policy is before.policy:\n            self._broker", venue=True),
    Mutant("schemas swapped, policy not", reload, "        if after.policy is not before.policy:\n            self._broker", "        if after.policy is not before.policy and after.registry is before.registry:\n            self._broker", venue=True),
    Mutant("checked flag kept over a reload", broker, "subscription.checked = None if subscription.owed else session.rights", "subscription.checked = session.rights"),
    Mutant("what was granted before is owed again", broker, "return self.before is None or not self.before.may_receive(name)", "return True"),
    Mutant("two walks owe the same", broker, "            scan.regrant(policy.rights(scan.subscription.session.principal))\n", "            pass\n"),
    Mutant("walk goes on behind an eager SUBSCRIBE", broker, "return self.subscription.removed or self.number != self.subscription.eager_scans", "return self.subscription.removed"),
    Mutant("orphans among newcomers", orphans, "            self._look(self._newcomers())\n            self._look(dict", "            self._look(dict", venue=True, first=44),
    Mutant("orphans not asked about", reload, "if said and not allow_orphans:", "if False:", venue=True, first=16),
    Mutant("schemas in force before they are kept", reload, "await trio.to_thread.run_sync(self._keep_schemas, after.registry.texts())", "await trio.lowlevel.checkpoint()", venue=True),
    Mutant("schemas kept, their names not", files, "            self._disk.fsync_folder(folder)\n        except OSError:", "            pass\n        except OSError:", venue=True),
    Mutant("refused schemas in force", reload, "after = replace(after, registry=before.registry, digests=digests)", "after = replace(after, digests=digests)", venue=True),
    Mutant("revoked clients go on", entitlement, "                connection.expel(failure)\n", "                pass\n", venue=True),
    Mutant("strangers to a new policy go on", entitlement, "        principal = self._broker.policy.principal_of(peer.fingerprint)\n", "        return None\n", venue=True),
    Mutant("revocation looked at only by reloads", peer, "        if objection is not None:\n            raise objection", "        if False:\n            raise objection", venue=True),
    # Of the disk: blocks, segments, snapshots, the archive.
    Mutant("full disk taken for written", committer, "                outcome = error\n", "                pass\n", venue=True),
    Mutant("nothing written", committer, "                self._journal.write(block)\n", "                pass\n", venue=True),
    Mutant("what a full disk leaves over is lost", commit, "self._kept = self._broker.take()", "self._broker.take()", venue=True),
    Mutant("segment's name not synced", files, "        self._sync_folder(self._segments)\n        segment.size", "        segment.size", venue=True),
    Mutant("seal not synced", files, "        self._sync_folder(self._segments)  # before anything", "        pass  # before anything", venue=True, first=20),
    Mutant("snapshot made before its segment has its name", files, '    disk.fsync_folder(f"{root}/segments")\n', "", venue=True, first=120),
    Mutant("segment deleted before its snapshot is durable", files, '    disk.fsync_folder(f"{root}/snapshots")\n    return path', "    return path", venue=True),
    Mutant("file named before it is synced", files, "            disk.fsync(handle)\n        finally:", "            pass\n        finally:", venue=True),
    Mutant("archive trusts the newest snapshot alone", retention, "segment.last <= snapshots[-SNAPSHOTS_KEPT]", "segment.last <= snapshots[-1]", venue=True),
    Mutant("archive expires whatever snapshots say", retention, "archive = [segment for segment in sealed if segment.last <= snapshots[-SNAPSHOTS_KEPT]]", "archive = sealed", venue=True),
    Mutant("newest of the archive go first", retention, "return archive[:found]", "return archive[::-1][:found]", venue=True),
    Mutant("removals in any order", retention, "    disk.unlink(path)\n    disk.fsync_folder(folder)", "    disk.unlink(path)", venue=True, first=20),
    Mutant("damaged snapshot believed", files, "            if error is None:\n                return revision, path", "            if True:\n                return revision, path", venue=True),
    Mutant("time runs back", broker, "        if wall_us > self.accepted_at_us:\n            self.accepted_at_us = wall_us\n        content", "        self.accepted_at_us = wall_us\n        content", venue=True),
    Mutant("low memory ignored", broker, "if self.memory_low and not (deleted and topic is not None):", "if False:", venue=True),
    Mutant("operators not told of what was rejected", broker, "if self.on_rejected is not None and disposition is not UNAVAILABLE:", "if False:", venue=True),
)  # fmt: skip
