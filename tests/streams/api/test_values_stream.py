"""Streams of values over real TLS: what begins them, what resumes them, what bounds them, and what ends them."""

import json
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.api.values import stream
from tests.streams.api.test_live_stream import Tab, limited, tab
from tests.support.living_gateway import EVERYTHING, Living, Site, living, until
from tests.support.patience import PATIENCE_S

SCHEMA = {"type": "record", "name": "T_v1", "namespace": "t", "fields": [{"name": "text", "type": "string"}]}
RULES = """
[[rule]]
destination = "X/raw.*"
encoding = "none"
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "datum"
"""
_EVENT = re.compile(r"(?:id: ([^\n]*)\n)?(?:event: (\w+)\ndata: ([^\n]*)\n)?\n")


def datum(text: str) -> bytes:
    """Encode a value."""
    length = 2 * len(text)
    head = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return head + text.encode()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return the files of a gateway whose `reader` has no admin right."""
    made = Site(tmp_path, "reader", "other")
    folder = made.schemas / "t" / "T_v1"
    folder.mkdir(parents=True)
    (folder / "1.0.avsc").write_text(json.dumps(SCHEMA))
    (made.schemas / "registry.toml").write_text(RULES)
    made.policy({"reader": EVERYTHING, "other": EVERYTHING})
    return made


def run(site: Site, test: Callable[[Living], Awaitable[None]]) -> None:
    """Run a test beside a gateway."""

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with living(site) as g:
                await test(g)

    trio.run(main)


def events_of(one: Tab) -> list[tuple[str, Any, str]]:
    """Return kind, data and id of the events so far. A position without data has no kind."""
    text = one.data.decode()
    body = text[text.index("\n\n") + 2 :] if "\n\n" in text else ""  # after `retry`
    whole = body[: body.rfind("\n\n") + 2]
    return [(kind, json.loads(data) if data else None, id_) for id_, kind, data in _EVENT.findall(whole) if kind or id_]


async def wait_for(one: Tab, kind: str, count: int = 1) -> list[tuple[str, Any, str]]:
    """Read on until N events of a kind have come; return all events."""
    await one.read(lambda: sum(found == kind for found, _, _ in events_of(one)) >= count)
    return events_of(one)


def test_a_stream_is_the_state_and_then_its_changes(site: Site) -> None:
    """First the values and `sync`, then each change and delete; a principal needs no admin right."""

    async def test(g: Living) -> None:
        async with g.client("other") as client:
            await client.send("X/A", datum("one"))
            await client.send("X/raw.1", b"hall")
            async with tab(g, "/v1/values/live?glob=X/**") as one:
                found = await wait_for(one, "sync")
                assert one.headers[b"content-type"] == b"text/event-stream"
                values = {data["destination"]: data for kind, data, _ in found if kind == "value"}
                assert values["X/A"]["value"] == {"text": "one"}
                assert values["X/A"]["schema"] == "t.T_v1 1.0"
                assert values["X/raw.1"]["value_state"] == "raw"
                assert found[-1][:2] == ("sync", {"count": 2, "whole": True})
                assert found[-1][2]
                await client.send("X/A", datum("two"))
                assert (await wait_for(one, "value", 3))[-1][1]["value"] == {"text": "two"}
                await client.send("X/A", b"")
                (gone,) = [data for kind, data, _ in await wait_for(one, "deleted") if kind == "deleted"]
                assert (gone["destination"], gone["reason"]) == ("X/A", "deleted")

    run(site, test)


def test_a_stream_goes_on_where_the_last_one_ended(site: Site) -> None:
    """With the id of the last event only later changes come, deletes too; a position that cannot be used gives the whole state."""

    async def test(g: Living) -> None:
        async with g.client("other") as client:
            for name in ("X/A", "X/B", "X/C"):
                await client.send(name, datum("one"))
            async with tab(g, "/v1/values/live") as one:
                position = (await wait_for(one, "sync"))[-1][2]
            await client.send("X/A", datum("two"))
            await client.send("X/B", b"")
            async with tab(g, f"/v1/values/live?since={position}") as back:
                found = await wait_for(back, "sync")
                seen = sorted((kind, data["destination"]) for kind, data, _ in found[:-1] if kind)
                assert seen == [("deleted", "X/B"), ("value", "X/A")]
                assert found[-1][1] == {"count": 2, "whole": False}
            other = "0" * 16 + position[16:]
            async with tab(g, f"/v1/values/live?since={other}") as back:
                found = await wait_for(back, "sync")
                assert found[-1][1] == {"count": 2, "whole": True}

    run(site, test)


def test_a_selector_and_fields_narrow_a_stream(site: Site) -> None:
    """A topic that no longer satisfies the selector is deleted for the reader."""

    async def test(g: Living) -> None:
        async with g.client("other") as client:
            where = "text%20LIKE%20'a%25'"
            async with tab(g, f"/v1/values/live?glob=X/A*&where={where}&fields=text") as one:
                await wait_for(one, "sync")
                await client.send("X/A1", datum("b"))
                await client.send("X/A2", datum("a"))
                assert (await wait_for(one, "value"))[-1][1]["destination"] == "X/A2"
                await client.send("X/A2", datum("b"))
                (gone,) = [data for kind, data, _ in await wait_for(one, "deleted") if kind == "deleted"]
                assert (gone["destination"], gone["reason"]) == ("X/A2", "selector")

    run(site, test)


def test_rights_and_certificates_count_while_it_lasts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is withdrawn ends values, with a notice; a certificate that is revoked ends the stream."""
    monkeypatch.setattr(stream, "BEAT_S", 0.2)

    async def test(g: Living) -> None:
        async with g.client("other") as client, tab(g, "/v1/values/live") as one:
            await client.send("X/A", datum("one"))
            await wait_for(one, "value")
            site.policy({"reader": {"receive": ["X/B*"]}, "other": EVERYTHING})
            await g.reload()
            (gone,) = [data for kind, data, _ in await wait_for(one, "deleted") if kind == "deleted"]
            assert gone == {"destination": "X/A", "reason": "rights"}
            site.revoke("reader")
            await g.reload()
            await one.read()
            kinds = [kind for kind, _, _ in events_of(one)]
            assert "ended" in kinds or not one.ended  # the listener may cut it first
        await until(lambda: not any(name.startswith("http-") for _, name in g.gateway.broker.sessions))

    run(site, test)


