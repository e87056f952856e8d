"""`umbel bench ingest` in small: real processes on both sides, and what must not be timed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from umbel.benchmarks import ingest, tcp_ingest
from umbel.benchmarks.ingest_process import certificates, other
from umbel.protocol.errors import SettingsError, VoidRound


def test_a_small_run_has_both_ways_with_peer_and_limit() -> None:
    lines = [m.line() for m in ingest.run(mib=1, runs=1)]
    assert [line["case"] for line in lines] == ["stream/plain", "stream/tls"]
    assert all(line["unit"] == "GB/s" and line["ratio"] and line["of_limit"] for line in lines)


@pytest.mark.parametrize("option", ["mib", "runs"])
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
