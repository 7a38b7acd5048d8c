"""Bugs put in on purpose: each is a change of a few words in the broker that the model or the simulation must notice."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from maxam.broker import (
    acknowledgements,
    admission,
    backfill,
    broker,
    conditions,
    operations,
    outbox,
    producer_sequences,
    publishing,
    receipt_waits,
    recovery,
    routing,
    scans,
    session,
    session_table,
    store,
    subscribing,
    summary,
    wire_cache,
)
from maxam.gateway import access, clock, commit, commit_loop, handshake, orphans, reload
from maxam.journal import disk, files, kept_schemas, replay, retention, segments, snapshots


@dataclass(frozen=True)
class Mutant:
    """One bug: in a module, some text becomes another.

    Attributes:
        venue: Only the simulation of a whole venue can notice it.
        refined: Only clients with refined subscriptions can notice it.
        attending: Only the simulation of a venue with last wills, presence and values that expire can notice it.
        selective: Only those with selectors, or those that take over sessions and see restored journals.
        json: Only clients that get JSON can notice it.
        ahead: Only the simulation of a venue whose open segment ends in zeros can notice it.
        first: The seed to begin with. A mutant that is rarely noticed is searched for where it was noticed once.
    """

    name: str
    module: types.ModuleType
    old: str
    new: str
    venue: bool = False
    first: int = 0
    refined: bool = False
    selective: bool = False
    attending: bool = False
    json: bool = False
    ahead: bool = False

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
            function = function.__func__ if isinstance(function, staticmethod) else function
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


MUTANTS = (
    Mutant("receipt before fsync", outbox, "receipts and receipts[0][0] <= done and", "receipts and"),
    Mutant(
        "delivery above committed",
        commit,
        "                self._writing = operations\n",
        "                self._writing = operations\n"
        "                for operation in operations:\n"
        "                    if hasattr(operation, 'body'):\n"
        "                        self._broker.apply(operation)\n",
    ),
    Mutant("written before it is synced", segments, "            self._syncs.file(segment.handle, data_only=True)", "            pass"),
    Mutant("refused block left in the file", files, "            self._files.cut_back()\n            return False", "            return False", first=6),
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
    Mutant("individual ACK covers those before it", session, "        if self.individual and sent[0] != revision:\n", "        if False:\n"),
    Mutant("individual ACK covers the oldest", session, "            sent.remove(revision)\n            sent.appendleft(revision)\n", "            revision = sent[0]\n"),
    Mutant("mode client acknowledges one message", subscribing, "event.individual and self.individual_acks", "True"),
    Mutant("low water without settled exceptions", recovery, "yield AcknowledgementRecord(accepted_at_us, *names, tuple(settled[start : start + POSITIONS_PER_RECORD]))", "pass"),
    Mutant(
        "low water without owed exceptions",
        recovery,
        "yield OwedRecord(accepted_at_us, *names, tuple(again[start : start + POSITIONS_PER_RECORD]))",
        "pass",
        first=6,
    ),
    Mutant("snapshot without tombstones", recovery, "needed |= subscription.owed & self._store.tombstones.keys()", "pass"),
    Mutant("tombstone of a snapshot ignored", recovery, "if change.deleted and not self._table.sessions and", "if False and"),
    Mutant("forgotten deletes leave the floor", store, "                    self.floor = topic.change.revision\n", "                    pass\n", first=12),
    Mutant("floor ignores what a snapshot leaves out", recovery, "*(topic.change.revision for topic in self._left_out())", "0", first=6),
    Mutant("deletes retained in any order", store, "                if topic in self.retained:\n", "                if False:\n"),
    Mutant("floor of a snapshot lost", replay, "        self.floor = scanner.floor\n", "", venue=True, first=47),
    Mutant("lost tombstone for durable", routing, "if change.deleted:\n                return\n            topic", "topic"),
    Mutant("delete owes nobody", routing, "if self._selected.worthwhile else topic.routes:", "if self._selected.worthwhile else () if change.deleted else topic.routes:"),
    Mutant("conflation moves a waiting topic", session, "            self.conflated += 1\n", "            if topic not in self.held:\n                self._back = [*(t for t in self.queue if t is not topic), topic]\n                self._front = []\n"),
    Mutant("conflation moves it to the head", session, "            self.conflated += 1\n", "            if topic not in self.held:\n                self._back = [topic, *(t for t in self.queue if t is not topic)]\n                self._front = []\n"),
    Mutant("new topic to the head", session, "        self._back.append(topic)\n        return not", "        self._front.append(topic)\n        return not"),
    Mutant("re-armed topic to the head", session, "                self._to_back(topic, since_us)\n        return stamp", "                self._to_front(topic, since_us)\n        return stamp"),
    Mutant("re-armed topic forgotten", session, "            if since_us != NOT_OWED:\n                self._to_back(topic, since_us)\n        return stamp", "        return stamp"),
    Mutant("un-acked topic sent again", session, "        if self.held and topic in self.held:\n            self.held", "        if False:\n            self.held"),
    Mutant("rights checked only when owed", outbox, "permitted = current.checked is self.rights or current.permits(topic, self.rights)", "permitted = True"),
    Mutant("rights of the connection never change", scans, "                session.connection.rights = rights", "                pass"),
    Mutant("routes outlive a policy", routing, "        self._generation += 1\n", "        self._generation += 0\n"),
    Mutant("routes in force dropped like void ones", routing, "            if topic.epoch != self.epoch:\n                topics -=", "            if True:\n                topics -=", first=19),
    Mutant("rights that come back cover what others made owed", scans, "subscription.checked = None if subscription.owed else rights", "pass"),
    Mutant("what an eager resume owes again counts as written", subscribing, "            connection.unconfirm(subscription)\n", "", first=78),
    Mutant("eager of an earlier SUBSCRIBE forgotten", subscribing, "eager or (subscription.eager and not subscription.applied)", "eager", first=5),
    Mutant("snapshots forget what no right allows", summary, 'Rights((), (compile_glob("**", limits),)', 'Rights((), (compile_glob("X/a.*", limits),)'),
    Mutant("granted topics not owed", scans, "if grants.grown and subscription.backfilled and grants.may_concern(subscription.glob) is not False:", "if False:"),
    Mutant("what grows is told the wrong way round", scans, "not before.receives_all_of(rights)", "not rights.receives_all_of(before)"),
    Mutant("what a right can match again stays out of the index", scans, "        elif possible:\n", "        elif False:\n"),
    Mutant("what was filtered is not owed when it is granted", scans, "            if subscription.backfilled:\n                self.owe_granted", "            if False:\n                self.owe_granted", first=5),
    Mutant("un-acked dropped at disconnect", session, "            self.owed.add(topic)\n            self._to_front(topic, since_us)\n        if self.waiting", "            continue\n        if self.waiting", first=3),
    Mutant("un-acked to the tail at disconnect", session, "            self._to_front(topic, since_us)\n        if self.waiting", "            self._to_back(topic, since_us)\n        if self.waiting"),
    Mutant("unwritten counts as written", outbox, "        for subscription, topic, _, since_us in reversed(self.unwritten):", "        for subscription, topic, _, since_us in ():", first=20),
    Mutant("durable auto never settled", outbox, "            if not subscription.removed:\n                self._acknowledgements.written(", "            if False:\n                self._acknowledgements.written("),
    Mutant("eager scan with double", scans, "                or change.revision > scan.revision\n", ""),
    Mutant("eager scan with gap", scans, "            if seen >= topics:\n                break\n", "            if seen >= topics:\n                scan.cursor = name\n                break\n"),
    Mutant("eager scan delivers deletes", scans, "(change.deleted if scan.after < 0 else change.revision <= scan.after)", "(scan.after >= 0 and change.revision <= scan.after)", first=7),
    Mutant("eager resume doubles", scans, "                or topic in scan.owed\n", "", first=47),
    Mutant("subscription never routed", routing, "        self._index.add(subscription.glob, subscription, owner)", "        pass"),
    Mutant("new subscription sees earlier SENDs", subscribing, "            connection.position = self._log.append(transient)\n", "            self._table.activate(subscription, eager, after)\n"),
    Mutant("window ignored for auto", outbox, "if self.in_flight >= self.window.size:", "if self.in_flight >= self.window.size and (subscription or ready_queue[0]).acknowledged:"),
    Mutant("window off by one", outbox, "if self.in_flight >= self.window.size:", "if self.in_flight > self.window.size:"),
    Mutant("UNSUBSCRIBE keeps its window slots", session_table, "connection.in_flight -= subscription.release()", "subscription.release()", first=30),
    Mutant("subscriptions take no turns", outbox, "                ready_queue.append(current)\n                subscription = None\n", "                ready_queue.appendleft(current)\n                subscription = None\n"),
    Mutant("ACK recorded at a lower revision", session, "self.unrecorded[topic.destination] = acked\n", "self.unrecorded[topic.destination] = acked - 1\n"),
    Mutant("ACK settles what came later", acknowledgements, "settled = tuple(subscription.unrecorded.items())", "settled = tuple((d, r + 9) for d, r in subscription.unrecorded.items())"),
    Mutant("ACK record before its message's revision", recovery, "topic.change.revision <= revision:", "True:"),
    Mutant("ACK's receipt does not wait", broker, "                self._acknowledgements.record(subscription)\n                connection.position = self._log.appended_seq\n", "                self._acknowledgements.record(subscription)\n", first=5),
    Mutant("ACK with receipt not recorded", broker, "                self._acknowledgements.record(subscription)\n                connection.position", "                connection.position"),
    Mutant("lazy ACKs never recorded", acknowledgements, "            if subscription.unrecorded:\n                self.record(subscription)\n\n", "            pass\n\n"),
    Mutant("refused revisions not given back", operations, "        self.head_revision = self.committed_revision\n        self.applied_seq", "        self.applied_seq"),
    Mutant("refused ACKs dropped", operations, "                kept.append(operation)\n                refusal.moved", "                refusal.moved"),
    Mutant("refused SENDs called accepted", outbox, "answer = headers if refused else answer", "answer = answer"),
    Mutant("refused SUBSCRIBE lives on", session_table, "        if subscription.life is PENDING:\n", "        if False:\n"),
    Mutant("replaced subscription not recorded", subscribing, "                self._record_removal(connection, old)", "                pass"),
    Mutant("head not taken from the journal", recovery, "        self._log.head_revision = self._log.committed_revision = revision\n", ""),
    Mutant("conflated change lacked since the newest", session, "            self.conflated += 1\n", "            self.conflated += 1\n            self._front_us = self._back_us = topic.change.accepted_at_us\n"),
    Mutant("un-acked lacked since the newest after a disconnect", session, "            self._to_front(topic, since_us)\n        if self.waiting", "            self._to_front(topic, topic.change.accepted_at_us)\n        if self.waiting"),
    Mutant("un-acked lacked since it was accepted", outbox, "subscription.taken_since_us())", "change.accepted_at_us)"),
    Mutant("handed out before a scan came to it lacked since it changed", session, "min(self._front_us, self._scan_us) if self.scans else self._front_us", "self._front_us", first=4),
    Mutant("changed before a scan came to it lacked since it changed", session, "        self._lack_since(since_us)\n\n    def take", "\n    def take"),
    Mutant("what was sent is lacked still", session, "        self._front_us = self._back_us\n", "        self._front_us = earlier(self._front_us, self._back_us)\n"),
    Mutant("nothing lacked while a scan is under way", session, "oldest_us = self._scan_us if self.scans else 0", "oldest_us = 0"),
    Mutant("scan that ended goes on to be lacked", scans, "                scan.subscription.end_scan(scan.began_us)\n", "                pass\n"),
    Mutant("takeover keeps un-acked", session_table, "        old.lost()\n        self.release_all(session)", "        old.lost()"),
    Mutant("writer not woken by an ACK", broker, "            connection.promise_of_ack(event.receipt, subscription)\n        connection.wake_if_due()\n\n    def detach", "            connection.promise_of_ack(event.receipt, subscription)\n\n    def detach"),
    Mutant("receipts not awaited at the end of input", broker, "        self._receipt_waits.add(connection)\n\n", "        pass\n\n"),
    Mutant("writer not woken by a commit", receipt_waits, "        for connection in self._taken.popleft():\n            connection.wake_if_due()\n", "        self._taken.popleft()\n"),
    Mutant("writer not woken by a value", outbox, "        if not self.awake:\n            self.awake = True\n            self._wake()\n\n    def leave", "\n    def leave"),
    Mutant("chunk outlives a commit", broker, "        self._wires.chunks.clear()\n        self._scanner", "        self._scanner"),
    Mutant("chunk for another subscription id", outbox, "            and chunk.prefix == prefix\n", ""),
    Mutant("chunk for another version", outbox, "            and chunk.variant == variant\n", ""),
    Mutant("chunk for whoever is owed its first topic", session, "if self._front[-count:] != topics:", "if self._front[-1:] != topics[-1:]:", first=4),
    Mutant("source compared with what is committed only", conditions, "number, position = self._sources.get((destination, source), (-1, 0))", "number, position = -1, 0"),
    Mutant("if-revision compared with what is committed only", conditions, "        if coming is not None:\n            return coming\n", ""),
    Mutant("mark lost at recovery", conditions, "        self._keeping = True\n\n    def newest", "        self._keeping = False\n\n    def newest"),
    Mutant("mark lost at its commit", conditions, "        self._keeping = True\n\n    def keep", "\n    def keep"),
    Mutant("marks missing in a snapshot", recovery, "            records += self._sequences.records(newest, self._log.accepted_at_us)\n", ""),
    Mutant("marks of deleted topics missing in a snapshot", producer_sequences, "                yield SequencesRecord(gone[1], gone[0], destination, ((source, number),))\n", "                pass\n", first=5),
    Mutant("marks of deleted topics restored as those of a value", recovery, "topic is None or topic.change.deleted", "False"),
    Mutant("superseded answered before commit", publishing, "            connection.position = max(connection.position, position)\n", ""),
    Mutant("superseded by what was refused", outbox, "else type(answer) is ConditionalReceipt and answer.position > done", "else False"),
    Mutant("marks of what was refused", conditions, "        self._sources.clear()\n        self._indexed", "        self._indexed", first=9),
    Mutant("values of what was refused", conditions, "        self._revisions.clear()\n        self._sources", "        self._sources", first=9),
    Mutant("index of what is coming lags", conditions, "        self._indexed = self._log.appended_seq\n", "        self._indexed = self._log.appended_seq + 1\n"),
    Mutant("the same number again", publishing, "if number >= condition.number:", "if number > condition.number:"),
    Mutant("takeover erases marks", producer_sequences, "{self._names[known]: packed >> _BITS, source: number}", "{source: number}"),
    Mutant("value without a mark erases marks", producer_sequences, "        if mark is not None:\n            self._set(", "        if mark is None:\n            self._drop(destination)\n        if mark is not None:\n            self._set("),
    Mutant("delete erases marks", producer_sequences, "            self._gone[destination] = (change.accepted_at_us, change.revision)\n            self.forget(change.accepted_at_us)", "            self._drop(destination)"),
    Mutant("marks of deleted topics for ever", producer_sequences, "return now_us - deleted_at_us > self._retention_us", "return False"),
    Mutant("marks end with the first delete", producer_sequences, "            deleted_at_us, _ = self._gone.pop(destination)\n", "            deleted_at_us, _ = self._gone[destination] if change.deleted else self._gone.pop(destination)\n            change = change if not change.deleted else type(change)(change.revision, deleted_at_us, destination, True, change.publisher, change.validation, change.content, change.body_at)\n", first=3),
    Mutant("mark of the wrong source forgotten", producer_sequences, "        several.pop(source, None)\n", ""),
    Mutant("stale bytes from the cache", wire_cache, "        change = topic.change\n        version = variant >> 1 & 1\n        content, body_at", "        change = topic.change\n        version = variant >> 1 & 1\n        if change.revision > 3 and change.wire is None:\n            change = next((c for c in self._encoded if c.destination == topic.destination), change)\n        content, body_at"),
    # Of recovery.
    Mutant("recovery scans all topics for each record", recovery, "            table.backfills.note_eager(subscription, self._log.committed_revision, record.accepted_at_us)\n", "            table.backfills.note_eager(subscription, self._log.committed_revision, record.accepted_at_us)\n            table.backfills.run(self._store)\n"),
    Mutant("recovery owes what was acknowledged", recovery, "                self._table.backfills.acknowledge(subscription, topic)\n", "                pass\n"),
    Mutant("recovery forgets who asked eagerly", backfill, "                    subscription.owed.add(topic)\n                    oldest_us =", "                    oldest_us ="),
    Mutant("recovery forgets what a snapshot owes", backfill, "                if self.since_us(topic) == 0:\n                    subscription.owed.add(topic)\n", "                pass\n"),
    # Of reloads.
    Mutant("rights checked only at SUBSCRIBE", scans, "            session.rights = rights\n", ""),
    Mutant("old policy for what a topic remembers of sends", admission, "if topic is None or topic.permitted", "if topic is None or not topic.permitted and topic.permitted", venue=True, first=16),
    Mutant("old schemas for what a topic remembers", admission, "if topic is not None and topic.registry == self._registries:", "if topic is not None and topic.registry:", venue=True, first=151),
    Mutant("policy swapped, schemas not", reload, "        if after.registry is not before.registry:\n            self._broker", "        if after.registry is not before.registry and after.policy is before.policy:\n            self._broker", venue=True),
    Mutant("schemas swapped, policy not", reload, "        if after.policy is not before.policy:\n            self._broker", "        if after.policy is not before.policy and after.registry is before.registry:\n            self._broker", venue=True),
    Mutant("checked flag kept over a reload", scans, "subscription.checked = None if subscription.owed else rights", "subscription.checked = rights"),
    Mutant("what was granted before is owed again", scans, "return self.before is None or not self.before.may_receive(name)", "return True"),
    Mutant("two walks owe the same", scans, "                scan.regrant(session.rights if session.granted else policy.rights(scan.principal))\n", "                pass\n"),
    Mutant("walk goes on behind an eager SUBSCRIBE", scans, "return self.subscription.removed or self.number != self.subscription.eager_scans", "return self.subscription.removed"),
    Mutant("orphans among newcomers", orphans, "            self._check(self._newcomers(self._late))\n            self._check(dict", "            self._check(dict", venue=True, first=3395),
    Mutant("orphans not asked about", reload, "if orphans and not allow_orphans:", "if False:", venue=True, first=16),
    Mutant("schemas in force before they are kept", reload, "await trio.to_thread.run_sync(self._keep_schemas, after.registry.texts())", "await trio.lowlevel.checkpoint()", venue=True),
    Mutant("schemas kept, their names not", kept_schemas, "        self._disk.fsync_folder(self._folder)\n        self._unsynced", "        self._unsynced", venue=True),
    Mutant("refused schemas in force", reload, "after = replace(after, registry=before.registry, digests=digests, contents=contents)", "after = replace(after, digests=digests, contents=contents)", venue=True),
    Mutant("revoked clients go on", access, "            connection.expel(failure)\n", "            pass\n", venue=True),
    Mutant("strangers to a new policy go on", access, "        principal = self._broker.policy.principal_of(peer.fingerprint)\n", "        return None\n", venue=True),
    Mutant("revocation looked at only by reloads", handshake, "        if denial is not None:\n            raise denial", "        if False:\n            raise denial", venue=True),
    # Of the disk: blocks, segments, snapshots, the archive.
    Mutant("full disk taken for written", commit_loop, "            return error\n", "            return True\n", venue=True),
    Mutant("clock jumps followed", clock, "                return own_us\n", "                pass\n", venue=True),
    Mutant("nothing written", commit_loop, "            self._journal.write(block)\n", "            pass\n", venue=True),
    Mutant("what a full disk leaves over is lost", commit, "self._kept = self._broker.take_batch()", "self._broker.take_batch()", venue=True),
    Mutant("segment's name not synced", segments, "        self._syncs.folder(self._folder)\n        segment.size", "        segment.size", venue=True),
    Mutant("seal not synced", segments, "        self._syncs.folder(self._folder)  # before anything", "        pass  # before anything", venue=True, first=32),
    Mutant("snapshot made before its segment has its name", snapshots, '    disk.fsync_folder(f"{root}/segments")\n', "", venue=True, first=370),
    Mutant("file named before it is synced", disk, "            disk.fsync(handle)\n        finally:", "            pass\n        finally:", venue=True),
    Mutant("archive trusts the newest snapshot alone", retention, "segment.last <= snapshots[-SNAPSHOTS_KEPT]", "segment.last <= snapshots[-1]", venue=True),
    Mutant("archive expires whatever snapshots say", retention, "archive = [segment for segment in sealed if segment.last <= snapshots[-SNAPSHOTS_KEPT]]", "archive = sealed", venue=True),
    Mutant("newest of the archive go first", retention, "return archive[:found]", "return archive[::-1][:found]", venue=True),
    Mutant("removals in any order", retention, "    disk.unlink(path)\n    disk.fsync_folder(folder)", "    disk.unlink(path)", venue=True, first=36),
    Mutant("damaged snapshot believed", replay, "            if error is None:\n                return revision, path", "            if True:\n                return revision, path", venue=True),
    Mutant("time runs back", publishing, "        if wall_us > log.accepted_at_us:\n            log.accepted_at_us = wall_us\n        content", "        log.accepted_at_us = wall_us\n        content", venue=True, first=100),
    Mutant("low memory ignored", publishing, "if self.memory_low and not (deleted and topic is not None):", "if False:", venue=True),
    Mutant("operators not told of what was rejected", publishing, "if self.on_rejected is not None and disposition != UNAVAILABLE:", "if False:", venue=True),
)  # fmt: skip