def test_a_slow_reader_is_conflated(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs the gateway no value: of many it gets few, and the newest of each topic once it reads."""
    limited(monkeypatch, write_timeout_s=PATIENCE_S)

    async def test(g: Living) -> None:
        async with g.client("other") as client, tab(g, "/v1/values/live", receive_bytes=2048) as one:
            await wait_for(one, "sync")
            for number in range(3000):
                await client.send(f"X/A.{number % 10}", datum(f"{number:060d}"))
            (session,) = [s for key, s in g.gateway.broker.sessions.items() if key[1].startswith("http-")]
            (subscription,) = session.subscriptions.values()
            assert len(subscription.owed) <= 10
            for number in range(10):
                await client.send(f"X/A.{number}", datum("last"))
            newest: dict[str, str] = {}

            def complete() -> bool:
                for kind, data, _ in events_of(one):
                    if kind == "value":
                        newest[data["destination"]] = data["value"]["text"]
                return len(newest) == 10 and set(newest.values()) == {"last"}

            await one.read(complete)
            assert sum(kind == "value" for kind, _, _ in events_of(one)) < 3000

    run(site, test)


def test_curl_reads_values(site: Site) -> None:
    """The current state takes one command, with the client's certificate and the venue's CA."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")

    async def test(g: Living) -> None:
        async with g.client("other") as client:
            await client.send("X/A", datum("one"))
        folder = g.site.certificates
        trusted = ["--cacert", str(folder / "ca.pem"), "--resolve", f"localhost:{g.admin_port}:127.0.0.1"]
        mine = ["--cert", str(folder / "reader.pem"), "--key", str(folder / "reader.key")]
        url = f"https://localhost:{g.admin_port}/v1/values/X/A"
        done = await trio.run_process([curl, "-sS", "-i", *trusted, *mine, url], capture_stdout=True)
        head, _, body = done.stdout.decode().replace("\r\n", "\n").partition("\n\n")
        assert json.loads(body)["value"] == {"text": "one"}
        (tag,) = re.findall(r"(?im)^etag: (.*)$", head)
        known = [curl, "-sS", "-i", *trusted, *mine, "-H", f"If-None-Match: {tag}", url]
        done = await trio.run_process(known, capture_stdout=True)
        assert done.stdout.startswith(b"HTTP/1.1 304")
        refused = await trio.run_process([curl, "-sS", *trusted, url], capture_stdout=True, check=False)
        assert refused.returncode != 0 or json.loads(refused.stdout)["code"] == "unauthenticated"

    run(site, test)
