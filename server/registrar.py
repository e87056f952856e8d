"""What the issuer needs of the SuperLink: its list of nodes (really: flower_registration.py)."""

from __future__ import annotations

from typing import Protocol


class Registrar(Protocol):
    """The SuperLink's list of nodes (flower_registration.py)."""

    def register(self, public_key: bytes, name: str) -> int:
        """Register a key (PEM), or find that it is, and return Flower's id of the node."""

    def unregister(self, flower_node: int) -> None:
        """Let the SuperLink forget a node; one that it does not know is forgotten."""

    def registered(self) -> dict[bytes, int]:
        """Return the keys (PEM) that the SuperLink admits, with its ids."""
