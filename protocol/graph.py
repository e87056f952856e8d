"""Who masks with whom, and how many may be corrupt or lost: the parameters of scheme A.

The default rule assumes nothing about the order of the ring or about who is declared dead:
A = max(A_min, floor(alpha n)) corrupt members, q = floor((n + A) / 2) + 1 votes, and

* n <= 32: the complete graph, k = n - 1, t = floor((k + A) / 2) + 1,
  D = min(k - t, n - q, n - A - 2) losses; delta plays no part;
* 33 <= n <= 1250: the Harary ring, D = floor(delta n), the smallest even k with k > A + D and
  t = floor((k + A) / 2) + 1 <= t2, where t2 of the k neighbours survive but for 2^-20.

2t > k + A: no A holders that answer twice give both secrets of one owner away. k > A + D:
honest survivors stay connected, whoever is removed.

`upstream` is the search of Bell et al. (CCS 2020) as federated-compute runs it, for
comparison only: it takes ring and deaths as random, which a lying server does not grant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import messages_pb2 as pb
from .errors import Refused, SettingsError

MIN_MEMBERS = 3
COMPLETE_UP_TO = 32
MAX_MEMBERS = 1250
MAX_DEGREE = 254  # points of GF(256), one kept free
SECURITY_BITS = 40
CORRECTNESS_BITS = 20
_EPSILON = 1e-14  # against rounding of alpha * n in the unsafe direction
_MAX_BAD = 0.9


@dataclass(frozen=True)
class Parameters:
    """The numbers of one roster.

    Attributes:
        n: Members of the roster.
        k: Neighbours of each.
        t: Shares that give a secret back.
        a: Corrupt members that do no harm.
        d: Members that may be missing at the end.
        q: Votes that open the sum.
    """

    n: int
    k: int
    t: int
    a: int
    d: int
    q: int


def tolerated(n: int, alpha: float, a_min: int) -> int:
    """Return A(n), the corrupt members that a roster of n is made to bear."""
    return max(a_min, math.floor((alpha + _EPSILON) * n))


def parameters(n: int, *, alpha: float = 0.1, delta: float = 0.1, a_min: int = 1) -> Parameters:
    """Return the parameters of the default rule for a roster of n.

    Args:
        n: Members, 3 .. 1250.
        alpha: Share of the members that may be corrupt.
        delta: Share of the members that may be lost (n >= 33).
        a_min: Corrupt members to bear at least, 1 or more.

    Raises:
        SettingsError: A number is outside its range, or nothing fits; with the arithmetic.
    """
    for name, rate in (("alpha", alpha), ("delta", delta)):
        if not 0 <= rate < 1:
            raise SettingsError(f"secure aggregation: {name}", "0 <= rate < 1", rate)
    if a_min < 1:
        raise SettingsError("secure aggregation: a_min", "at least 1", a_min)
    if not MIN_MEMBERS <= n <= MAX_MEMBERS:
        raise _impossible(
            f"{MIN_MEMBERS} to {MAX_MEMBERS} members", n, "invite another number of members"
        )
    a = tolerated(n, alpha, a_min)
    q = (n + a) // 2 + 1
    if n <= COMPLETE_UP_TO:
        return _complete(n, a, q)
    return _ring(n, a, math.floor((delta + _EPSILON) * n), q, delta)


def check(p: Parameters, own_a: int, own_d: int | None) -> None:
    """Refuse parameters that are unsound, or that this device's own policy does not grant.

    A client does not repeat the search for k; what it checks carries the claim by itself.

    Args:
        p: The round's parameters.
        own_a: A(n) of the device's policy.
        own_d: D(n) of the device's policy; None on the complete graph, whose D follows from
            n and A.

    Raises:
        Refused: REASON_ROSTER with the rule that fails, or REASON_POLICY with the key.
    """
    complete = p.k == p.n - 1
    rules = (
        ("n >= 3 and A >= 1", p.n >= MIN_MEMBERS and p.a >= 1),
        ("the complete graph up to 32 members", complete or p.n > COMPLETE_UP_TO),
        ("k is even, or n - 1", complete or (p.k % 2 == 0 and p.k < p.n)),
        (f"k <= {MAX_DEGREE}", p.k <= MAX_DEGREE),
        ("D >= 0", p.d >= 0),
        ("k > A + D", p.k > p.a + p.d),
        ("2t > k + A", 2 * p.t > p.k + p.a),
        ("t <= k", p.t <= p.k),
        ("q = floor((n + A) / 2) + 1", p.q == (p.n + p.a) // 2 + 1),
        ("n - D >= max(q, A + 2)", p.n - p.d >= max(p.q, p.a + 2)),
    )
    for rule, holds in rules:
        if not holds:
            raise Refused(pb.REASON_ROSTER, f"{p} breaks {rule}")
    if own_a > p.a:
        detail = f"A = {p.a} for n = {p.n}, this device's own is {own_a}"
        raise Refused(pb.REASON_POLICY, detail, "secure.corrupt")
    if own_d is not None and p.d > own_d:
        detail = f"D = {p.d} for n = {p.n}, this device's own is {own_d}"
        raise Refused(pb.REASON_POLICY, detail, "secure.dropout")


def neighbours(position: int, n: int, k: int) -> tuple[int, ...]:
    """Return the neighbours' positions in ring order, -k/2 .. -1 and +1 .. +k/2 modulo n.

    On the complete graph, k = n - 1, they are +1 .. +(n-1).

    Raises:
        ValueError: The position is not in 0 .. n-1, or k is odd or too large.
    """
    _check_ring(n, k, position)
    offsets = [*range(1, n)] if k == n - 1 else [*range(-k // 2, 0), *range(1, k // 2 + 1)]
    return tuple((position + offset) % n for offset in offsets)


def point(owner: int, holder: int, n: int, k: int) -> int:
    """Return the holder's share point, x = 1 + its place in the owner's ring order.

    Raises:
        ValueError: The holder is no neighbour of the owner, or as `neighbours`.
    """
    _check_ring(n, k, owner, holder)
    ahead = (holder - owner) % n
    behind = n - ahead
    if ahead and k == n - 1:
        return ahead
    if ahead and ahead <= k // 2:
        return k // 2 + ahead
    if ahead and behind <= k // 2:
        return k // 2 - behind + 1
    raise ValueError(f"position {holder} is no neighbour of {owner} at n = {n}, k = {k}")


def upstream(n: int, alpha: float, delta: float, semi_malicious: bool) -> tuple[int, int] | None:
    """Return (k, t) of federated-compute's search, or None where it finds nothing.

    Args:
        n: Clients.
        alpha: Adversarial rate, in [0, 1).
        delta: Dropout rate, in [0, 1).
        semi_malicious: Upstream's word for "both secrets of one owner cannot be had"; it
            does not cover lying about who survived.
    """
    if alpha + (2 if semi_malicious else 1) * delta > _MAX_BAD:
        return None
    a = math.floor((alpha + _EPSILON) * n)
    bad = a + math.floor((delta + _EPSILON) * n)
    survivors = math.ceil((1 - delta - _EPSILON) * n)
    for k in range(2, n - 1, 2):
        if not _stays_connected(n, k, bad):
            continue
        t1 = _corrupt_neighbours(n, a, k)
        if semi_malicious:
            t1 = (k + t1) // 2
        if t1 < surviving_neighbours(n, survivors, k):
            return k, max(t1 + 1, 2)
    return None


def surviving_neighbours(n: int, survivors: int, k: int) -> int:
    """Return t2, the smallest integer with Pr[H(n, survivors, k) <= t2] > 2^-20 / n."""
    limit = 2.0**-CORRECTNESS_BITS / n
    total = 0.0
    for x in range(k + 1):
        total += _hypergeometric(n, survivors, k, x)
        if total > limit:
            return x
    return k


def _complete(n: int, a: int, q: int) -> Parameters:
    """Return the parameters of the complete graph."""
    k = n - 1
    t = (k + a) // 2 + 1
    d = min(k - t, n - q, n - a - 2)
    if d < 0:
        got = f"n = {n} with A = {a}: k = {k}, t = {t}, q = {q}, D = {d}"
        raise _impossible("D = min(k - t, n - q, n - A - 2) >= 0", got, "invite more members")
    return Parameters(n, k, t, a, d, q)


def _ring(n: int, a: int, d: int, q: int, delta: float) -> Parameters:
    """Return the parameters of the smallest Harary ring that bears A and D."""
    arithmetic = f"n = {n}, A = {a}, D = {d}, q = {q}"
    if n - d < max(q, a + 2):
        raise _impossible("n - D >= max(q, A + 2)", arithmetic, "lower alpha or delta")
    survivors = math.ceil((1 - delta - _EPSILON) * n)
    for k in range((a + d) // 2 * 2 + 2, min(MAX_DEGREE, n - 2) + 1, 2):
        t = (k + a) // 2 + 1
        if t <= surviving_neighbours(n, survivors, k):
            return Parameters(n, k, t, a, d, q)
    expected = f"an even k <= {min(MAX_DEGREE, n - 2)} with k > A + D and (k + A) // 2 + 1 <= t2"
    raise _impossible(expected, arithmetic, "lower alpha or delta, or invite fewer members")


def _impossible(expected: str, got: object, move: str) -> SettingsError:
    """Return the refusal of a roster that scheme A cannot serve."""
    return SettingsError("secure aggregation: members", expected, got, move)


def _check_ring(n: int, k: int, *positions: int) -> None:
    """Refuse a degree that no ring has and positions outside the roster."""
    if not 0 < k < n or (k % 2 and k != n - 1):
        raise ValueError(f"degree {k} of a ring of {n}: expected even, or n - 1")
    for position in positions:
        if not 0 <= position < n:
            raise ValueError(f"position {position} lies outside a roster of {n}")


def _stays_connected(n: int, k: int, bad: int) -> bool:
    """Return whether two runs of k/2 removed clients are impossible, or rarer than 2^-41."""
    if k > bad:
        return True
    lg = math.lgamma
    runs = math.log(n) + math.log(n - k - 1) - math.log(2)
    removed = lg(bad + 1) + lg(n - k + 1) - lg(n + 1) - lg(bad - k + 1)
    return runs + removed < -(SECURITY_BITS + 1) * math.log(2)


def _corrupt_neighbours(n: int, a: int, k: int) -> int:
    """Return t1, the smallest integer with Pr[H(n, a, k) > t1] <= 2^-41 / n."""
    limit = 2.0 ** -(SECURITY_BITS + 1) / n
    total = 0.0
    for x in range(min(k, a), -1, -1):  # small terms first
        total += _hypergeometric(n, a, k, x)
        if total > limit:
            return x
    return 0


def _hypergeometric(n: int, marked: int, sample: int, x: int) -> float:
    """Return Pr[x marked ones in a sample], C(m, x) C(n-m, s-x) / C(n, s)."""
    if not max(0, sample - (n - marked)) <= x <= min(sample, marked):
        return 0.0
    return math.exp(
        log_choose(marked, x) + log_choose(n - marked, sample - x) - log_choose(n, sample)
    )


def log_choose(n: int, k: int) -> float:
    """Return ln C(n, k)."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
