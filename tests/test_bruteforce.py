"""Brute force: n = 3 .. 12, every subset of up to two members lost at every message boundary.

By default that is n = 3 .. 6, and 3 .. 5 in silence; of 7 and 9 two are lost alone and everybody
with each neighbour, so that every tolerance to 3 meets every boundary and every place in the order.
The rest carries the mark `slow`: `make brute` runs everything.

Each case is one round through the real coordinator, sessions, ledger and disk. What must come of
it follows from n, the published table of D, the boundary and the order in which the keys passed
on the wire (`expected`), never from the code: the exact sum over the survivors, bit for bit, or
an abort that names the tolerance or the floor, without any time passing, since the server knows
of the losses. In the silent cases it does not, and each phase that waits ends at its deadline.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from umbel.protocol import frames
from umbel.protocol import messages_pb2 as pb
from umbel.simulation import link
from umbel.simulation.drops import BOUNDARIES, Drop
from umbel.tests.rounds import LOSSES_TOLERATED, Stage, matches, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINING, TRIP = 600.0, 60.0
TIMES = {"deadline": TRAINING + 4 * TRIP, "trip": TRIP}
FLOOR = 3
SIZES = [*range(3, 7), *(pytest.param(n, marks=pytest.mark.slow) for n in range(7, 13))]
SURVIVES_FROM = BOUNDARIES.index("masked")
"""From this boundary on the vector was whole: whoever is lost later is in the sum."""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    shared = Path("/dev/shm")  # noqa: S108 - a folder of its own in memory, where there is one
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a vector of 240 bytes into three frames, so that `upload` breaks off inside it."""
    for module in (frames, link):
        monkeypatch.setattr(module, "PAYLOAD", 100)


class Fate(NamedTuple):
    """What must come of a round."""

    roster: frozenset[int]
    survivors: frozenset[int]
    cause: str
    """A part of the cause of the abort; empty where the round finishes."""


def expected(n: int, boundary: str, lost: frozenset[int], last: int) -> Fate:
    """Derive the outcome from the rules alone.

    A member that died in training is in no roster, nor is one that died after its keys, unless
    it was the last to send them: then the roster was frozen in the same moment.
    """
    absent = {"start": lost, "keys": lost - {last}}.get(boundary, frozenset())
    roster = frozenset(range(n)) - absent
    if len(roster) < FLOOR:
        return Fate(frozenset(), frozenset(), f"{len(roster)} members are ready, at least {FLOOR}")
    missing = lost & roster if boundary != "release" else frozenset()
    if len(missing) > LOSSES_TOLERATED[len(roster)]:
        tolerance = f"{len(roster)} members tolerate {LOSSES_TOLERATED[len(roster)]} losses"
        return Fate(roster, frozenset(), tolerance)
    whole = BOUNDARIES.index(boundary) >= SURVIVES_FROM
    return Fate(roster, roster if whole else roster - missing, "")


class Played(NamedTuple):
    """What came of a round, as far as the wire and the clock tell."""

    last: int
    seconds: float


def play(stage: Stage) -> Played:
    """Play the one round; `last` is whose keys passed last on the wire."""
    keys: list[int] = []

    def tap(way: str, node: str, data: bytes) -> None:
        if way == "up" and not data.startswith(frames.MAGIC):
            message = pb.ToServer.FromString(data)
            keys.extend([stage.index[node]] if message.HasField("keys") else [])

    stage.link.tap = tap
    stage.play()
    return Played(keys[-1] if keys else -1, stage.link.clock.now())


def check(stage: Stage, fate: Fate) -> None:
    """Compare the ledger, the disk and the coordinator with what must have come of the round."""
    (record,) = stage.directory.ledger.rounds()
    assert frozenset(stage.index[node] for node in record.roster) == fate.roster
    survivors = stage.indices(record.survivors if record.outcome == "finished" else ())
    assert frozenset(survivors) == fate.survivors
    if fate.cause:
        assert fate.cause in record.cause
        assert record.outcome in {"aborted", "void"}
        assert fate.cause in str(stage.coordinator.failure)
        assert stage.directory.kept() == (0,)
        assert not stage.coordinator.model["w"].any()
    else:
        assert (record.outcome, record.cause) == ("finished", "")
        assert stage.coordinator.failure is None
        matches(stage, 1, survivors, len(fate.roster))
        assert record.model == stage.directory.digest(1).hex()


