"""When a run has left what is expected of it: the rules, pure.

| signal | value | outside | far outside |
|---|---|---|---|
| duration | seconds of a round | beyond the plan's p5, p95 | beyond its p0.05, p99.95 |
| participation | a cohort's share of a round's updates | the same | the same |
| rejections | share of the updates that were refused | above p95 of the plan, or of the | p99.95 |
| | | binomial law where each is refused with `REFUSED` | |
| site | updates of a site, of so many rounds that | under a half of what is due, and so | under a |
| | none at all would be less likely than 5 % | few are less likely than 5 % | quarter, 0.05 % |
| accuracy | the server's test, else the clients' | more than `drop` below its best | never |
| quorum | attempts in a row below quorum | as many are less likely than 0.05 % | the same |
| retries | attempts of a round without result | one or more, less likely than 5 % | `RETRIES` or |
| | | | more, 0.05 % |
| bytes | of a round, both ways | a quarter off the plan's mean | half or twice of it |

How many rounds outside are an item: alarms.py. There is one for a whole stretch, and the next one
after a round inside. A signal that stops the run, and is a probability, needs more of them the
longer the run is, so that all signals together stop a run by chance with at most `FALSE_PAUSES`;
each has an equal part of that, and each side of each of its values an equal part of this. What is
due of a site follows from the plan, else from its own rounds before and, as long as these are few,
from those of all sites (beta-binomial, tails.py): sites differ, and the slow ones are late. An
outage that the plan counts with is outside all the same: it is what a person may want to wait for.
"""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .alarms import FALSE_PAUSES, FAR, NEAR, Chart, Stretch, false_pause, limit
from .causes import Past, of_refusals
from .tails import beta_binomial, binomial
from .watch_terms import SIGNALS, Finding, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from .watch_terms import Band, Expected, Seen

REFUSED = 0.001
"""Probability that the firewall refuses an update, where no plan says more than 0."""
RETRIES = 3
_LOST = 0.001
"""A site loses at least so large a share: a plan that says 0 is no reason to wait for everybody."""
_TOGETHER = ("duration", "participation")
"""Signals that rounds of one hour have in common. An outage of a `site` is a signal at once."""
_HOUR = timedelta(hours=1).total_seconds()
_SHORT = 3
"""Hours of a run below which its rounds are looked at one by one all the same: it would be over
before anything was found, and meets few bad hours."""
_WORTH = 8.0
"""Without a plan: devices of a site of which is known what all sites lose, before it was asked."""
_NONE = Group(0, 0)
_NO_MISS, _MOST_MISSED = 1e-9, 0.9
_SOME, _MANY = 0.25, 0.5
"""By which share a round's bytes may be off; beyond `1 / _MANY` or below `_MANY` once is enough."""
_METRICS = ("test.accuracy", "eval.accuracy", "test.loss", "train.loss")
"""What `accuracy` is about: the first that a run has."""


class _Look(NamedTuple):
    """One value of one round beside its interval."""

    signal: str
    about: str
    value: float
    low: float
    high: float
    side: int
    """-1 below, 1 above, 0 inside."""
    far: bool
    why: Callable[[], str]


