"""One work: model, numbers and examples into the plan that C++ reads, and what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .bindings import COLUMNS, NO_MEMORY, UNMEASURED, Plan, pointer
from .cohort import Cohort, Generators
from .net import Unsupported
from ..engine.examples import HELD
from ..engine.isolation import isolated
from ..engine.reducing import Tally
from ..engine.work import REACH, Reduced, Verdict, exponent_for
from ...protocol.errors import SettingsError
from ...strategies.metrics import LOSS
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
            Unsupported: The work's numbers need what has no kernel.
        """
        self._tier, self._work = tier, work
        self._weight: int | None = None
        """Of the whole round, once it has been asked for."""
        self._own = 0
        """Of this work's clients, when the round's was asked for."""
        self._optimizer, self._local = work.settings.resolved(tier.task)
        if work.evaluate and not tier.evaluates:
            raise Unsupported("task.evaluate()", "Task's own", "another")
        names = tuple(work.models[0])
        self._models = np.stack([flat(tier, model, names) for model in work.models])
        self.values = self._models.shape[1]
        self._pool = tier.pool(self._optimizer, self._local.mu, names)

    def reduce(self) -> Reduced:
        """Train everybody and return the sum.

        The exponent follows from the weights of the whole cohort, which are known when all have
        been asked for their examples. Threads train from the first one on, with the exponent of
        the work before; where that turns out to be another, once more with the right one.
        """
        total = np.zeros(self.values, np.int64)
        while True:
            exponent = self._tier.exponent
            report = self._train(total=total, exponent=exponent)
            if self._tier.exponent == exponent:
                break
        counted = int(report.weights[report.counted].sum())
        return Reduced(total=total, exponent=exponent, weight=counted, report=report)

    def rows(self, out: NDArray[Any]) -> Report:
        """Train everybody into the rows."""
        return self._train(rows=out)

    def _train(self, **into: Any) -> Report:
        """Train everybody once; again, if the task was seen to draw from global generators."""
        if not self._tier.draws:
            before = Generators()
            found = self._pass(seeded=False, **into)
            self._tier.draws = before.moved()
            if not self._tier.draws:
                return found
        with isolated():
            return self._pass(seeded=True, **into)

    def _pass(
        self,
        *,
        seeded: bool,
        total: NDArray[np.int64] | None = None,
        exponent: int | None = None,
        rows: NDArray[Any] | None = None,
    ) -> Report:
        """Ask for everybody's examples and train; of a sum, note which exponent it must have."""
        work, tally, clients = self._work, Tally(self._work), len(self._work.clients)
        cohort = Cohort(self._tier.task, self._tier.reader(), work, tally)
        measured, faults = np.zeros((2, clients)), np.full(clients, NO_MEMORY)
        factors = np.ones(clients) if work.factors is None else work.factors.astype(np.float64)
        plan = numbers(self._optimizer, self._local)
        plan.clients, plan.models, plan.evaluate = clients, len(work.models), work.evaluate
        plan.exponent = exponent or 0
        plan.limit = REACH
        plan.max_norm = -1.0 if work.max_norm is None else work.max_norm
        plan.largest_loss = LOSS.bound
        plan.model, plan.table = pointer(self._models), pointer(cohort.table)
        plan.verdicts, plan.losses = pointer(tally.verdicts), pointer(tally.losses)
        plan.measured, plan.faults = pointer(measured), pointer(faults)
        plan.factors = pointer(factors)
        plan.total = None if total is None else pointer(total)
        plan.rows = None if rows is None else pointer(rows)
        self._pool.begin(plan)
        try:
            for start, stop in cohort.chunks(seeded=seeded):
                self._pool.add(start, stop)
                if cohort.bytes > HELD:
                    self._pool.wait()
                    cohort.drop()
            if total is not None:
                self._weigh(cohort.weight)
            self._pool.wait()
        except BaseException:
            self._pool.drop()
            raise
        self._pool.finish()
        return self._report(cohort, measured, faults)

    def _weigh(self, own: int) -> None:
        """Ask once for the round's weight, and note the exponent that it gives.

        Raises:
            SettingsError: In another pass the clients have more examples than a sum of that
                exponent has room for.
        """
        if self._weight is None:  # other shares may keep us waiting
            self._own, self._weight = own, self._work.round_weight(own)
            self._tier.exponent = exponent_for(self._weight)
        elif exponent_for(self._weight - self._own + own) < self._tier.exponent:
            what = f"as many examples of each client whenever they are asked for: {self._own}"
            raise SettingsError("train_data(site)", what, own)

    def _report(
        self, cohort: Cohort, measured: NDArray[np.float64], faults: NDArray[np.int64]
    ) -> Report:
        """Return what is known of everybody."""
        tally, table = cohort.tally, cohort.table
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


def flat(tier: NativeTier, model: Arrays, names: tuple[str, ...]) -> NDArray[Any]:
    """Return a model's values in the order of its arrays.

    Raises:
        SettingsError: It is not the task's, or its arrays come in another order than `names`.
    """
    forms, dtype = tier.forms, tier.dtype
    if names != tuple(model) or set(names) != set(forms):
        raise SettingsError("model", f"arrays {', '.join(forms)}", ", ".join(model))
    for name, array in model.items():
        if (array.shape, array.dtype) != (forms[name], dtype):
            got = f"{array.shape} {array.dtype}"
            raise SettingsError(f"model: {name}", f"{forms[name]} {dtype}", got)
    return np.concatenate([array.reshape(-1) for array in model.values()])


def numbers(optimizer: Optimizer, local: Local) -> Plan:
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
    if example == NO_MEMORY:
        return "task failed: no memory was left to train this client"
    if example == UNMEASURED:
        return f"task failed: the received model's loss is not finite, or above {LOSS.bound:g}"
    return f"task failed: train_data(site): example {example}: a class that the model has not"
