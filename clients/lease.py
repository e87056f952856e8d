"""What a device does for a server that may be gone: it lends it training, for a while.

    a server is there ── lost ──► `LAPSE_S` seconds ──► the training is stopped, its memory is free
                      ◄── held ──

A server is there while the stream to the gateway is up and the gateway says that the run has a
ServerApp. When neither has been so for long enough, what trains is stopped, in the middle of a
round too: whoever asked for it will not take it any more. The session waits on, and joins the next
attempt when a server is back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LAPSE_S = 14.0
"""How long training goes on without a server. A gateway that vanished without a word is noticed
after 14 s, a ServerApp's death after 4 s: in 30 s after any death nothing trains for it."""


class Lease:
    """Calls `lapsed`, from a thread of its own, once a server has been lost for long enough."""

    def __init__(self, lapsed: Callable[[], None], seconds: float | None = None) -> None:
        """Wait for the first `lost`; `seconds` in place of `LAPSE_S`."""
        self._lapsed = lapsed
        self.seconds = LAPSE_S if seconds is None else seconds
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def lost(self) -> None:
        """Note that no server is there; only the first time counts."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(self.seconds, self._lapsed)
                self._timer.daemon = True
                self._timer.start()

    def held(self) -> None:
        """Note that a server is there."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
