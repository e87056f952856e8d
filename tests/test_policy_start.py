"""What the device's policy says to a run: the server can only be stricter than it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.clients.policy import Policy
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused

NO_APP = bytes(32)
APP = b"\x9f" * 32

# One set for the whole roster, in ctx0; the run's own wishes are within the built-in policy.
PARAMS: dict[str, object] = {
    "alpha": 0.1,
    "delta": 0.1,
    "a-min": 1,
    "ring-bits": 32,
    "value-range": 8.0,
    "weight-cap": 1048576,
    "min-members": 5,
    "min-survivors": 4,
    "quorum": "majority",
}


def start(policy: Policy, params: dict[str, object] | None = None, **changes: Any) -> None:
    terms: dict[str, Any] = {
        "scheme": "A",
        "protocol": 1,
        "model_bytes": 1000,
        "rounds_today": 0,
        "app": NO_APP,
    }
    policy.check_start(params=PARAMS | (params or {}), **(terms | changes))


def refused(reason: pb.Reason, key: str, policy: Policy, *args: Any, **changes: Any) -> str:
    with pytest.raises(Refused) as caught:
        start(policy, *args, **changes)
    assert (caught.value.reason, caught.value.key) == (reason, key)
    return str(caught.value)


# -- the server can only be stricter --------------------------------------------------------


def test_the_run_of_these_tests_is_allowed() -> None:
    start(Policy())


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"alpha": 0.09999}, "secure.corrupt"),
        ({"alpha": 0.0}, "secure.corrupt"),
        ({"delta": 0.10001}, "secure.dropout"),
        ({"min-members": 4}, "secure.min_members"),
        ({"min-survivors": 3}, "secure.min_survivors"),
        ({"weight-cap": 1048577}, "update.max_weight"),
        ({"value-range": 8.0000001}, "update.max_value_range"),
        ({"ring-bits": 31}, "params.ring-bits"),
        ({"ring-bits": 64}, "params.ring-bits"),
        ({"quorum": "any"}, "params.quorum"),
        ({"alpha": math.nan}, "params.alpha"),
        ({"alpha": 1.0}, "params.alpha"),
        ({"delta": math.nan}, "params.delta"),
        ({"value-range": math.nan}, "params.value-range"),
        ({"value-range": math.inf}, "params.value-range"),
        ({"a-min": 0}, "params.a-min"),
        ({"a-min": True}, "params.a-min"),
        ({"min-members": 5.0}, "params.min-members"),
        ({"masks": False}, "params.masks"),
    ],
)
def test_a_weaker_run_is_refused(params: dict[str, object], key: str) -> None:
    refused(pb.REASON_POLICY, key, Policy(), params)


@pytest.mark.parametrize("key", sorted(PARAMS))
def test_no_parameter_may_be_missing(key: str) -> None:
    params = {name: value for name, value in PARAMS.items() if name != key}
    with pytest.raises(Refused) as caught:
        Policy().check_start("A", 1, params, 1000, 0, NO_APP)
    assert (caught.value.reason, caught.value.key) == (pb.REASON_POLICY, f"params.{key}")


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0.3},
        {"delta": 0.0},
        {"a-min": 5},
        {"min-members": 50},
        {"min-survivors": 50},
        {"weight-cap": 1},
        {"value-range": 0.001},
    ],
)
def test_a_stricter_run_is_allowed(params: dict[str, object]) -> None:
    start(Policy(), params)


@pytest.mark.parametrize(
    ("policy", "a_min", "key"),
    [
        (Policy(corrupt_min=2), 1, "secure.corrupt_min"),
        (Policy(max_corrupt_members=3), 2, "secure.max_corrupt_members"),
        (Policy(max_corrupt_members=3, corrupt_min=4), 3, "secure.corrupt_min"),
    ],
)
def test_the_bound_on_corrupt_members_reaches_a_min(policy: Policy, a_min: int, key: str) -> None:
    refused(pb.REASON_POLICY, key, policy, {"a-min": a_min})
    start(policy, {"a-min": a_min + 1})


def test_a_refusal_says_both_values_on_the_console() -> None:
    line = refused(pb.REASON_POLICY, "update.max_weight", Policy(), {"weight-cap": 2000000})
    assert line == "policy: the run has 2000000, update.max_weight is 1048576"


def test_plain_needs_the_devices_own_word() -> None:
    refused(pb.REASON_PLAIN_REFUSED, "secure.required", Policy(), scheme="plain")
    start(Policy(required=False), scheme="plain")
    # What protects only in a secure round is not asked of a plain one; the rest is.
    weak: dict[str, object] = {"alpha": 0.0, "delta": 0.5, "min-members": 1, "min-survivors": 1}
    start(Policy(required=False), weak, scheme="plain")
    for params, key in (
        ({"weight-cap": 1048577}, "update.max_weight"),
        ({"value-range": 8.1}, "update.max_value_range"),
    ):
        refused(pb.REASON_POLICY, key, Policy(required=False), params, scheme="plain")


@pytest.mark.parametrize("scheme", ["B", "a", "", "PLAIN"])
def test_only_a_listed_scheme_is_joined(scheme: str) -> None:
    refused(pb.REASON_SCHEME, "secure.schemes", Policy(required=False), scheme=scheme)
    refused(pb.REASON_SCHEME, "secure.schemes", Policy(schemes=()), scheme="A")


def test_an_old_protocol_is_refused() -> None:
    policy = Policy(min_protocol=2)
    refused(pb.REASON_PROTOCOL_TOO_OLD, "trust.min_protocol", policy, protocol=1)
    start(policy, protocol=2)
    start(policy, protocol=3)


def test_only_a_pinned_app_runs() -> None:
    start(Policy(), app=APP)
    start(Policy(apps=(APP,)), app=APP)
    for policy, app in ((Policy(apps=(APP,)), NO_APP), (Policy(apps=()), APP)):
        refused(pb.REASON_APP_NOT_ALLOWED, "trust.apps", policy, app=app)


def test_a_model_is_refused_by_its_announced_size() -> None:
    start(Policy(), model_bytes=4294967296)
    refused(pb.REASON_LIMITS, "limits.model_bytes", Policy(), model_bytes=4294967297)


def test_rounds_of_a_day_are_counted() -> None:
    policy = Policy(rounds_per_day=3)
    start(policy, rounds_today=2)
    refused(pb.REASON_LIMITS, "limits.rounds_per_day", policy, rounds_today=3)


def test_limits_hold_for_plain_runs_too() -> None:
    policy = Policy(required=False, rounds_per_day=3, model_bytes=5, apps=(), min_protocol=2)
    for reason, key, changes in (
        (pb.REASON_LIMITS, "limits.rounds_per_day", {"rounds_today": 3}),
        (pb.REASON_LIMITS, "limits.model_bytes", {"model_bytes": 6}),
        (pb.REASON_APP_NOT_ALLOWED, "trust.apps", {"app": APP}),
        (pb.REASON_PROTOCOL_TOO_OLD, "trust.min_protocol", {"protocol": 1}),
    ):
        allowed: dict[str, Any] = {"protocol": 2, "model_bytes": 5, "scheme": "plain"}
        free = policy if key == "trust.apps" else replace(policy, apps=None)
        refused(reason, key, free, **(allowed | changes))


@given(
    own=st.integers(3, 60),
    theirs=st.integers(1, 60),
    own_alpha=st.floats(0, 0.9),
    their_alpha=st.floats(0, 0.9),
)
def test_a_run_is_joined_exactly_if_it_is_no_weaker(
    own: int, theirs: int, own_alpha: float, their_alpha: float
) -> None:
    policy = Policy(min_members=own, corrupt=own_alpha)
    params: dict[str, object] = {"min-members": theirs, "alpha": their_alpha}
    try:
        start(policy, params)
        joined = True
    except Refused:
        joined = False
    assert joined == (theirs >= own and their_alpha >= own_alpha)


# -- rosters and survivors ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "a", "d"),
    # A = max(1, floor(n / 10)); D = floor(n / 10) from 33 up, none of its own on a complete graph.
    [(5, 1, None), (19, 1, None), (20, 2, None), (32, 3, None), (33, 3, 3), (100, 10, 10)],
)
def test_the_devices_own_numbers(n: int, a: int, d: int | None) -> None:
    assert (Policy().tolerated(n), Policy().losses(n)) == (a, d)
    bounded = Policy(max_corrupt_members=4)
    assert bounded.tolerated(n) == max(a, 4)
    assert Policy(corrupt_min=2).tolerated(n) == max(a, 2)


def test_a_small_roster_is_refused() -> None:
    Policy().check_roster(5, 1)
    with pytest.raises(Refused, match=r"4 members, secure.min_members is 5") as caught:
        Policy().check_roster(4, 0)
    assert caught.value.reason == pb.REASON_ROSTER


def test_those_who_may_be_corrupt_leave_two_honest_survivors() -> None:
    # n - D >= F + 2, whatever was selected.
    policy = Policy(max_corrupt_members=5)
    policy.check_roster(10, 3)
    with pytest.raises(Refused, match="10 members less 4 losses") as caught:
        policy.check_roster(10, 4)
    assert caught.value.key == "secure.max_corrupt_members"
    assert caught.value.reason == pb.REASON_POLICY


@pytest.mark.parametrize(
    ("policy", "count", "a", "floor"),
    [
        (Policy(), 4, 1, 4),
        (Policy(min_survivors=3), 3, 1, 3),
        (Policy(min_survivors=3), 5, 3, 5),  # A + 2, whatever the policy says
        (Policy(min_survivors=9), 9, 3, 9),
    ],
)
def test_too_few_survivors_are_refused(policy: Policy, count: int, a: int, floor: int) -> None:
    policy.check_survivors(count, a, 0, 1)
    with pytest.raises(Refused, match=f"{count - 1} survivors, at least {floor}") as caught:
        policy.check_survivors(count - 1, a, 0, 1)
    assert caught.value.reason == pb.REASON_SURVIVORS


def test_a_cohort_that_differs_by_a_few_is_refused_where_asked() -> None:
    Policy().check_survivors(5, 1, 1, 1)  # off by default
    policy = Policy(min_difference=3)
    for difference in (0, 3, 4):
        policy.check_survivors(5, 1, difference, 1)
    for difference in (1, 2):
        with pytest.raises(Refused, match=f"{difference} members differ") as caught:
            policy.check_survivors(5, 1, difference, 1)
        assert caught.value.reason == pb.REASON_POLICY
        assert caught.value.key == "secure.min_difference"


def test_survivors_of_too_few_sites_are_refused_where_asked() -> None:
    Policy().check_survivors(5, 1, 0, 1)
    policy = Policy(min_sites=2)
    policy.check_survivors(5, 1, 0, 2)
    with pytest.raises(Refused, match=r"survivors of 1 sites, secure.min_sites is 2") as caught:
        policy.check_survivors(5, 1, 0, 1)
    assert caught.value.key == "secure.min_sites"
