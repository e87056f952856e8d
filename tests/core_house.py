"""A core with both its doors, and a ServerApp written against core_wire's page alone."""

from __future__ import annotations

import asyncio
import json
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from umbel.server.core_socket import CoreSocket
from umbel.tests.wire_federation import GATEWAY, RUN, Device, Federation, Machine, bare

if TYPE_CHECKING:
    from pathlib import Path

SIZES = struct.Struct("<IQ")


class App:
    """A ServerApp at the socket, written against the page and not with core_wire.py."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reader: Any = None
        self.writer: Any = None

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_unix_connection(str(self._path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def do(self, op: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a command."""
        header = json.dumps({"op": op, **fields}).encode()
        self.writer.write(SIZES.pack(len(header), len(payload)) + header + payload)
        await self.writer.drain()

    async def put(self, model: bytes, digest: bytes) -> None:
        """Put a model of bytes in force."""
        about = bare(model).to_json().encode()
        await self.do("put", about + model, digest=digest.hex(), manifest=len(about))

    async def event(self) -> tuple[dict[str, Any], bytes]:
        """Return the next event."""
        async with asyncio.timeout(60):
            header, payload = SIZES.unpack(await self.reader.readexactly(12))
            fields = json.loads(await self.reader.readexactly(header))
            return fields, await self.reader.readexactly(payload)

    async def wait(self, op: str) -> tuple[dict[str, Any], bytes]:
        """Return the next event of this name, passing over others."""
        while True:
            fields, payload = await self.event()
            if fields["op"] == op:
                return fields, payload

    async def open(self, run: str = RUN) -> dict[str, Any]:
        """Open the run."""
        await self.do("open", run=run, scheme="A")
        return (await self.wait("opened"))[0]

    async def ticket(self, machine: Machine, seconds: float = 60.0) -> bytes:
        """Return a ticket for a machine."""
        fields = {"id": machine.node, "tls_fingerprint": machine.fingerprint.hex()}
        await self.do("tickets", nodes=[fields], seconds=seconds)
        return bytes.fromhex((await self.wait("tickets"))[0]["tickets"][machine.node])

    async def ended(self) -> bool:
        """Say whether the core closed the connection."""
        async with asyncio.timeout(60):
            return await self.reader.read() is not None


class House:
    """A core with both its doors, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.there = Federation()
        self.directory = directory
        self.path = directory / "core.sock"

    async def __aenter__(self) -> Self:
        ca = sha256(self.there.authority.der).hexdigest()
        await self.there.__aenter__()
        self.there.core.end_run(RUN)  # the sockets open it
        door = CoreSocket(self.there.core, self.directory, self.there.port, [GATEWAY], ca)
        self._task = asyncio.create_task(door.serve(door.listen()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.there.__aexit__()

    def app(self) -> App:
        """Return another ServerApp."""
        return App(self.path)

    async def joined(self, app: App, number: int = 1) -> Device:
        """Let a machine join with a ticket of the core's own."""
        machine = Machine(self.there.authority, number)
        device = Device(self.there, machine)
        down = await device.hello(ticket=await app.ticket(machine))
        assert down.HasField("welcome")
        fields, payload = await app.wait("joined")
        assert (fields["node"], payload) == (machine.node, machine.der)
        return device
