"""The promises of a library that sends."""

import base64
from typing import Final

from maxam.conformance.driver import Driver
from maxam.conformance.server import Cut
from maxam.conformance.stage import Promise, Stage, check
from maxam.records import Headers
from maxam.stomp.frames import Frame

_AWKWARD: Final = {"n:1": "a:b\\c\nd", "empty": ""}
_LARGE_BYTES: Final = 300_000


async def send(driver: Driver, id_: str, destination: str, body: bytes, **rest: object) -> None:
    """Have the driver send."""
    await driver.command("send", id=id_, destination=destination, body=base64.b64encode(body).decode(), **rest)


async def sends_exactly(stage: Stage) -> None:
    """Send bodies and headers that a careless encoder damages."""
    driver = await stage.connect()
    bodies = [b"\0\n\0", b"\xff" * 10, stage.random.randbytes(_LARGE_BYTES), b""]
    for at, body in enumerate(bodies):
        await send(driver, f"{at}", "X/a", body, headers=_AWKWARD)
        await stage.report(driver, "accepted", id=f"{at}")
        change = stage.world.change_of("X/a")
        check(change, "a SEND was reported as accepted, and the broker has nothing")
        assert change is not None  # noqa: S101 - checked
        check(change.body == body, f"a body of {len(body)} bytes arrived as {len(change.body)} other bytes")
        headers = {name.decode(): value.decode() for name, value in change.headers}
        wanted = headers | _AWKWARD
        check(headers == wanted, f"the headers {_AWKWARD} arrived as {headers}")
    check(stage.world.values() == {}, "an empty body is a delete, and the topic still has a value")


async def rejections(stage: Stage) -> None:
    """Send what no rule covers, without right, and what cannot be stored now."""
    driver = await stage.connect()
    stage.world.broker.memory_low = True
    for destination, result in (("Y/a", "no-rule"), ("Z/a", "unauthorised"), ("X/new", "memory-low")):
        await send(driver, result, destination, b"v")
        report = await stage.report(driver, "rejected", id=result)
        check(report.get("result") == result, f"a SEND with {result} was reported as {report.get('result')}")
        temporary = result == "memory-low"
        check(report.get("temporary", False) == temporary, f"{result} must have temporary={temporary}")


def _lose_receipt(stage: Stage) -> None:
    """Cut the connection before the next RECEIPT of a SEND, once."""
    faults = stage.server.faults

    def rewrite(frame: Frame) -> Headers:
        if b"disposition" in frame.headers:
            faults.rewrite = lambda _frame: ()
            raise Cut
        return ()

    faults.rewrite = rewrite


async def outcome_unknown(stage: Stage) -> None:
    """Lose a RECEIPT, and then a SEND."""
    driver = await stage.connect()
    for at, loss in enumerate(("RECEIPT", "SEND")):
        before = len(stage.server.connections)
        if loss == "RECEIPT":
            _lose_receipt(stage)
        else:
            stage.server.faults.cut_on = b"SEND"
        await send(driver, loss, f"X/{loss}", b"v")
        await stage.report(driver, "unknown", id=loss)
        await stage.reconnected(before)
        count = at + 1
        await stage.stays(
            lambda count=count: len(stage.server.received(b"SEND")) == count,  # type: ignore[misc]  # bound by its default
            "a SEND of unknown outcome was sent again, which the application did not ask for",
        )
        check(not driver.ever("accepted", id=loss), "a SEND without RECEIPT was reported as accepted")


async def sends_again(stage: Stage) -> None:
    """Lose RECEIPTs and SENDs of a publisher that wants them repeated."""
    driver = await stage.connect()
    for number, loss in enumerate(("RECEIPT", "SEND"), 1):
        if loss == "RECEIPT":
            _lose_receipt(stage)
        else:
            stage.server.faults.cut_on = b"SEND"
        await send(driver, loss, "X/a", b"%d" % number, retry=True, source="kit", source_revision=number)
        await stage.report(driver, "accepted", id=loss)
        marks = {b"source": b"kit", b"source-revision": b"%d" % number}
        sent = [one for one in stage.server.received(b"SEND") if one.body == b"%d" % number]
        check(len(sent) > 1, "the SEND was not sent again")
        check(all(marks.items() <= one.headers.items() for one in sent), f"a SEND came without its marks {marks}")
        check(stage.world.values() == {"X/a": b"%d" % number}, "the value is not the one that was sent")


PROMISES: Final = (
    Promise("sends-exactly", "publisher", "Bodies and headers arrive as the application gave them.", sends_exactly, ()),
    Promise("rejections-reported", "publisher", "A rejected SEND is reported with its result.", rejections, ()),
    Promise("outcome-unknown", "publisher", "A SEND without RECEIPT is reported, and not repeated.", outcome_unknown),
    Promise(
        "sends-again", "publisher", "With `retry`, a SEND is repeated with its marks until its RECEIPT.", sends_again
    ),
)
