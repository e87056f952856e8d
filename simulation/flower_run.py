"""One run on a federation of `umbel up`: submitted, followed to its end, with clients that die.

What is seen comes from three places: the run's own ledger (rounds), Flower's Control API (which
clients are online, when the run is over, what the ServerApp prints) and the supervisor (programs
that ended and were started again). A client is killed as a power cut would kill it, with SIGKILL
for its SuperNode and everything under it, as soon as a round is recorded: so in the second round or
a later one. It counts as returned in the first round that has it among the survivors again.

A server that dies comes back by the supervisor, a ServerApp by server/flower_lives.py; the
SuperLink may be away for a while, and what Flower would say is not known then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .up_report import STOPPED
from ..host.stopping import draining
from ..protocol import messages_pb2 as pb
from ..protocol.errors import StateError, reason_text
from ..server.draining import DRAIN_S
from ..server.flower_control import Control, RunState
from ..server.flower_lives import Lives, serverapps
from ..server.flower_output import SERVERAPP, Output
from ..server.reviews import ended
from ..server.run_feed import RunFeed
from ..server.run_lines import untested, waits_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .flower_up import FlowerUp
    from .up_plan import UpPlan
    from ..server.ledger import RoundRecord, RunRecord

COMPLETED = "completed"
AWAY_S = 120.0
"""How long a SuperLink that runs may answer nothing."""
_LAST_S = 10.0
"""How long a ServerApp may take to go when its round has ended."""
_POLL_S = 0.05
_STATE_S = 0.5


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


@dataclass(frozen=True, slots=True)
class Restarted:
    """A program that ended and was started again, or a ServerApp whose run went on."""

    name: str
    round: int
    """The round that was running."""
    what: str
    """How it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a run was."""

    flower_run: int
    state: RunState
    run: RunRecord | None
    """The run's own record; None for an app that keeps none."""
    records: tuple[RoundRecord, ...]
    killed: tuple[Killed, ...]
    restarted: tuple[Restarted, ...] = ()
    stopped: str = ""
    """The signal that ended it, if one did."""
    last_words: str
    """The last line of the ServerApp's output."""
    refused: bool = False
    """Whether a client said that it refused a plain message."""
    rejected: str = ""
    """The decision that ended it, if one did."""
    secure: bool = False
    """Whether every client refuses to answer plain messages."""


@dataclass(slots=True)
class Shown:
    """How the caller is told: a line at once, a record, its test, a piece of the app's output."""

    say: Callable[[str], None]
    begin: Callable[[RunRecord], None]
    record: Callable[[RoundRecord], None]
    tested: Callable[[RoundRecord], None]
    output: Callable[[str], None]


