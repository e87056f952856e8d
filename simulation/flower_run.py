"""One run on a federation of `umbel up`: submitted, followed to its end, with clients that die.

What is seen comes from three places: the run's own ledger (rounds), Flower's Control API (which
clients are online, when the run is over, what the ServerApp prints) and the supervisor (programs
that ended and were started again). A client is killed as a power cut would kill it, with SIGKILL
for its SuperNode and everything under it, as soon as a round is recorded: so in the second round or
a later one. It counts as returned in the first round that has it among the survivors again.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .flower_control import Control
from .programs import private, without_colours
from .run_feed import RunFeed
from ..protocol import messages_pb2 as pb
from ..protocol.errors import UmbelError, reason_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from .flower_control import RunState
    from .flower_up import FlowerUp
    from .up_plan import UpPlan
    from ..server.ledger import RoundRecord, RunRecord

SERVERAPP = "serverapp"
"""Name of the log with a ServerApp's output."""
_WARNING = re.compile(r"WARNING[ \d:,-]*:\s+(.+)")
"""A line of the log that Flower's ServerApp prints; ours use the same."""
_POLL_S = 0.05
_STATE_S = 0.5
_LAST_WORDS_S = 5.0
"""How long after a run's end the rest of its output may take."""


@dataclass(slots=True)
class Killed:
    """A client that was killed, and what became of it."""

    name: str
    round: int
    """The first round that went on without it; until then, the one that was running."""
    at: float
    back_s: float | None = None
    """Seconds until its SuperNode was online again."""
    again: int | None = None
    """The first round in which it was summed again."""
    offline: bool = False
    missed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a run was."""

    flower_run: int
    state: RunState
    run: RunRecord | None
    """The run's own record; None for an app that keeps none."""
    records: tuple[RoundRecord, ...]
    killed: tuple[Killed, ...]
    last_words: str
    """The last line of the ServerApp's output."""
    refused: bool = False
    """Whether a client said that it refused a plain message."""
    secure: bool = False
    """Whether every client refuses to answer plain messages."""


@dataclass(slots=True)
class Shown:
    """How the caller is told: a line at once, a record, a piece of the ServerApp's output."""

    say: Callable[[str], None]
    begin: Callable[[RunRecord], None]
    record: Callable[[RoundRecord], None]
    output: Callable[[str], None]


class Warnings:
    """The warnings in a ServerApp's output, each told once."""

    def __init__(self) -> None:
        """Begin with an empty output."""
        self._rest = ""
        self._told: set[str] = set()

    def new(self, text: str) -> list[str]:
        """Take the next piece of the output and return the warnings that it completes."""
        *lines, self._rest = (self._rest + without_colours(text)).split("\n")
        found = [match[1] for match in map(_WARNING.match, lines) if match is not None]
        new = [line for line in dict.fromkeys(found) if line not in self._told]
        self._told.update(new)
        return new


class _Output:
    """The ServerApp's output, read in a thread of its own because reading waits."""

    def __init__(self, up: FlowerUp, run_id: int) -> None:
        self._log = up.supervisor.log(SERVERAPP)
        self._pieces: list[str] = []
        self._taken = 0
        self._warnings = Warnings()
        self._control = Control(up.address, up.federation.ca)
        self._thread = threading.Thread(target=self._read, args=(run_id,), daemon=True)
        self._thread.start()

    def _read(self, run_id: int) -> None:
        # When the SuperLink goes, the supervisor says so.
        with open(self._log, "a", opener=private, encoding="utf-8") as log, suppress(UmbelError):
            for piece in self._control.output(run_id):
                self._pieces.append(piece)
                log.write(piece)
                log.flush()

    def show(self, shown: Shown, *, whole: bool) -> None:
        """Show what came since the last call: the whole of it, or each warning once."""
        taken, self._taken = self._taken, len(self._pieces)
        text = "".join(self._pieces[taken : self._taken])
        if whole and text:
            shown.output(text)
        for line in self._warnings.new(text):
            if not whole:
                shown.say(line)

    def end(self) -> str:
        """Wait for the rest and return the last line that says something."""
        self._thread.join(_LAST_WORDS_S)
        self._control.close()
        lines = [line.strip() for line in "".join(self._pieces).splitlines()]
        return next((line for line in reversed(lines) if line), "no output")


