"""The masks of a run: its neighbourhoods, and how likely the sum of a whole roster is void.

What is lost on the way is taken for lost behind the roster (rosters.py). Some of those are lost
before it in truth, so a round is void as often as this says, or less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .graph_odds import suited, void
from .losses import Count
from .rosters import members

if TYPE_CHECKING:
    from .losses import Losses
    from .subject import Subject


def secure(subject: Subject, losses: Losses, certainty: float) -> dict[str, Any] | None:
    """Return `secure` of a plan's file; None in a plain run.

    Nobody stays where none is ever ready.

    Args:
        subject: The run.
        losses: Those who may be asked.
        certainty: How often a round is to have its sum.
    """
    if (graph := subject.graph) is None:
        return None
    able = members(losses, graph.n)
    stay = able.arrivals(graph.n) if able.size else Count(np.eye(graph.n + 1)[0])
    params = subject.run.params
    return {
        "n": graph.n,
        "k": graph.k,
        "t": graph.t,
        "d": graph.d,
        "q": graph.q,
        "lost": sum(x * float(share) for x, share in enumerate(stay.shares[::-1])),
        "void": void(graph, stay).odds,
        "delta": subject.run.params.delta,
        "suited": suited(
            graph.n, stay, alpha=params.alpha, a_min=params.a_min, certainty=certainty
        ),
    }
