"""Umbel: federated training in which nobody sees a single update."""

__version__ = "0.1.0"
