"""The Flower ClientApp of shakespeare: it trains in secure sessions."""

import umbel

from .task import NextCharacter

app = umbel.client_app(NextCharacter)