@dataclass(slots=True)
class _Course:
    """A run that is being followed."""

    up: FlowerUp
    plan: UpPlan
    shown: Shown
    names: dict[str, str]
    """Node id, hex, to the client's name."""
    killed: list[Killed] = field(default_factory=list)

    def recorded(self, record: RoundRecord) -> None:
        """Show a record; kill whom the plan wants killed once the first round is over."""
        self.shown.record(record)
        if record.outcome != "finished":
            return
        summed = {self.names.get(node) for node in record.survivors}
        for victim in self.killed:
            if not victim.missed and victim.name not in summed:
                victim.missed, victim.round = True, record.round
            elif victim.again is None and victim.missed and victim.name in summed:
                victim.again = record.round
                self.shown.say(f"{victim.name} takes part again, in round {record.round}")
        if not self.killed and self.plan.drop and record.phase == "train":
            self._kill(record.round + 1)

    def _kill(self, number: int) -> None:
        edge = [client.name for client in self.up.wanted.clients if not client.ddp]
        rest = [client.name for client in self.up.wanted.clients if client.ddp]
        for name in [*reversed(edge), *reversed(rest)][: self.plan.drop]:
            self.up.supervisor.kill(name)
            self.killed.append(Killed(name, number, time.monotonic()))
            self.shown.say(f"round {number}: {name} was killed (SIGKILL)")

    def look(self) -> None:
        """Look at the programs, and at who came back."""
        for item in self.up.watch():
            if item.name not in {victim.name for victim in self.killed}:
                self.shown.say(f"{item.name} {item.status or item.what}")
        waiting = [victim for victim in self.killed if victim.back_s is None]
        offline = self.up.offline() if waiting else []
        for victim in waiting:
            if victim.name in offline:
                victim.offline = True
            elif victim.offline:
                victim.back_s = time.monotonic() - victim.at
                self.shown.say(f"{victim.name} is online again after {victim.back_s:.1f} s")


def run(up: FlowerUp, plan: UpPlan, shown: Shown) -> Course:
    """Start everything, run the app, and return when its run is over.

    Raises:
        SettingsError: The SuperLink does not take the app or its settings.
        StateError: A program ended that the run cannot do without.
    """
    up.start_servers()
    if plan.umbel:  # its ServerApp waits for its clients by itself
        run_id = up.submit(plan.config)
        up.start_nodes()
    else:
        up.start_nodes()
        up.wait_online()
        run_id = up.submit(plan.config)
    return _follow(up, plan, shown, run_id)


def _follow(up: FlowerUp, plan: UpPlan, shown: Shown, run_id: int) -> Course:
    """Show a run until it is over."""
    names = {node.id: node.name for node in up.federation.nodes}
    course = _Course(up, plan, shown, names)
    output = _Output(up, run_id)
    with RunFeed(up.wanted.home, run_id) as feed:
        state, next_look = up.control.run(run_id), 0.0
        while not state.over:
            time.sleep(_POLL_S)
            _poll(feed, course, shown)
            output.show(shown, whole=feed.run is None and not plan.umbel)
            if (now := time.monotonic()) >= next_look:
                next_look = now + _STATE_S
                course.look()
                state = up.control.run(run_id)
        _poll(feed, course, shown)
        last = output.end()
        output.show(shown, whole=feed.run is None and not plan.umbel)
        return Course(
            flower_run=run_id, state=state, run=feed.run, records=tuple(feed.records),
            killed=tuple(course.killed), last_words=last, secure=plan.secure,
            refused=feed.run is None and _refused(up),
        )  # fmt: skip


def _refused(up: FlowerUp) -> bool:
    """Tell whether a device's own log says that it refused plain messages."""
    said = reason_text(pb.REASON_PLAIN_REFUSED).encode()
    return any(said in up.supervisor.log(n.name).read_bytes() for n in up.federation.nodes)


def _poll(feed: RunFeed, course: _Course, shown: Shown) -> None:
    known = feed.run is not None
    records = feed.poll()
    if feed.run is not None and not known:
        shown.begin(feed.run)
    for record in records:
        course.recorded(record)
