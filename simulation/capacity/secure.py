"""The masks of a run: its neighbourhoods, and how likely a round is void by losses.

A roster is frozen when its members have trained. Whoever breaks off or goes away before is in none;
what is lost on the way, with dropout and outages, is lost behind the roster (graph_odds.py). Some
of those are lost before it in truth, so a round is void as often as this says, or less.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .graph_odds import suited, void
from .losses import Count, Losses

if TYPE_CHECKING:
    from .subject import Subject


def secure(subject: Subject, losses: Losses, certainty: float) -> dict[str, Any] | None:
    """Return `secure` of a plan's file; None in a plain run.

    Args:
        subject: The run.
        losses: Those who may be asked.
        certainty: How often a round is to have its sum.
    """
    if (graph := subject.graph) is None:
        return None
    stay = members(losses, graph.n)
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


def members(losses: Losses, n: int) -> Count:
    """Return how many of a roster of n stay until the end; nobody where none is ever ready."""
    ready = sum(group.size * group.finishes for group in losses.groups)
    if not ready:
        return Count(np.eye(n + 1)[0])
    more = max(1.0, n / ready)
    roster = [
        replace(group, size=math.ceil(group.size * group.finishes * more), finishes=1.0)
        for group in losses.groups
    ]
    return Losses(roster, losses.sites).arrivals(n)
