"""What a message may be, whatever a peer or a file put into it: one line, bounded, harmless."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import (
    LONGEST,
    BadUpdate,
    Malformed,
    PeerError,
    Refused,
    SettingsError,
    StateError,
    UmbelError,
)


def nested() -> Any:
    """Return a list that no `repr` can say."""
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    return tree


LONG = "x" * 100_000
MADE = [
    lambda value: SettingsError("key", "a value", value, "edit it"),
    lambda value: StateError("file", "a value", value, "restore it"),
    lambda value: PeerError("node", "a field", "a value", value),
    lambda value: Malformed("node", "a field", value, value),
]


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize(
    "value", [LONG, nested(), 16**6000, [1] * 100_000], ids=["long", "deep", "huge", "many"]
)
def test_a_value_of_any_size_can_be_said(make: Any, value: object) -> None:
    said = str(make(value))
    assert len(said) < 600
    assert "a value" in said or "a field" in said
    assert said.endswith(("it", "...")) or "got" in said


def test_what_cannot_be_said_is_named_by_its_type() -> None:
    assert "got a list too large to say" in str(SettingsError("key", "text", nested()))
    assert "got a int too large to say" in str(Malformed("node", "field", 1, 16**6000))


@pytest.mark.parametrize(
    "error",
    [
        UmbelError(LONG),
        Refused(pb.REASON_POLICY, LONG),
        SettingsError(LONG, LONG, LONG, LONG),
        StateError(LONG, "a file", "none"),
        PeerError("node", LONG),
    ],
)
def test_a_message_has_an_end(error: UmbelError) -> None:
    assert len(str(error)) <= LONGEST
    assert str(error).count(" ... ") >= 1


def test_a_record_of_an_update_has_an_end_too() -> None:
    assert len(BadUpdate("node", LONG, 1, 2).record) <= LONGEST


def test_a_short_message_is_said_in_full() -> None:
    said = str(SettingsError("policy.toml:3: secure.dropout", "a share", "x" * 200, "edit it"))
    assert said == f"policy.toml:3: secure.dropout: expected a share, got '{'x' * 200}'; edit it"


def test_no_message_steers_a_terminal() -> None:
    said = str(Malformed("no\x1b[2Jde\r\n", "a \x07 field", "\u202e", "\x00"))
    assert said == r"no\x1b[2Jde  : a \x07 field: expected \u202e, got \x00"
