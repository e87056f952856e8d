"""What an update still counts that started from an old model: s(staleness) in (0, 1].

    constant            1
    polynomial a        (1 + staleness)^-a
    hinge a b           1 up to b versions, then 1 / (1 + a (staleness - b))

All three are those of FedAsync (Xie, Koyejo and Gupta, arXiv 1903.03934); FedBuff (Nguyen et al.,
AISTATS 2022) takes `polynomial 0.5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]
    Weighting = Callable[[Ids], Reals]

_LARGEST = 100.0
_FORMS = "constant, `polynomial A` or `hinge A B`, numbers of 0 to 100"


def weighting(text: str) -> Weighting:
    """Return the function that a text names.

    Raises:
        SettingsError: It names none.
    """
    name, *words = text.split() or [""]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    sound = len(numbers) == len(words) and all(0 <= n <= _LARGEST for n in numbers)
    if not sound or (name, len(words)) not in _BY_NAME:
        raise SettingsError("staleness", _FORMS, text)
    return _BY_NAME[name, len(words)](*numbers)


def _constant() -> Weighting:
    return lambda stale: np.ones(len(stale))


def _polynomial(a: float) -> Weighting:
    return lambda stale: np.power(1.0 + stale.astype(np.float64), -a)


def _hinge(a: float, b: float) -> Weighting:
    return lambda stale: 1 / (1 + a * np.maximum(stale.astype(np.float64) - b, 0.0))


_BY_NAME: dict[tuple[str, int], Callable[..., Weighting]] = {
    ("constant", 0): _constant,
    ("polynomial", 1): _polynomial,
    ("hinge", 2): _hinge,
}
