"""The SuperLink's list of nodes, as the issuer changes it: by the Control API, in this process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .flower_control import Control
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TURN_S = 10.0
"""How long one waits for those before it: a removal must not wait for a SuperLink that hangs."""


class SuperLinkRegistrar:
    """A `Registrar` (registrar.py) that asks one SuperLink; one question at a time."""

    def __init__(self, address: str, ca: Path) -> None:
        """Connect when first used.

        Args:
            address: `host:port` of the SuperLink.
            ca: The root that its certificate chains to.
        """
        self._address = address
        self._control, self._one = Control(address, ca), threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        self._control.close()

    def register(self, public_key: bytes, name: str) -> int:
        """Register a key, or find that it is, and return Flower's id of the node.

        Raises:
            SettingsError: The SuperLink does not take the key.
            StateError: It does not answer.
        """
        with self._turn():
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
        with self._turn():
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
        with self._turn():
            return self._control.keys()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread ask at a time."""
        if not self._one.acquire(timeout=TURN_S):
            where = f"SuperLink {self._address}"
            raise StateError(where, "an answer", "none yet to those before", "see its log")
        try:
            yield
        finally:
            self._one.release()
