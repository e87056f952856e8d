"""How large and how slow a request through the front may be, and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.server.front import HEADERS
from umbel.server.front_body import Terms
from umbel.server.front_places import AT_ONCE
from umbel.tests.front_stage import PULL, Stage, answer, post, response, rest, staged, status

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A front with small limits and little patience."""
    terms = Terms(largest=10_000, stall=0.3, rate=20_000)
    with staged(tmp_path_factory.mktemp("front") / "n", terms) as stage:
        yield stage


@pytest.fixture
def small(narrow: Stage) -> Stage:
    """The same, its past forgotten."""
    narrow.superlink.seen.clear()
    narrow.superlink.said.clear()
    narrow.log.clear()
    return narrow


def test_a_body_that_says_that_it_is_too_large_is_not_even_begun(small: Stage) -> None:
    assert status(small.ask(post(PULL, b"", "Content-Length: 10001"))) == 413
    assert all(seen.cut for seen in small.superlink.seen)
    assert small.status(post(PULL, bytes(10_000))) == 200


def test_a_body_that_grows_too_large_is_cut_off(small: Stage) -> None:
    chunk = b"1000\r\n" + bytes(4096) + b"\r\n"
    for end in (b"", b"0\r\n\r\n"):
        raw = small.ask(post(PULL, chunk * 3 + end, "Transfer-Encoding: chunked"))
        assert status(raw) == 413
        assert raw.endswith(b"a body above 10000 bytes\n")
    small.until(lambda: all(seen.cut for seen in small.superlink.seen), "the cut")
    small.until(lambda: small.front.places.held == 0, "the front to let go")


def test_an_answer_that_is_too_large_is_not_handed_on(small: Stage) -> None:
    small.superlink.said[PULL] = answer(bytes(10_001))
    assert small.status(post()) == 500  # no reason to try again
    chunk = b"1000\r\n" + bytes(4096) + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    small.superlink.said[PULL] = head + chunk * 3 + b"0\r\n\r\n"
    got = small.ask(post())
    assert len(got) < 10_400
    assert not got.endswith(b"0\r\n\r\n")
    assert "broken off: an answer above 10000 bytes" in small.log[-2]


def test_an_answer_that_breaks_off_is_no_whole_one(small: Stage) -> None:
    small.superlink.said[PULL] = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\ncut"
    assert small.ask(post()).endswith(b"\r\n\r\ncut")
    assert "broken off: the SuperLink broke off" in small.log[0]


def test_a_head_that_is_too_large_is_refused(small: Stage) -> None:
    assert status(small.ask(post(PULL, b"", "X: " + "x" * 17_000))) in {400, 431}
    assert status(small.ask(b"POST /" + b"x" * 20_000)) in {400, 431}
    lines = [f"X{number}: 1" for number in range(HEADERS)]
    assert small.status(post(PULL, b"", *lines)) == 431
    assert small.superlink.seen == []


def test_a_body_that_rests_or_trickles_is_given_up(small: Stage) -> None:
    with small.connect() as line:
        line.sendall(post(PULL, b"abc", "Content-Length: 10"))
        assert status(rest(line)) == 408
    with small.connect() as line:
        line.sendall(post(PULL, b"", "Content-Length: 9000"))
        line.settimeout(0.05)
        found = b""
        for _ in range(200):  # never resting, and slower than it must be
            try:
                line.sendall(b"x")
                found = line.recv(1000)
                break
            except TimeoutError:
                pass
        assert status(found) == 408
    small.until(lambda: small.front.places.held == 0, "the front to let go")


def test_so_many_large_bodies_at_once(small: Stage) -> None:
    small.do(small.superlink.answers.clear)
    lines = [small.connect() for _ in range(AT_ONCE + 1)]
    for number, line in enumerate(lines, 1):
        line.sendall(post(PULL, bytes(10_000)))
        small.until(lambda n=number: small.front.places.held == min(n, AT_ONCE) * 10_000, "them")  # type: ignore[misc]
    assert status(response(lines[-1])) == 503
    small.do(small.superlink.answers.set)
    assert [status(response(line)) for line in lines[:-1]] == [200] * AT_ONCE
    for line in lines:
        line.close()
    small.until(lambda: small.front.places.held == 0, "nothing on its way")
