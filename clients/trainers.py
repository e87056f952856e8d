"""What trains on a device: a child with the task, or a group of processes with its torch twin.

Nothing here imports torch: the group's own processes do (torch_ddp_worker.py).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from . import pipe
from .child import FREE, Around, Child
from ..protocol.errors import SettingsError
from ..strategies.trainer import Trainer

if TYPE_CHECKING:
    from ..strategies.app import AppRef

LEAST = 2
"""Processes of a group where there is no GPU."""


class ClosingTrainer(Trainer, Protocol):
    """A trainer in processes of its own."""

    def close(self) -> None:
        """End them."""


class TorchGroup(Child):
    """The `Trainer` of a torch task whose child is rank 0 of a group that trains under DDP.

    Importing torch takes seconds, so the group stays between rounds; one that died is started anew
    by the next call and gives the same numbers.
    """

    def __init__(
        self,
        app: AppRef,
        processes: int = LEAST,
        *,
        gpus: int | None = None,
        python: str = sys.executable,
        max_bytes: int = pipe.MAX_BYTES,
        around: Around = FREE,
    ) -> None:
        """Remember what to start; the first call starts it.

        Args:
            app: Where the torch task is, as from `AppRef.torch`.
            processes: How many on a machine without GPUs.
            gpus: At most how many on one with GPUs, each with its own; None is `processes`.
            python: The interpreter, with umbel, torch and the app's packages.
            max_bytes: Most bytes of arrays in one message, either way.
            around: What bounds all of them.

        Raises:
            SettingsError: torch is not installed, or a number is below 1.
        """
        gpus = processes if gpus is None else gpus
        if processes < 1 or gpus < 1:
            raise SettingsError("training group", "at least one process", min(processes, gpus))
        if find_spec("torch") is None:
            raise SettingsError("gpu", "torch", "none", "pip install 'umbel[torch]'")
        super().__init__(app, python=python, max_bytes=max_bytes, around=around)
        self._sizes = processes, gpus

    def _threads(self) -> int:
        """Return one: the processes share the processors that there are."""
        return 1

    def _program(self) -> tuple[str, ...]:
        """Return the module that rank 0 runs, and its arguments."""
        _, *arguments = super()._program()
        return "torch_ddp_worker", *arguments, *map(str, self._sizes)


def trainer_for(app: AppRef, gpus: int, around: Around = FREE) -> ClosingTrainer:
    """Return what trains an app's task on a device.

    Args:
        app: Where the task is.
        gpus: 0 for a child with this task; else at most so many GPUs for the app's torch task, and
            where there is none at least two processes in their place.
        around: What bounds them.

    Raises:
        SettingsError: The app names no torch task, or torch is not installed.
    """
    if gpus == 0:
        return Child(app, around=around)
    return TorchGroup(app.torch(), max(LEAST, gpus), gpus=gpus, around=around)
