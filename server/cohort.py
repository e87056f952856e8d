"""Who is asked to take part in a round, how many, and who is left out.

Selection is counter-based: every node gets the number SHA-256(lp(label, seed, round, attempt,
node)) and the smallest numbers win. So a cohort depends on the set of nodes only, never on the
order in which they arrived, and any cohort can be computed again from the ledger. It is no defence
against the server: whoever runs it picks the seed.

Nothing here looks at a loss, an utility or a size of a client: a secure run does not know them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING

from ..protocol.canonical import lp
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .ledger import Event

CONFIDENCE = 0.99
"""How sure it is that enough of the asked get ready."""
VOIDS_ALLOWED = 1
"""A member whose fault made this many rounds void stays; one more, and it is left out."""


def select(
    nodes: Sequence[str],
    count: int,
    *,
    seed: int,
    round: int,  # noqa: A002 - the field's own word, as in the ledger
    attempt: int,
    excluded: Collection[str] = (),
) -> tuple[str, ...]:
    """Return up to `count` nodes, a uniform sample without replacement.

    Args:
        nodes: Ids of the nodes at hand; order and repetitions do not matter.
        count: Nodes wanted. Fewer candidates than that are all returned: whether they are
            enough is for the floors of the round to say.
        seed: Of the run, any integer.
        round: Number of the round, 0 or more.
        attempt: Number of the attempt, from 0 again in a process that takes the run up; another
            attempt draws another cohort.
        excluded: Nodes that are not asked.

    Returns:
        Ids in the order of their numbers, so that a larger `count` only appends.
    """

    def number(node: str) -> bytes:
        fields = (str(seed), str(round), str(attempt), node)
        return hashlib.sha256(lp(b"umbel/cohort/1", *(f.encode() for f in fields))).digest()

    return tuple(sorted(set(nodes).difference(excluded), key=number)[: max(count, 0)])


def invitations(needed: int, dropout: float, confidence: float = CONFIDENCE) -> int:
    """Return the least n with P[Binomial(n, 1 - dropout) >= needed] >= confidence.

    The sum runs over the number j of losses before the last needed client finishes (negative
    binomial): P = sum_{j <= n - K} C(K - 1 + j, j) (1 - p)^K p^j.

    Args:
        needed: Clients K that must finish, 1 or more.
        dropout: Probability p that one client does not, independent; 0 <= p < 1.
        confidence: Probability wanted, below 1.

    Raises:
        SettingsError: An argument is outside its range.
    """
    if needed < 1:
        raise SettingsError("needed", "1 or more", needed)
    if not 0.0 <= dropout < 1.0:
        raise SettingsError("dropout", "a probability below 1", dropout)
    if not 0.0 < confidence < 1.0:
        raise SettingsError("confidence", "a probability between 0 and 1", confidence)
    if dropout == 0.0:
        return needed
    log_term = needed * math.log1p(-dropout)
    reached, lost = math.exp(log_term), 0
    while reached < confidence:
        log_term += math.log(dropout) + math.log((needed + lost) / (lost + 1))
        lost += 1
        reached += math.exp(log_term)
    return needed + lost


class Standing:
    """What each node did to earlier rounds of this run, as far as it can be attributed."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """Count from the ledger's events of kind `void` and `refused` that name a node."""
        self._voids: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        for event in events:
            if event.node and event.kind == "void":
                self.void(event.node)
            elif event.node and event.kind == "refused":
                self.refused(event.node)

    def void(self, node: str) -> int:
        """Count a round that `node` made void, by name; return how many that makes."""
        self._voids[node] += 1
        return self._voids[node]

    def refused(self, node: str) -> int:
        """Count an update of `node` that the firewall kept out; return how many that makes.

        Such a round lives on without the node, so refusals alone exclude nobody.
        """
        self._refusals[node] += 1
        return self._refusals[node]

    def counts(self, node: str) -> tuple[int, int]:
        """Return the voids and the refusals of one node."""
        return self._voids[node], self._refusals[node]

    @property
    def excluded(self) -> frozenset[str]:
        """The nodes that no further cohort of this run contains."""
        return frozenset(node for node, voids in self._voids.items() if voids > VOIDS_ALLOWED)


class Voters:
    """Who voted on the model in force, and so whom another attempt on it may ask.

    A second sum over other members of the same model would give the difference of the two away
    (docs/protocol.md, section 7.1).
    """

    def __init__(self) -> None:
        """Start with a model that nobody voted on."""
        self._model = b""
        self._sets: list[frozenset[str]] = []

    def note(self, model: bytes, survivors: Collection[str]) -> None:
        """Count everybody of a frozen survivor set as a voter on the model of this digest."""
        if model != self._model:
            self._model, self._sets = model, []
        if survivors:
            self._sets.append(frozenset(survivors))

    def allowed(self, model: bytes, nodes: Collection[str]) -> tuple[tuple[str, ...], bool]:
        """Return which of `nodes` may be asked, and whether it must be exactly these.

        The last set that is there in full may be summed again, by itself; else those may be
        asked that have not voted.
        """
        voted = self._sets if model == self._model else []
        for survivors in reversed(voted):
            if survivors <= set(nodes):
                return tuple(sorted(survivors)), True
        return tuple(n for n in nodes if not any(n in survivors for survivors in voted)), False
