"""A training group's numbers are those of one process, for any number of ranks and any sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import Dataset

from umbel.clients import grpc_session
from umbel.clients.torch_ddp import INTERFACES, TOGETHER, Group, GroupEngine, Place, rows_of
from umbel.clients.trainers import TorchGroup
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.optimizers import SGD, Adam
from umbel.strategies.task import Task
from umbel.strategies.torch_task import TorchEngine
from umbel.strategies.trainer import Local, Settings, TaskTrainer, TrainResult, load
from umbel.tests.ddp_app import NAME, site, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLOSE = 1e-5


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppRef:
    return AppRef(write(tmp_path_factory.mktemp("app")), f"{NAME}:Points")


@pytest.fixture(scope="module", params=[2, 3])
def group(app: AppRef, request: pytest.FixtureRequest) -> Iterator[TorchGroup]:
    """One group for all tests: it takes seconds to start."""
    with TorchGroup(app, request.param) as made:
        yield made


@pytest.fixture(scope="module")
def alone(app: AppRef) -> TaskTrainer:
    """The same task in this process."""
    return load(load_task(app))


def close(first: TrainResult, second: TrainResult) -> None:
    assert first.weight == second.weight
    assert first.metrics == pytest.approx(second.metrics, rel=CLOSE)
    assert list(first.deltas) == list(second.deltas)
    for name, delta in second.deltas.items():
        np.testing.assert_allclose(first.deltas[name], delta, rtol=0, atol=CLOSE)


# ---- the same numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"),
    [
        (45, 15, 1),  # even for three ranks, ragged for two
        (48, 16, 3),  # the other way round
        (31, 10, 2),  # a last batch of one row: ranks without rows
        (29, 9, 2),  # a last batch of two rows
        (5, 1, 1),  # every batch has one row
        (1, 16, 1),  # fewer examples than ranks
    ],
)
def test_the_update_is_that_of_one_process(
    group: TorchGroup, alone: TaskTrainer, rows: int, batch: int, epochs: int
) -> None:
    start = alone.arrays(3)
    settings = Settings(batch_size=batch, epochs=epochs, round=4, seed=3)
    expected = alone.train(start, site(rows=rows), settings)
    # The wrong weights, one row counted twice or left out would show at this scale.
    assert max(np.abs(delta).max() for delta in expected.deltas.values()) > 1000 * CLOSE
    assert not expected.deltas["unused.weight"].any()
    found = group.train(start, site(rows=rows), settings)
    close(found, expected)
    assert not found.deltas["unused.weight"].any()
    again = group.train(start, site(rows=rows), settings)
    assert all(again.deltas[k].tobytes() == found.deltas[k].tobytes() for k in start)


def test_the_model_the_metrics_and_the_evaluation_are_those_of_one_process(
    group: TorchGroup, alone: TaskTrainer
) -> None:
    start = alone.arrays(3)
    assert {k: a.tobytes() for k, a in group.arrays(3).items()} == {
        k: a.tobytes() for k, a in start.items()
    }
    for phase in ("train", "evaluate"):
        assert group.declared(phase) == alone.declared(phase)
    for rows in (1, 2, 45):
        close(group.evaluate(start, site(rows=rows)), alone.evaluate(start, site(rows=rows)))
    assert group.test(start) == alone.test(start) == {}


def test_every_rank_has_one_thread_no_core_and_no_way_out(
    group: TorchGroup, alone: TaskTrainer
) -> None:
    psutil = pytest.importorskip("psutil")
    group.evaluate(alone.arrays(), site("limits"))
    leader = psutil.Process(group.pid)
    ranks = [leader, *leader.children()]
    assert len(ranks) == group._sizes[0]
    for rank in ranks:
        ends = [end.laddr.ip for end in rank.net_connections(kind="inet")]
        assert ends
        assert {ip.removeprefix("::ffff:") for ip in ends} <= {"127.0.0.1", "::1"}


# ---- failures that all ranks share leave the group alive -----------------------------------------


@pytest.mark.parametrize(
    ("what", "who", "reason", "says"),
    [
        ("raise", None, pb.REASON_TASK_FAILED, "the task raised; its trace is above"),
        ("raise", 0, pb.REASON_TASK_FAILED, "the task raised; its trace is above"),
        ("raise", 1, pb.REASON_TASK_FAILED, "on rank 1 of ., which said more above"),
        ("uneven", 1, pb.REASON_TASK_FAILED, r"returned \[45, 46.* examples on ranks 0 to"),
        ("nan", None, pb.REASON_NOT_FINITE, "on rank . of ., which said more above"),
    ],
)
def test_a_failure_before_training_is_a_refusal_by_all(
    group: TorchGroup,
    alone: TaskTrainer,
    what: str,
    who: int | None,
    reason: int,
    says: str,
) -> None:
    start = alone.arrays()
    expected = group.train(start, site(), Settings())
    pid = group.pid
    with pytest.raises(Refused, match=says) as caught:
        group.train(start, site(what, who), Settings())
    assert caught.value.reason == reason
    assert "patient" not in str(caught.value)
    close(group.train(start, site(), Settings()), expected)
    assert group.pid == pid


# ---- a group of one, in this process -------------------------------------------------------------


class Normed(Task):
    """With BatchNorm and Dropout, and a dataset."""

    def model(self) -> nn.Module:
        """Return the model."""
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows that are made one at a time."""

    def __len__(self) -> int:
        return 34

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(4.0) * row / 34, torch.tensor(row % 3)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    for name in INTERFACES:
        monkeypatch.setenv(name, "lo")
    meeting = tmp_path / "meeting"
    meeting.mkdir(mode=0o700)
    made = Group(Place(0, 1, meeting))
    yield made
    distributed.destroy_process_group()


