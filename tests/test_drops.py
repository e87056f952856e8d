"""`--drop-at`: what it may say, and that every boundary is one of the wire's messages."""

from __future__ import annotations

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import SettingsError
from umbel.simulation.drops import BOUNDARIES, PLAIN, Drop, parse


@pytest.mark.parametrize(
    ("text", "drop"),
    [
        ("masked:1", Drop("masked", (9,), 2)),
        ("start:3", Drop("start", (7, 8, 9), 2)),
        ("release:10", Drop("release", tuple(range(10)), 2)),
        ("upload:2@5", Drop("upload", (8, 9), 5)),
    ],
)
def test_the_last_clients_are_lost(text: str, drop: Drop) -> None:
    assert parse(text, 10, 5) == drop


def test_a_run_of_one_round_loses_them_in_it() -> None:
    assert parse("keys:1", 3, 1) == Drop("keys", (2,), 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("masked", "BOUNDARY:N"),
        ("masked:", "BOUNDARY:N"),
        ("masked:x", "BOUNDARY:N"),
        ("masked:-1", "BOUNDARY:N"),
        ("masked:1@", "BOUNDARY:N"),
        ("masked:1 ", "BOUNDARY:N"),
        ("masked:1@2@3", "BOUNDARY:N"),
        ("Masked:1", "BOUNDARY of start, keys"),
        ("close:1", "BOUNDARY of start, keys"),
        ("masked:0", "1 to 10 clients, got 0"),
        ("masked:11", "1 to 10 clients, got 11"),
        ("masked:1@0", "a round from 1 to 5, got 0"),
        ("masked:1@6", "a round from 1 to 5, got 6"),
    ],
)
def test_anything_else_is_named(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse(text, 10, 5)
    assert str(caught.value).startswith("--drop-at: ")


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_plain_round_has_fewer_boundaries(boundary: str) -> None:
    assert parse(f"{boundary}:1", 5, 5).boundary == boundary
    if boundary in PLAIN:
        assert parse(f"{boundary}:1", 5, 5, secure=False).boundary == boundary
    else:
        with pytest.raises(SettingsError, match="of start, keys, roster, upload, masked, got"):
            parse(f"{boundary}:1", 5, 5, secure=False)


def test_a_boundary_is_a_message_or_a_broken_upload() -> None:
    bodies = {field.name for kind in (pb.ToClient, pb.ToServer) for field in kind.DESCRIPTOR.fields}
    assert set(BOUNDARIES) - bodies == {"upload"}
    assert bodies - set(BOUNDARIES) == {"ctx", "close", "goodbye", "ready", "refusal"}


def test_no_drop_has_an_unknown_boundary() -> None:
    with pytest.raises(SettingsError, match="--drop-at"):
        Drop("inboxes", (1,))
