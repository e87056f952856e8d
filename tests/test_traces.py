"""What user code raised is told once for each cause, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.clients import traces
from umbel.clients.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def bad(client: int) -> None:
    if client % 2:
        raise ValueError(f"client {client} has no file")
    raise KeyError(client)


def told(which: Traces, client: int, call: Callable[[int], None] = bad) -> None:
    try:
        call(client)
    except (ValueError, KeyError) as error:
        which.tell(error)


def test_one_cause_has_one_trace_and_a_line_at_every_tenfold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = Traces()
    for client in range(1, 240, 2):
        told(own, client)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines.count(lines[0]) == 1
    assert "ValueError: client 1 has no file" in lines
    line = bad.__code__.co_firstlineno + 2
    assert lines[-2:] == [
        f"ValueError at {__file__}:{line}: {count} times by now, its trace is above"
        for count in (10, 100)
    ]


def test_another_line_and_another_kind_are_other_causes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = Traces()

    def elsewhere(client: int) -> None:
        bad(client)

    for client in (1, 2, 1, 2):
        told(own, client)
        told(own, client, elsewhere)
    assert capsys.readouterr().err.count("Traceback") == 4


def test_what_is_remembered_is_bounded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_MOST", 2)
    own = Traces()
    for client in (1, 2, 1, 2):
        told(own, client)
    assert len(own._told) <= 2
    assert capsys.readouterr().err.count("Traceback") == 4
