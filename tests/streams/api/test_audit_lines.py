"""The audit log over the API: by pages, by filters, and followed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

from maxam.gateway.audit import CONNECTED, SEND_REJECTED
from tests.support.gateway_process import admin_environment
from tests.support.living_gateway import Living, Site, cli, living, run, until


async def shown(gateway: Living, *options: str) -> list[dict[str, object]]:
    """Return the lines that `audit show` prints."""
    result = await cli(gateway, "audit", "show", "--json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_audit_log_is_read_over_the_api(tmp_path: Path) -> None:
    """A line shows as in its file. Filters and limits apply, and a certificate without the right read sees nothing."""
    site = Site(tmp_path, "anna", "bert")
    site.policy({"anna": {"send": ["X/**"]}, "bert": {"send": ["X/**"]}})

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna") as anna, gateway.client("bert"):
                assert (await anna.send("X2/a", b"v"))[0] != b"accepted"
            audit = gateway.gateway.audit
            await until(lambda: audit.written >= 6)  # a start, two connections with their ends, a rejected SEND
            lines = await shown(gateway)
            [file] = (tmp_path / "journal-audit").glob("audit-*.jsonl")
            assert lines == [json.loads(line) for line in file.read_text().splitlines()[: len(lines)]]
            connected = await shown(gateway, "--event", CONNECTED)
            assert {line["principal"] for line in connected} == {"anna", "bert"}
            assert all(line["certificate_until"] for line in connected)
            [rejected] = await shown(gateway, "--principal", "anna", "--event", SEND_REJECTED, "--since", "1h")
            assert rejected["destination"] == "X2/a"
            assert len(await shown(gateway, "-n", "2")) == 2
            assert (await cli(gateway, "audit", "show", who="anna")).exit_code == 4
            assert (await cli(gateway, "audit", "show", str(tmp_path / "journal-audit"), "--follow")).exit_code == 2
            for at_gateway in ([], [str(tmp_path / "journal-audit")]):
                assert len(await shown(gateway, *at_gateway, "--find", "X2/A")) == 1
                assert not await shown(gateway, *at_gateway, "--find", str(rejected["previous"]))
            table = await cli(gateway, "audit", "show")
            assert "send-rejected" in table.stdout

    run(test)


FOLLOW = ("audit", "show", "--follow", "--json", "--event", CONNECTED)


async def next_principal(stream: trio.abc.ReceiveStream) -> str:
    """Return the principal of the next line, which arrives alone."""
    line = b""
    while not line.endswith(b"\n"):
        piece = await stream.receive_some()
        assert piece, "the command has ended"
        line += piece
    return str(json.loads(line)["principal"])


def test_the_audit_log_is_followed(tmp_path: Path) -> None:
    """`audit show --follow` prints the lines there are, then each further one that is wanted, until Ctrl-C."""
    site = Site(tmp_path, "anna", "bert", "cleo")
    site.policy({name: {"send": ["X/**"]} for name in ("anna", "bert", "cleo")})

    async def test() -> None:
        async with living(site) as gateway:
            async with gateway.client("anna"):
                await until(lambda: gateway.gateway.audit.written >= 2)
            variables = admin_environment(gateway.admin_port, gateway.site.certificates)
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", "from maxam.cli.main import main; main()", *FOLLOW],
                env=os.environ | {name: value or "" for name, value in variables.items()},
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            async with process.stdout as stream:
                assert await next_principal(stream) == "anna"
                for name in ("bert", "cleo"):
                    async with gateway.client(name):
                        assert await next_principal(stream) == name
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 0

    run(test)
