"""A real federation that trains nothing, under Umbel's sessions and under Flower's own loop.

One app, written into a directory of its own: its ClientApp adds a constant to the arrays that
came, so that each round has another model to send, and stands behind `umbel.secure`, which hands
plain Flower messages on. Its ServerApp runs `umbel.train`, masks on
or off, or Flower's FedAvg, as the run-config says. So all of them have the same SuperLink,
SuperNodes, TLS, ClientApp and model, and only the loop differs.

A round is timed alike in both loops: from one call of a client's training, which notes the time in
a file and hands the arrays back, to that client's next. Between two of them lies everything that a
round does, in whatever order: messages, sum, server step and, with Umbel, checkpoint and ledger.
"""

from __future__ import annotations

import itertools
import shutil
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Self

from ..host.places import umbel_home
from ..protocol.errors import StateError
from ..simulation.flower_up import FlowerUp, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = f"flwr {version('flwr')} FedAvg"
FLOWER = "flower"
"""The loop that is Flower's; the others are `secure` and `plain`."""
LONGEST_S = 600.0
"""How long one run may take."""
_LOOK_S = 2.0  # seldom: each look is work for the SuperLink, on the same cores
_LAST_CHARACTERS = 300
_TIMES = "times"

PYPROJECT = """\
[project]
name = "idle"
version = "1.0.0"
description = "trains nothing"
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "umbel"
[tool.flwr.app.components]
serverapp = "idle.server_app:app"
clientapp = "idle.client_app:app"
[tool.flwr.app.config]
loop = "plain"
clients = 3
rounds = 1
params = 1000
times = ""
"""

CLIENT = """\
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import umbel

STEP = np.float32(2**-10)
idle = ClientApp()


@idle.train()
def train(message: Message, context: Context) -> Message:
    with open(context.run_config["times"], "a") as file:
        file.write(f"{context.node_id} {time.monotonic()}\\n")
    came = message.content["arrays"]
    moved = ArrayRecord({name: Array(array.numpy() + STEP) for name, array in came.items()})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)


app = umbel.secure(idle)
"""

SERVER = f"""\
import os

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import umbel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients, rounds, loop = config["clients"], config["rounds"], config["loop"]
    arrays = {{"weight": np.zeros(config["params"], np.float32)}}
    if loop == "{FLOWER}":
        FedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        ).start(
            grid=grid,
            initial_arrays=ArrayRecord({{name: Array(array) for name, array in arrays.items()}}),
            num_rounds=rounds,
        )
    else:
        os.environ["UMBEL_SECURE"] = "off" if loop == "plain" else "on"
        umbel.train(
            grid,
            umbel.FedAvg(),
            initial_arrays=arrays,
            config={{"clients": clients, "rounds": rounds, "weight-cap": 1}},
        )
"""


def write_app(folder: Path) -> Path:
    """Write the app into `folder`/idle and return that directory."""
    app = folder / "idle"
    package = app / "idle"
    package.mkdir(parents=True)
    (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    for name, text in (("__init__", ""), ("client_app", CLIENT), ("server_app", SERVER)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return app


class IdleFederation:
    """SuperLink, core service and SuperNodes on this machine; leaving the block ends them.

    Its directory lies in Umbel's state directory, so that rounds are written to the disk to which
    a user's are, and always at the same place, so that what a killed benchmark left running is
    found and ended.
    """

    def __init__(self, clients: int, rounds: int, say: Callable[[str], None]) -> None:
        """Write the app and the federation's files.

        Args:
            clients: SuperNodes.
            rounds: How many rounds a device takes part in, at most.
            say: Takes a line about each step.
        """
        self.clients, self._say = clients, say
        self.home = umbel_home() / "benchmarks" / "round"
        shutil.rmtree(self.home / "app", ignore_errors=True)
        self._up = FlowerUp(
            Wanted(
                app=write_app(self.home / "app"),
                edge=clients,
                gpu=0,
                home=self.home,
                name="bench",
                secure=False,  # the devices allow both
                rounds=rounds,
            ),
            say,
        )

    def __enter__(self) -> Self:
        """Bring everything up."""
        try:
            self._say(f"starting SuperLink, core service and {self.clients} SuperNodes")
            self._up.start_servers()
            self._up.start_nodes()
            self._up.wait_online()
        except BaseException:
            self._up.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything and remove what it wrote."""
        self._up.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def seconds(self, loop: str, params: int, rounds: int) -> list[float]:
        """Run one more round than `rounds` and return the seconds of each but the first.

        Args:
            loop: `plain`, `secure` or `FLOWER`.
            params: Parameters of the model, float32.
            rounds: 1 or more.

        Raises:
            StateError: The run failed; with the end of its ServerApp's output.
        """
        self._say(f"{loop}: {rounds} rounds of {params} parameters")
        times = self.home / _TIMES
        times.unlink(missing_ok=True)
        wanted: dict[str, int | str] = {
            "loop": loop,
            "clients": self.clients,
            "rounds": rounds + 1,
            "params": params,
            "times": str(times),
        }
        run = self._up.submit(wanted)
        until = time.monotonic() + LONGEST_S
        while not (state := self._up.control.run(run)).over and time.monotonic() < until:
            for item in self._up.watch():
                self._say(f"{item.name} {item.status or item.what}")
            time.sleep(_LOOK_S)
        found = _longest(times)
        if not state.over or len(found) < rounds:
            said = "".join(self._up.control.output(run)) if state.over else "no end"
            got = f"{state.outcome}: {said[-_LAST_CHARACTERS:]}"
            raise StateError(f"{loop} run", f"{rounds + 1} rounds", got)
        return found[:rounds]


def _longest(times: Path) -> list[float]:
    """Return the seconds from call to call of the client that was called most often."""
    calls: dict[str, list[float]] = {}
    for line in times.read_text(encoding="utf-8").splitlines() if times.exists() else ():
        node, at = line.split()
        calls.setdefault(node, []).append(float(at))
    most = max(calls.values(), key=len, default=[])
    return [later - sooner for sooner, later in itertools.pairwise(most)]
