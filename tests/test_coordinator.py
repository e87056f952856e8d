"""The coordinator: whom it asks, what it does when members misbehave, and what it writes."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from umbel import __version__
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import BadCertificate, PeerError, StateError
from umbel.protocol.frames import HEADER, PAYLOAD, Kind, frames
from umbel.server.cohort import select
from umbel.server.run_directory import RunDirectory
from umbel.simulation.drops import Drop
from umbel.simulation.link import Link
from umbel.tests.rounds import Fixed, Stage, Still, cast, matches, policy, settings

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from umbel.clients.session import Upload


# ---- whom it asks ----------------------------------------------------------------------------


def enough(n: int, wanted: int, stays: float) -> float:
    """Return P[Binomial(n, stays) >= wanted], term by term."""
    terms = (math.comb(n, j) * stays**j * (1 - stays) ** (n - j) for j in range(wanted, n + 1))
    return sum(terms)


def test_more_are_invited_than_needed_and_the_first_to_be_ready_form_the_roster(
    tmp_path: Path,
) -> None:
    run = settings(rounds=3, cohort=4, dropout=0.3)
    with Stage(tmp_path, 12, run) as stage:
        starts: list[str] = []

        def tap(way: str, node: str, data: bytes) -> None:
            if way == "down" and pb.ToClient.FromString(data).HasField("start"):
                starts.append(node)

        stage.link.tap = tap
        stage.play()
        least = min(n for n in range(4, 99) if enough(n, 4, 0.7) >= 0.99)
        assert least == 11
        assert len(starts) == 3 * least
        assert [len(r.roster) for r in stage.records] == [4, 4, 4]
        assert stage.outcomes() == [(n, 0, "finished", 4) for n in (1, 2, 3)]
        assert stage.told("expelled") == stage.told("refused") == stage.told("lost") == []


def test_who_is_lost_after_it_was_ready_does_not_count_as_ready(tmp_path: Path) -> None:
    run = settings(cohort=4, dropout=0.3)
    nodes = [player.node for player in cast().players[:6]]
    first = select(nodes, 6, seed=run.seed, round=1, attempt=0)[:2]
    lost = tuple(nodes.index(node) for node in first)
    with Stage(tmp_path, 6, run, drops=[Drop("keys", lost, 1)]) as stage:
        stage.play()
        others = tuple(i for i in range(6) if i not in lost)
        assert tuple(sorted(stage.indices(stage.records[0].roster))) == others
        assert stage.outcomes() == [(1, 0, "finished", 4)]


def test_the_deadline_freezes_a_roster_without_those_who_are_silent(tmp_path: Path) -> None:
    run = settings(deadline=40.0)
    with Stage(tmp_path, 5, run, drops=[Drop("start", (0, 3), 1, silent=True)]) as stage:
        stage.play()
        assert stage.link.clock.now() == 30.0
        assert stage.indices(stage.records[0].roster) == (1, 2, 4)
        matches(stage, 1, (1, 2, 4), 3)
        assert sorted(stage.told("late")) == [(0, "inviting"), (3, "inviting")]


def test_a_round_that_is_held_starts_when_it_may_with_who_came_back(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=2), drops=[Drop("start", (2,), 1)]) as stage:
        asked: list[tuple[int, int]] = []

        def ready(number: int, nodes: Collection[str], _now: float) -> bool:
            here = len(nodes)  # they are who is here, a moment later too
            asked.append((number, here))
            if asked.count((2, 4)) == 3:
                stage.link._lost.clear()
                stage.again(2)
            return number == 1 or here == 5

        object.__setattr__(stage.coordinator._around, "ready", ready)
        stage.play()
        # Before the first round, four times before the second, and before no attempt again.
        assert asked[:5] == [(1, 5), (2, 4), (2, 4), (2, 4), (2, 5)]
        assert stage.outcomes() == [(1, 0, "finished", 4), (2, 0, "finished", 5)]
        assert stage.indices(stage.records[1].survivors) == (0, 1, 2, 3, 4)


def test_a_node_that_joins_again_leaves_the_attempt_and_is_in_the_next(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=2)) as stage:
        stage.begin().until("shares")
        stage.again(2)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "finished", 4), (2, 0, "finished", 5)]
        matches(stage, 1, (0, 1, 3, 4), 5)
        assert stage.told("lost") == [(2, "sharing")]


def test_only_members_join(tmp_path: Path) -> None:
    with Stage(tmp_path, 3) as stage:
        with pytest.raises(BadCertificate):
            stage.coordinator.join(b"\x30\x82", 0.0)
        with pytest.raises(PeerError, match="no session to resume; join anew"):
            stage.coordinator.resume_session(stage.players[0].identity.certificate)
        assert stage.coordinator.nodes == ()


# ---- members that misbehave ------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"", b"\xff\xff", b"\x0a\x03abc", bytes(3 << 20)])
def test_bytes_that_are_no_message_expel_their_sender_by_name(tmp_path: Path, junk: bytes) -> None:
    with Stage(tmp_path, 5) as stage:
        stage.begin().until("shares")
        for _ in range(3):
            stage.coordinator.message(stage.players[1].node, junk, 0.0)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "finished", 4)]
        matches(stage, 1, (0, 2, 3, 4), 5)
        ((index, why),) = stage.told("expelled")
        assert index == 1
        assert why.startswith(stage.players[1].node)


def test_strangers_and_the_gone_leave_no_trace(tmp_path: Path) -> None:
    with Stage(tmp_path, 4) as stage:
        stage.begin()
        stranger = cast().players[9].node
        for data in (
            b"",
            b"\xff",
            pb.ToServer(ctx=bytes(32), ready=pb.Ready()).SerializeToString(),
        ):
            stage.coordinator.message(stranger, data, 0.0)
            stage.coordinator.frame(stranger, data, 0.0)
        stage.to_the_end()
        assert stage.outcomes() == [(1, 0, "finished", 4)]
        assert stage.events() == []


def test_a_node_whose_policy_refuses_is_named_with_code_and_key(tmp_path: Path) -> None:
    own = {3: policy(settings(), max_value_range=0.25)}
    with Stage(tmp_path, 5, own=own) as stage:
        stage.play()
        assert stage.told("refused") == [(3, "REASON_POLICY update.max_value_range")]
        assert stage.outcomes() == [(1, 0, "finished", 4)]
        matches(stage, 1, (0, 1, 2, 4), 4)
        assert [line for line in stage.log if "0.5" in line and "0.25" in line]


def test_an_abort_says_why_the_members_refused(tmp_path: Path) -> None:
    strict = {i: policy(settings(), min_members=5) for i in (0, 1)}
    with Stage(tmp_path, 4, own=strict) as stage:
        stage.play()
        (record,) = stage.records
        assert record.outcome == "aborted"
        assert record.cause == ("2 members are ready, at least 3 are needed (refused: 2 x policy)")
        assert record.cause in str(stage.coordinator.failure)
        assert "the model is that of round 0" in str(stage.coordinator.failure)


def test_a_plain_run_is_refused_by_policies_that_require_masks(tmp_path: Path) -> None:
    run = settings(scheme="plain")
    own = {i: policy(run, required=True) for i in range(2)}
    with Stage(tmp_path, 5, run, own=own) as stage:
        stage.play()
        assert sorted(stage.told("refused")) == [(i, "REASON_PLAIN_REFUSED") for i in (0, 1)]
        matches(stage, 1, (2, 3, 4), 3)


# ---- an upload that breaks off ---------------------------------------------------------------


class Cutting(Link):
    """A link that loses one member's connection at 60 % of its upload."""

    def __init__(self, drops: list[Drop] | None = None) -> None:
        """Cut nobody's connection before `victim` is set."""
        super().__init__(drops or (), Still())
        self.victim = ""
        self.certificate = b""
        self.before: list[bytes] = []
        self.after: list[bytes] = []
        self.resent = 0

    def _upload(self, node: str, upload: Upload, offset: int) -> None:
        if node != self.victim:
            super()._upload(node, upload, offset)
            return
        parts = list(frames(Kind.UPLOAD, upload.subject, upload.buffer, offset))
        if self.before:
            self.after = parts
            # What was on the way when the connection broke comes again, and is the same.
            for frame in (self.before[-1], *parts):
                self.server.frame(node, frame, self.clock.now())
            self._sessions[node].delivered()
            return
        self.before = parts[: len(parts) * 6 // 10]
        for frame in self.before:
            self.server.frame(node, frame, self.clock.now())
        assert self.server.resume_session(self.certificate) == node
        self.resent = self.server.wants(node) or 0
        self._uploads[node] = upload


def test_a_resumed_upload_repeats_its_bytes_and_the_sum_is_the_same(tmp_path: Path) -> None:
    shape = (1_300_000,)
    results = []
    for name in ("whole", "cut"):
        link = Cutting()
        with Stage(tmp_path, 3, settings(run=name), trainer=Fixed(shape), link=link) as stage:
            if name == "cut":
                link.victim = stage.players[1].node
                link.certificate = stage.players[1].identity.certificate
            stage.play()
            assert stage.outcomes() == [(1, 0, "finished", 3)]
            results.append((stage.coordinator.digest, stage.records[0].metrics))
            assert stage.events() == []
    total = 4 * (shape[0] + 16 + 16) + 8 * 6
    assert (len(link.before), len(link.after)) == (3, 2)
    assert link.resent == 3 * PAYLOAD
    sent = b"".join(bytes(f[HEADER:]) for f in (*link.before, *link.after))
    assert len(sent) == total
    assert results[0] == results[1]


def test_other_bytes_for_what_came_before_are_an_attack(tmp_path: Path) -> None:
    class Swapping(Cutting):
        def _upload(self, node: str, upload: Upload, offset: int) -> None:
            if node == self.victim and not self.before:
                first, second, *_ = frames(Kind.UPLOAD, upload.subject, upload.buffer, offset)
                self.before = [first]
                self.server.frame(node, first, 0.0)
                other = bytearray(first)
                other[HEADER] ^= 1
                self.server.frame(node, bytes(other), 0.0)
                self.server.frame(node, second, 0.0)
            else:
                Link._upload(self, node, upload, offset)

    link = Swapping()
    with Stage(tmp_path, 5, trainer=Fixed((300_000,)), link=link) as stage:
        link.victim = stage.players[4].node
        stage.play()
        assert stage.outcomes() == [(1, 0, "finished", 4)]
        assert stage.told("expelled") == [(4, f"{link.victim}: sent other bytes for 0")]


# ---- the disk --------------------------------------------------------------------------------


class Usage(NamedTuple):
    """What shutil.disk_usage returns."""

    total: int
    used: int
    free: int


@pytest.mark.parametrize("scheme", ["A", "plain"])
def test_a_full_disk_ends_in_one_error_and_leaves_the_round_before(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, 4, settings(rounds=3, scheme=scheme)) as stage:
        stage.begin()
        while stage.coordinator.round < 2:
            stage.link.step()
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9 - 4096, 4096))
        with pytest.raises(StateError, match=r"bytes free for this round, got 4096 bytes; free"):
            stage.to_the_end()
        first = stage.directory.digest(1)
    monkeypatch.undo()
    rounds = tmp_path / "runs" / "run" / "rounds"
    assert sorted(path.name for path in rounds.iterdir()) == ["000000", "000001"]
    with RunDirectory.resume(tmp_path, "run") as again:
        assert again.latest() == 1
        assert again.digest(1) == first
        assert [(r.round, r.outcome) for r in again.ledger.rounds()] == [(1, "finished")]
        again.read_round(1)


