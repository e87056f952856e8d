"""Local optimisers: by hand, and step by step beside torch.optim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from umbel.protocol.errors import SettingsError
from umbel.strategies.optimizers import SGD, Adam, Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable


def test_two_steps_of_momentum_by_hand() -> None:
    # lr 1/2, momentum 1/2, decay 1/4, start 8, gradients 2 and 1; all exact in binary.
    # step 1: g = 2 + 8/4 = 4;  b = 4;            p = 8 - 2 = 6
    # step 2: g = 1 + 6/4 = 5/2;  b = 2 + 5/2 = 9/2;  p = 6 - 9/4 = 15/4
    arrays = {"p": np.array([8.0])}
    step = SGD(lr=0.5, momentum=0.5, weight_decay=0.25).start(arrays)
    step({"p": np.array([2.0])})
    assert arrays["p"].tolist() == [6.0]
    step({"p": np.array([1.0])})
    assert arrays["p"].tolist() == [3.75]


def test_adam_first_step_by_hand() -> None:
    # m = (1-b1) g and v = (1-b2) g^2, so after the corrections the step is lr * g/(|g| + eps).
    arrays = {"p": np.array([1.0, 1.0])}
    Adam(lr=0.25, eps=1.0).start(arrays)({"p": np.array([3.0, -1.0])})
    assert arrays["p"] == pytest.approx([1 - 0.25 * 3 / 4, 1 + 0.25 * 1 / 2], abs=1e-15)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (SGD(0.1, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
        (
            Adam(0.01, (0.8, 0.95), 1e-6, 0.1),
            lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), 1e-6, 0.1),
        ),
    ],
)
def test_twenty_steps_beside_torch(
    ours: Optimizer, theirs: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
) -> None:
    rng = np.random.default_rng(3)
    start = rng.normal(size=(4, 3))
    arrays = {"p": start.copy()}
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    step, reference = ours.start(arrays), theirs([parameter])
    for _ in range(20):
        gradient = rng.normal(size=(4, 3))
        step({"p": gradient})
        parameter.grad = torch.from_numpy(gradient)
        reference.step()
    np.testing.assert_allclose(arrays["p"], parameter.detach().numpy(), rtol=1e-12, atol=1e-14)


def test_a_step_is_in_place_and_keeps_the_dtype() -> None:
    array = np.ones(3, dtype=np.float32)
    for optimizer in (SGD(0.1, 0.9, 0.1), Adam(0.1)):
        optimizer.start({"p": array})({"p": np.ones(3, dtype=np.float32)})
    assert array.dtype == np.float32
    assert (array < 1).all()


def test_a_gradient_is_never_changed() -> None:
    gradient = np.ones(3)
    step = SGD(0.1, 0.9).start({"p": np.zeros(3)})
    step({"p": gradient})
    step({"p": gradient})
    assert gradient.tolist() == [1.0, 1.0, 1.0]


def test_starting_again_forgets_the_momentum() -> None:
    arrays = {"p": np.zeros(1)}
    for _ in range(2):
        SGD(1.0, 0.5).start(arrays)({"p": np.ones(1)})
    assert arrays["p"].tolist() == [-2.0]  # with the old momentum the second step is 1.5


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: SGD(0.0), "SGD.lr"),
        (lambda: SGD(float("nan")), "SGD.lr"),
        (lambda: SGD(float("inf")), "SGD.lr"),
        (lambda: SGD(0.1, 1.0), "SGD.momentum"),
        (lambda: SGD(0.1, 0.0, -1.0), "SGD.weight_decay"),
        (lambda: Adam(-1.0), "Adam.lr"),
        (lambda: Adam(0.1, (1.0, 0.5)), r"Adam.betas\[0\]"),
        (lambda: Adam(0.1, (0.5, 1.0)), r"Adam.betas\[1\]"),
        (lambda: Adam(0.1, eps=0.0), "Adam.eps"),
        (lambda: Adam(0.1, weight_decay=-0.1), "Adam.weight_decay"),
    ],
)
def test_a_value_out_of_range_is_named(make: Callable[[], Optimizer], where: str) -> None:
    with pytest.raises(SettingsError, match=where):
        make()
