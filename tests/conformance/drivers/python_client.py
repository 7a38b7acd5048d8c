"""Drive `maxam.client` for `maxam-conformance`: `python_client.py asyncio` or `trio`. It is an example of a driver."""

import base64
import json
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from maxam.client import ClientError, GatewayError, OutcomeUnknownError, ResumingClient, State, resuming

Command = dict[str, Any]


def report(saw: str, **rest: object) -> None:
    """Print a report."""
    sys.stdout.write(json.dumps({"saw": saw, **rest}) + "\n")
    sys.stdout.flush()


class Driver:
    """One client, its subscriptions and its SENDs."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.tasks = tasks
        self.client: ResumingClient | None = None
        self.connected = anyio.Event()
        self.done: dict[str, MemoryObjectSendStream[None]] = {}
        self.tickets, self.ticket = anyio.create_memory_object_stream[str](0)

    async def obey(self, command: Command) -> None:
        """Do what the kit orders."""
        match command["do"]:
            case "connect":
                self.tasks.start_soon(self.connect, command)
            case "subscribe":
                self.tasks.start_soon(self.follow if command.get("as") == "map" else self.subscribe, command)
            case "send":
                self.tasks.start_soon(self.send, command)
            case "done":
                await self.done[command["subscription"]].send(None)
            case "ticket":
                await self.tickets.send(command["ticket"])
            case other:
                raise ValueError(other)

    async def connect(self, command: Command) -> None:
        """Keep a connection."""
        address = urlsplit(command["url"])
        own: dict[str, Any] = {"ca": command["ca"], "client_id": command["client_id"], "host": command["host"]}
        if address.scheme == "wss":
            server: tuple[Any, ...] = (command["url"],)
            own["ticket"] = self.new_ticket
        else:
            server = (address.hostname, address.port)
            own |= {"certificate": command["certificate"], "key": command["key"]}
        beat_ms = command["heart_beat_ms"]
        try:
            async with resuming(*server, **own, heart_beat_ms=(beat_ms, beat_ms), on_state=self.show) as self.client:
                self.connected.set()
                await anyio.sleep_forever()
        except ClientError as error:
            report("closed", code=error.code)

    async def new_ticket(self) -> str:
        """Ask the kit for a ticket."""
        report("ticket-wanted")
        return await self.ticket.receive()

    def show(self, state: State) -> None:
        """Report the state of the client."""
        if state.name in ("connected", "closed"):
            report(state.name, code=state.code)

    async def subscribe(self, command: Command) -> None:
        """Deliver the messages of a subscription to the application."""
        name = command["subscription"]
        done, wait = anyio.create_memory_object_stream[None](1)
        self.done[name] = done
        await self.connected.wait()
        assert self.client is not None
        held = {topic: base64.b64decode(body) for topic, body in command.get("held", {}).items()}
        markers = {"markers": True, "since": command.get("since"), "values": held} if command.get("markers") else {}
        options: dict[str, Any] = {"ack": command.get("ack", "client"), "eager": True, **markers}
        try:
            async with (
                self.client.subscribe(command["destination"], id=name, **options) as messages,
                anyio.create_task_group() as tasks,
            ):
                if markers:
                    tasks.start_soon(self.positions, name, messages)
                async for message in messages:
                    headers = dict(message.headers)
                    if message.deleted:
                        report("deleted", subscription=name, destination=message.destination)
                    elif message.kind == "value":
                        body = base64.b64encode(message.body).decode()
                        report("value", subscription=name, destination=message.destination, body=body, headers=headers)
                    if command.get("hold"):
                        await wait.receive()
        except* GatewayError as errors:
            error = errors.exceptions[0]
            report("refused", subscription=name, code=str(getattr(error, "message", error)))

    async def positions(self, name: str, messages: Any) -> None:
        """Store each position."""
        position = None
        while True:
            position = await messages.position_after(position)
            report("position", subscription=name, position=position)

    async def follow(self, command: Command) -> None:
        """Deliver the changes of a live map to the application."""
        name = command["subscription"]
        await self.connected.wait()
        assert self.client is not None
        async with self.client.values(command["destination"], type=bytes, sync=False) as values:
            self.tasks.start_soon(self.sync, name, values)
            async for change in values:
                if change.deleted:
                    report("deleted", subscription=name, destination=change.destination)
                else:
                    body = base64.b64encode(change.value or b"").decode()
                    report("value", subscription=name, destination=change.destination, body=body, headers={})

    async def sync(self, name: str, values: Any) -> None:
        """Report that the map is complete."""
        await values.sync()
        report("synced", subscription=name)

    async def send(self, command: Command) -> None:
        """Send a value."""
        await self.connected.wait()
        assert self.client is not None
        marks: dict[str, Any] = {"retry": command.get("retry", False)}
        if "source" in command:
            marks["source"] = (command["source"], command["source_revision"])
        body = base64.b64decode(command["body"])
        try:
            receipt = await self.client.send(command["destination"], body, command.get("headers"), **marks)
        except OutcomeUnknownError:
            report("unknown", id=command["id"])
        else:
            if receipt.accepted:
                report("accepted", id=command["id"])
            else:
                temporary = receipt.disposition == "rejected-unavailable"
                report("rejected", id=command["id"], result=receipt.result, temporary=temporary)


async def commands() -> AsyncIterator[Command]:
    """Yield the commands of the kit."""
    async for line in anyio.wrap_file(sys.stdin.buffer):
        yield json.loads(line)


async def main() -> None:
    """Obey until the kit closes standard input."""
    async with anyio.create_task_group() as tasks:
        driver = Driver(tasks)
        report("ready", claims=["publisher", "subscriber", "resumer", "map"])
        async for command in commands():
            await driver.obey(command)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1])
