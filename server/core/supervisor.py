"""The supervisor of this host's ranks: starts them, gives them commands, starts a dead one anew.

A *job* is one command for every rank, done when each has answered. Every rank has its jobs in one
order, and one of them in hand. When a rank dies, whatever killed it, it alone is started anew and
gets the job that it had in hand once more; the others work on and notice nothing. Ranks are
started by exec, never by fork: this process has threads, and grpc.

    lives       a rank that dies is started anew at once, the second time in a row after half a
                second, then 1, 2, 4 ... at most 30; an answer, or a life of 30 s, ends the row
    stands      a rank with a job in hand that uses no processor for `STILL` seconds, because it was
                stopped or waits for ever, is killed: one that works, however slowly, is not
    gives up    at the fifth death in a row every job fails with one line that says why; the
                ranks are tried on, and the next jobs go to them

One thread of this process does all of that. What is in memory outlives a rank, for it is this
process's (segments.py). Not here: what a job means.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from .rank_wire import RECEIVE, Frames, opening, send
from ...protocol.errors import SettingsError, StateError, UmbelError, VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rank_wire import Frame

MOST = 64
"""Ranks of a host."""
DEATHS = 5
"""Deaths in a row after which jobs fail."""
PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a rank is started for the third time in a row, and the most."""
STILL = 30.0
"""Seconds."""
TO_START = 120.0
"""Seconds in which all ranks must have come up: they import torch."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Job:
    """One command for every rank."""

    def __init__(
        self,
        ranks: int,
        head: dict[str, Any],
        payload: bytes | bytearray = b"",
        done: Callable[[Job], None] = lambda _job: None,
        *,
        once: bool = False,
    ) -> None:
        """Say what is to be done.

        Args:
            ranks: How many will do it.
            head: The command.
            payload: Raw bytes with it; must stay as they are until the job is done.
            done: Called in the supervisor's thread when every rank has answered.
            once: It cannot be done twice: a rank that dies in it does not get it again, its
                answer is `died`.

        Raises:
            StateError: It is too large to be said.
        """
        self.op, self.payload, self.once = str(head["op"]), payload, once
        self.opening = opening(head, len(payload))
        self.answers: list[Frame | None] = [None] * ranks
        self.error: UmbelError | None = None
        self._done, self._event = done, threading.Event()

    def wait(self) -> list[Frame]:
        """Wait for every rank's answer.

        Raises:
            VoidRound: A rank says so; of several, the first by its number.
            StateError: A rank could not do it, or could not be kept alive.
        """
        self._event.wait()
        if self.error is not None:
            raise self.error
        return [answer for answer in self.answers if answer is not None]

    def answered(self, rank: int, frame: Frame) -> None:
        """Take the answer of a rank."""
        self.answers[rank] = frame
        if any(answer is None for answer in self.answers):
            return
        for number, answer in enumerate(self.answers):
            if answer is not None and answer[0]["op"] in {"void", "lost"}:
                lost = StateError(f"rank {number}", f"{self.op} done", answer[0]["why"])
                void = answer[0]["op"] == "void"
                self.error = self.error or (VoidRound(answer[0]["why"]) if void else lost)
        self.finish()

    def finish(self) -> None:
        """Call it done, unless it was."""
        if not self._event.is_set():
            self._done(self)
            self._event.set()


class _Link:
    """One rank as its supervisor sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.process: subprocess.Popen[bytes] | None = None
        self.sock: socket.socket | None = None
        self.frames = Frames()
        self.ready = False
        self.sent = False
        self.jobs: deque[Job] = deque()
        self.deaths = 0
        self.began = self.again = 0.0
        self.worked, self.moved = 0.0, 0.0
        """Processor seconds at the last look, and when there was one more of them."""
        self.why = ""


