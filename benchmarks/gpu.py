"""A GPU: the bits of its kernels against the CPU's, and their rates beside the device's own copy.

    copy                  device to device, bytes read and written
    upload                pinned host memory to device: what bounds a plain sum
    chacha20/masks=1, 64  key stream, fused with the sum; the peer is one CPU thread
    fold/float, ring      updates that lie on the device; the peer is one CPU thread
    median/n=16, 32       coordinate-wise median of as many; the peer is one CPU thread in torch

Everything is compared with the CPU before it is timed. It takes less than five minutes, and ends
with status 0 and one line where there is no CUDA device. More: docs/benchmarks.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from .record import Measurement
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 16
_NEED = {"words": _BLOCK, "clients": 1, "runs": 1}


def run(
    words: Annotated[int, typer.Option(help="Words of a shard, a multiple of 16.")] = 1 << 25,
    clients: Annotated[int, typer.Option(help="Updates on the device.")] = 16,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 7,
) -> Iterator[Measurement]:
    """Yield every case, or one that says what is missing."""
    for name, value in {"words": words, "clients": clients, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if words % _BLOCK:
        raise SettingsError("--words", f"a multiple of {_BLOCK}", words)
    for name, extra in (("torch", "torch"), ("triton", "gpu")):
        if importlib.util.find_spec(name) is None:
            yield _absent(f"{name} is not installed; `pip install umbel[{extra}]`")
            return
    device = importlib.import_module(".torch_gpu", __package__)
    if not device.present():
        yield _absent("there is no CUDA device: nothing was checked or measured")
        return
    chacha20 = importlib.import_module("..server.core.triton_chacha20", __package__)
    tiles = importlib.import_module("..strategies.triton_tiles", __package__)
    made = tiles.TritonTiles(max(device.MEDIANS), "cuda")
    yield from device.Device("cuda", chacha20, made).cases(words, clients, runs)


def _absent(reason: str) -> Measurement:
    return Measurement(bench="gpu", case="copy", unit="GB/s", absent=reason)
