"""A rank: one process that owns a shard of every vector, for as long as its supervisor lives.

    python -m umbel.server.core.rank FD RANK RANKS

FD is its end of a socket pair. It says `ready`, and then does one command after another, each
answered with one frame (rank_wire.py). A command holds all that is needed for it, so that a rank
started anew takes it up where another was killed. No code of a user runs here, and no grpc. One
thread computes; another reads the socket, and when its other end closes, the supervisor's death
included, the process ends at once, in the middle of whatever it does.

What a command does: torch_shard.py.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .rank_wire import RECEIVE, Frames, opening, send
from .segments import Segment
from ...protocol.errors import StateError, UmbelError, VoidRound

if TYPE_CHECKING:
    from .rank_wire import Frame

LOST = (UmbelError, OSError, MemoryError, ValueError, RuntimeError, LookupError)
"""What a command may raise: it is answered, and the rank goes on."""


class Desk:
    """What a rank keeps from one command to the next: nothing that it could not make again."""

    def __init__(self, rank: int, ranks: int) -> None:
        """Be rank `rank` of `ranks`."""
        self.rank, self.ranks = rank, ranks
        self._mapped: dict[str, Segment] = {}

    def segment(self, path: str, nbytes: int) -> Segment:
        """Return a segment of the supervisor, mapped once."""
        if path not in self._mapped:
            self._mapped[path] = Segment.attach(Path(path), nbytes, write=True)
        return self._mapped[path]

    def tidy(self) -> None:
        """Let go of segments that their owner has removed."""
        for path in [path for path in self._mapped if not os.path.exists(path)]:
            self._mapped.pop(path).close()


def serve(sock: socket.socket, rank: int, ranks: int) -> None:
    """Do what the supervisor says until it is gone."""
    desk = Desk(rank, ranks)
    try:
        work = importlib.import_module(".torch_shard", __package__)
    except ImportError as error:
        send(sock, opening({"op": "failed", "why": str(error)}, 0))
        return
    commands: SimpleQueue[Frame] = SimpleQueue()
    threading.Thread(target=_listen, args=(sock, commands), daemon=True).start()
    send(sock, opening({"op": "ready"}, 0))
    while True:
        head, payload = commands.get()
        try:
            desk.tidy()
            answer, body = work.COMMANDS[head["op"]](desk, head, payload)
            send(sock, opening({"op": "done", **answer}, len(body)), body)
        except LOST as error:
            kind = "void" if isinstance(error, VoidRound) else "lost"
            why = str(error) if isinstance(error, UmbelError) else f"{type(error).__name__} {error}"
            send(sock, opening({"op": kind, "why": why[:1000]}, 0))


def _listen(sock: socket.socket, commands: SimpleQueue[Frame]) -> None:
    """Read commands; without a supervisor end the process, whatever it is doing."""
    frames = Frames()
    with suppress(OSError, StateError):
        while data := sock.recv(RECEIVE):
            for frame in frames.feed(data):
                commands.put(frame)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Be the rank that the arguments name."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the keys of masks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
    handle, rank, ranks = (int(argument) for argument in arguments)
    with suppress(OSError):  # the supervisor is gone
        serve(socket.socket(fileno=handle), rank, ranks)


if __name__ == "__main__":
    main(sys.argv[1:])
