"""Whole rounds for tests: a cast of enrolled members, a stage with link, coordinator and disk.

Everything is the real thing but three: local training is a table of numbers (`Fixed`), the
clock moves only when the link has nothing left to do (`Still`), and frames may be cut small so
that a message of a few hundred bytes breaks off half-way.

What a sum must be comes from integers.py, which shares no code with the package.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients.journal import MemoryJournal
from umbel.clients.policy import Policy
from umbel.clients.session import Device, Session
from umbel.clients.update import Update
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.entropy import os_entropy
from umbel.protocol.frames import MAGIC
from umbel.protocol.plan import Params
from umbel.protocol.standpoint import Identity
from umbel.server.coordinator import Coordinator
from umbel.server.core.world import World
from umbel.server.history import History, take_over
from umbel.server.open_round import OpenRounds
from umbel.server.run_directory import RunDirectory
from umbel.server.settings import RunSettings
from umbel.server.surroundings import Surroundings
from umbel.simulation.link import Clock, Link
from umbel.strategies.task import Site
from umbel.strategies.trainer import TrainResult
from umbel.tests.actors import membership
from umbel.tests.integers import summed, update, weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.protocol.membership import Membership
    from umbel.server.core.worlds import AnyWorld
    from umbel.server.ledger import Event, RoundRecord
    from umbel.server.round_folder import Round
    from umbel.simulation.drops import Drop
    from umbel.strategies.trainer import Settings

FEDERATION = "stage"
NOW = datetime.now(UTC)
PARAMS = Params(value_range=0.5, weight_cap=40, min_members=3, min_survivors=3)
METRICS = {"train": {"eval.examples": 0, "eval.loss": 24}, "evaluate": {"eval.examples": 0}}
LOSSES_TOLERATED = {3: 0, 4: 0, 5: 1, 6: 1, 7: 2, 8: 2, 9: 3, 10: 3, 11: 4, 12: 4}
"""D for each n with A = 1, by hand: min(k - t, n - q, n - 3), k = n - 1, t = q = (n + 1)//2 + 1
for odd n, and t = n//2 + 1, q = (n + 1)//2 + 1 for even n. 3 to 10 stand in the published table."""


class Fixed:
    """User code whose training is a table of numbers: what a member gives depends on its index."""

    def __init__(self, shape: tuple[int, ...] = (3, 5)) -> None:
        """Take the shape of the float64 array `w`; the others are small."""
        self.shape = shape

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model: zeros, so that the first model is the mean itself."""
        return {
            "w": np.zeros(self.shape),
            "steps": np.array(7 + seed, np.int64),
            "b": np.zeros(4, np.float32),
            "frozen": np.full(3, 0.25),
        }

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metrics with their fractional bits."""
        return METRICS[phase]

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the numbers of this member in this round."""
        loss = (site.index + 1) / 8 + settings.round
        metrics: dict[str, int | float] = {"eval.examples": weight(site.index), "eval.loss": loss}
        deltas = {n: d.copy() for n, d in update(site.index, settings.round, self.shape).items()}
        return TrainResult(deltas, weight(site.index), metrics)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Count the member's examples."""
        return TrainResult({}, 1, {"eval.examples": weight(site.index)})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server has no examples."""
        return {}


# ---- cast and stage ----------------------------------------------------------------------------


class Still(Clock):
    """Seconds that pass only when the link has nothing left to do."""

    def __init__(self) -> None:
        """Start at zero."""
        self.time = 0.0

    def now(self) -> float:
        """Return the seconds."""
        return self.time

    def before(self, when: float) -> float:
        """Return the seconds: none pass while there is something to do."""
        return self.time

    def skip_to(self, when: float) -> None:
        """Let it be `when`, if that is still to come."""
        self.time = max(self.time, when)


@dataclass(frozen=True)
class Player:
    """One enrolled member."""

    identity: Identity
    membership: Membership

    @property
    def node(self) -> str:
        """Its id in hex."""
        return self.identity.id.hex()


class Cast:
    """Members of one federation, enrolled once; certificates are verified once by each."""

    def __init__(self, count: int) -> None:
        """Enrol `count` members."""
        self.authority = Authority.create(FEDERATION, NOW)
        der = self.authority.certificate.public_bytes(Encoding.DER)
        self.ca = hashlib.sha256(der).digest()
        self.verifier = membership(self.authority, NOW).verifier
        self.players = [self._enrol(i) for i in range(count)]

    def _enrol(self, index: int) -> Player:
        signing = Ed25519PrivateKey.generate()
        # The order of the ids is not that of the indices: both signs of a mask occur.
        node = hashlib.sha256(b"player %d" % index).digest()[:16]
        site = f"site-{index // 2}"
        leaf = self.authority.issue_signing(signing.public_key(), node, site, NOW)
        identity = Identity(id=node, certificate=leaf.public_bytes(Encoding.DER), signing=signing)
        return Player(identity, membership(self.authority, NOW))


@cache
def cast(count: int = 12) -> Cast:
    """Return the members of this test process."""
    return Cast(count)


TABLE = Fixed()


@cache
def _trainee(trainer: Fixed, index: int, members: int, allowed: Policy) -> Update:
    """Return a device's half of the training; it keeps nothing between attempts."""
    site = Site(partition=index, partitions=members)
    return Update(trainer, site, allowed, entropy=os_entropy, seed=0)


