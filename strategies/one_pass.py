"""Which tiles of a server step are done in one pass, by kernels that numba compiled.

Of each rule with moments the kernel of numba_steps.py and the numbers that it is given. The result
has the bits of server_rules.py, which does the work where numba is not installed, not compiled yet,
or where an array is not float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import Compiled
from ..protocol.errors import VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

COMPILED = Compiled(".numba_steps", __package__)


def _adam(rule: Any, t: int) -> tuple[float, ...]:
    factor, shrink = rule.factors(t)
    return rule.beta_1, rule.beta_2, factor, rule.tau, shrink


_KERNELS: dict[str, tuple[str, Callable[[Any, int], tuple[float, ...]]]] = {
    "fedavgm": ("momentum", lambda rule, _: (rule.server_learning_rate, rule.server_momentum)),
    "fedadagrad": ("adagrad", lambda rule, _: (rule.eta, rule.tau)),
    "fedadam": ("adam", _adam),
    "fedadamw": ("adam", _adam),
    "fedyogi": ("yogi", lambda rule, _: (rule.beta_1, rule.beta_2, rule.eta, rule.tau)),
}


def in_one_pass(rule: Any, name: str, arrays: Sequence[NDArray[Any]], t: int) -> bool:
    """Do a rule's `move` over old, delta, new and its moments, if it can be done in one pass.

    Returns:
        Whether it was done.

    Raises:
        VoidRound: A result is not finite; `name` is the array's.
    """
    steps, (old, delta, new, *own) = COMPILED.module, arrays
    if steps is None or not own or rule.name not in _KERNELS:
        return False
    if not all(a.dtype == np.float32 and a.flags.c_contiguous and a.flags.aligned for a in arrays):
        return False
    kernel, numbers = _KERNELS[rule.name]
    getattr(steps, kernel)(old, delta, new, own, numbers(rule, t))
    if not all(steps.finite(array) for array in (new, *own)):
        raise not_finite(name)
    return True


def not_finite(name: str) -> VoidRound:
    """Return the error of a step whose result is not finite."""
    return VoidRound(
        f"server step: {name} would hold a value that is not finite; "
        "the model is unchanged; lower the learning rates"
    )
