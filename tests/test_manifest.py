"""The manifest: its layout by hand, round trips, what it refuses, and the layout digest."""

import hashlib
import json
import struct
import unicodedata
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from umbel.protocol.errors import BadUpdate, Malformed, SettingsError
from umbel.protocol.manifest import Entry, Manifest, Section

DTYPES = ["bfloat16", "bool", "float16", "float32", "float64"]
DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def tiny() -> dict[str, NDArray[Any]]:
    return {
        "w": np.array([[1.0, -2.0, 3.5]], np.float32),
        "steps": np.array(258, np.int64),
        "h": np.array([1.0, -1.0], ml_dtypes.bfloat16),
        "scale": np.array(0.5, np.float64),
        "b": np.array([0.25], np.float32),
        "none": np.empty((0, 4), np.float32),
        "mask": np.array([True, False, True]),
    }


def test_the_layout_by_hand() -> None:
    # Sections by dtype name: bfloat16, bool, float32, float64, int64; each array on 64 bytes.
    manifest = Manifest.of(tiny())
    assert manifest.entries == (
        Entry("w", (1, 3), "float32", "32", 128, 12),
        Entry("steps", (), "int64", "none", 320, 8),
        Entry("h", (2,), "bfloat16", "32", 0, 4),
        Entry("scale", (), "float64", "32", 256, 8),
        Entry("b", (1,), "float32", "32", 192, 4),
        Entry("none", (0, 4), "float32", "32", 256, 0),
        Entry("mask", (3,), "bool", "none", 64, 3),
    )
    assert manifest.sections == (
        Section("bfloat16", 0, 64),
        Section("bool", 64, 64),
        Section("float32", 128, 128),
        Section("float64", 256, 64),
        Section("int64", 320, 64),
    )
    assert manifest.total_bytes == 384


