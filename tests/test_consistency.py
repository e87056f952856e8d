"""Settings that contradict each other are refused with the arithmetic, before anything starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.clients import grpc_session
from umbel.protocol.errors import SettingsError
from umbel.protocol.plan import Params
from umbel.server import deadlines
from umbel.server.cohort import invitations
from umbel.server.consistency import check_clients, check_rows
from umbel.server.settings import RunSettings
from umbel.simulation.run import Options, plan
from umbel.simulation.up_plan import Asked, plan_up
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAvg
from umbel.tests.test_run import Blobs

if TYPE_CHECKING:
    from pathlib import Path

THREE = Params(min_members=3, min_survivors=3)


def settings(**changes: Any) -> RunSettings:
    return RunSettings(**{"run": "r", "rounds": 1, "params": THREE, **changes})


def refusal(clients: int | None = None, **changes: Any) -> str:
    """Return what is said, on its one line."""
    with pytest.raises(SettingsError) as caught:
        check_clients(settings(**changes), clients or 5)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_lease_is_the_devices_own() -> None:
    assert deadlines.LEASE_S == grpc_session.LONGEST_S


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"deadline": 10.0, "trip": 3.0},
            "deadline: expected more than 4 trips of 3 s = 12 s, got 10.0; "
            "that leaves -2 s for training: raise deadline, or lower trip",
        ),
        (
            {"deadline": 21601.0},
            "deadline: expected at most 21600 s, the life of a session and of its ticket, "
            "got 21601.0; train less in a round",
        ),
        (
            {"deadline": 21600.0, "attempts": 29},
            "attempts: expected at most 28: 28 attempts of 21600 s last as long as a device's "
            "certificate, 7 days = 604800 s, got 29; lower attempts or deadline",
        ),
        (
            {"cohort": 3, "params": Params(min_members=3, min_survivors=4)},
            "min-survivors: expected at most 3, for that is cohort, and each gives one update, "
            "got 4; lower it, or raise cohort",
        ),
        (
            {"params": Params(min_members=3, min_survivors=6)},
            "min-survivors: expected at most 5, for that is clients, and each gives one update, "
            "got 6; lower it, or raise clients",
        ),
        # 3 x 0.7 = 2.1: A = 2 of k = 2 neighbours, so t = (2 + 2) / 2 + 1 = 3 shares of 2.
        (
            {"params": Params(alpha=0.7, min_members=3, min_survivors=3)},
            "min-members: expected members that alpha 0.7 and delta 0.1 allow, got 3; secure "
            "aggregation: members: expected D = min(k - t, n - q, n - A - 2) >= 0, "
            "got 'n = 3 with A = 2: k = 2, t = 3, q = 3, D = -1'; invite more members",
        ),
        (
            {"params": Params(min_members=2, min_survivors=2)},
            "min-members: expected members that alpha 0.1 and delta 0.1 allow, got 2; secure "
            "aggregation: members: expected 3 to 1250 members, got 2; invite another number of "
            "members",
        ),
        (
            {"cohort": 4, "dropout": 0.3},
            "dropout: expected 11 clients to ask, so that 4 get ready with 99% where 0.3 of them "
            "do not, got 5; lower dropout or cohort, or enrol 6 more",
        ),
        (
            {"dropout": 0.3},
            "dropout: expected 12 clients to ask, so that 5 get ready with 99% where 0.3 of them "
            "do not, got 5; lower dropout or cohort, or enrol 7 more",
        ),
        (
            {"cohort": 6},
            "clients: expected at least 6, for a cohort of that size, got 5; more clients; fewer "
            "members only if every device's own policy allows it",
        ),
    ],
)
def test_what_cannot_end_well_is_refused_with_its_numbers(
    changes: dict[str, Any], said: str
) -> None:
    assert refusal(**changes) == said


def test_more_members_than_a_ring_has() -> None:
    text = refusal(2000, cohort=1251)
    assert text.startswith("cohort: expected members that alpha 0.1 and delta 0.1 allow, got 1251;")
    assert "expected 3 to 1250 members, got 1251" in text
    check_clients(settings(cohort=1250), 2000)
    check_clients(settings(cohort=1251, scheme="plain"), 2000)


def test_what_just_fits_is_taken() -> None:
    assert settings(deadline=21600.0, attempts=28).attempts == 28
    assert settings(deadline=12.1, trip=3.0).trip == 3.0
    assert settings(deadline=10.0, trip=3.0, scheme="plain").trip == 3.0
    check_clients(settings(cohort=4, dropout=0.3), 11)
    check_clients(settings(params=Params(min_members=3, min_survivors=5)), 5)
    check_clients(settings(params=Params(min_members=2, min_survivors=2), scheme="plain"), 2)


@given(st.integers(1, 30), st.floats(0.01, 0.9), st.integers(1, 200))
def test_a_dropout_is_taken_where_enough_get_ready_of_all_who_can_be_asked(
    cohort: int, dropout: float, clients: int
) -> None:
    run = settings(
        cohort=cohort,
        dropout=dropout,
        scheme="plain",
        params=Params(min_members=1, min_survivors=1),
    )
    terms = (
        math.comb(clients, j) * (1 - dropout) ** j * dropout ** (clients - j)
        for j in range(cohort, clients + 1)
    )
    reached = sum(terms)
    if abs(reached - 0.99) < 1e-9:
        return
    if clients >= cohort and reached > 0.99:
        check_clients(run, clients)
    else:
        with pytest.raises(SettingsError, match=r"^(dropout|clients): expected"):
            check_clients(run, clients)


# ---- each way in -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"deadline": 10.0, "trip": 3.0}, "^deadline: expected more than 4 trips"),
        ({"cohort": 4, "dropout": 0.3}, "^dropout: expected 11 clients to ask"),
        ({"min-survivors": 6}, "^min-survivors: expected at most 5"),
        ({"alpha": 0.7}, "^min-members: expected members that alpha"),
    ],
)
def test_no_command_starts_anything_first(given: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=what):
        plan(Blobs(), Options(settings=given, home=tmp_path / "home"))
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text('[tool.umbel]\ntask = "a.b:C"\n', "utf-8")
    with pytest.raises(SettingsError, match=what):
        plan_up(app, Asked(edge=5, gpu=0, settings=tuple(given.items())))
    assert not (tmp_path / "home").exists()


# ---- robust rules ----------------------------------------------------------------------------


def floors(least: int, survivors: int | None = None) -> Params:
    return Params(min_members=least, min_survivors=least if survivors is None else survivors)


def plain(robust: Robust | None, **changes: Any) -> RunSettings:
    return settings(**{"scheme": "plain", "rule": FedAvg(robust=robust), **changes})


@pytest.mark.parametrize(
    ("robust", "clients", "changes", "said"),
    [
        (
            Robust(rule="median"),
            5,
            {"scheme": "A"},
            "robust: expected a rule that needs only the sum of the updates, because secure "
            "aggregation is on and shows the server nothing else, got 'median'; median compares "
            "single updates: leave it out, or run without secure aggregation where every device's "
            "policy allows it",
        ),
        (
            Robust(rule="fltrust"),
            5,
            {},
            "robust: expected a rule that needs nothing but the clients' updates, got 'fltrust'; "
            "it compares them with an update of the server's own, and a run makes none",
        ),
        (
            Robust(rule="bulyan", byzantine=1),
            6,
            {"params": floors(6, 7)},
            "clients: expected at least 7 for bulyan (4 f + 3 with f = 1), got 6; raise it, or "
            "lower robust-byzantine",
        ),
        (
            Robust(rule="krum", byzantine=2),
            20,
            {"cohort": 6},
            "cohort: expected at least 7 for krum (2 f + 3 with f = 2), got 6; raise it, or lower "
            "robust-byzantine",
        ),
        (
            Robust(rule="krum", byzantine=2),
            20,
            {"params": floors(7, 6)},
            "min-survivors: expected at least 7 for krum (2 f + 3 with f = 2): a round may end "
            "with so few, got 6; raise it, or lower robust-byzantine",
        ),
        (
            Robust(rule="trimmed-mean", byzantine=2),
            20,
            {"params": floors(9)},
            "min-survivors: expected at least 10 for trimmed-mean (of which cut 0.2 drops 2 at "
            "either end, all f): a round may end with so few, got 9; raise it, or lower "
            "robust-byzantine",
        ),
    ],
)
def test_a_robust_rule_that_cannot_hold_is_refused(
    robust: Robust, clients: int, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_clients(plain(robust, **changes), clients)
    assert str(caught.value) == said


def test_a_robust_rule_that_holds_is_none_of_its_business() -> None:
    check_clients(plain(Robust(rule="krum", byzantine=2), params=floors(7)), 7)


def test_updates_that_fit_nowhere_are_refused_with_the_arithmetic() -> None:
    room = {"in memory": 3 << 30, "in /home": 2 << 30}
    check_rows(plain(Robust(rule="median")), 30, 100 << 20, room)
    check_rows(plain(None), 40, 100 << 20, room)
    with pytest.raises(SettingsError) as caught:
        check_rows(plain(Robust(rule="median")), 40, 100 << 20, room)
    assert str(caught.value) == (
        "robust: expected room for 40 updates of 100.0 MiB = 4000 MiB, one a client for median, "
        "got '3072 MiB free in memory, 2048 MiB free in /home'; lower cohort, or take another rule"
    )
    streamed = plain(Robust(rule="trimmed-mean", cut=0.1))
    check_rows(streamed, 40, 100 << 20, room)  # 2 * 4 + 2 = 10


def test_those_who_are_asked_beyond_the_cohort_may_all_come() -> None:
    """More are asked than the cohort wants where some get lost, and none of them need be."""
    run = plain(Robust(rule="median"), cohort=10, dropout=0.1)
    asked = invitations(10, 0.1)
    assert asked > 10
    check_rows(run, 50, 1 << 20, {"here": asked << 20})
    with pytest.raises(SettingsError, match=f"room for {asked} updates"):
        check_rows(run, 50, 1 << 20, {"here": (asked << 20) - 1})