class _Course:
    """A run that is being followed."""

    def __init__(self, up: FlowerUp, plan: UpPlan, shown: Shown, flower_run: int) -> None:
        """Follow Flower's run `flower_run`."""
        self.up, self.plan, self.shown = up, plan, shown
        self.names = {node.id: node.name for node in up.federation.nodes}
        self.killed: list[Killed] = []
        self.restarted: list[Restarted] = []
        self._lives = Lives(up, plan.config, flower_run)
        home, run = up.wanted.home, up.wanted.resume
        self._feed = RunFeed.of(home, run) if run else RunFeed(home, flower_run)
        self._output = self._listen(flower_run)
        if self._feed.run is not None:
            shown.begin(self._feed.run)
        self._answered = time.monotonic()
        self.stopped, self._stop_by = "", float("inf")
        """By which signal the run was told to end, and until when it may take."""

    def follow(self) -> Course:
        """Show the run until it is over, or until it has ended because somebody asked for that.

        Raises:
            KeyboardInterrupt: Somebody asked twice, or it did not end in its time.
        """
        next_look, state = 0.0, None
        with draining() as ask:
            while state is None or not state.over:
                time.sleep(_POLL_S)
                self._show()
                if ask.asked:
                    self._end(ask.asked)
                if (now := time.monotonic()) >= next_look:
                    next_look = now + _STATE_S
                    self._look()
                    state = self._state(now)
        self._show()
        last = self._output.end()
        self._show()
        self._feed.close()
        run = self._feed.run
        return Course(
            flower_run=self._lives.flower_run, state=state, run=run,
            records=tuple(self._feed.records), killed=tuple(self.killed),
            restarted=tuple(self.restarted), stopped=self.stopped, last_words=last,
            secure=self.plan.secure, refused=run is None and _refused(self.up),
            rejected=ended(self._feed.items),
        )  # fmt: skip

    def _listen(self, flower_run: int) -> Output:
        control = Control(self.up.address, self.up.federation.ca)
        return Output(self.up.supervisor.log(SERVERAPP), control, flower_run)

    def _show(self) -> None:
        known = self._feed.run is not None
        records = self._feed.poll()
        if self._feed.run is not None and not known:
            self.shown.begin(self._feed.run)
        for record in self._feed.tested:
            self.shown.tested(record)
        for record in records:
            self.recorded(record)
        for line in self._feed.said:
            self.shown.say(line)
        for number, why in self._feed.untested:
            self.shown.say(untested(number, why))
        for number, phase, nodes in self._feed.waiting:
            self.shown.say(waits_for(number, phase, [self.names.get(n, n) for n in nodes]))
        whole = self._feed.run is None and not self.plan.umbel
        self._output.show(self.shown.say, self.shown.output if whole else None)

    def _end(self, signal_name: str) -> None:
        """Tell the ServerApp once that it is to end; wait for that for its time."""
        now = time.monotonic()
        if not self.stopped:
            self.stopped, self._stop_by = signal_name, now + DRAIN_S + _LAST_S
            apps = serverapps(self.up.supervisor)[0]
            if self._feed.run is None or not apps:
                raise KeyboardInterrupt
            self.shown.say("ending after this round; ask again to end at once")
            for app in apps:
                app.terminate()
        if now > self._stop_by:
            raise KeyboardInterrupt

    # -- a ServerApp that was killed ----------------------------------------------------------

    def _state(self, now: float) -> RunState | None:
        """Return what Flower says about the run; None while nobody can say."""
        if self._lives.waiting:
            self._go_on(now)
            return None
        try:
            state, killed = self._lives.look()
        except StateError:
            if now - self._answered > AWAY_S:
                raise
            return None
        self._answered = now
        if not killed:
            return state
        if self.stopped or self._feed.over:
            return RunState("finished", STOPPED if self.stopped else COMPLETED, "")
        self._note(SERVERAPP, killed)
        self.shown.say(f"{SERVERAPP} {killed}")
        if self._feed.run is None and not (self.plan.umbel or self.plan.secure):
            move = "an app of plain Flower keeps no record to go on from: start it again"
            raise StateError("ServerApp", "one that completes", killed, move)
        finished = [r for r in self._feed.records if r.outcome == "finished"]
        self._lives.note(len(finished), now)
        return None

    def _go_on(self, now: float) -> None:
        """Start the next ServerApp when its time has come."""
        run = self._feed.run
        if not self._lives.again(run.run if run else "", now):
            return
        new = self._lives.flower_run
        self._output.end()
        self._output = self._listen(new)
        if run is None:
            self._feed.close()
            self._feed = RunFeed(self.up.wanted.home, new)
        self.shown.say(f"{SERVERAPP} restarted: {run.run if run else 'the run'} goes on")

    def _note(self, name: str, what: str) -> None:
        finished = [r.round for r in self._feed.records if r.outcome == "finished"]
        self.restarted.append(Restarted(name, max(finished, default=0) + 1, what))

    # -- clients that are killed --------------------------------------------------------------

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

    def _look(self) -> None:
        """Look at the programs, and at who came back."""
        for item in self.up.watch():
            if item.name in {victim.name for victim in self.killed}:
                continue
            self.shown.say(f"{item.name} {item.status or item.what}")
            if item.what == "ended":
                self._note(item.name, item.status)
        waiting = [victim for victim in self.killed if victim.back_s is None]
        try:
            offline = self.up.offline() if waiting else []
        except StateError:  # the SuperLink is away
            return
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
    shown.say("the servers answer; clients and ServerApp start, which takes seconds")
    if plan.umbel:  # its ServerApp waits for its clients by itself
        run_id = up.submit_patiently(plan.config)
        up.start_nodes()
    else:
        up.start_nodes()
        up.wait_online()
        run_id = up.submit_patiently(plan.config)
    return _Course(up, plan, shown, run_id).follow()


def _refused(up: FlowerUp) -> bool:
    """Tell whether a device's own log says that it refused plain messages."""
    said = reason_text(pb.REASON_PLAIN_REFUSED).encode()
    return any(said in up.supervisor.log(n.name).read_bytes() for n in up.federation.nodes)
