"""The uploads and fetches that go on, by node, so that one who is removed has none any more.

A call may stand still for long: an upload that waits for a slot or sends nothing, a fetch whose
reader takes nothing. So each has a future that ends it from outside.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .endings import Turned


class Calls:
    """The calls of every node."""

    def __init__(self) -> None:
        """Know of none."""
        self._open: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def of(self, node: str) -> Iterator[asyncio.Future[None]]:
        """Return what fails, with the cause, when the call is to end, while it goes on."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls = self._open.setdefault(node, set())
        calls.add(over)
        try:
            yield over
        finally:
            over.cancel()
            calls.discard(over)
            if not calls and self._open.get(node) is calls:
                del self._open[node]

    def end(self, node: str, why: Turned) -> None:
        """End every call of a node."""
        for over in self._open.pop(node, ()):
            if not over.done():
                over.set_exception(why)
