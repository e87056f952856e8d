"""Members with valid certificates against a running coordinator, and what the round comes to.

Reference list: 10, 14 to 16, 19 and 24. A crook is a real session whose messages are altered on
their way out. The round lives without it while D allows, its bytes are in no sum, and the
ledger has its name; where the sum cannot be saved, nothing is published.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import pytest

from umbel import __version__
from umbel.clients.session import Send, Session, Upload
from umbel.protocol import keys
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import Kind, frames
from umbel.simulation.drops import Drop
from umbel.tests.rounds import Stage, matches, settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from umbel.clients.session import Action, Device

CROOK = 2


class Crook(Session):
    """A session whose user changes what it says."""

    def __init__(self, device: Device, alter: Callable[[Crook, pb.ToServer], None]) -> None:
        """Take the device of an enrolled member."""
        super().__init__(device)
        self.device = device
        self._alter = alter

    def receive(self, data: bytes) -> list[Action]:
        """Answer as a session does, and alter the answer."""
        return [self._altered(action) for action in super().receive(data)]

    def frame(self, frame: bytes) -> list[Action]:
        """Take a frame of the model as a session does, and alter the answer to the last."""
        return [self._altered(action) for action in super().frame(frame)]

    def _altered(self, action: Action) -> Action:
        if not isinstance(action, Send):
            return action
        message = pb.ToServer.FromString(action.data)
        self._alter(self, message)
        return Send(message.SerializeToString())

    def sign(self, name: str, *fields: bytes) -> bytes:
        """Sign with the member's own key."""
        return keys.sign(self.device.identity.signing, name, *fields)


def _stage(home: Path, alter: Callable[[Crook, pb.ToServer], None], rounds: int = 1) -> Stage:
    stage = Stage(home, 5, settings(rounds=rounds))
    stage.sessions[CROOK] = Crook(stage.sessions[CROOK]._device, alter)
    return stage


def _events(stage: Stage, kind: str) -> list[tuple[int, str]]:
    """Return who was named, and why."""
    events = stage.directory.ledger.events()
    return [(stage.index[e.node], e.code) for e in events if e.kind == kind and e.node]


# ---- messages ------------------------------------------------------------------------------------


def _malformed(_: Crook, message: pb.ToServer) -> None:
    if message.HasField("shares"):
        message.shares.commitment = b""


def _other_context(_: Crook, message: pb.ToServer) -> None:
    if message.HasField("shares"):
        message.ctx = bytes(32)


def _ready_for_plain(_: Crook, message: pb.ToServer) -> None:
    if message.HasField("keys"):
        message.ready.SetInParent()


def _other_size(_: Crook, message: pb.ToServer) -> None:
    if message.HasField("masked"):
        message.masked.bytes += 8


def _other_hash(crook: Crook, message: pb.ToServer) -> None:
    """Sign for another vector than the one that is uploaded."""
    if message.HasField("masked"):
        head = message.masked.header
        head.y_hash = bytes(32)
        fields = (message.ctx, crook.device.identity.id, head.u2_hash, head.y_hash)
        head.signature = crook.sign("masked", *fields)


def _unsigned_vector(_: Crook, message: pb.ToServer) -> None:
    if message.HasField("masked"):
        message.masked.header.signature = bytes(64)


def _zero_key(crook: Crook, message: pb.ToServer) -> None:
    if message.HasField("keys"):
        body = message.keys
        body.mask_pk = bytes(32)
        fields = (message.ctx, crook.device.identity.id, body.mask_pk, body.seal_pk)
        body.signature = crook.sign("keys", *fields)


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (_malformed, "shares.commitment: expected 32 bytes, got 0"),
        (_other_context, "for another context"),
        (_ready_for_plain, "another scheme"),
        (_other_size, "announces a vector"),
        (_other_hash, "does not hash to what was signed"),
        (_unsigned_vector, "not signed"),
        (_zero_key, "low order"),
    ],
)
def test_a_member_that_breaks_a_rule_is_expelled_by_name_and_the_others_are_summed(
    tmp_path: Path, alter: Callable[[Crook, pb.ToServer], None], words: str
) -> None:
    with _stage(tmp_path, alter) as stage:
        stage.play()
        expelled = _events(stage, "expelled")
        assert [who for who, _ in expelled] == [CROOK]
        assert words in expelled[0][1]
        assert stage.indices(stage.records[0].survivors) == (0, 1, 3, 4)
        members = 4 if alter in {_ready_for_plain, _zero_key} else 5
        matches(stage, 1, [0, 1, 3, 4], members)


def test_a_member_that_votes_for_another_set_is_expelled_and_the_round_goes_on(
    tmp_path: Path,
) -> None:
    def alter(crook: Crook, message: pb.ToServer) -> None:
        if message.HasField("vote"):
            u = hashlib.sha256(b"\x0f").digest()
            fields = (message.ctx, message.vote.u2_hash, u)
            message.vote.signature = crook.sign("survivors", *fields)

    with _stage(tmp_path, alter) as stage:
        stage.play()
        assert _events(stage, "expelled")[0][0] == CROOK
        matches(stage, 1, range(5), 5)  # its vector was whole: it stays in the sum


def test_a_member_that_releases_wrong_shares_is_named_and_the_sum_comes_out(
    tmp_path: Path,
) -> None:
    def alter(_: Crook, message: pb.ToServer) -> None:
        for place in range(len(message.release.shares)):
            message.release.shares[place] = bytes(32)

    with _stage(tmp_path, alter) as stage:
        stage.play()
        matches(stage, 1, range(5), 5)
        assert {who for who, _ in _events(stage, "bad share")} <= {CROOK}


