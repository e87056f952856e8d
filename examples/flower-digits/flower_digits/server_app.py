"""The ServerApp: federated averaging as Flower does it."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_digits.task import initial_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds and say what the model looks like."""
    rounds = int(context.run_config["num-server-rounds"])
    arrays = ArrayRecord(initial_model())
    result = FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
    weights = result.arrays.to_numpy_ndarrays()[0]
    print(f"norm of the final weights: {np.linalg.norm(weights):.3f}")
