"""The Flower ClientApp of mnist: it trains in secure sessions."""

import umbel

from .task import Mnist

app = umbel.client_app(Mnist)
