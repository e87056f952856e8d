"""A soak: many secure rounds among bare clients that are cut, stopped and killed all the time.

    python -m umbel.tests.soak_rounds --rounds 1000 --clients 20        `make soak`

Real processes, real mTLS, a real run directory (soak_field.py). After each round its aggregate is
computed anew from the recorded survivors (soak_task.py). It fails where an aggregate is wrong,
somebody counts twice, a finished round is lost, or a process grows; the last lines are a table and
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from umbel.server.run_directory import RunDirectory
from umbel.tests import soak_vitals
from umbel.tests.soak_faults import SHARE, Faults, line
from umbel.tests.soak_field import RUN, Field, Ledger, waited

if TYPE_CHECKING:
    from umbel.server.ledger import RoundRecord

DEADLINE, TRIP = 5.5, 1.0
"""Seconds for a round, and for each of the four trips in it: 1.5 are left for the training."""
ATTEMPTS = 20
STOP = 2.5
"""Seconds that a stopped client stands still: beyond the training, or two trips."""
WITNESSES = 2
EVERY = 5
"""Rounds between two looks at the processes."""
TICK_S = 0.02
LONGEST_S = 5400.0


@dataclass
class Report:
    """What came of a soak."""

    rounds: int = 0
    clients: int = 0
    seconds: float = 0.0
    median_round_s: float = 0.0
    slowest_round_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    mean_survivors: float = 0.0
    fewest_survivors: int = 0
    wrong_aggregates: int = 0
    lost_finished: int = 0
    slopes: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


class Soak:
    """One soak, from the first process to the last."""

    def __init__(
        self, folder: Path, rounds: int, clients: int, *,
        seed: int = 1, share: float = SHARE, stop: float = STOP,
    ) -> None:  # fmt: skip
        """Start every process; the run begins when all clients have joined."""
        config = {"rounds": rounds, "deadline": DEADLINE, "trip": TRIP, "attempts": ATTEMPTS}
        self.rounds = rounds
        self.field = Field(folder, clients, config)
        self.field.start_core()
        self.proxies = [line(self.field.port, index) for index in range(clients)]
        self.faults = Faults(
            self.field, self.proxies,
            seed=seed, share=share, stop=stop, witnesses=min(WITNESSES, clients),
        )  # fmt: skip
        self.ledger = Ledger(self.field)
        self.vitals = soak_vitals.Record()
        self.times: list[float] = []
        for index, proxy in enumerate(self.proxies):
            self.field.start_client(index, f"127.0.0.1:{proxy.port}")
        self.field.start_driver()

    def __enter__(self) -> Self:
        """Return the soak."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.ledger.close()
        self.field.close()
        for proxy in self.proxies:
            proxy.close()

    # -- rounds -------------------------------------------------------------------------------

    def play(self) -> None:
        """Go through the run to its end."""
        driver = self.field.driver
        assert driver is not None
        self.began = self.last = time.monotonic()
        while driver.poll() is None and time.monotonic() - self.began < LONGEST_S:
            for record in self.ledger.poll():
                self._recorded(record)
            if self.ledger.chain.rounds < self.rounds:
                self.faults.tick()
            else:
                self.faults.mend()
            time.sleep(TICK_S)
        self.took = time.monotonic() - self.began
        self.faults.mend()
        self.ledger.poll()

    def _recorded(self, record: RoundRecord) -> None:
        now = time.monotonic()
        if record.phase != "train" or record.outcome != "finished":
            return
        self.times.append(now - self.last)
        self.last = now
        recent = median(self.times[-20:])
        self.faults.draw(record.round + 1, min(recent, DEADLINE - 4 * TRIP))
        if record.round % EVERY == 0:
            self._look(record.round)
        if record.round % 50 == 0:
            said = f"{recent:.2f} s a round, {dict(self.faults.hits)}"
            print(f"round {record.round}: {now - self.began:.0f} s, {said}", flush=True)

    def _look(self, number: int) -> None:
        assert self.field.core is not None
        assert self.field.driver is not None
        processes = {"core": self.field.core.pid, "driver": self.field.driver.pid}
        for index in range(min(WITNESSES, self.field.clients)):
            processes[f"client {index}"] = self.field.devices[index].pid
            below = soak_vitals.children(self.field.devices[index].pid)
            processes |= {f"child of {index}": pid for pid in below[:1]}
        for name, pid in processes.items():
            self.vitals.look(name, pid, number)

    # -- the end ------------------------------------------------------------------------------

    def report(self, settled: int = soak_vitals.SETTLED) -> Report:
        """Check what is left, and say what came of it."""
        records = self.ledger.records
        trained = [r for r in records if (r.phase, r.outcome) == ("train", "finished")]
        sizes = [len(r.survivors) for r in trained]
        grown = self.vitals.growths(settled)
        broken = [*self.ledger.wrong[:20], *self._left(), *self._kept()]
        broken += [line for growth in grown for line in growth.broken]
        lost = self.rounds - len({r.round for r in trained})
        if lost:
            broken.append(
                f"{lost} rounds of {self.rounds} did not finish: {self.field.log('driver')}"
            )
        return Report(
            rounds=self.rounds,
            clients=self.field.clients,
            seconds=round(self.took, 1),
            median_round_s=round(median(self.times), 3) if self.times else 0.0,
            slowest_round_s=round(max(self.times, default=0.0), 2),
            outcomes=dict(Counter(f"{r.phase} {r.outcome}" for r in records)),
            faults=dict(self.faults.hits),
            mean_survivors=round(sum(sizes) / max(len(sizes), 1), 2),
            fewest_survivors=min(sizes, default=0),
            wrong_aggregates=len(self.ledger.wrong),
            lost_finished=lost,
            slopes={growth.name: round(growth.slope, 4) for growth in grown},
            broken=broken,
        )

    def _kept(self) -> list[str]:
        """Compare what the run's directory holds with what its ledger says, and with the chain."""
        with RunDirectory.open(self.field.home, RUN) as directory:
            directory.ledger.verify()
            latest = directory.latest()
            if latest != self.ledger.chain.rounds:
                return [f"the newest round kept is {latest}, not {self.ledger.chain.rounds}"]
            model = directory.read_round(latest)
        wanted = self.ledger.chain.model
        same = all(model[name].tobytes() == wanted[name].tobytes() for name in wanted)
        return [] if same else [f"round {latest}: the model on the disk is another"]

    def _left(self) -> list[str]:
        """Wait until everything has ended in order, and say what has not."""
        children = list(self.field.devices.values())
        found = []
        try:
            waited(lambda: not any(c.alive for c in children), 30, lambda: "clients still run")
        except AssertionError as error:
            found.append(str(error))
        status = self.field.end_core()
        if status:
            found.append(f"the core service ended with status {status}: {self.field.log('core')}")
        return found + [f"still runs: {line}" for line in self.field.left()]

    def table(self, settled: int = soak_vitals.SETTLED) -> str:
        """Return the table of the processes."""
        head = f"{'process':<12}{'MB at ' + str(settled):>10}{'at end':>9}{'MB/round':>10}"
        lines = [head + "".join(f"{w:>12}" for w in ("files", "threads", "children", "zombies"))]
        for g in self.vitals.growths(settled):
            pairs = ((getattr(g.first, w), getattr(g.last, w))
                     for w in ("files", "threads", "children", "zombies"))  # fmt: skip
            cells = "".join(f"{f'{a} > {b}':>12}" for a, b in pairs)
            lines.append(
                f"{g.name:<12}{g.first.rss:>10.1f}{g.last.rss:>9.1f}{g.slope:>10.4f}{cells}"
            )
        return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run one soak and print what came of it."""
    parser = argparse.ArgumentParser(prog="soak_rounds", description=__doc__)
    for name, default in (("rounds", 1000), ("clients", 20), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given: Any = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        with Soak(Path(folder), given.rounds, given.clients, seed=given.seed) as soak:
            soak.play()
            report = soak.report()
            print(soak.table())
        print(json.dumps(asdict(report)))
    for why in report.broken:
        print(f"broken: {why}", file=sys.stderr)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