def subsets(n: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in sizes:
        yield from itertools.combinations(range(n), size)


def told(n: int, boundary: str, lost: tuple[int, ...], home: Path) -> None:
    """Play a round that loses these members at this boundary, and the server is told."""
    run = settings(run=f"told-{n}-{boundary}-" + "-".join(map(str, lost)))
    with Stage(home, n, run, drops=[Drop(boundary, lost, 1)]) as stage:
        played = play(stage)
        check(stage, expected(n, boundary, frozenset(lost), played.last))
        assert played.seconds == 0.0


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", SIZES)
def test_every_loss_at_every_boundary(n: int, boundary: str, home: Path) -> None:
    for lost in subsets(n, (1, 2)):
        told(n, boundary, lost, home)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", [7, 9])
def test_each_loss_with_its_neighbour_at_every_boundary(n: int, boundary: str, home: Path) -> None:
    for lost in [(0,), (n - 1,), *((i, (i + 1) % n) for i in range(n))]:
        told(n, boundary, lost, home)


@pytest.mark.parametrize("n", range(3, 13))
def test_nobody_is_lost(n: int, home: Path) -> None:
    with Stage(home, n, settings(run=f"whole-{n}")) as stage:
        play(stage)
        everybody = frozenset(range(n))
        check(stage, Fate(everybody, everybody, ""))


@pytest.mark.parametrize("boundary", BOUNDARIES[:-1])
@pytest.mark.parametrize("n", [3, 4])
def test_everybody_is_lost(n: int, boundary: str, home: Path) -> None:
    everybody = tuple(range(n))
    run = settings(run=f"all-{n}-{boundary}")
    with Stage(home, n, run, drops=[Drop(boundary, everybody, 1)]) as stage:
        played = play(stage)
        check(stage, expected(n, boundary, frozenset(everybody), played.last))
        assert played.seconds == 0.0


# ---- losses that the server is not told of ---------------------------------------------------


def silent(n: int, boundary: str, lost: frozenset[int]) -> tuple[Fate, float]:
    """Derive outcome and seconds of a round in which nobody says that members are gone.

    The phase that misses their answer ends at its deadline, with one exception: the votes go on
    at a quorum and the shares when they suffice, so within D nobody waits for more of them.
    """
    everybody = frozenset(range(n))
    if boundary == "start":
        return expected(n, boundary, lost, -1), TRAINING
    late = BOUNDARIES.index(boundary) >= SURVIVES_FROM
    tolerable = len(lost) <= LOSSES_TOLERATED[n]
    # The last to send its keys freezes the roster, so here nobody leaves it any more.
    fate = expected(n, "roster" if boundary == "keys" else boundary, lost, -1)
    assert boundary == "release" or fate.roster == everybody
    waits = boundary != "release" and not (late and tolerable)
    return fate, TRIP if waits else 0.0


@pytest.mark.parametrize("boundary", [b for b in BOUNDARIES if b != "upload"])
@pytest.mark.parametrize("n", [3, 4, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_a_silent_loss_costs_one_deadline(n: int, boundary: str, home: Path) -> None:
    for lost in subsets(n, (1, 2)):
        run = settings(run=f"silent-{n}-{boundary}-" + "-".join(map(str, lost)), **TIMES)
        with Stage(home, n, run, drops=[Drop(boundary, lost, 1, silent=True)]) as stage:
            played = play(stage)
            fate, seconds = silent(n, boundary, frozenset(lost))
            check(stage, fate)
            assert played.seconds == seconds
            # Who is waited for in vain is named, and nobody else.
            assert {index for index, _ in stage.told("late")} == (set(lost) if seconds else set())


@pytest.mark.parametrize("n", [4, 5, pytest.param(6, marks=pytest.mark.slow), 7])
def test_an_upload_that_stalls_keeps_nobody_from_the_slot(n: int, home: Path) -> None:
    """There is one slot. A stall is seen after a quarter of the trip, if somebody waits for it.

    The round ends at the stall that makes one more than D; the last in the order keeps nobody
    waiting, and is given up at the deadline.
    """
    for lost in subsets(n, (1, 2)):
        run = settings(run=f"stall-{n}-" + "-".join(map(str, lost)), **TIMES)
        with Stage(home, n, run, drops=[Drop("upload", lost, 1, silent=True)]) as stage:
            played = play(stage)
            check(stage, expected(n, "upload", frozenset(lost), -1))
            last = stage.index[stage.records[0].roster[-1]] in lost
            seen, bearable = len(lost) - last, LOSSES_TOLERATED[n]
            stalls = TRIP / 4 * min(seen, bearable + 1)
            assert played.seconds == (TRIP if last and seen <= bearable else stalls)
