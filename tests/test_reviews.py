"""Items for review and decisions: each about one row, made once, in a chain that two may write."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from umbel.cli import main
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import SettingsError, StateError
from umbel.protocol.manifest import Manifest
from umbel.server import reviews, run_check
from umbel.server.group_commit import GroupCommit
from umbel.server.history import History
from umbel.server.ledger import Ledger, RoundRecord
from umbel.server.reviews import Item
from umbel.server.run_directory import RunDirectory

AT = "2026-01-02T03:04:05.000+00:00"
WHY = "the site is in repair"
LOST = Item(
    number=1, signal="site", round=7, value=0.0, low=5.0, high=float("inf"),
    cause="north: 0 of 6 updates", pauses=True, at=AT,
)  # fmt: skip
SLOW = Item(
    number=2, signal="duration", round=9, value=90.5, low=20.0, high=60.25, cause="training",
    pauses=False, at=AT,
)  # fmt: skip


def raise_(ledger: Ledger, *items: Item) -> None:
    for item in items:
        ledger.event(
            "review",
            round=item.round,
            attempt=0,
            code=item.signal,
            detail=item.detail(),
            at=item.at,
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    with RunDirectory.create(home, "digits-1") as run:
        run.ledger.create_run("digits-1", "2026-01-02T03:04:05Z", {}, "off")
        raise_(run.ledger, LOST, SLOW)
        yield run.ledger


def decide(ledger: Ledger, number: int = 1, **changed: Any) -> None:
    asked: dict[str, Any] = {"approve": True, "by": "ann", "why": WHY, "at": AT, **changed}
    reviews.decide(ledger, number, **asked)


def test_an_item_comes_back_with_the_hash_of_its_row(ledger: Ledger) -> None:
    first, second = reviews.items(ledger)
    rows = ledger.chain()  # the run's own row is the first
    assert (first.hash, second.hash) == (rows[1], rows[2])
    assert replace(first, hash="") == LOST
    assert (first.waits, second.waits) == (True, False)


def test_a_decision_names_who_when_why_and_its_items_row(ledger: Ledger) -> None:
    decide(ledger, always=True)
    kind, said = ledger.events()[-1].kind, ledger.events()[-1].detail
    assert kind == "decision"
    assert said == {
        "number": 1, "review": ledger.chain()[1], "by": "ann", "why": WHY, "always": "yes"
    }  # fmt: skip
    first, second = reviews.items(ledger)
    assert (first.state, second.state) == ("approved", "open")
    assert first.decision == reviews.Decision(approved=True, always=True, by="ann", why=WHY, at=AT)


def test_an_item_is_decided_once(ledger: Ledger) -> None:
    decide(ledger, approve=False)
    before = ledger.head()
    with pytest.raises(StateError, match=r"item 1: .* one that ann rejected at 2026-01-02"):
        decide(ledger, by="bob")
    assert ledger.head() == before


@pytest.mark.parametrize("number", [0, 3, -1])
def test_an_item_of_another_run_is_refused_by_name(ledger: Ledger, number: int) -> None:
    with pytest.raises(SettingsError, match=rf"an item of run digits-1: 1, 2, got {number}"):
        decide(ledger, number)


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"why": ""}, "--why"),
        ({"why": "  "}, "--why"),
        ({"why": "x" * 501}, "--why"),
        ({"why": "a\nb"}, "--why"),
        ({"why": "a\x1b[31m"}, "--why"),
        ({"by": ""}, "--by"),
        ({"by": "b" * 101}, "--by"),
        ({"approve": False, "always": True}, "--always"),
    ],
)
def test_what_a_decision_must_say(ledger: Ledger, changed: dict[str, Any], flag: str) -> None:
    before = ledger.head()
    with pytest.raises(SettingsError, match=flag):
        decide(ledger, **changed)
    assert ledger.head() == before


def test_a_decision_about_another_row_decides_nothing(ledger: Ledger) -> None:
    detail: dict[str, float | str] = {
        "number": 1, "review": "ab" * 32, "by": "eve", "why": "x", "always": "no"
    }  # fmt: skip
    ledger.event("decision", round=7, attempt=0, code="approve", detail=detail, at=AT)
    assert [item.state for item in reviews.items(ledger)] == ["open", "open"]


def test_whatever_reads_a_ledger_takes_the_rows(ledger: Ledger, home: Path) -> None:
    decide(ledger)
    for kind in ("paused", "went on"):
        ledger.event(kind, round=7, attempt=0, code="item 1", at=AT)
    with RunDirectory.open(home, "digits-1") as run:
        assert not run_check.verify(run).wrong
    past = History.of(ledger.rounds(), ledger.events(), bytes(32))
    assert (past.round, past.standing.excluded) == (0, frozenset())


_DECIDER = """
import sys
from pathlib import Path
from umbel.server import reviews
from umbel.server.ledger import Ledger
with Ledger(Path(sys.argv[1])) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while done < int(sys.argv[2]):
        open_ = [i for i in reviews.items(ledger) if i.decision is None]
        for item in open_:
            reviews.decide(ledger, item.number, approve=item.number % 2 == 0, by="ann",
                           why="seen", at="2026-01-02T03:04:05Z")
            done += 1
