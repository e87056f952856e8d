"""A test that is a function, and no task that another process could find: in a thread, right here.

`umbel.train(evaluate=…)` brings such a function; so does a task that no module has under a name.
It is called with the arrays of a round's folder, one model at a time. Where it raises, its trace
goes to the log, and the run goes on. A thread that still runs when the ServerApp ends, ends too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .evaluator import guarded
from .evaluators import RAISED, Found
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .evaluators import Model

Arrays = Mapping[str, "NDArray[Any]"]


class EvaluateHere:
    """Calls the function."""

    def __init__(
        self,
        call: Callable[[Arrays], Mapping[str, float]],
        read: Callable[[Model], Arrays],
        warn: Callable[[str], None],
    ) -> None:
        """Call nothing yet.

        Args:
            call: From arrays by name to means by name.
            read: Returns the arrays of a model.
            warn: Takes a line for the log.
        """
        self._call, self._read, self._warn = call, read, warn
        self._running: tuple[Model, threading.Thread] | None = None
        self._found: Found | None = None

    def begin(self, model: Model) -> None:
        """Test a model; the one before is done."""
        thread = threading.Thread(target=self._test, args=(model,), daemon=True)
        self._running, self._found = (model, thread), None
        thread.start()

    def poll(self, _now: float) -> Found | None:
        """Return what came of the model, once."""
        if self._running is None or self._running[1].is_alive():
            return None
        (model, _), self._running = self._running, None
        return self._found or Found(model, {}, RAISED)

    def close(self) -> None:
        """Do nothing: the thread ends with the process."""

    def _test(self, model: Model) -> None:
        def measure() -> None:
            self._found = Found(model, _means(self._call(self._read(model))))

        raised = guarded(measure)
        if raised:
            self._warn(
                f"the server's test of round {model.number} raised {raised}; the run goes on"
            )


def _means(found: object) -> dict[str, float]:
    """Return means by name; what is none is refused, whoever wrote the function reads why."""
    if not isinstance(found, Mapping):
        raise SettingsError("evaluate=", "means by name", type(found).__name__)
    return {str(name): float(value) for name, value in found.items()}
