"""Client data: numpy reads what is written, a client gets its rows, damage is said."""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError, StateError
from umbel.simulation.data.mapped import SUMS, ClientData, Writer
from umbel.strategies.npy import header

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
TARGETS = np.array([3, 1, 4, 1, 5, 9])
PARTS = [np.array([4, 0]), np.array([], np.intp), np.array([1, 2, 5])]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A set of three clients, the second without examples; row 3 is nobody's."""
    ClientData.of(INPUTS, TARGETS, PARTS).write(tmp_path / "set")
    return tmp_path / "set"


def test_the_files_are_numpys_own(written: Path) -> None:
    assert np.load(written / "inputs.npy").tolist() == INPUTS[[4, 0, 1, 2, 5]].tolist()
    assert np.load(written / "targets.npy").tolist() == [5, 3, 1, 4, 9]
    assert np.load(written / "offsets.npy").tolist() == [0, 2, 2, 5]
    lines = (written / SUMS).read_text().splitlines()
    for line, name in zip(lines, ("inputs.npy", "targets.npy", "offsets.npy"), strict=True):
        assert line == f"{hashlib.sha256((written / name).read_bytes()).hexdigest()}  {name}"


def test_a_client_gets_views_of_its_rows_that_nobody_can_write(written: Path) -> None:
    data = ClientData.open(written, verify=True)
    assert (data.clients, data.sizes.tolist()) == (3, [2, 0, 3])
    inputs, targets = data.client(2)
    assert inputs.tolist() == INPUTS[[1, 2, 5]].tolist()
    assert targets.tolist() == [1, 4, 9]
    assert np.shares_memory(inputs, data.inputs)
    with pytest.raises(ValueError, match="read-only"):
        inputs[0] = 0
    for index in (-1, 3):
        with pytest.raises(SettingsError, match="client: expected an index below 3"):
            data.client(index)


@settings(max_examples=40)
@given(owners=st.lists(st.integers(0, 5), max_size=60))
def test_every_client_has_the_rows_of_its_partition(owners: list[int]) -> None:
    inputs, targets = np.arange(len(owners)) * 7, np.arange(len(owners))
    parts = [np.flatnonzero(np.array(owners) == client) for client in range(6)]
    data = ClientData.of(inputs, targets, parts)
    for client, rows in enumerate(parts):
        found = data.client(client)
        assert found[1].tolist() == rows.tolist()
        assert (found[0] == found[1] * 7).all()


def test_one_client_after_another_makes_the_same_files(written: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "streamed") as out:
        for rows in PARTS:
            out.add(INPUTS[rows], TARGETS[rows])
    for file in written.iterdir():
        assert file.read_bytes() == (tmp_path / "streamed" / file.name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "streamed"]


def _stopped(out: Writer) -> None:
    out.add(INPUTS, TARGETS)
    raise KeyboardInterrupt


def _nobody(_out: Writer) -> None:
    pass


def _other_shape(out: Writer) -> None:
    out.add(INPUTS, TARGETS)
    out.add(INPUTS[:, 0], TARGETS)


def _other_dtype(out: Writer) -> None:
    out.add(INPUTS, TARGETS)
    out.add(INPUTS, TARGETS.astype(np.int32))


def _unequal(out: Writer) -> None:
    out.add(INPUTS, TARGETS[1:])


def _texts(out: Writer) -> None:
    out.add(INPUTS.astype(str), TARGETS)


@pytest.mark.parametrize(
    ("fill", "error", "words"),
    [
        (_stopped, KeyboardInterrupt, "^$"),
        (_nobody, SettingsError, "at least one client, got 'none'"),
        (_other_shape, SettingsError, r"inputs: expected float32 rows of \(2, 2\)"),
        (_other_dtype, SettingsError, r"targets: expected int64 rows of \(\), got 'int32"),
        (_unequal, SettingsError, "client data: expected 6 targets, got 5"),
        (_texts, SettingsError, "inputs: expected native numbers"),
    ],
)
def test_a_set_that_did_not_become_whole_leaves_nothing(
    tmp_path: Path, fill: Any, error: type[BaseException], words: str
) -> None:
    with pytest.raises(error, match=words), Writer(tmp_path / "set") as out:
        fill(out)
    assert list(tmp_path.iterdir()) == []


