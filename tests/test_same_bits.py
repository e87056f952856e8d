"""One app simulated and in a real federation: the same models, round by round, bit for bit.

Simulated, a tier trains the cohort and every client has a session over the in-process link. In the
real federation the core service is a process, devices come over mTLS with journals on the disk, and
each trains in a child process. What a device draws for its rounding is the only number that differs
by nature: keyed by the OS in the field, by the run's seed in a simulation. With the seed in both
places every digest is equal; without it a model of the first round is off by the code's bound.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from umbel.clients.child import Child
from umbel.protocol.plan import Params
from umbel.server.settings import RunSettings
from umbel.simulation.engine.loop import Loop
from umbel.simulation.federation import Federation
from umbel.simulation.seats import Cohort
from umbel.strategies.app import AppRef, load_task
from umbel.tests.apps import naughty
from umbel.tests.federations import Run, addressed, core, made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.server.ledger import RoundRecord
    from umbel.simulation.dev_federation import DevFederation

CLIENTS, ROUNDS = 4, 2
CAP = 4096
"""Far above the weights, so that the code is coarse and its rounding shows in float32."""
PARAMS = Params(value_range=0.5, weight_cap=CAP, min_members=3, min_survivors=3)
NUMBERS: dict[str, Any] = {
    "params": PARAMS,
    "rounds": ROUNDS,
    "config": {"lr": 0.3, "local-epochs": 2, "seed": 0},
    "final_evaluation": True,
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppRef:
    """An app whose clients have 30 to 33 examples."""
    return AppRef.read(naughty(tmp_path_factory.mktemp("app") / "app"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A federation whose core service is a process."""
    made_here = made(tmp_path_factory.mktemp("federation"), CLIENTS)
    with core(made_here) as port:
        addressed(made_here, f"127.0.0.1:{port}")
        yield made_here


def simulated(app: AppRef, home: Path) -> tuple[list[tuple[object, ...]], dict[str, NDArray[Any]]]:
    task, models = load_task(app), list[dict[str, NDArray[Any]]]()
    with Child(app) as own:
        federated = Federation(
            Cohort(Loop(task), task, own),
            RunSettings(run="simulated", seed=0, **NUMBERS),
            clients=CLIENTS,
            home=home,
            observe=lambda _: models.append(dict(federated.coordinator.model)),
        )
        records = [essence(record) for record in federated.run().records]
    return records, models[0]


def real(
    app: AppRef, federation: DevFederation, home: Path, seed: int | None
) -> tuple[list[tuple[object, ...]], dict[str, NDArray[Any]]]:
    with ExitStack() as stack:
        trainers = [stack.enter_context(Child(app)) for _ in range(CLIENTS)]
        run = Run(federation, home, f"real-{seed}", trainer=trainers[0], **NUMBERS)
        stack.callback(run.close)
        devices = run.devices()
        for index, device in enumerate(devices):
            device.trainer, device.partitions, device.seed = trainers[index], CLIENTS, seed
            device.start(run.name, run.ticket(index))
        run.joined(CLIENTS)
        run.coordinator.begin(time.monotonic())
        run.pump(lambda: run.coordinator.done)
        assert run.coordinator.failure is None
        for device in devices:
            device.join()
        return [essence(record) for record in run.records], run.directory.read_round(1)


def essence(record: RoundRecord) -> tuple[object, ...]:
    """Return what does not follow from names, times, bytes on the way or a server's examples."""
    survivors, roster = len(record.survivors), len(record.roster)
    found = {k: v for k, v in record.metrics.items() if not k.startswith("test.")}
    return (
        record.round,
        record.phase,
        record.outcome,
        roster,
        survivors,
        record.model,
        found,
    )


def test_a_simulation_by_rows_and_a_federation_of_processes_publish_the_same_models(
    app: AppRef, federation: DevFederation, tmp_path: Path
) -> None:
    (tmp_path / "s").mkdir()
    records, first = simulated(app, tmp_path / "s")
    assert [(r[0], r[1], r[2], r[4]) for r in records] == [
        (1, "train", "finished", CLIENTS),
        (2, "train", "finished", CLIENTS),
        (2, "evaluate", "finished", CLIENTS),
    ]
    seeded, _ = real(app, federation, tmp_path, 0)
    assert seeded == records
    unseeded, other = real(app, federation, tmp_path, None)
    assert unseeded[0][5] != records[0][5]
    q_max = 2**29 - 1  # 4 members: 30 bits
    bound = 2 * (0.5 / q_max) * CAP / np.mean([30, 31, 32, 33]) + 2.0**-23
    for name, array in first.items():
        assert np.abs(array - other[name]).max() <= bound
