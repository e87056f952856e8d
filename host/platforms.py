"""Which machines Umbel runs on: Linux on x86-64 and aarch64, with Python 3.11 or later.

Checked where something is about to be installed that shall run for months (`umbel client enrol`,
`umbel client install`, `umbel server init`): elsewhere it would fail later, and not in one line.
The kernel's word for the processor is not enough: a 32-bit Python on a 64-bit kernel, as some
boards ship it, gets other wheels.
"""

from __future__ import annotations

import platform
import sys
from typing import NamedTuple

from ..protocol.errors import SettingsError

MACHINES = ("x86_64", "aarch64")
PYTHON = (3, 11)
SUPPORTED = "64-bit Linux on x86-64 or aarch64 with Python 3.11 or later"


class Platform(NamedTuple):
    """What decides it."""

    system: str
    """`Linux`."""
    machine: str
    """As `uname -m` says it."""
    bits: int
    """Of an address in this Python."""
    python: tuple[int, int]

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.bits}-bit {self.system} on {self.machine} with Python {self.version}"

    @property
    def version(self) -> str:
        """`3.11`."""
        return ".".join(map(str, self.python))

    @property
    def supported(self) -> bool:
        """Whether Umbel runs here."""
        known = self.system == "Linux" and self.machine in MACHINES and self.bits == _BITS
        return known and self.python >= PYTHON


_BITS = 64


def this_machine() -> Platform:
    """Return what this process runs on."""
    bits = _BITS if sys.maxsize > 1 << 32 else 32
    return Platform(platform.system(), platform.machine(), bits, sys.version_info[:2])


def check_platform(found: Platform | None = None) -> None:
    """Refuse a machine on which Umbel does not run; `found` is this one unless given.

    Raises:
        SettingsError: With what it is.
    """
    found = found or this_machine()
    if not found.supported:
        raise SettingsError("platform", SUPPORTED, str(found), "use another machine")
