"""Whom an attempt asks, on what terms: one plan after another of a run.

The numbers of attempts grow for each model, so that a device never sees one twice; who has voted
on a model is asked for the same sum of it or not at all (docs/protocol.md, section 7.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .cohort import Voters, select
from .deadlines import Deadlines
from .invitation import Plan
from ..protocol.context import Terms
from ..protocol.errors import TooFewMembers
from ..protocol.layout import MessageLayout
from ..protocol.plan import VERSION
from ..strategies import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .history import History
    from .invitation import Joined
    from .roll import Roll
    from .settings import RunSettings
    from .surroundings import Surroundings
    from ..protocol.manifest import Manifest


class Place(NamedTuple):
    """Where a run stands when an attempt begins."""

    round: int
    phase: str
    model: bytes
    """Digest of the model in force."""


class Planner:
    """Plans attempts; the caller says where the run stands and who is here."""

    def __init__(
        self,
        settings: RunSettings,
        around: Surroundings,
        manifest: Manifest,
        metrics: Mapping[str, Mapping[str, int]],
        history: History,
    ) -> None:
        """Go on from `history`; `metrics` are those of the phases, with their fractional bits."""
        self._settings, self._around = settings, around
        counted.check(settings.config, metrics["train"])
        more = {p: counted.names(p, settings.config, m) for p, m in metrics.items()}
        metrics = {p: {**m, **more[p]} for p, m in metrics.items()}
        self._layouts = {p: MessageLayout(manifest, m, p) for p, m in metrics.items()}
        self._layout_digests = {p: manifest.layout_digest(m) for p, m in metrics.items()}
        self._attempts, self._floor = dict(history.attempts), history.floor
        self.deadlines = Deadlines(settings, history.records, history.events)
        self.standing = history.standing
        self.voters = history.voters if settings.scheme != "plain" else Voters()

    def plan(
        self, place: Place, again: int, roll: Roll, note: Callable[[str, str, str], None]
    ) -> Plan:
        """Return the next attempt at a place, with those who are here.

        `again` is how often this process has tried it before; `note` is told who is left out:
        kind, node, code.

        Raises:
            TooFewMembers: Too few have not voted on this model, `would difference`; or too few
                have certificates that outlast a round.
        """
        number = self._attempts.get(place.model, self._floor) + 1
        cohort, needed = self._cohort(place, again, roll, note)
        return self.numbered(place, number, cohort, needed)

    def numbered(
        self, place: Place, number: int, cohort: Mapping[str, Joined], needed: int
    ) -> Plan:
        """Return attempt `number` at a place; every later one has a higher number."""
        self._attempts[place.model] = max(number, self._attempts.get(place.model, -1))
        return Plan(
            terms=self._terms(place, number),
            layout=self._layouts[place.phase],
            cohort=cohort,
            needed=needed,
            times=self.deadlines.times(place.phase),
            max_norm=self._settings.max_norm,
            rule=self._settings.rule if place.phase == "train" else None,
        )

    def _cohort(
        self, place: Place, again: int, roll: Roll, note: Callable[[str, str, str], None]
    ) -> tuple[dict[str, Joined], int]:
        """Return whom an attempt asks, and how many of them freeze its roster.

        Not by the attempt's number, which is higher after a resume: the successor of a server that
        was lost asks whom that one has asked, and a seeded run ends with the same bits.
        """
        ending = self.deadlines.ending(roll, self._around.wall(), note)
        excluded = self.standing.excluded | ending
        here = [n for n in roll if n not in excluded]
        least = self._settings.params.min_members
        if ending and len(here) < least:
            raise TooFewMembers(
                f"{len(ending)} of {len(roll)} members here have certificates that end within "
                f"{self._settings.deadline:g} s, the deadline of a round; {least} others are "
                "needed: renew them, or set this machine's clock"
            )
        nodes, exact = self.voters.allowed(place.model, here)
        if exact:
            return {n: roll[n] for n in nodes}, len(nodes)
        if len(nodes) < least and len(nodes) < len(here):
            raise TooFewMembers(
                f"would difference: {len(here) - len(nodes)} of {len(here)} members here voted "
                f"on this model and are not the whole set; {len(nodes)} did not, {least} are needed"
            )
        wanted = self._settings.cohort or len(nodes)
        seed, asked = self._settings.seed, self.deadlines.asked(wanted)
        chosen = select(nodes, asked, seed=seed, round=place.round, attempt=again)
        return {n: roll[n] for n in chosen}, self.deadlines.needed(wanted, chosen)

    def _terms(self, place: Place, attempt: int) -> Terms:
        config: dict[str, object] = {**self._settings.config, "server-round": place.round}
        return Terms(
            protocol=VERSION,
            scheme=self._settings.scheme,
            ca=self._around.ca,
            app=self._around.app,
            run=self._settings.run,
            round=place.round,
            phase=place.phase,
            attempt=attempt,
            model=place.model,
            config=config,
            params=self._settings.params.table(),
            layout=self._layout_digests[place.phase],
        )
