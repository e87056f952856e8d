"""The message of a round: its bytes by hand, its rounding stream, its sums and its void rules."""

import hashlib
import math
import struct
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.codec import Codec
from umbel.protocol.errors import BadUpdate, Refused, SettingsError, VoidRound
from umbel.protocol.layout import MessageLayout, rounding_key
from umbel.protocol.manifest import Manifest
from umbel.tests.opened import mean, opened

KEY = bytes(range(32))
METRICS = {"z": 0, "loss": 24, "\u00e9": 24, "a.x": 0}
VALUES = {"z": -3, "loss": -1.5, "\u00e9": 0.0, "a.x": 2**36}

# n = 3: two bits of headroom, b = 30, Q = 2^29 - 1. With c = Q / 4 and w_cap = 4 the scale is
# exactly 1, so a value v of weight w has the code w * v, and integers need no rounding.
Q3 = 2**29 - 1
CODEC = Codec(3, Q3 / 4, 4)


def model() -> dict[str, NDArray[Any]]:
    return {
        "w": np.arange(17, dtype=np.float32),
        "steps": np.array(7, np.int64),
        "s": np.array(-2.0, np.float64),
        "empty": np.empty((0, 2), np.float32),
        "h": np.array([[1.0], [-3.0]], ml_dtypes.bfloat16),
    }


def deltas() -> dict[str, NDArray[Any]]:
    return {name: array for name, array in model().items() if name != "steps"}


def train(metrics: dict[str, int] | None = None) -> MessageLayout:
    return MessageLayout(Manifest.of(model()), METRICS if metrics is None else metrics, "train")


def add(layout: MessageLayout, *messages: bytes | bytearray) -> bytearray:
    """The server's fold, with Python integers."""
    total = bytearray()
    for size, end, start in ((4, layout.split, 0), (8, layout.total_bytes, layout.split)):
        for at in range(start, end, size):
            words = (int.from_bytes(m[at : at + size], "little") for m in messages)
            total += (sum(words) % 256**size).to_bytes(size, "little")
    return total


def test_the_message_by_hand() -> None:
    # Words: w at 0..16 and a gap to 32, s at 32 and a gap to 48, empty at 48, h at 48..49 and a
    # gap to 64. Then 1, w, saturated, the metrics by bytes (a.x, loss, z, é), 1.
    layout = train()
    assert (layout.words32, layout.split, layout.total_bytes) == (64, 256, 256 + 64)
    assert layout.places == {
        "w": slice(0, 17),
        "s": slice(32, 33),
        "empty": slice(48, 48),
        "h": slice(48, 50),
    }
    expected = struct.pack("<17i", *(3 * v for v in range(17))).ljust(128, b"\0")
    expected += struct.pack("<i", -6).ljust(64, b"\0")
    expected += struct.pack("<2i", 3, -9).ljust(64, b"\0")
    expected += struct.pack("<QQQqqqqQ", 1, 3, 0, 2**36, -3 * 2**23, -3, 0, 1)
    assert bytes(layout.build(deltas(), 3, VALUES, CODEC, KEY)) == expected
    # -1.5 * 2^24 modulo 2^64, little-endian
    assert expected[256 + 32 : 256 + 40] == bytes.fromhex("000080feffffffff")


def test_an_evaluation_has_no_section_32() -> None:
    layout = MessageLayout(Manifest.of(model()), {"loss": 24}, "evaluate")
    assert (layout.words32, layout.split, layout.total_bytes) == (0, 0, 40)
    message = layout.build(None, 1, {"loss": 0.5}, CODEC, KEY)
    assert bytes(message) == struct.pack("<5Q", 1, 1, 0, 2**23, 1)
    sums = opened(layout, add(layout, message, message), 2, CODEC)
    assert (sums.weight, sums.metrics, sums.words.size) == (2, {"loss": 1.0}, 0)
    assert mean(layout, sums, CODEC) == {}
    for weight, update in ((2, None), (1, deltas())):
        with pytest.raises(Refused, match="weight 1 and no deltas"):
            layout.build(update, weight, {"loss": 0.5}, CODEC, KEY)


