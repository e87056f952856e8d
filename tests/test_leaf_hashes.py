"""The digest by threads is the digest."""

from __future__ import annotations

import hashlib

import pytest

from umbel.protocol.digest import LEAF, model_digest
from umbel.server.leaf_hashes import PART, digest_of


@pytest.mark.parametrize("size", [0, 1, LEAF, PART, PART + 1, 2 * PART, 3 * PART + LEAF + 17])
def test_threads_give_the_digest_of_the_whole(size: int) -> None:
    model = hashlib.shake_128(b"model").digest(size)
    assert digest_of(memoryview(model)) == model_digest(model)
