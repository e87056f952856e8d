"""Flower's objects: what its own classes write is read, and what a client made up is not."""

from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from umbel.protocol.errors import Malformed
from umbel.strategies.object_tree import (
    LEAST_CHUNK,
    Object,
    array_parts,
    read_chunk,
    read_object,
    references,
    the_records,
)
from umbel.tests.flower_grid import identified

IDS = tuple(sha256(bytes([n])).hexdigest() for n in range(4))


def read(content: bytes) -> Object:
    return read_object("node 1", sha256(content).hexdigest(), content)


def made(kind: str, children: tuple[str, ...], body: bytes) -> Object:
    return read(f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body)


def test_a_message_of_flowers_is_read_to_its_last_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    identified(monkeypatch)
    zeros = np.zeros(4_000_000, np.float32)  # four chunks, of which two are equal
    content = RecordDict(
        {
            "model": ArrayRecord({"a": Array(zeros), "b": Array(zeros), "c": Array(np.arange(3))}),
            "metrics": MetricRecord({"num-examples": 3}),
        }
    )
    message = Message(content, dst_node_id=2, message_type="train")
    store = {i: o.deflate() for i, o in get_all_nested_objects(message).items()}

    def get(object_id: str) -> Object:
        return read_object("node 1", object_id, store[object_id])

    records = references("n", get(the_records("n", get(message.object_id))), "RecordDict")
    assert list(records) == ["model", "metrics"]
    arrays = references("n", get(records["model"]), "ArrayRecord")
    assert list(arrays) == ["a", "b", "c"]
    assert arrays["a"] == arrays["b"]
    parts = array_parts("n", "a", get(arrays["a"]), zeros.nbytes)
    assert (parts.dtype, parts.stype) == ("float32", "numpy.ndarray")
    assert len(parts.chunks) == 4
    assert len(set(parts.chunks)) == 3
    data = b"".join(read_chunk("n", i, store[i]) for i in parts.chunks)
    assert data == content.array_records["model"]["a"].data


def test_other_content_than_the_ids_is_refused() -> None:
    content = b"ArrayChunk  3\0abc"
    with pytest.raises(Malformed, match="node 1: object: expected content of hash"):
        read_object("node 1", IDS[0], content)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"ArrayChunk", b"ArrayChunk  3", b"ArrayChunk 3\0abc", b"ArrayChunk   3\0abc",
        b"ArrayChunk  03\0abc", b"ArrayChunk  -3\0abc", b"ArrayChunk  3.0\0abc",
        b"ArrayChunk  4\0abc", b"ArrayChunk  2\0abc", b"Array\nChunk  3\0abc",
        b"Array,Chunk  3\0abc", f"Array {IDS[0][:-1]} 3\0abc".encode(),
        f"Array {IDS[0].upper()} 3\0abc".encode(), f"Array {IDS[0]},{IDS[0]} 3\0abc".encode(),
        f"Array {IDS[0]}, 3\0abc".encode(), b"Array  99999999999999\0abc",
        b"ArrayChunk  \xd9\xa3\0abc",
    ],
)  # fmt: skip
def test_no_object(content: bytes) -> None:
    with pytest.raises(Malformed):
        read(content)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b'{"w": 1}', b'{"w": null}', b'{"w": ["x"]}', b"\xff",
        json.dumps({"w": IDS[0]}).encode(), json.dumps({"w": IDS[0], "v": IDS[2]}).encode(),
        json.dumps({"w": IDS[0], "v": IDS[1], "u": IDS[2]}).encode(), b"[" * 99999,
    ],
)  # fmt: skip
def test_no_references(body: bytes) -> None:
    with pytest.raises(Malformed):
        references("node 1", made("ArrayRecord", IDS[:2], body), "ArrayRecord")


GOOD = {"dtype": "float32", "shape": [3], "stype": "numpy.ndarray", "arraychunk_ids": [0, 1, 0]}


@pytest.mark.parametrize(
    "change",
    [
        {"arraychunk_ids": [0, 0]}, {"arraychunk_ids": [0, 1, 2]}, {"arraychunk_ids": [0, -1]},
        {"arraychunk_ids": [0, True]}, {"arraychunk_ids": [0, 1.0]}, {"arraychunk_ids": "01"},
        {"arraychunk_ids": None}, {"arraychunk_ids": [0, 1] * 99}, {"dtype": 4}, {"stype": None},
        {"more": 1},
    ],
)  # fmt: skip
def test_no_array(change: dict[str, object]) -> None:
    array = made("Array", IDS[:2], json.dumps(GOOD).encode())
    assert array_parts("node 1", "w", array, LEAST_CHUNK).chunks == (IDS[0], IDS[1], IDS[0])
    bad = made("Array", IDS[:2], json.dumps(GOOD | change).encode())
    with pytest.raises(Malformed, match="array 'w'"):
        array_parts("node 1", "w", bad, LEAST_CHUNK)


def test_kinds_are_not_taken_for_each_other() -> None:
    record = made("ArrayRecord", (), b"{}")
    assert references("node 1", record, "ArrayRecord") == {}
    with pytest.raises(Malformed, match="expected RecordDict, got ArrayRecord"):
        references("node 1", record, "RecordDict")
    with pytest.raises(Malformed, match="expected an Array, got ArrayRecord"):
        array_parts("node 1", "w", record, 1)
    with pytest.raises(Malformed, match="expected a Message with one child"):
        the_records("node 1", record)
    content = b"Array  3\0abc"
    with pytest.raises(Malformed, match="chunks with bytes"):
        read_chunk("node 1", sha256(content).hexdigest(), content)
    empty = b"ArrayChunk  0\0"
    with pytest.raises(Malformed, match="chunks with bytes"):
        read_chunk("node 1", sha256(empty).hexdigest(), empty)