def test_no_set_is_overwritten(written: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="expected a name that is free"):
        Writer(written)
    late = Writer(tmp_path / "late")
    ClientData.open(written).write(tmp_path / "late")
    with pytest.raises(StateError, match="a name that is free"), late:
        late.add(INPUTS, TARGETS)
    assert ClientData.open(tmp_path / "late").clients == 3


def _cut(place: Path) -> None:
    (place / "inputs.npy").write_bytes((place / "inputs.npy").read_bytes()[:-1])


def _no_sums(place: Path) -> None:
    (place / SUMS).unlink()


def _one_sum(place: Path) -> None:
    (place / SUMS).write_text((place / SUMS).read_text().splitlines()[0] + "\n")


def _falling(place: Path) -> None:
    np.save(place / "offsets.npy", np.array([0, 3, 2, 5]))


def _beyond(place: Path) -> None:
    np.save(place / "offsets.npy", np.array([0, 2, 6]))


def _floats(place: Path) -> None:
    np.save(place / "offsets.npy", np.array([0.0, 5.0]))


def _objects(place: Path) -> None:
    np.save(place / "targets.npy", np.array([{}] * 5), allow_pickle=True)


def _columns(place: Path) -> None:
    np.save(place / "inputs.npy", np.asfortranarray(np.zeros((5, 2))))


def _swapped(place: Path) -> None:
    np.save(place / "targets.npy", np.zeros(5, ">i8"))


def _empty(place: Path) -> None:
    (place / "targets.npy").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "inputs.npy: expected 80 bytes in C order"),
        (_no_sums, "a set of client data, got No such file"),
        (_one_sum, "one line for each of the three files"),
        (_falling, "offsets from 0 up to 5"),
        (_beyond, "offsets from 0 up to 5"),
        (_floats, "int64 offsets, one more than clients, got float64"),
        (_objects, "targets.npy: expected a .npy of plain numbers"),
        (_columns, "bytes in C order"),
        (_swapped, "native numbers, got >i8"),
        (_empty, "targets.npy: expected a .npy of plain numbers"),
    ],
)
def test_a_damaged_set_is_not_opened(written: Path, damage: Any, words: str) -> None:
    damage(written)
    with pytest.raises(StateError, match=words):
        ClientData.open(written)


def test_who_verifies_sees_a_changed_bit(written: Path) -> None:
    changed = bytearray((written / "inputs.npy").read_bytes())
    changed[-1] ^= 1
    (written / "inputs.npy").write_bytes(changed)
    ClientData.open(written)
    with pytest.raises(StateError, match=r"inputs.npy: expected SHA-256 [0-9a-f]{16}…"):
        ClientData.open(written, verify=True)


def test_a_million_clients_and_more_than_memory(written: Path) -> None:
    """4 TB in a file with holes: what is read is its head, and one client's rows."""
    clients, rows = 1_000_000, 1000
    np.save(written / "offsets.npy", np.arange(clients + 1, dtype=np.int64) * rows)
    for name, dtype, shape in (("inputs", "<f4", (1000,)), ("targets", "|i1", ())):
        head = header(np.dtype(dtype), (clients * rows, *shape))
        with (written / f"{name}.npy").open("wb") as file:
            file.write(head)
            file.truncate(len(head) + clients * rows * math.prod(shape) * np.dtype(dtype).itemsize)
    data = ClientData.open(written)
    inputs, targets = data.client(clients - 1)
    assert (data.clients, inputs.shape, targets.shape) == (clients, (rows, 1000), (rows,))
    assert not inputs.any()


def _resident(array: np.ndarray[Any, Any]) -> float:
    """Return the share of an array's pages that are in memory (mincore, Linux)."""
    first = array.ctypes.data & -mmap.PAGESIZE
    pages = -(-(array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), found) == 0
    return sum(state & 1 for state in found) / pages


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are in memory")
def test_asking_for_a_client_has_its_rows_read(tmp_path: Path) -> None:
    rows = np.ones((4000, 1024), np.float32)
    parts = np.array_split(np.arange(4000), 8)
    ClientData.of(rows, np.zeros(4000, np.int64), parts).write(tmp_path / "set")
    data = ClientData.open(tmp_path / "set")
    with (tmp_path / "set" / "inputs.npy").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _resident(data.inputs) > 0.5:
        pytest.skip("this file system keeps its files in memory")
    inputs, _ = data.client(5)
    end = time.monotonic() + 30
    while _resident(inputs) < 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert _resident(inputs) == 1
    assert _resident(data.inputs[:500]) < 0.2  # the pages after the head, which was read