def test_the_first_model_is_on_the_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    with Stage(tmp_path, 3) as stage:
        assert stage.directory.kept() == (0,)
        assert stage.directory.digest(0) == stage.coordinator.digest
        assert stage.directory.ledger.rounds() == ()


def test_a_round_counts_the_versions_of_its_roster(tmp_path: Path) -> None:
    """One says another version than the rest, one none; nobody's own is in the record."""
    with Stage(tmp_path, 5, settings(rounds=1)) as stage:
        stage.join()
        for index, version in ((1, "0.0.9"), (3, "")):
            certificate = stage.players[index].identity.certificate
            stage.coordinator.join(certificate, stage.link.clock.now(), version)
        stage.link.run()
        record, *_ = stage.directory.ledger.rounds()
    found = {k: v for k, v in record.metrics.items() if k.startswith("version.")}
    assert found == {"version.0.0.9": 1, "version.?": 1, f"version.{__version__}": 3}


def test_devices_that_make_up_versions_do_not_grow_the_record(tmp_path: Path) -> None:
    """Each of twelve says another one: eight are told, the rest are counted together."""
    with Stage(tmp_path, 12, settings(rounds=1)) as stage:
        stage.join()
        for index, player in enumerate(stage.players):
            certificate = player.identity.certificate
            stage.coordinator.join(certificate, stage.link.clock.now(), f"9.{index:02}")
        stage.link.run()
        record, *_ = stage.directory.ledger.rounds()
    found = {k: v for k, v in record.metrics.items() if k.startswith("version.")}
    assert found == {**{f"version.9.{i:02}": 1 for i in range(8)}, "version.others": 4}


def test_a_round_of_devices_that_say_no_version_counts_none(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=1)) as stage:
        stage.join()
        for player in stage.players:
            stage.coordinator.join(player.identity.certificate, stage.link.clock.now())
        stage.link.run()
        record, *_ = stage.directory.ledger.rounds()
    assert not any(name.startswith("version.") for name in record.metrics)
