"""Chaos: SIGKILL of the ServerApp, of the core service, or of all, at every moment of a round.

    python -m umbel.tests.chaos_rounds                                     `make chaos`

One run of bare clients (soak_field.py), a kill in nearly every round, at a moment that is counted
and not timed (chaos_moment.py). What was killed is started again, as a supervisor does: the driver
resumes the run under its id, the core listens on its port again. Beside it the same seeded run is
played without a kill. It fails where a kill has not hit, a round is lost that need not be, an
aggregate is another than the recorded survivors' (soak_task.py), or the last bits differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.server.run_directory import RunDirectory
from umbel.tests import chaos_moment
from umbel.tests.chaos_moment import Kill
from umbel.tests.soak_field import RUN, Field, Ledger, waited

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from numpy.typing import NDArray

CLIENTS = 5
DEADLINE, TRIP = 120.0, 15.0
PAUSE_S = 0.1
"""What a supervisor takes to start anew what has ended."""
LONGEST_S = 60.0
"""Most seconds between two rounds."""
MOMENTS = (
    ("start", 1), ("start", CLIENTS), ("keys", 3),
    ("roster", 1), ("roster", CLIENTS), ("shares", 3),
    ("inbox", 1), ("inbox", CLIENTS), ("masked", 3), ("whole", 3), ("whole", CLIENTS),
    ("kept", 1), ("kept", 2),
    ("survivors", 1), ("survivors", CLIENTS), ("vote", 2),
    ("votes", 1), ("votes", CLIENTS), ("release", 2),
    ("stepped", 1), ("stepped", 2),
    ("written", 1), ("written", 2), ("committed", 1), ("committed", 2),
)  # fmt: skip
"""Every phase, at its first message, at its last, and between."""


def plan(moments: Sequence[tuple[str, int]] = MOMENTS) -> list[Kill]:
    """Return the kills of a full run, in the order of their rounds.

    Each moment hits the driver and the core, one round each; then a few hit both at once, a few a
    driver that has only just resumed, and a few all processes there are, as a power cut does.
    """
    found: list[Kill] = []
    for at, nth in moments:
        for who in (("driver",), ("core",)):
            found.append(Kill(len(found) + 2, at, nth, who))
    for at, nth in moments[2::6]:
        found.append(Kill(found[-1].round + 1, at, nth, ("core", "driver")))
    for at, nth in moments[1::8]:
        number = found[-1].round + 1
        found += [Kill(number, at, nth, ("driver",)), Kill(number, "begun", 1, ("driver",))]
        found += [Kill(number + 1, "start", 2, ("driver",))]
    for at, nth in moments[4::6]:
        found.append(Kill(found[-1].round + 1, at, nth, ("clients", "core", "driver")))
    return found


@dataclass
class Hit:
    """A kill, and what came after it."""

    kill: Kill
    seconds: float
    """Until the round that was hit was committed; the next one where it was already."""
    outcomes: list[str]
    """Of the attempts at the round that was hit."""


@dataclass
class Report:
    """What came of a chaos run."""

    kills: int = 0
    """Of servers; a power cut of all clients is counted with them in `by_victim` only."""
    rounds: int = 0
    seconds: float = 0.0
    by_victim: dict[str, int] = field(default_factory=dict)
    by_phase: dict[str, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    wrong_aggregates: int = 0
    same_bits: bool | None = None
    """As the uninterrupted run; None where a round was lost."""
    without: dict[int, int] = field(default_factory=dict)
    """Rounds that finished without everybody: number of their survivors."""
    slowest_s: float = 0.0
    broken: list[str] = field(default_factory=list)


class Chaos:
    """One run with its kills."""

    def __init__(self, folder: Path, kills: Sequence[Kill]) -> None:
        """Write the plan; nothing runs before `play`."""
        self.kills = list(kills)
        self.rounds = max((kill.round for kill in kills), default=1) + 2
        config = {"rounds": self.rounds, "deadline": DEADLINE, "trip": TRIP}
        self.field = Field(folder, CLIENTS, config)
        chaos_moment.write(folder, kills)
        self.ledger = Ledger(self.field)
        self.committed: list[tuple[float, int]] = []
        """When each training round was finished or lost, and its number."""

    def play(self) -> None:
        """Go through the run, and start again what is killed."""
        self.field.start_core()
        for index in range(CLIENTS):
            self.field.start_client(index)
        self.field.start_driver()
        began = self._moved = time.monotonic()
        while (status := self._step()) is None:
            quiet = time.monotonic() - self._moved
            assert quiet < LONGEST_S, f"{quiet:.0f} s without a round: {self.said()}"
            time.sleep(0.01)
        self.took = time.monotonic() - began
        self._poll()
        assert status == 0, self.said()

    def _step(self) -> int | None:
        """Look after everybody once; return how the driver ended, when it was not killed."""
        core, driver = self.field.core, self.field.driver
        assert core is not None
        assert driver is not None
        self._poll()
        if core.poll() is not None:
            self._was_killed(core, "core")
            self.field.start_core()
        for index, device in list(self.field.devices.items()):
            if not device.alive:
                self._poll()  # the run may have come to its end, and the device with it
                if self.ledger.chain.rounds < self.rounds:
                    self.field.start_client(index)
        status = driver.poll()
        if status is None or status >= 0:
            return status
        self._was_killed(driver, "driver")
        self.field.start_driver(resume=True)
        return None

    def _was_killed(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.returncode == -9, f"{name} ended by itself: {self.said()}"
        self._moved = time.monotonic()
        time.sleep(PAUSE_S)

    def _poll(self) -> None:
        for record in self.ledger.poll():
            self._moved = time.monotonic()
            if record.phase == "train" and record.outcome in {"finished", "lost"}:
                self.committed.append((time.time(), record.round))

    def said(self) -> str:
        """Return where it stands, for a failure."""
        done = chaos_moment.done(self.field.folder)[-1:]
        logs = "\n".join(f"--- {n}\n{self.field.log(n)}" for n in ("driver", "core"))
        return f"after {done}\n{self.ledger.records[-3:]}\n{logs}"

    # -- the end ------------------------------------------------------------------------------

    def hits(self) -> list[Hit]:
        """Return what came after each kill."""
        found = []
        for row in chaos_moment.done(self.field.folder):
            at = row.pop("time")
            kill = Kill(**{**row, "who": tuple(row["who"])})
            goal = kill.round + ((kill.at, kill.nth) == ("committed", 2))
            next_ = next((t for t, number in self.committed if number >= goal and t > at), at)
            same = [r.outcome for r in self.ledger.records
                    if (r.round, r.phase) == (kill.round, "train")]  # fmt: skip
            found.append(Hit(kill, next_ - at, same))
        return found

    def report(self) -> Report:
        """Check what is left, and say what came of it."""
        hits, records = self.hits(), self.ledger.records
        servers = [(hit.kill, who) for hit in hits for who in hit.kill.who if who != "clients"]
        lost = [r.round for r in records if r.outcome == "lost"]
        finished = {r.round for r in records if (r.phase, r.outcome) == ("train", "finished")}
        broken = self.ledger.wrong[:20]
        if missing := set(range(1, self.rounds + 1)) - finished - set(lost):
            broken.append(f"rounds {sorted(missing)} are neither finished nor lost")
        if len(hits) < len(self.kills):
            broken.append(f"{len(hits)} kills of {len(self.kills)} have hit")
        if len(lost) > 1:
            broken.append(f"rounds {lost} are lost, one may be")
        return Report(
            kills=len(servers),
            rounds=self.rounds,
            seconds=round(self.took, 1),
            by_victim=_counted(who for hit in hits for who in hit.kill.who),
            by_phase=_counted(
                hit.kill.phase for hit in hits for _ in {*hit.kill.who} - {"clients"}
            ),
            lost=lost,
            wrong_aggregates=len(self.ledger.wrong),
            without={
                r.round: len(r.survivors)
                for r in records
                if r.outcome == "finished" and len(r.survivors) < CLIENTS
            },
            slowest_s=round(max((hit.seconds for hit in hits), default=0.0), 2),
            broken=broken + self._ended(),
        )

    def _ended(self) -> list[str]:
        """Let the rest end in order; say what has not."""
        devices = list(self.field.devices.values())
        waited(lambda: not any(d.alive for d in devices), 30, lambda: "clients still run")
        status = self.field.end_core()
        found = [f"the core service ended with status {status}"] if status else []
        return found + [f"still runs: {line}" for line in self.field.left()]

    def model(self) -> dict[str, NDArray[Any]]:
        """Return the newest model on the disk; the ledger's whole chain is verified."""
        with RunDirectory.open(self.field.home, RUN) as directory:
            directory.ledger.verify()
            return dict(directory.read_round(directory.latest() or 0))

    def close(self) -> None:
        """End everything."""
        self.ledger.close()
        self.field.close()


