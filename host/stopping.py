"""How a command that started programs ends: by each signal as by Ctrl-C, and nothing is left."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does, with everything that it started."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Ask:
    """Whether somebody asked that the run ends."""

    asked = ""
    """The signal's name."""


@contextmanager
def draining() -> Iterator[Ask]:
    """Take the first signal for the length of a block as a wish; the second ends the command."""
    ask = Ask()

    def told(number: int, _frame: object) -> None:
        if ask.asked:
            raise KeyboardInterrupt
        ask.asked = signal.Signals(number).name

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, told) for number in numbers]
    try:
        yield ask
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def no_orphans() -> Iterator[None]:
    """Reap at the end what lost its parent, on Linux; else it would stay as a defunct process.

    Flower's SuperExec waits for none of its children, and a container's first process often not
    either.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
