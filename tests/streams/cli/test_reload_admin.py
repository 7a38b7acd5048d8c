"""`maxam-admin reload`, its API, `/readyz` and `/metrics`, asked of a living gateway by real requests."""

import json
import re
from pathlib import Path

import pytest
import trio

from maxam.gateway.loaded_config import ITEMS
from tests.support.living_gateway import EVERYTHING, Living, Site, cli, living, run


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with one client."""
    return Site(tmp_path, "anna")


async def get(gateway: Living, path: str, accept: str = "*/*") -> bytes:
    """Get a path as the operator; return the body."""
    transport = await trio.open_tcp_stream("127.0.0.1", gateway.admin_port)
    async with trio.SSLStream(transport, gateway.site.context("operator"), https_compatible=True) as stream:
        request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        await stream.send_all(request.encode())
        response = b"".join([part async for part in stream])
    assert response.startswith(b"HTTP/1.1 200"), response
    return response.partition(b"\r\n\r\n")[2]


def test_each_outcome_is_printed(site: Site) -> None:
    """A reload prints one line an item, exits with 1 when one was refused, and needs the right to write. Status shows what is wrong."""

    async def test() -> None:
        async with living(site) as gateway:
            result = await cli(gateway, "reload")
            assert result.exit_code == 0
            for item, line in zip(ITEMS, result.output.splitlines(), strict=True):
                assert re.fullmatch(rf"{item} +unchanged: in force since [0-9T:.-]+Z", line)
            site.policy_file.write_text("[nonsense]\n")
            (site.schemas / "registry.toml").write_text("# other\n" + (site.schemas / "registry.toml").read_text())
            result = await cli(gateway, "reload")
            lines = [line for line in result.output.splitlines() if "unchanged" not in line]
            assert result.exit_code == 1
            assert re.fullmatch(r"policy +refused: .*policy\.toml:1: nonsense: expected one of .*", lines[0])
            assert re.fullmatch(r"schemas +reloaded", lines[1])
            rows = [json.loads(line) for line in (await cli(gateway, "reload", "--json")).output.splitlines()]
            assert [(row["item"], row["outcome"]) for row in rows][:2] == [
                ("policy", "refused"),
                ("schemas", "unchanged"),
            ]
            assert rows[0]["files"] == [str(site.policy_file)]
            status = await cli(gateway, "reload", "--status", "--json")
            assert status.exit_code == 0
            row = json.loads(status.output.splitlines()[0])
            assert (row["reloaded"], row["refused"], "nonsense" in row["failure"]) == (0, 2, True)
            status = await cli(gateway, "reload", "--status")
            assert re.search(r"^policy .* 2 +unusable$", status.output, re.MULTILINE)
            assert re.search(r"^policy  what is on disk cannot be used: .*: nonsense: .*$", status.output, re.MULTILINE)
            ready = json.loads(await get(gateway, "/readyz"))
            assert ready["status"] == "ready"
            assert [reason.partition(":")[0] for reason in ready["degraded"]] == ["policy"]
            assert (await cli(gateway, "reload", who="anna")).exit_code == 4
            assert (await cli(gateway, "reload", "--status", "--orphans")).exit_code == 2

    run(test)


def test_orphans_are_allowed_once_and_listed(site: Site) -> None:
    """`--allow-orphans` takes the rule from topics with values, once; `--orphans` lists them, and nothing else."""

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            for number in range(3):
                assert (await anna.send(f"X/B.{number}", b"v"))[0] == b"accepted"
            assert (await anna.send("X/A", b"v"))[0] == b"accepted"
            (site.schemas / "registry.toml").write_text('[[rule]]\ndestination = "X/A"\nencoding = "none"\n')
            refused = await cli(gateway, "reload")
            assert refused.exit_code == 1
            assert "3 topics with a value (such as X/B.0, X/B.1, X/B.2)" in refused.output
            assert (await cli(gateway, "reload", "--orphans", "--json")).output == ""
            assert (await cli(gateway, "reload", "--allow-orphans")).exit_code == 0
            rows = [
                json.loads(line) for line in (await cli(gateway, "reload", "--orphans", "--json")).output.splitlines()
            ]
            assert [row["destination"] for row in rows] == ["X/B.0", "X/B.1", "X/B.2"]
            assert "X/B.1" in (await cli(gateway, "reload", "--orphans")).output
            site.policy({"anna": EVERYTHING})
            assert (await cli(gateway, "reload")).exit_code == 0

    run(test)
