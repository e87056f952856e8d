"""pfl-research on a workload: `torchrun … -m …pfl_simulation MODEL FOLDER ROUNDS`.

Its fastest way: user data sets that hold torch tensors already, no privacy, no evaluation, one
thread a process. The first process prints the seconds of each round as JSON. pfl draws its own
cohorts. Needs the package `pfl`, which is no dependency of Umbel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import torch_workloads as ours
from .simulation_work import BATCH, LR, WORKLOADS

NEVER = 10**6


def _part(name: str) -> Any:
    return import_module(f"pfl.{name}")


def _model(name: str) -> Any:
    """Return the model with the loss that pfl asks it for."""
    net = ours.model(name)

    def loss_of(inputs: Any, labels: Any, *, eval: bool = False) -> Any:  # noqa: A002 - pfl's name
        net.train(not eval)
        return ours.loss(net(inputs), labels)

    net.loss = loss_of  # type: ignore[assignment]
    net.metrics = lambda *_: {}  # type: ignore[assignment]
    return _part("model.pytorch").PyTorchModel(
        net,
        local_optimizer_create=ours.sgd,
        central_optimizer=ours.sgd(net.parameters(), 1.0),
    )


def _data(name: str, folder: Path) -> Any:
    inputs, labels = ours.tensors(folder)
    work, dataset = WORKLOADS[name], _part("data.dataset").Dataset

    def user(client: int) -> Any:
        rows = work.rows(client)
        return dataset([inputs[rows], labels[rows]], user_id=client)

    sampler = _part("data.sampling").get_user_sampler("random", list(range(work.clients)))
    return _part("data.federated_dataset").FederatedDataset(user, sampler)


def main(arguments: list[str]) -> None:
    """Run the rounds and print their seconds."""
    name, folder, rounds = arguments[0], Path(arguments[1]), int(arguments[2])
    callback = _part("callback.base").TrainingProcessCallback
    marks: list[float] = []

    class Marks(callback):  # type: ignore[misc,valid-type]
        """Notes when rounds end."""

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            """Note it."""
            marks.append(time.perf_counter())
            return False, _part("metrics").Metrics()

    data = _data(name, folder)
    backend = _part("aggregate.simulate").SimulatedBackend(
        training_data=data, val_data=data,
        postprocessors=[_part("aggregate.weighting").WeightByDatapoints()],
    )  # fmt: skip
    _part("algorithm.federated_averaging").FederatedAveraging().run(
        algorithm_params=_part("algorithm.base").NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=NEVER,
            train_cohort_size=WORKLOADS[name].cohort, val_cohort_size=0,
        ),
        backend=backend,
        model=_model(name),
        model_train_params=_part("hyperparam.base").NNTrainHyperParams(
            local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH
        ),
        model_eval_params=None,
        callbacks=[Marks()],
    )  # fmt: skip
    if int(os.environ.get("RANK", "0")) == 0:
        seconds = [later - earlier for earlier, later in pairwise(marks)]
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