def test_a_rank_waits_for_the_others_as_long_as_a_session_lasts(one: Group) -> None:
    """Not for torch's half hour: a rank that reads its data for longer than the others is alive."""
    assert one.ranks == 1
    backend = distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.options._timeout == TOGETHER
    assert TOGETHER.total_seconds() == grpc_session.LONGEST_S


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.01)])
def test_a_group_of_one_gives_the_bits_of_an_engine(
    one: Group, tmp_path: Path, optimizer: SGD | Adam
) -> None:
    local = Local(epochs=2, batch_size=8, round=1, seed=2)
    engines = [
        GroupEngine(Normed(), Normed().model(), one),
        TorchEngine(Normed(), Normed().model()),
    ]
    losses = []
    for engine in engines:
        engine.reset(7)
        losses.append(engine.fit(Rows(), optimizer, local))
    first, second = (engine.arrays() for engine in engines)
    assert losses[0] == losses[1]
    assert all(first[name].tobytes() == second[name].tobytes() for name in second)
    assert not (tmp_path / "meeting").exists()


# ---- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_shares_are_a_partition_as_even_as_can_be(ranks: int, least: int) -> None:
    for count in range(1, 40):
        shares = [rows_of(rank, ranks, count, least) for rank in range(ranks)]
        assert [row for share in shares for row in range(*share)] == list(range(count))
        sizes = [stop - start for start, stop in shares]
        busy = [size for size in sizes if size]
        assert max(busy) - min(busy) <= 1
        assert min(busy) >= min(least, count)
        assert len(busy) == max(1, min(ranks, count // least))
        assert sizes == sorted(sizes, reverse=True)  # rank 0, whose buffers count, has rows


def test_by_hand() -> None:
    assert [rows_of(rank, 3, 8) for rank in range(3)] == [(0, 3), (3, 6), (6, 8)]
    assert [rows_of(rank, 3, 3, 2) for rank in range(3)] == [(0, 3), (3, 3), (3, 3)]


def test_nothing_of_a_batch_is_lost_on_the_way(one: Group) -> None:
    def counted(names: list[Any]) -> dict[str, int | float]:
        values: dict[str, int | float] = {"n": 2**40, "loss": 0.25}
        declared = {"loss": Task().declarations()["loss"], "n": Task().declarations()["examples"]}
        return one.added({name: values[name] for name in names}, declared)

    assert counted(["n", "loss"]) == {"loss": 0.25, "n": 2**40}
    assert one.share(5) == [5]
