"""What a service says to systemd: datagrams to `$NOTIFY_SOCKET`, as sd_notify(3) describes them.

Where no service manager listens, nothing is said. The variables are taken out of the environment:
what this process starts must not speak in its name.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

SOCKET, WATCHDOG, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
SEND_S = 1.0
"""A manager whose queue is full takes a datagram; then it goes without."""
_LONGEST = 300
"""Characters of a status line."""


class Notifier:
    """The line to the service manager."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables that it sets."""
        address = environment.pop(SOCKET, "")
        interval, pid = environment.pop(WATCHDOG, ""), environment.pop(WATCHDOG_PID, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        ours = not pid or pid == str(os.getpid())
        whole = interval.isascii() and interval.isdigit()
        self.watchdog = int(interval) / 1e6 if ours and whole else 0.0
        """Seconds without `alive` after which the manager starts the service anew; 0 for never."""

    def ready(self) -> None:
        """Say that the service is up."""
        self._send("READY=1")

    def alive(self) -> None:
        """Say that the service is not stuck."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say in one line what it does; `systemctl status` shows it."""
        line = "".join(c if c.isprintable() else " " for c in text)
        self._send(f"STATUS={line[:_LONGEST]}")

    def stopping(self) -> None:
        """Say that it ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        """Send a datagram; a manager that does not take it changes nothing here."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(SEND_S)
            line.sendto(text.encode(), self._address)
