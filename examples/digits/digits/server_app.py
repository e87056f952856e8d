"""The Flower ServerApp of digits: federated averaging over plain Flower messages."""

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from umbel import FedAvg
from umbel.strategies.trainer import load

from .task import Digits

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging for the rounds of the run-config."""
    initial = load(Digits()).arrays()
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial.items()}),
        num_rounds=int(context.run_config["rounds"]),
    )
