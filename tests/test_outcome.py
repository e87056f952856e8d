"""What an opened sum says, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.layout import MessageLayout, Sums
from umbel.protocol.manifest import Manifest
from umbel.server.outcome import means, recorded, score, warnings

LAYOUT = MessageLayout(
    Manifest.of({"w": np.zeros((4, 5)), "b": np.zeros(5, np.float32), "n": np.zeros(3, np.int64)}),
    {"train.loss": 24, "train.examples": 0},
    "train",
)


def test_sums_become_means_over_their_own_examples() -> None:
    sums = {
        "eval.examples": 8, "eval.loss": 6.0, "eval.correct": 6,
        "train.examples": 16, "train.loss": 4.0,
    }  # fmt: skip
    assert means(sums) == {
        "eval.examples": 8.0, "eval.loss": 0.75, "eval.accuracy": 0.75,
        "train.examples": 16.0, "train.loss": 0.25,
    }  # fmt: skip


def test_a_sum_without_examples_has_no_mean() -> None:
    assert means({"eval.examples": 0, "eval.loss": 0.0, "eval.correct": 0}) == {"eval.examples": 0}
    assert means({"other.loss": 3.0}) == {}
    assert means({}) == {}


def test_the_record_has_the_mean_weight_and_the_share_of_clamped_values() -> None:
    metrics = {"train.loss": 3.0, "train.examples": 12}
    sums = Sums(weight=60, saturated=10, metrics=metrics)
    # 25 averaged values (the integers stay on the device), 4 survivors: 10 of 100 are clamped.
    assert recorded(sums, LAYOUT, 4) == {
        "train.loss": 0.25, "train.examples": 12.0, "weight.mean": 15.0, "saturation": 0.1,
    }  # fmt: skip


def test_an_evaluation_has_neither() -> None:
    layout = MessageLayout(LAYOUT.manifest, {"eval.examples": 0}, "evaluate")
    sums = Sums(weight=4, saturated=0, metrics={"eval.examples": 9})
    assert recorded(sums, layout, 4) == {"eval.examples": 9.0}


@pytest.mark.parametrize(("saturation", "warns"), [(0.0, False), (0.001, False), (0.0011, True)])
def test_more_than_a_thousandth_clamped_warns(saturation: float, warns: bool) -> None:
    lines = warnings({"saturation": saturation, "weight.mean": 39.0}, Codec(5, 0.5, 40))
    assert len(lines) == warns
    if warns:
        assert lines == ["0.11% of the values were clamped to ±0.5; raise value-range"]


@pytest.mark.parametrize(("mean", "warns"), [(63.0, False), (4.0, False), (3.9, True)])
def test_a_cap_sixteen_times_the_mean_weight_warns(mean: float, warns: bool) -> None:
    lines = warnings({"weight.mean": mean}, Codec(5, 0.5, 64))
    assert len(lines) == warns
    if warns:
        assert lines == ["weight-cap 64 is more than 16 times the mean weight 4; lower it"]


@pytest.mark.parametrize(
    ("mean", "cap", "warns"), [(64, 64, True), (63.9, 64, False), (1, 1, False)]
)
def test_weights_that_were_all_capped_warn(mean: float, cap: int, warns: bool) -> None:
    """A run of equal weights says so by a cap of 1."""
    lines = warnings({"weight.mean": mean}, Codec(5, 0.5, cap))
    text = "every weight is at weight-cap 64, so all clients count the same; raise it if they have"
    assert lines == [f"{text} more examples"] * warns


def test_the_best_round_is_found_by_the_servers_test_first() -> None:
    """From worst to best; a round whose test failed is never the best of a run that tests."""
    order = [
        {},
        {"train.loss": 3.0, "eval.loss": 0.0},
        {"train.loss": 0.1},
        {"train.loss": 0.0, "test.loss": 9.0},
        {"train.loss": 9.0, "test.loss": 8.0},
        {"train.loss": 9.0, "test.loss": 9.0, "test.accuracy": 0.1},
        {"train.loss": 9.0, "test.loss": 9.0, "test.accuracy": 0.2},
    ]
    scores = [score(record) for record in order]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)


def test_an_evaluation_warns_of_nothing() -> None:
    assert warnings({"eval.examples": 3.0}, Codec(5, 0.5, 2**20)) == []


def test_a_test_that_is_not_finite_makes_no_round_the_best() -> None:
    assert score({"test.loss": math.nan, "train.loss": 2.0}) == (0.0, -2.0)
    assert score({"test.accuracy": math.nan, "test.loss": 0.5}) == (1.0, -0.5)
    assert max([{"test.loss": math.nan}, {"test.loss": 3.0}], key=score) == {"test.loss": 3.0}
    assert score({"train.loss": math.inf}) == (0.0, -math.inf)
