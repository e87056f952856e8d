"""One client's work: settings, order, weight, differences, and what is refused."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError
from umbel.server.outcome import means
from umbel.strategies.metrics import Metrics, Sum
from umbel.strategies.numpy_models import MLP
from umbel.strategies.optimizers import SGD, Adam
from umbel.strategies.task import Site, Task
from umbel.strategies.trainer import Settings, differences, load


class Points(Task):
    """A client's data depends on its partition; the last of them has none."""

    optimizer: SGD | Adam = SGD(lr=0.5)
    batch_size = 8

    def model(self) -> MLP:
        """Return the model."""
        return MLP(2, 3)

    def train_data(self, site: Site) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the examples."""
        rng = np.random.default_rng(site.partition or 0)
        rows = 0 if site.partition == 4 else 20
        labels = rng.integers(3, size=rows)
        return rng.normal(size=(rows, 2)).astype(np.float32) + labels[:, None], labels

    def test_data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the test examples."""
        return self.train_data(Site(1, 5))


SITE = Site(2, 5)


def test_a_round_of_one_client() -> None:
    trainer = load(Points())
    start = trainer.arrays(1)
    kept = {name: array.copy() for name, array in start.items()}
    result = trainer.train(start, SITE, Settings(epochs=3, round=1))
    assert result.weight == 20
    assert list(result.metrics) == list(trainer.declared())
    assert result.metrics["train.examples"] == 60
    # The evaluation is of the model that came: the same as evaluating it alone.
    alone = trainer.evaluate(start, SITE)
    assert {k: v for k, v in result.metrics.items() if k.startswith("eval.")} == alone.metrics
    assert (alone.weight, alone.deltas) == (1, {})
    # received + delta is the trained model, which is better on the client's own data.
    trained = {name: start[name] + delta for name, delta in result.deltas.items()}
    assert trainer.evaluate(trained, SITE).metrics["eval.loss"] < alone.metrics["eval.loss"]
    assert all((start[name] == kept[name]).all() for name in kept)


def test_a_round_depends_on_its_key_only() -> None:
    trainer = load(Points())
    start = trainer.arrays()

    def update(site: Site = SITE, **key: int) -> bytes:
        return trainer.train(start, site, Settings(**key)).deltas["0.weight"].tobytes()

    first = update(round=1)
    trainer.train(start, Site(0, 5), Settings(round=9))
    assert update(round=1) == first
    assert len({first, update(round=2), update(round=1, seed=1)}) == 3
    assert update(Site(2, 5, client=2), round=1) == first
    assert update(Site(2, 5, client=3), round=1) != first


def test_the_tasks_site_knows_seed_round_and_client() -> None:
    seen: list[tuple[int, int, int]] = []

    class Watch(Points):
        def train_data(self, site: Site) -> tuple[NDArray[Any], NDArray[Any]]:
            seen.append((site.seed, site.round, site.index))
            return super().train_data(site)

    trainer = load(Watch())
    trainer.train(trainer.arrays(), SITE, Settings(seed=7, round=3))
    assert seen == [(7, 3, 2)]  # loaded once: evaluation and training share it


def test_a_client_without_examples_refuses() -> None:
    trainer = load(Points())
    with pytest.raises(Refused, match="no examples") as caught:
        trainer.train(trainer.arrays(), Site(4, 5), Settings())
    assert caught.value.reason == pb.REASON_TASK_FAILED


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.pop("0.bias"), r"'0.bias': expected \(3,\) float32, got nothing"),
        (lambda a: a.update(extra=np.zeros(1)), r"'extra': expected nothing, got \(1,\) float64"),
        (
            lambda a: a.update({"0.bias": np.zeros(3)}),
            r"expected \(3,\) float32, got \(3,\) float64",
        ),
        (lambda a: a.update({"0.bias": np.zeros(4, np.float32)}), r"got \(4,\) float32"),
    ],
)
def test_a_model_of_another_form_is_refused(change: Any, says: str) -> None:
    trainer = load(Points())
    arrays = trainer.arrays()
    change(arrays)
    with pytest.raises(Refused, match=says) as caught:
        trainer.evaluate(arrays, SITE)
    assert caught.value.reason == pb.REASON_TASK_FAILED


class Chatty(Points):
    """Reports what nobody declared."""

    def evaluate(self, model: Any, data: Any) -> Metrics:
        """Return metrics."""
        return Metrics(super().evaluate(model, data), age=41)


class Bounded(Points):
    """Declares a bound that its loss exceeds."""

    metrics = {"loss": Sum(0.5)}  # noqa: RUF012

    def evaluate(self, model: Any, data: Any) -> Metrics:
        """Return metrics."""
        return Metrics(loss=0.75)


@pytest.mark.parametrize("task", [Chatty(), Bounded()])
def test_an_undeclared_metric_stays_here(task: Task) -> None:
    trainer = load(task)
    with pytest.raises(Refused) as caught:
        trainer.train(trainer.arrays(), SITE, Settings())
    assert caught.value.reason == pb.REASON_UNDECLARED_METRIC
    with pytest.raises(Refused) as caught:
        trainer.evaluate(trainer.arrays(), SITE)
    assert caught.value.reason == pb.REASON_UNDECLARED_METRIC


