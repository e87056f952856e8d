"""How the gateway ends a stream: what was said before is written first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.server import grpc_gateway
from umbel.tests import door


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_goodbye_that_is_said_during_any_write_goes_out(write: int) -> None:
    """Else the device would find its stream ended without a word, and dial again for the word."""
    sessions, wake = door.Gateway(), asyncio.Event()
    stream = sessions.enter()
    for message in (b"one", b"two"):
        sessions.sessions.post(door.RUN, door.node(), message)

    class Context:
        written: ClassVar[list[bytes]] = []

        async def write(self, data: bytes) -> None:
            self.written.append(data)
            if len(self.written) == write:
                sessions.sessions.goodbye(door.RUN, 0.0)
                wake.set()

    class Core:
        def wall(self) -> datetime:
            """Return the time, which nobody asks for here."""
            return datetime.now(UTC)

        def sent(self, *_: object) -> None:
            """Count nothing."""

    gateway: Any = grpc_gateway.Gateway(Core())  # type: ignore[arg-type]
    asyncio.run(gateway._write(stream, Context(), wake))
    said = [pb.Down.FromString(data).message for data in Context.written]
    bodies = [
        pb.ToClient.FromString(m).WhichOneof("body") for m in said if m not in {b"one", b"two"}
    ]
    assert bodies.count("goodbye") == 1
