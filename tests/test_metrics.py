"""Metrics: what may leave a device, and the reason with which everything else stays."""

import numpy as np
import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError
from umbel.strategies.metrics import Count, Metrics, Sum, checked, fractional_bits, of_app, standard

DECLARED: dict[str, Sum | Count] = {"examples": Count(100), "loss": Sum(50.0)}


def test_numbers_become_plain_and_keep_their_kind() -> None:
    values = {"examples": np.int64(7), "loss": np.float32(0.5)}
    found = checked(values, DECLARED)
    assert found == {"examples": 7, "loss": 0.5}
    assert (type(found["examples"]), type(found["loss"])) == (int, float)


def test_a_sum_may_be_whole_and_negative_and_bounds_are_inclusive() -> None:
    assert checked({"examples": 100, "loss": -50}, DECLARED) == {"examples": 100, "loss": -50.0}


@pytest.mark.parametrize(
    ("values", "reason", "says"),
    [
        ({"examples": 1, "loss": 1.0, "age": 3}, pb.REASON_UNDECLARED_METRIC, "'age' is not decl"),
        ({"examples": 101, "loss": 1.0}, pb.REASON_UNDECLARED_METRIC, "expected 0 to 100, got 101"),
        ({"examples": -1, "loss": 1.0}, pb.REASON_UNDECLARED_METRIC, "expected 0 to 100, got -1"),
        ({"examples": 1, "loss": 50.01}, pb.REASON_UNDECLARED_METRIC, "expected -50 to 50"),
        ({"examples": 1, "loss": float("nan")}, pb.REASON_NOT_FINITE, "'loss' is nan"),
        ({"examples": 1, "loss": np.float32("inf")}, pb.REASON_NOT_FINITE, "'loss' is inf"),
        ({"examples": 1}, pb.REASON_TASK_FAILED, "'loss' is declared but was not returned"),
        ({"examples": 1.0, "loss": 1.0}, pb.REASON_TASK_FAILED, "an integer, got float"),
        ({"examples": True, "loss": 1.0}, pb.REASON_TASK_FAILED, "an integer, got bool"),
        ({"examples": 1, "loss": "1"}, pb.REASON_TASK_FAILED, "a number, got str"),
    ],
)
def test_anything_else_stays_on_the_device(
    values: dict[str, object], reason: pb.Reason, says: str
) -> None:
    with pytest.raises(Refused, match=says) as caught:
        checked(values, DECLARED)
    assert caught.value.reason == reason


@pytest.mark.parametrize("bound", [0, -1, 2.0**38 + 1, float("inf"), float("nan")])
def test_a_sum_needs_a_bound_that_the_ring_holds(bound: float) -> None:
    with pytest.raises(SettingsError, match=r"Sum\.bound"):
        Sum(bound)


@pytest.mark.parametrize("bound", [0, 2**42 + 1])
def test_a_count_needs_a_bound_that_the_ring_holds(bound: int) -> None:
    with pytest.raises(SettingsError, match=r"Count\.bound"):
        Count(bound)


def test_the_standard_names_follow_the_loss() -> None:
    assert list(standard("mse")) == ["examples", "loss"]
    assert list(standard(lambda model, batch: 0)) == ["examples", "loss"]
    # One real number in fixed point with 24 fractional bits, two counts unscaled.
    bits = {"examples": 0, "loss": 24, "correct": 0}
    assert fractional_bits(standard("cross_entropy")) == bits


def test_metrics_read_like_a_mapping() -> None:
    assert Metrics(examples=3, loss=0.5)["loss"] == 0.5


def test_what_a_wrapped_app_declares_by_phase() -> None:
    loss, right = Sum(9.0), Count(7)
    assert {p: set(d) for p, d in of_app({}).items()} == {
        "train": {"train.examples"}, "evaluate": set()
    }  # fmt: skip
    found = of_app({"train.loss": loss, "eval.right": right})
    assert set(found["train"]) == {"train.examples", "train.loss", "eval.examples", "eval.right"}
    assert set(found["evaluate"]) == {"eval.examples", "eval.right"}
    assert (found["train"]["train.loss"], found["evaluate"]["eval.right"]) == (loss, right)


@pytest.mark.parametrize("name", ["loss", "test.loss", "eval.", "train.examples"])
def test_a_wrapped_apps_metric_has_a_phase(name: str) -> None:
    with pytest.raises(SettingsError, match=f"metrics: {name}"):
        of_app({name: Sum(1.0)})
