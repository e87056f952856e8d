"""The settings of a run, checked once, before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..protocol.errors import SettingsError
from ..protocol.plan import Params
from ..protocol.wire import MAX_RUN_ID

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """Expected share of invited nodes that never get ready; more are invited for it."""
    deadline: float = 600.0
    """Seconds for local training."""
    trip: float = 60.0
    """Seconds for each trip after it."""
    attempts: int = 1
    """How often one round may be tried before the run ends with its cause."""
    max_norm: float | None = None
    """Largest L2 norm of one delta in a plain run; None for no bound."""
    final_evaluation: bool = True
    """Whether the last model is evaluated on the clients, in a round of its own."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_RUN_ID - 1}}}", self.run):
            raise SettingsError("run", "letters, digits, `.`, `_` and `-`", self.run)
        if self.scheme not in {"A", "plain"}:
            raise SettingsError("scheme", "A or plain", self.scheme)
        for name in ("rounds", "attempts"):
            if getattr(self, name) < 1:
                raise SettingsError(name, "1 or more", getattr(self, name))
        if self.cohort is not None and self.cohort < self.params.min_members:
            raise SettingsError(
                "cohort", f"at least min-members, {self.params.min_members}", self.cohort
            )
        for name in ("deadline", "trip"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise SettingsError(name, "seconds above 0", getattr(self, name))
