"""The native tier against the training of a device: same parameters, same bits for any threads."""

from __future__ import annotations

import hashlib
import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from umbel import MLP  # noqa: E402
from umbel.protocol import messages_pb2 as pb  # noqa: E402
from umbel.protocol.errors import Refused, SettingsError  # noqa: E402
from umbel.simulation.engine.loop import Loop  # noqa: E402
from umbel.simulation.engine.work import Verdict, Work  # noqa: E402
from umbel.simulation.native.tier import NativeTier, tier  # noqa: E402
from umbel.strategies.trainer import Settings  # noqa: E402
from umbel.tests.native_cases import SIZES, Ragged, loop, mean, tensors, work_of  # noqa: E402

TINY = np.float32(2.0**-140)
"""A denormal."""


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(20, 37), nn.ReLU(), nn.Linear(37, 5))


@pytest.fixture(scope="module")
def task() -> Ragged:
    return tensors(Ragged(perceptron, (20,), 5))


@pytest.fixture(scope="module")
def native(task: Ragged) -> Any:
    made = tier(task, task.pairs[0], 2)
    yield made
    made.close()


def test_parameters_and_losses_are_those_of_torch(task: Ragged, native: NativeTier) -> None:
    work = work_of(task, numbers={"epochs": 2}, evaluate=True)
    expected, found = loop(task, work), native.reduce(work)
    assert np.abs(mean(expected)).max() > 1e-2  # it moved by far more than the tolerance
    np.testing.assert_allclose(mean(found), mean(expected), rtol=0, atol=1e-6)
    assert found.exponent == expected.exponent
    assert found.weight == expected.weight == sum(SIZES)
    np.testing.assert_allclose(found.report.losses, expected.report.losses, rtol=1e-5)
    assert set(found.report.metrics) == set(expected.report.metrics)
    for name, values in expected.report.metrics.items():
        np.testing.assert_allclose(found.report.metrics[name], values, rtol=1e-5)


def test_rows_are_the_clients_own_updates(task: Ragged, native: NativeTier) -> None:
    work = work_of(task)
    values = native.reduce(work).total.size
    out, expected = np.empty((2, len(SIZES), values), np.float32)
    report = native.rows(work, out)
    Loop(task).rows(work, expected)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)
    assert report.counted.all()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_do_not_depend_on_threads(task: Ragged, native: NativeTier, threads: int) -> None:
    work = work_of(task)
    other = tier(task, task.pairs[0], threads)
    digests = {hashlib.sha256(t.reduce(work).total.tobytes()).digest() for t in (native, other)}
    other.close()
    assert len(digests) == 1


def test_the_shuffle_is_that_of_a_device(native: NativeTier, task: Ragged) -> None:
    """Hundreds of examples in batches of three: another order gives another model."""
    long = tensors(Ragged(perceptron, (20,), 5, sizes=(300,)))
    numbers = Settings(seed=2**70, round=123_456_789, epochs=2, batch_size=3, lr=0.5)
    work = replace(work_of(long, [0]), settings=numbers)
    native.task = long
    try:
        found = mean(native.reduce(work))
    finally:
        native.task = task
    np.testing.assert_allclose(found, mean(loop(long, work)), rtol=0, atol=1e-5)
    other = replace(work, settings=replace(numbers, seed=1))
    assert np.abs(found - mean(loop(long, other))).max() > 1e-2


def convolutional() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 20, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 16, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 2 * 2, 10)),
    )


def test_a_convolutional_model_is_torchs_for_any_threads() -> None:
    """A channel whose weights are zeros has equal inputs in each pool: the first must win."""
    task = tensors(Ragged(convolutional, (1, 16, 16), 10))
    work, digests = work_of(task), set()
    for name in ("0", "3"):
        work.models[0][f"{name}.weight"][0], work.models[0][f"{name}.bias"][0] = 0, 0.1
    for threads in (1, 2, 3):
        made = tier(task, task.pairs[0], threads)
        found = made.reduce(work)
        digests.add(hashlib.sha256(found.total.tobytes()).digest())
        made.close()
    expected = mean(loop(task, work))
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(mean(found), expected, rtol=0, atol=1e-6)
    assert len(digests) == 1


def dropped() -> Any:
    return nn.Sequential(nn.Dropout(0.25), nn.Linear(4096, 1, bias=False), nn.Dropout(0.0))


