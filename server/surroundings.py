"""What a coordinator stands on, given to it from outside: trust, disk, transport and clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .core.world import World
from .watch_terms import Unwatched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from .core.worlds import AnyWorld
    from .ingest import AggregationCore, Intake
    from .invitation import Joined, Plan
    from .ledger import Event, RoundRecord
    from .open_round import OpenRounds
    from .stepping import StateFile
    from ..protocol.manifest import Manifest
    from ..protocol.reopening import Reopenable
    from ..protocol.verification import Verifier


class Entries(Protocol):
    """Takes what a ledger keeps (ledger.py)."""

    def commit_round(self, record: RoundRecord, /, *beside: Event) -> None:
        """Append the outcome of an attempt, and events with it."""

    def event(
        self,
        kind: str,
        /,
        *,
        round: int,  # noqa: A002 - the column's name
        attempt: int,
        node: str,
        code: str,
        detail: Mapping[str, float | str] | None = None,
        at: str,
    ) -> None:
        """Append an event."""


class Rounds(Protocol):
    """Takes what a run's directory keeps: the directory itself, or a thread that writes to it."""

    @property
    def ledger(self) -> Entries:
        """The run's ledger."""

    def write_round(
        self,
        n: int,
        arrays: Mapping[str, NDArray[Any]],
        manifest: Manifest,
        digest: bytes,
        extra: Mapping[str, Any],
        moments: Mapping[str, memoryview] | None = None,
        /,
    ) -> object:
        """Write the model of a round, and its moments; it is not committed yet."""

    def flush(self) -> None:
        """Return when a step may write over what was handed over: it is durable, or kept."""

    def settle(self) -> None:
        """Return when everything that was handed over is durable, and others can read it."""

    def state(self) -> StateFile | None:
        """Return where the moments of the newest committed round are; None if it has none."""

    def prune(self, best: int | None, /, *held: int) -> object:
        """Remove the rounds that are not kept."""

    def latest(self) -> int | None:
        """Return the newest committed round."""


class Tests(Protocol):
    """Tests models while the rounds go on (evaluation.py)."""

    @property
    def held(self) -> Collection[int]:
        """Rounds whose folders are still to be read."""

    def submit(self, number: int, digest: bytes, /) -> None:
        """Take note of the model of a round that has finished."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a coordinator stands on: trust, disk, transport and clock."""

    verifier: Verifier | None
    """Who is a member; None where nobody joins (reduced.py)."""
    ca: bytes = bytes(32)
    """SHA-256 of the CA certificate's DER."""
    app: bytes = bytes(32)
    """SHA-256 of the app bundle; zeros outside Flower."""
    directory: Rounds
    """Where rounds and ledger are written; the ledger has the run already."""
    post: Callable[[str, bytes], None] = lambda _node, _data: None
    """Sends bytes to a node."""
    wall: Callable[[], datetime]
    """Civil time, for certificates and time stamps."""
    test: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None = None
    """The server's own evaluation, means by name; the round waits for it. A simulation's: its
    numbers depend on no clock."""
    tests: Tests | None = None
    """The server's own evaluation after the round, instead."""
    observe: Callable[[RoundRecord], None] = lambda _record: None
    """Called with every record after it is committed."""
    ready: Callable[[int, Mapping[str, Joined], float], bool] = lambda _round, _nodes, _now: True
    """Asked before a round starts, with its number, who is here and the time; it may wait."""
    watch: Unwatched = field(default_factory=Unwatched)
    """Compares rounds with what is expected, and knows what people decided (watching.py)."""
    world: AnyWorld = field(default_factory=World)
    """Where sums are formed, where the core is in this process."""
    traffic: Callable[[], tuple[int, int]] | None = None
    """Bytes up and down since the last call, where a gateway elsewhere counts them."""
    core: AggregationCore | None = None
    """The aggregation core elsewhere; None is one in this process, over `world`."""
    open_rounds: OpenRounds | None = None
    """Keeps a secure round from its votes to its end; None where members end with the server."""

    def keep(self, plan: Plan, server: Reopenable, intake: Intake) -> None:
        """Write down what a successor needs to finish an attempt; before votes are asked for."""
        if self.open_rounds is not None:
            self.open_rounds.keep(plan, server, intake)
