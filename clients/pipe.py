"""Messages between a client and its training child: a header in JSON, then named arrays.

    4 bytes `UMBP` · u32 header bytes · u64 array bytes · header (JSON object) · arrays

All integers are little-endian. The arrays are one flat buffer in the layout of their manifest,
which stands in the header under `manifest`. No pickle: the child runs user code, so what comes
back is as foreign as any peer's bytes, and every size is checked before it is stored.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.documents import read_json
from ..protocol.errors import Malformed
from ..protocol.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

MAGIC = b"UMBP"
MAX_HEADER = 1 << 24
MAX_BYTES = 1 << 32
_SIZES = struct.Struct("<4sIQ")
_TOGETHER = 1 << 16


class Sink(Protocol):
    """An unbuffered file that may take fewer bytes than it is given."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of `data` and return how many bytes."""


def send(sink: Sink, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write one message.

    Args:
        sink: Where to.
        fields: What JSON can say; finite numbers only.
        arrays: Named arrays, of dtypes that a manifest knows.

    Raises:
        SettingsError, Malformed: It cannot be said in a message; nothing was written.
    """
    manifest = Manifest.of(arrays)
    text = json.dumps({**fields, "manifest": manifest.to_json()}, allow_nan=False).encode()
    if len(text) > MAX_HEADER:
        raise Malformed("own message", "header", f"at most {MAX_HEADER} bytes", len(text))
    packed = manifest.pack(arrays)  # the last thing that can fail: nothing is written before it
    start = _SIZES.pack(MAGIC, len(text), len(packed)) + text
    if len(packed) <= _TOGETHER:  # each write wakes the reader
        _write(sink, start + packed)
    else:
        _write(sink, start)
        _write(sink, packed)


def receive(
    fill: Callable[[memoryview], None], limit: int, peer: str
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read one message; `fill` reads exactly as many bytes as it is given room for.

    Args:
        fill: Fills the whole view, or raises.
        limit: Most bytes of arrays.
        peer: Name for errors.

    Raises:
        Malformed: Another magic, a size beyond its limit, or a header that is no JSON object with
            a manifest that fits.
    """
    start = _read(fill, _SIZES.size)
    magic, header, total = _SIZES.unpack(start)
    if magic != MAGIC:
        raise Malformed(peer, "first bytes of a message", MAGIC, magic)
    if header > MAX_HEADER or total > limit:
        raise Malformed(
            peer, "message", f"at most {MAX_HEADER} + {limit} bytes", f"{header} + {total}"
        )
    fields = _object(_read(fill, header), peer)
    text = fields.pop("manifest", None)
    if not isinstance(text, str):
        raise Malformed(peer, "header", "a manifest", type(text).__name__)
    manifest = Manifest.from_json(text, peer)
    if manifest.total_bytes != total:
        raise Malformed(peer, "array bytes", manifest.total_bytes, total)
    return fields, manifest.unpack(_read(fill, total))


def _object(text: bytearray, peer: str) -> dict[str, Any]:
    """Return the header's JSON object."""
    try:
        fields = read_json(text)
    except ValueError as error:
        raise Malformed(peer, f"header: {error}") from None
    if not isinstance(fields, dict):
        raise Malformed(peer, "header", "a JSON object", type(fields).__name__)
    return fields


def _read(fill: Callable[[memoryview], None], count: int) -> bytearray:
    """Return `count` bytes."""
    buffer = bytearray(count)
    fill(memoryview(buffer))
    return buffer


def _write(sink: Sink, data: bytes | bytearray) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[sink.write(view) or 0 :]