def test_dropout_is_keyed_by_client_and_not_by_thread() -> None:
    """From weights of zero one step shows the mask: lr * 2 * x / (1 - rate) where a value lives."""
    task = tensors(Ragged(dropped, (4096,), 1, loss="mse", sizes=(1,) * 12))
    for x, y in task.pairs:
        x[...], y[...] = 1, 1
    work = work_of(task, range(12))
    work.models[0]["1.weight"][...] = 0
    rows = np.empty((3, 12, 4096), np.float32)
    for threads, out in enumerate(rows, 1):
        made = tier(task, task.pairs[0], threads)
        made.rows(work, out)
        made.close()
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])
    lives = rows[0] != 0
    np.testing.assert_allclose(rows[0][lives], 0.1 * 2 / 0.75, rtol=1e-6)
    spread = np.sqrt(0.25 * 0.75 / 4096)
    assert np.abs(lives.mean(axis=1) - 0.75).max() < 5 * spread
    made = tier(task, task.pairs[0], 2)
    made.rows(work_of(task, range(12), numbers={"epochs": 2}), rows[1])
    made.close()
    assert np.abs((rows[1] == 0).mean(axis=1) - 0.25**2).max() < 5 * spread  # another mask a step
    together = (lives[:-1] & lives[1:]).mean(axis=1)  # of two clients: independent
    assert np.abs(together - 0.75**2).max() < 5 * spread


