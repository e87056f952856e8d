"""The kernels' C interface (pool.hpp, workers.hpp) in ctypes; every call releases the GIL."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...protocol.errors import StateError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WHOLE = ("clients", "models", "epochs", "batch", "exponent", "evaluate", "adam")
_REAL = ("lr", "momentum", "decay", "proximal", "beta1", "beta2", "eps")
_BOUNDS = ("limit", "max_norm", "largest_loss")
NO_MEMORY, UNMEASURED = -1, -2
"""Faults of a client that are no example's number."""
_WORDS = ("shuffles", "dropouts")
_ARRAYS = ("model", "table", "verdicts", "losses", "measured", "factors", "faults")
_OUT = ("total", "rows")

ADVICE = "fewer --workers need less"
SLICE_S = 0.2
"""How long C++ works before Python looks at its signals."""

COLUMNS = ("x", "y", "count", "target_bytes", "round", "client", "model", "weight")
"""Of the table of clients, int64 each."""


class Plan(ctypes.Structure):
    """What a whole work has in common."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _WHOLE),
        *((name, ctypes.c_double) for name in (*_REAL, *_BOUNDS)),
        *((name, ctypes.c_char_p) for name in _WORDS),
        *((name, ctypes.c_void_p) for name in (*_ARRAYS, *_OUT)),
    )


class Pool:
    """Threads that train, until `close`."""

    def __init__(self, library: ctypes.CDLL, threads: int, places: NDArray[np.int32]) -> None:
        """Start the threads but one: the caller's works too.

        Raises:
            StateError: The system gives none.
        """
        self._library = library
        for name, result, arguments in (
            ("pool", ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]),
            ("close", None, [ctypes.c_void_p]),
            ("begin", ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Plan)]),
            ("add", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]),
            ("help", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64]),
            ("drop", None, [ctypes.c_void_p]),
            ("finish", None, [ctypes.c_void_p]),
        ):
            function = getattr(library, f"umbel_{name}")
            function.restype, function.argtypes = result, arguments
        self._at: Any = library.umbel_pool(threads, pointer(places))
        if not self._at:
            raise StateError("threads", f"{threads} to train with", "none", ADVICE)

    def run(self, plan: Plan) -> None:
        """Do the whole of a work whose table is full."""
        self.begin(plan)
        try:
            self.add(0, plan.clients)
            self.wait()
        except BaseException:
            self.drop()
            raise
        self.finish()

    def begin(self, plan: Plan) -> None:
        """Take the models of a work; its arrays must stay until `finish` or `drop`."""
        _good(self._library.umbel_begin(self._at, ctypes.byref(plan)))

    def add(self, start: int, stop: int) -> None:
        """Let the threads train the clients in these rows of the table; returns at once."""
        _good(self._library.umbel_add(self._at, start, stop))

    def wait(self) -> None:
        """Train too, until all that was added is done; between slices Python sees its signals."""
        while not _good(self._library.umbel_help(self._at, round(1000 * SLICE_S))):
            pass

    def drop(self) -> None:
        """Forget what waits, and return when no thread touches the plan's arrays any more."""
        self._library.umbel_drop(self._at)

    def finish(self) -> None:
        """Write the total."""
        self._library.umbel_finish(self._at)

    def close(self) -> None:
        """End the threads."""
        if self._at:
            self._library.umbel_close(self._at)
            self._at = None


def pointer(array: NDArray[Any]) -> int:
    """Return the address of an array's first value."""
    return int(array.__array_interface__["data"][0])


def _good(answer: int) -> int:
    """Raise where C++ had no memory."""
    if answer < 0:
        raise StateError("memory", "room for this model's kernels", "none", ADVICE)
    return answer
