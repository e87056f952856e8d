"""A gateway made by hand: it takes devices through scheme A with nothing but encoded bytes.

It knows no class of the server: rosters, inboxes, survivor sets and votes are put together here
from what the devices sent, on the complete graph (3 to 32 members), so that a test can send
something else at any step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients.journal import Journal, MemoryJournal
from umbel.clients.policy import Policy
from umbel.clients.session import Action, Device, Fetch, Send, Session, Upload
from umbel.clients.update import Update
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.canonical import settings_to_pb
from umbel.protocol.certificates import Authority
from umbel.protocol.digest import model_digest
from umbel.protocol.entropy import os_entropy
from umbel.protocol.frames import Kind, frames
from umbel.protocol.manifest import Manifest
from umbel.protocol.plan import Params
from umbel.protocol.standpoint import Identity
from umbel.strategies.task import Site
from umbel.strategies.trainer import TrainResult
from umbel.tests.actors import membership

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from umbel.protocol.journal import Record
    from umbel.strategies.trainer import Settings, Trainer

FEDERATION = "by-hand"
NOW = datetime(2030, 1, 7, 12, 0, tzinfo=UTC)
PARAMS = Params(value_range=0.5, weight_cap=40, min_members=3, min_survivors=3)
POLICY = Policy(federation=FEDERATION, min_members=3, min_survivors=3)
METRICS = {"train": {"eval.examples": 0, "eval.loss": 24}, "evaluate": {"eval.examples": 0}}


class Stub:
    """User code that returns what it is told to, and counts how often it trains."""

    def __init__(self) -> None:
        """Train well."""
        self.trained = self.evaluated = 0
        self.result: Callable[[], TrainResult] = lambda: TrainResult(
            {"w": np.full((2, 3), 0.25), "b": np.full(4, -0.25, np.float32)},
            7,
            {"eval.examples": 7, "eval.loss": 1.5},
        )

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model: 48 bytes of float64, 16 of float32."""
        return {"w": np.ones((2, 3)), "b": np.zeros(4, np.float32)}

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metrics with their fractional bits."""
        return METRICS[phase]

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return what the test wants."""
        self.trained += 1
        return self.result()

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Count seven examples."""
        self.evaluated += 1
        return TrainResult({}, 1, {"eval.examples": 7})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server has no examples."""
        return {}


