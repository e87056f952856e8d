"""What people see: lines by hand, a terminal that is a list of strings, folded refusals."""

from __future__ import annotations

import io
import json
import os
import pty
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from umbel.protocol.errors import TooFewMembers
from umbel.protocol.round_table import RoundPhase
from umbel.server import run_lines
from umbel.server.ledger import RoundRecord
from umbel.simulation import report
from umbel.simulation.federation import Result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

    from umbel.simulation.link import Link

NODES = tuple(f"{i:032x}" for i in range(12))


def record(**changes: Any) -> RoundRecord:
    fields: dict[str, Any] = {
        "round": 2,
        "attempt": 0,
        "phase": "train",
        "outcome": "finished",
        "cause": "",
        "roster": NODES[:5],
        "survivors": NODES[:3] + NODES[4:5],
        "model": "ab" * 32,
        "metrics": {"train.loss": 0.5, "eval.loss": 0.7, "test.accuracy": 0.9375},
        "seconds": {"inviting": 0.25, "sharing": 0.125},
        "bytes_up": 12345,
        "bytes_down": 1,
    }
    return RoundRecord(**(fields | changes))


def result(path: Path, **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "run": "r1",
        "security": "on (development CA)",
        "records": (record(round=1), record()),
        "model": {},
        "path": path,
        "names": {node: i for i, node in enumerate(NODES)},
    }
    return Result(**(fields | changes))


