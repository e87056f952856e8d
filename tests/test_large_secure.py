"""The large secure round in small: equal to other integers, and another model is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.tests import large_secure

if TYPE_CHECKING:
    from pathlib import Path


def test_a_small_round_is_exact_and_says_what_it_cost(tmp_path: Path) -> None:
    found = large_secure.play(tmp_path, 12, 1000)
    assert (found["clients"], found["params"], found["exact"]) == (12, 1000, True)
    assert found["peak_mib"] > 0


def test_one_code_more_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = large_secure.expected(6, 50)

    def off(clients: int, params: int) -> np.ndarray:
        assert (clients, params) == (6, 50)
        other = whole.copy()
        other[7] = np.nextafter(other[7], np.float32(1))
        return other

    monkeypatch.setattr(large_secure, "expected", off)
    with pytest.raises(SystemExit, match="the model is not what the integers make"):
        large_secure.play(tmp_path, 6, 50)
