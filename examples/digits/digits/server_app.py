"""The Flower ServerApp of digits: federated averaging over secure sessions."""

import umbel

from .task import Digits

app = umbel.server_app(Digits)
