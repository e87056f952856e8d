"""Worker processes that run user code, one a core with one OpenMP thread each. No Ray.

    Pool ── control socket ──► server (pool_server.py) ── fork ──► worker, worker, …
      └──── one socket pair a worker: a message down, an answer up ───┘

What all workers read (a model, a round's record) goes down once, through a mapped file that the
caller names in `begin`; messages carry what differs. A worker gets its next message while it is at
one, so that it never waits for this process.

A worker that dies in user code (SIGKILL, out of memory, a crash) is named with the message that it
was at; another takes its place and the rest goes on. The pool's end, or its death, ends all.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .one_thread import one_thread
from .pool_server import serve
from .pool_wire import Channel
from .pool_worker import AT, HEAD
from ...host.spawned import THREADS, module_command
from ...protocol import messages_pb2 as pb
from ...protocol.errors import Malformed, Refused, SettingsError, StateError
from ...server.core.segments import Segment, Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .pool_wire import Blob, Packet
    from .pool_worker import Callee

AHEAD = 1 << 15
"""Most bytes of a message that a worker is sent while it is at another: it fits in the socket's
buffer, so nobody waits for room while the other end does."""
GRACE_S = 2.0
"""How long the server may take to say how a worker ended, or to leave."""
TRIES = 3
"""So many workers that die before their first message, one after the other, end the pool."""


class Item(NamedTuple):
    """One message to a worker."""

    fields: Mapping[str, Any]
    blobs: Sequence[Blob] = ()
    home: int | None = None
    """The worker that has what it needs; another takes it when that one is behind."""

    @property
    def light(self) -> bool:
        """Whether it may be sent ahead."""
        return sum(len(blob) for blob in self.blobs) <= AHEAD


class Answered(NamedTuple):
    """What a worker said."""

    place: int
    """Of the item."""
    worker: int
    fields: dict[str, Any]
    """With `cause` alone where user code raised."""
    blobs: list[memoryview]


class Died(NamedTuple):
    """A worker that ended; it is started anew when the caller goes on."""

    place: int | None
    """Of the item that it was at; None where it was at none."""
    worker: int
    cause: str


class Forked(NamedTuple):
    """A callee that only this process can make: its workers are forks of it."""

    make: Callable[[], Callee]


class Named(NamedTuple):
    """A callee that a fresh interpreter can make."""

    fields: Mapping[str, Any]
    """`kind` of `pool_server.CALLEES`, and what its `make` wants."""


class Waiting:
    """Places of items that nobody has: those of each worker, and those for anybody."""

    def __init__(self, homes: Sequence[int | None], workers: int) -> None:
        """Queue the items in order."""
        self._own: list[deque[int]] = [deque() for _ in range(workers)]
        self._any: deque[int] = deque()
        for place, home in enumerate(homes):
            (self._any if home is None else self._own[home % workers]).append(place)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._any) + sum(map(len, self._own))

    def take(self, worker: int) -> int:
        """Return a worker's next: its own, anybody's, or the last of whoever has most."""
        if self._own[worker]:
            return self._own[worker].popleft()
        if self._any:
            return self._any.popleft()
        return max(self._own, key=len).pop()

    def give_back(self, worker: int, places: Sequence[int]) -> None:
        """Take back what was taken, to the front."""
        self._own[worker].extendleft(reversed(places))


@dataclass(eq=False)
class _Worker:
    """One process; `sent` are the places of its items, oldest first."""

    number: int
    pid: int
    channel: Channel
    sent: deque[int] = field(default_factory=deque)
    idle_deaths: int = 0


class Pool:
    """Workers of one callee."""

    def __init__(self, source: Forked | Named, workers: int) -> None:
        """Start the server and the workers.

        Raises:
            SettingsError: No worker.
            Refused: The app raised while it was imported.
            StateError: The processes cannot be started.
        """
        if type(workers) is not int or workers < 1:
            raise SettingsError("workers", "1 or more", workers)
        self.shelf = Shelf(Path(tempfile.gettempdir()), lambda _kind, _line: None)
        self._heads = self.shelf.create(workers * HEAD * 8, "heads")
        self.heads = self._heads.array("int64").reshape(workers, HEAD)
        """What each worker writes of itself: see `pool_worker`."""
        self._begun: tuple[Mapping[str, Any], Sequence[Blob]] | None = None
        self._serial = 0
        self._ends: dict[int, str] = {}
        self._child: subprocess.Popen[bytes] | int | None
        self._child, self._control = _server(source)
        self._workers: list[_Worker] = []
        try:
            self._hello()
            self._workers = [self._start(number) for number in range(workers)]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of workers."""
        return len(self._workers)

    def __enter__(self) -> Self:
        """Return this pool; leaving its block ends it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every process."""
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in self._workers]

    def segment(self, nbytes: int, kind: str) -> Segment:
        """Return memory that workers can map by its path; the caller unlinks it."""
        return self.shelf.create(max(1, nbytes), kind)

    def begin(self, fields: Mapping[str, Any], blobs: Sequence[Blob] = ()) -> None:
        """Tell every worker, and those that take another's place, what the next items share."""
        self._drop_busy()
        self._begun = fields, blobs
        for worker in self._workers:
            with suppress(OSError):  # it has died: `run` starts another
                worker.channel.send(fields, blobs)

    def run(
        self, items: Sequence[Item], deadline: float | None = None
    ) -> Iterator[Answered | Died]:
        """Give every item to a worker and yield what comes of it, in the order in which it comes.

        Args:
            items: What to do, handed out in this order; each worker has its own first.
            deadline: `time.monotonic()` after which workers that are busy are ended and the items
                without an answer stay without.

        Raises:
            StateError: The server died, or workers die without being at anything.
        """
        self._drop_busy()
        waiting = Waiting([item.home for item in items], len(self))
        base, self._serial = self._serial + 1, self._serial + len(items)
        while waiting or any(worker.sent for worker in self._workers):
            self._feed(items, waiting, base)
            for worker in self._ready(deadline):
                yield from self._heard(worker, waiting, base)
            if deadline is not None and time.monotonic() >= deadline:
                break
        self._drop_busy()

    def close(self) -> None:
        """End every process, at once; a second time nothing."""
        child, self._child = self._child, None
        if child is None:
            return
        for worker in self._workers:
            worker.channel.close()
        self._control.close()
        _reap(child)
        self.heads = self.heads[:0]
        self._heads.unlink()
        self.shelf.close()

    def _hello(self) -> None:
        fields = self._from_server().fields
        if "refused" in fields:
            raise Refused(pb.REASON_TASK_FAILED, str(fields["refused"]))

    def _from_server(self) -> Packet:
        try:
            return self._control.receive()
        except (EOFError, Malformed):
            raise StateError(
                "the workers' server", "a running process", "it has ended",
                "its last words are on stderr",
            ) from None  # fmt: skip

    def _start(self, number: int) -> _Worker:
        """Start a worker and tell it what all have been told."""
        own, other = socket.socketpair()
        self.heads[number, AT] = 0
        said = {"worker": number, "heads": str(self._heads.path), "nbytes": len(self._heads.view)}
        try:
            self._control.send(said)
            self._control.send_end(other)
        except OSError:
            self._from_server()
        other.close()
        while "started" not in (fields := self._from_server().fields):
            self._ends[fields["ended"]] = str(fields["how"])
        worker = _Worker(number, int(fields["started"]), Channel(own, f"worker {number}"))
        self._made(worker)
        if self._begun is not None:
            with suppress(OSError):
                worker.channel.send(*self._begun)
        return worker

    def _made(self, worker: _Worker) -> None:
        """Wait until a worker has its callee.

        Raises:
            Refused: User code raised.
            StateError: The worker died of it.
        """
        try:
            said = worker.channel.receive().fields
        except EOFError:
            how = self._how(worker.pid)
            raise StateError(f"worker {worker.number}", "a running process", how) from None
        if "refused" in said:
            worker.channel.close()
            raise Refused(pb.REASON_TASK_FAILED, str(said["refused"]))

    def _feed(self, items: Sequence[Item], waiting: Waiting, base: int) -> None:
        """Let every worker have an item, and a light one ahead unless they are the last ones."""
        for depth, least in ((1, 1), (2, len(self) + 1)):
            for worker in self._workers:
                if len(waiting) < least or len(worker.sent) >= depth:
                    continue
                place = waiting.take(worker.number)
                item = items[place]
                if worker.sent and not item.light:
                    waiting.give_back(worker.number, [place])
                    continue
                worker.sent.append(place)
                with suppress(OSError):  # it has died: that is heard next
                    worker.channel.send({**item.fields, "serial": base + place}, item.blobs)

    def _ready(self, deadline: float | None) -> list[_Worker]:
        """Wait until a worker says something or dies."""
        poller = select.poll()
        known = {worker.channel.fileno(): worker for worker in self._workers}
        for handle in known:
            poller.register(handle, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return [known[handle] for handle, _ in poller.poll(left)]

    def _heard(self, worker: _Worker, waiting: Waiting, base: int) -> Iterator[Answered | Died]:
        """Take a worker's answer, or its death."""
        try:
            fields, blobs = worker.channel.receive()
        except (EOFError, Malformed) as error:
            yield from self._death(worker, waiting, base, error)
            return
        place = worker.sent.popleft() if worker.sent else -1
        if fields.pop("serial", None) != base + place:
            raise StateError(f"worker {worker.number}", "answers in order", "another")
        worker.idle_deaths = 0
        yield Answered(place, worker.number, fields, blobs)

    def _death(
        self, worker: _Worker, waiting: Waiting, base: int, error: Exception
    ) -> Iterator[Died]:
        """Say at what a worker was when it died, and start another for the rest."""
        worker.channel.close()
        how = str(error) if isinstance(error, Malformed) else self._how(worker.pid)
        at = int(self.heads[worker.number, AT]) - base
        place = worker.sent.popleft() if worker.sent and worker.sent[0] == at else None
        waiting.give_back(worker.number, worker.sent)
        worker.sent.clear()
        idle = 0 if place is not None else worker.idle_deaths + 1
        if idle >= TRIES:
            raise StateError(f"worker {worker.number}", "a running process", how)
        self._workers[worker.number] = anew = self._start(worker.number)
        anew.idle_deaths = idle
        yield Died(place, worker.number, f"worker {worker.number} (pid {worker.pid}) {how}")

    def _how(self, pid: int) -> str:
        """Return how a worker ended; the server reaps it."""
        end = time.monotonic() + GRACE_S
        while pid not in self._ends:
            poller = select.poll()
            poller.register(self._control, select.POLLIN)
            if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
                return "has closed its socket"
            fields = self._from_server().fields
            self._ends[fields["ended"]] = str(fields["how"])
        return self._ends.pop(pid)

    def _drop_busy(self) -> None:
        """Replace workers whose answers nobody waits for: a deadline, a run that was left."""
        for worker in self._workers:
            if worker.sent:
                worker.channel.close()
                self._how(worker.pid)
                self._workers[worker.number] = self._start(worker.number)


def _server(source: Forked | Named) -> tuple[subprocess.Popen[bytes] | int, Channel]:
    """Start the server of a source and return it with the control socket."""
    own, other = socket.socketpair()
    channel = Channel(own, "the workers' server")
    if isinstance(source, Forked):
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            move = "give the app's directory, from which fresh processes import it"
            raise StateError("CUDA", "not in use before workers are forked", "in use", move)
        sys.stdout.flush()
        sys.stderr.flush()
        with one_thread():
            pid = os.fork()
            if not pid:
                own.close()
                serve(other, source.make)
        other.close()
        return pid, channel
    text = json.dumps(dict(source.fields))
    command = module_command(sys.executable, __package__, "pool_server", text, str(other.fileno()))
    child = subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.DEVNULL,
        env=os.environ | dict.fromkeys(THREADS, "1"),
        pass_fds=(other.fileno(),),
    )
    other.close()
    return child, channel


def _reap(child: subprocess.Popen[bytes] | int) -> None:
    """Wait for the server, which leaves when its socket is closed."""
    if isinstance(child, int):
        os.waitpid(child, 0)
        return
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:  # it is in the app's import
        child.kill()
        child.wait()
