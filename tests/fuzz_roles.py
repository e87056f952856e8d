"""Whole attempts with one message spoilt: a server that lies to a device, a device to the server.

An attempt of five is played once, honestly, with secrets from a seed, and every message is kept.
Then it is played again and again up to some message, which is spoilt; what was said honestly comes
after it. A device may answer with a refusal or say that its gateway is of no use; a server raises
nothing at all, ends within its deadlines, and whatever sum it opens is the exact one of its
survivors.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.clients.journal import MemoryJournal
from umbel.clients.session import Device, Fetch, Send, Session, Upload
from umbel.clients.update import Update
from umbel.protocol import messages_pb2 as pb
from umbel.protocol import wire
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import PeerError, RoundFailed
from umbel.protocol.fields import pack
from umbel.protocol.frames import Kind, frames
from umbel.protocol.reopening import Reopenable
from umbel.protocol.round_table import OVER, RoundPhase
from umbel.protocol.transcript import Transcript
from umbel.server.attempt import Attempt
from umbel.server.core.world import World
from umbel.server.deadlines import times
from umbel.server.embedded import Embedded
from umbel.server.firewall import Firewall
from umbel.server.invitation import Joined, Plan, start_of
from umbel.server.open_round import TRANSCRIPT, OpenRounds
from umbel.server.stepping import StepOrder
from umbel.strategies.server_rules import FedAvg
from umbel.strategies.task import Site
from umbel.tests.actors import (
    NOW,
    PARAMS,
    agreed,
    identity,
    membership,
    policy,
    verified,
)
from umbel.tests.fuzz_files import folder
from umbel.tests.fuzzing import Parser
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from umbel.protocol.context import Terms
    from umbel.protocol.entropy import Entropy
    from umbel.protocol.layout import MessageLayout
    from umbel.protocol.membership import Membership

MEMBERS = 5
FRAME, MESSAGE = "frame", "message"


def seeded(seed: int) -> Entropy:
    """Return bytes that are the same each time: only so can an attempt be played again."""
    count = 0

    def fill(buffer: Any) -> None:
        nonlocal count
        view = memoryview(buffer).cast("B")
        for at in range(0, len(view), 32):
            count += 1
            part = sha256(b"%d %d" % (seed, count)).digest()[: len(view) - at]
            view[at : at + len(part)] = part

    return fill


@cache
def trusted() -> Membership:
    """Return what verifies members; a certificate is verified once."""
    return membership()


class Bare(Numbers):
    """User code without a model of its own, as a wrapped Flower app is."""

    def arrays(self, seed: int = 0) -> dict[str, Any]:
        """Return nothing: the run's manifest says what there is."""
        return {}


def session(index: int, code: Numbers | None = None, most: int = 1 << 20) -> Session:
    """Return a device that has been through nothing yet, and takes models of so many bytes."""
    own, entropy = policy(required=False, model_bytes=most), seeded(index)
    update = Update(
        code or Numbers(), Site(partition=index, partitions=MEMBERS), own, entropy=entropy
    )
    device = Device(
        identity=identity(index), policy=own, membership=trusted(), ca=agreed().ca,
        journal=MemoryJournal(), update=update, clock=lambda: NOW, entropy=entropy,
        log=lambda _line: None,
    )  # fmt: skip
    return Session(device)


@dataclass
class Played:
    """What was said in an honest attempt."""

    terms: Terms
    layout: MessageLayout
    model: bytes
    down: list[bytes] = field(default_factory=list)
    """To device 0, in order."""
    up: list[tuple[int, str, bytes]] = field(default_factory=list)
    """From whom, message or frame, and its bytes."""
    transcript: bytes = b""
    """What a successor would find on the disk."""

    def attempt(self, post: Callable[[str, pb.ToClient], None] = lambda _n, _m: None) -> Attempt:
        """Return a server at the beginning."""
        people = [identity(i) for i in range(MEMBERS)]
        scheme = self.terms.scheme
        plan = Plan(
            terms=self.terms, layout=self.layout, needed=MEMBERS, times=times(600.0, None, scheme),
            cohort={who.id.hex(): Joined(verified(who), who.certificate) for who in people},
            max_norm=1.0,
        )  # fmt: skip
        firewall = Firewall(self.layout.manifest, max_norm=1.0, weight_cap=PARAMS.weight_cap)
        core = Embedded(World(MEMBERS), firewall)
        core.put(self.layout.manifest, self.terms.model, bytearray(self.model))
        return Attempt(
            plan, intake=core.intake, post=post, note=lambda *_: None,
            knows=lambda _node, _print: False, keep=self._keep, now=0.0,
        )  # fmt: skip

    def _keep(self, plan: Plan, server: Reopenable, _: object) -> None:
        by_id = {joined.member.id: joined.der for joined in plan.cohort.values()}
        self.transcript = server.transcript(by_id.__getitem__).pack()


