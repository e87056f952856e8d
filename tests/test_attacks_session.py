"""A lying gateway against device sessions: terms, downgrades, restarts, repeats, differences.

Reference list: 2, 6, 8, 14, 19, 21 and 21a. The devices are whole sessions with policies and
journal files; the gateway sends bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from umbel.clients.journal import FileJournal
from umbel.protocol import journal as records
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.server.invitation import start_of
from umbel.tests.actors import PARAMS, identity, policy
from umbel.tests.gateway import Gateway, Play, changed, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from umbel.clients.policy import Policy
    from umbel.protocol.plan import Params


@pytest.fixture
def open_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Return a maker of gateways, closed at the end."""
    opened: list[Gateway] = []

    def make(n: int = 5, own: Policy | None = None) -> Gateway:
        opened.append(Gateway(n, tmp_path / str(len(opened)), own=own))
        return opened[-1]

    yield make
    for gateway in opened:
        gateway.close()


# ---- 6: terms outside the policy -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "reason", "key"),
    [
        ({"alpha": 0.05}, pb.REASON_POLICY, "secure.corrupt"),
        ({"a_min": 1}, pb.REASON_POLICY, "secure.corrupt_min"),
        ({"delta": 0.2}, pb.REASON_POLICY, "secure.dropout"),
        ({"min_members": 3}, pb.REASON_POLICY, "secure.min_members"),
        ({"min_survivors": 3}, pb.REASON_POLICY, "secure.min_survivors"),
        ({"weight_cap": 41}, pb.REASON_POLICY, "update.max_weight"),
        ({"value_range": 0.75}, pb.REASON_POLICY, "update.max_value_range"),
        ({"ring_bits": 64}, pb.REASON_POLICY, "params.ring-bits"),
        ({"quorum": "all"}, pb.REASON_POLICY, "params.quorum"),
        ({"quorum": None}, pb.REASON_POLICY, "params.quorum"),
        ({"threshold": 1}, pb.REASON_POLICY, "params.threshold"),
        ({"min_members": 4.0}, pb.REASON_POLICY, "params.min-members"),
    ],
)
def test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only(
    open_gateway: Callable[..., Gateway],
    params: Mapping[str, object],
    reason: pb.Reason,
    key: str,
) -> None:
    own = policy(corrupt_min=2, min_members=4, min_survivors=4, max_weight=40, max_value_range=0.5)
    gateway = open_gateway(1, own)
    allowed: Params = replace(PARAMS, a_min=2, min_members=4, min_survivors=4)
    honest = start_of(gateway.terms(params=allowed), len(gateway.model()))
    answer = gateway.start(0, changed(honest, **params))
    assert (answer.refusal.reason, answer.refusal.key) == (reason, key)
    assert gateway.fetches == 0
    assert gateway.journal_path(0).read_bytes() == b""
    # The honest terms would have been taken.
    assert gateway.start(0, honest).HasField("keys")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"scheme": "B"}, pb.REASON_SCHEME),
        ({"scheme": ""}, pb.REASON_SCHEME),
        ({"scheme": "plain"}, pb.REASON_PLAIN_REFUSED),
        ({"protocol": 0}, pb.REASON_PROTOCOL_TOO_OLD),
        ({"protocol": 2}, pb.REASON_PROTOCOL_TOO_OLD),
        ({"model_bytes": 10**10}, pb.REASON_LIMITS),
        ({"model_bytes": 8}, pb.REASON_CTX_DIFFERS),
    ],
)
def test_a_server_that_asks_for_a_weaker_mode_or_another_model_is_refused(
    open_gateway: Callable[..., Gateway], fields: Mapping[str, object], reason: pb.Reason
) -> None:
    gateway = open_gateway(1)
    start = start_of(gateway.terms(), len(gateway.model()))
    for name, value in fields.items():
        setattr(start, name, value)
    answer = gateway.start(0, start)
    assert answer.refusal.reason == reason
    assert gateway.fetches == 0
    assert not gateway.uploads


