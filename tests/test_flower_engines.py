"""Flower apps of other kinds in the simulator: torch, Flower's older interface, its own engine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from umbel.simulation.flower_simulate import FlowerOptions, run_simulation
from umbel.tests import flower_sim_apps as apps

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="the apps train with torch")


class Older(NumPyClient):
    """A client of Flower's older interface."""

    def __init__(self, node: int) -> None:
        self.node = node

    def fit(self, parameters: Any, config: Any) -> Any:
        """Add the node's number."""
        return [parameters[0] + self.node], 10, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Return the sum as the loss."""
        return float(parameters[0].sum()), 10, {}


def test_an_app_of_flowers_older_interface_runs_too(tmp_path: Path) -> None:
    def server(_context: Context) -> ServerAppComponents:
        start = ndarrays_to_parameters([np.zeros(3)])
        strategy = OlderFedAvg(initial_parameters=start)
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    def client(context: Context) -> Any:
        return Older(int(context.node_config["partition-id"])).to_client()

    options = FlowerOptions(workers=2, home=tmp_path, run="older")
    made = run_simulation(ServerApp(server_fn=server), ClientApp(client), 5, options=options)
    assert made is not None
    assert [(r.round, r.phase, len(r.survivors)) for r in made.records] == [
        (n, phase, 5) for n in (1, 2) for phase in ("train", "evaluate")
    ]
    (last,) = made.model.values()
    np.testing.assert_allclose(last, 4.0)  # the mean of 0 to 4 is 2, twice
    assert made.records[3].metrics["eval.loss"] == pytest.approx(12.0)


def net() -> Any:
    """Return a model with dropout."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.5),
        torch.nn.Linear(144, 3),
    )  # fmt: skip


def weight(node: int) -> int:
    """Return how many examples a node has."""
    return 8 + node


def fit(model: Any, node: int) -> None:
    """Train with momentum, on data and with masks that the node's number decides."""
    torch.manual_seed(100 + node)
    inputs, labels = torch.randn(weight(node), 1, 8, 8), torch.randint(0, 3, (weight(node),))
    stepper = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in torch.arange(weight(node)).split(4):
        stepper.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        stepper.step()


def train(message: Message, context: Context) -> Message:
    """Answer with what a node makes of the model."""
    model, node = net(), int(context.node_config["partition-id"])
    model.load_state_dict(apps.records(message)["arrays"].to_torch_state_dict())
    fit(model, node)
    metrics = MetricRecord({"num-examples": weight(node)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def server_app(found: list[Result]) -> ServerApp:
    """Return an app that runs FedAvg from the model."""
    app = ServerApp()

    @app.main()
    def start(grid: Any, _context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        found.append(strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=2))

    return app


def test_a_torch_app_gives_the_parameters_of_a_plain_loop(tmp_path: Path) -> None:
    found: list[Result] = []
    options = FlowerOptions(workers=2, home=tmp_path)
    run_simulation(server_app(found), apps.client_app(train), 4, options=options)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, start = net(), net().state_dict()
    for _ in range(2):
        total = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in start.items()}
        for node in range(4):
            model.load_state_dict(start)
            fit(model, node)
            for key, value in model.state_dict().items():
                total[key] += value.double() * weight(node) / sum(map(weight, range(4)))
        start = {key: value.float() for key, value in total.items()}
    torch.set_num_threads(threads)
    moved, initial = 0.0, net().state_dict()
    for key, value in found[0].arrays.to_torch_state_dict().items():
        torch.testing.assert_close(value, start[key], rtol=0, atol=1e-6)
        moved = max(moved, float((value - initial[key]).abs().max()))
    assert moved > 0.05


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # Ray's
@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's own engine needs Ray")
def test_flowers_own_engine_gives_the_same_parameters(tmp_path: Path) -> None:
    from flwr.simulation import run_simulation as flowers  # noqa: PLC0415 - loads Ray

    app, ours, theirs = apps.client_app(train), list[Result](), list[Result]()
    run_simulation(server_app(ours), app, 4, options=FlowerOptions(home=tmp_path))
    flowers(server_app(theirs), app, 4)
    got = ours[0].arrays.to_torch_state_dict()
    for key, value in theirs[0].arrays.to_torch_state_dict().items():
        torch.testing.assert_close(got[key], value, rtol=0, atol=1e-6)
