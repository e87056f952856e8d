"""Smartwatch activity by subject: which of seven shoulder exercises a wrist's motion is.

    client    one of 10 people
    input     a window of the six axes, three of acceleration and three of rotation, at 50 Hz
    target    the exercise: PEN, ABD, FEL, IR, ER, TRAP, ROW

Burns et al. 2018, https://arxiv.org/abs/1802.01489. The 140 recordings are in seglearn (3-clause
BSD), whose own reader is called: it needs scipy and scikit-learn.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .installed import file_of, kept
from .mapped import ClientData
from ...protocol.errors import SettingsError
from ...strategies.partition import NaturalIdPartitioner

AXES = 6
INSTALL = "pip install scipy scikit-learn && pip install --no-deps seglearn"
_SHORTEST = 947


def smartwatch(length: int = 100, step: int = 50) -> ClientData:
    """Return windows: inputs float32, shape (windows, 6, length), targets int64.

    Every axis has mean 0 and standard deviation 1 over all recordings.

    Args:
        length: Steps of a window, a fiftieth of a second each.
        step: Steps from one window's beginning to the next's.

    Raises:
        SettingsError: seglearn is not installed, or there are no such windows.
    """
    if not (1 <= length <= _SHORTEST and step >= 1):
        raise SettingsError(
            "smartwatch", f"a length of 1 to {_SHORTEST} and a step", (length, step)
        )
    for package in ("seglearn", "sklearn"):
        file_of(package, "", INSTALL)
    return kept(f"smartwatch-1-{length}-{step}", "seglearn", lambda: _read(length, step))


def _read(length: int, step: int) -> ClientData:
    found = import_module("seglearn.datasets").load_watch()
    every = np.concatenate(found["X"])
    mean, spread = every.mean(axis=0), every.std(axis=0)
    windows = [
        sliding_window_view((series - mean) / spread, length, axis=0)[::step].astype(np.float32)
        for series in found["X"]
    ]
    counts = [len(some) for some in windows]
    subjects = np.repeat(found["subject"], counts)
    targets = np.repeat(np.asarray(found["y"]).astype(np.int64), counts)
    people = NaturalIdPartitioner().partitions(subjects)
    return ClientData.of(np.concatenate(windows), targets, people)
