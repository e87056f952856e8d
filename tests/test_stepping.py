"""The server step as an order: any cut gives the same bits, moments restart from the disk."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import Malformed, RoundFailed, StateError, VoidRound
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.moment_file import STATE_FILE, write_moments
from umbel.server.stepping import StateFile, StepOrder, keep_rest, move, order_of
from umbel.strategies.server_rules import FedAdam, FedAvg, FedAvgM

if TYPE_CHECKING:
    from umbel.strategies.server_rules import Rule

MODEL: dict[str, Any] = {
    "w": np.linspace(-1, 1, 40_001, dtype=np.float32),
    "n": np.array([3, 4], np.int64),
    "h": np.full((2, 3), 0.5, ml_dtypes.bfloat16),
    "d": np.linspace(0, 1, 33),
}
MANIFEST = Manifest.of(MODEL)
LAYOUT = MessageLayout(MANIFEST, {}, "train")
CODEC = Codec(4, 0.5, 40)


def words(seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a sum of three codes, gaps zero."""
    rng, found = np.random.default_rng(seed), np.zeros(LAYOUT.words32, np.uint32)
    for place in LAYOUT.places.values():
        codes = rng.integers(-3 * CODEC.q_max, 3 * CODEC.q_max, place.stop - place.start)
        found[place] = codes.astype(np.int32).view(np.uint32)
    return found


def order(rule: Rule, t: int = 1, state: StateFile | None = None) -> StepOrder:
    """Return an order over three survivors."""
    return StepOrder(rule, t, LAYOUT, CODEC, 3, 60, state)


def fresh() -> RunModel:
    """Return the model of a run that begins."""
    packed = MANIFEST.pack(MODEL)
    return RunModel(MANIFEST, model_digest(packed), packed)


def stepped(model: RunModel, of: StepOrder, seed: int) -> bytes:
    """Step a model out of a world of one."""
    total = World().open(LAYOUT.total_bytes, LAYOUT.split)
    data = words(seed).tobytes().ljust(LAYOUT.total_bytes, b"\0")
    total.load(data, ["a", "b", "c"])
    return total.step(model, of)


def test_the_step_is_the_mean_in_the_arrays_dtype_added_once() -> None:
    model, sums = fresh(), words(1)
    digest = stepped(model, order(FedAvg()), 1)
    assert digest == model_digest(model.stepped_packed)
    after = MANIFEST.views(model.stepped_packed)
    signed = sums.view(np.int32).astype(np.float64) * (0.5 * 40) / CODEC.q_max / 60
    for name in ("w", "h", "d"):
        array = MODEL[name]
        mean = signed[LAYOUT.places[name]].reshape(array.shape).astype(array.dtype)
        expected = (array.astype(np.float64) + mean.astype(np.float64)).astype(array.dtype)
        np.testing.assert_array_max_ulp(
            after[name].astype(np.float64), expected.astype(np.float64), 0 if name != "d" else 8
        )
    assert after["n"].tolist() == [3, 4]
    assert MANIFEST.views(model.packed)["w"].tolist() == MODEL["w"].tolist()  # not adopted yet


@pytest.mark.parametrize("rule", [FedAvg(server_learning_rate=0.3), FedAdam()])
@pytest.mark.parametrize("cuts", [(), (16,), (1024, 40_000), (40_015, 40_016, 40_032, 40_064)])
def test_any_cut_of_the_words_gives_the_same_bits(rule: Rule, cuts: tuple[int, ...]) -> None:
    whole, sums = fresh(), words(2)
    stepped(whole, order(rule), 2)
    model = fresh()
    old, new, moments = model.begin(order(rule))
    bounds = [0, *cuts, LAYOUT.words32]
    for low, high in reversed(list(pairwise(bounds))):
        move(sums[low:high], low, order(rule), old, new, moments)
    keep_rest(MANIFEST, old, new)
    assert bytes(new) == bytes(whole.stepped_packed)
    for name, moment in whole.moments_packed.items():
        assert bytes(moments[name]) == bytes(moment)


