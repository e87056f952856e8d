"""From a training's result to one encoded message: the clip, the weight, the rounding."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.clients.update import Update, clipped
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.codec import Codec
from umbel.protocol.context import Terms
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import Malformed, Refused, SettingsError
from umbel.protocol.manifest import Manifest
from umbel.strategies.task import Site
from umbel.strategies.trainer import TrainResult
from umbel.tests.handmade import METRICS, PARAMS, POLICY, Stub, model_of
from umbel.tests.opened import mean, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from umbel.clients.policy import Policy

N = 5
CODEC = Codec(N, PARAMS.value_range, PARAMS.weight_cap)
MODEL = bytearray(model_of(Stub()))


def terms(phase: str = "train", **changes: Any) -> Terms:
    fields: dict[str, Any] = {
        "scheme": "A",
        "ca": bytes(32),
        "app": bytes(32),
        "run": "run",
        "round": 3,
        "phase": phase,
        "attempt": 0,
        "model": bytes(32),
        "config": {"server-round": 3},
        "params": PARAMS.table(),
        "layout": bytes(32),
    }
    return Terms(**(fields | changes))


def update(
    stub: Stub | None = None, policy: Policy = POLICY, *, seed: int | None = 0, client: int = 1
) -> Update:
    site = Site(partition=client, partitions=64)
    return Update(stub or Stub(), site, policy, entropy=os_entropy, seed=seed)


def message(of: Update, at: Terms | None = None) -> bytearray:
    at = at or terms()
    of.compute(MODEL, at)
    return of.encode(N, at)


def giving(deltas: dict[str, NDArray[Any]], weight: int = 7) -> Stub:
    stub = Stub()
    stub.result = lambda: TrainResult(deltas, weight, {"eval.examples": 7, "eval.loss": 1.5})
    return stub


# ---- the clip --------------------------------------------------------------------------------


def test_the_norm_is_over_all_arrays_and_exact() -> None:
    deltas = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}  # 3-4-5
    out = clipped(deltas, 1.0)
    assert out["a"].tolist() == [3.0 * (1.0 / 5.0), 0.0]
    assert out["b"].tolist() == [[4.0 * (1.0 / 5.0)]]
    assert out["b"].shape == (1, 1)


@pytest.mark.parametrize("bound", [5.0, 5.5, 1e9, None])
def test_a_shorter_delta_is_the_same_object(bound: float | None) -> None:
    deltas: dict[str, NDArray[Any]] = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    assert clipped(deltas, bound) is deltas


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_every_float_is_clipped_in_its_own_dtype(dtype: type) -> None:
    deltas: dict[str, NDArray[Any]] = {"w": np.array([6, 8], dtype)}
    out = clipped(deltas, 5.0)["w"]
    assert (out.dtype, out.astype(float).tolist()) == (np.dtype(dtype), [3.0, 4.0])


def test_narrow_floats_are_squared_in_float64() -> None:
    """In float16 the square of 400 is infinite, and in float32 small squares are lost."""
    assert clipped({"w": np.full(4, 400, np.float16)}, 400.0)["w"].tolist() == [200.0] * 4
    many = np.full(1 << 20, 2.0**-10, np.float32)  # its norm is 1: 2^20 times 2^-20
    many[0] = 4096.0
    expected = 4096.0 / np.sqrt(4096.0**2 + (2**20 - 1) * 2.0**-20)
    assert clipped({"w": many}, 1.0)["w"][0] == np.float32(expected)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
)
def test_the_norm_afterwards_is_the_bound_or_what_it_was(values: list[float], bound: float) -> None:
    out = clipped({"w": np.array(values)}, bound)["w"]
    before = sum(Fraction(v) ** 2 for v in values)
    after = sum(Fraction(v) ** 2 for v in out.tolist())
    if before <= Fraction(bound) ** 2 * (1 - Fraction(1, 10**12)):
        assert out.tolist() == values
    else:
        assert float(after) == pytest.approx(min(float(before), bound**2), rel=1e-12)


def test_the_policys_clip_is_applied_whatever_the_run_says() -> None:
    deltas = {"w": np.full((2, 3), 0.3), "b": np.full(4, 0.3, np.float32)}
    norm = 0.3 * np.sqrt(10)
    of = update(giving(deltas), replace(POLICY, l2_clip=float(norm / 2)))
    layout = of.layout("train").message
    means = mean(layout, opened(layout, message(of), 1, CODEC), CODEC)
    assert np.abs(means["w"] - 0.15).max() <= 1 / CODEC.scale / 7
    assert np.abs(means["b"] - 0.15).max() <= 1 / CODEC.scale / 7 + 1e-7


# ---- weight, phases, use ---------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "coded"), [(1, 1), (40, 40), (41, 40), (10**9, 40)])
def test_the_weight_is_capped(weight: int, coded: int) -> None:
    of = update(giving(Stub().result().deltas, weight))
    layout = of.layout("train").message
    sums = opened(layout, message(of), 1, CODEC)
    assert sums.weight == coded
    # The cap lowers the weight, not the mean: sum and weight are both by the capped one.
    assert np.abs(mean(layout, sums, CODEC)["w"] - 0.25).max() <= 1 / CODEC.scale / coded


def test_a_result_is_used_once() -> None:
    of = update()
    message(of)
    with pytest.raises(Refused, match="sent already") as caught:
        of.encode(N, terms())
    assert caught.value.reason == pb.REASON_ATTEMPT_CLOSED


def test_a_result_is_forgotten() -> None:
    of = update()
    of.compute(MODEL, terms())
    of.forget()
    with pytest.raises(Refused):
        of.encode(N, terms())


def test_an_evaluation_has_weight_1_and_no_section_32() -> None:
    stub = Stub()
    of = update(stub)
    data = message(of, terms("evaluate"))
    layout = of.layout("evaluate").message
    sums = opened(layout, data, 1, CODEC)
    assert (sums.weight, sums.metrics) == (1, {"eval.examples": 7})
    assert (layout.split, len(data)) == (0, 8 * 5)  # 1, w, saturated, eval.examples, 1
    assert (stub.trained, stub.evaluated) == (0, 1)


def test_the_layouts_digest_is_of_the_devices_own_task() -> None:
    manifest = Manifest.of(Stub().arrays())
    for phase in ("train", "evaluate"):
        layout = update().layout(phase)
        assert layout.digest == manifest.layout_digest(METRICS[phase])
        assert layout.split == layout.message.split
    assert update().layout("train").digest != update().layout("evaluate").digest


# ---- rounding --------------------------------------------------------------------------------


def test_a_seed_makes_the_rounding_repeatable() -> None:
    assert message(update(seed=1)) == message(update(seed=1))


@pytest.mark.parametrize(
    "other",
    [
        lambda: message(update(seed=2)),
        lambda: message(update(seed=1, client=2)),
        lambda: message(update(seed=1), terms(round=4)),
    ],
    ids=["seed", "client", "round"],
)
def test_another_seed_client_or_round_rounds_otherwise(other: Callable[[], bytearray]) -> None:
    assert message(update(seed=1)) != other()


def test_another_attempt_or_run_rounds_alike() -> None:
    """Two runs of one seed have equal bits, whatever they are called."""
    base = message(update(seed=1))
    assert base == message(update(seed=1), terms(attempt=5, run="another"))


def test_without_a_seed_the_rounding_comes_from_the_system() -> None:
    third = {"w": np.full((2, 3), 1 / 3), "b": np.full(4, 1 / 3, np.float32)}
    first, second = (message(update(giving(third), seed=None)) for _ in range(2))
    assert first != second
    layout = update().layout("train").message
    for data in (first, second):
        means = mean(layout, opened(layout, data, 1, CODEC), CODEC)
        assert np.abs(means["w"] - 1 / 3).max() <= 1 / CODEC.scale / 7


# ---- what cannot be encoded ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deltas", "reason", "words"),
    [
        ({"w": np.zeros((3, 2))}, pb.REASON_TASK_FAILED, r"float \(2, 3\), got float64 \(3, 2\)"),
        ({"w": np.zeros((2, 3), int)}, pb.REASON_TASK_FAILED, "got int64"),
        ({"x": np.zeros(1)}, pb.REASON_TASK_FAILED, "x"),
        ({"w": np.full((2, 3), np.inf)}, pb.REASON_NOT_FINITE, "'w' is NaN or infinite"),
        ({"w": np.full((2, 3), np.nan)}, pb.REASON_NOT_FINITE, "'w' is NaN or infinite"),
    ],
)
def test_a_bad_update_is_found_when_it_is_computed(
    deltas: dict[str, NDArray[Any]], reason: pb.Reason, words: str
) -> None:
    good: dict[str, NDArray[Any]] = {"w": np.zeros((2, 3)), "b": np.zeros(4, np.float32)}
    of = update(giving(good | deltas))
    with pytest.raises(Refused, match=words) as caught:
        of.compute(MODEL, terms())
    assert caught.value.reason == reason
    with pytest.raises(Refused, match="sent already"):
        of.encode(N, terms())


def test_a_child_that_answers_nonsense_has_failed() -> None:
    stub = Stub()

    def nonsense() -> TrainResult:
        raise Malformed("training child", "weight", "an integer of at least 1", float)

    stub.result = nonsense
    with pytest.raises(Refused, match="training child: weight") as caught:
        update(stub).compute(MODEL, terms())
    assert caught.value.reason == pb.REASON_TASK_FAILED


def test_a_setting_of_another_type_is_named() -> None:
    with pytest.raises(SettingsError, match=r"config\.lr"):
        update().compute(MODEL, terms(config={"lr": "fast"}))


# ---- the run's manifest ----------------------------------------------------------------------


class Bare(Stub):
    """User code without a model of its own, as a wrapped Flower app is."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return nothing."""
        return {}


