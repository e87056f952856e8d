"""The table of kernels: each equals its eager reference on the same buffers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from Crypto.Cipher import ChaCha20 as OtherChaCha20

from umbel.protocol.errors import SettingsError
from umbel.server.core import torch_kernels
from umbel.server.core.torch_kernels import KERNELS
from umbel.strategies.compiled import Compiled

NOWHERE = Compiled(".numba_nothing", "umbel.server.core")
STREAMS = [(hashlib.sha256(bytes([i])).digest(), 1 - 2 * (i % 2)) for i in range(5)]


def _arguments(name: str, length: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(length)
    if name == "fold":
        rows = torch.from_numpy(rng.standard_normal((9, length)).astype(np.float32))
        return rows, torch.arange(1.0, 10.0)
    if name == "ringsum":
        return (torch.from_numpy(rng.integers(-(2**31), 2**31, (9, length), dtype=np.int32)),)
    return STREAMS, 48


@pytest.mark.parametrize("length", [1, 16, 1023, 70_001])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("numba", [True, False], ids=["numba", "torch"])
def test_a_kernel_is_its_reference(
    name: str, length: int, numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_kernels, "LARGE", 1)
    if numba:
        assert torch_kernels.compiled()
    else:
        monkeypatch.setattr(torch_kernels, "FOLDS", NOWHERE)
    kernel, arguments = KERNELS[name], _arguments(name, length)
    dtype = torch.float32 if name == "fold" else torch.int32
    ours, reference = torch.ones(length, dtype=dtype), torch.ones(length, dtype=dtype)
    kernel.run(ours, *arguments)
    kernel.eager(reference, *arguments)
    if name == "fold":
        assert torch.allclose(ours, reference, rtol=1e-5, atol=1e-4)
    else:
        assert torch.equal(ours, reference)
    assert not torch.equal(ours, torch.ones(length, dtype=dtype))


def test_an_unmasked_shard_is_that_of_another_library() -> None:
    total = torch.full((1000,), -1, dtype=torch.int32)
    KERNELS["unmask"].run(total, STREAMS, 160)
    expected = np.full(1000, 2**32 - 1, np.uint32)
    for key, sign in STREAMS:
        cipher = OtherChaCha20.new(key=key, nonce=bytes(12))
        cipher.seek(4 * 160)
        noise = np.frombuffer(cipher.encrypt(bytes(4000)), "<u4")
        expected = expected + noise if sign > 0 else expected - noise
    assert np.array_equal(total.numpy().view(np.uint32), expected)


@pytest.mark.parametrize("name", ["fold", "ringsum"])
def test_a_pair_goes_into_the_other_and_leaves_the_first(name: str) -> None:
    arguments = _arguments(name, 2000)
    total = torch.ones(2000, dtype=torch.float32 if name == "fold" else torch.int32)
    other, reference = torch.zeros_like(total), total.clone()
    KERNELS[name].run(total, *arguments, other)
    KERNELS[name].run(reference, *arguments)
    assert torch.equal(other, reference)
    assert torch.equal(total, torch.ones_like(total))


def test_compiled_folds_check_their_buffers_too() -> None:
    with pytest.raises(SettingsError, match="fold rows"):
        KERNELS["fold"].run(torch.zeros(8), torch.ones(2, 4), torch.ones(2))
    with pytest.raises(SettingsError, match="fold rows"):
        KERNELS["ringsum"].run(torch.zeros(8).int(), torch.ones(2, 8))


def test_without_numba_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "FOLDS", NOWHERE)
    assert torch_kernels.compiled() is None
    total = torch.zeros(4)
    KERNELS["fold"].run(total, torch.ones(2, 4), torch.tensor([1.0, 2.0]))
    assert total.tolist() == [3.0] * 4


def test_a_first_large_ring_sum_does_not_wait_for_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folds = Compiled(".numba_folds", "umbel.server.core")
    monkeypatch.setattr(torch_kernels, "FOLDS", folds)
    monkeypatch.setattr(folds, "load", lambda: None)
    monkeypatch.setattr(torch_kernels, "LARGE", 5)
    for length, begun in ((4, False), (5, True)):
        total = torch.zeros(length, dtype=torch.int32)
        KERNELS["ringsum"].run(total, torch.ones((3, length), dtype=torch.int32))
        assert total.tolist() == [3] * length
        assert folds._begun is begun
