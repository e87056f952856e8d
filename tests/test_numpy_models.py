"""Hand-written gradients against finite differences and torch's autograd."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from umbel.protocol.errors import SettingsError
from umbel.strategies.numpy_models import MLP, LogisticRegression, cross_entropy, mse

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = NDArray[np.float64]


def _batch(model: MLP, loss: str, rows: int = 7) -> tuple[Floats, NDArray[np.generic]]:
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(rows, model.sizes[0]))
    if loss == "mse":
        return inputs, rng.normal(size=(rows, model.sizes[-1]))
    return inputs, rng.integers(model.sizes[-1], size=rows)


def _models() -> list[MLP]:
    return [
        MLP(5, 8, 6, 4, seed=1, dtype=np.float64),
        MLP(3, 4, 2, seed=2, dtype=np.float64),
        LogisticRegression(5, 3, seed=3, dtype=np.float64),
    ]


def _torch(model: MLP) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in zip(model.sizes, model.sizes[1:], strict=False):
        layers += [torch.nn.Linear(fan_in, fan_out, dtype=torch.float64), torch.nn.ReLU()]
    twin = torch.nn.Sequential(*layers[:-1])
    # Strict by default: the names and shapes are the Sequential's own.
    twin.load_state_dict({k: torch.from_numpy(a.copy()) for k, a in model.arrays.items()})
    return twin


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("model", _models(), ids=lambda m: str(m.sizes))
def test_gradients_are_the_slopes_of_the_loss(model: MLP, loss: str) -> None:
    inputs, targets = _batch(model, loss)
    _, gradients = model.gradients(inputs, targets, loss)
    step = 1e-6
    for name, array in model.arrays.items():
        slopes = np.empty_like(array)
        for place in np.ndindex(array.shape):
            kept, sides = array[place], []
            for sign in (1, -1):
                array[place] = kept + sign * step
                sides.append(model.gradients(inputs, targets, loss)[0])
            array[place] = kept
            slopes[place] = (sides[0] - sides[1]) / (2 * step)
        # Central differences: an error of step^2 and rounding of 1e-16 / step.
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("model", _models(), ids=lambda m: str(m.sizes))
def test_gradients_are_those_of_autograd(model: MLP, loss: str) -> None:
    inputs, targets = _batch(model, loss)
    twin = _torch(model)
    outputs = twin(torch.from_numpy(inputs))
    named: dict[str, Callable[..., torch.Tensor]] = {
        "cross_entropy": functional.cross_entropy,
        "mse": functional.mse_loss,
    }
    expected = named[loss](outputs, torch.from_numpy(targets))
    expected.backward()  # type: ignore[no-untyped-call]
    found, gradients = model.gradients(inputs, targets, loss)
    assert found == pytest.approx(expected.item(), rel=1e-12)
    assert list(gradients) != []
    for name, parameter in twin.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(model.forward(inputs), outputs.detach().numpy(), rtol=1e-12)


def test_cross_entropy_by_hand() -> None:
    # Logits (0, ln 3): probabilities 1/4 and 3/4. Label 1 twice and label 0 once.
    logits = np.array([[0.0, math.log(3)]] * 3)
    loss, gradient = cross_entropy(logits, np.array([1, 1, 0]))
    assert loss == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3, rel=1e-15)
    expected = np.array([[0.25, -0.25], [0.25, -0.25], [-0.75, 0.75]]) / 3
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, -1, 0], "classes from 0 to 1, got '-1 to 1'"),
        ([1, 2, 0], "classes from 0 to 1, got '0 to 2'"),
        ([[1], [1], [0]], r"integers of shape \(3,\), got 'int64 of shape \(3, 1\)'"),
        ([True, False, True], "integers of shape"),
        ([1.0, 0.0, 1.0], "integers of shape"),
        ([0], r"integers of shape \(3,\)"),
    ],
)
def test_labels_that_numpy_would_read_otherwise_are_refused(labels: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        cross_entropy(np.zeros((3, 2)), np.array(labels))


def test_cross_entropy_of_huge_logits_is_finite() -> None:
    loss, gradient = cross_entropy(np.array([[1e4, 0.0]], np.float32), np.array([1]))
    assert loss == pytest.approx(1e4)
    assert gradient.tolist() == [[1.0, -1.0]]


def test_mse_by_hand_and_with_flat_targets() -> None:
    # Errors 1 and 3: mean square 5, gradient 2/2 * error.
    loss, gradient = mse(np.array([[2.0], [5.0]]), np.array([1, 2]))
    assert loss == 5.0
    assert gradient.tolist() == [[1.0], [3.0]]


def test_the_start_is_uniform_within_the_fan_in() -> None:
    weight = MLP(100, 200, 1, seed=0).arrays["0.weight"]
    assert weight.shape == (200, 100)
    assert weight.dtype == np.float32
    assert np.abs(weight).max() <= 0.1
    # 20,000 values uniform in +-1/10: mean 0 +- 4/sqrt(12)*0.2/sqrt(20000), deviation 0.2/sqrt(12).
    assert abs(weight.mean()) < 4 * 0.2 / math.sqrt(12 * 20_000)
    assert weight.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.02)


def test_a_seed_fixes_the_start_and_another_changes_it() -> None:
    first, same, other = (MLP(4, 3, seed=seed).arrays["0.weight"] for seed in (1, 1, 2))
    assert first.tobytes() == same.tobytes()
    assert first.tobytes() != other.tobytes()


def test_the_first_value_of_a_published_stream() -> None:
    # Random123's known answer for philox4x64-10, key 0 and counter 0, begins with this word
    # (numpy counts up before the first block). (word >> 11) / 2^52 - 1, over sqrt(1 input).
    model = MLP(1, 1)
    model.reset(np.random.Philox(key=0, counter=2**256 - 1))
    expected = Fraction(0x16554D9ECA36314C >> 11, 2**52) - 1
    assert model.arrays["0.weight"].item() == np.float32(float(expected))


@pytest.mark.parametrize("sizes", [(), (3,), (3, 0), (0, 3)])
def test_sizes_that_make_no_model_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="MLP"):
        MLP(*sizes)


def test_a_dtype_without_hand_written_care_is_refused() -> None:
    with pytest.raises(SettingsError, match="float32 or float64, got 'float16'"):
        MLP(2, 2, dtype=np.float16)