class Supervisor:
    """The ranks of this process."""

    def __init__(self, ranks: int, say: Callable[[str, str], None]) -> None:
        """Start the ranks and wait until they are up.

        Args:
            ranks: How many.
            say: Takes a kind and a line for the log.

        Raises:
            SettingsError: Too many or none.
            StateError: A rank does not come up.
        """
        if ranks < 1:
            raise SettingsError("core.ranks", "1 or more", ranks)
        self.ranks, self._say = ranks, say
        self._links = [_Link(rank) for rank in range(ranks)]
        self._lock, self._up = threading.Lock(), threading.Event()
        self._new: deque[Job] = deque()
        self._closing = False
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)  # whoever submits holds the lock that the thread needs
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()
        up = self._up.wait(TO_START)
        why = next((link.why for link in self._links if not link.ready), "")
        if not up or why:
            self.close()
            silent = f"none of them in {TO_START:.0f} s"
            raise StateError("core.ranks", f"{ranks} ranks that start", why or silent)

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks, in their order; 0 for one that is down."""
        return [link.process.pid if link.process else 0 for link in self._links]

    def submit(self, job: Job) -> Job:
        """Give every rank a job, after those that they have."""
        with self._lock:
            if self._closing:
                job.error = StateError("core.ranks", "ranks that run", "ranks that were ended")
            else:
                self._new.append(job)
                self._wake_up()
        if job.error is not None:
            job.finish()
        return job

    @staticmethod
    def bear(deaths: int) -> None:
        """Refuse to begin something again that ranks died in so many times.

        Raises:
            StateError: It is enough.
        """
        if deaths >= DEATHS:
            raise StateError("core.ranks", "ranks that live", f"some that died in {deaths} tries")

    def close(self) -> None:
        """End the ranks; what they have in hand fails."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake_up()
        self._thread.join()
        self._selector.close()
        self._waker.close()
        self._wake.close()

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):  # full: it is being woken already
            self._waker.send(b"x")

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            now = time.monotonic()
            for link in self._links:
                if link.process is None and link.again <= now:
                    self._start(link)
            for key, _ in self._selector.select(self._pause(now)):
                if key.data is None:
                    self._wake.recv(RECEIVE)
                elif key.fileobj is key.data.sock:
                    self._hear(key.data)
            for link in self._links:
                self._look(link)
            self._hand_out()
        for link in self._links:
            self._end(link)
        self._fail(StateError("core.ranks", "ranks that run", "ranks that were ended"))

    def _pause(self, now: float) -> float | None:
        """Return how long nothing needs to be done unless somebody says something."""
        down = [max(0.0, link.again - now) for link in self._links if link.process is None]
        looks = [STILL / 4 for link in self._links if link.sent]
        return min([*down, *looks], default=None)

    def _look(self, link: _Link) -> None:
        """Kill a rank that has something in hand and does nothing."""
        if not link.sent or link.process is None:
            return
        now, worked = time.monotonic(), _worked(link.process.pid)
        if worked > link.worked:
            link.worked, link.moved = worked, now
        elif now - link.moved > STILL:
            link.why = f"rank {link.rank} (pid {link.process.pid}) stood still for {STILL:.0f} s"
            link.process.kill()
            link.moved = now

    def _start(self, link: _Link) -> None:
        ours, theirs = socket.socketpair()
        numbers = (theirs.fileno(), link.rank, self.ranks)
        environment = dict.fromkeys(_THREADS, "1")
        command = [sys.executable, "-P", "-m", f"{__package__}.rank", *map(str, numbers)]
        try:
            link.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
            )
        except OSError as error:
            ours.close()
            link.why = f"rank {link.rank} does not start: {error.strerror}"
            self._died(link)
            return
        finally:
            theirs.close()
        link.sock, link.frames, link.ready, link.sent = ours, Frames(), False, False
        link.began, link.worked = time.monotonic(), 0.0
        self._selector.register(ours, selectors.EVENT_READ, link)

    def _hear(self, link: _Link) -> None:
        """Take what a rank says; at its end see to the next."""
        sock = link.sock
        try:
            data = sock.recv(RECEIVE) if sock is not None else b""
            for frame in link.frames.feed(data):
                self._heard(link, frame)
        except (OSError, StateError, LookupError):
            data = b""
        if not data:
            self._lost(link)

    def _heard(self, link: _Link, frame: Frame) -> None:
        op = frame[0]["op"]
        if op == "failed":
            link.why = f"rank {link.rank} does not start: {frame[0]['why']}"
        elif op == "ready":
            link.ready, link.why = True, ""
            if all(other.ready for other in self._links):
                self._up.set()
        else:
            link.deaths, link.sent = 0, False
            link.jobs.popleft().answered(link.rank, frame)

    def _lost(self, link: _Link) -> None:
        """A rank's socket is closed: it has died, or will have in a moment."""
        process, in_hand = link.process, link.sent
        self._end(link)
        if in_hand and link.jobs[0].once:
            link.jobs.popleft().answered(link.rank, ({"op": "died"}, bytearray()))
        if process is not None and not link.why:
            how = _ending(process.returncode)
            link.why = f"rank {link.rank} (pid {process.pid}) {how}"
        self._died(link)

    def _died(self, link: _Link) -> None:
        now = time.monotonic()
        link.deaths = 1 if now - link.began > LONGEST_PAUSE else link.deaths + 1
        rest = min(LONGEST_PAUSE, PAUSE * 2.0 ** (link.deaths - 2)) if link.deaths > 1 else 0.0
        link.again = now + rest
        if not self._up.is_set():  # it never was up: whoever started the ranks is told
            self._up.set()
            return
        if link.deaths < DEATHS:
            self._say("rank", f"{link.why}: it is started anew, the other ranks go on")
        else:
            if link.deaths == DEATHS:
                self._say("rank", f"{link.why}, {DEATHS} times in a row: its rounds fail")
            self._fail(StateError("core.ranks", "ranks that live", f"{link.why}, again and again"))
        link.why = ""

    def _end(self, link: _Link) -> None:
        """Close a rank's socket, at which it ends, and see that it has."""
        if link.sock is not None:
            self._selector.unregister(link.sock)
            link.sock.close()
        if link.process is not None:
            with suppress(subprocess.TimeoutExpired):
                link.process.wait(1.0)
            if link.process.poll() is None:
                link.process.kill()
                link.process.wait()
        link.sock = link.process = None
        link.ready = link.sent = False

    def _hand_out(self) -> None:
        """Queue the new jobs, and send each idle rank its next."""
        with self._lock:
            jobs, self._new = self._new, deque()
        for link in self._links:
            link.jobs.extend(jobs)
            if link.jobs and link.ready and not link.sent and link.sock is not None:
                link.sent, link.moved = True, time.monotonic()
                job = link.jobs[0]
                with suppress(OSError):  # it has died: its socket says so in a moment
                    send(link.sock, job.opening, job.payload)

    def _fail(self, error: StateError) -> None:
        """Fail every job; a rank that has one in hand is started anew: none answers late."""
        with self._lock:
            jobs, self._new = set(self._new), deque()
        for link in self._links:
            jobs |= set(link.jobs)
            link.jobs.clear()
            if link.sent:
                self._end(link)
        for job in jobs:
            job.error = job.error or error
            job.finish()


def check_ranks(ranks: int) -> None:
    """Refuse a number of ranks, 0 for none, that this host cannot have.

    Raises:
        SettingsError: Too many, or torch is not installed.
    """
    if not 0 <= ranks <= MOST:
        raise SettingsError("--ranks", f"0 to {MOST}", ranks)
    if ranks and find_spec("torch") is None:
        move = "pip install 'umbel[torch]', or leave --ranks away"
        raise SettingsError("--ranks", "torch, in which ranks compute", "none", move)


def _worked(pid: int) -> float:
    """Return the processor seconds that a process has used; 0 when it is gone."""
    try:
        user, system, *_ = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(user + system)


def _ending(status: int) -> str:
    """Say how a process ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
