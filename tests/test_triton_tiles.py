"""The GPU kernels in Triton's interpreter, and what the real compiler makes of them for sm_90."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from umbel.protocol.errors import SettingsError
from umbel.strategies import selection_network as networks

if TYPE_CHECKING:
    from umbel.strategies.selection_network import Network

triton: Any = pytest.importorskip(
    "triton", reason="triton is not installed: `make kernels` makes an environment that has it"
)
triton_tiles: Any = pytest.importorskip("umbel.strategies.triton_tiles")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return kernels that run in Triton's interpreter, on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return triton_tiles.TritonTiles(65, "cpu")


def rows_of(clients: int, columns: int) -> torch.Tensor:
    rows = np.random.default_rng(clients).normal(size=(clients, columns)).astype(np.float32)
    rows[:, ::7] = np.round(rows[:, ::7])  # ties
    rows[0, 3], rows[-1, 5] = np.inf, -np.inf
    return torch.from_numpy(rows)


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 9, 16, 17, 32, 33, 65])
def test_the_median_is_numpys_bit_for_bit(interpreted: Any, clients: int) -> None:
    rows, out = rows_of(clients, 300), torch.empty(300)
    interpreted.median(rows, out)
    with np.errstate(invalid="ignore"):
        expected = np.median(rows.numpy(), axis=0)
    assert np.array_equal(out.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(("clients", "cut"), [(5, 1), (16, 3), (32, 6)])
def test_the_trimmed_mean(interpreted: Any, clients: int, cut: int) -> None:
    rows, out = rows_of(clients, 200), torch.empty(200)
    interpreted.trimmed(rows, cut, out)
    ordered = np.sort(rows.numpy().astype(np.float64), axis=0)
    assert np.abs(out.numpy() - ordered[cut : clients - cut].mean(axis=0)).max() <= 1e-6


def test_rows_of_a_ring_and_nan(interpreted: Any) -> None:
    ring, out = rows_of(6, 500), torch.empty(130)
    ring[2, 100:230] = torch.nan
    shard = ring[::2, 100:230]
    interpreted.median(shard, out)
    assert torch.equal(out, torch.maximum(shard[0], shard[2]))  # one of three is +inf


def test_the_rest_is_torch(interpreted: Any) -> None:
    rows, total = rows_of(5, 100)[:, 6:], torch.zeros(5, 5, dtype=torch.float64)
    interpreted.gram(rows, None, total)
    assert total.numpy() == pytest.approx((rows.double() @ rows.double().t()).numpy(), rel=1e-5)


def resources(network: Network, divisor: int, folder: Path) -> dict[str, int]:
    """Return what the compiled kernel uses on sm_90: REG, STACK, LOCAL and others, by name."""
    source = triton.compiler.ASTSource(
        fn=triton_tiles.kernel(network, divisor),
        signature={
            **{"rows": "*fp32", "out": "*fp32", "columns": "i64", "step": "i64"},
            "BLOCK": "constexpr",
        },
        constexprs={"BLOCK": triton_tiles.BLOCK},
        attrs={(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options=triton_tiles.OPTIONS)
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run(
        [str(tool), "-res-usage", str(binary)], capture_output=True, text=True, check=True
    ).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", told)}


@pytest.mark.parametrize(("clients", "most"), [(8, 64), (16, 64), (31, 128), (32, 128), (64, 128)])
def test_the_budget_of_registers_holds_on_sm_90(
    clients: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    used = resources(networks.median(clients), 2 - clients % 2, tmp_path)
    assert 0 < used["REG"] <= most
    assert used["STACK"] == used["LOCAL"] == 0


def test_the_trimmed_mean_keeps_to_the_budget_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    used = resources(networks.trimmed(32, 6), 20, tmp_path)
    assert 0 < used["REG"] <= 128
    assert used["STACK"] == used["LOCAL"] == 0


def test_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SettingsError, match="triton kernels: expected a GPU"):
        triton_tiles.TritonTiles(4, "cpu")


def test_the_source_takes_as_many_minima_as_the_network() -> None:
    network = networks.prune(16, [{7}, {8}])
    source = triton_tiles.source_of(network, 2)
    loads = network.wires  # each has a minimum against NaN
    found = source.count("tl.minimum(x") + source.count("tl.maximum(x")
    assert (found, source.count("tl.minimum(tl.load")) == (92, loads)
