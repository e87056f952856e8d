"""A round with a robust rule has the model that Flower's strategy of the same rule makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum, MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.kept import Keeping
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.stepping import StepOrder
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAvg
from umbel.tests.test_flower_fedavg import merged, reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLIENTS, WEIGHT = 10, 50
CODEC = Codec(CLIENTS, 0.5, 64)
RESOLUTION = 0.5 * 64 / ((2**27 - 1) * WEIGHT)


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's launcher gives; messages need one."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def stepped(
    model: dict[str, NDArray[Any]], deltas: list[dict[str, NDArray[Any]]], robust: Robust
) -> dict[str, NDArray[Any]]:
    """Return the model of one plain round, every message encoded, kept and decoded."""
    manifest = Manifest.of(model)
    layout = MessageLayout(manifest, {}, "train")
    packed = manifest.pack(model)
    run = RunModel(manifest, model_digest(packed), packed)
    total = World(2).open(layout.total_bytes, layout.split, Keeping(robust, CODEC))
    for client, delta in enumerate(deltas):
        slot = total.slot(f"node {client}")
        assert slot is not None
        slot[:] = layout.build(delta, WEIGHT, {}, CODEC, bytes([client]) * 32)
        total.fold(f"node {client}")
    order = StepOrder(FedAvg(robust=robust), 1, layout, CODEC, CLIENTS, CLIENTS * WEIGHT)
    run.adopt(total.step(run, order))
    return manifest.views(run.packed)


@pytest.mark.parametrize(
    ("robust", "flowers"),
    [
        (Robust(rule="median"), FedMedian()),
        (Robust(rule="trimmed-mean", cut=0.2), FedTrimmedAvg(beta=0.2)),
        (Robust(rule="trimmed-mean", cut=0.45), FedTrimmedAvg(beta=0.45)),
        (Robust(rule="krum", byzantine=2), Krum(num_malicious_nodes=2)),
        (
            Robust(rule="multi-krum", byzantine=2, keep=4),
            MultiKrum(num_malicious_nodes=2, num_nodes_to_select=4),
        ),
    ],
)  # fmt: skip
def test_it_is_flowers_to_the_codes_resolution(robust: Robust, flowers: Any) -> None:
    """Updates are as large as the weights here: where they are smaller, Flower's Krums err."""
    rng = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {"conv": (8, 3, 3), "head": (200,), "scalar": ()}
    model = {n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in shapes.items()}
    deltas = [
        {n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in shapes.items()}
        for _ in range(CLIENTS)
    ]
    for name in shapes:
        deltas[7][name] = np.full_like(deltas[7][name], 0.45)
    replies = [
        reply(node, {n: np.asarray(model[n] + d) for n, d in delta.items()}, {"num-examples": 50})
        for node, delta in enumerate(deltas)
    ]
    theirs = merged(flowers.aggregate_train(1, replies)[0])
    ours = stepped(model, deltas, robust)
    for name in shapes:
        assert np.abs(ours[name] - theirs[name]).max() <= RESOLUTION + 2**-22
