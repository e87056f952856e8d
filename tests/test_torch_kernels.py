"""The table of kernels: each equals its eager reference on the same buffers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from Crypto.Cipher import ChaCha20 as OtherChaCha20

from umbel.server.core.torch_kernels import KERNELS

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
def test_a_kernel_is_its_reference(name: str, length: int) -> None:
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
