"""A gateway in the hands of a test: device sessions on one side, the server's engine on the other.

Every message is bytes, as on the wire. `Gateway` has the devices, each with its journal file;
`Play` is one attempt with them, trip by trip, and keeps what each device answered. The training
is a table of numbers, so that what a device hides is known.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.clients.journal import FileJournal
from umbel.clients.session import Device, Fetch, Send, Session, Upload
from umbel.clients.update import Update
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.aggregator import ServerSide
from umbel.protocol.digest import model_digest
from umbel.protocol.entropy import os_entropy
from umbel.protocol.frames import Kind, frames
from umbel.server.invitation import start_of
from umbel.strategies.task import Site
from umbel.strategies.trainer import TrainResult
from umbel.tests.actors import (
    NOW,
    PARAMS,
    agreed,
    identity,
    membership,
    policy,
    verified,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.clients.policy import Policy
    from umbel.protocol.context import Terms
    from umbel.protocol.entropy import Entropy
    from umbel.strategies.trainer import Settings


class Numbers:
    """User code whose update and weight are given."""

    def __init__(self, weight: int = 7, scale: float = 0.01) -> None:
        """Take a weight, and the size of every delta."""
        self.weight, self.scale = weight, scale

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return {"w": np.full(40, 0.5, np.float32)}

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the one metric, a real one."""
        return {"eval.loss": 24}

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the numbers."""
        delta = np.full(40, self.scale * (site.index + 1), np.float32)
        return TrainResult({"w": delta}, self.weight, {"eval.loss": 0.5 * self.weight})

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Return a loss."""
        return TrainResult({}, 1, {"eval.loss": 0.25})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server has no examples."""
        return {}


class Gateway:
    """Devices 0 to n - 1 and the way to them."""

    def __init__(
        self,
        n: int,
        home: Path,
        *,
        own: Policy | None = None,
        trainer: Numbers | None = None,
        entropy: Entropy = os_entropy,
    ) -> None:
        """Start every device with an empty journal under `home`."""
        self.home, self._own = home, own or policy()
        self._trainer, self._entropy = trainer or Numbers(), entropy
        self.people = [identity(i) for i in range(n)]
        self.logs: list[list[str]] = [[] for _ in range(n)]
        self.uploads: dict[int, Upload] = {}
        self.fetches = 0
        self.up: list[tuple[int, pb.ToServer]] = []
        self.journals: list[FileJournal] = []
        self.sessions: list[Session] = []
        self.updates: list[Update] = []
        for index in range(n):
            self._start(index)

    def _start(self, index: int) -> None:
        journal = FileJournal(self.journal_path(index))
        site = Site(partition=index, partitions=len(self.people))
        update = Update(self._trainer, site, self._own, entropy=self._entropy)
        device = Device(
            identity=self.people[index],
            policy=self._own,
            membership=membership(),
            ca=agreed().ca,
            journal=journal,
            update=update,
            clock=lambda: NOW,
            entropy=self._entropy,
            log=self.logs[index].append,
        )
        self.journals[index:index] = [journal]
        self.sessions[index:index] = [Session(device)]
        self.updates[index:index] = [update]

    def journal_path(self, index: int) -> Path:
        """Return where a device keeps its journal."""
        return self.home / f"node-{index}" / "journal"

    def restart(self, index: int) -> None:
        """Kill a device's process, without a goodbye, and start it again."""
        self.journals.pop(index).close()
        del self.sessions[index], self.updates[index]
        self._start(index)

    def close(self) -> None:
        """Give up the journals."""
        for journal in self.journals:
            journal.close()

    def terms(self, model: bytes | None = None, **changes: Any) -> Terms:
        """Return the terms that the devices will come to by themselves for this model."""
        packed = self.model() if model is None else model
        phase = changes.get("phase", "train")
        layout = self.updates[0].layout(phase).digest
        return agreed(
            changes.pop("params", PARAMS),
            **{"model": model_digest(packed), "layout": layout, **changes},
        )

    def model(self, change: float = 0.0) -> bytes:
        """Return a model's bytes, the first one or another."""
        arrays = {name: a + np.float32(change) for name, a in self._trainer.arrays().items()}
        return bytes(self.updates[0].manifest.pack(arrays))

    def start(self, index: int, message: pb.Start, model: bytes | None = None) -> pb.ToServer:
        """Send a device its terms, and the model if it wants one; return its answer."""
        return self.ask(index, pb.ToClient(start=message), model)

    def ask(self, index: int, message: pb.ToClient, model: bytes | None = None) -> pb.ToServer:
        """Send a device a message and return its answer, empty if it has none."""
        session, answer = self.sessions[index], pb.ToServer()
        actions = session.receive(message.SerializeToString())
        while actions:
            action = actions.pop(0)
            if isinstance(action, Send):
                answer = pb.ToServer.FromString(action.data)
                self.up.append((index, answer))
            elif isinstance(action, Upload):
                self.uploads[index] = action
            elif isinstance(action, Fetch):
                self.fetches += 1
                packed = self.model() if model is None else model
                for frame in frames(Kind.MODEL, action.digest, packed):
                    actions += session.frame(frame)
        return answer


