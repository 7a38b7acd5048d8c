"""A front on another machine than its gateway: `maxam-gateway` with `[front]`.

Theory of operation. The front copies the journal of the gateway, and reads it into a replica. It gets the configuration in force and
all further entries over its link, and what is between the copy and these over a feed. Then it listens.

A front of a cluster that loses its link keeps its clients, and searches for the next leader (`gateway/resuming`). Without a cluster, or
if no leader takes it in time, it ends the connections of its clients. Then it begins again with the next gateway that serves it. A
SEND without a RECEIPT has an unknown outcome then, as after any lost connection, and none is sent twice.

The gateway lets other files come into force when a front that was cut off serves no longer. So a front serves by a lease: see
`FrontProcess`.
"""

import gc
import logging
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import click
import trio

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.cluster import wire
from maxam.cluster.copying import COPIED, take_copy
from maxam.cluster.entry import BLOCK, EntryError, read_entry
from maxam.cluster.feed import FeedRefusedError
from maxam.cluster.follower import read_answer, refusal
from maxam.cluster.link import CONNECT_S, Link, LinkLostError, connect
from maxam.config import FrontsSettings, ListenerSettings, Settings
from maxam.errors import ConfigurationError, MaxamError, first_error
from maxam.files import stamp_file
from maxam.front.process import COLLECT_THRESHOLDS, FrontProcess, Resumed, recover, with_chain
from maxam.front.replica import Replica
from maxam.gateway.clock import WallClock
from maxam.gateway.front_link import UNSENT_BYTES_MAX, FrontLink
from maxam.gateway.front_sources import read_sources, settings_at_front
from maxam.gateway.link_credentials import LinkCredentials
from maxam.gateway.listener import address_text, listen
from maxam.gateway.loaded_config import CERTIFICATE, LoadedConfig, read_credentials, take_contents
from maxam.gateway.log import log_event
from maxam.gateway.notify import keep_watchdog, notify
from maxam.gateway.resuming import Resumption
from maxam.journal.decoding import Decoder
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import START, Position
from maxam.journal.replay import Replay
from maxam.link_config import FrontSettings, LinkSettings, link_address

_PAUSE_S_MIN: Final = 0.5  # between two attempts at all gateways, doubled each time
_PAUSE_S_MAX: Final = 5.0
_ANSWER_S: Final = 30.0  # for a gateway to send what a front asked for
_LEADER_S: Final = 0.3  # between two searches for the next leader
_SILENT_S: Final = 2.0  # for which a search waits for a machine that may be dead
_SKIPPED_S: Final = 5.0  # for which it leaves out one that was silent
_FILES_S: Final = 10.0  # between two checks for another certificate


@dataclass(frozen=True, slots=True)
class _Begun:
    """A front that has read the journal.

    Attributes:
        settings: Those that hold here.
        loaded: The configuration in force.
        facts: Further facts that the gateway has sent.
        welcome: The gateway's.
        link: To it. It was handed over.
        reader: Of the link.
        received: Frames that the reader has read already.
        denied: Returns why the gateway's certificate is not valid now. Reads files.
        broker: Has applied all up to `position`.
        floor: As of `Replay`.
    """

    settings: Settings
    loaded: LoadedConfig
    facts: dict[str, Any]
    welcome: wire.Welcome
    link: Link
    reader: wire.FrameReader
    received: list[wire.Frame]
    denied: Callable[[], str]
    broker: Broker
    position: Position
    floor: int


