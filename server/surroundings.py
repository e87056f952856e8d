"""What a coordinator stands on, given to it from outside: trust, disk, transport and clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from .ingest import OpenIntake
    from .ledger import RoundRecord
    from .run_directory import RunDirectory
    from ..protocol.verification import Verifier


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a coordinator stands on: trust, disk, transport and clock."""

    verifier: Verifier
    ca: bytes
    """SHA-256 of the CA certificate's DER."""
    app: bytes = bytes(32)
    """SHA-256 of the app bundle; zeros outside Flower."""
    directory: RunDirectory
    """Where rounds and ledger are written; the ledger has the run already."""
    post: Callable[[str, bytes], None]
    """Sends bytes to a node."""
    wall: Callable[[], datetime]
    """Civil time, for certificates and time stamps."""
    test: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None = None
    """The server's own evaluation, means by name."""
    observe: Callable[[RoundRecord], None] = lambda _record: None
    """Called with every record after it is committed."""
    ready: Callable[[int, Collection[str], float], bool] = lambda _round, _nodes, _now: True
    """Asked before a round starts, with its number, the nodes here and the time; it may wait."""
    slots: int = 1
    """Uploads in flight at once, where the core is in this process."""
    publish: Callable[[bytes, bytearray], None] = lambda _digest, _packed: None
    """Takes every model that members may fetch, with its digest, once it is on disk."""
    traffic: Callable[[], tuple[int, int]] | None = None
    """Bytes up and down since the last call, where a gateway elsewhere counts them."""
    intake: OpenIntake | None = None
    """Opens sums at a core elsewhere; None is the embedded world of one."""