def test_a_step_that_is_not_adopted_restores_the_moments(tmp_path: Path) -> None:
    rule, model = FedAvgM(server_momentum=0.5), fresh()
    model.adopt(stepped(model, order(rule), 1))
    path = tmp_path / STATE_FILE
    kept = StateFile(path, write_moments(path, MANIFEST, model.moments_packed))
    expected = stepped(model, order(rule, 2, kept), 2)
    assert stepped(model, order(rule, 2, kept), 2) == expected  # the first one is forgotten
    model.adopt(expected)
    # A new process has the model and no moments at all.
    again = fresh()
    again.adopt(stepped(again, order(rule), 1))
    resumed = RunModel(MANIFEST, again.digest, again.packed)
    assert stepped(resumed, order(rule, 2, kept), 2) == expected
    assert stepped(RunModel(MANIFEST, again.digest, again.packed), order(rule, 2), 2) != expected


def test_a_model_that_would_not_be_finite_leaves_everything_as_it_was() -> None:
    huge = {**MODEL, "w": np.full(40_001, 3.4e38, np.float32)}
    packed = MANIFEST.pack(huge)
    model = RunModel(MANIFEST, model_digest(packed), packed)
    with pytest.raises(VoidRound, match="w would hold a value that is not finite"):
        stepped(model, order(FedAvg(server_learning_rate=1e38)), 1)
    assert model.next is None
    with pytest.raises(RoundFailed, match="no model was stepped"):
        model.adopt(bytes(32))
    assert bytes(model.packed) == packed


def test_only_the_stepped_model_is_adopted_and_the_one_before_is_kept_for_its_readers() -> None:
    model = fresh()
    before = model.packed
    digest = stepped(model, order(FedAvg()), 1)
    with pytest.raises(RoundFailed, match="no stepped model 00000000"):
        model.adopt(bytes(32))
    model.adopt(digest)
    assert model.digest == digest == model_digest(model.packed)
    assert bytes(before) == bytes(MANIFEST.pack(MODEL))


def test_the_moments_are_plain_safetensors(tmp_path: Path) -> None:
    model = fresh()
    stepped(model, order(FedAdam()), 3)
    write_moments(tmp_path / STATE_FILE, MANIFEST, model.moments_packed)
    found = safetensors.numpy.load_file(tmp_path / STATE_FILE)
    assert set(found) == {f"{m}/{name}" for m in "mv" for name in ("w", "h", "d")}
    for moment, packed in model.moments_packed.items():
        for name in ("w", "d", "h"):
            view = MANIFEST.views(packed)[name]
            assert found[f"{moment}/{name}"].tobytes() == view.tobytes()
            assert found[f"{moment}/{name}"].shape == view.shape


@pytest.mark.parametrize("spoil", ["flip", "cut", "longer", "gone", "link", "other rule"])
def test_moments_that_are_not_what_was_written_are_refused(tmp_path: Path, spoil: str) -> None:
    model, path = fresh(), tmp_path / STATE_FILE
    stepped(model, order(FedAdam()), 3)
    kept = StateFile(path, write_moments(path, MANIFEST, model.moments_packed))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if spoil == "flip":
        path.write_bytes(data)
    elif spoil == "cut":
        path.write_bytes(data[:-1])
    elif spoil == "longer":
        path.write_bytes(data + b"\0")
    elif spoil == "gone":
        path.unlink()
    elif spoil == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    rule = FedAvgM(server_momentum=0.5) if spoil == "other rule" else FedAdam()
    with pytest.raises(StateError, match=r"state\.safetensors: expected the moments of its round"):
        stepped(fresh(), order(rule, 4, kept), 3)


def test_an_order_travels_as_json() -> None:
    state = StateFile(Path("/runs/r/rounds/000003") / STATE_FILE, b"s" * 32)
    for rule in (FedAvg(), FedAdam(form="paper", eta=0.25)):
        sent = json.loads(json.dumps(order(rule, 4, state).described()))
        got = order_of(sent, MANIFEST, "ServerApp")
        assert got.described() == order(rule, 4, state).described()
        assert got.layout.places == LAYOUT.places
        assert got.rule == rule


@pytest.mark.parametrize(
    "change",
    [
        {"t": 0}, {"t": True}, {"survivors": 5}, {"survivors": 0}, {"weight": 2}, {"weight": 121},
        {"codec": [4, 0.5]}, {"codec": [4, "x", 40]}, {"codec": None}, {"state": 7},
        {"state": ["rel", "00" * 32]}, {"state": ["/a", "00"]},
    ],
)  # fmt: skip
def test_an_order_that_is_none_is_refused(change: dict[str, Any]) -> None:
    sent = {**order(FedAvg()).described(), **change}
    with pytest.raises(Malformed, match="ServerApp: step"):
        order_of(sent, MANIFEST, "ServerApp")
