"""Flower's records as JSON and blobs, and back: what a Grid and a worker send each other.

    content     [[key, "array", [[name, dtype, shape, stype, blob], …]], [key, "metric", blob], …]
    blob        index into a list of bytes

The bytes of an array go through as they are, nothing is decoded. Metric and config records are
Flower's own bytes (`deflate`, `inflate`). What comes back is made anew each time: a client may do
with its message what it likes, and only the bytes, which nobody can change, are shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ...protocol.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Content = list[list[Any]]
_KINDS: dict[str, type[MetricRecord | ConfigRecord]] = {
    "metric": MetricRecord,
    "config": ConfigRecord,
}


class Blobs:
    """Bytes that are to travel, each object once."""

    def __init__(self) -> None:
        """Have none."""
        self.data: list[bytes] = []
        self._places: dict[int, int] = {}

    def place(self, data: bytes) -> int:
        """Return the index of these bytes, which are kept: so no other object takes their id."""
        if id(data) not in self._places:
            self._places[id(data)] = len(self.data)
            self.data.append(data)
        return self._places[id(data)]


def encoded(records: RecordDict, place: Callable[[bytes], int]) -> Content:
    """Return what records say; their bytes go to `place`, which returns where it has put them."""
    content: Content = []
    for key, record in records.items():
        if isinstance(record, ArrayRecord):
            arrays = [
                [name, array.dtype, list(array.shape), array.stype, place(array.data)]
                for name, array in record.items()
            ]
            content.append([key, "array", arrays])
        else:
            kind = "metric" if isinstance(record, MetricRecord) else "config"
            content.append([key, kind, place(record.deflate())])
    return content


def decoded(content: Content, blob: Callable[[int], bytes], peer: str) -> RecordDict:
    """Return the records that somebody encoded.

    Raises:
        Malformed: They are none.
    """
    try:
        records = RecordDict()
        for key, kind, body in content:
            if kind == "array":
                arrays = {
                    name: Array(dtype, tuple(shape), stype, blob(place))
                    for name, dtype, shape, stype, place in body
                }
                records[key] = ArrayRecord(arrays)
            else:
                records[key] = _KINDS[kind].inflate(blob(body))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Malformed(peer, f"records: {error}") from None
    return records


def same(content: Content, blobs: Sequence[bytes], other: Content, others: Sequence[bytes]) -> bool:
    """Tell whether two encodings say the same."""
    return content == other and len(blobs) == len(others) and all(map(_equal, blobs, others))


def _equal(one: bytes, other: bytes) -> bool:
    return one is other or one == other
