"""The Flower ServerApp of mnist: federated averaging over secure sessions."""

import umbel

from .task import Mnist

app = umbel.server_app(Mnist)
