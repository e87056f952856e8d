"""The model digest against RFC 6962: its recursion, known roots and cases by hand."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.digest import leaf_hashes, model_digest, tree_root

# The test tree of the Certificate Transparency reference code (merkle_tree_test): eight leaves
# and the roots over the first 0, 1, ... 8 of them.
CT_LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
CT_LEAVES.append("606162636465666768696a6b6c6d6e6f")
CT_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word: D[n] splits at the largest power of two below n."""
    if not leaves:
        return sha(b"")
    if len(leaves) == 1:
        return sha(b"\x00" + leaves[0])
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return sha(b"\x01" + naive_root(leaves[:k]) + naive_root(leaves[k:]))


@pytest.mark.parametrize("count", range(9))
def test_the_roots_of_the_transparency_logs(count: int) -> None:
    hashes = [sha(b"\x00" + bytes.fromhex(leaf)) for leaf in CT_LEAVES[:count]]
    assert tree_root(hashes).hex() == CT_ROOTS[count]


def test_empty_one_leaf_two_leaves_and_a_short_last_leaf_by_hand() -> None:
    assert model_digest(b"") == sha(b"")
    assert model_digest(b"abcd", leaf=4) == sha(b"\x00abcd")
    two = sha(b"\x01" + sha(b"\x00abcd") + sha(b"\x00efgh"))
    assert model_digest(b"abcdefgh", leaf=4) == two
    # Three leaves, the last of one byte: it stands alone on the right.
    assert model_digest(b"abcdefghi", leaf=4) == sha(b"\x01" + two + sha(b"\x00i"))


@given(data=st.binary(max_size=300), leaf=st.integers(1, 40))
def test_agrees_with_the_recursive_definition(data: bytes, leaf: int) -> None:
    leaves = [data[start : start + leaf] for start in range(0, len(data), leaf)]
    assert model_digest(bytearray(data), leaf) == naive_root(leaves)


def test_the_leaf_is_one_mebibyte() -> None:
    data = bytes(range(256)) * 4096 + b"tail"
    assert len(data) == 2**20 + 4
    expected = sha(b"\x01" + sha(b"\x00" + data[: 2**20]) + sha(b"\x00tail"))
    assert model_digest(data) == expected


def test_ranks_that_hash_their_own_leaves_find_the_same_root() -> None:
    data = bytes(range(256)) * 5
    parts = [data[:512], data[512:768], data[768:]]
    hashes = [h for part in parts for h in leaf_hashes(memoryview(part), leaf=128)]
    assert tree_root(hashes) == model_digest(data, leaf=128)


def test_a_leaf_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="1 byte or more, got 0"):
        model_digest(b"abc", leaf=0)