def test_the_bytes_by_hand() -> None:
    expected = b"".join(
        part.ljust(64, b"\0")
        for part in (
            bytes.fromhex("803f80bf"),  # bfloat16 is the upper half of float32: 3f80, bf80
            b"\x01\x00\x01",
            struct.pack("<3f", 1.0, -2.0, 3.5),
            struct.pack("<f", 0.25),
            struct.pack("<d", 0.5),
            struct.pack("<q", 258),
        )
    )
    assert bytes(Manifest.of(tiny()).pack(tiny())) == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6
    ),
    st.integers(0, 2**32 - 1),
)
def test_what_was_packed_comes_back(kinds: list[tuple[str, list[int]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        f"layer.{i}": (rng.normal(size=shape) * 100).astype(dtype(name))
        for i, (name, shape) in enumerate(kinds)
    }
    manifest = Manifest.of(arrays)
    buffer = manifest.pack(arrays)
    assert len(buffer) == manifest.total_bytes == sum(s.nbytes for s in manifest.sections)
    assert all(e.offset % 64 == 0 for e in manifest.entries)
    back = manifest.unpack(bytes(buffer))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()
    assert manifest.pack(back) == buffer
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_strided_fortran_and_big_endian_arrays_give_the_same_bytes() -> None:
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    manifest = Manifest.of({"x": plain})
    wide = np.zeros((8, 12), np.float32)
    wide[::2, ::2] = plain
    for other in (np.asfortranarray(plain), wide[::2, ::2], plain.astype(">f4")):
        assert Manifest.of({"x": other}) == manifest
        assert manifest.pack({"x": other}) == manifest.pack({"x": plain})


def test_nan_payloads_and_signed_zeros_are_bytes_like_others() -> None:
    bits = np.array([0x7FC00001, 0x80000000, 0xFF800000], np.uint32)
    arrays = {"x": bits.view(np.float32)}
    manifest = Manifest.of(arrays)
    assert manifest.unpack(manifest.pack(arrays))["x"].view(np.uint32).tolist() == bits.tolist()


def test_unpack_copies_and_views_do_not() -> None:
    manifest = Manifest.of(tiny())
    buffer = manifest.pack(tiny())
    copies, views = manifest.unpack(buffer), manifest.views(buffer)
    views["scale"][...] = 8.0
    assert struct.unpack_from("<d", buffer, 256) == (8.0,)
    assert copies["scale"] == 0.5
    assert all(array.flags.owndata and array.flags.writeable for array in copies.values())
    assert not manifest.views(bytes(buffer))["w"].flags.writeable


@pytest.mark.parametrize("length", [0, 383, 385])
def test_a_buffer_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(Malformed, match=f"expected 384 bytes, got {length}"):
        Manifest.of(tiny()).unpack(bytes(length))


@pytest.mark.parametrize("at", [67, 127, 383])
def test_a_gap_that_is_not_zero_is_refused(at: int) -> None:
    """The bools of `tiny` stand in 64 to 66, its last array ends at 328."""
    manifest = Manifest.of(tiny())
    buffer = manifest.pack(tiny())
    assert buffer[at] == 0
    buffer[at] = 1
    with pytest.raises(Malformed, match=r"^model: bytes (before|after)"):
        manifest.unpack(buffer)


def test_a_bool_that_is_neither_0_nor_1_is_refused() -> None:
    manifest = Manifest.of(tiny())
    buffer = manifest.pack(tiny())
    buffer[65] = 2
    with pytest.raises(Malformed, match="array 'mask'"):
        manifest.unpack(buffer)


def test_check_names_the_array_what_was_expected_and_what_came() -> None:
    manifest = Manifest.of(tiny())
    manifest.check(tiny(), "node 7")
    for change, message in [
        (
            {"w": np.zeros((3, 1), np.float32)},
            r"'w': expected float32 \(1, 3\), got float32 \(3, 1\)",
        ),
        ({"w": np.zeros((1, 3))}, r"'w': expected float32 \(1, 3\), got float64 \(1, 3\)"),
        ({"steps": np.array(3, np.int32)}, r"'steps': expected int64 \(\), got int32 \(\)"),
        ({"h": np.zeros(2, np.float16)}, r"'h': expected bfloat16 \(2,\), got float16 \(2,\)"),
        ({"extra": np.zeros(1)}, "expected 7 known names, got 'extra'"),
        ({"w": [[1.0, 2.0, 3.0]]}, "'w': expected a numpy array, got list"),
    ]:
        with pytest.raises(BadUpdate, match=f"^node 7: .*{message}"):
            manifest.check({**tiny(), **change}, "node 7")  # type: ignore[dict-item]
    missing = tiny()
    del missing["b"]
    with pytest.raises(BadUpdate, match="node 7: arrays: expected 'b', got none of that name"):
        manifest.check(missing, "node 7")
    with pytest.raises(BadUpdate, match="own model"):
        manifest.pack(missing)


def test_deltas_are_the_float_arrays_in_any_float_dtype() -> None:
    manifest = Manifest.of(tiny())
    assert [entry.name for entry in manifest.averaged] == ["w", "h", "scale", "b", "none"]
    deltas = {entry.name: np.zeros(entry.shape, np.float32) for entry in manifest.averaged}
    manifest.check_deltas(deltas, "node 7")
    # Integer buffers have no delta: they stay on the device.
    with pytest.raises(BadUpdate, match="expected 5 known names, got 'steps'"):
        manifest.check_deltas({**deltas, "steps": np.zeros((), np.float32)}, "node 7")
    with pytest.raises(BadUpdate, match=r"delta 'b': expected float \(1,\), got int64 \(1,\)"):
        manifest.check_deltas({**deltas, "b": np.zeros(1, np.int64)}, "node 7")
    with pytest.raises(BadUpdate, match=r"delta 'w': expected float \(1, 3\), got float32 \(3,\)"):
        manifest.check_deltas({**deltas, "w": np.zeros(3, np.float32)}, "node 7")


@pytest.mark.parametrize("name", ["complex64", "object", "<U3", "datetime64[s]", "longdouble"])
def test_other_dtypes_are_no_part_of_a_model(name: str) -> None:
    with pytest.raises(SettingsError, match="model array 'x': expected a dtype of bfloat16"):
        Manifest.of({"x": np.zeros(2, name)})


DECOMPOSED = unicodedata.normalize("NFD", "\u00e9")


@pytest.mark.parametrize("name", ["", "a" * 513, DECOMPOSED, "a\nb", "\ud800", "\x1b[31m"])
def test_names_that_no_digest_can_hold_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="model array name"):
        Manifest.lay_out([(name, (1,), "float32")])


def test_limits_and_repeats_are_refused() -> None:
    cases: list[tuple[list[tuple[str, tuple[int, ...], str]], str]] = [
        ([("x", (1,), "float32"), ("x", (2,), "float64")], "each array name once"),
        ([("x", (1,) * 33, "float32")], "32 dimensions"),
        ([("x", (2**40 + 1,), "int8")], "32 dimensions"),
        ([("x", (0, 2**30, 2**30), "int8")], "32 dimensions"),
        ([("x", (2**38 + 1,), "float32")], f"at most {2**40} bytes"),
        ([(str(i), (), "int8") for i in range(2**16 + 1)], "at most 65536 arrays"),
    ]
    for arrays, message in cases:
        with pytest.raises(SettingsError, match=message):
            Manifest.lay_out(arrays)


def test_entries_in_another_layout_are_refused() -> None:
    with pytest.raises(SettingsError, match="manifest: expected the entries of its own layout"):
        Manifest((Entry("w", (1,), "float32", "32", 64, 4),))


def entry(**change: object) -> dict[str, object]:
    return {"name": "w", "shape": [2], "dtype": "float32", **change}


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        '{"arrays": 3}',
        '{"arrays": [], "offset": 0}',
        '{"arrays": [3]}',
        '{"arrays": [{"name": "w", "shape": [2]}]}',
        b"\xff\xfe\xff",
        *(
            json.dumps({"arrays": [entry(**change)]})
            for change in (
                {"name": 3},
                {"name": ""},
                {"shape": 2},
                {"shape": [-1]},
                {"shape": [True]},
                {"shape": [2.0]},
                {"shape": [2**40, 2**40]},
                {"dtype": "O"},
                {"dtype": ["float32"]},
                {"offset": 64},
            )
        ),
        json.dumps({"arrays": [entry(), entry()]}),
        '{"arrays": [{"name": "w", "shape": [1' + "0" * 5000 + '], "dtype": "int8"}]}',
    ],
)
def test_json_that_is_no_manifest_names_the_peer(document: str | bytes) -> None:
    with pytest.raises(Malformed, match=r"^gateway: "):
        Manifest.from_json(document, "gateway")


