"""An owner sees every difference between two bundles, and no bundle steers a terminal."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.clients.app_view import LARGEST, changes, described
from umbel.clients.bundle import Bundle
from umbel.protocol.bundles import SIGNATURES, sign
from umbel.tests.fabs import fab, packed


def read(version: str = "1.0.0", **files: bytes) -> Bundle:
    return Bundle.read(fab(version, **files))


def test_files_are_added_removed_and_changed() -> None:
    old = read(same__py=b"s", gone__py=b"g\n", code__py=b"a\nb\nc\n")
    new = read(same__py=b"s", more__py=b"m\n", code__py=b"a\nB\nc\n")
    found = {change.name: change for change in changes(old, new)}
    assert {name: change.how for name, change in found.items()} == {
        "code.py": "changed", "gone.py": "removed", "more.py": "added"
    }  # fmt: skip
    assert found["code.py"].lines[:2] == ("--- a/code.py", "+++ b/code.py")
    assert [line for line in found["code.py"].lines[2:] if line[0] in "-+"] == ["-b", "+B"]
    assert "+m" in found["more.py"].lines
    assert "-g" in found["gone.py"].lines


def test_without_an_old_one_every_file_is_added() -> None:
    found = changes(None, read(code__py=b"x"))
    assert [(change.name, change.how) for change in found] == [
        ("code.py", "added"), ("pyproject.toml", "added")
    ]  # fmt: skip


def test_a_diff_steers_no_terminal() -> None:
    found = changes(read(a__py=b"x\n"), read(a__py=b"\x1b[2J\x1b]0;hi\x07\rx\n"))
    assert all(line.isprintable() for line in found[0].lines)
    assert any("x1b[2J" in line for line in found[0].lines)


def test_what_is_no_text_or_too_long_is_named_with_its_sizes() -> None:
    long = b"x" * (LARGEST + 1)
    old = read(a__py=b"x", b__py=b"x", c__py=b"x")
    found = changes(old, read(a__py=b"\xff", b__py=long, c__py=b"\n" * 4001))
    assert [change.lines for change in found] == [
        ("a.py: 1 and 1 bytes, not shown: no text of UTF-8, or too long",),
        (f"b.py: 1 and {LARGEST + 1} bytes, not shown: no text of UTF-8, or too long",),
        ("c.py: 1 and 4001 bytes, not shown: no text of UTF-8, or too long",),
    ]


def test_a_description_names_files_and_signers() -> None:
    key, plain = Ed25519PrivateKey.generate(), read("2.0", code__py=b"12345")
    public = key.public_key().public_bytes_raw()
    whole = {**plain.files, SIGNATURES: sign(plain.digests, key, None)}
    bundle = Bundle.read(packed(whole))
    told = described(bundle, (public,))
    assert (told["app"], told["release"], told["files"]["code.py"]) == ("tests/tiny", "2.0", 5)
    assert told["signed"] == [{"key": public.hex(), "listed": True}]
    assert described(bundle, ())["signed"] == [{"key": public.hex(), "listed": False}]
    odd = Bundle.read(packed({**plain.files, SIGNATURES: b"{}"}))
    assert described(odd, ())["signed"] == []
