"""The watch of one run that goes on: its rounds to the rules, its items to the ledger, and back.

    record, events ──► Watch (watch.py) ──► items for review, committed with the round
    decisions in the ledger ──► whether the run may go on

Another process appends decisions (reviews.py). They are looked for while an item is open: every
`POLL_S` where the run waits for one, every `LOOK_S` beside rounds that go on. Who resumes a run
finds its items in the ledger, so a run that was killed while it waited waits again; what the rules
have learnt, they learn anew from the ledger.

A run without a plan and without signals that pause is not watched, and nothing of it changes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from . import reviews
from .alarms import false_alarm
from .client_times import KIND as CLIENTS
from .ledger import TESTED, Event, Ledger
from .reviews import Item
from .run_plan import RunPlan
from .settings import PAUSE_ON
from .watch import Watch
from .watch_seen import REFUSALS, Rounds
from .watch_terms import SIGNALS, Expected, Finding, Go, Unwatched, Verdict
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from .history import History
    from .invitation import Joined
    from .ledger import RoundRecord, RunRecord
    from .run_directory import RunDirectory
    from .settings import RunSettings

POLL_S = 0.25
LOOK_S = 2.0


class Watching(Unwatched):
    """The watch of one run."""

    def __init__(
        self,
        settings: RunSettings,
        directory: RunDirectory,
        rounds: Rounds,
        wall: Callable[[], datetime],
        say: Callable[[str], None],
    ) -> None:
        """Begin with the items of the run's ledger; made by `of`."""
        self._watch = _watch(settings.plan, settings.pause_on, settings.rounds)
        self._rounds, self._run, self._pauses = rounds, settings.run, frozenset(settings.pause_on)
        self._path, self._wall, self._say = directory.ledger.path, wall, say
        self._items = {item.number: item for item in reviews.items(directory.ledger)}
        self._last = max(self._items, default=0)
        self._head, self._next, self._verdict = 0, 0.0, Verdict(Go.ON)

    @classmethod
    def of(
        cls,
        settings: RunSettings,
        directory: RunDirectory,
        past: History | None,
        *,
        sites: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
        wall: Callable[[], datetime],
        say: Callable[[str], None],
    ) -> Unwatched:
        """Return the watch of a run that begins, or goes on.

        Args:
            settings: The run's; without a plan and a signal to pause on it is not watched.
            directory: Its own; nobody writes to it now.
            past: What was before, of a run that goes on.
            sites: The site of each cohort, in a simulation; None where devices name their own.
            missing: Signals that this run has not, and why. Without `duration` the seconds of a
                round's phases are none that a plan is about.
            wall: Civil time, for the items.
            say: Takes a line about what is watched, and one for each item.

        Raises:
            SettingsError: A signal is to pause the run that cannot be raised.
            StateError: The ledger has an item that nobody wrote so.
        """
        if settings.plan is None and not settings.pause_on:
            return Unwatched()
        missing = missing or {}
        for signal in settings.pause_on:
            if signal in missing:
                raise SettingsError("pause-on", "signals of this run", signal, missing[signal])
        timed = "duration" not in missing
        rounds = Rounds(sites, timed=timed, everybody=settings.cohort is None)
        made = cls(settings, directory, rounds, wall, say)
        for event in made._learn(past) if past is not None else ():
            fields = asdict(event)
            directory.ledger.event(fields.pop("kind"), **fields)
        say(introduction(settings.plan, settings.pause_on, settings.rounds))
        return made

    # -- what comes in ----------------------------------------------------------------------

    def noted(self, kind: str, node: str, code: str) -> None:
        """Take an event of the open attempt."""
        self._rounds.noted(kind, node, code)

    def closed(
        self, record: RoundRecord, beside: Event | None, here: Mapping[str, Joined]
    ) -> tuple[Event, ...]:
        """Take an attempt that is over; return the items that it raises, to be committed with it.

        Args:
            record: Its entry.
            beside: The event `clients` beside it, if there is one.
            here: Who has a session now.
        """
        sites = {joined.member.site for joined in here.values()}
        seen = self._rounds.over(record, beside, sites)
        return self._raised(self._watch.look(seen)) if _counts(record) else ()

    def tested(self, number: int, metrics: Mapping[str, float]) -> tuple[Event, ...]:
        """Take the test of a round's model, after the round; return the items that it raises."""
        return self._raised(self._watch.tested(number, metrics))

    # -- decisions --------------------------------------------------------------------------

    @property
    def open(self) -> list[Item]:
        """Items that nobody has decided."""
        return [item for item in self._items.values() if item.decision is None]

    def verdict(self, now: float) -> Verdict:
        """Return whether the next attempt may begin, by the decisions that stand in the ledger.

        Args:
            now: Monotonic seconds.

        Raises:
            StateError: The ledger cannot be read, or was changed by hand.
        """
        if self._verdict.go is not Go.END and self.open and now >= self._next:
            self._look()
        self._verdict = self._judged()
        if now >= self._next:
            self._next = now + (POLL_S if self._verdict.go is Go.WAIT else LOOK_S)
        return self._verdict

    def paused(self, number: int) -> None:
        """Say that the run waits before a round, and for what."""
        waits = reviews.waiting(self._items.values())
        self._say(f"paused before round {number}: {reviews.move(self._run, waits)}")

    def _look(self) -> None:
        """Take the decisions that were made since the last look."""
        with Ledger(self._path, read_only=True) as ledger:
            head = ledger.head()[0]
            if head == self._head:
                return
            self._head = head
            found = {item.number: item for item in reviews.items(ledger)}
            known = self._items.keys() & found.keys()
            if any(found[n].decision != self._items[n].decision for n in known):
                ledger.verify()  # nobody wrote a decision past the chain
        for number in known:
            self._items[number] = found[number]

    def _judged(self) -> Verdict:
        if why := reviews.ended(self._items.values()):
            return Verdict(Go.END, why)
        waits = reviews.waiting(self._items.values())
        return Verdict(Go.WAIT, reviews.numbers(waits)) if waits else Verdict(Go.ON)

    # -- items ------------------------------------------------------------------------------

    def _raised(self, found: list[Finding]) -> tuple[Event, ...]:
        """Number what was found, but what somebody accepted for the rest of the run."""
        accepted, events = reviews.accepted_of(self._items.values()), []
        for one in found:
            if one.signal in accepted:
                continue
            self._last += 1
            item = Item(
                number=self._last,
                signal=one.signal,
                round=one.round,
                value=one.value,
                low=one.low,
                high=one.high,
                cause=one.cause,
                pauses=one.signal in self._pauses,
                at=self._wall().isoformat(timespec="milliseconds"),
            )
            self._items[item.number] = item
            self._next = 0.0
            self._say(reviews.said(item))
            events.append(
                Event(
                    kind=reviews.REVIEW, round=item.round, attempt=0, code=item.signal,
                    detail=item.detail(), at=item.at,
                )
            )  # fmt: skip
        return tuple(events)

    # -- rounds -----------------------------------------------------------------------------

    def _learn(self, past: History) -> tuple[Event, ...]:
        """Give the rules the rounds of before; return the item that the last process did not write.

        What a test finds is written before the item that it raises: who was killed between the two
        has raised none.
        """
        beside = {(e.round, e.attempt): e for e in past.events if e.kind == CLIENTS}
        notes: dict[tuple[int, int], list[Event]] = {}
        for event in past.events:
            if event.kind in REFUSALS:
                notes.setdefault((event.round, event.attempt), []).append(event)
        found = list[Finding]()
        for record in past.records:
            key = record.round, record.attempt
            for event in notes.get(key, ()):
                self._rounds.noted(event.kind, event.node, event.code)
            seen = self._rounds.over(record, beside.get(key), None)
            if _counts(record):
                found += self._watch.look(seen)
        tested = [event.round for event in past.events if event.kind == TESTED]
        known = {(item.signal, item.round) for item in self._items.values()}
        return self._raised([
            one for one in found
            if one.signal == "accuracy" and one.round == max(tested, default=0)
            and (one.signal, one.round) not in known
        ])  # fmt: skip