def link(
    trained: int, *, phase: str = "train", roster: int = 0, quiet: tuple[str, ...] = ()
) -> Link:
    """Return what the live line looks at, in the middle of round 3 of five clients."""
    attempt = SimpleNamespace(
        plan=SimpleNamespace(cohort=dict.fromkeys(NODES[:5]), terms=SimpleNamespace(phase=phase)),
        roster=NODES[:roster],
        phase=RoundPhase.SUMMING if roster else RoundPhase.INVITING,
        clock=SimpleNamespace(named=quiet),
    )
    server = SimpleNamespace(attempt=attempt, round=3)
    return cast("Link", SimpleNamespace(server=server, trained=trained, name="node {}".format))


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A real terminal: a file to write to, and the other end."""
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as out:
        yield out, master
    os.close(master)


def seen(terminal: tuple[TextIO, int]) -> str:
    """Close the terminal and return everything that it was sent; it comes when it comes."""
    out, master = terminal
    out.close()
    data = b""
    with suppress(OSError):
        while part := os.read(master, 1 << 16):
            data += part
    return data.decode().replace("\r\n", "\n")


# ---- one record ------------------------------------------------------------------------------


def test_a_finished_round() -> None:
    line = "round  2/10  4 of 5 clients  loss 0.5000  accuracy 0.9375  12.3 kB up"
    assert run_lines.describe(record(), 10) == line


def test_an_aborted_round_says_why() -> None:
    lost = record(outcome="aborted", cause="4 members tolerate 0 losses", metrics={})
    assert run_lines.describe(lost, 3) == "round 2/3  aborted: 4 members tolerate 0 losses"


def test_an_apps_own_loss_is_the_loss_where_there_is_no_other() -> None:
    own = record(metrics={"train.train_loss": 0.25, "test.my_loss": 9.0})
    assert "  loss 0.2500  " in run_lines.describe(own, 10)
    assert run_lines.loss(record(metrics={"train.loss": 0.5, "train.a_loss": 9.0})) == 0.5
    assert run_lines.loss(record(metrics={})) is None


def test_an_evaluation_is_no_round() -> None:
    line = run_lines.describe(record(phase="evaluate", metrics={"eval.accuracy": 1.0}), 3)
    assert line == "evaluation of the last model  4 of 5 clients  accuracy 1.0000  12.3 kB up"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.5e6, "2.5 MB"), (7.25e11, "725 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert run_lines.size(count) == text


# ---- the live line ---------------------------------------------------------------------------


def test_away_from_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with report.Live(2, out) as live:
        live.begin("r1: 5 clients")
        live.watch(link(1))
        live(record(round=1))
        live(record())
    first, second = (run_lines.describe(record(round=i), 2) for i in (1, 2))
    assert out.getvalue() == f"r1: 5 clients\n{first}\n{second}\n"


def test_a_phase_that_waits_says_for_whom_once() -> None:
    out = io.StringIO()
    quiet = ("b", "a")
    with report.Live(4, out) as live:
        for named in ((), quiet, quiet, ()):
            live.watch(link(1, roster=4, quiet=named))
    assert out.getvalue() == "round 3: no answer for long; summing waits for node a, node b\n"


def test_nobody_reads_a_thousand_names() -> None:
    line = run_lines.waits_for(7, "inviting", [f"edge-{i}" for i in range(9, -1, -1)])
    names = ", ".join(f"edge-{i}" for i in range(8))
    assert line == f"round 7: no answer for long; inviting waits for {names} and 2 more"


def test_on_a_terminal_the_running_round_is_rewritten(terminal: tuple[TextIO, int]) -> None:
    out, _ = terminal
    with report.Live(4, out) as live:
        live(record(round=2))
        live.watch(link(1))
        live.watch(link(2))  # at once again: passed over
        live(record(round=3, outcome="aborted", cause="gone"))
        live(record(round=4))
    # Round 2 of 4 in almost no time leaves almost none.
    first = "round 2/4  4 of 5 clients  loss 0.5000  accuracy 0.9375  12.3 kB up  ETA 0 s"
    assert seen(terminal).split("\r\x1b[2K") == [
        "",
        first,
        "round 3/4  1 of 5 trained  loss 0.5000  accuracy 0.9375  12.3 kB up  ETA 0 s"[:79],
        "round 3/4  aborted: gone\n",
        first.replace("2/4", "4/4") + "\n",
    ]


TESTED = {"train.loss": 0.5, "eval.accuracy": 0.25, "test.loss": 0.125, "test.accuracy": 0.75}


def test_a_test_that_comes_after_its_round_has_a_line_of_its_own() -> None:
    out = io.StringIO()
    with report.Live(10, out, tests=True) as live:
        live(record(metrics={"train.loss": 0.5, "eval.accuracy": 0.25}))  # the clients', of before
        live.tested(record(metrics=TESTED))
        live(record(round=3, metrics=TESTED))
    assert out.getvalue().splitlines() == [
        "round  2/10  4 of 5 clients  loss 0.5000  12.3 kB up",
        "round  2/10  tested  accuracy 0.7500  loss 0.1250",
        "round  3/10  4 of 5 clients  loss 0.5000  accuracy 0.7500  12.3 kB up",
    ]


def test_on_a_terminal_a_test_stands_behind_the_line_that_is_rewritten(
    terminal: tuple[TextIO, int],
) -> None:
    out, _ = terminal
    with report.Live(3, out, tests=True) as live:
        live(record(round=1, metrics={}))
        live.tested(record(round=1, metrics={"test.accuracy": 0.75}))
        live(record(round=3, metrics={}))
        live.tested(record(round=3, metrics={"test.accuracy": 0.875}))
    first = "round 1/3  4 of 5 clients  12.3 kB up  ETA 0 s"
    assert seen(terminal).split("\r\x1b[2K") == [
        "",
        first,
        (first + "  tested: round 1  accuracy 0.7500")[:79],
        first.replace("1/3", "3/3") + "\n",
        "round 3/3  tested  accuracy 0.8750\n",
    ]


@pytest.mark.parametrize(
    ("why", "line"),
    [
        ("raised", "round 7: the server's test raised; the ServerApp's log says more"),
        ("no test data", "the server has no test data"),
    ],
)
def test_a_model_that_could_not_be_tested(why: str, line: str) -> None:
    assert run_lines.untested(7, why) == line


def test_later_phases_show_themselves(terminal: tuple[TextIO, int]) -> None:
    out, _ = terminal
    with report.Live(3, out) as live:
        live.watch(link(5, roster=4))
    assert seen(terminal) == "\r\x1b[2Kround 3/3  summing 4 clients\n"


def test_an_evaluation_does_not_show_the_last_rounds_numbers(terminal: tuple[TextIO, int]) -> None:
    out, _ = terminal
    with report.Live(3, out) as live:
        live(record(round=3))
        live.watch(link(0, phase="evaluate"))
    shown = seen(terminal).split("\r\x1b[2K")[-1]
    assert shown == "evaluation of the last model  0 of 5 trained\n"


def test_a_line_never_wraps(terminal: tuple[TextIO, int]) -> None:
    """A wrapped line cannot be rewritten: every update would leave one behind."""
    out, _ = terminal
    live = report.Live(3, out)
    live(record(round=1, metrics={"train.loss": 1e90}))
    assert len(seen(terminal)) == len("\r\x1b[2K") + 79


def test_an_interrupted_line_is_ended(terminal: tuple[TextIO, int]) -> None:
    out, _ = terminal
    live = report.Live(3, out)
    with pytest.raises(KeyboardInterrupt), live:
        _interrupted(live)
    assert seen(terminal).endswith(" s\n")


def _interrupted(live: report.Live) -> None:
    live(record(round=1))
    raise KeyboardInterrupt


# ---- the summary -----------------------------------------------------------------------------


def test_the_summary(tmp_path: Path) -> None:
    model = tmp_path / "rounds" / "000002" / "00000-of-00001.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    model.with_name("state.safetensors").touch()  # a server step's moments
    (tmp_path / "rounds" / "000001").mkdir()
    (tmp_path / "rounds" / "000001" / model.name).touch()
    assert report.summary(result(tmp_path)) == "\n".join(
        [
            "round  clients     loss  accuracy  seconds  survivors",
            "    1   4 of 5   0.5000    0.9375    0.375  0-2,4",
            "    2   4 of 5   0.5000    0.9375    0.375  0-2,4",
            "time: inviting 0.50 s, sharing 0.25 s",
            "bytes up: 2.47 kB a client and round",
            "test accuracy: 0.9375",
            "secure aggregation: on (development CA)",
            f"run: r1 ({tmp_path})",
            f"model: {model}",
            "pictures: umbel runs report r1",
        ]
    )


@pytest.mark.parametrize(
    ("train", "evaluate", "legend"),
    [
        (
            {"test.accuracy": 0.9, "eval.accuracy": 0.8},
            {"eval.accuracy": 1.0},
            "server's test set; in",
        ),
        ({"eval.accuracy": 0.8}, {"eval.accuracy": 1.0}, "of the model that a round began with"),
        ({"test.accuracy": 0.9, "eval.accuracy": 0.8}, {"eval.loss": 0.1}, ""),
        ({"train.loss": 0.5}, {"eval.loss": 0.1}, ""),
    ],
)
def test_whose_examples_an_accuracy_is_about(
    tmp_path: Path, train: dict[str, float], evaluate: dict[str, float], legend: str
) -> None:
    records = (record(metrics=train), record(metrics=evaluate, phase="evaluate"))
    lines = report.summary(result(tmp_path, records=records)).splitlines()
    said = [line for line in lines if line.startswith("accuracy: ")]
    assert len(said) == bool(legend)
    assert all(legend in line for line in said)


def test_models_that_were_not_tested_have_no_accuracy_of_another_kind(tmp_path: Path) -> None:
    clients = {"train.loss": 0.5, "eval.accuracy": 0.8}
    records = (record(round=1, metrics=clients), record(metrics={**clients, "test.accuracy": 0.9}))
    lines = report.summary(result(tmp_path, records=records)).splitlines()
    assert [line[17:35] for line in lines[1:3]] == ["0.5000            ", "0.5000    0.9000  "]
    assert "accuracy: 1 of 2 models were not tested by the server" in lines
    assert "test accuracy: 0.9000" in lines


def test_a_run_without_a_finished_round_has_no_table(tmp_path: Path) -> None:
    nothing = record(outcome="aborted", cause="gone", metrics={})
    text = report.summary(result(tmp_path, records=(nothing,), refusals=("client 1: refused: x",)))
    assert text.splitlines() == [
        "client 1: refused: x",
        "secure aggregation: on (development CA)",
        f"run: r1 ({tmp_path})",
    ]


def test_warnings_are_shown(tmp_path: Path) -> None:
    warnings = ("weight-cap 9 is high; lower it", "weight-cap 7 is high; lower it")
    text = report.summary(result(tmp_path, warnings=warnings))
    assert "warning: weight-cap 9 is high; lower it (2 times)" in text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        (["client 3: gone"], ["client 3: gone"]),
        (
            [f"client {i}: gone" for i in (4, 0, 2, 1)] + ["client 7: late"],
            ["clients 0-2,4: gone", "client 7: late"],
        ),
        (
            ["client 3: child 17 died", "client 3: child 21 died"],
            ["client 3: child 17 died (2 times)"],
        ),
        (
            ["client 0: gone", "client 1: gone", "client 0: gone"],
            ["clients 0-1: gone (3 times)"],
        ),
        (["server: no test"], ["server: no test"]),
        (["client 2: two\nlines"], ["client 2: two\nlines"]),
    ],
)
def test_refusals_are_folded(lines: list[str], expected: list[str]) -> None:
    assert report.folded(lines) == expected


def test_json_is_json_whatever_the_numbers_are(tmp_path: Path) -> None:
    odd = record(metrics={"train.loss": float("nan"), "test.accuracy": float("inf")})
    failed = TooFewMembers("round 3 aborted")
    text = json.dumps(report.as_json(result(tmp_path, records=(odd,), failure=failed)))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(text, parse_constant=refuse)
    assert found["rounds"][0]["metrics"] == {"train.loss": None, "test.accuracy": None}
    assert (found["accuracy"], found["model"]) == (None, None)
    assert found["failure"] == "round 3 aborted"
    assert found["rounds"][0]["survivors"] == list(record().survivors)