def _counted(names: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def play(kills: Sequence[Kill]) -> tuple[Report, str]:
    """Play a run with these kills and, where no round was lost, one of the same seed without.

    Returns:
        What came of it, and the table of the hits.
    """
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(Path(folder), kills)
        try:
            chaos.play()
            report, table, model = chaos.report(), _table(chaos.hits()), chaos.model()
        finally:
            chaos.close()
    if not report.lost:
        report.same_bits = _quiet(report.rounds) == {n: a.tobytes() for n, a in model.items()}
        if not report.same_bits:
            report.broken.append("the last model is another than that of the uninterrupted run")
    return report, table


def _quiet(rounds: int) -> dict[str, bytes]:
    """Return the last model of the same run, uninterrupted."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        quiet = Chaos(Path(folder), [])
        quiet.field.config["rounds"] = quiet.rounds = rounds
        try:
            quiet.play()
            return {name: array.tobytes() for name, array in quiet.model().items()}
        finally:
            quiet.close()


def _table(hits: Sequence[Hit]) -> str:
    lines = [f"{'round':>5}  {'phase':<10}{'moment':<14}{'killed':<20}{'goes on':>10}  outcomes"]
    for hit in hits:
        kill = hit.kill
        moment, who = f"{kill.at} {kill.nth}", "+".join(kill.who)
        lines.append(f"{kill.round:>5}  {kill.phase:<10}{moment:<14}{who:<20}{hit.seconds:>8.2f} s"
                     f"  {', '.join(hit.outcomes)}")  # fmt: skip
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Play the full plan and print what came of it."""
    argparse.ArgumentParser(prog="chaos_rounds", description=__doc__).parse_args(arguments)
    report, table = play(plan())
    print(table)
    print(json.dumps(asdict(report)))
    for line in report.broken:
        print(f"broken: {line}", file=sys.stderr)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