@cache
def played(scheme: str) -> Played:
    """Play an attempt among honest parties."""
    first = session(0)._device.update
    model = bytes(first.manifest.pack(Numbers().arrays()))
    layout = first.layout("train")
    terms = agreed(scheme=scheme, model=model_digest(model), layout=layout.digest)
    found = Played(terms, layout.message, model)
    queue: deque[tuple[str, pb.ToClient]] = deque()
    attempt = found.attempt(lambda node, message: queue.append((node, message)))
    sessions = {identity(i).id.hex(): session(i) for i in range(MEMBERS)}
    index = {node: i for i, node in enumerate(sessions)}
    start = start_of(terms, len(model), first.manifest.to_json())
    queue.extend((node, pb.ToClient(start=start)) for node in sessions)
    while queue:
        node, message = queue.popleft()
        data = message.SerializeToString()
        if not index[node]:
            found.down.append(data)
        for kind, bytes_up in told(sessions[node], data, model):
            found.up.append((index[node], kind, bytes_up))
            heard(attempt, node, kind, bytes_up)
    assert attempt.phase is RoundPhase.SUMMED, attempt.cause
    exact(attempt)
    attempt.committed(0.0)
    found.down.append(pb.ToClient(goodbye=pb.Goodbye()).SerializeToString())
    return found


def told(device: Session, data: bytes, model: bytes) -> list[tuple[str, bytes]]:
    """Give a device a message, and the model if it asks for one; return what it sends."""
    answers: list[tuple[str, bytes]] = []
    actions = deque(device.receive(data))
    while actions:
        action = actions.popleft()
        if isinstance(action, Send):
            answers.append((MESSAGE, action.data))
        elif isinstance(action, Upload):
            answers += [(FRAME, f) for f in frames(Kind.UPLOAD, action.subject, action.buffer)]
            device.delivered()
        elif isinstance(action, Fetch):
            for frame in frames(Kind.MODEL, action.digest, model):
                actions.extend(device.frame(frame))
    return answers


def heard(attempt: Attempt, node: str, kind: str, data: bytes) -> None:
    """Give a server what came from a device, as the coordinator does."""
    if kind == FRAME:
        attempt.wants(node)
        attempt.frame(node, data, 0.0)
        return
    try:
        message = wire.parse_to_server(data, node)
    except PeerError as error:
        attempt.expel(node, str(error))
        attempt.tick(0.0)
    else:
        attempt.message(node, message, 0.0)


def exact(attempt: Attempt) -> None:
    """Check that a sum is that of its survivors: device i moves every value by (i + 1) / 100."""
    sums, codec = attempt.sums, attempt.codec
    assert sums is not None
    assert codec is not None
    moves = {identity(i).id.hex(): 0.01 * (i + 1) for i in range(MEMBERS)}
    mean = sum(moves[node] for node in attempt.survivors) / len(attempt.survivors)
    assert sums.weight == 7 * len(attempt.survivors)
    order = StepOrder(FedAvg(), 1, attempt.plan.layout, codec, len(attempt.survivors), sums.weight)
    manifest = attempt.plan.layout.manifest
    moved = manifest.views(attempt.opened().step(order).packed)
    for name, before in Numbers().arrays().items():
        assert np.abs(moved[name] - before - mean).max() < 1e-6


# ---- a lying server ------------------------------------------------------------------------


def _lied_to(scheme: str, code: type[Numbers] = Numbers) -> Callable[[bytes], tuple[int, ...]]:
    def parse(data: bytes) -> tuple[int, ...]:
        """Play device 0 up to a message, spoil that, and go on with what was meant."""
        known = played(scheme)
        at = data[0] % len(known.down) if data else 0
        device, counts = session(0, code()), []
        try:
            for message in (*known.down[:at], data[1:], *known.down[at : at + 2]):
                counts.append(len(told(device, message, known.model)))
        finally:
            device.close()
        return tuple(counts)

    return parse


