"""What devices answer in Flower's own messages: arrays that are whole, and trees of objects."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord

from umbel.protocol.errors import BadUpdate, Malformed
from umbel.strategies import object_tree
from umbel.strategies.flower_fedavg import _readable
from umbel.strategies.flower_replies import whole
from umbel.strategies.landing import Landing
from umbel.tests.fuzz_protocol import ARRAYS
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MODEL = {"w": ARRAYS["w"]}


def _flower(model: Mapping[str, NDArray[Any]] | None, data: bytes) -> bytes:
    record = ArrayRecord({"w": Array("float32", (3, 5), "numpy.ndarray", data)})
    landing = Landing(_readable(record) if model is None else model)
    landing.take("node 1", whole(record), 1.0)
    return b"".join(array.tobytes() for array in landing.mean().values())


def _headers() -> list[bytes]:
    shapes = ("(3, 5)", "(15,)", "(0, 10)", "()")
    return [
        f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        for kind in ("<f4", "<f8", "|b1")
        for shape in shapes
    ] + list(_CRAFTED)


_CRAFTED = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1" + b"0" * 30 + b"), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 5L), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -5), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (0,), }",
    b"{'descr': '|S0', 'fortran_order': False, 'shape': (9,), }",
    b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (15,), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 15), }",
    b"(" * 9000,
    b"(" * 90,
    b"'''",
    b"{'descr': 7, 'fortran_order': False, 'shape': (3, 5), }",
    b"\\\n\\",
)


def _npy(header: bytes) -> bytes:
    """Return .npy bytes with this header, and the 60 bytes of the model's array."""
    length = len(header).to_bytes(2, "little") if len(header) < 65536 else b"\xff\xff"
    return b"\x93NUMPY\x01\x00" + length + header + ARRAYS["w"].astype("<f4").tobytes()


IDS = tuple(sha256(bytes([n])).hexdigest() for n in range(3))


def _object(kind: str, children: tuple[str, ...], body: bytes) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def _tree(data: bytes) -> Any:
    """Read an object as whatever it says that it is."""
    found = object_tree.read_object("node 1", sha256(data).hexdigest(), data)
    if found.kind == "Message":
        return object_tree.the_records("node 1", found)
    if found.kind == "Array":
        parts = object_tree.array_parts("node 1", "w", found, 1 << 20)
        assert set(parts.chunks) == set(found.children)
        return parts
    if found.kind == "ArrayChunk":
        return bytes(object_tree.read_chunk("node 1", sha256(data).hexdigest(), data))
    return object_tree.references("node 1", found, found.kind)


ARRAY = {"dtype": "float32", "shape": [3, 5], "stype": "numpy.ndarray"}


def _bodies() -> list[bytes]:
    return [
        json.dumps({"w": IDS[0], "b": IDS[1], "again": IDS[2]}).encode(),
        json.dumps(ARRAY | {"arraychunk_ids": [0, 1, 1, 2, 0]}).encode(),
    ]


def _objects() -> list[bytes]:
    one, other = _bodies()
    return [
        _object("Message", IDS[:1], b"\x0a\x02\x08\x01"),
        _object("RecordDict", IDS, one),
        _object("ArrayRecord", IDS, one),
        _object("Array", IDS, other),
        _object("ArrayChunk", (), ARRAYS["w"].tobytes()),
    ]


def _headed(body: bytes) -> bytes:
    """Return an object with an honest head for a body: what its JSON's keys let it be."""
    return _object("Array" if b"dtype" in body else "ArrayRecord", IDS, body)


FLOWER = (
    Parser(
        name="landing.take", form="lines", errors=(BadUpdate,), seal=_npy, make=_headers,
        parse=lambda data: _flower(MODEL, data),
    ),
    Parser(
        name="landing.take, first", form="lines", errors=(BadUpdate,), seal=_npy,
        make=_headers, parse=lambda data: _flower(None, data),
    ),
    Parser(name="object_tree", errors=(Malformed,), make=_objects, parse=_tree),
    Parser(
        name="object_tree, bodies", form="json", errors=(Malformed,), make=_bodies, parse=_tree,
        seal=_headed,
    ),
)  # fmt: skip