# ---- vectors -------------------------------------------------------------------------------------


def test_a_member_that_sends_other_bytes_again_is_expelled_by_name(tmp_path: Path) -> None:
    """Two maskings of one context, added or compared, would undo each other."""
    with Stage(tmp_path, 5) as stage:
        crook = stage.players[CROOK].node

        def tap(way: str, node: str, data: bytes) -> None:
            if way == "up" and node == crook and data[:4] == b"UMBF":
                other = bytearray(data[:128])
                struct.pack_into("<I", other, 56, 64)
                other[64] ^= 1
                stage.coordinator.frame(node, bytes(other), stage.link.clock.now())

        stage.link.tap = tap
        stage.play()
        expelled = _events(stage, "expelled")
        assert [who for who, _ in expelled] == [CROOK]
        assert "sent other bytes for 0" in expelled[0][1]
        matches(stage, 1, [0, 1, 3, 4], 5)


@pytest.mark.parametrize("where", ["head", "tail", "middle"])
def test_a_member_whose_mask_is_wrong_makes_the_round_void_and_nothing_is_published(
    tmp_path: Path, where: str
) -> None:
    """It signs what it sends, so it cannot be named: the round is void and says so."""
    with Stage(tmp_path, 5) as stage:
        genuine = stage.sessions[CROOK]

        class Wrong(Session):
            def receive(self, data: bytes) -> list[Action]:
                actions = super().receive(data)
                for action in actions:
                    if isinstance(action, Upload):
                        at = {"head": 3, "middle": -40, "tail": -1}[where]
                        action.buffer[at] ^= 0x80
                return [_resigned(self, a, actions) for a in actions]

        stage.sessions[CROOK] = Wrong(genuine._device)
        stage.play()
        record = stage.records[0]
        assert (record.outcome, len(record.survivors), record.metrics) == ("void", 5, {})
        assert "masks did not cancel" in record.cause
        assert stage.directory.latest() == 0
        assert sorted(p.name for p in (stage.directory.path / "rounds").iterdir()) == ["000000"]


def _resigned(session: Session, action: Action, actions: list[Action]) -> Action:
    """Sign for the vector as it is now."""
    vectors = [a.buffer for a in actions if isinstance(a, Upload)]
    if not isinstance(action, Send) or not vectors:
        return action
    message = pb.ToServer.FromString(action.data)
    head, own = message.masked.header, session._device.identity
    head.y_hash = hashlib.sha256(vectors[0]).digest()
    head.signature = keys.sign(
        own.signing, "masked", message.ctx, own.id, head.u2_hash, head.y_hash
    )
    return Send(message.SerializeToString())


def test_a_vector_that_arrives_after_the_survivors_froze_is_in_no_sum(tmp_path: Path) -> None:
    kept: list[Upload] = []

    class Late(Session):
        def receive(self, data: bytes) -> list[Action]:
            actions = super().receive(data)
            kept.extend(a for a in actions if isinstance(a, Upload))
            return [a for a in actions if not isinstance(a, Upload)]

    with Stage(tmp_path, 5) as stage:
        stage.sessions[CROOK] = Late(stage.sessions[CROOK]._device)
        late = stage.players[CROOK].node

        def tap(way: str, _node: str, data: bytes) -> None:
            if way == "down" and pb.ToClient.FromString(data).HasField("survivors"):
                for frame in frames(Kind.UPLOAD, kept[0].subject, kept[0].buffer):
                    stage.coordinator.frame(late, frame, stage.link.clock.now())

        stage.link.tap = tap
        stage.play()
        assert len(kept) == 1
        assert _events(stage, "expelled") == []  # being late breaks no rule
        assert stage.indices(stage.records[0].survivors) == (0, 1, 3, 4)
        matches(stage, 1, [0, 1, 3, 4], 5)


# ---- 15: losses, in short ------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["keys", "shares", "inbox", "upload", "masked", "vote"])
@pytest.mark.parametrize("lost", [1, 2])
def test_whoever_goes_away_at_a_boundary_leaves_an_exact_sum_or_a_named_abort(
    tmp_path: Path, boundary: str, lost: int
) -> None:
    gone = range(5 - lost, 5)
    with Stage(tmp_path, 5, drops=[Drop(boundary, tuple(gone), 1)]) as stage:
        stage.play()
        record = stage.records[0]
        if record.outcome == "finished":
            survivors = stage.indices(record.survivors)
            whole = range(5) if boundary in {"masked", "vote"} else range(5 - lost)
            assert set(survivors) == set(whole)
            matches(stage, 1, survivors, 5 - lost if boundary == "keys" and lost else 5)
        else:
            assert record.outcome == "aborted"
            assert lost == 2
            assert "tolerate" in record.cause
            assert stage.directory.latest() == 0


def test_whoever_reads_the_ledger_of_a_secure_run_finds_codes_and_sums_only(
    tmp_path: Path,
) -> None:
    """No weight, loss or norm of one member: only what the sum says, and who broke which rule."""
    with Stage(tmp_path, 5, drops=[Drop("masked", (4,), 1)]) as stage:
        stage.play()
        record = stage.records[0]
        version = f"version.{__version__}"  # how many of the roster say so
        sums = {"eval.examples", "eval.loss", "weight.mean", "saturation"}
        assert set(record.metrics) == {*sums, version}
        assert {e.kind for e in stage.events()} <= {"lost", "warning"}
