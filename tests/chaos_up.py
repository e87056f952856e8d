"""Chaos on a real federation: SIGKILL of each server of `umbel up`, and of its ServerApp.

    python -m umbel.tests.chaos_up                                         `make chaos`

`umbel up` runs as a user runs it; its programs are found by the state that it keeps, and killed one
after another, each a few rounds after the one before is back. A client's update is the same in
every round and its weight is its own, so each recorded round says by how far it must have moved
the model: their sum is compared with the last model, and each mean weight with the survivors'.
The rounding words of real devices are random, hence the tolerance, of a thousandth of one step.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from umbel.host.processes import read_state
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

WEIGHTS = (11, 13, 15, 17)
STEP = 1 / 64
"""How far client P moves every parameter in a round: P + 1 times this."""
APART = 12
"""Rounds between two kills."""
TARGETS = (
    ("superlink",), ("serverapp",), ("front",), ("core",), ("superexec",), ("superlink",),
    ("serverapp",), ("core", "serverapp"), ("front", "superlink"), ("superlink", "serverapp"),
    ("front", "core"),
)  # fmt: skip
LONGEST_S = 180.0
"""Most seconds from a kill to the next round."""
_PYPROJECT = """
[project]
name = "chaos"
version = "1.0.0"
description = "the same update in every round"
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "chaosapp.server_app:app"
clientapp = "chaosapp.client_app:app"
[tool.flwr.app.config]
rounds = 100
[tool.umbel]
weight-cap = 40
value-range = 0.5
attempts = 5
deadline = 60.0
"""
_CLIENT = """
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import umbel

inner = ClientApp()


@inner.train()
def train(msg, context):
    p = int(context.node_config["partition-id"])
    time.sleep(0.1)
    arrays = [a + np.float32((p + 1) * {step}) for a in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({{"num-examples": {weights}[p]}})
    return Message(RecordDict({{"arrays": ArrayRecord(arrays), "metrics": metrics}}), reply_to=msg)


app = umbel.secure(inner)
"""
_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

import umbel

app = ServerApp()


@app.main()
def main(grid, context):
    arrays = ArrayRecord([np.zeros(100)])
    umbel.train(grid, umbel.FedAvg(), initial_arrays=arrays, config=dict(context.run_config))
"""


def write_app(folder: Path) -> Path:
    """Write the app and return its directory."""
    app = folder / "chaos"
    (app / "chaosapp").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_PYPROJECT)
    (app / "chaosapp" / "__init__.py").write_text("")
    client = _CLIENT.format(step=STEP, weights=WEIGHTS)
    (app / "chaosapp" / "client_app.py").write_text(client)
    (app / "chaosapp" / "server_app.py").write_text(_SERVER)
    return app


