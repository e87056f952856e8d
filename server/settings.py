"""The settings of a run, checked once, before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .consistency import check
from .run_plan import KEPT
from .watch import Watch
from .watch_terms import SIGNALS, WITHOUT_PLAN
from ..protocol.codec import Codec
from ..protocol.errors import SettingsError
from ..protocol.plan import Params, read
from ..strategies.server_rules import FedAvg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .run_plan import RunPlan
    from ..strategies.server_rules import Rule

FLOWER_RUN, OF_FEDERATION, COMPUTED_BY = "flower-run", "federation", "versions"
"""Keys that a run's recorded configuration has beside its settings: Flower's id of the run, whose
devices it asks, and what computed it. A simulated run has the last one only."""
PAUSE_ON = "pause-on"
"""Key of a run that waits for decisions: the signals that pause it."""
SIMULATION = "simulation"
"""Key of a run whose clients were numbers: how it was simulated, and what resume needs. It has no
evaluation of the last model as a round of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """One run, as the coordinator drives it."""

    run: str
    """Umbel's run id: letters, digits, `.`, `_` and `-`; a resumed run keeps it."""
    rounds: int
    """Training rounds, 1 or more."""
    scheme: str = "A"
    """`A` (masks on) or `plain`."""
    params: Params = field(default_factory=Params)
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """What every round's `config` holds beside `server-round`."""
    seed: int = 0
    cohort: int | None = None
    """Members wanted in a roster; None is every node that joined."""
    dropout: float = 0.0
    """Share of invited nodes that never get ready, for which more are invited than the cohort
    wants; 0 is what earlier rounds of the run showed."""
    deadline: float = 600.0
    """Seconds for one attempt at a round: local training and the trips after it."""
    trip: float | None = None
    """Seconds for each trip after the training; None for parts of `deadline` (deadlines.py)."""
    rejoin: float = 0.0
    """Seconds that the last training round waits for clients that the run has lost."""
    attempts: int = 1
    """How often one round may be tried before the run ends with its cause."""
    max_norm: float | None = None
    """Largest L2 norm of one delta in a plain run; None for no bound."""
    rule: Rule = field(default_factory=FedAvg)
    """The server step, and how the mean is made."""
    plan: RunPlan | None = None
    """What the run is compared with while it goes on (watch.py)."""
    pause_on: tuple[str, ...] = ()
    """Signals that stop the run until a person decides."""
    final_evaluation: bool = True
    """Whether the last model is evaluated on the clients, in a round of its own."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.run):
            raise SettingsError("run", "letters, digits, `.`, `_` and `-`, at most 64", self.run)
        if self.scheme not in {"A", "plain"}:
            raise SettingsError("scheme", "A or plain", self.scheme)
        for name in ("rounds", "attempts"):
            if getattr(self, name) < 1:
                raise SettingsError(name, "1 or more", getattr(self, name))
        for name, least in (("deadline", 1e-9), ("trip", 1e-9), ("rejoin", 0.0)):
            if (value := getattr(self, name)) is not None and not least <= value < float("inf"):
                raise SettingsError(name, "seconds above 0", value)
        if not 0.0 <= self.dropout < 1.0:
            raise SettingsError("dropout", "a share in [0, 1)", self.dropout)
        if self.max_norm is not None and not 0.0 < self.max_norm < float("inf"):
            raise SettingsError("max-norm", "a finite number above 0", self.max_norm)
        # What a member, or the codec of any roster, would refuse is refused before it is asked.
        params = read(self.params.table())
        Codec(params.min_members, params.value_range, params.weight_cap)
        if self.cohort is not None and self.cohort < params.min_members:
            raise SettingsError(
                "cohort", f"at least min-members, {params.min_members}", self.cohort
            )
        check(self)
        self._check_signals()

    def _check_signals(self) -> None:
        """Refuse to pause on what is no signal, or cannot be seen without a plan."""
        for signal in self.pause_on:
            if signal not in SIGNALS:
                raise SettingsError("pause-on", f"signals among {', '.join(SIGNALS)}", signal)
            if self.plan is None and signal not in WITHOUT_PLAN:
                expected = f"signals that need no plan, {', '.join(WITHOUT_PLAN)}"
                raise SettingsError("pause-on", expected, signal, "give the run its plan: --plan")
        if self.plan is not None:
            for signal in Watch(self.plan.expected, self.pause_on).blind:
                expected = "signals of which the plan says what to expect"
                raise SettingsError("pause-on", expected, signal, "leave it out: it cannot pause")

    @property
    def security(self) -> str:
        """What a summary says behind `secure aggregation:`; every CA is a development CA so far."""
        return "on (development CA)" if self.scheme == "A" else "off"

    def described(self) -> dict[str, object]:
        """Return the settings as the ledger keeps them."""
        watched: dict[str, object] = {}
        if self.plan is not None:
            watched[KEPT] = dict(self.plan.kept)
        if self.pause_on:
            watched[PAUSE_ON] = list(self.pause_on)
        return {
            "rounds": self.rounds,
            "scheme": self.scheme,
            "seed": self.seed,
            "config": dict(self.config),
            "params": self.params.table(),
            "strategy": self.rule.described(),
            **watched,
        }
