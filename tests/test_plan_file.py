"""A plan as a file: its digest, what has no number, and the example that its readers share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from umbel.protocol.errors import StateError
from umbel.simulation.capacity.plan_file import SHARES, digest_of, quantiles, sealed, write
from umbel.simulation.capacity.sample import Sample

EXAMPLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "plan.json").read_text("ascii")
)


def test_the_example_has_the_digest_that_was_computed_elsewhere() -> None:
    assert digest_of(EXAMPLE) == EXAMPLE["digest"]
    assert digest_of({**EXAMPLE, "seed": 1}) != EXAMPLE["digest"]


def test_a_digest_is_of_sorted_compact_ascii() -> None:
    # printf '{"a":[1,2.5],"b":"\\u00e9"}' | sha256sum
    expected = "60d4fe7d84d09285a774fa6c850ed0e739e0153890529471751ae4df4e1df886"
    assert digest_of({"b": "é", "a": [1, 2.5], "digest": "x"}) == expected


def test_what_is_no_number_is_null_and_the_whole_is_sealed() -> None:
    found = sealed({"a": math.inf, "b": [math.nan, 1.0], "c": {"d": -math.inf, "e": (2, "x")}})
    assert found["a"] is None
    assert found["b"] == [None, 1.0]
    assert found["c"] == {"d": None, "e": [2, "x"]}
    assert (found["format"], found["digest"]) == ("umbel-plan/1", digest_of(found))


def test_quantiles_are_those_of_the_sample() -> None:
    pairs = quantiles(Sample.of(range(1, 10_001)))
    assert [share for share, _ in pairs] == list(SHARES) == sorted(SHARES)
    assert pairs[0] == [0.0005, 5.0]
    assert pairs[-1] == [0.9995, 9995.0]
    assert [share for share, _ in EXAMPLE["round"]["quantiles"]] == list(SHARES)


def test_a_file_reads_back_as_the_object(tmp_path: Path) -> None:
    write(tmp_path / "plan.json", EXAMPLE)
    assert json.loads((tmp_path / "plan.json").read_text("ascii")) == EXAMPLE
    with pytest.raises(StateError, match="a file that can be written"):
        write(tmp_path / "none" / "plan.json", EXAMPLE)