def test_word_i_is_rounded_by_word_i_of_the_rounding_keys_stream() -> None:
    rng = np.random.default_rng(3)
    manifest = Manifest.lay_out([("a", (5,), "float32"), ("b", (70_001,), "float32")])
    layout = MessageLayout(manifest, {}, "train")
    update = {
        e.name: rng.normal(scale=0.02, size=e.size).astype(np.float32) for e in manifest.entries
    }
    codec = Codec(100, 0.1, 50)
    message = layout.build(update, 50, {}, codec, KEY)
    stream = Cipher(ChaCha20(KEY, bytes(16)), mode=None).encryptor().update(bytes(layout.split))
    clamped = 0
    for name, first in (("a", 0), ("b", 16)):
        for index in [0, 1, 4, *range(5, update[name].size, 997), update[name].size - 1]:
            at = 4 * (first + index)
            y = Fraction(codec.q_max / (0.1 * 50) * 50 * float(update[name][index]))
            u = Fraction(int.from_bytes(stream[at : at + 4], "little"), 2**32)
            q = math.floor(y) + (u < y - math.floor(y))
            clamped += abs(q) > codec.q_max
            q = max(-codec.q_max, min(codec.q_max, q))
            assert struct.unpack_from("<i", message, at) == (q,)
    assert message[20:64] == bytes(44)
    tail = 4 * (16 + 70_001)
    assert message[tail : layout.split] == bytes(layout.split - tail)
    assert struct.unpack_from("<Q", message, layout.split + 16)[0] >= clamped


def test_the_rounding_key_of_a_reproducible_run() -> None:
    fields = (b"umbel/rounding/1", b"7", b"12", b"3", b"train")
    packed = b"".join(len(f).to_bytes(8, "little") + f for f in fields)
    assert rounding_key(7, 12, 3, "train") == hashlib.sha256(packed).digest()
    others = {rounding_key(*a) for a in [(8, 12, 3, "train"), (7, 1, 23, "train")]}
    others |= {rounding_key(7, 12, 4, "train"), rounding_key(7, 12, 3, "evaluate")}
    assert len(others | {rounding_key(7, 12, 3, "train")}) == 5


def test_sums_of_several_clients() -> None:
    layout = train()
    clients: list[tuple[int, int, dict[str, float | int]]] = [
        (1, 4, {"z": -3, "loss": -1.5, "\u00e9": 2.0**-24, "a.x": 1}),
        (-1, 9, {"z": 1, "loss": 0.25, "\u00e9": 2.0**-25, "a.x": 2}),  # 9 is capped to 4
        (-1, 2, {"z": -5, "loss": 3, "\u00e9": 0, "a.x": 3}),
    ]
    messages = [
        layout.build({n: sign * a for n, a in deltas().items()}, weight, values, CODEC, KEY)
        for sign, weight, values in clients
    ]
    sums = opened(layout, add(layout, *messages), 3, CODEC)
    # 2^-25 is half a step and goes to the even one, zero.
    assert sums.metrics == {"a.x": 6, "loss": 1.75, "z": -7, "\u00e9": 2.0**-24}
    assert list(sums.metrics) == ["a.x", "loss", "z", "\u00e9"]
    assert [type(v) for v in sums.metrics.values()] == [int, float, int, float]
    assert (sums.weight, sums.saturated) == (10, 0)
    # (4 - 4 - 2) / 10 of each delta
    means = mean(layout, sums, CODEC)
    assert means["w"].tolist() == [float(np.float32(-0.2 * v)) for v in range(17)]
    assert {n: (a.dtype, a.shape) for n, a in means.items()} == {
        n: (a.dtype, a.shape) for n, a in deltas().items()
    }
    assert means["s"] == 0.4
    assert means["h"].astype(float).tolist() == [
        [float(ml_dtypes.bfloat16(-0.2))],
        [float(ml_dtypes.bfloat16(0.6))],
    ]


def test_saturation_travels_in_the_sum() -> None:
    layout = train({})
    large = {name: np.full(a.shape, 1e30) for name, a in deltas().items()}
    message = layout.build(large, 4, {}, CODEC, KEY)
    assert opened(layout, add(layout, message, message), 2, CODEC).saturated == 2 * 20
    assert set(np.frombuffer(message, "<i4", 17)) == {Q3}