OWN = Manifest.of(Stub().arrays())


def test_an_equal_manifest_or_none_is_agreed_to() -> None:
    of = update()
    for text in (OWN.to_json(), "", OWN.to_json()):
        of.agree(text)
    assert of.manifest == OWN


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"w": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}, "'w': this app has"),
        ({"w": np.ones((2, 3))}, r"'b': this app has float32 \[4\], the run nothing"),
        ({"b": np.zeros(4, np.float32), "w": np.ones((2, 3))}, "in another order"),
    ],
)
def test_another_manifest_is_refused_by_the_array(
    arrays: dict[str, NDArray[Any]], words: str
) -> None:
    with pytest.raises(Refused, match=words) as caught:
        update().agree(Manifest.of(arrays).to_json())
    assert caught.value.reason == pb.REASON_CTX_DIFFERS


def test_without_a_model_of_its_own_a_device_takes_the_runs() -> None:
    of = update(Bare())
    with pytest.raises(Refused) as caught:
        of.agree("")
    assert caught.value.reason == pb.REASON_CTX_DIFFERS
    of.agree(OWN.to_json())
    assert of.manifest == OWN
    assert of.layout("train").digest == update().layout("train").digest
    assert message(of) == message(update())
    other = Manifest.of({"w": np.ones(3, np.float32)})
    of.agree(other.to_json())
    assert of.manifest == other


def test_what_is_no_manifest_is_refused() -> None:
    for of in (update(), update(Bare())):
        with pytest.raises(Refused, match="manifest JSON"):
            of.agree("{")


def test_user_code_sees_the_rounds_config_without_raw_bytes() -> None:
    seen: list[Site] = []

    class Watching(Stub):
        def train(self, arrays: Any, site: Site, settings: Any) -> TrainResult:
            seen.append(site)
            return super().train(arrays, site, settings)

    update(Watching()).compute(MODEL, terms(config={"server-round": 3, "raw": b"x", "lr": 0.5}))
    assert dict(seen[0].settings) == {"server-round": 3, "lr": 0.5}
