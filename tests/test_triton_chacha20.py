"""The GPU's ChaCha20 in Triton's interpreter, bit for bit; and what ptxas makes of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from umbel.protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from numpy.typing import NDArray

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: it comes with a CUDA torch", allow_module_level=True)

REGISTERS = 64
NAME = "umbel.server.core.triton_chacha20"


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The module under the interpreter; `triton.jit` decides by the environment when imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def _noise(key: bytes, nonce: bytes, first: int, words: int) -> NDArray[np.uint32]:
    """The library's stream, its counter led over 2^32 by hand as the RFC's 32-bit sum goes."""
    left = min(4 * words, 64 * (2**32 - first))
    parts = [(first, left), (0, 4 * words - left)]
    streams = (
        Cipher(ChaCha20(key, at.to_bytes(4, "little") + nonce), mode=None)
        .encryptor()
        .update(bytes(size))
        for at, size in parts
    )
    return np.frombuffer(b"".join(streams), "<u4")


def _words(data: bytes, width: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.int32).reshape(-1, width).copy())


def test_the_block_of_rfc_8439_section_2_3_2(kernel: ModuleType) -> None:
    total = torch.zeros(16, dtype=torch.int32)
    nonce = bytes.fromhex("000000090000004a00000000")
    one = torch.ones(1, dtype=torch.int32)
    kernel.launch(total, _words(bytes(range(32)), 8), _words(nonce, 3), one, 1)
    assert total.numpy().tobytes() == bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize(
    ("words", "masks", "first"),
    [(16, 1, 0), (1000, 1, 7), (4096, 5, 123456), (515, 3, 2**31 + 5), (2048, 9, 2**32 - 200)],
)
def test_any_range_with_any_signs_is_the_librarys(
    kernel: ModuleType, words: int, masks: int, first: int
) -> None:
    # 2048 words are 128 blocks: from 2^32 - 200 on none wraps; the next test has one that does
    rng = np.random.default_rng(words)
    keys, nonces = rng.bytes(32 * masks), rng.bytes(12 * masks)
    signs = rng.choice([1, -1], masks).astype(np.int32)
    start = rng.integers(0, 2**32, words, dtype=np.uint32)
    total = torch.from_numpy(start.copy().view(np.int32))
    kernel.launch(total, _words(keys, 8), _words(nonces, 3), torch.from_numpy(signs), first)
    expected = start.copy()
    for at, sign in enumerate(signs):
        noise = _noise(keys[32 * at : 32 * at + 32], nonces[12 * at : 12 * at + 12], first, words)
        expected = expected + noise if sign > 0 else expected - noise
    assert np.array_equal(total.numpy().view(np.uint32), expected)


def test_the_counter_wraps_around_as_the_rfcs_does(kernel: ModuleType) -> None:
    total = torch.zeros(64, dtype=torch.int32)
    key, nonce = bytes(range(32)), bytes(range(12))
    one = torch.ones(1, dtype=torch.int32)
    kernel.launch(total, _words(key, 8), _words(nonce, 3), one, 2**32 - 2)
    assert np.array_equal(total.numpy().view(np.uint32), _noise(key, nonce, 2**32 - 2, 64))


def test_a_shard_meets_the_stream_of_the_protocol(kernel: ModuleType) -> None:
    keys = [bytes([n]) * 32 for n in (3, 4)]
    total = torch.arange(100, dtype=torch.int32)
    kernel.unmask(total, [(keys[0], 1), (bytearray(keys[1]), -1)], first_word=160)
    noise = [_noise(key, bytes(12), 10, 100) for key in keys]
    expected = np.arange(100, dtype=np.uint32) + noise[0] - noise[1]
    assert np.array_equal(total.numpy().view(np.uint32), expected)


def test_nothing_to_do_changes_nothing(kernel: ModuleType) -> None:
    total = torch.arange(5, dtype=torch.int32)
    kernel.unmask(total, [])
    kernel.unmask(total[:0], [(bytes(32), 1)])
    assert total.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("first", "streams", "complaint"),
    [
        (8, [(bytes(32), 1)], "unmask shard"),
        (-16, [(bytes(32), 1)], "unmask shard"),
        (2**36 - 16, [(bytes(32), 1)], "unmask shard"),
        (0, [(bytes(31), 1)], "unmask streams"),
        (0, [(bytes(32), 0)], "unmask streams"),
    ],
)
def test_what_no_stream_covers_is_refused_untouched(
    kernel: ModuleType, first: int, streams: Any, complaint: str
) -> None:
    total = torch.zeros(17, dtype=torch.int32)
    with pytest.raises(SettingsError, match=complaint):
        kernel.unmask(total, streams, first)
    assert not total.any()


AHEAD = f"""
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from {NAME} import BLOCK, WARPS, add_streams

words = dict.fromkeys(("total", "out", "keys", "nonces", "signs"), "*i32")
source = ASTSource(
    add_streams,
    words | {{"n_words": "i64", "n_keys": "i32", "first": "i64", "BLOCK": "constexpr"}},
    constexprs={{"BLOCK": BLOCK}},
    attrs={{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}},
)
made = triton.compile(source, GPUTarget("cuda", 90, 32), options={{"num_warps": WARPS}})
open(sys.argv[1], "wb").write(made.asm["cubin"])
"""


def test_compiled_for_sm_90_it_fits_its_registers_and_spills_nothing(tmp_path: Path) -> None:
    """No GPU is needed: ptxas and cuobjdump come with Triton."""
    import triton  # noqa: PLC0415

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    cubin = tmp_path / "kernel.cubin"
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", AHEAD, str(cubin)], env=environment, check=True)
    usage = subprocess.run(
        [tools / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    assert found["REG"] <= REGISTERS, usage
    assert found["STACK"] == found["LOCAL"] == 0, usage