class Watch:
    """The rules over the rounds of one run."""

    def __init__(
        self,
        expected: Expected,
        signals: tuple[str, ...],
        pauses: Collection[str] = (),
        rounds: int = 1,
    ) -> None:
        """Look for some signals.

        Args:
            expected: Of the run.
            signals: To be looked for.
            pauses: Those of them that stop the run.
            rounds: Of the run.
        """
        self._expected, self.signals = expected, signals
        self._sites: dict[str, Group] = {}
        self._tries = math.ceil(rounds / (1 - min(expected.miss or 0.0, _MOST_MISSED)))
        hours = math.ceil(self._tries * (expected.hourly or 0.0))
        self._hourly = frozenset(_TOGETHER if hours >= _SHORT else ())
        self._hours = min(self._tries, hours + 1)
        self._now, self._counted = 0.0, dict[tuple[str, str], float]()
        self._pauses = [signal for signal in SIGNALS if signal in pauses and self._sides(signal)]
        self._stretches: dict[tuple[str, str], Stretch] = {}
        self._past = Past()
        self._own: dict[str, Group] = {}
        self._every = _NONE
        self._missed = self._failed = 0
        self._best: dict[str, tuple[float, int, float]] = {}
        self._first: dict[str, float] = {}
        self._loss = math.nan

    def look(self, seen: Seen) -> list[Finding]:
        """Take an attempt at a training round that is over; return what left the expected."""
        self._now += _HOUR if seen.seconds is None else seen.seconds
        looks = [*self._attempts(seen), *self._rejections(seen)]
        if seen.record.outcome == "finished":
            looks += self._finished(seen)
        found = self._judged(seen.record.round, looks)
        if seen.record.outcome == "finished":
            self._learn(seen)
            self._loss = seen.record.metrics.get("train.loss", math.nan)
        return found + self.tested(seen.record.round, seen.record.metrics)

    def tested(self, number: int, metrics: Mapping[str, float]) -> list[Finding]:
        """Take what is known of how good a round's model is."""
        return self._judged(number, self._accuracy(number, metrics))

    @property
    def false_pause(self) -> float | None:
        """How likely the run is stopped though it keeps to its plan, at most; None: unknown.

        Known are the signals that are probabilities, among those that stop it.
        """
        if not self._pauses:
            return None
        chances = []
        for signal in self._pauses:
            if signal == "quorum":
                chances.append(self._tries * self._missing ** (self._allowed + 1))
            else:
                sides = self._sides(signal)
                chances.append(sides * false_pause(self._looks(signal), self._limit(signal)))
        return min(1.0, math.fsum(chances))

    @property
    def blind(self) -> list[str]:
        """Signals that are to be looked for, and of which the plan does not say what to expect."""
        expected = self._expected
        known = {
            "duration": expected.duration is not None,
            "participation": bool(expected.participation),
            "quorum": expected.miss is not None,
            "bytes": expected.traffic is not None,
        }
        return [signal for signal in self.signals if not known.get(signal, True)]

    def _sides(self, signal: str) -> int:
        """Return on how many sides a signal's values have a bound of known probability."""
        expected = self._expected
        planned = int(expected.miss is not None)
        return {
            "duration": 0 if expected.duration is None else 2,
            "participation": 2 * len(expected.participation),
            "site": max(1, len(expected.losses), len(self._sites)),
            "rejections": 1,
            "quorum": planned,
            "retries": planned,
        }.get(signal, 0)

    def _limit(self, signal: str) -> int:
        """Return the points at which a signal stops the run."""
        return limit(self._looks(signal), FALSE_PAUSES / len(self._pauses) / self._sides(signal))

    def _looks(self, signal: str) -> int:
        """Return how many looks at a signal's values a run has."""
        return self._hours if signal in self._hourly else self._tries

    def _waits(self, look: _Look) -> bool:
        """Tell whether a round says nothing new: one of the same hour was counted."""
        key = look.signal, look.about
        if look.signal not in self._hourly or look.signal not in self._pauses:
            return False
        if self._now < self._counted.get(key, -math.inf) + _HOUR:
            return True
        self._counted[key] = self._now
        return False

    def _stretch(self, signal: str, about: str) -> Stretch:
        """Return what decides whether a value has left its interval."""
        charted = signal in self._pauses and signal != "quorum"
        made = self._stretches.get((signal, about))
        if made is None:
            made = Chart(self._limit(signal)) if charted else Stretch()
            self._stretches[signal, about] = made
        if isinstance(made, Chart):
            made.limit = self._limit(signal)  # sites come
        return made

    @property
    def _missing(self) -> float:
        """How likely an attempt is below quorum by the plan, within (0, 1)."""
        return min(max(self._expected.miss or 0.0, _NO_MISS), 1 - _NO_MISS)

    @property
    def _allowed(self) -> int:
        """How many attempts in a row below quorum are no signal."""
        level = FAR
        if "quorum" in self._pauses:
            level = FALSE_PAUSES / len(self._pauses) / self._tries
        return math.floor(math.log(level) / math.log(self._missing))

    def _judged(self, number: int, looks: list[_Look]) -> list[Finding]:
        found = []
        for look in looks:
            if look.signal not in self.signals or self._waits(look):
                continue
            if self._stretch(*look[:2]).begins(look.side, far=look.far):
                found.append(Finding(look.signal, number, *look[2:5], look.why()))
        return found

    def _finished(self, seen: Seen) -> Iterator[_Look]:
        expected, past = self._expected, self._past
        if expected.duration is not None and (took := seen.seconds) is not None:
            longer = took > expected.duration.high
            yield _in_band(
                "duration", "", took, expected.duration, lambda: past.of_time(seen, longer=longer)
            )
        used = sum(group.used for group in seen.cohorts.values())
        for name, group in seen.cohorts.items():
            if used and (band := expected.participation.get(name)) is not None:
                yield _in_band(
                    "participation", name, group.used / used, band,
                    partial(past.of_group, "cohort", name, group),
                )  # fmt: skip
        for name, group in seen.sites.items():
            if group.asked:
                yield from self._site(name, group)
        if (mean := expected.traffic) is not None:
            yield _traffic(seen, mean)

    def _site(self, name: str, now: Group) -> Iterator[_Look]:
        """Compare a site's updates with what is due of it, as soon as none at all would be rare."""
        group = _sum(self._sites.get(name, _NONE), now)
        planned = self._expected.losses.get(name)
        lost, kept = self._known(name)

        def tail(gone: int) -> float:
            if planned is None:
                return beta_binomial(group.asked, gone, lost, kept)
            return binomial(group.asked, gone, min(max(planned, _LOST), 1 - _LOST))

        if tail(group.asked) >= NEAR:
            self._sites[name] = group
            return
        self._sites[name] = _NONE
        due = group.asked * (kept / (lost + kept) if planned is None else 1 - planned)
        few = tail(group.asked - group.used)
        side = -1 if group.used < due / 2 and few < NEAR else 0
        far = group.used < due / 4 and few < FAR
        yield _Look(
            "site", name, group.used, due / 2, math.inf, side, far,
            lambda: self._past.of_group("site", name, group),
        )  # fmt: skip

    def _known(self, name: str) -> tuple[float, float]:
        """Return what is known of a site's losses: Beta's two numbers, of those of all sites."""
        every, own = self._every, self._own.get(name, _NONE)
        loss = (every.asked - every.used + 0.5) / (every.asked + 1)
        return _WORTH * loss + own.asked - own.used, _WORTH * (1 - loss) + own.used

    def _rejections(self, seen: Seen) -> list[_Look]:
        refused, record = sum(seen.refused.values()), seen.record
        judged = max(len(record.roster), refused + len(record.survivors))
        if not judged:
            return []
        share, band = refused / judged, self._expected.rejections
        if band is None or not band.high3:  # 0 is no reason to stop at the first one
            tail = binomial(judged, refused, REFUSED)
            high = max(k for k in range(judged + 1) if binomial(judged, k, REFUSED) >= NEAR)
            limit, above, far = high / judged, refused > 0 and tail < NEAR, tail < FAR
        else:
            limit, above, far = band.high, share > band.high, share > band.high3
        return [
            _Look(
                "rejections", "", share, -math.inf, limit, int(above), above and far,
                lambda: of_refusals(seen),
            )
        ]  # fmt: skip

    def _attempts(self, seen: Seen) -> Iterator[_Look]:
        """Count the attempts without a result: of this round, and below quorum in a row."""
        record, miss = seen.record, self._expected.miss
        finished = record.outcome == "finished"
        self._missed = self._missed + 1 if record.outcome == "aborted" else 0
        self._failed += not finished

        def why() -> str:
            return "; ".join(filter(None, (record.cause, self._past.of_groups(seen))))

        some, many = 1, RETRIES
        if miss is not None:
            allowed = self._allowed
            far = self._missed > allowed
            yield _Look("quorum", "", self._missed, -math.inf, allowed, int(far), far, why)
            some, rare = (math.ceil(math.log(p) / math.log(self._missing)) for p in (NEAR, FAR))
            many = max(RETRIES, rare)
        failed = self._failed
        if failed == many or (finished and failed < many):  # once for a round
            yield _Look(
                "retries", "", failed, -math.inf, some - 1, int(failed >= some), failed >= many,
                lambda: why() or f"{failed} attempts before this one had no result",
            )  # fmt: skip
        if finished:
            self._failed = 0

    def _accuracy(self, number: int, metrics: Mapping[str, float]) -> list[_Look]:
        """Compare the first of the metrics that there is with its best."""
        name = next((name for name in _METRICS if name in metrics or name in self._best), "")
        value = metrics.get(name, math.nan)
        if math.isnan(value):
            return []
        sign = 1 if name.endswith("accuracy") else -1
        best, since, loss = self._best.setdefault(name, (value, number, self._loss))
        if sign * value > sign * best:
            self._best[name] = best, since, loss = value, number, self._loss
        first = abs(self._first.setdefault(name, value))
        limit = best - sign * self._expected.drop * (1 if sign > 0 else first)
        outside = sign * value < sign * limit
        low, high = (limit, math.inf) if sign > 0 else (-math.inf, limit)
        return [
            _Look(
                "accuracy", name, value, low, high, -sign if outside else 0, False,
                lambda: f"{name} was {best:.4g} in round {since}, its best{self._since(loss)}",
            )
        ]  # fmt: skip

    def _since(self, loss: float) -> str:
        """Return what else has changed since the best round."""
        away = [about for (of, about), s in self._stretches.items() if of == "site" and s.out]
        said = [f"site {name} is away" for name in away]
        if not math.isnan(loss):
            said.append(f"train.loss was {loss:.4g} then and is {self._loss:.4g} now")
        return "".join(f"; {text}" for text in said)

    def _learn(self, seen: Seen) -> None:
        """Make a round part of the past, without the sites of which too little came."""
        few = {about for (of, about), s in self._stretches.items() if of == "site" and s.side}
        self._past.learn(seen, few)
        for name, group in seen.sites.items():
            if name not in few:
                self._own[name] = _sum(self._own.get(name, _NONE), group)
                self._every = _sum(self._every, group)


def _sum(one: Group, other: Group) -> Group:
    return Group(one.asked + other.asked, one.used + other.used)


def _in_band(signal: str, about: str, value: float, band: Band, why: Callable[[], str]) -> _Look:
    side = (value > band.high) - (value < band.low)
    far = not band.low3 <= value <= band.high3
    return _Look(signal, about, value, band.low, band.high, side, far, why)


def _traffic(seen: Seen, mean: float) -> _Look:
    record = seen.record
    value = record.bytes_up + record.bytes_down
    low, high = (1 - _SOME) * mean, (1 + _SOME) * mean
    far = not _MANY * mean <= value <= mean / _MANY
    return _Look(
        "bytes", "", value, low, high, (value > high) - (value < low), far,
        lambda: f"{record.bytes_up} up and {record.bytes_down} down, planned {mean:.0f} in all",
    )  # fmt: skip