def _down(scheme: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        """Return each message with its place; the first ones more often: they cost less."""
        down = played(scheme).down
        weights = [12, 6, *[2] * len(down)]
        return [bytes([at]) + m for at, m in enumerate(down) for _ in range(weights[at])]

    return make


def _starts() -> list[bytes]:
    return [b"\x00" + played("A").down[0]]


# ---- a disk that lies to a successor -------------------------------------------------------


def _reopened(data: bytes) -> int:
    """Take an attempt up from its transcript, and count the votes that were cast in it."""
    known = played("A")
    server = Reopenable(known.terms)
    kept = Transcript.unpack(data)
    server.reopen(kept, lambda der: trusted().verifier.member(der, NOW))
    for index, kind, said in known.up:
        body = pb.ToServer.FromString(said) if kind == MESSAGE else pb.ToServer()
        if body.HasField("vote"):
            server.vote(identity(index).id, body.vote)
    server.quorum()
    for index, kind, said in known.up:
        body = pb.ToServer.FromString(said) if kind == MESSAGE else pb.ToServer()
        if body.HasField("release"):
            server.release(identity(index).id, body.release)
    return len(server.finish())


def _transcripts() -> list[bytes]:
    kept = Transcript.unpack(played("A").transcript)
    bare = {place: pb.Shares(commitment=s.commitment) for place, s in kept.shares.items()}
    empty = dict.fromkeys(kept.headers, pb.MaskedHeader())
    others = (kept, replace(kept, shares=bare), replace(kept, headers=empty))
    return [other.pack()[:-32] for other in others]


OPEN = "000001.train.0.open"


def _open_rounds(data: bytes) -> int:
    """Look for an open attempt where a transcript holds these bytes."""
    rounds = folder() / "open"
    (rounds / OPEN).mkdir(parents=True, exist_ok=True)
    (rounds / OPEN / TRANSCRIPT).write_bytes(data)
    found = OpenRounds(rounds).kept()
    return 0 if found is None else len(found.members)


def _open_bodies() -> list[bytes]:
    survivors = b"".join(identity(i).id for i in range(MEMBERS))
    packed = played("A").transcript
    return [pack(b"umbel/open-round/1", OPEN.encode(), bytes(32), survivors, packed)]


# ---- a lying device ------------------------------------------------------------------------


def _lied(scheme: str) -> Callable[[bytes], str]:
    def parse(data: bytes) -> str:
        """Play the server up to a message, spoil that, and go on with what was meant."""
        known = played(scheme)
        at = data[0] % len(known.up) if data else 0
        attempt = known.attempt()
        for place, (index, kind, honest) in enumerate(known.up):
            node = identity(index).id.hex()
            if place == at:
                heard(attempt, node, kind, data[1:])
            heard(attempt, node, kind, honest)
            if attempt.phase in OVER:
                break
        for _ in RoundPhase:
            if attempt.phase not in OVER | {RoundPhase.SUMMED}:
                attempt.tick(attempt.due + 1.0)
        if attempt.phase is not RoundPhase.SUMMED:
            assert attempt.phase in OVER
        elif len(attempt.roster) == MEMBERS:  # what is played again was coded for so many
            exact(attempt)
        return attempt.phase.value

    return parse


def _ups(scheme: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        return [bytes([at]) + data for at, (_, _, data) in enumerate(played(scheme).up)]

    return make


ROLES = (
    Parser(
        name="session.receive", form="placed", errors=(PeerError,), make=_down("A"),
        parse=_lied_to("A"),
    ),
    Parser(
        name="session.receive, plain", form="placed", errors=(PeerError,), make=_down("plain"),
        parse=_lied_to("plain"),
    ),
    Parser(
        name="session.receive, no model", form="placed", errors=(PeerError,), make=_starts,
        parse=_lied_to("A", Bare),
    ),
    Parser(
        name="transcript.unpack, reopen", errors=(PeerError, RoundFailed), parse=_reopened,
        make=_transcripts,
        seal=lambda body: body + sha256(body).digest(),
    ),
    Parser(
        name="open_round.kept", errors=(), parse=_open_rounds, make=_open_bodies,
        seal=lambda body: body + sha256(body).digest(),
    ),
    Parser(
        name="attempt.message", form="placed", errors=(), make=_ups("A"), parse=_lied("A"),
    ),
    Parser(
        name="attempt.message, plain", form="placed", errors=(), make=_ups("plain"),
        parse=_lied("plain"),
    ),
)  # fmt: skip
