"""The manifest: named arrays as one flat buffer, and back.

Arrays of one dtype stand together in a section. Sections are sorted by the dtype's name, the
arrays of a section keep their order in the manifest. Every array and every section starts at
a multiple of 64 bytes and the whole is filled up to one; bytes are little-endian, gaps zero.
So the layout follows from names, shapes and dtypes, and no offset is ever sent.

**Integer and bool arrays are buffers.** They belong to the model (its bytes, its digest, its
checkpoint) and stay out of the ring: ring section `none`. A device that trains may count on in
them, but what it counts stays on the device and the server keeps its own value: a mean of
counters means nothing, and a float of a counter silently loses its low bits. Float arrays
(float16, bfloat16, float32, float64) are averaged: ring section `32`.

Names are NFC, because canonical() normalises and two names must not become one.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .canonical import canonical
from .documents import read_json
from .errors import BadUpdate, Malformed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

ALIGN = 64
"""Bytes to which arrays, sections and the whole are aligned."""

MAX_ARRAYS = 1 << 16
MAX_NAME = 512
"""Most UTF-8 bytes of a name."""
MAX_DIMENSIONS = 32
MAX_BYTES = 1 << 40
MAX_JSON = 1 << 26

FLOATS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes of a value, for the dtypes that are averaged."""
BUFFERS = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""Bytes of a value, for the dtypes that stay."""
_ITEM = {**FLOATS, **BUFFERS}


class Entry(NamedTuple):
    """One array: what it is, and where its bytes lie."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    section: str
    offset: int
    nbytes: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The little-endian numpy dtype."""
        if self.dtype == "bfloat16":
            import ml_dtypes  # noqa: PLC0415 - only a model with bfloat16 needs it

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(self.dtype).newbyteorder("<")


class Section(NamedTuple):
    """All arrays of one dtype, gaps included: one flat vector."""

    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names, shapes, dtypes and offsets of a model's arrays, in a fixed order."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        """Refuse entries that are not in the layout of this page."""
        if self.entries != _lay_out([entry[:3] for entry in self.entries]):
            raise SettingsError("manifest", "the entries of its own layout", "others")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Manifest:
        """Return the manifest of named arrays, in their order.

        Raises:
            SettingsError: A name, a shape or a dtype cannot be part of a model.
        """
        return cls.lay_out((name, a.shape, a.dtype.name) for name, a in arrays.items())

    @classmethod
    def lay_out(cls, arrays: Iterable[tuple[str, tuple[int, ...], str]]) -> Manifest:
        """Return the manifest of (name, shape, dtype name) triples.

        Raises:
            SettingsError: As in `of`.
        """
        return cls(_lay_out(list(arrays)))

    @property
    def sections(self) -> tuple[Section, ...]:
        """The dtype sections, in the order of the layout."""
        ends: dict[str, int] = {}
        for entry in self.entries:
            end = _align(entry.offset + entry.nbytes)
            ends[entry.dtype] = max(ends.get(entry.dtype, 0), end)
        sections, start = [], 0
        for dtype in sorted(ends):
            sections.append(Section(dtype, start, ends[dtype] - start))
            start = ends[dtype]
        return tuple(sections)

    @property
    def total_bytes(self) -> int:
        """Bytes of the flat buffer, a multiple of 64."""
        return max((_align(entry.offset + entry.nbytes) for entry in self.entries), default=0)

    @property
    def averaged(self) -> tuple[Entry, ...]:
        """The float arrays, in manifest order: those that enter the ring."""
        return tuple(entry for entry in self.entries if entry.section == "32")

    def pack(self, arrays: Mapping[str, NDArray[Any]]) -> bytearray:
        """Return the flat buffer of these arrays, each copied once.

        Any memory order, stride and byte order will do; shape and dtype must be the manifest's.

        Raises:
            BadUpdate: The arrays are not those of the manifest.
        """
        self.check(arrays, "own model")
        buffer = bytearray(self.total_bytes)
        for name, view in self.views(buffer).items():
            view[...] = arrays[name]
        return buffer

    def views(self, buffer: bytes | bytearray | memoryview) -> dict[str, NDArray[Any]]:
        """Return the arrays inside a flat buffer, without a copy; read-only where it is.

        Raises:
            Malformed: The buffer has another length.
        """
        view = memoryview(buffer).cast("B")
        if len(view) != self.total_bytes:
            raise Malformed("model", "flat buffer", f"{self.total_bytes} bytes", len(view))
        return {
            entry.name: np.ndarray(entry.shape, entry.numpy, view, entry.offset)
            for entry in self.entries
        }

    def unpack(self, buffer: bytes | bytearray | memoryview) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays in a flat buffer, in this machine's byte order.

        Only one buffer gives these arrays: else one model would have many digests, and a server
        could have a round on it repeated as one on another model.

        Raises:
            Malformed: The buffer has another length, a gap is not zero, or a bool is neither 0
                nor 1.
        """
        self._check_gaps(memoryview(buffer).cast("B"))
        arrays = {}
        for name, view in self.views(buffer).items():
            if view.dtype == np.bool_ and view.size and view.view(np.uint8).max() > 1:
                raise Malformed("model", f"array {name!r}", "bools of 0 or 1", "another byte")
            arrays[name] = view.astype(view.dtype.newbyteorder("="), order="C", copy=True)
        return arrays

    def _check_gaps(self, view: memoryview) -> None:
        """Refuse a buffer with anything beside its arrays; a gap has at most 63 bytes."""
        end = 0
        for entry in sorted(self.entries, key=lambda entry: entry.offset):
            if any(view[end : entry.offset]):
                raise Malformed("model", f"bytes before array {entry.name!r}", "zeros", "others")
            end = max(end, entry.offset + entry.nbytes)
        if any(view[end : self.total_bytes]):
            raise Malformed("model", "bytes after the last array", "zeros", "others")

    def check(self, arrays: Mapping[str, NDArray[Any]], peer: str) -> None:
        """Refuse arrays that are not exactly those of the manifest.

        Raises:
            BadUpdate: Names the peer, the array, and the expected and actual shape and dtype.
        """
        _check_names(self.entries, arrays, peer)
        for entry in self.entries:
            array = arrays[entry.name]
            got = (array.shape, array.dtype.name)
            if got != (entry.shape, entry.dtype):
                expected = f"{entry.dtype} {entry.shape}"
                raise BadUpdate(peer, f"array {entry.name!r}", expected, f"{got[1]} {got[0]}")

    def check_deltas(self, deltas: Mapping[str, NDArray[Any]], peer: str) -> None:
        """Refuse deltas that are not one float array for each averaged array, of its shape.

        The dtype may be another float: the delta of a bfloat16 array is best kept in float32.

        Raises:
            BadUpdate: As in `check`.
        """
        entries = self.averaged
        _check_names(entries, deltas, peer)
        for entry in entries:
            delta = deltas[entry.name]
            if delta.shape != entry.shape or delta.dtype.name not in FLOATS:
                expected, got = f"float {entry.shape}", f"{delta.dtype.name} {delta.shape}"
                raise BadUpdate(peer, f"delta {entry.name!r}", expected, got)

    def layout_digest(self, metrics: Mapping[str, int]) -> bytes:
        """Return SHA-256 of the canonical layout: arrays, and metrics with fractional bits."""
        return hashlib.sha256(canonical(dict(self._layout(metrics)))).digest()

    def _layout(self, metrics: Mapping[str, int]) -> Iterator[tuple[str, object]]:
        """Yield the entries of the layout digest."""
        for index, entry in enumerate(self.entries):
            yield f"array.{index}.name", entry.name
            yield f"array.{index}.shape", ",".join(map(str, entry.shape))
            yield f"array.{index}.dtype", entry.dtype
            yield f"array.{index}.section", entry.section
        for name, bits in metrics.items():
            yield f"metric.{name}", bits

    def to_json(self) -> str:
        """Return the manifest as JSON: names, shapes and dtypes; offsets follow from them."""
        arrays = [{"name": e.name, "shape": list(e.shape), "dtype": e.dtype} for e in self.entries]
        return json.dumps({"arrays": arrays}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, peer: str = "manifest") -> Manifest:
        """Read what `to_json` wrote, within the limits of this module.

        Raises:
            Malformed: It is no such JSON; names `peer` and the first thing that is wrong.
        """
        if len(text) > MAX_JSON:
            raise Malformed(peer, "manifest JSON", f"at most {MAX_JSON} bytes", len(text))
        try:
            document = read_json(text)
        except ValueError as error:
            raise Malformed(peer, f"manifest JSON: {error}") from error
        if not isinstance(document, dict) or set(document) != {"arrays"}:
            raise Malformed(peer, "manifest JSON", "one key `arrays`", "others")
        if not isinstance(document["arrays"], list):
            raise Malformed(peer, "manifest arrays", "a list", type(document["arrays"]).__name__)
        try:
            return cls.lay_out(_triple(item, peer) for item in document["arrays"])
        except SettingsError as error:
            raise Malformed(peer, str(error)) from error