class Play:
    """One attempt of an honest engine with some of the devices; refusals end a device's part."""

    def __init__(self, gateway: Gateway, terms: Terms, who: Iterable[int] | None = None) -> None:
        """Invite nobody yet."""
        self.gateway, self.terms = gateway, terms
        self.who = list(range(len(gateway.sessions)) if who is None else who)
        self.server = ServerSide(terms)
        self.refusals: dict[int, pb.Refusal] = {}
        self.answers: dict[int, pb.ToServer] = {}

    def reasons(self) -> dict[int, pb.Reason]:
        """Return why each device that refused did."""
        return {index: refusal.reason for index, refusal in self.refusals.items()}

    def index(self, node: bytes) -> int:
        """Return the device with this id."""
        return [who.id for who in self.gateway.people].index(node)

    def id(self, index: int) -> bytes:
        """Return a device's id."""
        return self.gateway.people[index].id

    def ask(self, messages: Mapping[bytes, pb.ToClient], ctx: bytes) -> list[int]:
        """Send each device its message; return those that answered and did not refuse."""
        answered = []
        for node, message in messages.items():
            index = self.index(node)
            message.ctx = ctx
            self.answers[index] = answer = self.gateway.ask(index, message)
            if answer.HasField("refusal"):
                self.refusals[index] = answer.refusal
            elif answer.WhichOneof("body"):
                answered.append(index)
        return answered

    def keys(self, model: bytes | None = None) -> Play:
        """Trip 1 up."""
        packed = self.gateway.model() if model is None else model
        for index in self.who:
            answer = self.gateway.start(index, start_of(self.terms, len(packed)), packed)
            self.answers[index] = answer
            if answer.HasField("refusal"):
                self.refusals[index] = answer.refusal
            else:
                self.server.keys(verified(self.gateway.people[index]), answer.keys)
        return self

    def shares(self) -> Play:
        """Trips 1 down and 2 up."""
        messages = {node: pb.ToClient(roster=r) for node, r in self.server.freeze().items()}
        ders = [self.gateway.people[self.index(e.id)].certificate for e in self.server.entries]
        for message in messages.values():
            message.roster.certificates.extend(ders)
        for index in self.ask(messages, self.server.ctx0):
            self.server.shares(self.id(index), self.answers[index].shares)
        return self

    def masked(self, lost: Iterable[int] = ()) -> Play:
        """Trips 2 down and 3 up; the vectors of the lost never arrive."""
        messages = {n: pb.ToClient(inbox=box) for n, box in self.server.end_shares().items()}
        for index in self.ask(messages, self.server.ctx):
            if index in set(lost):
                continue
            self.gateway.sessions[index].delivered()
            self.server.header(self.id(index), self.answers[index].masked.header)
            whole = hashlib.sha256(self.gateway.uploads[index].buffer).digest()
            self.server.delivered(self.id(index), whole)
        return self

    def votes(self) -> Play:
        """Trips 3 down and 4 up."""
        messages = {n: pb.ToClient(survivors=c) for n, c in self.server.end_uploads().items()}
        for index in self.ask(messages, self.server.ctx):
            self.server.vote(self.id(index), self.answers[index].vote)
        return self

    def releases(self) -> Play:
        """Trips 4 down and 5 up."""
        messages = {n: pb.ToClient(votes=v) for n, v in self.server.quorum().items()}
        for index in self.ask(messages, self.server.ctx):
            self.server.release(self.id(index), self.answers[index].release)
        return self

    def to_votes(self, lost: Iterable[int] = ()) -> Play:
        """Play until everybody alive has voted."""
        return self.keys().shares().masked(lost).votes()

    def to_releases(self, lost: Iterable[int] = ()) -> Play:
        """Play to the end."""
        return self.to_votes(lost).releases()

    def close(self) -> None:
        """End the attempt for everybody."""
        body = pb.Close(reason=pb.REASON_ATTEMPT_CLOSED)
        self.ask({self.id(i): pb.ToClient(close=body) for i in self.who}, self.server.ctx)


def changed(start: pb.Start, **params: object) -> pb.Start:
    """Return terms with other parameters; None leaves one out."""
    other = pb.Start()
    other.CopyFrom(start)
    del other.params[:]
    names = {name.replace("_", "-"): value for name, value in params.items()}
    kept = [item for item in start.params if item.key not in names]
    kinds = {float: "real", int: "integer", str: "text"}
    for name, value in names.items():
        if value is not None:
            kept.append(pb.Setting(key=name, **{kinds[type(value)]: value}))  # type: ignore[arg-type]
    other.params.extend(kept)
    return other


def plain(terms: Terms) -> Terms:
    """Return the terms of the same round with the masks off."""
    return replace(terms, scheme="plain")
