"""The promises of a library that receives."""

import base64
from typing import Final

from maxam.conformance.driver import Driver, Report
from maxam.conformance.stage import Promise, Stage, check
from maxam.records import Headers
from maxam.stomp.frames import Frame

_TOPICS: Final = 300
_LARGE_BYTES: Final = 300_000
_BAD_GLOB: Final = "X/[a"


async def subscribe(stage: Stage, driver: Driver, name: str = "s", destination: str = "X/**", **rest: object) -> None:
    """Have the driver subscribe."""
    del stage
    await driver.command("subscribe", subscription=name, destination=destination, **rest)


async def _delivered(stage: Stage, destination: str, body: bytes, headers: Headers = ()) -> Report:
    """Publish a value to a library that has just subscribed, and return its report."""
    driver = await stage.connect()
    await subscribe(stage, driver)
    stage.world.put(destination, body, headers)
    report = await stage.report(driver, "value", destination=destination)
    check(base64.b64decode(report["body"]) == body, f"a body of {len(body)} bytes was reported as another one")
    return report


async def headers_unescaped(stage: Stage) -> None:
    """Publish a header with each character that STOMP escapes."""
    text = b"a:b\\c\nd"
    report = await _delivered(stage, "X/a:1", b"v", ((b"n:1", text), (b"plain", b"x")))
    headers = report.get("headers", {})
    check(headers.get("n:1") == text.decode(), f"the header n:1 is {text.decode()!r}, and was reported in {headers}")


async def bodies_whole(stage: Stage) -> None:
    """Publish bodies that a careless decoder cuts, in pieces of some bytes."""
    driver = await stage.connect()
    await subscribe(stage, driver)
    stage.server.faults.pieces = True
    for body in (b"\0a\0", b"\n\n", b"MESSAGE\n\n\0", stage.random.randbytes(_LARGE_BYTES), "ü€".encode(), b""):
        stage.world.put("X/a", body)
        await stage.equal(driver, "s")
    await stage.report(driver, "deleted", destination="X/a")


async def unknown_headers(stage: Stage) -> None:
    """Add a header of a later version to each frame."""
    stage.server = await stage.serve()
    stage.server.faults.rewrite = lambda _frame: ((b"x-later", b"1"),)
    driver = await stage.connect(stage.server)
    await subscribe(stage, driver)
    stage.world.put("X/a", b"v")
    await stage.equal(driver, "s")


async def repeated_headers(stage: Stage) -> None:
    """Repeat headers of each MESSAGE with other values: the first ones count."""
    stage.server = await stage.serve()

    def rewrite(frame: Frame) -> Headers:
        repeated = ((b"destination", b"X/wrong"), (b"subscription", b"wrong"), (b"message-id", b"999999"))
        return repeated if frame.command == b"MESSAGE" and frame.headers[b"message-id"] != b"0" else ()

    stage.server.faults.rewrite = rewrite
    driver = await stage.connect(stage.server)
    await subscribe(stage, driver)
    stage.world.put("X/a", b"v")
    await stage.equal(driver, "s")


async def resubscribes(stage: Stage) -> None:
    """Lose the connection and publish: the value must come on the next one."""
    driver = await stage.connect()
    await subscribe(stage, driver)
    for loss in ("cut", "killed"):
        stage.world.put("X/a", loss.encode())
        await stage.equal(driver, "s")
        before = len(stage.server.connections)
        stage.server.cut() if loss == "cut" else stage.server.restart()
        await stage.reconnected(before)
        stage.world.put("X/b", loss.encode())
        await stage.equal(driver, "s")


async def acks_after_value(stage: Stage) -> None:
    """Let the application take its time with a value."""
    driver = await stage.connect()
    await subscribe(stage, driver, hold=True)
    await stage.until(lambda: stage.server.received(b"SUBSCRIBE"), "no SUBSCRIBE came")
    stage.world.put("X/a", b"v")
    await stage.report(driver, "value", destination="X/a")
    await stage.stays(
        lambda: not stage.server.received(b"ACK"), "ACK came before the application was done with the value"
    )
    await driver.command("done", subscription="s")
    await stage.until(
        lambda: stage.server.received(b"ACK"), "no ACK came after the application was done with the value"
    )


async def acks_all(stage: Stage) -> None:
    """Publish more values than the window has places."""
    for number in range(_TOPICS):
        stage.world.put(f"X/{number}", b"%d" % number)
    driver = await stage.connect()
    await subscribe(stage, driver)
    await stage.equal(driver, "s")


async def refused_subscription(stage: Stage) -> None:
    """Subscribe to a glob that no broker accepts."""
    driver = await stage.connect()
    await subscribe(stage, driver)
    await stage.until(lambda: stage.server.received(b"SUBSCRIBE"), "no SUBSCRIBE came")
    await subscribe(stage, driver, "refused", _BAD_GLOB)
    await stage.report(driver, "refused", subscription="refused")
    stage.world.put("X/a", b"v")
    await stage.equal(driver, "s")
    refused = _BAD_GLOB.encode()
    count = sum(one.headers.get(b"destination") == refused for one in stage.server.received(b"SUBSCRIBE"))
    check(count <= 1, f"the refused SUBSCRIBE was sent {count} times")


PROMISES: Final = (
    Promise("headers-unescaped", "subscriber", "Header names and values are unescaped.", headers_unescaped, ()),
    Promise("bodies-whole", "subscriber", "A body has its length, in whatever pieces it comes.", bodies_whole, ()),
    Promise(
        "unknown-headers-ignored",
        "subscriber",
        "Headers that the library does not know change nothing.",
        unknown_headers,
        (),
    ),
    Promise("first-header-counts", "subscriber", "Of repeated headers the first one counts.", repeated_headers, ()),
    Promise("resubscribes", "subscriber", "Each subscription is made again on the next connection.", resubscribes),
    Promise(
        "acks-after-value",
        "subscriber",
        "ACK is sent when the application is done with the value.",
        acks_after_value,
        (),
    ),
    Promise("acks-all", "subscriber", "Each message is acknowledged, so the window never stays full.", acks_all, ()),
    Promise(
        "refused-subscription",
        "subscriber",
        "A refused subscription is reported once, and the others go on.",
        refused_subscription,
        ("resubscribes",),
    ),
)
