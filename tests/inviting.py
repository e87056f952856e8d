"""Invitations in the hands of a test: its clock, its Flower, its pool that does things at once."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import httpx

from umbel.server import registry
from umbel.server.flower_invitations import EVERY_S, Invitations
from umbel.tests.flower_grid import Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from umbel.simulation.dev_federation import DevFederation


class Mint:
    """Stands where the core's connection does: a ticket names what it was asked for."""

    run, gateway, ca = "run-1", "localhost:443", bytes(range(32))

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, float]] = []
        self.elsewhere: dict[str, str] = {}

    def tickets(self, bearers: Iterable[tuple[str, str]], seconds: float) -> dict[str, bytes]:
        """Return tickets."""
        given = list(bearers)
        self.asked += [(node, print_, seconds) for node, print_ in given]
        return {node: f"{len(self.asked)} {node}".encode() for node, _ in given}


class AtOnce(Executor):
    """Does what it is given at once, in the caller's thread; or later, when the test lets it."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] | None = None

    def submit(self, fn: Any, /, *_: Any, **__: Any) -> Future[Any]:
        """Do it, or keep it."""
        future: Future[Any] = Future()
        if self.held is not None:
            self.held.append((future, fn))
        else:
            self._do(future, fn)
        return future

    def _do(self, future: Future[Any], fn: Callable[[], Any]) -> None:
        try:
            future.set_result(fn())
        except httpx.HTTPError as error:
            future.set_exception(error)

    def release(self) -> None:
        """Do what was kept, and the next at once."""
        held, self.held = self.held or [], None
        for future, fn in held:
            self._do(future, fn)


class Inviting:
    """Invitations with a clock that a test moves."""

    def __init__(self, federation: DevFederation) -> None:
        self.pool = AtOnce()
        self.desk, self.mint, self.now = Desk(federation), Mint(), 1000.0
        self.ids = [node.id for node in federation.nodes]
        core: Any = self.mint
        self.nodes = registry.read(federation.folder)
        self.invitations = Invitations(
            self.desk, lambda: self.nodes, core, {"lr": 0.5, "seed": 3}, self.pool
        )

    def step(self, seconds: float = 0.0, joined: Iterable[int] = ()) -> list[int]:
        """Look once, some seconds later; return who was sent an invitation."""
        self.now += seconds
        before = len(self.desk.pushed)
        here = frozenset(self.ids[node - 101] for node in joined)
        self.invitations.step(here, self.now)
        return [m.metadata.dst_node_id for m in self.desk.pushed[before:]]

    def gap(self, node: int, most: float = 100.0) -> float:
        """Return after how many seconds of looking a node is invited again."""
        began = self.now
        while self.now - began < most:
            if node in self.step(EVERY_S):
                return self.now - began
        raise AssertionError(f"not within {most} s")
