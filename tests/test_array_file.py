"""Safetensors files that are written piece by piece, read back by the library."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from umbel.protocol.manifest import BUFFERS, FLOATS
from umbel.server.array_file import CHUNK, DTYPES, write_arrays

if TYPE_CHECKING:
    from pathlib import Path


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Return one of each dtype, and some that lie in memory as a file may not have them."""
    rng = np.random.default_rng(1)
    found = {name: rng.integers(0, 2, 7).astype(name) for name in DTYPES if name != "bfloat16"}
    return {
        **found,
        "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
        "scalar": np.array(2.5),
        "none": np.zeros((0, 3), np.float32),
        "fortran": np.asfortranarray(rng.normal(size=(3, 4))),
        "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
        "strided": np.arange(20, dtype=np.int16)[::3],
        "long": rng.normal(size=CHUNK // 4 + 3).astype(np.float32),
    }


def test_every_dtype_of_a_manifest_has_its_name() -> None:
    assert set(DTYPES) == {*FLOATS, *BUFFERS}


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    given, path = arrays(), tmp_path / "model.safetensors"
    write_arrays(path, given, {"run": "r-1", "round": "7"})
    found = safetensors.numpy.load_file(path)
    assert set(found) == set(given)
    for name, array in given.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].tolist() == array.tolist()
    with safetensors.safe_open(path, "numpy") as opened:
        assert opened.metadata() == {"run": "r-1", "round": "7"}


def test_every_array_starts_at_a_multiple_of_its_values_size(tmp_path: Path) -> None:
    given, path = arrays(), tmp_path / "model.safetensors"
    write_arrays(path, given, {})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, about in json.loads(data[8 : 8 + length]).items():
        assert about["data_offsets"][0] % given[name].dtype.itemsize == 0
