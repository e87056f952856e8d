"""Named arrays as a safetensors file, written piece by piece: no second copy of a model is made.

    u64 header bytes · header (JSON, filled up with spaces to a multiple of 8) · arrays

The widest arrays come first, so that each starts at a multiple of its value's size; bytes are
little-endian. Any reader of safetensors reads these files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .plain_files import sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

CHUNK = 1 << 20
"""Bytes that are written at a time."""
DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u")
       for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""What safetensors calls the dtypes of a manifest."""


class About(NamedTuple):
    """What a header says of an array."""

    dtype: str
    """As numpy and a manifest call it."""
    shape: tuple[int, ...]
    nbytes: int


def header(arrays: Mapping[str, About], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return what stands before these arrays, in the order in which their bytes are to follow."""
    said: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, about in arrays.items():
        place = [end, end + about.nbytes]
        said[name] = {"dtype": DTYPES[about.dtype], "shape": about.shape, "data_offsets": place}
        end += about.nbytes
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write a file of named arrays; the caller forces it to the disk.

    Raises:
        OSError: The file cannot be written.
    """
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    about = {n: About(arrays[n].dtype.name, arrays[n].shape, arrays[n].nbytes) for n in order}
    with path.open("wb") as file:
        file.write(header(about, metadata))
        for name in order:
            for piece in pieces(_bytes(arrays[name])):
                file.write(piece)


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write a file of named arrays and fsync it.

    Raises:
        OSError: The file cannot be written.
    """
    write(path, arrays, metadata)
    sync(path)


def pieces(data: memoryview) -> Iterator[memoryview]:
    """Cut bytes into what is written at a time."""
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def _bytes(array: NDArray[Any]) -> memoryview:
    """Return an array's bytes, little-endian and in C order; a copy only where they are not."""
    plain = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    flat: Any = plain.reshape(-1).view(np.uint8)
    return memoryview(flat)