def check_name(name: object, where: str) -> str:
    """Return a name that can stand in a digest: NFC text, not empty, printable, 512 bytes.

    Raises:
        SettingsError: It is none; names `where`.
    """
    expected = f"printable NFC text of 1..{MAX_NAME} UTF-8 bytes"
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or not unicodedata.is_normalized("NFC", name)
    ):
        raise SettingsError(where, expected, name)
    if not 1 <= len(name.encode()) <= MAX_NAME:
        raise SettingsError(where, expected, name[:MAX_NAME])
    return name


def _lay_out(arrays: list[tuple[str, tuple[int, ...], str]]) -> tuple[Entry, ...]:
    """Return the entries of checked triples, in their order, with their offsets."""
    if len(arrays) > MAX_ARRAYS:
        raise SettingsError("model", f"at most {MAX_ARRAYS} arrays", len(arrays))
    seen: set[str] = set()
    for name, shape, dtype in arrays:
        _check_array(name, shape, dtype)
        if name in seen:
            raise SettingsError("model", "each array name once", name)
        seen.add(name)
    offsets, end = {}, 0
    for name, shape, dtype in sorted(arrays, key=lambda item: item[2]):
        offsets[name] = end
        end = _align(end + math.prod(shape) * _ITEM[dtype])
    if end > MAX_BYTES:
        raise SettingsError("model", f"at most {MAX_BYTES} bytes", end)
    return tuple(
        Entry(
            name,
            shape,
            dtype,
            "32" if dtype in FLOATS else "none",
            offsets[name],
            math.prod(shape) * _ITEM[dtype],
        )
        for name, shape, dtype in arrays
    )


