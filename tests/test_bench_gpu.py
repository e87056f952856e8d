"""`umbel bench gpu`: without a device one line and status 0; with the CPU in its place, all."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from umbel import cli
from umbel.benchmarks import gpu
from umbel.benchmarks.torch_gpu import MEDIANS, Device
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.server.core import torch_kernels
from umbel.strategies.torch_tiles import TorchTiles

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

FEW = ((16, 1, 0), (40, 3, 2**32 - 3))


def _kernel(unmask: Any = torch_kernels.unmask) -> ModuleType:
    """Return a stand-in for triton_chacha20 that works on the CPU; its own bits: its own tests."""
    return cast("ModuleType", SimpleNamespace(unmask=unmask))


def _device(kernel: ModuleType, tiles: TorchTiles | None = None) -> Device:
    return Device("cpu", kernel, tiles or TorchTiles(max(MEDIANS)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_so_in_one_line_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert cli.main(["bench", "gpu", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "umbel bench: copy: there is no CUDA device: nothing was checked or measured"
    ]
    assert len(captured.out.splitlines()) == 1


@pytest.mark.parametrize(("missing", "extra"), [("torch", "torch"), ("triton", "gpu")])
def test_a_missing_library_is_named_with_its_extra(
    missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else 1)
    (found,) = gpu.run()
    assert found.absent == f"{missing} is not installed; `pip install umbel[{extra}]`"


def test_the_bits_of_a_good_kernel_pass() -> None:
    _device(_kernel()).check(FEW[:1])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_bits_of_the_interpreted_kernel_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.find_spec("umbel.server.core.triton_chacha20")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _device(module).check(FEW)


def test_one_wrong_word_is_named_before_anything_is_timed() -> None:
    def wrong(total: torch.Tensor, streams: Any, first_word: int = 0) -> None:
        torch_kernels.unmask(total, streams, first_word)
        total[3] += 1

    with pytest.raises(VoidRound, match="chacha20, 16 words from block 0, 1 masks: 1 of 16"):
        next(_device(_kernel(wrong)).cases(64, 2, 1))


def test_a_median_that_is_none_is_named() -> None:
    class Lowest(TorchTiles):
        def median(self, rows: torch.Tensor, out: torch.Tensor) -> None:
            torch.amin(rows, 0, out=out)

    with pytest.raises(VoidRound, match="bench gpu: median of 16"):
        _device(_kernel(), Lowest(max(MEDIANS))).check(FEW[:1])


def test_every_case_is_measured_beside_the_copy() -> None:
    found = {m.case: m.line() for m in _device(_kernel()).cases(4096, 3, 1)}
    assert set(found) == {"copy", "upload", "chacha20/masks=1", "chacha20/masks=64",
                          "fold/float", "fold/ring", "median/n=16", "median/n=32"}  # fmt: skip
    assert found["copy"]["of_limit"] == 1.0
    assert found["upload"]["peer"] is None
    for case in set(found) - {"copy", "upload"}:
        assert found[case]["ratio"]
        assert found[case]["peer_name"] == "one CPU thread"
    # 6 bytes of traffic for 4 of an update, in batches of 4
    copy = cast("float", found["copy"]["limit"])
    assert found["fold/float"]["limit"] == pytest.approx(copy * 4 / 6, rel=1e-3)
    # 16 values read and one written
    assert found["median/n=16"]["limit"] == pytest.approx(copy * 16 / 17, rel=1e-3)


@pytest.mark.parametrize(
    ("option", "value"), [("words", 0), ("words", 24), ("clients", 0), ("runs", 0)]
)
def test_sizes_are_checked_first(option: str, value: int) -> None:
    numbers: dict[str, Any] = {option: value}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(gpu.run(**numbers))
