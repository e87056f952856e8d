"""One work: model, numbers and examples into the plan that C++ reads, and what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .bindings import COLUMNS, Plan, pointer
from .cohort import Cohort
from ..engine.reducing import Tally
from ..engine.verdicts import Bounds
from ..engine.work import Verdict
from ...protocol.errors import SettingsError
from ...strategies.optimizers import Adam

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .tier import NativeTier
    from ..engine.work import Arrays, Report, Work
    from ...strategies.optimizers import Optimizer
    from ...strategies.trainer import Local


class Running:
    """One work of a tier."""

    def __init__(self, tier: NativeTier, work: Work) -> None:
        """Flatten the models and find the threads.

        Raises:
            SettingsError: The model is not the task's.
        """
        self._tier, self._work = tier, work
        self._optimizer, self._local = work.settings.resolved(tier.task)
        names = tuple(work.models[0])
        self._models = np.stack([self._flat(model, names) for model in work.models])
        self.values = self._models.shape[1]
        self._pool = tier.pool(self._optimizer, self._local.mu, names)
        self.tally = Tally(work)
        self.cohort = Cohort(tier.task, tier.reader(), work, self.tally, draws=tier.draws)

    def _flat(self, model: Arrays, names: tuple[str, ...]) -> NDArray[Any]:
        """Return a model's values in the order of its arrays."""
        forms, dtype = self._tier.forms, self._tier.dtype
        if names != tuple(model) or set(names) != set(forms):
            raise SettingsError("model", f"arrays {', '.join(forms)}", ", ".join(model))
        for name, array in model.items():
            if (array.shape, array.dtype) != (forms[name], dtype):
                got = f"{array.shape} {array.dtype}"
                raise SettingsError(f"model: {name}", f"{forms[name]} {dtype}", got)
        return np.concatenate([array.reshape(-1) for array in model.values()])

    def train(
        self,
        *,
        total: NDArray[np.int64] | None = None,
        exponent: int | None = None,
        rows: NDArray[Any] | None = None,
    ) -> Report:
        """Train everybody, into the total or the rows."""
        work, tally = self._work, self.tally
        clients = len(work.clients)
        measured, faults = np.zeros((2, clients)), np.full(clients, -1)
        factors = np.ones(clients) if work.factors is None else work.factors.astype(np.float64)
        plan = _plan(self._optimizer, self._local)
        plan.clients, plan.models, plan.evaluate = clients, len(work.models), work.evaluate
        plan.exponent = exponent or 0
        plan.limit = Bounds(max(1, clients), exponent).largest
        plan.max_norm = -1.0 if work.max_norm is None else work.max_norm
        plan.model, plan.table = pointer(self._models), pointer(self.cohort.table)
        plan.verdicts, plan.losses = pointer(tally.verdicts), pointer(tally.losses)
        plan.measured, plan.faults = pointer(measured), pointer(faults)
        plan.factors = pointer(factors)
        plan.total = None if total is None else pointer(total)
        plan.rows = None if rows is None else pointer(rows)
        self._pool.begin(plan)
        for start, stop in self.cohort.windows():
            self._pool.train(start, stop)
        self._pool.finish()
        self._tier.draws = self.cohort.draws
        return self._report(measured, faults)

    def _report(self, measured: NDArray[np.float64], faults: NDArray[np.int64]) -> Report:
        """Return what is known of everybody."""
        tally, table = self.tally, self.cohort.table
        for index in np.flatnonzero(tally.verdicts == Verdict.FAILED):
            if int(index) not in tally.causes:
                tally.failed(int(index), _fault(int(faults[index])))
        there = tally.verdicts != Verdict.FAILED
        tally.examples[there] = table[there, COLUMNS.index("count")]
        tally.weights[there] = table[there, COLUMNS.index("weight")]
        if self._work.evaluate:
            tally.metrics["examples"] = tally.examples.astype(np.float64)
            tally.metrics["loss"] = measured[0]
            if self._tier.net.loss == "cross_entropy":
                tally.metrics["correct"] = measured[1]
        return tally.report()


def _plan(optimizer: Optimizer, local: Local) -> Plan:
    """Return a plan with the numbers of optimiser and round."""
    plan = Plan()
    plan.epochs, plan.batch, plan.proximal = local.epochs, local.batch_size, local.mu
    plan.lr, plan.decay = optimizer.lr, optimizer.weight_decay
    if isinstance(optimizer, Adam):
        plan.adam = 1
        plan.beta1, plan.beta2 = optimizer.betas
        plan.eps = optimizer.eps
    else:
        plan.momentum = optimizer.momentum
    plan.shuffles, plan.dropouts = (
        f"umbel/stream/1\n{local.seed}\n{purpose}\n".encode() for purpose in ("shuffle", "dropout")
    )
    return plan


def _fault(example: int) -> str:
    """Return why C++ gave a client up."""
    if example < 0:
        return "task failed: no memory was left to train this client"
    return f"task failed: train_data(site): example {example}: a class that the model has not"
