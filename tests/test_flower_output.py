"""What of a ServerApp's output is told while its run goes on."""

from __future__ import annotations

from umbel.server.flower_output import Warnings

SAID = "node edge-1 (f27cc8af): its ClientApp failed, code 2"


def test_a_warning_is_told_once_and_whole() -> None:
    warnings = Warnings()
    assert warnings.new("INFO :      Start\n\x1b[93mWARNING \x1b[0m:   node edge-1 ") == []
    assert warnings.new("(f27cc8af): its ClientApp failed, code 2\nINFO :  x\n") == [SAID]
    assert warnings.new(f"WARNING :   {SAID}\nWARNING :   another\n") == ["another"]


def test_a_warning_with_a_time_is_one_too() -> None:
    line = f"WARNING 2026-11-30 21:50:03,299:   {SAID}\n"
    assert Warnings().new(line) == [SAID]


def test_what_an_app_prints_about_warnings_is_none() -> None:
    assert Warnings().new("no WARNING: here\nWARNINGS: 3\n") == []
