"""Bundles are read within bounds, and what could be more than a file is refused."""

from __future__ import annotations

import io
import zipfile
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.clients import bundle
from umbel.clients.bundle import Bundle
from umbel.protocol.bundles import SIGNATURES, sign
from umbel.protocol.errors import Malformed
from umbel.tests.fabs import PROJECT, fab, packed

OWN = PROJECT.format(version="1.0.0").encode()


def test_a_bundle_says_what_is_in_it() -> None:
    content = fab("2.0.1", code__py=b"print()\n")
    found = Bundle.read(content)
    assert (found.app, found.version, found.digest) == (
        "tests/tiny", "2.0.1", sha256(content).digest()
    )  # fmt: skip
    assert found.files.keys() == {"pyproject.toml", "code.py"}
    assert found.size == len(PROJECT.format(version="2.0.1")) + 8
    assert found.signers() == frozenset()


def test_a_signed_bundle_names_its_signers() -> None:
    key = Ed25519PrivateKey.generate()
    plain = Bundle.read(fab(code__py=b"1"))
    signatures = sign(plain.digests, key, None)
    whole = {**plain.files, SIGNATURES: signatures}
    assert Bundle.read(packed(whole)).signers() == {key.public_key().public_bytes_raw()}
    assert Bundle.read(packed({**whole, "code.py": b"2"})).signers() == frozenset()
    assert Bundle.read(packed({**whole, "more.py": b""})).signers() == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "../up.py", "a/../../up.py", "/etc/passwd", "a//b.py", "./a.py", "a\\b.py", "C:b.py",
        "a\nb.py", "a\x1b[2Jb.py", "x" * 241, ".info/more", ".info/a/b", "",
    ],
)  # fmt: skip
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(Malformed, match="bundle: "):
        Bundle.read(packed({"pyproject.toml": OWN, name: b"x"}))


def test_a_name_that_ends_early_is_refused() -> None:
    """Python's zipfile cuts a name at its first NUL: two readers could see two names."""
    content = packed({"pyproject.toml": OWN, "a.py~.txt": b"x"})
    content = content.replace(b"a.py~.txt", b"a.py\0.txt")
    with pytest.raises(Malformed, match="a relative path of plain characters"):
        Bundle.read(content)


def test_a_name_may_occur_once_and_be_one_thing() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("pyproject.toml", OWN)
        archive.writestr("a.py", OWN)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.py", OWN)
    with pytest.raises(Malformed, match="a second one"):
        Bundle.read(out.getvalue())
    with pytest.raises(Malformed, match="a file or a folder"):
        Bundle.read(packed({"pyproject.toml": OWN, "a": b"", "a/b.py": b""}))


@pytest.mark.parametrize("mode", [0o120777, 0o010666, 0o060666])  # link, pipe, device
def test_what_is_no_plain_file_is_refused(mode: int) -> None:
    with pytest.raises(Malformed, match="a plain file"):
        Bundle.read(packed({"pyproject.toml": OWN}, external_attr=mode << 16))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_odd_packings_are_refused(method: int) -> None:
    with pytest.raises(Malformed, match="odd packing"):
        Bundle.read(packed({"pyproject.toml": OWN}, compress_type=method))


def test_a_zip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_UNPACKED", 1 << 20)
    content = packed({"pyproject.toml": OWN, **{f"{n}.py": bytes(1 << 18) for n in range(5)}})
    assert len(content) < 1 << 12
    with pytest.raises(Malformed, match="unpacked: expected at most 1048576 bytes"):
        Bundle.read(content, 1 << 20)
    assert Bundle.read(content, 2 << 20).size == 5 * (1 << 18) + len(OWN)


def test_an_entry_that_lies_about_its_size_is_refused() -> None:
    content = packed({"pyproject.toml": OWN, "a.py": bytes(1 << 16)})
    lying = content.replace((1 << 16).to_bytes(4, "little"), (4).to_bytes(4, "little"))
    assert lying != content
    with pytest.raises(Malformed, match="no zip archive"):
        Bundle.read(lying)


def test_sizes_and_counts_are_bounded_before_anything_is_read() -> None:
    with pytest.raises(Malformed, match=f"size: expected at most {16 << 20}"):
        Bundle.read(bytes((16 << 20) + 1))
    many = packed({f"{n}.py": b"" for n in range(2049)})
    with pytest.raises(Malformed, match="entries: expected at most 2048, got 2049"):
        Bundle.read(many)


@pytest.mark.parametrize(
    "project",
    [
        None, b"", b"[project]\nname = 'a'", OWN.replace(b'"tiny"', b"7"),
        OWN.replace(b"tests", b"te/sts"), OWN.replace(b"tiny", b"ti\\u001bny"), b"\xff",
    ],
)  # fmt: skip
def test_a_bundle_says_whose_it_is(project: bytes | None) -> None:
    files = {"a.py": b""} if project is None else {"pyproject.toml": project}
    with pytest.raises(Malformed, match=r"pyproject\.toml"):
        Bundle.read(packed(files))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + bytes(18), b"x" * 100])
def test_what_is_no_zip_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed, match="bundle: "):
        Bundle.read(content)
