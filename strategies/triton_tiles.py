"""Median and trimmed mean on a GPU: a selection network in registers, from generated Triton.

One lane owns one column. It loads the column's n values, coalesced over the lanes, runs the pruned
network of selection_network.py on them as n variables, and stores one result, so that memory is
read once. The source is written from the network for each n, as straight-line code: indices into
registers must be known to the compiler. A lane holds one column and a program 128 of them; two
columns a lane would double the registers. On sm_90 the compiler needs at most 64 registers for
n <= 16 and 128 for n <= 64, and spills nothing. NaN becomes +inf by a minimum that ignores NaN.

Everything else of the rules is torch_tiles.py, on the same device.
"""

from __future__ import annotations

import linecache
from hashlib import sha256
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from .torch_tiles import TorchTiles
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from .selection_network import Network

BLOCK = 128
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


class TritonTiles(TorchTiles):
    """As `TorchTiles` on a GPU; a kernel is compiled at the first call for its n (seconds)."""

    name = "triton"

    def __init__(self, clients: int, device: torch.device | str = "cuda") -> None:
        """Allocate once.

        Raises:
            SettingsError: `clients` is below 1, or the device is no GPU.
        """
        if torch.device(device).type == "cpu" and not triton.knobs.runtime.interpret:
            raise SettingsError("triton kernels", "a GPU", str(device), "use the kernels in numpy")
        super().__init__(clients, device)
        self._kernels: dict[tuple[Network, int], Any] = {}

    def _select(
        self, network: Network, rows: torch.Tensor, divisor: int, out: torch.Tensor
    ) -> None:
        self.check(rows, out)
        if rows.stride(1) != 1 or out.stride(0) != 1:
            raise SettingsError("robust rule", "contiguous rows", rows.stride())
        key = (network, divisor)
        if key not in self._kernels:
            self._kernels[key] = kernel(network, divisor)
        columns = len(out)
        grid = (triton.cdiv(columns, BLOCK),)
        sizes = (columns, rows.stride(0))
        self._kernels[key][grid](rows, out, *sizes, BLOCK=BLOCK, **OPTIONS)


def source_of(network: Network, divisor: int) -> str:
    """Return the kernel `select` for a network: sum of its outputs over `divisor`."""
    lines = [
        "def select(rows, out, columns, step, BLOCK: tl.constexpr):",
        "    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "    inside = at < columns",
        "    source = rows + at",
    ]
    for wire in range(network.wires):
        lines += [
            f"    x{wire} = tl.minimum(tl.load(source, mask=inside, other=0.0), float('inf'))",
            "    source += step",
        ]
    for low, high, keep_low, keep_high in network.comparators:
        small, large = f"tl.minimum(x{low}, x{high})", f"tl.maximum(x{low}, x{high})"
        if keep_low and keep_high:
            lines += [f"    spare = {small}", f"    x{high} = {large}", f"    x{low} = spare"]
        else:
            lines += [f"    x{low} = {small}" if keep_low else f"    x{high} = {large}"]
    total = " + ".join(f"x{place}" for place in network.outputs)
    # `/` is an approximation on the device; this one is rounded as IEEE 754 has it.
    mean = (
        total if divisor == 1 else f"tl.div_rn({total}, tl.full((BLOCK,), {divisor}, tl.float32))"
    )
    lines += [f"    tl.store(out + at, {mean}, mask=inside)"]
    return "\n".join(lines) + "\n"


def kernel(network: Network, divisor: int) -> Any:
    """Return the generated source as a Triton function of (rows, out, columns, step, BLOCK).

    Triton reads a function's source by its file name: the source is put where Python looks for
    the lines of code that has no file, and no file is written.
    """
    source = source_of(network, divisor)
    file = f"<umbel selection of {network.wires}, {sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = compile(source, file, "exec", dont_inherit=True)
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    function = FunctionType(code, {"tl": tl, "__name__": __name__})
    function.__annotations__ = {"BLOCK": tl.constexpr}
    return triton.jit(function)
