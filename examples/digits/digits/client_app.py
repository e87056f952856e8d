"""The Flower ClientApp of digits: it trains in secure sessions."""

import umbel

from .task import Digits

app = umbel.client_app(Digits)
