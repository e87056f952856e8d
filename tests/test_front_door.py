"""The front's connections: how many, for how long, under which certificate, and how they end."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from umbel.server import front_door
from umbel.server.front_body import SMALL, Terms
from umbel.tests.front_stage import PULL, answer, post, response, rest, staged, status

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.tests.front_stage import Stage


def _reset(port: int) -> bool:
    """Tell whether a connection is reset at once; what ends in a handshake ends a SuperNode."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            plain.recv(1)
    except ConnectionResetError:
        return True
    return False


def _shown(line: ssl.SSLSocket) -> int:
    """Return the serial number of the certificate that a connection was shown."""
    der = line.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def _serial(stage: Stage) -> int:
    content = (stage.folder / "front.pem").read_bytes()
    return x509.load_pem_x509_certificate(content).serial_number


def test_one_connection_too_many_is_reset_at_once(tmp_path: Path) -> None:
    with staged(tmp_path / "f", most=3) as stage, ExitStack() as lines:
        held = [lines.enter_context(stage.connect()) for _ in range(3)]
        assert [_reset(stage.port) for _ in range(5)] == [True] * 5
        for line in held:
            line.sendall(post())
            assert status(response(line)) == 200
        held[0].close()
        stage.until(lambda: stage.doors.open == 2, "room")
        assert stage.status(post()) == 200
        assert stage.log == [
            "connections 3 of 3: more are reset at once", "connections 2 of 3: there is room again"
        ]  # fmt: skip


def test_whoever_says_nothing_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDLE_S", "HANDSHAKE_S", "SHUTDOWN_S"):
        monkeypatch.setattr(front_door, name, 1.0)
    monkeypatch.setattr(front_door, "_TICK", 0.05)
    with staged(tmp_path / "f") as stage, ExitStack() as lines:
        silent = lines.enter_context(socket.create_connection(("127.0.0.1", stage.port)))
        mute, half, later, slow = (lines.enter_context(stage.connect()) for _ in range(4))
        half.sendall(post()[:30])
        later.sendall(post())
        assert status(response(later)) == 200
        stage.do(stage.superlink.answers.clear)
        slow.sendall(post())  # the SuperLink's time is no silence of this one's
        for line in (mute, half, later):
            assert rest(line) == b""
        assert silent.recv(1) == b""
        stage.until(lambda: stage.doors.open == 1, "the others' end")
        stage.do(stage.superlink.answers.set)
        assert status(response(slow)) == 200
        assert stage.log == ["no TLS handshake with 127.0.0.1: it took too long"]


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "IDLE_S", 0.3)
    monkeypatch.setattr(front_door, "_TICK", 0.05)
    with staged(tmp_path / "f") as stage, stage.connect() as line:
        line.settimeout(0.05)
        got = None
        for byte in post():  # never silent for longer
            try:
                line.send(bytes([byte]))
                got = line.recv(1)
                break
            except TimeoutError:
                pass
        assert got == b""
        assert stage.superlink.seen == []


def test_an_answer_that_nobody_takes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "SHUTDOWN_S", 0.2)
    with staged(tmp_path / "f", Terms(stall=0.3)) as stage:
        stage.superlink.said[PULL] = answer(bytes(30 << 20))
        with stage.connect() as line:
            line.sendall(post())
            stage.until(lambda: stage.doors.open == 0, "its end")
            assert len(rest(line)) < 30 << 20
        assert stage.log[0] == (
            "an answer to 127.0.0.1 broken off: it takes its answer too slowly"
        )  # fmt: skip


def test_a_connection_that_is_closed_sends_first_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "IDLE_S", 0.3)
    monkeypatch.setattr(front_door, "_TICK", 0.05)
    size = 400_000
    with staged(tmp_path / "f", sndbuf=4096) as stage, stage.connect(rcvbuf=4096) as line:
        stage.superlink.said[PULL] = answer(bytes(size))
        line.sendall(post())
        got = 0
        while piece := line.recv(16384):
            got += len(piece)
            time.sleep(0.02)
        assert got > size


