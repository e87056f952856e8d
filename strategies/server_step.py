"""The server step over a whole model of named arrays; a rule moves each (server_rules.py).

Integer and bool arrays are buffers: the server keeps its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .fedavg import is_float
from ..protocol.errors import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .server_rules import Rule

    Arrays = Mapping[str, NDArray[Any]]


def fresh(rule: Rule, model: Arrays) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the moments of a rule before its first round, by moment and array."""
    floats = {name: array for name, array in model.items() if is_float(array)}
    return {
        moment: {n: np.full(a.shape, rule.initial(moment), a.dtype) for n, a in floats.items()}
        for moment in rule.moments
    }


def stepped(
    rule: Rule,
    model: Arrays,
    mean_delta: Arrays,
    state: Mapping[str, Arrays],
    t: int,
    out: Arrays | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the next model of named arrays; `state` moves with it, model and mean are kept.

    Args:
        rule: The rule.
        model: Arrays by name, any shapes. Integer and bool arrays are handed on as they are.
        mean_delta: One array of the same shape for every float array of the model.
        state: By moment, an array like each of those; contiguous.
        t: The round, from 1.
        out: Contiguous arrays like the model's that the next model is written to, so that
            no second copy of it is made; None for new ones.

    Raises:
        RoundFailed: The names or shapes of the two do not fit.
        VoidRound: A value of the result is not finite; the array is named.
    """
    floats = {name for name, array in model.items() if is_float(array)}
    if floats != set(mean_delta):
        raise RoundFailed(
            f"server step: the mean has other arrays than the model: "
            f"{sorted(floats.symmetric_difference(mean_delta))}"
        )
    moved = dict(out) if out else {n: np.empty(a.shape, a.dtype) for n, a in model.items()}
    for name, array in model.items():
        if name not in floats:
            moved[name][...] = array
            continue
        delta, new = mean_delta[name], moved[name]
        if array.shape != delta.shape:
            raise RoundFailed(
                f"server step: the mean of {name} has shape {delta.shape}, not {array.shape}"
            )
        own = {moment: state[moment][name].reshape(-1) for moment in rule.moments}
        rule.move(name, array.reshape(-1), delta.reshape(-1), new.reshape(-1), own, t)
    return moved
