"""The doctors' runner: all at once, none beyond its bound, a fault of its own among them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
import typer

from umbel import cli
from umbel.host import doctor
from umbel.host.doctor import NOTE, OK, PROBLEM, WARNING, Finding, Kind, Probe, Table, run, show
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKED = Table({
    "a.good": Kind(OK, "good"), "a.so": Kind(NOTE, "so so"),
    "a.poor": Kind(WARNING, "poor"), "a.bad": Kind(PROBLEM, "bad"),
})  # fmt: skip


def test_probes_look_at_once_and_the_worst_comes_first() -> None:
    together = threading.Barrier(4, timeout=5)

    def look(name: str) -> Iterator[Finding]:
        together.wait()
        yield LOOKED(name, name)

    names = ["a.good", "a.bad", "a.so", "a.poor"]
    found = run([Probe(name, lambda name=name: look(name)) for name in names])  # type: ignore[misc]
    assert [finding.id for finding in found] == ["a.bad", "a.poor", "a.so", "a.good"]


def hanging() -> list[Finding]:
    """Return what a probe has found that does not end."""
    never = threading.Event()

    def look() -> Iterator[Finding]:
        yield LOOKED("a.good", "before it hung")
        never.wait()

    try:
        return run([Probe("the deep", look, 0.05)])
    finally:
        never.set()


def failing() -> list[Finding]:
    """Return what a probe has found that fails."""

    def look() -> Iterator[Finding]:
        yield LOOKED("a.good", "before it fell")
        raise KeyError("a fault of ours")

    return run([Probe("the fallen", look)])


CASES = {"doctor.timeout": hanging, "doctor.fault": failing}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", CASES)
def test_what_a_probe_found_before_its_end_is_kept(name: str) -> None:
    found = CASES[name]()
    shown(name, found)
    assert found[-1].id == "a.good"


def test_a_line_says_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TOLD_S", 0.05)
    told: list[str] = []
    go = threading.Event()

    def look() -> Iterator[Finding]:
        go.wait(10)
        yield LOOKED("a.good", "done")

    def say(line: str) -> None:
        told.append(line)
        go.set()

    run([Probe("the gateway", look)], say)
    assert told[0] == "looking at the gateway"


def test_a_line_steers_no_terminal() -> None:
    finding = LOOKED("a.bad", "host \x1b[2J\nsecond line " + "x" * 5000, "rm\tthis")
    assert finding.line.startswith("host \\x1b[2J second line")
    assert len(finding.line) < 1100
    assert finding.fix == "rm this"


@pytest.mark.parametrize(
    ("ids", "status"),
    [(["a.good", "a.so", "a.poor"], 0), (["a.good", "a.bad"], 2), ([], 0)],
)
def test_the_status_says_whether_there_is_a_problem(
    ids: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [LOOKED(name, f"line of {name}", "do it") for name in ids]
    for form in ("text", "json"):
        with pytest.raises(typer.Exit) as end:
            show(findings, form)
        assert end.value.exit_code == status
        out = capsys.readouterr().out
        if form == "json":
            told = json.loads(out)
            assert [one["id"] for one in told["findings"]] == ids
            assert told["count"]["problem"] == (1 if status else 0)
        else:
            assert len(out.splitlines()) == 2 * len(ids) + 1


def test_times_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["client", "doctor", "--times"]) == 0
    out = capsys.readouterr().out
    assert "    20 s  host/doctor.py BOUND_S " in out
    assert "  60 s  clients/clock.py PATIENCE_S " in out
    assert "server/" not in out
    assert cli.main(["server", "doctor", "--times", "--format", "json"]) == 0
    listed = {row["where"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert listed["server/front.py CONNECT_S"] == "2 s"
