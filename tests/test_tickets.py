"""Tickets: one certificate, one run, one gateway, one life; anything else is refused."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from umbel.protocol.errors import PeerError, SettingsError
from umbel.protocol.tickets import MAX_BYTES, Ticket, admit, mint

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)  # 1772366400
KEY = bytes(range(32))
TICKET = Ticket("run-7", b"\x01" * 16, b"\x02" * 32, "fl.example.org", 1772366460, b"\x03" * 16)


def enter(raw: bytes, key: bytes = KEY, **changes: Any) -> Ticket:
    terms: dict[str, Any] = {
        "run": "run-7",
        "node_id": b"\x01" * 16,
        "tls_fingerprint": b"\x02" * 32,
        "gateway": "fl.example.org",
        "now": NOW,
    }
    return admit(key, raw, **(terms | changes))


def test_a_ticket_admits_its_certificate_any_number_of_times() -> None:
    raw = mint(KEY, TICKET)
    assert [enter(raw) for _ in range(3)] == [TICKET] * 3


def test_the_bytes_by_hand() -> None:
    values = (
        b"run-7",
        b"\x01" * 16,
        b"\x02" * 32,
        b"fl.example.org",
        b"1772366460",
        b"\x03" * 16,
    )
    body = b"umbel/ticket/1" + b"".join(len(v).to_bytes(8, "little") + v for v in values)
    assert mint(KEY, TICKET) == body + hmac.new(KEY, body, hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"tls_fingerprint": b"\x04" * 32}, "replayed a ticket of another certificate"),
        ({"run": "run-8"}, "replayed a ticket of another run"),
        ({"node_id": b"\x04" * 16}, "replayed a ticket of another node"),
        ({"gateway": "fl.example.com"}, "replayed a ticket of another gateway"),
        (
            {"now": datetime(2026, 3, 1, 12, 1, tzinfo=UTC)},
            "replayed a ticket that has expired",
        ),
    ],
)
def test_a_replayed_ticket_is_refused(changes: dict[str, Any], cause: str) -> None:
    raw = mint(KEY, TICKET)
    with pytest.raises(PeerError, match=cause) as caught:
        enter(raw, **changes)
    assert caught.value.peer == f"node {changes.get('node_id', TICKET.node_id).hex()}"


def test_the_last_second_counts() -> None:
    assert enter(mint(KEY, TICKET), now=datetime(2026, 3, 1, 12, 0, 59, tzinfo=UTC)) == TICKET


def test_a_ticket_of_another_key_is_forged() -> None:
    with pytest.raises(PeerError, match="a forged or damaged ticket"):
        enter(mint(bytes(32), TICKET))


def test_no_flipped_bit_is_admitted() -> None:
    raw = mint(KEY, TICKET)
    for place in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[place // 8] ^= 1 << place % 8
        with pytest.raises(PeerError, match="a forged or damaged ticket"):
            enter(bytes(broken))


def test_a_truncated_or_prolonged_ticket_is_refused() -> None:
    raw = mint(KEY, TICKET)
    for cut in (*(raw[:end] for end in range(len(raw))), raw + b"\0", bytes(MAX_BYTES + 1)):
        with pytest.raises(PeerError):
            enter(cut)


def test_a_run_that_is_no_utf_8_is_refused_also_of_who_holds_the_key() -> None:
    body = mint(KEY, TICKET)[:-32].replace(b"run-7", b"\xff" * 5)
    with pytest.raises(PeerError, match="UTF-8"):
        enter(body + hmac.digest(KEY, body, "sha256"))


def test_fields_do_not_run_into_each_other() -> None:
    # Without the lengths, run "ab" of gateway "c" and run "a" of gateway "bc" could collide.
    tags = {
        mint(KEY, replace(TICKET, run=run, gateway=gateway))[-32:]
        for run, gateway in (("ab", "c"), ("a", "bc"), ("", "abc"))
    }
    assert len(tags) == 3


@pytest.mark.parametrize(
    ("key", "ticket", "message"),
    [
        (b"short", TICKET, "ticket: key: expected 32 bytes, got 5"),
        (KEY, replace(TICKET, node_id=b""), "ticket: node id: expected 16 bytes, got 0"),
        (KEY, replace(TICKET, nonce=bytes(8)), "ticket: nonce: expected 16 bytes, got 8"),
        (KEY, replace(TICKET, tls_fingerprint=b""), "TLS fingerprint: expected 32 bytes"),
    ],
)
def test_a_ticket_is_minted_whole_or_not(key: bytes, ticket: Ticket, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        mint(key, ticket)
