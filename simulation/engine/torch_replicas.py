"""Replicas over torch.distributed: rank 0's tier that trains on all ranks, and what the others do.

    rank 0      work ─────────► every rank     numbers, models and shares, broadcast
    all         examples counted, weights agreed, shares trained
    all         int64 sum, verdicts, weights, losses ─► rank 0     one reduction
                rows: each rank's are sent to rank 0

A rank that dies ends the others' next collective: rank 0 raises one line, its ledger holds what was
committed, and the run is resumed by starting all ranks again. Shares are not dealt anew: torchrun's
agents end the whole group when one process dies.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import work_wire
from .reducing import Tally, count_values, row_dtype
from .replicas import Costs, longest_first
from .work import Reduced
from ...protocol.errors import StateError, UmbelError
from ...protocol.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from .torch_group import Group
    from .work import Report, Tier, Work


class Replicas:
    """Rank 0's tier: trains a share itself and has the others train theirs."""

    def __init__(self, group: Group, tier: Tier) -> None:
        """Tell the others which tier they need, and wait until they have it.

        Raises:
            StateError: One of them cannot make it.
        """
        self.name = tier.name
        self._group, self._tier = group, tier
        self._costs = Costs(group.size)
        group.broadcast({"do": "make", "tier": tier.name})
        _raise(group.tell({}))

    def reduce(self, work: Work) -> Reduced:
        """Train everywhere and return the sum; the same bits for any number of ranks."""
        shares = self._begin("reduce", work)
        found, seconds = _reduce(self._group, self._tier, work, shares)
        self._costs.learn(work.clients, found.report.examples, shares, seconds)
        return found

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train everywhere and write each client's update into its row."""
        shares = self._begin("rows", work)
        report, seconds = _rows(self._group, self._tier, work, shares, out)
        self._costs.learn(work.clients, report.examples, shares, seconds)
        return report

    def close(self) -> None:
        """End the tier here and at the others."""
        self._tier.close()
        with suppress(StateError):  # one that is gone has been named
            self._group.broadcast({"do": "end"})
        self._group.close()

    def _begin(self, do: str, work: Work) -> list[NDArray[np.int64]]:
        """Deal the cohort and send the work."""
        costs = self._costs.of(work.clients)
        shares = longest_first(costs, self._costs.speeds)
        fields, blobs = work_wire.packed(work)
        manifest = Manifest.of(work.models[0])
        models = [manifest.pack(model) for model in work.models]
        told = {"do": do, "shares": [share.tolist() for share in shares], **fields}
        self._group.broadcast({**told, "models": len(models)}, [*blobs, *models])
        return shares


class ShareFailed(StateError):
    """A rank could not train its share; all ranks know and go on together."""


def follow(group: Group, make: Callable[[str], Tier]) -> None:
    """Train shares until rank 0 ends.

    Args:
        group: All ranks.
        make: Returns the tier of a name.

    Raises:
        StateError: Rank 0, or another rank, is gone.
    """
    tier: Tier | None = None
    try:
        while True:
            fields, blobs = group.broadcast()
            if fields["do"] == "end":
                break
            try:
                if fields["do"] == "make":
                    tier = _made(group, make, fields["tier"])
                elif tier is not None:
                    _train(group, tier, fields, blobs)
            except ShareFailed:
                continue  # rank 0 has said why
        group.close()
    finally:
        if tier is not None:
            tier.close()


def _made(group: Group, make: Callable[[str], Tier], name: str) -> Tier | None:
    """Make a tier and say whether there is one."""
    tier, error = None, ""
    try:
        tier = make(name)
    except UmbelError as why:
        error = str(why)
    _raise(group.tell({"error": error}))
    return tier


def _train(group: Group, tier: Tier, fields: dict[str, Any], blobs: list[bytes]) -> None:
    """Train this rank's share of a work."""
    parts = len(blobs) - int(fields["models"])
    work = work_wire.unpacked(fields, blobs[:parts], memoryview(b"".join(blobs[parts:])))
    shares = [np.array(share, np.int64) for share in fields["shares"]]
    if fields["do"] == "reduce":
        _reduce(group, tier, work, shares)
    else:
        _rows(group, tier, work, shares, None)


class _Agreement:
    """The weight of the round, known before anybody adds: called by the tier, once."""

    def __init__(self, group: Group) -> None:
        self._group, self._done = group, False
        self.waited = 0.0

    def __call__(self, own: int) -> int:
        """Return what the weights of all shares add up to."""
        self._done, begin = True, time.perf_counter()
        said = self._group.tell({"error": "", "weight": own})
        self.waited = time.perf_counter() - begin
        _raise(said)
        return sum(int(one["weight"]) for one in said)

    def settle(self, error: str) -> None:
        """Take part even where the tier has failed before it asked."""
        if not self._done:
            self._done = True
            self._group.tell({"error": error or "the tier has not agreed", "weight": 0})


