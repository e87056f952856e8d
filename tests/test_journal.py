"""The journal's records: one line each, damage is seen, and each thing happens once."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, StateError
from umbel.protocol.journal import (
    Closed,
    History,
    Keyed,
    Masked,
    Record,
    Released,
    Voted,
    encode,
    parse,
)

CTX0, CTX, OTHER = (bytes([byte]) * 32 for byte in (0xA0, 0xA1, 0xB1))
MODEL, HASH = bytes(32), b"\x0f" * 32
U = (b"\x01" * 16, b"\x02" * 16, b"\xff" * 16)

KEYED = Keyed(CTX0)
MASKED = Masked(CTX, "run-7", MODEL, HASH)
VOTED = Voted(CTX, HASH, U)
RELEASED = Released(CTX)
ATTEMPT: list[Record] = [KEYED, MASKED, VOTED, RELEASED]

hashes = st.binary(min_size=32, max_size=32)
ids = st.sets(st.binary(min_size=16, max_size=16), max_size=5).map(lambda s: tuple(sorted(s)))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
records = st.one_of(
    st.builds(Keyed, hashes),
    st.builds(Masked, hashes, texts, hashes, hashes),
    st.builds(Voted, hashes, hashes, ids),
    st.builds(Released, hashes),
    st.builds(Closed, hashes),
)


def told(history: History, *happened: Record) -> History:
    for record in happened:
        history.admit(record)
        history.add(record)
    return history


def reason(history: History, record: Record) -> str:
    with pytest.raises(Refused) as caught:
        history.admit(record)
    return pb.Reason.Name(caught.value.reason)


# -- lines --------------------------------------------------------------------------------


def test_lines_by_hand() -> None:
    def line(body: str) -> bytes:
        return f"{body} {hashlib.sha256(body.encode()).hexdigest()[:16]}\n".encode()

    a0, a1, zero, f = "a0" * 32, "a1" * 32, "00" * 32, "0f" * 32
    assert encode(KEYED) == line(f"keyed {a0}")
    assert encode(MASKED) == line(f"masked {a1} run-7 {zero} {f}")
    assert encode(VOTED) == line(f"voted {a1} {f} {'01' * 16}{'02' * 16}{'ff' * 16}")
    assert encode(RELEASED) == line(f"released {a1}")
    assert encode(Closed(CTX0)) == line(f"closed {a0}")
    # printf 'keyed a0…a0' | sha256sum | head -c 16
    assert encode(KEYED).endswith(b" 1a101f79d1670d01\n")


@given(st.lists(records, max_size=6))
def test_records_read_back(items: list[Record]) -> None:
    data = b"".join(map(encode, items))
    assert parse(data) == (items, len(data))


@given(texts)
def test_a_run_id_breaks_no_line(run: str) -> None:
    line = encode(replace(MASKED, run=run))
    assert line.count(b"\n") == 1
    assert line.count(b" ") == 5
    assert line.isascii()


@given(st.lists(records, max_size=3), records)
def test_a_torn_last_line_is_left_out(items: list[Record], last: Record) -> None:
    data = b"".join(map(encode, items))
    line = encode(last)
    for end in {0, 1, len(line) // 2, len(line) - 2, len(line) - 1}:
        assert parse(data + line[:end]) == (items, len(data))


def test_a_tail_of_zeros_is_torn() -> None:
    # What a file system may leave of a write that was never synced.
    data = encode(KEYED)
    assert parse(data + bytes(4096)) == ([KEYED], len(data))


def test_no_flipped_bit_goes_unseen() -> None:
    data = b"".join(map(encode, ATTEMPT))
    for place in range(8 * len(data)):
        broken = bytearray(data)
        broken[place // 8] ^= 1 << place % 8
        with pytest.raises(StateError, match=r"journal line \d+: expected a record with its check"):
            parse(bytes(broken))


@pytest.mark.parametrize(
    "body",
    [
        "signed " + "a0" * 32,
        "keyed " + "A0" * 32,
        "keyed " + "a0" * 31,
        "keyed " + "a0" * 32 + " more",
        "keyed  " + "a0" * 32,
        "keyed",
        "masked " + "a1" * 32,
        "voted " + "a1" * 32 + " " + "0f" * 32 + " " + "02" * 16 + "01" * 16,
        "voted " + "a1" * 32 + " " + "0f" * 32 + " " + "01" * 15,
    ],
)
def test_a_line_that_encode_does_not_write_is_damage(body: str) -> None:
    checksum = hashlib.sha256(body.encode()).hexdigest()[:16]
    data = encode(KEYED) + f"{body} {checksum}\n".encode()
    with pytest.raises(StateError, match="journal line 2"):
        parse(data)


def test_an_empty_line_is_damage() -> None:
    with pytest.raises(StateError, match="journal line 1"):
        parse(b"\n" + encode(KEYED))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Keyed(b"short"), "a keyed field needs 32 bytes, got 5"),
        (replace(MASKED, model=b""), "a masked field needs 32 bytes, got 0"),
        (replace(VOTED, survivors=(b"x",)), "a voted field needs 16 bytes, got 1"),
        (replace(VOTED, survivors=U[::-1]), "sorted, distinct ids"),
        (replace(VOTED, survivors=(U[0], U[0])), "sorted, distinct ids"),
    ],
)
def test_a_record_has_its_form(record: Record, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(record)


# -- rules --------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ATTEMPT, ids=lambda record: type(record).__name__)
def test_each_happens_once(again: Record) -> None:
    history = told(History(), *ATTEMPT)
    assert reason(history, again) == "REASON_JOURNAL"


@pytest.mark.parametrize(
    "again",
    [
        replace(MASKED, y_hash=bytes(32)),
        replace(MASKED, run="run-8"),
        replace(VOTED, survivors=U[:2]),
        replace(VOTED, u2_hash=bytes(32)),
    ],
)
def test_a_second_one_with_other_content_is_a_second_one(again: Record) -> None:
    assert reason(told(History(), *ATTEMPT), again) == "REASON_JOURNAL"


@pytest.mark.parametrize("record", ATTEMPT, ids=lambda record: type(record).__name__)
def test_none_happens_after_closed(record: Record) -> None:
    history = told(History(), Closed(record.ctx))
    assert reason(history, record) == "REASON_ATTEMPT_CLOSED"
    before = ATTEMPT[: ATTEMPT.index(record)]
    history = told(History(), *before, Closed(record.ctx))
    assert reason(history, record) == "REASON_ATTEMPT_CLOSED"


@pytest.mark.parametrize(
    ("done", "record"),
    [((), VOTED), ((), RELEASED), ((KEYED,), VOTED), ((KEYED, MASKED), RELEASED)],
)
def test_none_happens_before_its_turn(done: tuple[Record, ...], record: Record) -> None:
    assert reason(told(History(), *done), record) == "REASON_JOURNAL"


def test_a_vector_of_another_ctx_does_not_allow_the_vote() -> None:
    history = told(History(), replace(MASKED, ctx=OTHER))
    assert reason(history, VOTED) == "REASON_JOURNAL"


@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_a_new_process_is_out_of_every_attempt_that_it_finds(done: int) -> None:
    history = History(ATTEMPT[:done])
    for record in ATTEMPT:
        if record.ctx in {item.ctx for item in ATTEMPT[:done]}:
            assert reason(history, record) == "REASON_NEW_PROCESS"


def test_a_new_process_takes_part_in_the_next_attempt() -> None:
    history = History(ATTEMPT[:2])
    fresh: list[Record] = [
        Keyed(b"\x0c" * 32),
        replace(MASKED, ctx=OTHER),
        replace(VOTED, ctx=OTHER),
    ]
    told(history, *fresh, Released(OTHER))
    assert history.votes("run-7", MODEL) == [U]


def test_admit_changes_nothing() -> None:
    history = History()
    history.admit(KEYED)
    history.admit(KEYED)
    assert history.open_attempts() == ()


def test_closing_is_always_allowed_and_closes() -> None:
    history = told(History([KEYED]), MASKED, Closed(CTX0), Closed(CTX0))
    assert history.open_attempts() == (CTX,)
    told(history, Closed(CTX))
    assert history.open_attempts() == ()
    assert History([*ATTEMPT, Closed(CTX)]).open_attempts() == (CTX0,)


def test_votes_are_told_apart_by_run_and_model() -> None:
    other_model = b"\x01" * 32
    history = told(
        History(ATTEMPT),
        Masked(OTHER, "run-7", MODEL, HASH),
        Voted(OTHER, HASH, U[:2]),
        Masked(b"\xc1" * 32, "run-8", MODEL, HASH),
        Voted(b"\xc1" * 32, HASH, U[1:]),
        Masked(b"\xd1" * 32, "run-7", other_model, HASH),
    )
    assert history.votes("run-7", MODEL) == [U, U[:2]]  # also what an earlier process voted
    assert history.votes("run-8", MODEL) == [U[1:]]
    assert history.votes("run-7", other_model) == []


@pytest.mark.parametrize(
    "found",
    [
        [VOTED],
        [MASKED, RELEASED],
        [KEYED, KEYED],
        [MASKED, VOTED, replace(VOTED, survivors=U[:2])],
        [Closed(CTX), MASKED],
    ],
)
def test_a_file_that_breaks_the_rules_is_no_history(found: list[Record]) -> None:
    with pytest.raises(StateError, match="journal: expected records in their order"):
        History(found)


@given(st.lists(st.sampled_from([*ATTEMPT, Closed(CTX0), Closed(CTX)]), max_size=12))
def test_whatever_was_admitted_each_happened_once_and_reads_back(tried: list[Record]) -> None:
    history = History()
    happened: list[Record] = []
    for record in tried:
        try:
            history.admit(record)
        except Refused:
            continue
        history.add(record)
        happened.append(record)
    for record in ATTEMPT:
        assert happened.count(record) <= 1
    if Closed(CTX) in happened:
        after = happened[happened.index(Closed(CTX)) :]
        assert not {MASKED, VOTED, RELEASED} & set(after)
    order = [record for record in happened if record in ATTEMPT[1:]]
    assert order == ATTEMPT[1:][: len(order)]
    again = History(parse(b"".join(map(encode, happened)))[0])
    assert again.open_attempts() == history.open_attempts()
    assert again.votes("run-7", MODEL) == history.votes("run-7", MODEL)


def test_an_attempt_among_twenty_members_is_remembered_in_less_than_a_kilobyte() -> None:
    history, ids, attempts = History(), [bytes([i]) * 16 for i in range(20)], 500
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(attempts):
        first, ctx = number.to_bytes(32), (number + attempts).to_bytes(32)
        survivors = tuple(bytes(bytearray(i)) for i in ids)  # as a message brings them
        told(history, Keyed(first), Masked(ctx, "run-7", ctx, ctx))
        told(history, Voted(ctx, ctx, survivors), Released(ctx), Closed(ctx))
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 1024 * attempts
    assert history.votes("run-7", ctx) == [tuple(ids)]