def test_small_numbers_are_still_numbers_after_loading(native: NativeTier) -> None:
    """No flush-to-zero, here and in a thread that starts later."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float(TINY * np.float32(0.5))))
    thread.start()
    thread.join()
    assert native.name == "T0"
    assert found == [float(TINY) / 2] == [float(TINY * np.float32(0.5))] != [0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_numpy_model_needs_no_torch_layers(dtype: Any) -> None:
    task = Ragged(lambda: MLP(20, 37, 5, seed=1, dtype=dtype), (20,), 5, dtype=dtype)
    made = tier(task, task.pairs[0], 2)
    work = work_of(task)
    tolerance = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(
        mean(made.reduce(work)), mean(loop(task, work)), rtol=0, atol=tolerance
    )
    made.close()


def test_a_client_that_diverges_is_named_and_not_in_the_sum(
    task: Ragged, native: NativeTier
) -> None:
    spoilt = tensors(Ragged(perceptron, (20,), 5))
    spoilt.pairs[1][0][0, 0] = np.inf
    native.task = spoilt
    try:
        found = native.reduce(work_of(spoilt))
    finally:
        native.task = task
    assert found.report.verdicts.tolist() == [0, Verdict.NOT_FINITE, 0, 0, 0]
    others = native.reduce(work_of(task, [0, 2, 3, 4]))
    np.testing.assert_array_equal(found.total, others.total)
    assert found.weight == sum(SIZES) - SIZES[1]


def test_a_label_outside_the_classes_costs_that_client(task: Ragged, native: NativeTier) -> None:
    wrong = tensors(Ragged(perceptron, (20,), 5))
    wrong.pairs[3][1][4] = 5
    native.task = wrong
    try:
        report = native.reduce(work_of(wrong)).report
    finally:
        native.task = task
    assert report.verdicts.tolist() == [0, 0, 0, Verdict.FAILED, 0]
    assert "example 4" in report.causes[3]
    assert report.weights.tolist() == [12, 7, 1, 0, 10]


def test_bounds_of_norm_and_size_are_verdicts(task: Ragged, native: NativeTier) -> None:
    rows = np.empty((len(SIZES), native.reduce(work_of(task)).total.size), np.float32)
    native.rows(work_of(task), rows)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    bound = float(np.sort(norms)[2])
    report = native.reduce(work_of(task, max_norm=bound)).report
    expected = np.where(norms > bound, Verdict.TOO_LONG, Verdict.COUNTED)
    np.testing.assert_array_equal(report.verdicts, expected)


def test_each_client_starts_from_its_model_in_its_own_round(
    task: Ragged, native: NativeTier
) -> None:
    one, two = work_of(task, [3], launches=np.array([5])), work_of(task, [4])
    other = {name: array * np.float32(0.5) for name, array in two.models[0].items()}
    both = Work(
        clients=np.array([3, 4]),
        partitions=len(SIZES),
        models=[one.models[0], other],
        model_of=np.array([0, 1]),
        launches=np.array([5, 2]),
        factors=np.array([1.0, 0.25]),
        settings=one.settings,
    )
    np.testing.assert_allclose(mean(native.reduce(both)), mean(loop(task, both)), rtol=0, atol=1e-6)


class Drawing(Ragged):
    """Adds noise from the global generators to its examples."""

    def train_data(self, site: Any) -> Any:
        """Return noisy examples."""
        x, y = super().train_data(site)
        noise = random.random() + np.random.random() + float(torch.rand(()))  # noqa: S311
        return x + noise, y


def test_a_task_that_draws_from_global_generators_gets_a_devices_numbers(
    task: Ragged, native: NativeTier
) -> None:
    drawing = tensors(Drawing(perceptron, (20,), 5))
    native.task, native.draws = drawing, False
    work = work_of(drawing)
    before = random.getstate(), torch.get_rng_state()
    try:
        found = native.reduce(work)
        assert native.draws
    finally:
        native.task, native.draws = task, False
    assert random.getstate() == before[0]
    assert bool((torch.get_rng_state() == before[1]).all())
    np.testing.assert_allclose(mean(found), mean(loop(drawing, work)), rtol=0, atol=1e-6)


def test_a_heavy_round_takes_fewer_bits_behind_the_point(task: Ragged, native: NativeTier) -> None:
    """2^17 examples need an exponent of 35: the first guess is found to be wrong."""
    heavy = tensors(Ragged(perceptron, (20,), 5, sizes=(1 << 17, 3)))
    native.task = heavy
    work = replace(work_of(heavy, [0, 1]), settings=Settings(batch_size=1 << 14))
    try:
        found = native.reduce(work)
    finally:
        native.task = task
    assert found.exponent == 62 - 10 - 18
    np.testing.assert_allclose(mean(found), mean(loop(heavy, work)), rtol=0, atol=1e-6)


class Growing(Ragged):
    """Has twice as many rows at each pass."""

    passes = 0

    def train_data(self, site: Any) -> Any:
        """Return the rows so many times."""
        x, y = super().train_data(site)
        self.passes += site.partition == 0
        return np.concatenate([x] * 2**self.passes), np.concatenate([y] * 2**self.passes)


def test_a_second_pass_over_more_examples_than_were_counted_has_no_room(
    task: Ragged, native: NativeTier
) -> None:
    native.task = tensors(Growing(perceptron, (20,), 5, sizes=(1 << 16, 3)))
    work = replace(work_of(native.task, [0, 1]), settings=Settings(batch_size=1 << 14))
    native.exponent = 36
    try:
        with pytest.raises(SettingsError, match="as many examples of each client whenever"):
            native.reduce(work)
    finally:
        native.task = task


def test_an_index_of_examples_is_its_own_row_whoever_failed(
    task: Ragged, native: NativeTier
) -> None:
    class Raising(Ragged):
        """Two clients' data cannot be read."""

        def train_data(self, site: Any) -> Any:
            """Return examples, but not of clients 2 and 4."""
            if site.partition == 2:
                raise Refused(pb.REASON_TASK_FAILED, "no disk")
            if site.partition == 4:
                raise OSError("the disk of client 4")
            return super().train_data(site)

    native.task = tensors(Raising(perceptron, (20,), 5))
    try:
        found = native.reduce(work_of(task))
    finally:
        native.task = task
    assert found.report.verdicts.tolist() == [0, 0, Verdict.FAILED, 0, Verdict.FAILED]
    assert found.report.causes == {2: "no disk", 4: "OSError: the disk of client 4"}
    np.testing.assert_array_equal(found.total, native.reduce(work_of(task, [0, 1, 3])).total)


def test_a_received_model_without_a_finite_loss_costs_every_client(
    task: Ragged, native: NativeTier
) -> None:
    """As on a device, whose metrics are bounded; it does not train."""
    work = work_of(task, evaluate=True)
    work.models[0]["2.bias"][0] = np.nan
    report = native.reduce(work).report
    assert (report.verdicts == Verdict.FAILED).all()
    assert "not finite" in report.causes[0]
    assert not loop(task, work).report.counted.any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int32])
def test_classes_come_as_torch_takes_them(task: Ragged, native: NativeTier, dtype: Any) -> None:
    """What passes here and is refused on a device would be found on the devices."""
    typed = Ragged(perceptron, (20,), 5)
    typed.pairs = [(x, y.astype(dtype)) for x, y in typed.pairs]
    typed = tensors(typed)
    native.task = typed
    try:
        found = native.reduce(work_of(typed)).report.verdicts
    finally:
        native.task = task
    np.testing.assert_array_equal(found, loop(typed, work_of(typed)).report.verdicts)
    assert set(found.tolist()) == {Verdict.FAILED if dtype is np.int32 else Verdict.COUNTED}
