"""The SuperLink's list of nodes, as the issuer changes it: by the Control API, in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .flower_control import Control
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


class SuperLinkRegistrar:
    """A `Registrar` (registrar.py) that asks one SuperLink; one question at a time."""

    def __init__(self, address: str, ca: Path) -> None:
        """Connect when first used.

        Args:
            address: `host:port` of the SuperLink.
            ca: The root that its certificate chains to.
        """
        self._control, self._turn = Control(address, ca), threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        self._control.close()

    def register(self, public_key: bytes, name: str) -> int:
        """Register a key, or find that it is, and return Flower's id of the node.

        Raises:
            SettingsError: The SuperLink does not take the key.
            StateError: It does not answer.
        """
        with self._turn:
            try:
                return self._control.register(public_key, name)
            except SettingsError:
                known = self._control.keys().get(public_key)
                if known is None:  # it was unregistered, which is for good, or is no key
                    raise
                return known

    def unregister(self, flower_node: int) -> None:
        """Let the SuperLink forget a node; one that it does not know is forgotten.

        Raises:
            StateError: The SuperLink does not answer.
        """
        with self._turn:
            try:
                self._control.unregister(flower_node)
            except SettingsError:
                if flower_node in self._control.keys().values():
                    raise

    def registered(self) -> dict[bytes, int]:
        """Return the keys that the SuperLink admits, with its ids.

        Raises:
            StateError: It does not answer.
        """
        with self._turn:
            return self._control.keys()