def _reduce(
    group: Group, tier: Tier, work: Work, shares: Sequence[NDArray[np.int64]]
) -> tuple[Reduced, list[float]]:
    """Train this rank's share; at rank 0 the sum of all, and what every rank took."""
    mine, agreement, begin = shares[group.rank], _Agreement(group), time.perf_counter()
    found, error = None, ""
    try:
        found = tier.reduce(replace(work.part(mine), agree=agreement))
    except UmbelError as why:
        error = str(why)
    agreement.settle(error)
    took = time.perf_counter() - begin - agreement.waited
    said = _said(group, mine, None if found is None else found.report, took, error)
    if found is None:
        raise ShareFailed(f"replica {group.rank}", "a share that is trained", error)
    total, tally = _merged(group, work, mine, found, said)
    report = tally.report()
    weight = int(report.weights[report.counted].sum())
    whole = Reduced(total=total, exponent=found.exponent, weight=weight, report=report)
    return whole, [float(one["seconds"]) for one in said]


def _rows(
    group: Group,
    tier: Tier,
    work: Work,
    shares: Sequence[NDArray[np.int64]],
    out: NDArray[Any] | None,
) -> tuple[Report, list[float]]:
    """Train this rank's share into rows; at rank 0 those of all ranks come into `out`."""
    mine, begin = shares[group.rank], time.perf_counter()
    values, dtype = count_values(work.models[0]), row_dtype(work.models[0])
    own = np.zeros((len(mine), values), dtype)
    report, error = None, ""
    try:
        report = tier.rows(work.part(mine), own)
    except UmbelError as why:
        error = str(why)
    said = _said(group, mine, report, time.perf_counter() - begin, error)
    if report is None:
        raise ShareFailed(f"replica {group.rank}", "a share that is trained", error)
    if out is not None:
        out[mine] = own
    for rank, share in enumerate(shares):
        if not rank or not len(share) or group.rank not in {0, rank}:
            continue
        there = own if group.rank else np.empty((len(share), values), dtype)
        group.hand(there, rank)
        if out is not None:
            out[share] = there
    empty = Reduced(total=np.zeros(0, np.int64), exponent=0, weight=0, report=report)
    _, tally = _merged(group, work, mine, empty, said)
    return tally.report(), [float(one["seconds"]) for one in said]


def _said(
    group: Group, mine: NDArray[np.int64], report: Report | None, took: float, error: str
) -> list[dict[str, Any]]:
    """Say how a share went, and return how all went.

    Raises:
        ShareFailed: One did not go.
    """
    own: dict[str, Any] = {"error": error, "seconds": took, "metrics": [], "causes": {}}
    if report is not None:
        own["metrics"] = sorted(report.metrics)
        own["causes"] = {str(mine[place]): cause for place, cause in report.causes.items()}
    said = group.tell(own)
    _raise(said)
    return said


def _merged(
    group: Group,
    work: Work,
    mine: NDArray[np.int64],
    found: Reduced,
    said: Sequence[Mapping[str, Any]],
) -> tuple[NDArray[np.int64], Tally]:
    """Add up sum and report at rank 0, in one go.

    Doubles travel as the integers of their bits, to which the other ranks add zeros.
    """
    names = sorted({name for one in said for name in one["metrics"]})
    report, split = found.report, len(found.total)
    whole = np.zeros(split + (4 + len(names)) * len(work.clients), np.int64)
    whole[:split] = found.total
    table = whole[split:].reshape(-1, len(work.clients))
    doubles = [report.losses, *(report.metrics.get(name, 0.0 * report.losses) for name in names)]
    table[0, mine], table[1, mine] = report.verdicts, report.weights
    table[2, mine] = report.examples
    for place, values in enumerate(doubles):
        table[3 + place, mine] = np.ascontiguousarray(values, np.float64).view(np.int64)
    group.reduce(whole)
    tally = Tally(work)
    tally.verdicts[:], tally.weights[:], tally.examples[:] = table[:3]
    tally.losses[:] = table[3].view(np.float64)
    tally.metrics = {n: table[4 + k].view(np.float64) for k, n in enumerate(names)}
    tally.causes = {int(k): cause for one in said for k, cause in one["causes"].items()}
    return whole[:split], tally


def _raise(said: Sequence[Mapping[str, Any]]) -> None:
    """Raise what the first rank says that has an error."""
    for rank, one in enumerate(said):
        if one.get("error"):
            raise ShareFailed(f"replica {rank}", "a share that is trained", str(one["error"]))
