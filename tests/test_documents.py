"""JSON and TOML of others: ValueError in one short line, whatever Python's readers choke on."""

from __future__ import annotations

import json
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.documents import MAX_DEPTH, MAX_DOTS, read_json, read_toml

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False)
TREES = st.recursive(
    SCALARS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(TREES)
def test_what_json_can_say_is_read_as_python_reads_it(tree: Any) -> None:
    text = json.dumps(tree)
    assert read_json(text) == read_json(text.encode()) == json.loads(text) == tree


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (b"[" * 100_000, "nests too deep"),
        (b'{"a":' * 100_000 + b"1", "nests too deep"),
        (b"9" * 5000, "beyond 64 bits"),
        (b"[123456789012345678901]", "beyond 64 bits"),
        (b"NaN", "NaN"),
        (b"[1e999]", "no float holds"),
        (b"-1e999", "no float holds"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": [{"b": 1, "b": 1}]}', "a key twice"),
        (b"\xff", "UTF-8"),
        ("[1]".encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf[1]", "Expecting value (at line 1)"),
        (b"[1]\n]", "Extra data (at line 2)"),
        (b"", "Expecting value"),
    ],
)
def test_a_json_text_that_is_none(text: bytes, cause: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        read_json(text)
    assert cause in str(caught.value)
    assert len(str(caught.value)) < 100


def test_a_table_may_be_so_deep_and_no_deeper() -> None:
    inner = "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2)
    assert read_toml(f"a = {inner}") == tomllib.loads(f"a = {inner}")
    with pytest.raises(ValueError, match="deep"):
        read_toml(f"a = [[{inner}]]")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = " + "[" * 100_000, "deep"),
        ("a = " + "9" * 6000, "thousands of digits"),
        ("\n[" + "a." * 500 + "a]", "deep"),
        ("\na = 1 = 2", "line 2"),
        ("# " + "x" * (1 << 20), "characters"),
    ],
)
def test_a_toml_text_that_is_none(text: str, cause: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        read_toml(text)
    assert cause in str(caught.value)
    assert len(str(caught.value)) < 100


def test_a_key_of_thirty_thousand_parts_takes_no_quadratic_time() -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=rf"{MAX_DOTS} dots \(at line 3\)"):
        read_toml("x = 1\n\nb = {" + "a." * 30_000 + "a = 1}")
    assert time.process_time() - began < 1.0  # tomllib alone takes eight
