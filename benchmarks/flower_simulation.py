"""One Flower app on Flower's own engine and on ours: the peer, and tier T3.

`python -m …flower_simulation ENGINE MODEL FOLDER ROUNDS` prints the seconds of each round as JSON;
ENGINE is `flower` or `T3`. The app is the same, to the object: FedAvg, and a ClientApp that keeps
model and mapped data from one message to the next and trains the loop of torch_workloads.py.
Flower's engine is set up kindly: one CPU a client, so one actor a core, and no log. A round lasts
from one `configure_train` to the next, the last one to its `aggregate_train`; the first, in which
processes start, is for the caller to leave out.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from . import torch_workloads as ours
from .simulation_work import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable

ASKED = "UMBEL_BENCH_SIMULATION"
"""Variable with model, folder and rounds, for the processes in which the app runs."""
client_app, server_app = ClientApp(), ServerApp()


@cache
def _kept() -> tuple[str, Any, Any, Any]:
    """Return name, model, inputs and labels; once a process."""
    name, folder, _ = json.loads(os.environ[ASKED])
    return name, ours.model(name), *ours.tensors(Path(folder))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train on one partition."""
    name, net, inputs, labels = _kept()
    rows = WORKLOADS[name].rows(int(context.node_config["partition-id"]))
    arrays = message.content.array_records["arrays"]
    net.load_state_dict(arrays.to_torch_state_dict())
    ours.fit(net, inputs[rows], labels[rows])
    metrics = MetricRecord({"num-examples": rows.stop - rows.start})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when its rounds begin and end."""

    def __init__(self, **options: Any) -> None:
        """Take Flower's options."""
        super().__init__(**options)
        self.began: list[float] = []
        self.ended = 0.0

    def configure_train(self, *arguments: Any) -> Iterable[Message]:
        """Note the beginning."""
        self.began.append(time.perf_counter())
        return super().configure_train(*arguments)

    def aggregate_train(self, *arguments: Any) -> Any:
        """Note the end."""
        found = super().aggregate_train(*arguments)
        self.ended = time.perf_counter()
        return found


@server_app.main()
def main_app(grid: Grid, _context: Context) -> None:
    """Run the rounds and print their seconds."""
    name, _, rounds = json.loads(os.environ[ASKED])
    work = WORKLOADS[name]
    strategy = Timed(
        fraction_train=work.cohort / work.clients, fraction_evaluate=0.0,
        min_train_nodes=work.cohort, min_available_nodes=work.clients,
    )  # fmt: skip
    initial = ArrayRecord(ours.model(name).state_dict())
    strategy.start(grid, initial, num_rounds=rounds)
    marks = [*strategy.began, strategy.ended]
    seconds = [later - earlier for earlier, later in pairwise(marks)]
    print(json.dumps(seconds), flush=True)


def run(engine: str, name: str) -> None:
    """Run the app on an engine."""
    nodes, cores = WORKLOADS[name].clients, len(os.sched_getaffinity(0))
    if engine == "T3":
        from ..simulation.flower_simulate import run_simulation as here  # noqa: PLC0415

        here(server_app, client_app, nodes)
        return
    from flwr.simulation import run_simulation  # noqa: PLC0415 - loads Ray

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": cores, "log_to_driver": False, "logging_level": logging.ERROR}
    config: Any = {"client_resources": resources, "init_args": init}
    run_simulation(server_app, client_app, nodes, backend_config=config)


def main(arguments: list[str]) -> None:
    """Run one engine as a script, whose app its workers find by the module's name."""
    engine, name, folder, rounds = arguments
    os.environ[ASKED] = json.dumps([name, folder, int(rounds)])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    from . import flower_simulation as named  # noqa: PLC0415, PLW0406 - not `__main__`

    named.run(engine, name)


if __name__ == "__main__":
    main(sys.argv[1:])
