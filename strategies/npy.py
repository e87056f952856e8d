"""The head of a .npy file in the one form in which `numpy.save` writes it (NEP 1).

Flower's arrays are such files. Numpy's own reader takes the head for Python's syntax, tokenises
it, and raises whatever that raises; here it is matched, and the bytes after it are counted by the
caller, so a head that promises more than it brings allocates nothing. bfloat16 is numpy's only as
ml_dtypes has it: the file says two bytes of anything, Flower's `Array.dtype` says which.
"""

from __future__ import annotations

import io
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from ..protocol.manifest import MAX_BYTES, MAX_DIMENSIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC, _LONGEST = 8, 4096
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][biufcV][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,13}, ?)*(?:[0-9]{1,13})?)\), \} *\n?"
)


class Head(NamedTuple):
    """What stands before the numbers."""

    start: int
    """Bytes before the numbers."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_head(data: bytes | memoryview, named: str) -> Head:
    """Return the head at the beginning of `data`; `named` is the dtype that came beside the file.

    Raises:
        ValueError: No head of one .npy array of plain numbers is there.
    """
    start, text = _text(data)
    return _parsed(start, text, named)


@lru_cache(maxsize=1024)
def _parsed(start: int, text: bytes, named: str) -> Head:
    """Return what a head of 4 KiB at most says: all clients of a round send the same ones."""
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError("no header of plain numbers")
    shape = tuple(int(size) for size in found[3].split(b",") if size.strip())
    if len(shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > MAX_BYTES:
        raise ValueError(f"{len(shape)} dimensions of {max(shape)} and less")
    return Head(start, _dtype(found[1].decode(), named), shape, found[2] == b"True")


def decoded(data: bytes, named: str) -> NDArray[Any]:
    """Return a read-only view of the array in a whole file, no copy.

    Raises:
        ValueError: It is none.
    """
    head = read_head(data, named)
    got = len(data) - head.start
    if got != head.nbytes:
        raise ValueError(f"{head.dtype} {head.shape} in {got} bytes")
    flat = np.frombuffer(data, head.dtype, offset=head.start) if got else np.empty(0, head.dtype)
    return flat.reshape(head.shape, order="F" if head.fortran else "C")


def encoded(array: NDArray[Any]) -> bytes:
    """Return the file of an array in C order, copied once."""
    numbers = np.ascontiguousarray(array).view(np.uint8).data
    return b"".join((header(array.dtype, array.shape), numbers))


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what stands before the numbers in C order; as long for any size of the first axis."""
    head = io.BytesIO()
    form = {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    write_array_header_1_0(head, form)
    return head.getvalue()


def _text(data: bytes | memoryview) -> tuple[int, bytes]:
    """Return where the numbers begin, and the text before them."""
    width = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(bytes(data[:_MAGIC]))
    if width is None:
        raise ValueError("no .npy of version 1 or 2")
    at = _MAGIC + width
    start = at + int.from_bytes(data[_MAGIC:at], "little")
    if not at <= start <= min(len(data), _LONGEST):
        raise ValueError("a header beyond the end")
    return start, bytes(data[at:start])


def _dtype(text: str, named: str) -> np.dtype[Any]:
    if named == "bfloat16" and text in {"|V2", "<V2"}:
        import ml_dtypes  # noqa: PLC0415 - only a model with bfloat16 needs it

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        return np.dtype(text)
    except TypeError as error:
        raise ValueError(f"no dtype {text}") from error