def test_a_diverged_loss_is_not_finite() -> None:
    class Wild(Points):
        loss = "mse"

        def train_data(self, site: Site) -> tuple[NDArray[Any], NDArray[Any]]:
            return np.ones((8, 2), np.float32), np.zeros((8, 3))

    trainer = load(Wild())
    with np.errstate(all="ignore"), pytest.raises(Refused) as caught:
        trainer.train(trainer.arrays(), SITE, Settings(epochs=5, lr=1e15))
    assert caught.value.reason == pb.REASON_NOT_FINITE


def test_declared_names_by_phase() -> None:
    trainer = load(Points())
    assert trainer.declared() == {
        "eval.examples": 0,
        "eval.loss": 24,
        "eval.correct": 0,
        "train.examples": 0,
        "train.loss": 24,
    }
    assert set(trainer.declared("evaluate")) == {"eval.examples", "eval.loss", "eval.correct"}


def test_a_metric_of_ones_own_comes_with_the_number_of_its_examples() -> None:
    """Without it the server would have a sum and nothing to divide it by."""

    class Depth(Points):
        metrics = {"depth": Sum(100.0)}  # noqa: RUF012

        def evaluate(self, model: Any, data: Any) -> Metrics:
            return Metrics(depth=2.5 * len(data[1]))

    trainer = load(Depth())
    assert trainer.declared("evaluate") == {"eval.examples": 0, "eval.depth": 24}
    sums = trainer.evaluate(trainer.arrays(), SITE).metrics
    assert sums == {"eval.examples": 20, "eval.depth": 50.0}
    assert means(sums) == {"eval.examples": 20.0, "eval.depth": 2.5}
    assert trainer.test(trainer.arrays()) == {"depth": 2.5}


def test_test_metrics_are_means() -> None:
    trainer = load(Points())
    zeros = {name: np.zeros_like(array) for name, array in trainer.arrays().items()}
    labels = Points().test_data()[1]
    found = trainer.test(zeros)  # all classes alike: ln 3 each, and argmax is class 0
    assert found["loss"] == pytest.approx(np.log(3), rel=1e-6)
    assert found["accuracy"] == (labels == 0).sum() / 20


def test_without_test_data_there_is_nothing_to_say() -> None:
    class Blind(Points):
        def test_data(self) -> Any:
            return None

    trainer = load(Blind())
    assert trainer.test(trainer.arrays()) == {}


def test_differences_by_hand() -> None:
    received = {
        "h": np.array([1.0, 2.0], np.float16),
        "d": np.array(0.1),
        "n": np.array([3]),
        "flag": np.array([True]),
        "none": np.zeros((0, 2), np.float32),
    }
    local = {
        "h": np.array([1.5, 2.0], np.float16),
        "d": np.array(0.3),
        "n": np.array([4]),
        "flag": np.array([False]),
        "none": np.zeros((0, 2), np.float32),
    }
    found = differences(local, received)
    assert {name: delta.dtype.name for name, delta in found.items()} == {
        "h": "float32",
        "d": "float64",
        "none": "float32",
    }
    assert found["h"].tolist() == [0.5, 0.0]
    assert found["d"] == 0.3 - 0.1
    assert found["d"].shape == ()
    assert found["none"].shape == (0, 2)


def test_settings_come_from_kebab_case_keys() -> None:
    config = {
        "lr": 1,
        "local-epochs": 3,
        "batch-size": 32,
        "server-round": 7,
        "proximal-mu": 1,
        "seed": 5,
        "other": "x",
    }
    expected = Settings(lr=1.0, epochs=3, batch_size=32, round=7, seed=5, proximal_mu=1.0)
    assert Settings.of(config) == expected
    assert Settings.of({}) == Settings()


def test_what_is_not_set_is_the_tasks_own() -> None:
    optimizer, local = Settings(round=4).resolved(Points())
    assert optimizer == SGD(lr=0.5)
    assert (local.epochs, local.batch_size, local.round) == (1, 8, 4)

    class Other(Points):
        optimizer = Adam(lr=0.5, eps=0.25)

    assert Settings(lr=0.25).resolved(Other())[0] == Adam(lr=0.25, eps=0.25)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", 0),
        ("lr", "0.1"),
        ("lr", True),
        ("lr", float("inf")),
        ("lr", float("nan")),
        ("local-epochs", 0),
        ("local-epochs", 1.0),
        ("batch-size", -1),
        ("batch-size", True),
        ("server-round", -1),
        ("seed", "one"),
        ("proximal-mu", -0.1),
        ("proximal-mu", float("nan")),
        ("proximal-mu", True),
        ("proximal-mu", None),
    ],
)
def test_a_setting_out_of_range_is_named(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"config\.{key}: expected"):
        Settings.of({key: value})