class Recording(MemoryJournal):
    """A journal in memory that keeps its records in order."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.written: list[Record] = []

    def write(self, record: Record) -> None:
        """Write and keep."""
        super().write(record)
        self.written.append(record)


@cache
def authority() -> Authority:
    """Return the CA."""
    return Authority.create(FEDERATION, NOW)


@cache
def identity(index: int) -> Identity:
    """Enrol a member; the order of the ids is not that of the indices."""
    signing = Ed25519PrivateKey.generate()
    node = hashlib.sha256(b"by hand %d" % index).digest()[:16]
    leaf = authority().issue_signing(signing.public_key(), node, f"site-{index}", NOW)
    return Identity(id=node, certificate=leaf.public_bytes(Encoding.DER), signing=signing)


@dataclass
class Place:
    """One device with everything that it stands on."""

    index: int
    policy: Policy = POLICY
    trainer: Trainer = field(default_factory=Stub)
    journal: Journal = field(default_factory=Recording)
    app: bytes = bytes(32)
    log: list[str] = field(default_factory=list)
    now: datetime = NOW

    def __post_init__(self) -> None:
        """Open the session."""
        root = authority().certificate
        site = Site(partition=self.index, partitions=64)
        self.session = Session(
            Device(
                identity=identity(self.index),
                policy=self.policy,
                membership=membership(authority(), NOW),
                ca=hashlib.sha256(root.public_bytes(Encoding.DER)).digest(),
                app=self.app,
                journal=self.journal,
                update=Update(self.trainer, site, self.policy, entropy=os_entropy, seed=0),
                clock=lambda: self.now,
                passed=self.passed,
                entropy=os_entropy,
                log=self.log.append,
            )
        )

    def passed(self) -> float:
        """Return monotonic seconds."""
        return (self.now - NOW).total_seconds()

    def wait(self, hours: float) -> None:
        """Let the clock go on."""
        self.now += timedelta(hours=hours)


def model_of(trainer: Trainer) -> bytes:
    """Return the packed initial model."""
    arrays = trainer.arrays()
    return bytes(Manifest.of(arrays).pack(arrays))


def start(model: bytes, **changes: Any) -> pb.Start:
    """Return the terms of a training attempt; `params` is changed key by key."""
    table = {**PARAMS.table(), **changes.pop("params", {})}
    fields: dict[str, Any] = {
        "protocol": 1,
        "scheme": "A",
        "run": "run",
        "round": 1,
        "phase": pb.PHASE_TRAIN,
        "attempt": 0,
        "config": settings_to_pb({"server-round": 1}),
        "params": settings_to_pb({k: v for k, v in table.items() if v is not None}),
        "model_digest": model_digest(model),
        "model_bytes": len(model),
    }
    return pb.Start(**(fields | changes))


def sent(actions: Sequence[Action]) -> pb.ToServer:
    """Return the one message among the actions."""
    (message,) = [a.data for a in actions if isinstance(a, Send)]
    return pb.ToServer.FromString(message)


def refusal(actions: Sequence[Action]) -> tuple[str, str]:
    """Return code and key of a refusal, which is all that leaves."""
    (action,) = actions
    message = sent([action])
    assert message.WhichOneof("body") == "refusal"
    return pb.Reason.Name(message.refusal.reason), message.refusal.key


class Gateway:
    """Takes `places` through one attempt."""

    def __init__(self, places: Sequence[Place], **terms: Any) -> None:
        """Remember the devices, in the order of the roster, and the terms."""
        self.places = list(places)
        self.model = terms.pop("model", None) or model_of(places[0].trainer)
        self.terms = start(self.model, **terms)
        self.ctx = b""
        self.keys: list[pb.Keys] = []
        self.shares: list[pb.Shares] = []
        self.headers: list[pb.MaskedHeader] = []
        self.vectors: list[bytes] = []
        self.votes: list[pb.Vote] = []

    @property
    def n(self) -> int:
        """Members of the roster."""
        return len(self.places)

    def others(self, place: int) -> list[int]:
        """Return N(place) on the complete graph: the next, the next but one, ..."""
        return [(place + step) % self.n for step in range(1, self.n)]

    def begin(self, place: Place) -> list[Action]:
        """Send the terms, and the model if it is asked for; return what came of it."""
        actions = place.session.receive(pb.ToClient(start=self.terms).SerializeToString())
        if not any(isinstance(action, Fetch) for action in actions):
            return actions
        (fetch,) = actions
        assert isinstance(fetch, Fetch)
        for frame in frames(Kind.MODEL, fetch.digest, self.model):
            actions = place.session.frame(frame)
        return actions

    def give(self, place: int, body: dict[str, Any], ctx: bytes | None = None) -> list[Action]:
        """Send one body under the context of the attempt."""
        message = pb.ToClient(ctx=self.ctx if ctx is None else ctx, **body)
        return self.places[place].session.receive(message.SerializeToString())

    # -- the trips, each from everybody ----------------------------------------------------

    def gather_keys(self) -> None:
        """Trip 1 up."""
        for place in self.places:
            message = sent(self.begin(place))
            assert message.WhichOneof("body") == "keys", message
            self.ctx = message.ctx
            self.keys.append(message.keys)

    def roster(self, place: int) -> pb.Roster:
        """Trip 1 down."""
        who = [p.session._device.identity for p in self.places]
        entries = b"".join(
            i.id + i.fingerprint + k.mask_pk + k.seal_pk
            for i, k in zip(who, self.keys, strict=True)
        )
        return pb.Roster(
            entries=entries,
            keys_signatures=[self.keys[v].signature for v in self.others(place)],
            certificates=[i.certificate for i in who],
            members=self.n,
        )

    def gather_shares(self) -> None:
        """Trip 2 up."""
        self.gather_keys()
        answers = [sent(self.give(i, {"roster": self.roster(i)})) for i in range(self.n)]
        self.shares = [answer.shares for answer in answers]
        (self.ctx,) = {answer.ctx for answer in answers}

    def inbox(self, place: int, u2: Sequence[int] | None = None) -> pb.Inbox:
        """Trip 2 down; a holder's blob stands at its place in the owner's N."""
        among = range(self.n) if u2 is None else u2
        blobs = [
            self.shares[v].blobs[self.others(v).index(place)]
            for v in self.others(place)
            if v in among
        ]
        return pb.Inbox(u2=bits(among, self.n), blobs=blobs)

    def gather_vectors(self) -> None:
        """Trip 3 up; every vector counts as delivered."""
        self.gather_shares()
        for i, place in enumerate(self.places):
            message, upload = self.give(i, {"inbox": self.inbox(i)})
            assert isinstance(upload, Upload)
            self.headers.append(sent([message]).masked.header)
            self.vectors.append(bytes(upload.buffer))
            place.session.delivered()

    def survivors(self, place: int, u: Sequence[int] | None = None) -> pb.Survivors:
        """Trip 3 down."""
        among = range(self.n) if u is None else u
        masked = [self.headers[v] for v in self.others(place) if v in among]
        return pb.Survivors(u=bits(among, self.n), masked=masked)

    def gather_votes(self) -> None:
        """Trip 4 up."""
        self.gather_vectors()
        for i in range(self.n):
            self.votes.append(sent(self.give(i, {"survivors": self.survivors(i)})).vote)

    def counted(self, among: Sequence[int] | None = None) -> pb.Votes:
        """Trip 4 down."""
        places = range(self.n) if among is None else among
        votes = [pb.CountedVote(position=i, signature=self.votes[i].signature) for i in places]
        return pb.Votes(votes=votes)

    def finish(self) -> list[pb.Release]:
        """Trip 5 up."""
        self.gather_votes()
        return [sent(self.give(i, {"votes": self.counted()})).release for i in range(self.n)]

    def next(self, **terms: Any) -> Gateway:
        """Return the next attempt with the same devices."""
        fields = {"attempt": self.terms.attempt + 1, "round": self.terms.round} | terms
        return Gateway(self.places, model=fields.pop("model", self.model), **fields)


def bits(places: Sequence[int], n: int) -> bytes:
    """Return a bitmap: place i in bit i mod 8, lowest first, of byte i // 8."""
    return sum(1 << place for place in places).to_bytes((n + 7) // 8, "little")


def devices(count: int, **changes: Any) -> list[Place]:
    """Return devices; `changes` are those of the first, and of its policy with `policy_`."""
    own = {k.removeprefix("policy_"): v for k, v in changes.items() if k.startswith("policy_")}
    rest = {k: v for k, v in changes.items() if not k.startswith("policy_")}
    first = Place(0, policy=replace(POLICY, **own), **rest)
    return [first, *(Place(i) for i in range(1, count))]


def written(place: Place) -> list[Record]:
    """Return what a device's journal in memory holds, in order."""
    assert isinstance(place.journal, Recording)
    return place.journal.written