def test_a_frozen_layer_comes_back_as_exact_zeros_beside_one_that_moves() -> None:
    layout = MessageLayout(Manifest.of({"w": model()["w"], "f": np.ones(9)}), {}, "train")
    codec = Codec(3, 100.0, 9)
    messages = [
        layout.build(
            {"w": model()["w"], "f": np.zeros(9)}, 1 + i, {}, codec, rounding_key(1, 2, i, "train")
        )
        for i in range(3)
    ]
    means = mean(layout, opened(layout, add(layout, *messages), 3, codec), codec)
    assert means["f"].tobytes() == bytes(72)
    assert np.abs(means["w"] - model()["w"]).max() < 1e-4


@pytest.mark.parametrize("make", ["strided", "fortran", "big-endian", "float64"])
def test_deltas_in_another_memory_layout_give_the_same_message(make: str) -> None:
    plain = np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32)
    wide = np.zeros((6, 16), np.float32)
    wide[:, ::2] = plain
    other = {
        "strided": wide[:, ::2],
        "fortran": np.asfortranarray(plain),
        "big-endian": plain.astype(">f4"),
        "float64": plain.astype(np.float64),
    }[make]
    layout = MessageLayout(Manifest.of({"x": plain}), {}, "train")
    codec = Codec(10, 5.0, 4)
    expected = layout.build({"x": plain}, 2, {}, codec, KEY)
    assert layout.build({"x": other}, 2, {}, codec, KEY) == expected


@pytest.mark.parametrize(("members", "exponent"), [(1, 38), (3, 36), (100, 31), (1000, 28)])
def test_metrics_at_their_bound_pass_and_beyond_it_are_refused(members: int, exponent: int) -> None:
    layout = MessageLayout(Manifest.of({}), {"n": 0, "x": 24}, "evaluate")
    codec = Codec(members, 1.0, 1)
    bound = 2**exponent
    messages = [
        layout.build(None, 1, {"n": sign * bound, "x": sign * float(bound)}, codec, KEY)
        for sign in (1, -1)
    ]
    for sign, message in zip((1, -1), messages, strict=True):
        # The whole roster at its bound stays within 64 bits.
        section = np.frombuffer(message, "<u8") * np.uint64(members)
        sums = opened(layout, section.tobytes(), members, codec)
        assert sums.metrics == {"n": sign * members * bound, "x": float(sign * members * bound)}
    for bad in ({"n": bound + 1}, {"n": -bound - 1}, {"x": math.nextafter(bound, math.inf)}):
        with pytest.raises(Refused, match=f"beyond {bound}") as caught:
            layout.build(None, 1, {"n": 0, "x": 0.0, **bad}, codec, KEY)
        assert caught.value.reason == pb.REASON_LIMITS
        assert caught.value.key == next(iter(bad))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"other": 1}, pb.REASON_UNDECLARED_METRIC),
        ({"x": math.nan}, pb.REASON_NOT_FINITE),
        ({"x": -math.inf}, pb.REASON_NOT_FINITE),
        ({"x": "0.5"}, pb.REASON_TASK_FAILED),
        ({"x": True}, pb.REASON_TASK_FAILED),
        ({"n": 1.0}, pb.REASON_TASK_FAILED),
        ({"n": 10**400}, pb.REASON_LIMITS),
        ({"x": 10**400}, pb.REASON_LIMITS),
    ],
)
def test_metrics_that_cannot_be_summed_are_refused(change: dict[str, Any], reason: int) -> None:
    layout = MessageLayout(Manifest.of({}), {"n": 0, "x": 24}, "evaluate")
    with pytest.raises(Refused) as caught:
        layout.build(None, 1, {"n": 1, "x": 0.5, **change}, CODEC, KEY)
    assert caught.value.reason == reason


def test_a_declared_metric_that_was_not_given_is_refused() -> None:
    layout = MessageLayout(Manifest.of({}), {"n": 0}, "evaluate")
    with pytest.raises(Refused, match="'n' is declared, not given"):
        layout.build(None, 1, {}, CODEC, KEY)


def test_updates_that_may_not_leave_are_refused() -> None:
    layout = train()
    with pytest.raises(Refused) as caught:
        layout.build({**deltas(), "s": np.array(math.nan)}, 1, VALUES, CODEC, KEY)
    assert caught.value.reason == pb.REASON_NOT_FINITE
    with pytest.raises(BadUpdate, match=r"delta 'h': expected float \(2, 1\)"):
        layout.build({**deltas(), "h": np.zeros(2)}, 1, VALUES, CODEC, KEY)
    with pytest.raises(BadUpdate, match="got none of that name"):
        layout.build(None, 1, VALUES, CODEC, KEY)
    with pytest.raises(Refused, match="no positive integer"):
        layout.build(deltas(), 0, VALUES, CODEC, KEY)