@dataclass
class Report:
    """What came of it."""

    kills: int = 0
    rounds: int = 0
    seconds: float = 0.0
    by_victim: dict[str, int] = field(default_factory=dict)
    back_s: list[float] = field(default_factory=list)
    """For each kill: seconds until two more rounds were committed, and the program was back."""
    lost: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class ChaosUp:
    """One `umbel up` and who is killed of it."""

    def __init__(self, folder: Path, targets: Sequence[tuple[str, ...]]) -> None:
        """Start it."""
        self.folder, self.targets = folder, list(targets)
        self.home = folder / "home"
        self.rounds = APART * (len(self.targets) + 1)
        self.report = Report(rounds=self.rounds)
        command = [sys.executable, "-m", "umbel", "up", str(write_app(folder)), "--gpu", "0"]
        counts = ["--edge", str(len(WEIGHTS)), "--rounds", str(self.rounds)]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("UMBEL_", "FLWR_"))}
        self.log = folder / "up.log"
        with self.log.open("wb") as out:
            self.up = subprocess.Popen(
                [*command, *counts], env=env | {"UMBEL_HOME": str(self.home)}, cwd=folder,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def play(self) -> None:
        """Kill one after another, and wait for the end."""
        began = time.monotonic()
        self._reach(APART)
        for who in self.targets:
            before = self._round()
            victims = [(name, self._pid(name)) for name in who]
            bereft = [*victims, ("serverapp", self._pid("serverapp"))] * ("superexec" in who)
            for _, pid in victims:
                os.kill(pid, signal.SIGKILL)
            at = time.monotonic()
            self._back(bereft or victims)
            self.report.back_s.append(round(time.monotonic() - at, 1))
            for name in who:
                self.report.by_victim[name] = self.report.by_victim.get(name, 0) + 1
            print(f"round {before}: {' and '.join(who)} killed, next round after "
                  f"{self.report.back_s[-1]} s", flush=True)  # fmt: skip
            self._reach(min(self._round() + APART // 2, self.rounds))
        status = self.up.wait(LONGEST_S)
        self.report.seconds = round(time.monotonic() - began, 1)
        self.report.kills = sum(map(len, self.targets))
        if status:
            self.report.broken.append(f"`umbel up` ended with status {status}: {self._said()}")

    def _said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-2000:]

    def _wait(self, holds: Any, what: str) -> Any:
        end = time.monotonic() + LONGEST_S
        while not (found := holds()):
            assert self.up.poll() is None, f"{what}: `umbel up` has ended: {self._said()}"
            assert time.monotonic() < end, f"waited in vain for {what}: {self._said()}"
            time.sleep(0.05)
        return found

    def _round(self) -> int:
        """Return the newest round that is finished."""
        for path in self.home.glob("runs/*/ledger.sqlite"):
            with suppress(sqlite3.Error):
                base = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)
                try:
                    query = "SELECT max(round) FROM round WHERE outcome = 'finished'"
                    return int(base.execute(query).fetchone()[0] or 0)
                finally:
                    base.close()
        return 0

    def _reach(self, number: int) -> None:
        self._wait(lambda: self._round() >= number or self.up.poll() == 0, f"round {number}")

    def _pid(self, name: str) -> int:
        """Return the process of a program, once it runs."""
        return int(self._wait(lambda: self._found(name), f"{name} to run"))

    def _found(self, name: str) -> int:
        folder = self.home / "federations" / "dev"
        state = read_state(folder) if folder.is_dir() else None
        programs = {p["program"]["name"]: p["pid"] for p in (state or {}).get("programs", ())}
        if name != "serverapp":
            return programs.get(name, 0) if _alive(programs.get(name, 0)) else 0
        with suppress(psutil.Error):
            for child in psutil.Process(programs.get("superexec", 0)).children(recursive=True):
                if _alive(child.pid) and "flwr-serverapp" in " ".join(child.cmdline()):
                    return int(child.pid)
        return 0

    def _back(self, victims: Sequence[tuple[str, int]]) -> None:
        """Wait until each program is gone and has a successor, and the run has gone on."""
        for name, pid in victims:
            self._wait(lambda pid=pid: not _alive(pid), f"the end of {name}")
        self._reach(min(self._round() + 2, self.rounds))
        for name, pid in victims:
            self._wait(
                lambda name=name, pid=pid: self._found(name) not in {0, pid}, f"{name} again"
            )

    # -- the end ------------------------------------------------------------------------------

    def check(self) -> Report:
        """Compare what was recorded with what is on the disk, and look for what still runs."""
        (run,) = (path.name for path in (self.home / "runs").iterdir())
        with RunDirectory.open(self.home, run) as directory:
            directory.ledger.verify()
            records = directory.ledger.rounds()
            model = directory.read_round(directory.latest() or 0)["0"]
        index = {node: i for i, node in self._nodes()}
        broken, moved = self.report.broken, 0.0
        finished = [r for r in records if (r.phase, r.outcome) == ("train", "finished")]
        for record in finished:
            parts = [index[node] for node in record.survivors]
            total = sum(WEIGHTS[p] for p in parts)
            moved += sum(WEIGHTS[p] * (p + 1) * STEP for p in parts) / total
            if record.metrics["weight.mean"] != total / len(parts) or len(set(parts)) < len(parts):
                broken.append(f"round {record.round}: mean weight {record.metrics['weight.mean']}")
        if abs(model - moved).max() > STEP * 1e-3:
            broken.append(f"the model moved by {model[0]}, its rounds by {moved}")
        numbers = [r.round for r in finished]
        self.report.lost = [r.round for r in records if r.outcome == "lost"]
        if sorted(numbers + self.report.lost) != list(range(1, self.rounds + 1)):
            broken.append(f"rounds finished: {numbers}, lost: {self.report.lost}")
        if len(self.report.lost) > 1:
            broken.append(f"rounds {self.report.lost} are lost, one may be")
        broken += [f"still runs: {line}" for line in self._left()]
        return self.report

    def _nodes(self) -> list[tuple[int, str]]:
        rows = json.loads((self.home / "federations" / "dev" / "nodes.json").read_text())
        return [(int(row["name"].rpartition("-")[2]), row["id"]) for row in rows]

    def _left(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if str(self.folder) in " ".join([*process.cmdline(), *process.environ().values()]):
                    found.append(" ".join(process.cmdline())[:120])
        return found

    def close(self) -> None:
        """End it, and what it has left."""
        if self.up.poll() is None:
            self.up.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.up.wait(60)
        self.up.kill()
        self.up.wait(20)
        env = os.environ | {"UMBEL_HOME": str(self.home)}
        subprocess.run([sys.executable, "-m", "umbel", "down"], env=env, check=False,
                       capture_output=True)  # fmt: skip


def _alive(pid: int) -> bool:
    try:
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def play(targets: Sequence[tuple[str, ...]] = TARGETS) -> Report:
    """Bring a federation up, kill these programs of it, and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = ChaosUp(Path(folder), targets)
        try:
            chaos.play()
            return chaos.check()
        finally:
            chaos.close()


if __name__ == "__main__":
    report = play()
    print(json.dumps(asdict(report)))
    for line in report.broken:
        print(f"broken: {line}", file=sys.stderr)
    sys.exit(1 if report.broken else 0)