def test_a_server_that_opens_more_rounds_a_day_than_allowed_is_refused(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(1, policy(rounds_per_day=2))
    for attempt, expected in ((0, "keys"), (1, "keys"), (2, "refusal")):
        answer = gateway.start(0, start_of(gateway.terms(attempt=attempt), len(gateway.model())))
        assert answer.WhichOneof("body") == expected
    assert answer.refusal.key == "limits.rounds_per_day"


# ---- 19: downgrades ------------------------------------------------------------------------------


def test_a_server_that_sends_a_plain_roster_in_a_secure_attempt_gets_no_vector(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).keys()
    play.ask({play.id(0): pb.ToClient(roster=pb.Roster(members=5))}, play.server.ctx0)
    assert play.reasons() == {0: pb.REASON_ROSTER}
    assert not gateway.uploads


def test_a_server_that_sends_the_plain_terms_after_the_secure_ones_gets_no_vector(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).keys()
    weaker = plain(gateway.terms(attempt=1))
    answer = gateway.start(0, start_of(weaker, len(gateway.model())))
    assert answer.refusal.reason == pb.REASON_PLAIN_REFUSED
    play.ask({play.id(0): pb.ToClient(roster=pb.Roster(members=5))}, weaker.ctx0())
    play.ask({play.id(0): pb.ToClient(roster=pb.Roster(members=5))}, play.server.ctx0)
    assert not gateway.uploads


# ---- 8: other models -----------------------------------------------------------------------------


def test_a_server_that_sends_another_model_than_it_announced_gets_no_keys(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(1)
    announced = start_of(gateway.terms(), len(gateway.model()))
    answer = gateway.start(0, announced, gateway.model(0.25))
    assert answer.refusal.reason == pb.REASON_CTX_DIFFERS
    assert gateway.journal_path(0).read_bytes() == b""


def test_a_server_that_gives_one_client_another_model_gets_no_shares_from_anybody(
    open_gateway: Callable[..., Gateway],
) -> None:
    """It tells each client the digest of the model that it sends: each believes its own."""
    gateway = open_gateway()
    play = Play(gateway, gateway.terms(), range(4)).keys()
    other = gateway.model(0.25)
    lured = Play(gateway, gateway.terms(other), [4]).keys(other)
    play.server._gathered |= lured.server._gathered
    play.shares()
    # The one who was lured is in another context altogether; the others see its signature.
    assert play.reasons() == dict.fromkeys(range(4), pb.REASON_ROSTER) | {4: pb.REASON_CTX_DIFFERS}


# ---- 2: twice, and after a restart ---------------------------------------------------------------


def test_a_server_that_asks_for_a_second_vote_ends_the_attempt_on_the_device(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).to_votes()
    fewer = pb.ToClient(survivors=pb.Survivors(u=b"\x0f"))
    assert play.ask({play.id(0): fewer}, play.server.ctx) == []
    assert play.reasons() == {0: pb.REASON_SURVIVORS}
    counted = pb.ToClient(votes=play.server.quorum()[play.id(0)])
    assert play.ask({play.id(0): counted}, play.server.ctx) == []
    assert play.reasons() == {0: pb.REASON_CTX_DIFFERS}


@pytest.mark.parametrize("trip", ["keys", "shares", "masked", "votes", "releases"])
def test_a_restarted_device_is_out_of_the_attempt_whatever_the_server_sends(
    open_gateway: Callable[..., Gateway], trip: str
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms())
    steps = [play.keys, play.shares, play.masked, play.votes, play.releases]
    for step in steps:
        step()
        if step.__name__ == trip:
            break
    gateway.restart(0)
    again = gateway.start(0, start_of(play.terms, len(gateway.model())))
    assert again.refusal.reason == pb.REASON_NEW_PROCESS
    for body in (
        pb.ToClient(roster=pb.Roster()),
        pb.ToClient(inbox=pb.Inbox()),
        pb.ToClient(survivors=pb.Survivors(u=b"\x1f")),
        pb.ToClient(votes=pb.Votes()),
    ):
        for ctx in (play.server.ctx0, play.server.ctx or bytes(32)):
            assert play.ask({play.id(0): body}, ctx) == []
    # Its next attempt is open to it, unless it would make a difference.
    later = gateway.start(0, start_of(gateway.terms(attempt=1), len(gateway.model())))
    assert later.HasField("keys")


def test_a_journal_refuses_each_second_step_also_after_a_restart(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).to_releases()
    ctx, ids = play.server.ctx, tuple(sorted(who.id for who in gateway.people))
    steps: list[records.Record] = [
        records.Keyed(play.server.ctx0),
        records.Masked(ctx, "run", play.terms.model, bytes(32)),
        records.Voted(ctx, bytes(32), ids),
        records.Released(ctx),
    ]
    for step in steps:
        with pytest.raises(Refused, match="a second time"):
            gateway.journals[0].write(step)
    gateway.journals[0].close()
    reopened = FileJournal(gateway.journal_path(0))
    for step in steps:
        with pytest.raises(Refused, match="new process"):
            reopened.write(step)
    reopened.close()
    order = [line.split()[0] for line in gateway.journal_path(0).read_text().splitlines()]
    assert order == ["keyed", "masked", "voted", "released"]


def test_a_journal_refuses_what_is_closed_and_what_is_not_its_turn(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).to_votes()
    journal, ctx = gateway.journals[0], play.server.ctx
    with pytest.raises(Refused, match="before its Voted"):
        journal.write(records.Released(bytes(32)))
    play.close()
    with pytest.raises(Refused, match="which is closed"):
        journal.write(records.Released(ctx))
    assert gateway.journal_path(0).read_text().splitlines()[-1].startswith("closed")


@pytest.mark.parametrize(
    ("trip", "kind"), [("keys", 1), ("masked", 2), ("votes", 3), ("releases", 4)]
)
def test_a_device_whose_journal_cannot_be_written_says_nothing_more(
    open_gateway: Callable[..., Gateway], trip: str, kind: int
) -> None:
    """The record comes before the bytes: where it fails, they never exist."""
    gateway = open_gateway()
    play = Play(gateway, gateway.terms())
    for step in (play.keys, play.shares, play.masked, play.votes, play.releases):
        if step.__name__ == trip:
            gateway.journals[0].close()
        step()
        if step.__name__ == trip:
            break
    assert play.reasons() == {0: pb.REASON_JOURNAL}
    assert len(gateway.journal_path(0).read_text().splitlines()) == kind - 1
    if trip in {"keys", "masked"}:
        assert 0 not in gateway.uploads
    # Nor does it take part in a later attempt, masked or not.
    for terms in (gateway.terms(attempt=1), plain(gateway.terms(attempt=2))):
        answer = gateway.start(0, start_of(terms, len(gateway.model())))
        assert answer.refusal.reason == pb.REASON_JOURNAL


def test_a_server_that_sends_the_same_or_an_older_attempt_again_is_refused(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway()
    Play(gateway, gateway.terms(attempt=3)).keys().shares().close()
    for attempt in (3, 2, 0):
        answer = gateway.start(0, start_of(gateway.terms(attempt=attempt), len(gateway.model())))
        assert answer.refusal.reason == pb.REASON_ATTEMPT_CLOSED


# ---- 21a: repeated rounds ------------------------------------------------------------------------


def test_a_server_that_repeats_a_round_without_one_member_would_difference_it_out(
    open_gateway: Callable[..., Gateway],
) -> None:
    """{1..6} and then {1..5}: the two sums would give x_6 to the bit."""
    gateway = open_gateway(6)
    Play(gateway, gateway.terms()).to_releases().close()
    for attempt, phase in ((1, "train"), (2, "evaluate")):
        again = Play(gateway, gateway.terms(attempt=attempt, phase=phase), range(5))
        again.keys().shares()
        assert again.reasons() == dict.fromkeys(range(5), pb.REASON_WOULD_DIFFERENCE)
    for index in range(6):
        gateway.restart(index)
    later = Play(gateway, gateway.terms(attempt=3), range(5)).keys().shares()
    assert later.reasons() == dict.fromkeys(range(5), pb.REASON_WOULD_DIFFERENCE)


def test_a_server_that_repeats_with_the_roster_and_loses_one_would_difference_it_out(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(6)
    Play(gateway, gateway.terms()).to_votes().close()
    again = Play(gateway, gateway.terms(attempt=1)).to_votes(lost=[5])
    assert again.reasons() == dict.fromkeys(range(5), pb.REASON_WOULD_DIFFERENCE)


def test_a_server_that_adds_a_member_to_a_repeat_would_difference_it_out(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(6)
    Play(gateway, gateway.terms(), range(5)).to_votes().close()
    again = Play(gateway, gateway.terms(attempt=1)).keys().shares()
    assert again.reasons() == dict.fromkeys(range(5), pb.REASON_WOULD_DIFFERENCE)


def test_a_server_cannot_combine_three_sets_that_each_differ_by_much(
    open_gateway: Callable[..., Gateway],
) -> None:
    """{1,2,3}, {1,4,5} and {2,3,4,5} give 2 x_1, though any two differ by three members."""
    gateway = open_gateway(6)
    Play(gateway, gateway.terms(), [1, 2, 3]).to_releases().close()
    second = Play(gateway, gateway.terms(attempt=1), [1, 4, 5]).keys().shares()
    assert second.reasons() == {1: pb.REASON_WOULD_DIFFERENCE}
    third = Play(gateway, gateway.terms(attempt=2), [2, 3, 4, 5]).keys().shares()
    assert third.reasons() == dict.fromkeys([2, 3], pb.REASON_WOULD_DIFFERENCE)


def test_a_server_that_dresses_the_same_model_as_another_one_gets_no_keys(
    open_gateway: Callable[..., Gateway],
) -> None:
    """A byte beside the arrays: another digest, so another round, and the same updates in it."""
    gateway = open_gateway(6)
    Play(gateway, gateway.terms()).to_releases().close()
    dressed = gateway.model()[:-1] + b"\x01"
    again = Play(gateway, gateway.terms(dressed, round=2), range(5)).keys(dressed)
    assert again.reasons() == dict.fromkeys(range(5), pb.REASON_CTX_DIFFERS)


def test_an_exact_repeat_is_allowed_and_gives_the_same_sum_under_other_masks(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(5)
    first = Play(gateway, gateway.terms()).to_votes()
    masked = [bytes(gateway.uploads[i].buffer) for i in range(5)]
    first.close()
    again = Play(gateway, gateway.terms(attempt=1)).to_releases()
    assert again.refusals == {}
    assert len(again.server.finish()) == 5
    assert all(bytes(gateway.uploads[i].buffer) != masked[i] for i in range(5))


def test_another_model_may_have_another_roster(open_gateway: Callable[..., Gateway]) -> None:
    gateway = open_gateway(6)
    Play(gateway, gateway.terms()).to_releases().close()
    other = gateway.model(0.25)
    terms = gateway.terms(other, round=2)
    after = Play(gateway, terms, range(5)).keys(other).shares().masked().votes()
    assert after.refusals == {}


# ---- 21: the same cohort but one -----------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("changes", [{"round": 2}, {"run": "another"}])
def test_a_server_that_leaves_one_out_of_the_next_sum_meets_min_difference(
    open_gateway: Callable[..., Gateway], changes: Mapping[str, object], *, restarted: bool
) -> None:
    """Another model, or the same model under another run's name; a restart changes nothing."""
    gateway = open_gateway(6, policy(min_difference=2))
    Play(gateway, gateway.terms()).to_releases().close()
    if restarted:
        for index in range(6):
            gateway.restart(index)
    model = gateway.model(0.25) if "round" in changes else gateway.model()
    next_round = Play(gateway, gateway.terms(model, **changes), range(5))
    next_round.keys(model).shares().masked().votes()
    assert next_round.reasons() == dict.fromkeys(range(5), pb.REASON_POLICY)
    assert {r.key for r in next_round.refusals.values()} == {"secure.min_difference"}


def test_what_a_refusal_carries_is_a_code_and_never_a_word(
    open_gateway: Callable[..., Gateway],
) -> None:
    gateway = open_gateway(1)
    start = start_of(gateway.terms(), len(gateway.model()))
    start.scheme = "B"
    answer = gateway.start(0, start)
    assert answer.refusal == pb.Refusal(reason=pb.REASON_SCHEME, round=1)
    assert "secure.schemes" in gateway.logs[0][0]  # the words stay on the device
    assert identity(0).id.hex() not in str(answer)