@final
class RemoteFront:
    """Serves clients of one gateway after the other."""

    def __init__(self, settings: Settings, front: FrontSettings) -> None:
        """Read the certificates, to find mistakes. Raises ConfigurationError."""
        self._settings: Final = replace(settings, fronts=FrontsSettings(count=1))  # so that contents are kept
        self._addresses: Final = [address for text in front.from_ if (address := link_address(text)) is not None]
        self._folder: Final = str(front.folder.absolute())
        self._own = read_credentials(self._settings)
        self._credentials: Final = LinkCredentials(settings.tls, settings.link or LinkSettings(), lambda: self._own)
        self._port = settings.listener.port
        self._process: FrontProcess | None = None
        self._denied: Callable[[], str] = _not_denied
        self._stopping = False
        self._said_ready = False
        self._look = trio.Event()  # at the files

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._obey_signals, nursery.cancel_scope)
            nursery.start_soon(self._watch_files)
            nursery.start_soon(keep_watchdog, lambda: True)
            notify("READY=1")  # a gateway that is away is no failure of this service
            notify("STATUS=connecting")
            await self._keep()
            nursery.cancel_scope.cancel()

    async def _keep(self) -> None:
        """Serve the clients of the first gateway that has this front serve, again and again."""
        pause_s = _PAUSE_S_MIN
        known: dict[tuple[str, int], str] = {}  # why each gateway does not have this front serve
        while True:
            for host, port in self._addresses:
                served = False
                reason = "the gateway stops"
                try:
                    begun = await trio.to_thread.run_sync(self._begin, host, port, abandon_on_cancel=True)
                    served = True
                    await self._serve(begun)
                except* (MaxamError, OSError) as group:
                    reason = str(first_error(group))
                if self._stopping:
                    return
                notify("STATUS=connecting")
                gateway = address_text(host, port)
                if not served and known.get((host, port)) != reason:
                    log_event(logging.WARNING, "front-waits", gateway=gateway, error=reason)
                known[host, port] = reason
                if served:
                    log_event(logging.WARNING, "front-lost", gateway=gateway, error=reason)
                    pause_s = _PAUSE_S_MIN
                    gc.unfreeze()
                    gc.collect()
            await trio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # so that fronts do not come together
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _serve(self, begun: _Begun) -> None:
        """Serve clients until the link ends, or the gateway or this front stops."""
        facts, settings = begun.facts, begun.settings
        recover(begun.broker, begun.position, begun.floor)
        begun.broker.memory_low = bool(facts["memory_low"])
        begun.broker.incarnation = begun.welcome.incarnation
        clock = WallClock(begun.broker.accepted_at_us, settings.limits.clock_jump_s_max, trio.current_time())
        link = FrontLink(begun.link.tls, UNSENT_BYTES_MAX, begun.reader, begun.received)
        replica = Replica(
            begun.broker,
            bytes.fromhex(facts["name"]),
            begun.position,
            begun.welcome.position,
            link.send,
            lambda: (trio.current_time(), clock.now_us()),
        )
        process = FrontProcess(
            settings,
            begun.loaded,
            int(facts["slot"]),
            int(facts["epoch"]),
            link,
            None,
            replica,
            clock,
            term=int(facts["term"]),
            hold_s=float(facts["hold_s"]),
        )
        process.listening = self._listen
        process.find_leader = partial(self._find_leader, process, settings)
        self._process, self._denied = process, begun.denied
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._judge)
                await process.run()
                nursery.cancel_scope.cancel()
        finally:
            self._process = None
            begun.link.close()

    async def _find_leader(self, process: FrontProcess, settings: Settings, state: Resumption) -> Resumed:
        """Link with the next leader. Raises MaxamError if it does not take this front."""
        self._denied = _not_denied
        skipped: dict[tuple[str, int], float] = {}  # until when
        while True:
            for host, port in self._addresses:
                asked_s = trio.current_time()
                if asked_s < skipped.get((host, port), 0.0):
                    continue
                try:
                    link, (reader, received), facts, position = await trio.to_thread.run_sync(
                        self._resume, host, port, process, settings, state, abandon_on_cancel=True
                    )
                except FeedRefusedError as error:
                    if error.reason == wire.GONE:
                        raise
                except (LinkLostError, wire.WireError):
                    now_s = trio.current_time()
                    if now_s - asked_s >= _SILENT_S:
                        skipped[host, port] = now_s + _SKIPPED_S
                else:
                    self._denied = link.denied
                    over = FrontLink(link.tls, UNSENT_BYTES_MAX, reader, received)
                    return Resumed(over, facts, position, asked_s)
            await trio.sleep(_LEADER_S * random.uniform(0.5, 1.0))  # noqa: S311  # so that fronts do not come together

    async def _judge(self) -> None:
        """Watch the gateway's certificate. Raises LinkLostError if it is not valid any longer."""
        while True:
            problem = await trio.to_thread.run_sync(self._denied)
            if problem:
                raise LinkLostError(problem)
            await trio.sleep(wire.BEAT_S)

    def _listen(self) -> socket.socket:
        """Open the listener, at the same port each time; raises ConfigurationError."""
        host = self._settings.listener.host
        listening = listen(ListenerSettings(host, self._port))
        self._port = listening.getsockname()[1]
        address = address_text(host, self._port)
        log_event(logging.INFO, "ready", version=__version__, pid=os.getpid(), addresses=address)
        if not self._said_ready:
            self._said_ready = True
            click.echo(f"ready tls={address}")
        notify("STATUS=serving")
        return listening

    async def _obey_signals(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    self._look.set()
                elif self._process is None or self._stopping:
                    self._stopping = True
                    scope.cancel()
                else:
                    self._stopping = True
                    notify("STOPPING=1")
                    self._process.stop()

    async def _watch_files(self) -> None:
        """Take another certificate when its files change."""
        tls = self._settings.tls
        paths = [path for path in (tls.certificate, tls.key, tls.client_ca, tls.crl) if path is not None]
        stamps = _stamps(paths)
        while True:
            with trio.move_on_after(_FILES_S):
                await self._look.wait()
            asked, self._look = self._look.is_set(), trio.Event()
            found = await trio.to_thread.run_sync(_stamps, paths)
            if found == stamps and not asked:
                continue
            stamps = found
            try:
                self._own = await trio.to_thread.run_sync(read_credentials, self._settings)
                if self._process is not None:
                    self._process.renew(self._own.contents[CERTIFICATE])
            except ConfigurationError as error:
                log_event(logging.ERROR, "reload-refused", error=error, action="the old certificate stays in force")
            else:
                log_event(logging.INFO, "reloaded", item=CERTIFICATE)

    # On a thread.

    def _begin(self, host: str, port: int) -> _Begun:
        """Read the journal of a gateway, and have it serve this front.

        Raises:
            MaxamError: It does not.
            OSError: The folder of the copy cannot be used.
        """
        self._copy(host, port)
        link, welcome = self._link(host, port, wire.FRONT, START, "")
        try:
            facts, contents = read_sources(_expect(link, wire.SOURCES))
            settings = settings_at_front(self._settings, facts, contents)
            loaded = take_contents(settings, {**contents, CERTIFICATE: self._own.contents[CERTIFICATE]}, None)
            broker = Broker(settings.limits, loaded.policy, loaded.registry)
            gc.disable()
            try:
                position, floor = self._read_copy(broker)
                position = self._read_feed(broker, host, port, position, welcome)
                broker.backfills.run(broker.store)
            finally:
                gc.enable()
            reader, received = link.hand_over()
            return _Begun(
                settings, loaded, facts, welcome, link, reader, received, link.denied, broker, position, floor
            )
        except BaseException:
            link.close()
            raise

    def _resume(
        self, host: str, port: int, process: FrontProcess, settings: Settings, state: Resumption
    ) -> tuple[Link, tuple[wire.FrameReader, list[wire.Frame]], dict[str, Any], Position]:
        """Have a leader take this front as it is; return the link, what was read from it, and facts and position of the leader.

        Raises:
            MaxamError: It does not.
        """
        link, welcome = self._link(host, port, wire.RESUME, state.position, "", state.encoded())
        try:
            facts, contents = read_sources(_expect(link, wire.SOURCES))
            loaded = process.loaded.contents
            problem = ""
            if settings_at_front(self._settings, facts, contents) != settings:
                problem = "the next leader has other settings"
            elif any(content.digest() != loaded[item].digest() for item, content in contents.items()):
                problem = "other files are in force at the next leader"
            elif int(facts["term"]) <= state.term:
                problem = "the term of the next leader is not higher"
            _require_alike(problem)
            return link, link.hand_over(), facts, welcome.position
        except BaseException:
            link.close()
            raise

    def _copy(self, host: str, port: int) -> None:
        """Copy the journal of a gateway that serves into the folder."""
        Path(self._folder).parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._folder + COPIED, ignore_errors=True)
        link, welcome = self._link(host, port, wire.COPY, START, "")
        try:
            if welcome.role != "serving":
                raise LinkLostError(f"{welcome.name} serves no clients: it is {welcome.role}")
            take_copy(link, self._folder, OsDisk(), welcome.incarnation, lambda _copied, _size: None)
        finally:
            link.close()

    def _read_copy(self, broker: Broker) -> tuple[Position, int]:
        """Replay the copy, and remove it. Return where it ends, and its floor."""
        folder = self._folder + COPIED
        replay = Replay(folder, OsDisk())
        for record in replay.records(following=True):
            broker.replay(record)
        position = with_chain(folder, replay.position)
        shutil.rmtree(folder)
        return position, replay.floor

    def _read_feed(self, broker: Broker, host: str, port: int, position: Position, welcome: wire.Welcome) -> Position:
        """Replay all that follows the copy, up to where the entries of the link begin; return where that is."""
        if position.revision >= welcome.position.revision:
            return position
        link, _ = self._link(host, port, wire.FEED, position, welcome.incarnation)
        decoder = Decoder(position.revision, position.accepted_at_us)
        try:
            while position.revision < welcome.position.revision:
                entry = read_entry(_expect(link, wire.ENTRY))
                if entry.kind != BLOCK:
                    continue
                if entry.before.revision != position.revision or position.chain not in {0, entry.before.chain}:
                    raise EntryError("an entry does not follow the one before it")
                try:
                    records = decoder.decode(*entry.records())
                except (ValueError, IndexError) as error:
                    raise EntryError(f"the records of a block are wrong: {error}") from error
                for record in records:
                    broker.replay(record)
                position = entry.after
        finally:
            link.close()
        return position

    def _link(
        self, host: str, port: int, wish: int, position: Position, incarnation: str, state: bytes = b""
    ) -> tuple[Link, wire.Welcome]:
        wait_s = _SILENT_S if state else CONNECT_S
        link = connect(host, port, self._credentials.client(), lambda: position, lambda: "", _loop_us, wait_s)
        try:
            link.denied = self._credentials.denial_of(link.tls)
            link.send(wire.encode_hello(wire.Hello(wish, socket.gethostname(), __version__, incarnation, position)))
            if state:
                _expect(link, wire.REPORT)
                link.send(state)
            return link, read_answer(link)
        except BaseException:
            link.close()
            raise


