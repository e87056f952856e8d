"""How large the next frame is, on lines of any speed."""

from __future__ import annotations

import pytest

from umbel.protocol.frames import HEADER, PAYLOAD, Assembly, Kind, frames
from umbel.protocol.pace import FIRST, LEAST, Pace

SUBJECT = bytes(32)
MIB = 1 << 20


class Line:
    """A line of so many bytes a second, by a clock of its own."""

    def __init__(self, rate: float) -> None:
        """Begin at zero."""
        self.rate, self.now = rate, 0.0

    def send(self, total: int) -> list[int]:
        """Return the payloads by which a whole of `total` bytes goes over it."""
        whole, sizes = bytes(total), []
        pace = Pace(lambda: self.now)
        pace.begin()
        for frame in frames(Kind.UPLOAD, SUBJECT, whole, 0, pace):
            sizes.append(len(frame) - HEADER)
            self.now += len(frame) / self.rate
        assert sum(sizes) == total
        return sizes


def test_a_fast_line_has_the_largest_frames_after_a_few() -> None:
    sizes = Line(1e9).send(8 * MIB)
    assert sizes[:6] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, PAYLOAD, PAYLOAD]


@pytest.mark.parametrize("rate", [250e3, 64e3, 16e3])
def test_no_frame_takes_a_slow_line_for_long_once_it_is_known(rate: float) -> None:
    sizes = Line(rate).send(2 * MIB)
    assert sizes[0] == FIRST
    assert max(size / rate for size in sizes[4:]) <= 1.0
    assert min(sizes[4:-1]) >= LEAST


def test_the_slowest_line_still_has_frames_of_some_size() -> None:
    assert Line(100.0).send(FIRST + 10 * LEAST)[5] == LEAST


def test_a_new_call_keeps_the_size_and_does_not_count_the_pause() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.begin()
    assert [pace(), pace(), pace()] == [FIRST, 2 * FIRST, 4 * FIRST]
    now[0] = 60.0
    pace.begin()
    assert pace() == 4 * FIRST


def test_frames_of_any_sizes_make_the_whole() -> None:
    whole, sizes = bytes(range(251)) * 40, iter([1, 7, 4096, 3, 10**9])
    got = bytearray(len(whole))
    assembly = Assembly(Kind.MODEL, SUBJECT, len(whole), "peer", got)
    done = [assembly.accept(f) for f in frames(Kind.MODEL, SUBJECT, whole, 0, lambda: next(sizes))]
    assert done == [False, False, False, False, True]
    assert got == whole