def test_a_connection_that_vanishes_in_its_request_leaves_nothing(tmp_path: Path) -> None:
    with staged(tmp_path / "f") as stage:
        stage.do(stage.superlink.answers.clear)
        for number, body in enumerate((b"", b"half")):
            line = stage.connect()
            line.sendall(post(PULL, body, f"Content-Length: {2 * len(body)}"))
            if number == 0:  # the other is not handed on before its body is there
                stage.until(lambda: stage.superlink.seen, "the request")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.close()
            stage.until(lambda: stage.doors.open == 0, "its end")
        stage.do(stage.superlink.answers.set)
        assert stage.status(post()) == 200
        stage.until(lambda: stage.front.places.held == 0, "the front to let go")
        assert stage.log == []


def test_a_new_certificate_is_shown_to_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "_TICK", 0.02)
    with staged(tmp_path / "f") as stage, stage.connect() as old:
        first = _serial(stage)
        assert _shown(old) == first
        stage.issue("front")
        second = _serial(stage)
        stage.until(lambda: stage.log and stage.log[-1].endswith("read again"), "the new one")
        with stage.connect() as new:
            assert _shown(new) == second != first
        old.sendall(post())
        assert status(response(old)) == 200
        key = (stage.folder / "front.key").read_bytes()
        said = len(stage.log)
        for name, content in (
            ("front.key", (stage.folder / "superlink.key").read_bytes()),
            ("front.key", b"none"),
            ("front.pem", b"none"),
        ):
            (stage.folder / name).write_bytes(content)
            stage.until(lambda: len(stage.log) > said, f"{name}: a line")  # noqa: B023
            said = len(stage.log)
            assert "the one before it is used on" in stage.log[-1]
            with stage.connect() as new:
                assert _shown(new) == second
        (stage.folder / "front.key").write_bytes(key)
        stage.issue("front")
        stage.until(lambda: stage.log[-1].endswith("read again"), "the next one")
        with stage.connect() as new:
            assert _shown(new) == _serial(stage)
        assert "PRIVATE" not in "".join(stage.log)


def test_told_to_stop_it_lets_requests_end_and_takes_no_more(tmp_path: Path) -> None:
    with staged(tmp_path / "f") as stage, stage.connect() as busy, stage.connect() as idle:
        stage.do(stage.superlink.answers.clear)
        begun = bytes(SMALL) + b"abc"  # more than is read before it goes on
        busy.sendall(post(PULL, begun, f"Content-Length: {len(begun) + 3}"))
        stage.until(lambda: stage.superlink.seen, "the request")
        stage.stop()
        assert rest(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            stage.connect()
        busy.sendall(b"def")
        threading.Timer(0.1, lambda: stage.do(stage.superlink.answers.set)).start()
        assert status(rest(busy)) == 200
        assert [seen.body for seen in stage.superlink.seen] == [begun + b"def"]
        assert stage.log == ["1 requests are let end"]


def test_a_request_that_does_not_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door, "DRAIN_S", 0.2)
    with staged(tmp_path / "f") as stage, stage.connect() as busy:
        stage.do(stage.superlink.answers.clear)
        busy.sendall(post())
        stage.until(lambda: stage.superlink.seen, "the request")
        began = time.monotonic()
        stage.stop()
        assert rest(busy) == b""
        assert time.monotonic() - began >= 0.2
        assert stage.log == ["1 requests are let end"]


def test_only_tls_of_today_is_spoken(tmp_path: Path) -> None:
    with staged(tmp_path / "f") as stage:
        with socket.create_connection(("127.0.0.1", stage.port)) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            plain.settimeout(60)
            assert b"HTTP" not in plain.recv(1000)
        stage.until(lambda: stage.log, "a line")
        assert stage.log == ["no TLS handshake with 127.0.0.1: HTTP_REQUEST"]
        stranger = ssl.create_default_context()  # the system's roots do not know this CA
        for trust, problem in ((stranger, "CERTIFICATE_VERIFY_FAILED"), (_old(), "VERSION|EOF")):
            with (
                socket.create_connection(("127.0.0.1", stage.port), timeout=60) as plain,
                pytest.raises(ssl.SSLError, match=problem),
            ):
                trust.wrap_socket(plain, server_hostname="localhost")
        with stage.connect() as line:
            assert line.version() == "TLSv1.3"


def _old() -> ssl.SSLContext:
    with pytest.warns(DeprecationWarning, match="PROTOCOL_TLSv1_1"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLSv1_1)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.verify_mode = ssl.CERT_NONE
    return context