def settings(**changes: Any) -> RunSettings:
    """Return the settings of a run of one round without evaluation."""
    return replace(
        RunSettings(run="run", rounds=1, params=PARAMS, final_evaluation=False), **changes
    )


def policy(of: RunSettings, **changes: Any) -> Policy:
    """Return a policy that allows this run."""
    allowed = Policy(
        federation=FEDERATION,
        required=of.scheme == "A",
        min_members=3,
        min_survivors=3,
        rounds_per_day=10**6,
    )
    return replace(allowed, **changes)


class Stage:
    """One run: a coordinator with its directory, a session for each member, the link."""

    def __init__(
        self,
        home: Path,
        members: int,
        run: RunSettings | None = None,
        *,
        drops: Sequence[Drop] = (),
        trainer: Fixed | None = None,
        link: Link | None = None,
        world: AnyWorld | None = None,
        own: Mapping[int, Policy] | None = None,
        keeps: bool = False,
    ) -> None:
        """Set the stage; nobody has joined before `join`, nothing runs before `play`.

        Args:
            home: Where `runs/` is.
            members: How many of the cast take part.
            run: The settings.
            drops: Losses to play.
            trainer: User code of all members.
            link: Another link than the plain one with `drops`.
            world: Where the server forms sums; None is a world of one with one slot.
            own: Policies of single members, by index.
            keeps: Whether the server keeps open rounds for a successor.
        """
        self.run = run or settings()
        self.cast = cast()
        self.players = self.cast.players[:members]
        self.index = {p.node: i for i, p in enumerate(self.players)}
        self.trainer = trainer or TABLE
        self.link = link or Link(drops, Still())
        self.log: list[str] = []
        self.records: list[RoundRecord] = []
        self.home, self._keeps = home, keeps
        self._world = world or World()
        self.directory = RunDirectory.create(home, self.run.run)
        self.directory.ledger.create_run(self.run.run, "2026-01-01T00:00:00Z", {}, "on")
        self.coordinator = self._seat()
        self.sessions = [self.session(i, (own or {}).get(i)) for i in range(members)]

    def _seat(self, found: tuple[Round, History] | None = None) -> Coordinator:
        rounds = self.directory.path / "rounds"
        around = Surroundings(
            verifier=self.cast.verifier,
            ca=self.cast.ca,
            directory=self.directory,
            post=self.link.post,
            wall=lambda: NOW,
            observe=self.records.append,
            world=self._world,
            open_rounds=OpenRounds(rounds) if self._keeps else None,
        )
        declared = {phase: self.trainer.declared(phase) for phase in ("train", "evaluate")}
        model, history = self.trainer.arrays(), None
        if found is not None:
            model, history = found[0].arrays, found[1]
        return Coordinator(self.run, model, declared, around, history)

    def server_again(self) -> None:
        """Lose the server and everything that was on its way; another process takes the run up.

        The members live on, and join again with the sessions that they have.
        """
        self.directory.close()
        self.link._queue.clear()
        self.link._uploads.clear()
        self.directory = RunDirectory.resume(self.home, self.run.run)
        self.coordinator = self._seat(take_over(self.directory, "2026-01-01T01:00:00Z"))
        self.join()

    def session(self, index: int, own: Policy | None = None) -> Session:
        """Return a fresh session, with a fresh journal, of one member."""
        player, allowed = self.players[index], own or policy(self.run)
        return Session(
            Device(
                identity=player.identity,
                policy=allowed,
                membership=player.membership,
                ca=self.cast.ca,
                journal=MemoryJournal(),
                update=_trainee(self.trainer, index, len(self.players), allowed),
                clock=lambda: NOW,
                entropy=os_entropy,
                log=lambda line: self.log.append(f"{index}: {line}"),
            )
        )

    def join(self) -> Stage:
        """Let everybody join."""
        certificates = [p.identity.certificate for p in self.players]
        self.link.connect(self.coordinator, zip(certificates, self.sessions, strict=True))
        return self

    def begin(self) -> Stage:
        """Let everybody join and ask the first cohort."""
        self.join().coordinator.begin(self.link.clock.now())
        return self

    def play(self) -> Stage:
        """Let everybody join and run to the end; the ledger stays open for the test."""
        self.join().link.run()
        return self

    def until(self, body: str) -> None:
        """Step until a member's message of this kind has come up."""
        seen: list[str] = []
        before = self.link.tap

        def tap(way: str, node: str, data: bytes) -> None:
            before(way, node, data)
            if way == "up" and not data.startswith(MAGIC):
                seen.append(pb.ToServer.FromString(data).WhichOneof("body") or "")

        self.link.tap = tap
        while body not in seen:
            self.link.step()
        self.link.tap = before

    def to_the_end(self) -> None:
        """Step until the run is over."""
        while not self.coordinator.done:
            self.link.step()

    def again(self, index: int) -> None:
        """Let a member join again with a new session of the same device."""
        player = self.players[index]
        self.link._sessions[player.node] = Session(self.sessions[index]._device)
        self.coordinator.join(player.identity.certificate, self.link.clock.now())

    def outcomes(self) -> list[tuple[int, int, str, int]]:
        """Return round, attempt, outcome and number of those summed of every record on the disk."""
        return [
            (r.round, r.attempt, r.outcome, len(r.survivors) if r.outcome == "finished" else 0)
            for r in self.directory.ledger.rounds()
        ]

    def events(self) -> list[Event]:
        """Return what the ledger says happened, but for what every run or round says."""
        events = self.directory.ledger.events()
        return [e for e in events if e.kind not in {"initial", "memory", "clients"}]

    def told(self, kind: str) -> list[tuple[int, str]]:
        """Return member's index and code of the ledger's events of one kind."""
        events = self.directory.ledger.events()
        return [(self.index[e.node], e.code) for e in events if e.kind == kind]

    def close(self) -> None:
        """End the sessions and the directory."""
        for session in self.sessions:
            session.close()
        self.directory.close()

    def __enter__(self) -> Stage:
        """Return the stage."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def indices(self, nodes: Sequence[str]) -> tuple[int, ...]:
        """Return the members' indices, sorted."""
        return tuple(sorted(self.index[node] for node in nodes))


def matches(stage: Stage, number: int, indices: Sequence[int], members: int) -> None:
    """Check the model on the disk and the ledger's metrics against the exact sum, bit for bit.

    The first model is zeros in float64, so the mean stands there unrounded; a code is below
    2^31, so another sum would be another float64.
    """
    shape = stage.trainer.shape
    expected = summed(indices, members, number, shape)
    model = stage.directory.read_round(number)
    assert model["w"].reshape(-1).tolist() == expected.mean("w")
    assert model["b"].tolist() == [float(np.float32(v)) for v in expected.mean("b")]
    assert model["frozen"].tolist() == [0.25] * 3
    assert model["steps"] == 7
    (record,) = (
        r
        for r in stage.directory.ledger.rounds()
        if (r.round, r.phase, r.outcome) == (number, "train", "finished")
    )
    assert record.metrics["eval.examples"] == expected.examples
    assert record.metrics["eval.loss"] == expected.loss / 2**24 / expected.examples
    assert record.metrics["weight.mean"] == expected.weight / len(indices)
