"""One rank of a GPU client's training group: torch DDP whose result is that of one process.

    every rank   the model that came, the same batches in the same order, its share of their rows
    gradients    sum over ranks of rows(rank)/rows(batch) * gradient of the rank's mean loss,
                 which is the gradient of the whole batch's mean loss
    evaluation   sums over each rank's share of the examples, added up

DDP (Li et al. 2020, PyTorch Distributed) divides the sum of the ranks' gradients by their number,
so each loss is weighted by `ranks * rows(rank)/rows(batch)`. A rank without rows takes part with
rank 0's and a weight of zero. Only tensors travel between ranks: object collectives would pickle.

What draws from a batch as a whole is as everywhere under DDP: Dropout has a stream for each rank,
BatchNorm sees one rank's rows (never a single one where the batch has more) and rank 0's running
statistics are the result.

gloo and NCCL neither encrypt nor authenticate: the ranks meet by a file in a private directory and
talk over loopback.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Subset

from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, SettingsError
from ..strategies.app import load_task
from ..strategies.metrics import Count, checked
from ..strategies.torch_task import TorchEngine
from ..strategies.trainer import TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ..strategies.app import AppRef
    from ..strategies.metrics import Sum
    from ..strategies.optimizers import Optimizer
    from ..strategies.task import Site, Task
    from ..strategies.trainer import Local

SETTLE_S = 1.0
"""How long a rank whose collective failed waits to be ended, before it says so itself."""
TOGETHER = timedelta(hours=6)
"""How long a rank may wait for the others: as long as any session, for a rank that died is seen by
its parent at once, and one that is slow is not cut. (torch's own is half an hour, NCCL's ten
minutes, a store's five.)"""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo"


class Elsewhere(Refused):
    """Another rank refused: it has said why."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place in its group."""

    rank: int
    ranks: int
    meeting: Path
    """An empty directory, mode 0700, that all ranks share."""
    gpus: bool = False
    """Whether each rank has a GPU of its own."""


class Group:
    """The process group as one rank sees it; it lasts as long as the process."""

    def __init__(self, place: Place) -> None:
        """Meet the others; returns when all are there."""
        self.rank, self.ranks = place.rank, place.ranks
        self.device = torch.device("cuda", place.rank) if place.gpus else torch.device("cpu")
        self.broken = False
        """Whether a call ended while another rank may still wait for this one."""
        for name in INTERFACES:
            os.environ.setdefault(name, LOOPBACK)
        if place.gpus:
            torch.cuda.set_device(self.device)
        store = FileStore(str(place.meeting / "ranks"), place.ranks)
        store.set_timeout(TOGETHER)
        with self.collective():
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if place.gpus else "gloo",
                store=store,
                timeout=TOGETHER,
                rank=place.rank,
                world_size=place.ranks,
            )
        self.share(0)
        if not place.gpus:  # gloo is connected; NCCL meets again at its first use
            shutil.rmtree(place.meeting, ignore_errors=True)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Wait for the others in this block, or break the group.

        A rank that is gone fails the others' collectives before its death has been named; the
        process is ended meanwhile.
        """
        try:
            yield
        except RuntimeError:
            self.broken = True
            time.sleep(SETTLE_S)
            raise

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Run what all ranks must finish together: whatever ends it early breaks the group."""
        self.broken = True
        yield
        self.broken = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a step that has no collective on every rank; if one fails, all of them do.

        Raises:
            Elsewhere: Another rank failed.
        """
        try:
            yield
        except Refused as error:
            self.share(int(error.reason))
            raise
        except BaseException:
            self.share(int(pb.REASON_TASK_FAILED))
            raise
        for rank, code in enumerate(self.share(0)):
            if code:
                where = f"on rank {rank} of {self.ranks}, which said more above"
                raise Elsewhere(cast("pb.Reason", code), where)

    def share(self, value: int) -> list[int]:
        """Return every rank's value, by rank."""
        slots = torch.zeros(self.ranks, dtype=torch.int64)
        slots[self.rank] = value
        with self.collective():
            distributed.all_reduce(slots)
        return [int(slot) for slot in slots]

    def added(
        self, values: Mapping[str, int | float], declared: Mapping[str, Sum | Count]
    ) -> dict[str, int | float]:
        """Return the sum over all ranks of each declared metric: counts exactly."""
        found: dict[str, int | float] = {}
        for kind, dtype in ((Count, torch.int64), (object, torch.float64)):
            names = [n for n, d in declared.items() if n not in found and isinstance(d, kind)]
            sums = torch.tensor([values[name] for name in names], dtype=dtype)
            with self.collective():
                distributed.all_reduce(sums)
            found |= zip(names, sums.tolist(), strict=True)
        return {name: found[name] for name in declared}


