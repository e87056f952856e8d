"""The world of one: ring sums, slots as back-pressure, each node once, flat memory."""

import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.codec import Codec
from umbel.protocol.errors import PeerError, SettingsError
from umbel.server.core.kept import Keeping
from umbel.server.core.world import Sum, World
from umbel.strategies.robust_rules import Robust


def send(total: Sum, node: str, message: bytes) -> None:
    slot = total.slot(node)
    assert slot is not None
    slot[:] = message
    total.fold(node)


@settings(max_examples=40)
@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_the_sum_wraps_at_each_sections_word(
    blocks: int, words64: int, clients: int, seed: int
) -> None:
    split, size = 64 * blocks, 64 * blocks + 8 * (words64 + 1)
    rng = np.random.default_rng(seed)
    messages = [rng.bytes(size) for _ in range(clients)]
    total = World().open(size, split)
    for index, message in enumerate(messages):
        send(total, f"n{index}", message)
    # Python integers, word by word, modulo the word: another way to the same sum.
    expected = b""
    for width, start, stop in ((4, 0, split), (8, split, size)):
        for at in range(start, stop, width):
            word = sum(int.from_bytes(m[at : at + width], "little") for m in messages)
            expected += (word % 2 ** (8 * width)).to_bytes(width, "little")
    assert bytes(total.result()) == expected
    assert total.survivors == tuple(f"n{index}" for index in range(clients))


def test_a_carry_does_not_cross_words() -> None:
    total = World().open(72, 64)
    send(total, "a", b"\xff" * 72)
    send(total, "b", b"\x01" + bytes(71))
    assert bytes(total.result()) == bytes(4) + b"\xff" * 68


def test_a_second_fold_of_one_node_is_named() -> None:
    total = World(slots=2).open(8, 0)
    send(total, "node 3", (5).to_bytes(8, "little"))
    for again in (total.fold, total.slot, total.discard):
        with pytest.raises(PeerError, match="node 3: "):
            again("node 3")
    assert int.from_bytes(total.result(), "little") == 5


def test_a_fold_needs_a_slot() -> None:
    with pytest.raises(PeerError, match="ghost: fold without a slot"):
        World().open(8, 0).fold("ghost")


def test_slots_are_the_back_pressure() -> None:
    total = World(slots=2).open(8, 0)
    first = total.slot("a")
    assert first is not None
    first[:] = bytes(range(8))
    assert total.slot("b") is not None
    assert total.slot("c") is None
    again = total.slot("a")
    assert again is not None
    assert bytes(again) == bytes(range(8))
    total.fold("a")
    assert total.slot("c") is not None
    assert total.slot("d") is None


def test_a_discarded_upload_leaves_no_trace_and_may_come_again() -> None:
    total = World().open(8, 0)
    slot = total.slot("a")
    assert slot is not None
    slot[:4] = b"half"
    total.discard("a")
    total.discard("never seen")
    assert not total.survivors
    send(total, "b", (1).to_bytes(8, "little"))
    send(total, "a", (2).to_bytes(8, "little"))
    assert int.from_bytes(total.result(), "little") == 3
    assert total.survivors == ("b", "a")


@pytest.mark.parametrize("freeze", [lambda t: t.unmask([]), lambda t: t.result()])
def test_nothing_comes_in_after_the_freeze(freeze: object) -> None:
    total = World(slots=2).open(8, 0)
    send(total, "a", bytes(8))
    total.slot("late")
    freeze(total)  # type: ignore[operator]
    for call in (total.slot, total.fold):
        with pytest.raises(PeerError, match="late: came after the survivors were frozen"):
            call("late")


def chacha(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(size))


def test_masks_come_off_again() -> None:
    split, size = 128, 128 + 40
    keys = [bytes([i]) * 32 for i in (1, 2)]
    plain = [np.random.default_rng(i).bytes(size) for i in (1, 2, 3)]

    def words(data: bytes) -> tuple[np.ndarray, np.ndarray]:
        return np.frombuffer(data[:split], "<u4"), np.frombuffer(data[split:], "<u8")

    total = World(slots=3).open(size, split)
    masked = list(plain)
    for sign, index in ((1, 0), (-1, 1)):
        mask = words(chacha(keys[index], size))
        sections = zip(words(plain[index]), mask, strict=True)
        masked[index] = b"".join((a + b if sign > 0 else a - b).tobytes() for a, b in sections)
    for index, message in enumerate(masked):
        send(total, str(index), message)
    total.unmask([(keys[0], -1), (bytearray(keys[1]), 1)])
    expected = b"".join(
        (a + b + c).tobytes() for a, b, c in zip(*(words(p) for p in plain), strict=True)
    )
    assert bytes(total.result()) == expected


