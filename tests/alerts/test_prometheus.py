"""A real Prometheus scrapes a real gateway over mutual TLS, by the shipped configuration and rules: alerts fire, and clear."""

import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.alerts.prometheus import CONFIGURATION, RULES, expressions, need
from tests.support.living_gateway import EVERYTHING, Site, living

LISTENING = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


def quick(text: str) -> str:
    """Let rules that wait for minutes wait for moments."""
    text = re.sub(r"^( +for:) \d+[mh]$", r"\1 500ms", text, flags=re.MULTILINE)
    return text.replace("maxam_last_change_age_seconds > 300", "maxam_last_change_age_seconds > 2")


class Prometheus:
    """A server that is asked over its API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, path: str, **parameters: str) -> Any:
        """Ask for what must succeed; return its data."""
        answer = await self._client.get(f"/api/v1/{path}", params=parameters)
        assert answer.json()["status"] == "success", answer.text
        return answer.json()["data"]

    async def firing(self, name: str) -> list[dict[str, Any]]:
        """Return an alert's instances that fire."""
        found = (await self.ask("alerts"))["alerts"]
        return [one for one in found if one["labels"]["alertname"] == name and one["state"] == "firing"]

    async def wait_for(
        self, name: str, fires: bool, meanwhile: Callable[[], Awaitable[object]]
    ) -> list[dict[str, Any]]:
        """Poll until an alert fires or has cleared, and return its instances."""
        while bool(found := await self.firing(name)) is not fires:
            await meanwhile()
        return found


@asynccontextmanager
async def prometheus(folder: Path, site: Site, port: int) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes the admin listener at a port as the client `prometheus`."""
    configuration = CONFIGURATION.read_text().replace("localhost:8643", f"localhost:{port}").replace("15s", "250ms")
    for name in ("ca.pem", "prometheus.pem", "prometheus.key"):
        (folder / name).write_bytes((site.certificates / name).read_bytes())
    (folder / CONFIGURATION.name).write_text(configuration)
    (folder / RULES.name).write_text(quick(RULES.read_text()))
    command = [
        need("prometheus"),
        f"--config.file={folder / CONFIGURATION.name}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    command.append("--web.listen-address=127.0.0.1:0")
    log = ""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        )
        ready = trio.Event()

        async def read() -> None:
            nonlocal log
            async for data in process.stderr:
                log += data.decode()
                if "Server is ready" in log:
                    ready.set()
            ready.set()

        nursery.start_soon(read)
        await ready.wait()
        found = LISTENING.search(log)
        assert found, log
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found[1]}") as client:
                yield Prometheus(client)
        finally:
            process.terminate()


def test_alerts_fire_and_clear_at_a_real_prometheus(tmp_path: Path) -> None:
    """Scraped with a certificate that has the right `metrics` and no other: an invalid file and silent publishers alert, and no longer once repaired."""
    need("prometheus")
    (tmp_path / "site").mkdir()
    (tmp_path / "prometheus").mkdir()
    site = Site(tmp_path / "site", "anna", "prometheus")
    rights = {"anna": EVERYTHING, "prometheus": {"admin": ["metrics"]}}
    site.policy(rights)

    async def test() -> None:
        async with (
            living(site) as gateway,
            gateway.client("anna") as anna,
            prometheus(tmp_path / "prometheus", site, gateway.admin_port) as server,
        ):

            async def publish() -> None:
                assert (await anna.send("X/a", b"v"))[0] == b"accepted"

            async def nothing() -> None:
                await trio.sleep(0.05)

            await publish()
            site.policy_file.write_text("nonsense")
            await gateway.reload()
            [alert] = await server.wait_for("MaxamReloadFailed", fires=True, meanwhile=publish)
            labels, notes = alert["labels"], alert["annotations"]
            instance = f"localhost:{gateway.admin_port}"
            assert (labels["instance"], labels["item"], labels["severity"]) == (instance, "policy", "ticket")
            assert notes["summary"] == f"maxam on {instance} cannot use its new policy"
            site.policy(rights)
            await gateway.reload()
            await server.wait_for("MaxamReloadFailed", fires=False, meanwhile=publish)

            [alert] = await server.wait_for("MaxamNoPublishers", fires=True, meanwhile=nothing)
            assert alert["labels"]["severity"] == "page"
            assert re.search(r"for \d+(\.\d+)?s$", alert["annotations"]["summary"])
            await server.wait_for("MaxamNoPublishers", fires=False, meanwhile=publish)

            while True:  # a scrape has a quarter of a second, which may be too short at times: the last one was not
                [target] = (await server.ask("targets"))["activeTargets"]
                if target["health"] == "up":
                    break
                await nothing()
            assert target["lastError"] == ""
            rules = [rule for group in (await server.ask("rules"))["groups"] for rule in group["rules"]]
            assert [rule for rule in rules if rule["health"] != "ok"] == []
            for expression in expressions():
                query = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
                await server.ask("query", query=query)

    trio.run(test)


def test_what_is_made_quick_is_all_that_waits() -> None:
    """No rule of the real test keeps the minutes of the shipped one."""
    text = RULES.read_text()
    assert not re.search(r"for: \d+[mh]$", quick(text), re.MULTILINE)
    assert quick(text).count("> 2\n") == text.count("> 2\n") + 1
