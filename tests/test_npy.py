"""The head of .npy files: numpy's own writer and reader are on the other side."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from umbel.strategies import npy

ARRAYS: list[np.ndarray[Any, Any]] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(3.5),
    np.zeros((0, 2)),
    np.array([True, False]),
    np.arange(5, dtype=">i4"),
    np.arange(4, dtype=np.float16).reshape(1, 2, 2),
    np.arange(3).astype(ml_dtypes.bfloat16),
    np.arange(6, dtype=np.float32)[::2],
]


def saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_files_are_numpys(array: np.ndarray[Any, Any]) -> None:
    data = npy.encoded(array)
    assert data == saved(array)
    head = npy.read_head(data, array.dtype.name)
    assert (head.dtype, head.shape, head.fortran) == (array.dtype, array.shape, False)
    assert head.start + head.nbytes == len(data)
    assert npy.decoded(data, array.dtype.name).tolist() == array.tolist()


def test_fortran_order_is_read_and_written_as_c_order() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert npy.read_head(saved(array), "float64").fortran
    assert npy.decoded(saved(array), "float64").tolist() == array.tolist()
    assert npy.encoded(array) == saved(np.ascontiguousarray(array))


def test_two_bytes_of_anything_are_bfloat16_only_by_name() -> None:
    data = saved(np.arange(3).astype(ml_dtypes.bfloat16))
    assert npy.read_head(data, "bfloat16").dtype == ml_dtypes.bfloat16
    assert npy.read_head(data, "float16").dtype == np.dtype("V2")


def test_version_2_is_read_and_version_3_is_not() -> None:
    array = np.arange(3.0)
    for version, fine in (((2, 0), True), ((3, 0), False)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version=version)
        if fine:
            assert npy.decoded(file.getvalue(), "float64").tolist() == array.tolist()
        else:
            with pytest.raises(ValueError, match=r"no \.npy of version 1 or 2"):
                npy.read_head(file.getvalue(), "float64")
