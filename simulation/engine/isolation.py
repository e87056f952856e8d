"""What a call of user code finds around it, the same for every client whoever calls.

A task may draw from the global generators of Python, numpy and torch. So that what it draws depends
on (seed, round, client) only, they are seeded from that client's stream before each call, and are
afterwards what they were. Nothing is promised to a task that draws from several threads. One thread
computes: how many there are decides how libraries cut their sums.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...protocol.errors import UmbelError, one_line, reason_text, said
from ...strategies.task import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...protocol.errors import Refused
    from ...strategies.task import Site

DATA, TRAINING = "global generators, data", "global generators, training"
"""Purposes of the streams; examples and training begin with their own."""


def seed(site: Site, purpose: str) -> None:
    """Seed the global generators for one call for this client."""
    words = stream(site.seed, purpose, site.round, site.index).random_raw(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) & 0xFFFFFFFF)
    if sys.modules.get("torch") is not None:
        from ...strategies.torch_task import seed_all  # noqa: PLC0415 - torch is there already

        seed_all(int(words[2]) >> 1)


def alone() -> None:
    """Let torch compute with one thread, in a process that does nothing but call user code.

    There the generators need not be given back: whoever draws from them next seeds them.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def cause(error: Refused) -> str:
    """Return what user code raised, in one line; a simulation has nobody to keep it from."""
    raised = error.__context__
    if raised is None or isinstance(raised, UmbelError):
        return str(error).removeprefix(f"{reason_text(error.reason)}: ")
    return one_line(said(raised, lambda e: f"{type(e).__name__}: {e}"))


@contextmanager
def isolated(*, threads: int | None = 1) -> Iterator[None]:
    """Give the global generators and torch's number of threads back as they were.

    Those of CUDA's devices too, where one was in use before: to look wakes no device.

    Args:
        threads: How many torch has inside; None for as many as it had.
    """
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()
    tensors = None if torch is None else torch.get_rng_state()
    devices = None
    if torch is not None and torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
    before = 1 if torch is None else torch.get_num_threads()
    try:
        if torch is not None and threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if torch is not None:
            torch.set_rng_state(tensors)
            if devices is not None:
                torch.cuda.set_rng_state_all(devices)
            torch.set_num_threads(before)
