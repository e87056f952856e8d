"""One line for each thing, and no flood."""

from __future__ import annotations

from umbel.server.core_log import BURST, Lines


class Log:
    """Lines and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.log = Lines(self.lines.append, lambda: self.now)


def test_a_line_is_one_line() -> None:
    log = Log()
    log.log.say("a", "two\nlines\r\n and  spaces")
    assert log.lines == ["two lines and spaces"]


def test_a_line_steers_no_terminal() -> None:
    log = Log()
    log.log.say("a", "asks for \x1b[2J \u202e and \x07")
    assert log.lines == [r"asks for \x1b[2J \u202e and \x07"]


def test_a_flood_is_counted_and_said_with_the_next_line() -> None:
    log = Log()
    for number in range(BURST + 90):
        log.log.say("a", f"line {number}")
    assert log.lines == [f"line {n}" for n in range(BURST)]
    log.now = 1.0
    log.log.say("a", "later")
    assert log.lines[BURST:] == ["later (and 90 more of this kind)"]
    log.now = 2.0
    log.log.say("a", "still later")
    assert log.lines[-1] == "still later"


def test_one_kind_does_not_silence_another() -> None:
    log = Log()
    for _ in range(1000):
        log.log.say("a", "noise")
    log.log.say("b", "a newer connection took over")
    assert log.lines[-1] == "a newer connection took over"


def test_the_allowance_comes_back_up_to_the_burst() -> None:
    log = Log()
    for _ in range(BURST):
        log.log.say("a", "x")
    log.now = 3.0
    for _ in range(10):
        log.log.say("a", "y")
    assert log.lines.count("y") == 3
    log.now = 1e6
    for _ in range(2 * BURST):
        log.log.say("a", "z")
    assert sum(line.startswith("z") for line in log.lines) == BURST