def rows_of(rank: int, ranks: int, count: int, least: int = 1) -> tuple[int, int]:
    """Return the rows of `count`, first and one past the last, that belong to a rank.

    As even as can be and in order; no rank has fewer than `least` but none, unless `count` is less.
    """
    active = max(1, min(ranks, count // least))
    if rank >= active:
        return count, count
    size, more = divmod(count, active)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)


class _BatchLoss(torch.nn.Module):
    """The loss of a batch as a module: DDP watches the whole way from parameters to loss."""

    def __init__(self, engine: GroupEngine) -> None:
        super().__init__()
        self.model = engine.model
        self._engine = engine

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the mean loss."""
        return self._engine._loss(batch)


class GroupEngine(TorchEngine):
    """The engine of one rank: trains on its share of every batch."""

    def __init__(self, task: Task, model: Any, group: Group) -> None:
        """Put the model on this rank's device."""
        if not isinstance(model, torch.nn.Module):
            raise SettingsError(
                "tool.umbel.task-torch",
                "a task whose model() is an nn.Module",
                type(model).__name__,
            )
        super().__init__(task, model.to(group.device))
        self._group = group
        # One row has no variance: BatchNorm refuses it.
        self._least = 2 if any(isinstance(m, _BatchNorm) for m in model.modules()) else 1
        if group.rank:
            self.noise = f"torch rank {group.rank}"

    def fit(self, data: Any, optimizer: Optimizer, local: Local) -> float:
        """Train in place and return the loss, summed over every example of every epoch.

        DDP is made anew for each call: it arranges its buckets after the first batch, and sums of
        three and more are rounded in the buckets' order. So a warm group and a new one agree.
        """
        group = self._group
        with group.unbroken():
            with group.collective():
                self._ddp = DistributedDataParallel(
                    _BatchLoss(self), find_unused_parameters=True, init_sync=False
                )
            loss = super().fit(data, optimizer, local)
            total = torch.tensor([loss], dtype=torch.float64)
            with group.collective():
                distributed.all_reduce(total)
        return float(total)

    def _backward(self, data: Any, rows: NDArray[np.intp]) -> torch.Tensor:
        """Leave the gradients of the whole batch; return the sum of this rank's losses."""
        group = self._group
        start, stop = rows_of(group.rank, group.ranks, len(rows), self._least)
        own = stop - start
        if not own:  # a parameter that rank 0 leaves unused must be unused here too
            start, stop = rows_of(0, group.ranks, len(rows), self._least)
        batch = self._batch(data, rows[start:stop])
        with group.collective():
            loss: torch.Tensor = self._ddp(batch)
            weighted = loss * (group.ranks * own / len(rows))
            weighted.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * own


class RankTrainer(TaskTrainer):
    """The trainer of one rank; every rank gets every call of `train` and `evaluate`."""

    def __init__(self, task: Task, group: Group) -> None:
        """Build the model."""
        super().__init__(task, lambda own, model: GroupEngine(own, model, group))
        self._group = group
        self._evaluation = {f"eval.{name}": metric for name, metric in self._metrics.items()}

    def data(self, site: Site) -> tuple[Any, int]:
        """Return the client's examples, all of them on every rank."""
        with self._group.together():
            data, count = super().data(site)
        counts = self._group.share(count)
        if len(set(counts)) > 1:
            raise Refused(
                pb.REASON_TASK_FAILED,
                f"train_data(site) returned {counts} examples on ranks 0 to {len(counts) - 1}; "
                "it must return the same ones in every process",
            )
        return data, count

    def evaluated(self, data: Any) -> dict[str, int | float]:
        """Return the task's metrics of the loaded model over all ranks' shares."""
        group = self._group
        start, stop = rows_of(group.rank, group.ranks, self._engine.count(data))
        found: dict[str, int | float] = dict.fromkeys(self._evaluation, 0)
        with group.together():
            if start < stop:
                found = super().evaluated(_part(data, start, stop))
        return checked(group.added(found, self._evaluation), self._evaluation)


def load(app: AppRef, group: Group) -> RankTrainer:
    """Return the trainer of an app's torch task for this rank."""
    return RankTrainer(load_task(app), group)


def _part(data: Any, start: int, stop: int) -> Any:
    """Return some examples in the form of all of them."""
    if isinstance(data, Dataset):
        return Subset(data, range(start, stop))
    return tuple(part[start:stop] for part in data)
