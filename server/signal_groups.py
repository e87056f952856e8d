"""Who takes part, by site of the devices or cohort of the fleet: counts, never single clients.

Read from the events of kind `clients` (client_times.py). A site's and a cohort's numbers are sums
over those of its clients that were asked in rounds that finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .client_times import KIND, Told
from .settings import SIMULATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .ledger import Event, RoundRecord, RunRecord

COHORTS = "cohorts"
"""Key, in the table `SIMULATION` of a run's record: how many devices the fleet has of each."""
QUANTILES = "clients.{}.accuracy."
"""Before a quantile of the accuracy of one cohort's clients; a name stands in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A site, or a cohort."""

    name: str
    asked: int
    used: int
    share_asked: float
    share_used: float
    fleet: float | None = None
    """Share of all devices, where the record says it."""
    fates: Mapping[str, int] = field(default_factory=dict)
    """Of a simulated run: what became of those that were asked."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Of a simulated run: quantiles over its clients in the newest round that tested them."""

    @property
    def representation(self) -> float | None:
        """How much of the updates it has for its share of the fleet: 1 is just its part."""
        return self.share_used / self.fleet if self.fleet else None


def told(events: Iterable[Event]) -> dict[tuple[int, int], Told]:
    """Return what events say of the clients of training attempts, by round and attempt."""
    found = {}
    for event in events:
        if event.kind == KIND and event.code in {"train", ""}:
            try:
                found[event.round, event.attempt] = Told.of(event)
            except (ValueError, TypeError):  # of another version: it is not recorded then
                continue
    return found


def groups(
    run: RunRecord, kept: Sequence[RoundRecord], said: Mapping[tuple[int, int], Told]
) -> list[Group]:
    """Return the groups of a run, by name; none where they are not recorded, or there is one.

    Args:
        run: The run.
        kept: Its rounds that count.
        said: By round and attempt what is known of the clients.
    """
    asked, used = Counter[str](), Counter[str]()
    fates: dict[str, Counter[str]] = {}
    for record in kept:
        found = said.get((record.round, record.attempt))
        if found is None:
            continue
        asked.update(dict(zip(found.names, found.asked, strict=True)))
        used.update(_used(found, record))
        for fate, counts in found.fates.items():
            fates.setdefault(fate, Counter()).update(dict(zip(found.names, counts, strict=True)))
    if len(asked) < 2 or not any(asked.values()):  # noqa: PLR2004 - one group is no skew
        return []
    whole, sizes = max(1, sum(used.values())), _sizes(run)
    return [
        Group(
            name=name,
            asked=asked[name],
            used=used[name],
            share_asked=asked[name] / sum(asked.values()),
            share_used=used[name] / whole,
            fleet=sizes.get(name),
            fates={fate: counts[name] for fate, counts in fates.items()},
            accuracy=_accuracy(name, kept),
        )
        for name in sorted(asked)
    ]


def as_json(found: Group) -> dict[str, Any]:
    """Return a group as JSON can hold it."""
    return asdict(found) | {"representation": found.representation}


def _used(found: Told, record: RoundRecord) -> Mapping[str, int]:
    """Return how many updates of each group are in a round's sum."""
    if "used" in found.fates:
        return dict(zip(found.names, found.fates["used"], strict=True))
    if len(found.sites) != len(record.roster):
        return {}
    survivors = frozenset(record.survivors)
    return Counter(
        found.names[site]
        for node, site in zip(record.roster, found.sites, strict=True)
        if node in survivors
    )


def _sizes(run: RunRecord) -> dict[str, float]:
    """Return the share that each cohort has of the fleet: of the run's record, or of its plan."""
    simulation, plan = run.config.get(SIMULATION), run.config.get("plan")
    counts: dict[str, float] = {}
    if isinstance(simulation, Mapping) and isinstance(simulation.get(COHORTS), Mapping):
        counts = {str(k): float(v) for k, v in simulation[COHORTS].items() if type(v) is int}
    elif isinstance(plan, Mapping) and isinstance(plan.get("clients"), list):
        rows = [row for row in plan["clients"] if isinstance(row, Mapping)]
        for row in rows:
            share = row.get("share")
            if isinstance(share, int | float) and share > 0:
                counts[str(row.get("cohort"))] = float(share)
    whole = sum(counts.values())
    return {name: count / whole for name, count in counts.items()} if whole > 0 else {}


def _accuracy(name: str, kept: Sequence[RoundRecord]) -> dict[str, float]:
    beginning = QUANTILES.format(name)
    for record in reversed(kept):
        found = {
            key.removeprefix(beginning): value
            for key, value in record.metrics.items()
            if key.startswith(beginning)
        }
        if found:
            return found
    return {}
