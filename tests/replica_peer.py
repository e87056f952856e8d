"""One rank of the tests of replicas: rank 0 prints what came of each work, the others follow."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.protocol.errors import StateError, UmbelError
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.reducing import count_values
from umbel.simulation.engine.replicas import group, world
from umbel.simulation.engine.work import Reduced, Work
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests.engine_works import SIZES, NumpyTask, examples

if TYPE_CHECKING:
    from umbel import Site

CLIENTS = (4, 0, 1, 6, 3, 2, 7)


class Faulty(NumpyTask):
    """Client 1 raises, client 6 diverges."""

    def train_data(self, site: Site) -> Any:
        """Return rows, or the client's fault."""
        if site.index == 1:
            raise OSError("the disk of client 1")
        inputs, labels = examples(site.index)
        return (inputs * 1e30 if site.index == 6 else inputs), labels


def cohort(round_: int, clients: tuple[int, ...] = CLIENTS) -> Work:
    """Return a work that uses all that a work may have."""
    first = TaskTrainer(NumpyTask()).arrays()
    second = {name: array + np.float32(0.01) for name, array in first.items()}
    numbers = np.arange(len(clients))
    return Work(
        clients=np.array(clients, np.int64),
        partitions=len(SIZES),
        models=[first, second],
        model_of=numbers % 2,
        launches=numbers + 5,
        factors=1.0 / (1 + numbers % 3),
        settings=Settings(round=round_, seed=11),
        config={"note": "é"},
        weight_cap=20,
        max_norm=50.0,
        evaluate=True,
    )


def told(found: Reduced, out: np.ndarray) -> dict[str, Any]:
    """Return everything of a result as JSON."""
    report = found.report
    return {
        "total": hashlib.sha256(found.total.tobytes()).hexdigest(),
        "rows": hashlib.sha256(out.tobytes()).hexdigest(),
        "numbers": [found.exponent, found.weight, report.verdicts.tolist()],
        "losses": report.losses.tobytes().hex(),
        "examples": [report.weights.tolist(), report.examples.tolist()],
        "metrics": {name: values.tolist() for name, values in sorted(report.metrics.items())},
        "causes": {str(k): v for k, v in report.causes.items()},
    }


def rounds(tier: Any) -> list[dict[str, Any]]:
    """Train two rounds, then one client alone: more ranks than clients."""
    found = []
    for work in (cohort(1), cohort(2), cohort(3, (5,))):
        out = np.zeros((len(work.clients), count_values(work.models[0])), np.float32)
        tier.rows(work, out)
        found.append(told(tier.reduce(work), out))
    return found


class Broken(Loop):
    """A tier that fails at its second work."""

    works = 0

    def reduce(self, work: Work) -> Reduced:
        """Train once."""
        self.works += 1
        if self.works > 1:
            raise StateError("disk", "room", "none")
        return super().reduce(work)


def native() -> Any:
    """Return the native tier."""
    from umbel.simulation.native.tier import tier  # noqa: PLC0415 - compiles

    return tier(Faulty(), examples(0), 2, evaluate=True)


def make(name: str) -> Any:
    """Return a tier: rank 1 breaks under the name T1."""
    if name == "T0":
        return native()
    if name == "T2":
        raise StateError("T2", "a GPU", "none")
    return Broken(Faulty()) if name == "T1" else Loop(Faulty())


def main() -> None:
    """Be one rank."""
    from umbel.simulation.engine.torch_replicas import Replicas, follow  # noqa: PLC0415 - slow

    np.seterr(all="ignore")
    place = world()
    if place is None:
        raise SystemExit("no world")
    ranks = group(place)
    if place.rank:
        follow(ranks, make)
        return
    end, errors = sys.argv[1], []
    tier = Replicas(ranks, Loop(Faulty()))
    found = rounds(tier)
    if end == "native":
        found = rounds(Replicas(ranks, native()))
    if end == "broken":
        own = Loop(Faulty())
        own.name = "T1"
        broken = Replicas(ranks, own)
        broken.reduce(cohort(1))
        own.name = "T2"
        for fail in (lambda: broken.reduce(cohort(2)), lambda: Replicas(ranks, own)):
            try:
                fail()
            except UmbelError as error:
                errors.append(str(error))
    if end == "killed":
        print(json.dumps(os.getpid()), flush=True)
        sys.stdin.readline()
        try:
            tier.reduce(cohort(4))
        except UmbelError as error:
            print(json.dumps(str(error)), flush=True)
            os._exit(3)
    print(json.dumps({"rounds": found, "errors": errors}), flush=True)
    tier.close()


if __name__ == "__main__":
    main()