def test_the_result_is_the_accumulator_and_a_closed_sum_starts_at_zero() -> None:
    world = World()
    total = world.open(16, 0)
    send(total, "a", b"\x07" * 16)
    result = total.result()
    total.unmask([(bytes(32), 1)])
    assert bytes(result) == bytes(total.result())
    assert bytes(result) != b"\x07" * 16
    total.close()
    fresh = world.open(16, 0)
    assert bytes(fresh.result()) == bytes(16)


def test_closing_wipes_what_was_masked() -> None:
    total = World(slots=2).open(8, 0)
    slots = [total.slot("a"), total.slot("b")]
    for slot in slots:
        assert slot is not None
        slot[:] = b"\xee" * 8
    total.fold("a")
    total.close()
    assert [bytes(slot) for slot in slots if slot is not None] == [bytes(8), bytes(8)]


def test_two_sums_are_open_at_a_time() -> None:
    world = World()
    train, evaluate = world.open(16, 0), world.open(16, 0)
    send(train, "a", b"\x01" * 16)
    send(evaluate, "a", b"\x02" * 16)
    assert bytes(train.result()) == b"\x01" * 16
    assert bytes(evaluate.result()) == b"\x02" * 16
    train.close()
    evaluate.close()
    evaluate.close()
    again = [world.open(16, 0), world.open(16, 0), world.open(16, 0)]
    for index, total in enumerate(again):
        send(total, "a", bytes([index]) * 16)
    assert [bytes(t.result()) for t in again] == [bytes([i]) * 16 for i in range(3)]


def test_memory_is_the_accumulator_and_the_slots() -> None:
    size = 4 << 20
    message = bytes(size)
    world = World(slots=2)
    tracemalloc.start()
    for _ in range(2):
        total = world.open(size, size - 64)
        for index in range(24):
            send(total, str(index), message)
        total.result()
        total.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size * 1.05


@pytest.mark.parametrize(
    ("size", "split"), [(0, 0), (12, 0), (72, 32), (64, 128), (64, -64), (-8, 0)]
)
def test_sizes_that_fit_no_layout(size: int, split: int) -> None:
    with pytest.raises(SettingsError, match=r"core\.message"):
        World().open(size, split)


def test_a_world_needs_a_slot() -> None:
    with pytest.raises(SettingsError, match=r"core\.slots"):
        World(slots=0)


# ---- messages that are kept ------------------------------------------------------------------


def kept(rule: str, clients: int, slots: int = 2) -> tuple[World, Sum]:
    world = World(slots)
    return world, world.open(96, 64, Keeping(Robust(rule=rule), Codec(clients, 1.0, 8)))


def message(value: int, weight: int) -> bytes:
    return np.full(16, value, "<i4").tobytes() + np.array([1, weight, 0, 1], "<u8").tobytes()


def test_kept_messages_have_a_slot_each_and_no_more() -> None:
    world, total = kept("median", 3)
    for index in range(3):
        send(total, f"n{index}", message(index, 2))
    assert total.memory == {"accumulators": 32, "messages": 3 * 96}
    assert np.frombuffer(total.numbers(), "<u8").tolist() == [3, 6, 0, 3]
    total.check(0)  # the firewall has looked at each
    total.close()
    again = world.open(96, 64, Keeping(Robust(rule="median"), Codec(3, 1.0, 8)))
    slot = again.slot("n9")
    assert slot is not None
    assert bytes(slot) == bytes(96)  # nothing of the round before is left in it


def test_a_discarded_message_gives_its_slot_to_another() -> None:
    _, total = kept("median", 2, slots=1)
    assert total.slot("bad") is not None
    assert total.slot("next") is None
    total.discard("bad")
    for node in ("a", "b"):
        send(total, node, message(1, 1))
    assert total.survivors == ("a", "b")


def test_a_stream_needs_no_more_for_a_hundred_than_for_its_lists() -> None:
    _, total = kept("trimmed-mean", 100)
    assert total.memory == {"accumulators": 32, "lists": (2 * 20 + 2) * 64, "slots": 2 * 96}
    for index in range(100):
        send(total, f"n{index}", message(index, 1))
    total.close()