"""


def test_decisions_while_the_run_writes_leave_one_chain(home: Path) -> None:
    """A run commits rounds in groups and raises items; another process decides each at once."""
    rounds, every = 120, 4
    arrays = {"w": np.zeros(2, np.float32)}
    manifest = Manifest.of(arrays)
    digest = model_digest(manifest.pack(arrays))
    with RunDirectory.create(home, "fire-1") as run:
        run.ledger.create_run("fire-1", "2026-01-02T03:04:05Z", {}, "off")
        arguments = [sys.executable, "-c", _DECIDER, str(run.ledger.path), str(rounds // every)]
        with (
            subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other,
            GroupCommit(run, every=0.0) as disk,
        ):
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            other.stdin.write("go\n")
            other.stdin.flush()
            disk.write_round(0, arrays, manifest, digest, {})
            for n in range(1, rounds + 1):
                if n % every == 0:
                    item = replace(LOST, number=n // every, round=n)
                    disk.event(
                        "review", round=n, attempt=0, code=item.signal, detail=item.detail(), at=AT
                    )
                disk.write_round(n, arrays, manifest, digest, {})
                disk.commit_round(
                    RoundRecord(
                        round=n, attempt=0, phase="train", outcome="finished", model=digest.hex()
                    )
                )
                disk.prune(None)
            disk.latest()
            assert other.wait(30) == 0
        found = reviews.items(run.ledger)
        assert [item.state for item in found] == ["rejected", "approved"] * (rounds // every // 2)
        assert run.ledger.verify() == 2 + rounds + 2 * (rounds // every)
        checked = run_check.verify(run)
        assert not checked.wrong
        assert max(checked.rounds) == rounds


def test_the_command_lists_and_decides(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "review", "digits-1"]) == 0
    shown = capsys.readouterr().out
    assert "item 1, round 7: site 0, expected at least 5: north: 0 of 6 updates" in shown
    assert "expected 20 to 60.25" in shown
    assert "waits for a decision" in shown
    asked = ["runs", "review", "digits-1", "--approve", "1", "--why", WHY, "--by", "ann"]
    assert main(asked) == 0
    assert f"approved by ann at {ledger.events()[-1].at}: {WHY}" in capsys.readouterr().out
    assert main(["runs", "review", "digits-1", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["waits"]) == ("digits-1", False)
    assert [row["state"] for row in told["items"]] == ["approved", "open"]
    assert told["items"][0]["high"] is None
    assert told["items"][0]["hash"] == ledger.chain()[1]
    assert main(asked) == 2


def test_list_and_show_say_what_a_run_waits_for(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "list"]) == 0
    assert "not started; item 1 to be decided" in capsys.readouterr().out
    assert main(["runs", "show", "digits-1"]) == 0
    move = "digits-1 waits for a decision about item 1: umbel runs review digits-1 --approve 1"
    assert move in capsys.readouterr().out.splitlines()[-1]
    assert main(["runs", "show", "digits-1", "--format", "json"]) == 0
    assert [i["state"] for i in json.loads(capsys.readouterr().out)["items"]] == ["open", "open"]
    decide(ledger, always=True)
    assert main(["runs", "list"]) == 0
    assert "to be decided" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--approve", "1"],
        ["--approve", "1", "--reject", "2", "--why", WHY],
        ["--why", WHY],
        ["--by", "ann"],
        ["--always"],
        ["--reject", "1", "--always", "--why", WHY],
        ["--reject", "9", "--why", WHY],
    ],
)
def test_the_command_refuses_half_a_decision(ledger: Ledger, flags: list[str]) -> None:
    before = ledger.head()
    assert main(["runs", "review", "digits-1", *flags]) == 2
    assert ledger.head() == before


def test_who_decides_is_the_user_at_the_machine_unless_said(ledger: Ledger) -> None:
    assert main(["runs", "review", "digits-1", "--reject", "1", "--why", WHY]) == 0
    made = reviews.items(ledger)[0].decision
    assert made is not None
    assert made.by.partition("@")[1] == "@"
    assert not made.approved


def forge(path: Path, number: int = 1) -> None:
    """Write a decision past the chain, as somebody with the file and SQLite could."""
    with Ledger(path, read_only=True) as read:
        item = next(item for item in reviews.items(read) if item.number == number)
    detail = {"always": "no", "by": "ann", "number": number, "review": item.hash, "why": WHY}
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO event SELECT seq + 1, ?, 'decision', 1, 0, '', 'approve', ?, ? FROM event"
            " ORDER BY seq DESC LIMIT 1",
            (AT, json.dumps(detail), bytes(32)),
        )


def test_a_decision_past_the_chain_is_shown_to_nobody_and_adds_none(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(ledger.path)
    for more in [], ["--approve", "2", "--why", WHY]:
        before = len(ledger.events())
        assert main(["runs", "review", "digits-1", *more]) == 2
        shown = capsys.readouterr()
        assert "approved" not in shown.out
        assert "expected row 4 as it was written" in shown.err
        assert len(ledger.events()) == before
