"""The process of a front on the machine of its gateway, which starts it and hands connections to it."""

import gc
import logging
import pickle
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Final

import trio

from maxam.broker.broker import Broker
from maxam.cluster import wire
from maxam.config import Settings
from maxam.errors import JournalError, MaxamError, first_error
from maxam.front.process import COLLECT_THRESHOLDS, FrontProcess, recover, with_chain
from maxam.front.replica import Replica
from maxam.gateway.clock import WallClock
from maxam.gateway.front_link import UNSENT_BYTES_MAX, FrontLink, FrontLinkError
from maxam.gateway.loaded_config import LoadedConfig, take_contents
from maxam.gateway.log import log_event, set_log_format, start_logging
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import Position
from maxam.journal.replay import Replay

_TRIES: Final = 20  # to read a journal whose files are renamed meanwhile
_BEHIND_LOOK_S: Final = 0.1
_BEHIND_S: Final = 30.0  # that files may take to get what the log of a cluster has


def main() -> int:
    """Run the process; its arguments are the descriptors of the link and of the socket that hands over connections."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the gateway gets them too, and decides
    start_logging()
    gc.set_threshold(*COLLECT_THRESHOLDS)
    code = 0
    try:
        trio.run(_run, socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])))
    except* FrontLinkError:
        pass  # it ends with the gateway
    except* MaxamError as group:
        log_event(logging.ERROR, "front-failed", error=first_error(group))
        code = 1
    return code


async def _run(connected: socket.socket, taking: socket.socket) -> None:
    taking.setblocking(False)
    with suppress(OSError):  # the gateway has ended: the next call finds that out
        connected.sendall(wire.frame(wire.REPORT, b"{}"))  # the modules are loaded
    welcome = wire.read_welcome(_receive_frame(connected).body)
    begin = _receive_frame(connected)
    settings, contents, name, slot, epoch, memory_low = pickle.loads(begin.body)  # noqa: S301  # of the process that has started this one
    set_log_format(settings.log.format)
    loaded = take_contents(settings, contents, None)
    link = FrontLink(connected, UNSENT_BYTES_MAX)
    broker, position = _read_journal(settings, loaded, welcome.position)
    clock = WallClock(broker.accepted_at_us, settings.limits.clock_jump_s_max, trio.current_time())
    replica = Replica(
        broker, name, position, welcome.position, link.send, lambda: (trio.current_time(), clock.now_us())
    )
    broker.memory_low = memory_low
    broker.incarnation = welcome.incarnation
    await FrontProcess(settings, loaded, slot, epoch, link, taking, replica, clock).run()


def _receive_frame(connected: socket.socket) -> wire.Frame:
    """Return the next frame, and read nothing after it."""
    connected.setblocking(True)
    head = _receive(connected, 5)
    body = _receive(connected, int.from_bytes(head[:4], "big"))
    return wire.FrameReader().feed(head + body)[0]


def _receive(connected: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            some = connected.recv(size - len(data))
        except ConnectionResetError:  # its end has not read what this process has sent
            some = b""
        if not some:
            raise FrontLinkError("the gateway has ended")
        data += some
    return bytes(data)


def _read_journal(settings: Settings, loaded: LoadedConfig, begun: Position) -> tuple[Broker, Position]:
    """Return a broker with what the files of the journal hold, and the position where they end, which is `begun` or later.

    A member of a cluster writes its journal after the log, so its files may be behind for a moment.

    Raises:
        JournalError: The files cannot be read.
    """
    folder = str(settings.journal.folder.absolute())
    tries = 0
    ends_s = time.monotonic() + _BEHIND_S
    while True:
        broker = Broker(settings.limits, loaded.policy, loaded.registry)
        replay = Replay(folder, OsDisk())
        gc.disable()
        try:
            for record in replay.records(following=True):
                broker.replay(record)
            if replay.position.revision >= begun.revision or time.monotonic() > ends_s:
                broker.backfills.run(broker.store)
                break
            time.sleep(_BEHIND_LOOK_S)
        except (JournalError, OSError) as error:  # a segment was sealed meanwhile, as a rule
            tries += 1
            if tries == _TRIES:
                raise JournalError(f"{folder} cannot be read beside the gateway: {error}") from error
            time.sleep(0.05)
        finally:
            gc.enable()
    position = replay.position
    if position.revision < begun.revision:
        raise JournalError(f"{folder} ends before revision {begun.revision}, which the gateway has committed")
    position = with_chain(folder, position)
    recover(broker, position, replay.floor)
    return broker, position
