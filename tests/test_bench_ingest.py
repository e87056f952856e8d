"""`umbel bench ingest` in small: real processes on both sides, and what must not be timed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from umbel.benchmarks import flower_objects, ingest, tcp_ingest
from umbel.benchmarks.ingest_process import certificates, other
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.strategies.landing import Landing
from umbel.strategies.server_rules import FedAvg


def test_a_small_run_has_both_ways_with_peer_and_limit() -> None:
    lines = [m.line() for m in ingest.run(mib=1, params=20_000, runs=1, ranks=False)]
    ways, ends, objects = lines[:2], lines[2:-2], lines[-2:]
    assert [line["case"] for line in ways] == ["stream/plain", "stream/tls"]
    assert all(line["unit"] == "GB/s" and line["ratio"] and line["of_limit"] for line in ways)
    assert [line["case"] for line in ends] == ["publish", "publish/fedadam"]
    assert all(line["unit"] == "s" and line["of_limit"] for line in ends)
    assert [line["case"] for line in objects] == ["flower-objects", "flower-objects/hashed"]
    assert all(line["unit"] == "GB/s" and line["ratio"] for line in objects)


@pytest.mark.slow
def test_ranks_publish_too() -> None:
    found = [m.line() for m in ingest._published(20_000, 1, ranks=True)]
    assert [line["case"] for line in found] == ["publish", "publish/fedadam", "publish/ranks=2"]
    assert all(line["umbel"] for line in found)


def test_without_torch_no_ranks_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = {m.case: m.absent for m in ingest._published(1000, 1, ranks=True)}
    assert "umbel[torch]" in str(found.pop("publish/ranks=2"))
    assert set(found.values()) == {None}


def test_a_model_that_is_not_the_mean_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "move", lambda *_: None)
    with pytest.raises(VoidRound, match="not the mean"):
        list(ingest._published(1000, 1, ranks=False))


@pytest.mark.parametrize("option", ["mib", "params", "runs"])
def test_sizes_are_checked_first(option: str) -> None:
    numbers: dict[str, Any] = {option: 0}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(ingest.run(**numbers))


def test_a_server_that_ends_is_said() -> None:
    with other("tcp_ingest") as sink:
        end = tcp_ingest.Source(sink, None, os.urandom(1000))
        end.close()
        with pytest.raises(VoidRound, match="its server ended"):
            sink.ask(nbytes="many", key="", chain="")


def test_an_update_that_is_not_the_announced_one_is_not_timed() -> None:
    from umbel.benchmarks import grpc_ingest  # noqa: PLC0415 - grpc in this test only

    with other("grpc_ingest") as service:
        end = grpc_ingest.Sender(service, certificates(), bytearray(4096), tls=True)
        end._hash = bytes(32).hex()
        with pytest.raises(RuntimeError, match="invalid argument"):
            end.seconds()
        end.close()


def test_a_mean_that_is_not_flowers_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Landing, "mean", lambda self: dict(self.model))
    with pytest.raises(VoidRound, match="expected Flower's mean"):
        list(flower_objects.cases(1000, 1))
