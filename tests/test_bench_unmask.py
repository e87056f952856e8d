"""`umbel bench unmask`: a whole run in small, and what must not be timed."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.benchmarks import flower_masks, unmask
from umbel.protocol.errors import SettingsError, VoidRound


def test_a_small_run_has_both_cases_with_peer_and_limit() -> None:
    lines = [m.line() for m in unmask.run(words=4096, masks=3, runs=1)]
    assert [line["case"] for line in lines] == ["chacha20/threads=1", "chacha20/threads=2"]
    assert all(line["ratio"] and line["of_limit"] for line in lines)


def test_the_rate_counts_key_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 bytes x 16,000,000 words x 5 masks = 0.32 GB in 0.1 s; Flower's 3 masks 0.192 GB in 0.8 s
    monkeypatch.setattr(unmask, "_agree", lambda *_: None)
    monkeypatch.setattr(unmask, "_unmask", lambda *_: 0.1)
    monkeypatch.setattr(unmask, "_bare", lambda *_: 0.08)
    monkeypatch.setattr(flower_masks, "unmask", lambda *_: 0.8)
    line = next(unmask.run(words=16_000_000, masks=5, runs=1)).line()
    assert (line["umbel"], line["peer"], line["limit"]) == (3.2, 0.24, 4.0)


def test_masks_that_stay_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(total: bytearray, *_: Any, **__: Any) -> None:
        total[7] = 1

    monkeypatch.setattr(unmask, "unmask", forgets)
    with pytest.raises(VoidRound, match="did not come off"):
        next(unmask.run(words=4096, masks=3, runs=1))


@pytest.mark.parametrize(
    ("option", "value"), [("words", 0), ("words", 24), ("masks", 0), ("runs", 0)]
)
def test_sizes_are_checked_first(option: str, value: int) -> None:
    numbers: dict[str, Any] = {option: value}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(unmask.run(**numbers))