def honest_total() -> tuple[MessageLayout, bytearray]:
    layout = train()
    values = {"z": 1, "loss": 0.5, "\u00e9": 0.0, "a.x": 1}
    message = layout.build(deltas(), 4, values, CODEC, KEY)
    return layout, add(layout, message, message)


@pytest.mark.parametrize(
    ("at", "code", "value", "what"),
    [
        (256, "<Q", 1, "the ones do not sum to 2"),
        (256, "<Q", 3, "the ones do not sum to 2"),
        (312, "<Q", 3, "the ones do not sum to 2"),
        (264, "<Q", 1, r"weights do not sum to 2\.\.8"),
        (264, "<Q", 0, r"weights do not sum to 2\.\.8"),
        (264, "<Q", 9, r"weights do not sum to 2\.\.8"),
        (264, "<Q", 2**64 - 8, r"weights do not sum to 2\.\.8"),
        (0, "<i", 2 * Q3 + 1, "a sum lies beyond"),
        (252, "<i", -2 * Q3 - 1, "a sum lies beyond"),
        (128, "<i", -(2**31), "a sum lies beyond"),
    ],
)
def test_a_sum_that_breaks_a_rule_is_void(at: int, code: str, value: int, what: str) -> None:
    layout, total = honest_total()
    assert opened(layout, total, 2, CODEC).weight == 8
    struct.pack_into(code, total, at, value)
    with pytest.raises(VoidRound, match=f"masks did not cancel: .*{what}"):
        opened(layout, total, 2, CODEC)


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [(264, "<Q", 2), (264, "<Q", 8), (0, "<i", 2 * Q3), (252, "<i", -2 * Q3)],
)
def test_a_sum_at_a_rules_edge_is_not_void(at: int, code: str, value: int) -> None:
    layout, total = honest_total()
    struct.pack_into(code, total, at, value)
    opened(layout, total, 2, CODEC)


def test_a_survivor_too_many_or_too_few_is_void() -> None:
    layout, total = honest_total()
    for survivors in (1, 3):
        with pytest.raises(VoidRound, match="masks did not cancel"):
            opened(layout, total, survivors, CODEC)
    for survivors in (0, 4):
        with pytest.raises(ValueError, match=r"1\.\.3"):
            opened(layout, total, survivors, CODEC)


def test_an_evaluation_whose_weight_is_not_one_each_is_void() -> None:
    layout = MessageLayout(Manifest.of(model()), {}, "evaluate")
    with pytest.raises(VoidRound, match=r"weights do not sum to 2\.\.2"):
        opened(layout, struct.pack("<4Q", 2, 3, 0, 2), 2, CODEC)


def test_a_sum_of_another_length_is_no_sum_of_this_layout() -> None:
    layout, total = honest_total()
    with pytest.raises(ValueError, match="a sum has 64 bytes of numbers, got 56"):
        opened(layout, total[:-8], 2, CODEC)


def test_what_cannot_be_laid_out_is_named() -> None:
    manifest = Manifest.of(model())
    with pytest.raises(SettingsError, match="phase: expected train or evaluate, got 'test'"):
        MessageLayout(manifest, {}, "test")
    with pytest.raises(
        SettingsError, match="metric loss: expected 24 or 0 fractional bits, got 16"
    ):
        MessageLayout(manifest, {"loss": 16}, "train")
    with pytest.raises(SettingsError, match="metric name"):
        MessageLayout(manifest, {"": 24}, "train")
    with pytest.raises(SettingsError, match="metrics: expected at most 256, got 257"):
        MessageLayout(manifest, {str(i): 0 for i in range(257)}, "train")


def test_an_undeclared_metric_of_any_length_is_named_in_short() -> None:
    layout = MessageLayout(Manifest.of({}), {}, "train")
    codec, key = Codec(3, 1.0, 1), bytes(32)
    with pytest.raises(Refused, match=r"metric 'xxx.* is not declared") as caught:
        layout.build({}, 1, {"x" * 100_000: 1}, codec, key)
    assert len(str(caught.value)) < 320
