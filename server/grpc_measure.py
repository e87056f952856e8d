"""The gateway's fourth method: bytes to and fro, for the speed of a device's line and its clock.

    Measure    stream of pieces -> 16 bytes (bytes received, seconds since 1970; little-endian),
               then as many bytes as the call's metadata `umbel-bytes` asks for

Asked by `umbel client doctor`; no run and no session needs it. It takes `MOST` bytes each way, in
`MEASURE_S` seconds, `AT_ONCE` calls at a time: a member who calls it all day takes no more of the
line than one who uploads.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from .endings import Ending, Turned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    import grpc.aio

    from ..protocol.verification import Peer

MOST = 4 << 20
"""Bytes each way."""
AT_ONCE = 4
MEASURE_S = 30.0
"""Seconds for a whole call, its wait for a place among `AT_ONCE` included."""
PIECE = 1 << 16
HEAD = struct.Struct("<QQ")


class Measure:
    """The calls of all devices."""

    def __init__(self, wall: Callable[[], datetime]) -> None:
        """Take the gateway's clock."""
        self._wall, self._places = wall, asyncio.Semaphore(AT_ONCE)

    async def serve(
        self,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[Any, Any],
        peer: Peer,
    ) -> None:
        """Answer one call; what takes too long is left unanswered.

        Raises:
            Turned: It sends too much, or asks for what is no number.
        """
        wanted = _wanted(context, peer)
        try:
            async with asyncio.timeout(MEASURE_S), self._places:
                received = 0
                async for piece in requests:
                    received += len(piece)
                    if received > MOST:
                        what = f"measures with more than {MOST} bytes"
                        raise Turned(Ending.MALFORMED, peer.id.hex(), what)
                await context.write(HEAD.pack(received, int(self._wall().timestamp())))
                for start in range(0, wanted, PIECE):
                    await context.write(bytes(min(PIECE, wanted - start)))
        except TimeoutError:
            return


def _wanted(context: grpc.aio.ServicerContext[Any, Any], peer: Peer) -> int:
    text = str(dict(context.invocation_metadata() or ()).get("umbel-bytes", "0"))
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and int(text) <= MOST
    ):
        raise Turned(Ending.MALFORMED, peer.id.hex(), f"asks for other than 0 to {MOST} bytes")
    return int(text)
