"""The files of a mapped set of client data: anybody can hand one on, and a disk can fail."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.protocol.errors import StateError
from umbel.simulation.data.mapped import SUMS, ClientData
from umbel.tests.fuzz_files import folder, of
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from pathlib import Path


@cache
def place() -> Path:
    """Return a directory with a set that is good."""
    parts = [np.array([4, 0]), np.array([1, 2, 5])]
    where = folder() / "client-data"
    ClientData.of(np.arange(12.0).reshape(6, 2), np.arange(6), parts).write(where)
    return where


def _opened() -> tuple[int, list[int]]:
    data = ClientData.open(place())
    return data.clients, data.sizes.tolist()


def _file(name: str) -> Path:
    return place() / name


def _content(name: str) -> list[bytes]:
    return [_file(name).read_bytes()]


def _parser(name: str, **more: Any) -> Parser:
    return Parser(
        name=f"mapped.open, {name}",
        parse=of(partial(_file, name), _opened),
        errors=(StateError,),
        make=partial(_content, name),
        **more,
    )


DATA = tuple(_parser(name) for name in ("inputs.npy", "targets.npy", "offsets.npy", SUMS))
