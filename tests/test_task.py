"""Streams, batches and sites: randomness keyed by what it is for, and by nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.strategies.metrics import Count, Metrics, Sum
from umbel.strategies.numpy_models import MLP
from umbel.strategies.task import Site, Task, batches, order, stream
from umbel.strategies.trainer import Local


def test_a_stream_is_philox_under_the_hashed_tuple() -> None:
    # printf 'umbel/stream/1\n7\nshuffle\n3\n12\n' | sha256sum | head -c 32, as two little-endian
    # words, is the key of numpy's own Philox.
    digest = "9616b22b87fb63d63ea038688029d006"
    words = [int.from_bytes(bytes.fromhex(digest)[i : i + 8], "little") for i in (0, 8)]
    expected = np.random.Philox(key=np.array(words, dtype=np.uint64)).random_raw(4)
    assert stream(7, "shuffle", 3, 12).random_raw(4).tolist() == expected.tolist()


KEYS = st.tuples(
    st.integers(0, 2**63),
    st.sampled_from(["shuffle", "site", "torch"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


@given(first=KEYS, second=KEYS)
def test_two_keys_never_share_a_stream(
    first: tuple[int, str, int, int], second: tuple[int, str, int, int]
) -> None:
    same = stream(*first).random_raw(2).tolist() == stream(*second).random_raw(2).tolist()
    assert same == (first == second)


@given(count=st.integers(0, 200), seed=st.integers(0, 1000))
def test_an_order_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(order(stream(seed, "t"), count)) == list(range(count))


def test_orders_are_uniform() -> None:
    # All 6 orders of 3 rows, 6,000 draws: 1,000 each, within 5 standard deviations of sqrt(833).
    bits = stream(1, "t")
    counts: dict[bytes, int] = {}
    for _ in range(6000):
        key = order(bits, 3).tobytes()
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 1000) < 5 * 833**0.5 for count in counts.values())


@given(count=st.integers(1, 50), size=st.integers(1, 60), epochs=st.integers(1, 3))
def test_every_epoch_sees_every_row_once(count: int, size: int, epochs: int) -> None:
    found = list(batches(Local(epochs, size, 4, 5, 6), count))
    steps = -(-count // size)
    assert len(found) == epochs * steps
    for epoch in range(epochs):
        part = found[epoch * steps : (epoch + 1) * steps]
        assert [len(rows) for rows in part[:-1]] == [size] * (steps - 1)
        assert sorted(np.concatenate(part)) == list(range(count))


def test_shuffles_differ_by_epoch_round_client_and_seed_and_repeat() -> None:
    def rows(epochs: int, round_: int, seed: int, client: int) -> list[list[int]]:
        return [b.tolist() for b in batches(Local(epochs, 40, round_, seed, client), 40)]

    first, second = rows(2, 1, 0, 0)
    assert first != second
    np.random.default_rng(0).random()
    np.random.seed(0)
    assert rows(1, 1, 0, 0) == [first]
    assert len({str(rows(1, *key)) for key in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]}) == 4


def test_a_sites_generator_is_its_own_and_the_same_each_time() -> None:
    site = Site(3, 5, seed=1, round=2)
    first = site.rng.random()
    assert site.rng.random() == first
    assert Site(4, 5, seed=1, round=2).rng.random() != first
    assert Site(client=3, seed=1, round=2).rng.random() == first  # a device may be given an index


@pytest.mark.parametrize("partition", [5, -1])
def test_a_partition_is_one_of_the_partitions(partition: int) -> None:
    with pytest.raises(SettingsError, match="an index below 5 partitions"):
        Site(partition, 5)


def test_a_partition_without_a_count_is_refused() -> None:
    with pytest.raises(SettingsError, match="None partitions"):
        Site(0)


def test_a_site_on_a_device() -> None:
    site = Site(config={"ward": "north"}, data=(Path("/data"),))
    assert (site.partition, site.index, site.config["ward"]) == (None, 0, "north")


def test_a_task_says_what_it_lacks() -> None:
    with pytest.raises(NotImplementedError, match="Task defines no model"):
        Task().model()
    with pytest.raises(NotImplementedError, match=r"Task defines no train_data\(site\)"):
        Task().train_data(Site())
    assert Task().test_data() is None


def test_a_task_declares_its_own_metrics_or_the_standard_ones() -> None:
    class Own(Task):
        metrics = {"examples": Count(10), "depth": Sum(3.0)}  # noqa: RUF012

    assert Own().declarations() == {"examples": Count(10), "depth": Sum(3.0)}
    assert list(Task().declarations()) == ["examples", "loss", "correct"]


def test_the_default_evaluation_can_be_called_by_an_overriding_task() -> None:
    class Twice(Task):
        def evaluate(self, model: Any, data: Any) -> Metrics:
            found = super().evaluate(model, data)
            return Metrics(found | {"examples": 2 * found["examples"]})

    data = (np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
    assert Twice().evaluate(MLP(2, 2), data)["examples"] == 6
