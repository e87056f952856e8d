"""A run that begins with a model from a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

import umbel
from umbel.protocol.errors import SettingsError
from umbel.server.initial import first_model
from umbel.server.run_directory import RunDirectory
from umbel.tests.test_run import Blobs

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

OWN = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}


def _saved(folder: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    file = folder / "m.safetensors"
    safetensors.numpy.save_file(arrays, file, metadata={"by": "another tool"})
    return file


def test_without_a_file_the_app_has_its_own() -> None:
    assert first_model(OWN, None) is OWN


def test_the_arrays_of_the_file_in_the_order_of_the_app(tmp_path: Path) -> None:
    saved: dict[str, NDArray[Any]] = {
        "b": np.array([1, 2], np.float32),
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    }
    found = first_model(OWN, _saved(tmp_path, saved))
    assert sorted(found) == ["b", "w"]
    assert all(np.array_equal(found[name], saved[name]) for name in saved)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"w": OWN["w"]}, "b"),
        ({**OWN, "extra": OWN["b"]}, "extra"),
        ({**OWN, "w": np.zeros((3, 2), np.float32)}, "w.*2, 3.*3, 2"),
        ({**OWN, "w": np.zeros((2, 3))}, "w.*float32.*float64"),
    ],
)
def test_another_model_is_named(tmp_path: Path, other: dict[str, NDArray[Any]], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        first_model(OWN, _saved(tmp_path, other))
    assert "m.safetensors" in str(caught.value)
    assert "umbel runs export" in str(caught.value)


TOO_LONG = b'{"w":{"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]}}'
"""An empty array with a length that numpy does not take."""


@pytest.mark.parametrize(
    "content",
    [None, b"", b"no model", b"\xff" * 64, len(TOO_LONG).to_bytes(8, "little") + TOO_LONG],
)
def test_what_is_no_model_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "m.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(str(file))):
        first_model(OWN, file)


def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    first = umbel.simulate(Blobs(), umbel.Options(clients=3, rounds=2, run="one", home=tmp_path))
    file = tmp_path / "one.safetensors"
    safetensors.numpy.save_file(dict(first.model), file)
    options = umbel.Options(clients=3, rounds=1, run="two", home=tmp_path, init=file)
    umbel.simulate(Blobs(), options)
    with RunDirectory.open(tmp_path, "two") as directory:
        begun = directory.read_round(0)
    assert all(np.array_equal(begun[name], array) for name, array in first.model.items())
