"""Attempts at a round: failures that go on, repeats, and sums that must not be published."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients import session
from umbel.clients.update import Update
from umbel.protocol import keys
from umbel.protocol.errors import VoidRound
from umbel.protocol.member import MemberSide
from umbel.protocol.round_table import RoundPhase
from umbel.simulation.drops import Drop
from umbel.tests.rounds import Fixed, Stage, matches, settings

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.protocol.context import Terms
    from umbel.protocol.standpoint import Identity, Standpoint, Step


# ---- attempts --------------------------------------------------------------------------------


def test_a_loss_beyond_d_before_the_vote_goes_on_with_those_who_remain(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(attempts=3), drops=[Drop("inbox", (0, 4), 1)]) as stage:
        stage.play()
        assert stage.outcomes() == [(1, 0, "aborted", 0), (1, 1, "finished", 3)]
        assert "5 members tolerate 1 losses" in stage.records[0].cause
        matches(stage, 1, (1, 2, 3), 3)


@pytest.mark.parametrize("boundary", ["masked", "survivors", "vote", "votes"])
def test_a_loss_beyond_d_after_the_vote_ends_in_would_difference(
    tmp_path: Path, boundary: str
) -> None:
    drops = [Drop(boundary, (0, 4), 1)]
    with Stage(tmp_path, 5, settings(rounds=2, attempts=3), drops=drops) as stage:
        stage.play()
        assert stage.outcomes() == [(1, 0, "aborted", 0)]
        text = str(stage.coordinator.failure)
        assert "5 members tolerate 1 losses" in text
        assert "would difference: 3 of 3 members here voted on this model" in text
        assert text.endswith("the model is that of round 0")
        assert stage.directory.kept() == (0,)


def test_members_that_have_not_voted_are_asked_next(tmp_path: Path) -> None:
    run = settings(cohort=4, attempts=2)
    with Stage(tmp_path, 8, run) as stage:
        stage.begin().until("vote")
        first = set(stage.coordinator.attempt.roster) if stage.coordinator.attempt else set()
        stage.coordinator.leave(min(first), 0.0)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "aborted", 0), (1, 1, "finished", 4)]
        assert not first & set(stage.records[1].roster)


def test_the_voted_set_may_be_summed_again_when_it_is_there_in_full(tmp_path: Path) -> None:
    with Stage(tmp_path, 4, settings(attempts=2)) as stage:
        stage.begin().until("vote")
        stage.again(2)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "aborted", 0), (1, 1, "finished", 4)]
        matches(stage, 1, range(4), 4)


# ---- a model that stays what it is -----------------------------------------------------------


class Nothing(Fixed):
    """A task that learns nothing: the model keeps its digest."""

    def train(self, arrays: Any, site: Any, settings: Any) -> Any:
        """Return zeros."""
        result = super().train(arrays, site, settings)
        for delta in result.deltas.values():
            delta[...] = 0
        return result


def test_a_round_that_moves_nothing_makes_the_next_one_an_exact_repeat(tmp_path: Path) -> None:
    run = settings(rounds=2, final_evaluation=True)
    with Stage(tmp_path, 5, run, trainer=Nothing()) as stage:
        stage.play()
        assert stage.outcomes() == [
            (1, 0, "finished", 5),
            (2, 1, "finished", 5),
            (2, 2, "finished", 5),
        ]
        assert len({r.model for r in stage.records}) == 1


def test_an_exact_repeat_bears_no_loss(tmp_path: Path) -> None:
    drops = [Drop("inbox", (3,), 2)]
    with Stage(tmp_path, 5, settings(rounds=2), drops=drops, trainer=Nothing()) as stage:
        stage.play()
        assert stage.outcomes() == [(1, 0, "finished", 5), (2, 1, "aborted", 0)]
        assert sorted(code for _, code in stage.told("refused")) == ["REASON_WOULD_DIFFERENCE"] * 4
        assert "(refused: 4 x would difference)" in str(stage.coordinator.failure)


# ---- sums that must not be published ---------------------------------------------------------


class Liar(Update):
    """An update whose first number is 2 and not 1: no mask is left, and the sum is no sum."""

    def encode(self, members: int, terms: Terms) -> bytearray:
        """Return the message with a wrong first word in section 64."""
        vector = super().encode(members, terms)
        vector[self.layout(terms.phase).split] = 2
        return vector


@pytest.mark.parametrize("scheme", ["A", "plain"])
def test_a_wrong_message_voids_a_secure_round_and_is_named_in_a_plain_one(
    tmp_path: Path, scheme: str
) -> None:
    run = settings(rounds=3, scheme=scheme)
    with Stage(tmp_path, 5, run, trainer=Fixed()) as stage:  # whose updates no other stage uses
        stage.sessions[2]._device.update.__class__ = Liar
        before = stage.coordinator.digest
        stage.play()
        if scheme == "plain":
            assert [o[2:] for o in stage.outcomes()] == [("finished", 4)] * 3
            # What is wrong is written down; the values, which are one client's, are not.
            name = stage.players[2].node
            assert stage.told("expelled") == [(2, f"{name}: the two ones")] * 3
            return
        assert stage.outcomes() == [(1, 0, "void", 0)]
        record = stage.directory.ledger.rounds()[0]
        assert record.cause == "masks did not cancel: the ones do not sum to 5"
        assert record.metrics == {}
        assert record.model == before.hex() == stage.directory.digest(0).hex()
        assert stage.coordinator.digest == before
        assert stage.directory.kept() == (0,)
        text = "round 1 void: masks did not cancel: the ones do not sum to 5; the model is that of"
        assert str(stage.coordinator.failure).startswith(text)
        assert isinstance(stage.coordinator.failure, VoidRound)


class Cheat(MemberSide):
    """A member that commits to another seed than the one whose shares it deals."""

    def _deal(self) -> Step:
        step = super()._deal()
        body = step.message.shares
        body.commitment = sha256(b"another seed").digest()
        hashes = b"".join(b.mask_share_hash + b.seed_share_hash for b in body.blobs)
        sealed = sha256(b"".join(b.blob for b in body.blobs)).digest()
        fields = (self.ctx, self._identity.id, body.commitment, hashes, sealed)
        body.signature = keys.sign(self._identity.signing, "shares", *fields)
        return step


def test_two_voids_by_one_member_and_it_is_asked_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, 8, settings(rounds=2, cohort=4, attempts=3)) as stage:
        stage.begin()
        assert stage.coordinator.attempt is not None
        first = sorted(stage.index[node] for node in stage.coordinator.attempt.plan.cohort)
        culprit = stage.players[first[0]].identity.id

        def member(identity: Identity, terms: Terms, at: Standpoint) -> MemberSide:
            return (Cheat if identity.id == culprit else MemberSide)(identity, terms, at)

        monkeypatch.setattr(session, "MemberSide", member)
        stage.to_the_end()
        assert stage.outcomes() == [
            (1, 0, "void", 0), (1, 1, "void", 0), (1, 2, "finished", 4), (2, 0, "finished", 4),
        ]  # fmt: skip
        void, repeat, *finished = stage.directory.ledger.rounds()
        what = f"member {culprit.hex()} dealt shares of another seed than its own"
        assert void.cause == repeat.cause == what
        assert set(void.roster) == set(repeat.roster)  # the repeat was exact
        assert not set(void.roster) & set(finished[0].roster)  # and then those who had not voted
        assert all(culprit.hex() not in record.roster for record in finished)
        events = stage.events()
        assert [(e.kind, e.attempt, e.node) for e in events] == [
            ("void", 0, culprit.hex()), ("void", 1, culprit.hex()),
        ]  # fmt: skip


# ---- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["A", "plain"])
def test_the_ledger_times_every_phase(tmp_path: Path, scheme: str) -> None:
    drops = [Drop("start", (0,), 1, silent=True), Drop("upload", (1,), 1, silent=True)]
    with Stage(
        tmp_path, 7, settings(scheme=scheme, deadline=132.0, trip=8.0), drops=drops
    ) as stage:
        stage.play()
        assert stage.outcomes() == [(1, 0, "finished", 5)]
        secure = ["sharing", "voting", "unmasking"] if scheme == "A" else []
        seconds = stage.directory.ledger.rounds()[0].seconds
        assert sorted(seconds) == sorted(["inviting", "summing", "summed", *secure])
        training = 100.0 if scheme == "A" else 124.0  # what one or four trips leave
        assert seconds["inviting"] == training
        # Member 1 is the last in the order of uploads, or else its slot is taken from it.
        assert seconds["summing"] in {2.0, 8.0}
        assert sum(seconds.values()) == training + seconds["summing"]


def test_late_frames_and_votes_change_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, 5) as stage:
        stage.begin().until("vote")
        attempt = stage.coordinator.attempt
        assert attempt is not None
        assert attempt.phase is RoundPhase.VOTING
        node = stage.players[0].node
        assert attempt.wants(node) is None
        stage.coordinator.frame(node, bytes(100), 0.0)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "finished", 5)]
        assert stage.events() == []
        matches(stage, 1, range(5), 5)
