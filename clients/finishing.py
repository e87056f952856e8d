"""For how long a SuperNode that is to end, by the owner or outside its hours, is let run on.

    a ClientApp runs ── ends ──► `ANSWER_S` ──► the SuperNode ends
           └─ broken off ── `NOW_S` ──►┘

A session says why it ends, and the SuperNode hands that on after the ClientApp is gone: an agent
that ends it at once leaves the server with a node that vanished. Only the first session counts:
who is invited meanwhile answers `paused`, and is not waited for again.
"""

from __future__ import annotations

ANSWER_S = 8.0
"""A SuperNode hands in what a ClientApp answered: it asks for work every 3 s, and answers then."""
NOW_S = 10.0
"""A session that the owner breaks off says so; then it is ended."""


class Finishing:
    """Of one agent; `anew` when its SuperNode may run again."""

    def __init__(self) -> None:
        """Know of no end that is wanted."""
        self.anew()

    def anew(self) -> None:
        """Note that nothing is to end."""
        self._since: float | None = None
        self._until: float | None = None
        self._worked = False

    def lets(self, at: float, *, works: bool, now: bool) -> bool:
        """Tell whether the SuperNode is let run on.

        Args:
            at: Monotonic seconds.
            works: Whether it has a ClientApp.
            now: Whether what is open is broken off.
        """
        self._since = at if self._since is None else self._since
        if self._until is None and works:
            self._worked = True
            return not now or at - self._since < NOW_S
        if self._until is None:
            self._until = at + ANSWER_S if self._worked else at
        return at < self._until
