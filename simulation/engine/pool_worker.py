"""One worker of a pool: takes a message, lets user code answer it, and takes the next.

What runs user code is a `Callee` (pool_task.py for tasks, flower_callee.py for Flower apps). Before
it calls, a worker writes the serial number of the message into its
head, which the pool has mapped too: so it is known what a worker was at when it died.

A thread waits for the pool's end of the socket to close. Then the pool is gone, however it ended,
and this process leaves at once with what it started, in the middle of training too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .isolation import cause
from .pool_wire import Channel
from ...clients.child import boundary
from ...protocol.errors import Refused

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .pool_wire import Blob

    Answer = tuple[Mapping[str, Any], Sequence[Blob]]

HEAD = 8
"""int64 values of a worker's head: a line of the processor's cache."""
AT = 0
"""Place of the serial number of the message that a worker is at; 0 is none."""


class Me(NamedTuple):
    """Who a worker is."""

    number: int
    head: NDArray[np.int64]
    """Its own, shape (HEAD,)."""


class Callee(Protocol):
    """What a worker calls. Made once, before the workers are forked."""

    def begin(self, fields: Mapping[str, Any], blobs: Sequence[memoryview], me: Me) -> None:
        """Take what all workers are told before the messages of one work."""

    def call(self, fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Answer:
        """Answer one message; what user code raises is a `Refused` of `boundary`."""


def work(end: socket.socket, make: Callable[[], Callee], me: Me) -> None:
    """Make the callee, say so or why not, and serve until the pool is gone."""
    _leave_with(end)
    channel = Channel(end, "pool")
    try:
        with boundary():
            callee = make()
    except Refused as error:
        channel.send({"refused": cause(error)})
        return
    channel.send({"made": me.number})
    while True:
        fields, blobs = channel.receive()
        serial = int(fields.pop("serial", 0))
        if not serial:
            callee.begin(fields, blobs, me)
            continue
        me.head[AT] = serial
        answer: Mapping[str, Any]
        found: Sequence[Blob]
        try:
            with boundary():
                answer, found = callee.call(fields, blobs)
        except Refused as error:
            answer, found = {"cause": cause(error)}, ()
        sys.stdout.flush()
        channel.send({**answer, "serial": serial}, found)
        me.head[AT] = 0


def _leave_with(end: socket.socket) -> None:
    """Let a thread end this process, and its group, when the other end is closed."""

    def watch() -> None:
        poller = select.poll()
        poller.register(end, 0)  # a hang-up is told without being asked for
        poller.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