def lp(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def test_the_layout_digest_by_hand() -> None:
    # The entries sorted by the bytes of their keys, each lp(key) lp(tag) lp(value).
    arrays: dict[str, NDArray[Any]] = {
        "w": np.zeros((2, 3), ml_dtypes.bfloat16),
        "n": np.array(1, np.int64),
    }
    lines = [
        (b"array.0.dtype", b"s", b"bfloat16"),
        (b"array.0.name", b"s", b"w"),
        (b"array.0.section", b"s", b"32"),
        (b"array.0.shape", b"s", b"2,3"),
        (b"array.1.dtype", b"s", b"int64"),
        (b"array.1.name", b"s", b"n"),
        (b"array.1.section", b"s", b"none"),
        (b"array.1.shape", b"s", b""),
        (b"metric.eval.examples", b"i", b"0"),
        (b"metric.eval.loss", b"i", b"24"),
    ]
    expected = hashlib.sha256(b"".join(lp(part) for line in lines for part in line)).digest()
    metrics = {"eval.loss": 24, "eval.examples": 0}
    assert Manifest.of(arrays).layout_digest(metrics) == expected


def test_the_layout_digest_follows_names_order_shapes_dtypes_and_metrics() -> None:
    base = [("a", (2, 3), "float32"), ("b", (1,), "int8")]
    variants = [
        base,
        base[::-1],
        [("A", (2, 3), "float32"), base[1]],
        [("a", (3, 2), "float32"), base[1]],
        [("a", (2, 3), "float64"), base[1]],
        base[:1],
    ]
    digests = {Manifest.lay_out(v).layout_digest({"m": 24}) for v in variants}
    digests.add(Manifest.lay_out(base).layout_digest({"m": 0}))
    digests.add(Manifest.lay_out(base).layout_digest({}))
    assert len(digests) == len(variants) + 2
