"""The firewall of a plain sum, as a ServerApp describes it."""

from __future__ import annotations

import numpy as np
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.errors import BadUpdate, Malformed, SettingsError
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.kept import Keeping
from umbel.server.core_commands import plain_check, plain_keeping
from umbel.server.ingest import Shape
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAdam, FedAvg

MANIFEST = Manifest.of({"w": np.zeros((3, 5), np.float32), "b": np.zeros(4, np.float32)})
LAYOUT = MessageLayout(MANIFEST, {"train.loss": 24, "train.examples": 0}, "train")
SHAPE = Shape(LAYOUT.total_bytes, LAYOUT.split, 5.0)
CODEC = Codec(3, 8.0, 1000)


def described(**changes: object) -> dict[str, object]:
    return {
        "manifest": MANIFEST.to_json(),
        "metrics": dict(LAYOUT.metrics),
        "phase": "train",
        "members": 3,
        "value_range": 8.0,
        "weight_cap": 1000,
        "max_norm": 10.0,
    } | changes


def message(value: float, weight: int = 7) -> memoryview:
    deltas = {"w": np.full((3, 5), value, np.float32), "b": np.zeros(4, np.float32)}
    metrics = {"train.loss": 1.5, "train.examples": 7}
    return memoryview(LAYOUT.build(deltas, weight, metrics, CODEC, bytes(32)))


def test_an_update_within_the_bounds_passes() -> None:
    plain_check(described(), SHAPE)("a", message(1.0))


def test_an_update_beyond_the_norm_does_not() -> None:
    with pytest.raises(BadUpdate, match="a: L2 norm"):  # sqrt(15) * 3 = 11.6
        plain_check(described(), SHAPE)("a", message(3.0))
    plain_check(described(max_norm=None), SHAPE)("a", message(3.0))


def test_a_weight_beyond_the_cap_does_not() -> None:
    with pytest.raises(BadUpdate, match="weight"):
        plain_check(described(weight_cap=5), SHAPE)("a", message(0.0))


def test_a_description_that_fits_other_sizes_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"sum\.plain"):
        plain_check(described(metrics={}), SHAPE)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        [],
        "x",
        described(manifest="{}"),
        described(manifest=None),
        described(metrics=[1]),
        described(metrics={"a": 7}),
        described(phase="other"),
        described(members="3"),
        described(value_range=None),
        described(weight_cap="many"),
        described(max_norm="x"),
    ],
)
def test_a_description_that_is_none_is_refused(plain: object) -> None:
    with pytest.raises((Malformed, SettingsError)):
        plain_check(plain, SHAPE)


# ---- why its messages are kept -----------------------------------------------------------------


def test_a_robust_rule_is_a_reason_to_keep_messages() -> None:
    robust = Robust(rule="krum", byzantine=1)
    found = plain_keeping(described(rule=FedAdam(robust=robust).described()))
    assert isinstance(found, Keeping)
    assert found.robust == robust
    codec = found.codec
    assert (codec.members, codec.value_range, codec.weight_cap) == (3, 8.0, 1000)


def test_a_mean_is_none() -> None:
    assert plain_keeping(described(rule=None)) is None
    assert plain_keeping(described(rule=FedAvg().described())) is None


@pytest.mark.parametrize("rule", [7, [], {"rule": "krum"}, {"rule": "fedavg", "robust": 3}])
def test_a_rule_that_is_none_is_refused(rule: object) -> None:
    with pytest.raises((Malformed, SettingsError)):
        plain_keeping(described(rule=rule))
