"""Where in a round a process is killed: by watching the messages that pass the driver.

The driver of a chaos run (soak_driver.py) reads `kills.json`, a list of

    {"round": 7, "at": "votes", "nth": 1, "who": ["driver"]}     nth: of its kind in an attempt

and kills the first that is still to do when its moment comes: `who` names `driver` (this process),
`core`, and `clients` (every one). Each is written to `kills.log` before, so that the next driver
goes on with the rest.

| at | is reached, in the phase | when |
|---|---|---|
| `begun` | inviting | 1: a run begins or goes on, and nobody has been asked yet |
| `start` | inviting | the nth `Start` is about to leave |
| `keys` | inviting | the nth round keys have come |
| `roster`, `shares` | sharing | likewise |
| `inbox`, `masked` | summing | likewise |
| `whole` | summing | the core has said of the nth vector that it is whole |
| `kept` | summing | 1: what a successor needs is about to be written, 2: it is written |
| `survivors`, `vote` | voting | likewise |
| `votes`, `release` | unmasking | likewise |
| `stepped` | summed | 1: the next model is about to be made, 2: it is made and not published |
| `written` | summed | 1: the model is published and about to be written, 2: it is written |
| `committed` | finished | 1: the entry is about to be written, 2: it is written |

The product has no hook for this: its own methods are wrapped, here, in the test's process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from umbel.protocol import messages_pb2 as pb
from umbel.server.coordinator import Coordinator
from umbel.server.core_client import CoreClient
from umbel.server.ledger import Ledger, RoundRecord
from umbel.server.open_round import OpenRounds
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from umbel.server.invitation import Plan
    from umbel.server.stepping import StepOrder, Stepped

PLAN, LOG, PIDS = "kills.json", "kills.log", "pids.json"
PHASES = {
    "begun": "inviting", "start": "inviting", "keys": "inviting",
    "roster": "sharing", "shares": "sharing",
    "inbox": "summing", "masked": "summing", "whole": "summing",
    "kept": "summing",
    "survivors": "voting", "vote": "voting",
    "votes": "unmasking", "release": "unmasking",
    "stepped": "summed", "written": "summed", "committed": "finished",
}  # fmt: skip
"""Moments, with the phase of the round table in which they lie."""


@dataclass(frozen=True)
class Kill:
    """One kill."""

    round: int
    at: str
    nth: int
    who: tuple[str, ...]

    @property
    def phase(self) -> str:
        """The phase of the round table that it hits."""
        return PHASES[self.at]


def write(folder: Path, kills: Sequence[Kill]) -> None:
    """Write the plan."""
    (folder / PLAN).write_text(json.dumps([asdict(kill) for kill in kills]))


def done(folder: Path) -> list[dict[str, Any]]:
    """Return the kills so far, as they were written down."""
    path = folder / LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Executioner:
    """Counts moments in this process, and kills when the one that is due has come."""

    def __init__(self, folder: Path, core: Path) -> None:
        """Read what is to do; `core` is the core service's record, with its pid."""
        plan = [Kill(**row) for row in json.loads((folder / PLAN).read_text())]
        self._left = plan[len(done(folder)) :]
        self._folder, self._core = folder, core
        self._counts: Counter[str] = Counter()
        self._attempt = (0, 0)
        self.run: Coordinator | None = None

    def begun(self, run: Coordinator) -> None:
        """Note that a run begins or goes on, wherever it stands."""
        self.run = run
        if self._left:
            self.reached(self._left[0].round, "begun", 1)

    def start(self, start: pb.Start) -> None:
        """Note that an attempt begins: what is counted is counted anew."""
        if (start.round, start.attempt) != self._attempt:
            self._attempt = start.round, start.attempt
            self._counts.clear()

    def passes(self, at: str) -> None:
        """Note a message."""
        if at in PHASES and self.run is not None:
            self._counts[at] += 1
            self.reached(self.run.round, at, self._counts[at])

    def reached(self, number: int, at: str, nth: int) -> None:
        """Note a moment of a round."""
        if not self._left:
            return
        kill = self._left[0]
        if (kill.round, kill.at, kill.nth) != (number, at, nth):
            return
        self._left.pop(0)
        with (self._folder / LOG).open("a") as log:
            log.write(json.dumps({**asdict(kill), "time": time.time()}) + "\n")
        self._kill(kill.who)

    def _kill(self, who: Sequence[str]) -> None:
        pids = []
        if "clients" in who:
            pids += json.loads((self._folder / PIDS).read_text())
        if "core" in who:
            pids.append(json.loads(self._core.read_text())["pid"])
        if "driver" in who:
            pids.append(os.getpid())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def watch(folder: Path, core: Path) -> None:
    """Wrap what messages pass by in this process."""
    due = Executioner(folder, core)
    _watch_messages(due)
    _watch_disk(due)


def _watch_messages(due: Executioner) -> None:
    post, message, whole = CoreClient.post, Coordinator.message, Coordinator.whole
    begin, step = Coordinator.begin, CoreClient.step

    def begun(self: Coordinator, now: float) -> None:
        due.begun(self)
        begin(self, now)

    def posted(self: CoreClient, node: str, data: bytes) -> None:
        found = pb.ToClient.FromString(data)
        if found.HasField("start"):
            due.start(found.start)
        due.passes(found.WhichOneof("body") or "")
        post(self, node, data)

    def stepped(self: CoreClient, order: StepOrder) -> Stepped:
        due.reached(order.t, "stepped", 1)
        found = step(self, order)
        due.reached(order.t, "stepped", 2)
        return found

    def came(self: Coordinator, node: str, data: bytes, now: float) -> None:
        due.passes(pb.ToServer.FromString(data).WhichOneof("body") or "")
        message(self, node, data, now)

    def is_whole(self: Coordinator, node: str, digest: bytes, now: float) -> None:
        due.passes("whole")
        whole(self, node, digest, now)

    _wrap(CoreClient, post=posted, step=stepped)
    _wrap(Coordinator, begin=begun, message=came, whole=is_whole)


def _watch_disk(due: Executioner) -> None:
    write, commit, keep = RunDirectory.write_round, Ledger.commit_round, OpenRounds.keep

    def written(self: RunDirectory, n: int, *rest: Any) -> Any:
        due.reached(n, "written", 1)
        found = write(self, n, *rest)
        due.reached(n, "written", 2)
        return found

    def committed(self: Ledger, record: RoundRecord, *rest: Any) -> None:
        train = (record.phase, record.outcome) == ("train", "finished")
        due.reached(record.round * train, "committed", 1)
        commit(self, record, *rest)
        due.reached(record.round * train, "committed", 2)

    def kept(self: OpenRounds, plan: Plan, *rest: Any) -> None:
        due.reached(plan.terms.round, "kept", 1)
        keep(self, plan, *rest)
        due.reached(plan.terms.round, "kept", 2)

    _wrap(OpenRounds, keep=kept)
    _wrap(RunDirectory, write_round=written)
    _wrap(Ledger, commit_round=committed)


def _wrap(owner: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
