"""Tier T2: a cohort's models trained side by side, by vmap over stacked parameters.

    clients by number of steps, the longest first;   K of them at a time, by memory
    step j: the j-th batch of all clients that have more than j, padded to one width

Clients that are done stand at the end of the stack and are sliced off, so momentum and weight decay
end with a client's last batch. Made for GPUs, where small models wait for launches; on a CPU it is
right but rarely fast. Bits: the same for the same cohort on the same machine; a batched product may
round otherwise for another K, so unlike T0, T1 and T3 they depend on who is trained beside whom.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .examples import Examples
from .isolation import cause, isolated
from .reducing import Rows, Sum, Tally, Trained
from .torch_stacked import Stacked, Stepper, masks
from .torch_sums import add, judge
from .work import Verdict
from ...clients.child import boundary
from ...protocol.errors import Refused, SettingsError
from ...strategies.optimizers import Adam
from ...strategies.task import batches, stream
from ...strategies.torch_task import TorchEngine, tensor_of, to_torch
from ...strategies.trainer import TaskTrainer, is_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from .torch_stacked import Drop, Tensors, Traced
    from .work import Reduced, Report, Work
    from ...strategies.task import Task
    from ...strategies.trainer import Local

CPU_BYTES = 64 << 20
"""What a stack takes at most on a CPU: beyond the caches it only gets slower."""
GPU_SHARE = 0.5
"""What it takes at most of a GPU's memory: of all of it and not of what is free, so that K, and
with it the last bits, are the same tomorrow."""


class _Client(NamedTuple):
    """One client of a stack."""

    place: int
    """In the work."""
    inputs: torch.Tensor
    targets: torch.Tensor
    rows: list[NDArray[np.intp]]
    """Of each batch, over all epochs."""
    noise: torch.Generator
    metrics: Mapping[str, float]


class _Done(NamedTuple):
    """One stack after its training."""

    clients: list[_Client]
    updates: list[torch.Tensor]
    """For each float array a tensor (clients, values)."""
    losses: list[float]


class Cohorts:
    """Trains K clients at a time."""

    name = "T2"

    def __init__(self, task: Task, threads: int = 1, device: torch.device | None = None) -> None:
        """Build the task's model and find out whether it can be stacked.

        Args:
            task: What is trained.
            threads: How many torch may use on a CPU.
            device: Where; None is a GPU if there is one.

        Raises:
            SettingsError: The model cannot be trained in a stack.
            Refused: The task raised.
        """
        with boundary():
            model = task.model()
            self._trainer = TaskTrainer(task)
        if not isinstance(model, torch.nn.Module):
            raise SettingsError("task.model()", "an nn.Module", type(model).__name__)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._task, self._threads = task, threads
        self._stacked = Stacked(task, model.to(self.device))
        self._known: Traced | None = None
        self._bytes = CPU_BYTES
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
            self._bytes = int(GPU_SHARE * memory)

    def reduce(self, work: Work) -> Reduced:
        """Train and return the sum."""
        with isolated(threads=self._threads):
            return self._reduced(work)

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train and write each client's update into its row."""
        with isolated(threads=self._threads):
            return self._written(work, out)

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _reduced(self, work: Work) -> Reduced:
        tally = Tally(work)
        examples = self._examples(work, tally)
        found = Sum(work, examples.weight, tally)
        total = torch.zeros(len(found.total), dtype=torch.int64, device=self.device)
        for done in self._stacks(work, examples, tally):
            counts = [len(client.inputs) for client in done.clients]
            weights = np.array([tally.weight(count) for count in counts], np.float64)
            scales = weights * [work.factor(client.place) for client in done.clients]
            verdicts = judge(done.updates, len(scales), found.bounds)
            _note(tally, done, verdicts)
            add(total, done.updates, np.where(verdicts == 0, scales, 0.0), found.exponent)
        found.total += total.cpu().numpy()
        return found.reduced()

    def _written(self, work: Work, out: NDArray[Any]) -> Report:
        found = Rows(work, out)
        for done in self._stacks(work, self._examples(work, found.tally), found.tally):
            verdicts = judge(done.updates, len(done.clients), found.bounds)
            _note(found.tally, done, verdicts)
            start = 0
            for update in done.updates:
                part = update.cpu().numpy()
                for client, row, verdict in zip(done.clients, part, verdicts, strict=True):
                    if verdict == Verdict.COUNTED:
                        out[client.place, start : start + len(row)] = row
                start += part.shape[1]
        return found.tally.report()

    def _examples(self, work: Work, tally: Tally) -> Examples:
        """Count everybody's examples."""
        with isolated():
            return Examples(self._trainer, work, tally, range(len(work.clients)))

    def _stacks(self, work: Work, examples: Examples, tally: Tally) -> Iterator[_Done]:
        """Train stack after stack; what user code raises costs its client, or its stack."""
        _, local = work.settings.resolved(self._task)
        left = sorted(examples.counts, key=lambda i: (-_steps(examples.counts[i], local), i))
        while left:
            clients: list[_Client] = []
            room = 1
            while left and len(clients) < room:
                index = left.pop(0)
                try:
                    clients.append(self._client(work, examples, index, local))
                    room = self._room(clients[0], local)
                except Refused as error:
                    tally.failed(index, cause(error))
            try:
                with boundary():
                    done = self._trained(work, clients)
            except Refused as error:
                for client in clients:
                    tally.failed(client.place, cause(error))
                continue
            yield done

    def _client(self, work: Work, examples: Examples, index: int, local: Local) -> _Client:
        """Ask for a client's examples, and test the received model on them where that is wanted.

        Raises:
            SettingsError: They are no pair of arrays.
            Refused: The task raised.
        """
        site, metrics = work.site(index), {}
        local = replace(local, round=site.round, client=site.index)
        with isolated():
            data = examples.take(index)
            if work.evaluate:
                with boundary():
                    self._trainer.load(work.model(index))
                    found = self._trainer.evaluated(data)
                metrics = {name.partition(".")[2]: float(value) for name, value in found.items()}
        if not isinstance(data, tuple | list) or len(data) != 2:  # noqa: PLR2004 - a pair
            raise SettingsError("train_data(site)", "a pair of arrays", type(data).__name__)
        inputs, targets = (tensor_of(part) for part in data)
        if not targets.is_floating_point() and targets.numel() and int(targets.min()) < 0:
            raise SettingsError("train_data(site)", "targets of 0 or more", int(targets.min()))
        bits = stream(local.seed, TorchEngine.noise, local.round, local.client)
        noise = torch.Generator().manual_seed(int(bits.random_raw()) >> 1)
        rows = list(batches(local, len(inputs)))
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        return _Client(index, inputs, targets, rows, noise, metrics)

    def _room(self, client: _Client, local: Local) -> int:
        """Return how many clients like this one, the first of its stack, are trained at once."""
        traced = self._traced(client)
        kept = 3 + (2 if isinstance(self._task.optimizer, Adam) else 1)
        own = kept * self._stacked.nbytes + 2 * int(traced.saved * local.batch_size)
        own += client.inputs.nbytes + client.targets.nbytes
        return max(1, self._bytes // max(1, int(own)))

    def _traced(self, client: _Client) -> Traced:
        """Return what the model does, found on the first batch that there is."""
        if self._known is None:
            rows = torch.from_numpy(client.rows[0]).to(self.device)
            with boundary():
                self._known = self._stacked.trace(client.inputs[rows], client.targets[rows])
        return self._known

    def _trained(self, work: Work, clients: list[_Client]) -> _Done:
        """Train one stack, the longest client first."""
        optimizer, local = work.settings.resolved(self._task)
        received, traced = _Received(work, clients, self.device), self._traced(clients[0])
        stacks = received.stacked(traced.trained)
        constants, several = received.constants(traced.trained), len(work.models) > 1
        stepper, losses = Stepper(optimizer, stacks, local.mu), np.zeros(len(clients))
        step, batch = self._stacked.gradients(several_models=several), _Batches(clients)
        for place in range(len(clients[0].rows)):
            active = sum(len(client.rows) > place for client in clients)
            moved = {name: stack[:active] for name, stack in stacks.items()}
            fixed = {n: t[:active] for n, t in constants.items()} if several else constants
            drawn = self._masks(traced.drops, clients[:active], place)
            try:
                gradients, sums = step(moved, fixed, drawn, *batch.at(place, active))
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                got = str(error).partition("\n")[0]
                raise SettingsError("tier T2", "a model that vmap can take", got) from error
            stepper.step(gradients, active)
            losses[:active] += sums.double().cpu().numpy()
        return _Done(clients, received.updates(stacks), losses.tolist())

    def _masks(self, drops: Sequence[Drop], clients: Sequence[_Client], place: int) -> Tensors:
        """Return the dropout masks of one step, padded with ones."""
        if not drops:
            return {}
        width = max(len(client.rows[place]) for client in clients)
        dtype = self._stacked.dtype
        found = {d.name: torch.ones(len(clients), width, *d.shape, dtype=dtype) for d in drops}
        for k, client in enumerate(clients):
            rows = len(client.rows[place])
            for drop, mask in zip(drops, masks(drops, rows, client.noise, dtype), strict=True):
                found[drop.name][k, :rows] = mask
        return {f"{name}.mask": stack.to(self.device) for name, stack in found.items()}


class _Batches:
    """The batches of a stack's clients, side by side."""

    def __init__(self, clients: Sequence[_Client]) -> None:
        self._clients = clients
        self._inputs = torch.cat([client.inputs for client in clients])
        self._targets = torch.cat([client.targets for client in clients])
        lengths = [len(client.inputs) for client in clients]
        self._starts = np.concatenate([[0], np.cumsum(lengths)])

    def at(self, place: int, active: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return inputs, targets and weights of one batch each; padding repeats the first row."""
        parts = [client.rows[place] for client in self._clients[:active]]
        rows = np.zeros((active, max(map(len, parts))), np.int64)
        weights = np.zeros(rows.shape, np.float32)
        for k, part in enumerate(parts):
            rows[k] = self._starts[k] + part[0]
            rows[k, : len(part)] = self._starts[k] + part
            weights[k, : len(part)] = 1
        index = torch.from_numpy(rows).to(self._inputs.device)
        mask = torch.from_numpy(weights).to(self._inputs.device)
        return self._inputs[index], self._targets[index], mask


class _Received:
    """The models from which the clients of a stack start, as tensors."""

    def __init__(self, work: Work, clients: Sequence[_Client], device: torch.device) -> None:
        self._models = [
            {name: to_torch(array).to(device) for name, array in model.items()}
            for model in work.models
        ]
        of = work.model_of
        self._of = [0 if of is None else int(of[client.place]) for client in clients]
        self._averaged = [name for name, a in work.models[0].items() if not is_buffer(a)]

    def _stack(self, name: str) -> torch.Tensor:
        return torch.stack([self._models[model][name] for model in self._of])

    def stacked(self, names: Sequence[str]) -> Tensors:
        """Return these arrays, one copy a client."""
        return {name: self._stack(name) for name in names}

    def constants(self, trained: Sequence[str]) -> Tensors:
        """Return the arrays that do not train: stacked only where there are several models."""
        names = [name for name in self._models[0] if name not in trained]
        if len(self._models) > 1:
            return self.stacked(names)
        return {name: self._models[0][name] for name in names}

    def updates(self, stacks: Tensors) -> list[torch.Tensor]:
        """Return what training has changed, for each float array (clients, values)."""
        found = []
        for name in self._averaged:
            before = _wide(self._stack(name))
            after = _wide(stacks[name]) if name in stacks else before
            found.append((after - before).reshape(len(before), -1))
        return found


def _note(tally: Tally, done: _Done, verdicts: NDArray[np.uint8]) -> None:
    """Note what is known of a stack's clients."""
    for client, loss, verdict in zip(done.clients, done.losses, verdicts, strict=True):
        trained = Trained((), len(client.inputs), loss, client.metrics)
        tally.trained(client.place, trained, Verdict(verdict))


def _steps(examples: int, local: Local) -> int:
    """Return how many batches a client trains."""
    return local.epochs * -(-examples // local.batch_size)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype of an update."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()