def _expect(link: Link, kind: int) -> bytes:
    """Return the body of the next frame, which must be of a type."""
    frame = link.expect(_ANSWER_S)
    if frame.type == wire.REFUSED:
        raise refusal(frame.body)
    if frame.type != kind:
        raise wire.WireError(f"a frame of type {frame.type} instead of {kind}")
    return frame.body


def _loop_us() -> int:
    """Return the time of the event loop, by which the lease counts, for a thread."""
    return int(trio.from_thread.run_sync(trio.current_time) * 1e6)


def _not_denied() -> str:
    return ""


def _require_alike(problem: str) -> None:
    """Raise FeedRefusedError if a leader differs from the former one."""
    if problem:
        raise FeedRefusedError(wire.GONE, problem)


def _stamps(paths: list[Path]) -> list[object]:
    return [stamp_file(path) for path in paths]


def run_front(settings: Settings, check: bool) -> None:
    """Serve until SIGTERM or SIGINT, or only check the files. Raises ConfigurationError."""
    if settings.front is None:
        return
    if check:
        RemoteFront(settings, settings.front)
        return
    gc.set_threshold(*COLLECT_THRESHOLDS)
    trio.run(_run, settings, settings.front)
    log_event(logging.INFO, "stopped")


async def _run(settings: Settings, front: FrontSettings) -> None:
    await RemoteFront(settings, front).run()
