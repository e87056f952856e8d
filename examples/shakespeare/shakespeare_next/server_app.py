"""The Flower ServerApp of shakespeare: federated averaging over secure sessions."""

import umbel

from .task import NextCharacter

app = umbel.server_app(NextCharacter)
