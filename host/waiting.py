"""How a supervisor waits for something: looking at it, and at its programs, again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .processes import Happening, Supervisor

_POLL_S = 0.1


def wait_until(
    holds: Callable[[], bool], what: str, supervisor: Supervisor, *,
    watch: Callable[[], list[Happening]], say: Callable[[str], None], vital: Collection[str],
    seconds: float,
) -> None:  # fmt: skip
    """Return when something holds.

    Args:
        holds: Whether it does.
        what: In words.
        supervisor: Of the programs on which it depends.
        watch: Looks at them once.
        say: Called with a line about each that ended.
        vital: Names of those that exit for good reasons only: then it is not waited for.
        seconds: How long it may take.

    Raises:
        StateError: It did not come to hold in its time, or a vital program exited.
    """
    until = time.monotonic() + seconds
    while not holds():
        for item in watch():
            say(f"{item.name} {item.status or item.what}")
            if item.name in vital and item.status.startswith("exited"):
                supervisor.give_up(item.name, item.status)  # it has never been up
        if time.monotonic() > until:
            where = str(supervisor.folder / "logs")
            raise StateError(where, what, f"nothing in {seconds:.0f} s", "see the logs there")
        time.sleep(_POLL_S)
