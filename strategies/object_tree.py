"""Flower's content-addressed objects, as bytes: read strictly, for every byte is a client's.

    object       TYPE " " child,child,… " " length NUL body       its id: SHA-256 of all of it, hex
    Message      children: its RecordDict
    RecordDict   body: JSON, record name -> id;   ArrayRecord: JSON, array name -> id
    Array        body: JSON {dtype, shape, stype, arraychunk_ids}; the last are indices into the
                 children, because equal chunks are stored once
    ArrayChunk   body: a piece of the array's .npy file

The id of the message is what Flower's SuperLink vouches for. Each object is hashed when it comes,
and names its children by their hashes, so what is read here is what the message's id stands for.
Pure: where objects come from is flower_objects.py.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from ..protocol.documents import read_json
from ..protocol.errors import Malformed

MAX_RECORDS = 1 << 24
"""Most bytes of all that is no chunk in one reply."""
MAX_CHILDREN = 1 << 16
LEAST_CHUNK = 1 << 14
"""An array may come in chunks of this size on average, not in smaller ones."""

_HEAD = re.compile(rb"([A-Za-z]{1,32}) ((?:[0-9a-f]{64}(?:,[0-9a-f]{64})*)?) (0|[1-9][0-9]{0,12})")


class Object(NamedTuple):
    """One object, its hash checked."""

    kind: str
    children: tuple[str, ...]
    body: memoryview


class ArrayParts(NamedTuple):
    """An Array without its numbers."""

    dtype: str
    stype: str
    chunks: tuple[str, ...]
    """Ids of the chunks, in order; one may stand there more than once."""


def read_object(peer: str, object_id: str, content: bytes) -> Object:
    """Return an object's parts.

    Raises:
        Malformed: The bytes have another hash, or are no object.
    """
    if hashlib.sha256(content).hexdigest() != object_id:
        raise Malformed(peer, "object", f"content of hash {object_id[:16]}…", "other content")
    end = content.find(b"\0", 0, MAX_RECORDS)
    found = _HEAD.fullmatch(content, 0, end) if end >= 0 else None
    if found is None:
        raise Malformed(peer, "object", "a head of type, children and length", "another")
    kind, children = found[1].decode(), found[2].decode()
    body = memoryview(content)[end + 1 :]
    if int(found[3]) != len(body):
        raise Malformed(peer, kind, f"a body of {int(found[3])} bytes", len(body))
    ids = tuple(children.split(",")) if children else ()
    if len(ids) > MAX_CHILDREN or len(set(ids)) != len(ids):
        raise Malformed(peer, kind, f"at most {MAX_CHILDREN} children, each once", len(ids))
    return Object(kind, ids, body)


def read_chunk(peer: str, object_id: str, content: bytes) -> memoryview:
    """Return the body of an ArrayChunk.

    Raises:
        Malformed: It is none, or an empty one.
    """
    chunk = read_object(peer, object_id, content)
    if chunk.kind != "ArrayChunk" or chunk.children or not chunk.body:
        raise Malformed(peer, "array", "chunks with bytes", f"{chunk.kind} of {len(chunk.body)}")
    return chunk.body


def the_records(peer: str, message: Object) -> str:
    """Return the id of a Message's RecordDict.

    Raises:
        Malformed: It is no Message with one child.
    """
    if message.kind != "Message" or len(message.children) != 1:
        got = f"{message.kind} with {len(message.children)}"
        raise Malformed(peer, "reply", "a Message with one child", got)
    return message.children[0]


def references(peer: str, record: Object, kind: str) -> dict[str, str]:
    """Return name -> id of a RecordDict or an ArrayRecord, in its order.

    Raises:
        Malformed: It is not of that kind, or names other objects than its children.
    """
    if record.kind != kind:
        raise Malformed(peer, "reply", kind, record.kind)
    named = _json(peer, kind, record.body)
    if not all(isinstance(value, str) for value in named.values()):
        raise Malformed(peer, kind, "an id for each name", "something else")
    if set(named.values()) != set(record.children):
        raise Malformed(peer, kind, "the ids of its children", "others")
    return named


def array_parts(peer: str, name: str, array: Object, nbytes: int) -> ArrayParts:
    """Return what an Array says of itself; `nbytes` are those of the model's array.

    Raises:
        Malformed: It is none, or has more chunks than an array of that size.
    """
    what = f"array {name!r}"
    if array.kind != "Array":
        raise Malformed(peer, what, "an Array", array.kind)
    body = _json(peer, what, array.body)
    if set(body) != {"dtype", "shape", "stype", "arraychunk_ids"}:
        raise Malformed(peer, what, "dtype, shape, stype and chunks", "other keys")
    places: Any = body["arraychunk_ids"]
    if not (isinstance(body["dtype"], str) and isinstance(body["stype"], str)):
        raise Malformed(peer, what, "texts as dtype and stype", "something else")
    known = len(array.children)
    if not isinstance(places, list) or not all(type(i) is int and 0 <= i < known for i in places):
        raise Malformed(peer, what, f"chunks from 0 to {known - 1}", "others")
    most = 2 + nbytes // LEAST_CHUNK
    if not len(set(places)) == known <= len(places) <= most:
        got = f"{len(places)}, {known} of them different"
        raise Malformed(peer, what, f"each chunk, at most {most}", got)
    return ArrayParts(body["dtype"], body["stype"], tuple(array.children[i] for i in places))


def _json(peer: str, what: str, body: memoryview) -> dict[str, Any]:
    try:
        found = read_json(bytes(body))
    except ValueError as error:
        raise Malformed(peer, f"{what}: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(peer, what, "a JSON object", type(found).__name__)
    return found
