"""Which network interface leads to the gateway: the one whose address the system would speak from.

Nothing is sent: a datagram socket is connected, which chooses a route, and asked for its own name.
A tunnel counts as itself, not as what carries it.
"""

from __future__ import annotations

import socket
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Sequence


def interface_to(address: str) -> str | None:
    """Return the name of the interface that leads to `host:port`; None where that is not known."""
    name, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                own = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        for interface, addresses in psutil.net_if_addrs().items():
            if any(one.address.partition("%")[0] == own for one in addresses):
                return str(interface)
    return None


def listed(interface: str | None, patterns: Sequence[str]) -> bool:
    """Say whether an interface is one of these, `wwan*` among them; an unknown one is."""
    return interface is None or any(fnmatchcase(interface, pattern) for pattern in patterns)
