"""The proxy of the network tests: every fault is what it says, and nothing else happens."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from umbel.tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOME = bytes(range(256)) * 256  # 64 KiB


class Echo:
    """Sends back what comes, in a thread for each connection."""

    def __init__(self, family: int = socket.AF_INET, host: str = "127.0.0.1") -> None:
        """Listen."""
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self.ends.append(end)
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        with suppress(OSError):
            while data := end.recv(1 << 16):
                end.sendall(data)
        end.close()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Something to talk to."""
    found = Echo()
    yield found
    found.close()


@pytest.fixture
def through(echo: Echo) -> Iterator[Callable[..., FaultProxy]]:
    """Makes a proxy in front of it."""
    made: list[FaultProxy] = []

    def make(**faults: Any) -> FaultProxy:
        made.append(FaultProxy(echo.port, **faults))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def dialled(proxy: FaultProxy, host: str = "127.0.0.1") -> socket.socket:
    """Return a connection through the proxy."""
    found = socket.create_connection((host, proxy.port), 30)
    found.settimeout(30)
    return found


def whole(end: socket.socket, count: int) -> bytes:
    """Return so many bytes."""
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"ended after {len(data)} of {count} bytes"
        data += more
    return data


def echoed(end: socket.socket, data: bytes) -> None:
    """Send bytes, and take each part of them back."""
    for start in range(0, len(data), len(SOME)):
        part = data[start : start + len(SOME)]
        end.sendall(part)
        assert whole(end, len(part)) == part


def until(holds: Callable[[], object]) -> None:
    """Wait for something."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_good_line_carries_every_byte_and_counts_it(through: Callable[..., FaultProxy]) -> None:
    proxy = through()
    with dialled(proxy) as first, dialled(proxy) as second:
        first.sendall(SOME)
        assert whole(first, len(SOME)) == SOME
        second.sendall(b"abc")
        assert whole(second, 3) == b"abc"
        assert [(c.up, c.down, c.open) for c in proxy.connections] == [
            (len(SOME), len(SOME), True),
            (3, 3, True),
        ]
        assert (proxy.up, proxy.down) == (len(SOME) + 3, len(SOME) + 3)


def test_an_end_that_closes_closes_the_other(through: Callable[..., FaultProxy]) -> None:
    proxy = through()
    near = dialled(proxy)
    near.sendall(b"x")
    whole(near, 1)
    near.close()
    until(lambda: not proxy.open)


def test_latency_delays_each_way(through: Callable[..., FaultProxy]) -> None:
    proxy = through(latency=0.2)
    with dialled(proxy) as end:
        end.sendall(b"x")
        assert timed(lambda: whole(end, 1)) >= 0.4


def test_jitter_is_seeded_and_keeps_the_order(through: Callable[..., FaultProxy]) -> None:
    proxy = through(jitter=0.05, seed=7)
    text = bytes(range(200))
    with dialled(proxy) as end:
        for value in text:
            end.sendall(bytes([value]))
        assert whole(end, len(text)) == text


def test_a_rate_holds(through: Callable[..., FaultProxy]) -> None:
    proxy = through(rate=256e3)  # bytes a second: 64 KiB take 0.256 s up, and down meanwhile
    with dialled(proxy) as end:
        end.sendall(SOME)
        assert timed(lambda: whole(end, len(SOME))) >= 0.24
        assert proxy.up == proxy.down == len(SOME)


def test_a_slow_line_leaves_what_waits_with_its_sender(
    through: Callable[..., FaultProxy],
) -> None:
    proxy = through(rate=10e3)
    with dialled(proxy) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        end.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 4 << 20:
                sent += end.send(SOME)
    assert sent < 1 << 20


def test_a_cut_after_some_bytes_resets_all_connections_once(
    through: Callable[..., FaultProxy],
) -> None:
    proxy = through(cut_at=100_000)
    with dialled(proxy) as first, dialled(proxy) as second:
        second.sendall(b"x")
        whole(second, 1)
        with pytest.raises(ConnectionError):
            echoed(first, 100 * SOME)
        with pytest.raises(ConnectionError):
            second.recv(1)
    assert proxy.cuts == 1
    assert 100_000 <= proxy.up < 100_000 + 2 * (16 << 10)
    with dialled(proxy) as third:  # and no more
        third.sendall(SOME + SOME)
        whole(third, 2 * len(SOME))


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_line_that_is_held_passes_the_rest_when_it_is_lifted(
    through: Callable[..., FaultProxy], way: str
) -> None:
    proxy = through(**{f"{way}_to": 40_000})
    with dialled(proxy) as end:
        end.sendall(SOME)
        until(lambda: getattr(proxy, way) >= 40_000)
        end.settimeout(0.3)
        with pytest.raises(TimeoutError):
            whole(end, 40_000)
        assert 40_000 <= getattr(proxy, way) < 40_000 + (16 << 10)
        setattr(proxy, f"{way}_to", float("inf"))
        until(lambda: proxy.down == len(SOME))


def test_cuts_at_the_same_time_leave_nothing_open(through: Callable[..., FaultProxy]) -> None:
    proxy = through()
    for _ in range(20):
        ends = [dialled(proxy) for _ in range(3)]
        for end in ends:
            echoed(end, b"x")
        cutters = [threading.Thread(target=proxy.cut) for _ in range(3)]
        for cutter in cutters:
            cutter.start()
        for cutter in cutters:
            cutter.join()
        assert proxy.open == []
        for end in ends:
            with pytest.raises(ConnectionError):
                end.recv(1)
            end.close()


def test_a_half_open_line_says_nothing(through: Callable[..., FaultProxy], echo: Echo) -> None:
    proxy = through()
    with dialled(proxy) as old:
        old.sendall(b"x")
        whole(old, 1)
        proxy.swallow = True
        with dialled(proxy) as new:
            for end in (old, new):
                end.sendall(b"lost")
                end.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    end.recv(1)
        echo.ends[0].close()  # an end that goes is not told either
        with pytest.raises(TimeoutError):
            old.recv(1)
        until(lambda: proxy.up == 9)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    through: Callable[..., FaultProxy],
) -> None:
    proxy = through(idle=1.5)
    with dialled(proxy) as idle, dialled(proxy) as busy:
        echoed(busy, b"x")
        while proxy.connections[0].open:  # and not for a time: a busy machine's is another
            busy.sendall(b"x")
            whole(busy, 1)
            time.sleep(0.05)
        assert idle.recv(1) == b""
        assert [c.open for c in proxy.connections] == [False, True]


def test_who_is_refused_is_reset(through: Callable[..., FaultProxy]) -> None:
    proxy = through()
    proxy.refuse = True
    with pytest.raises(ConnectionError), dialled(proxy) as end:  # or already while dialling
        echoed(end, b"x")
    proxy.refuse = False
    with dialled(proxy) as end:
        end.sendall(b"x")
        assert whole(end, 1) == b"x"


def test_both_families_come_to_one_target() -> None:
    echo = Echo(socket.AF_INET6, "::1")
    proxy = FaultProxy(echo.port, target="::1", hosts=("127.0.0.1", "::1"))
    for host in ("127.0.0.1", "::1"):
        with dialled(proxy, host) as end:
            end.sendall(host.encode())
            assert whole(end, len(host)) == host.encode()
    proxy.close()
    echo.close()