def introduction(plan: RunPlan | None, pauses: Sequence[str], rounds: int) -> str:
    """Return what a run watches, and how often that is in vain; empty where it watches nothing."""
    if plan is None and not pauses:
        return ""
    watch = _watch(plan, pauses, rounds)
    line = f"watched: {', '.join(s for s in watch.signals if s not in watch.blind)}"
    line += f"; pauses on {', '.join(pauses) or 'nothing'}"
    if (chance := watch.false_pause) is not None:
        line += f", by chance with at most {chance:.2%} in {rounds} rounds"
    if set(pauses) >= set(watch.signals):
        return line
    return f"{line}; any other signal is raised by chance with {false_alarm(rounds):.1%}"


def introduced(record: RunRecord) -> str:
    """Return the introduction of a run by its record.

    Raises:
        SettingsError: The record has a plan that no run keeps.
    """
    pauses, rounds = record.config.get(PAUSE_ON, ()), int(record.config["rounds"])
    return introduction(RunPlan.kept_by(record), pauses, rounds)


def _watch(plan: RunPlan | None, pauses: Sequence[str], rounds: int) -> Watch:
    signals = tuple(pauses) if plan is None else SIGNALS
    return Watch(Expected() if plan is None else plan.expected, signals, pauses, rounds)


def _counts(record: RoundRecord) -> bool:
    """Tell whether an entry is about an attempt at a training round."""
    return record.phase == "train" and record.outcome != "lost"
