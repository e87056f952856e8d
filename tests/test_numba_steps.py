"""The compiled server rules: the bits of the rules themselves, moments and refusals too."""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.errors import VoidRound
from umbel.strategies import one_pass
from umbel.strategies.compiled import Compiled
from umbel.strategies.server_rules import FedAdagrad, FedAdam, FedAdamW, FedAvg, FedAvgM, FedYogi

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from umbel.strategies.server_rules import Rule

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed: it comes with umbel[fast]", allow_module_level=True)

RULES: dict[str, Rule] = {
    "adam": FedAdam(eta=0.03),
    "paper": FedAdam(form="paper", beta_1=0.7),
    "adamw": FedAdamW(weight_decay=0.2),
    "yogi": FedYogi(),
    "adagrad": FedAdagrad(tau=1e-9),
    "momentum": FedAvgM(server_learning_rate=0.7, server_momentum=0.9),
}
SIZE = 1009
"""No multiple of a vector register."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Use the kernels, compiled once for all these tests."""
    found = Compiled(".numba_steps", "umbel.strategies")
    assert found.load()
    monkeypatch.setattr(one_pass, "COMPILED", found)
    return found


def floats(seed: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Return values of many magnitudes, with zeros of both signs and subnormal ones."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-30, 4, SIZE) * scale
    found[:6] = [0.0, -0.0, 1e-42, -1e-42, 1e18 * scale, 1.0]
    return found.astype(np.float32)


def rounds(rule: Rule) -> list[NDArray[Any]]:
    """Return the model after three rounds, and the moments."""
    old = floats(1)
    own = {name: np.full(SIZE, rule.initial(name), np.float32) for name in rule.moments}
    for t in (1, 2, 3):
        old.setflags(write=False)  # as the model in force is
        new = np.full(SIZE, 7.0, np.float32)
        rule.move("w", old, floats(10 + t, 1e-3), new, own, t)
        old = new
    return [old, *own.values()]


@pytest.mark.parametrize("name", RULES)
def test_one_pass_has_the_bits_of_the_rule(name: str, compiled: Compiled) -> None:
    found = rounds(RULES[name])
    compiled.module = None
    expected = rounds(RULES[name])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float32
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_a_result_may_be_written_over_the_old_values(name: str, compiled: Compiled) -> None:
    rule, delta = RULES[name], floats(2, 1e-3)
    moved = []
    for apart in (True, False):
        old = floats(1)
        new = np.empty_like(old) if apart else old
        own = {moment: np.zeros(SIZE, np.float32) for moment in rule.moments}
        rule.move("w", old, delta, new, own, 1)
        moved.append(new.tobytes())
    assert moved[0] == moved[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("name", RULES)
def test_what_is_not_finite_is_refused_by_name(name: str, bad: float, compiled: Compiled) -> None:
    rule, delta = RULES[name], np.zeros(SIZE, np.float32)
    delta[500] = bad
    old = np.full(SIZE, 2e38, np.float32)
    own = {moment: np.zeros(SIZE, np.float32) for moment in rule.moments}
    refused = []
    for module in (compiled.module, None):
        compiled.module = module
        try:
            rule.move("layer", old, delta, np.empty_like(old), own, 1)
            refused.append("")
        except VoidRound as error:
            refused.append(str(error))
        own = {moment: np.zeros(SIZE, np.float32) for moment in rule.moments}
    assert refused[0] == refused[1]
    assert refused[0].startswith("server step: layer would hold")


def test_other_arrays_and_rules_go_the_long_way(compiled: Compiled) -> None:
    wide = np.zeros(8), np.zeros(8), np.zeros(8), np.zeros(8), np.zeros(8)
    assert not one_pass.in_one_pass(FedAdam(), "w", wide, 1)
    narrow = [array.astype(np.float32) for array in wide]
    assert not one_pass.in_one_pass(FedAvg(), "w", narrow[:3], 1)
    assert not one_pass.in_one_pass(FedAdam(), "w", [array[::2] for array in narrow], 1)
    assert one_pass.in_one_pass(FedAdam(), "w", narrow, 1)


def test_nobody_waits_for_the_compiler() -> None:
    found = Compiled(".numba_steps", "umbel.strategies")
    found.load_beside()
    found.load_beside()
    for thread in threading.enumerate():
        if thread.name == "umbel-compile":
            thread.join(60)
    assert found.module is not None


def test_a_module_that_is_not_there_is_none() -> None:
    found = Compiled(".numba_nothing", "umbel.strategies")
    assert not found.load()
    assert found.module is None