def _check_array(name: object, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse a triple that cannot be an array of a model."""
    where = f"model array {check_name(name, 'model array name')!r}"
    if dtype not in _ITEM:
        raise SettingsError(where, f"a dtype of {', '.join(_ITEM)}", dtype)
    # An empty array's other lengths count too: numpy refuses them when they overflow.
    if len(shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > MAX_BYTES:
        raise SettingsError(where, f"{MAX_DIMENSIONS} dimensions and {MAX_BYTES} values", shape)


def _check_names(entries: tuple[Entry, ...], arrays: Mapping[str, NDArray[Any]], peer: str) -> None:
    """Refuse arrays under other names than the entries', and what is no array."""
    wanted = {entry.name for entry in entries}
    for name in wanted - arrays.keys():
        raise BadUpdate(peer, "arrays", f"{name!r}", "none of that name")
    for name, array in arrays.items():
        if name not in wanted:
            raise BadUpdate(peer, "arrays", f"{len(wanted)} known names", f"{name!r}")
        # Arithmetic on arrays of shape () gives numpy scalars, which have shape and dtype too.
        if not isinstance(array, np.ndarray | np.generic):
            raise BadUpdate(peer, f"array {name!r}", "a numpy array", type(array).__name__)


def _triple(item: object, peer: str) -> tuple[str, tuple[int, ...], str]:
    """Return name, shape and dtype of one JSON object."""
    if not isinstance(item, dict) or set(item) != {"name", "shape", "dtype"}:
        raise Malformed(peer, "manifest array", "name, shape and dtype", "other keys")
    name, shape, dtype = item["name"], item["shape"], item["dtype"]
    if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)):
        raise Malformed(peer, "manifest array", "text, a list and text", "other types")
    if not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
        raise Malformed(peer, f"shape of {name[:MAX_NAME]!r}", "lengths of 0 or more", "others")
    return name, tuple(shape), dtype


def _align(offset: int) -> int:
    """Return the next multiple of 64."""
    return -(-offset // ALIGN) * ALIGN
