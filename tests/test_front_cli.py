"""`umbel server front` as an operator meets it: its line, its statuses, its signals."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from umbel.cli import main
from umbel.protocol.certificates import Authority
from umbel.tests.front_stage import post, response, status
from umbel.tests.wire_federation import key_pem, pem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AWAY = "127.0.0.1:9"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A federation directory with what the front needs."""
    write(tmp_path, datetime.now(UTC))
    return tmp_path


def write(folder: Path, now: datetime) -> None:
    """Write CA, certificate and key as they were made at some time."""
    authority = Authority.create("north", now)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = authority.issue_gateway(key.public_key(), ["localhost", "127.0.0.1", "::1"], now)
    (folder / "ca.pem").write_bytes(pem(authority.certificate))
    (folder / "front.pem").write_bytes(pem(leaf))
    (folder / "front.key").write_bytes(key_pem(key))


def command(folder: Path, *arguments: str) -> list[str]:
    return ["server", "front", "--federation", str(folder), "--superlink", AWAY, *arguments]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Give the running command and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", *command(folder, *arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def asked(folder: Path, host: str, port: int, raw: bytes) -> int:
    """Return the status of an answer."""
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    with (
        socket.create_connection((host, port), timeout=60) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        line.sendall(raw)
        return status(response(line))


def test_it_says_where_it_listens_and_ends_when_told(made: Path) -> None:
    with running(made) as (process, line):
        begin, _, port = line.rpartition(":")
        assert begin == "front: listening on https://127.0.0.1"
        assert asked(made, "127.0.0.1", int(port), post("/healthz", method="GET")) == 200
        assert asked(made, "127.0.0.1", int(port), post()) == 503
        process.terminate()
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert [line[:40] for line in errors.splitlines()] == [
        "front: SuperLink 127.0.0.1:9 is away: Co",
        "front: 503 to 127.0.0.1: the SuperLink i",
    ]


def test_a_killed_one_is_replaced_on_its_port_at_once_with_both_protocols(made: Path) -> None:
    with running(made) as (process, line):
        port = line.rpartition(":")[2].strip()
        with socket.create_connection(("127.0.0.1", int(port))):
            process.kill()
            process.wait()
        with running(made, "--port", port, "--host", "::") as (other, again):
            assert again == f"front: listening on https://[::]:{port}\n"
            for host in ("127.0.0.1", "::1"):
                assert asked(made, host, int(port), post("/healthz", method="GET")) == 200
            other.send_signal(signal.SIGINT)
            assert other.wait(60) == 0


WRONG = {
    "--port": (("--port", "70000"), "expected 0 to 65535, got 70000"),
    "--connections": (("--connections", "0"), "expected 1 or more, got 0"),
    "--largest": (("--largest", "0"), "expected 1 or more, got 0"),
    "--superlink": (("--superlink", "https://127.0.0.1"), "expected host:port"),
}


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_flag_is_one_line(
    made: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    arguments, said = WRONG[flag]
    assert main(command(made, *arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"umbel: {flag}: {said}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["ca.pem", "front.pem", "front.key"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_missing_or_spoilt_file_is_one_line(
    made: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    if content is None:
        (made / name).unlink()
    else:
        (made / name).write_bytes(content)
    assert main(command(made)) == 2
    error = capsys.readouterr().err
    assert str(made / "front") in error or str(made / name) in error
    assert error.count("\n") == 1


def test_another_key_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "front.key").write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1())))
    assert main(command(made)) == 2
    error = capsys.readouterr().err
    assert "expected a certificate and its key, got KEY_VALUES_MISMATCH" in error


@pytest.mark.parametrize(("days", "said"), [(-91, "one that ended"), (2, "one that begins")])
def test_a_certificate_that_is_not_in_force_is_one_line(
    made: Path, capsys: pytest.CaptureFixture[str], days: int, said: str
) -> None:
    write(made, datetime.now(UTC) + timedelta(days=days))
    assert main(command(made)) == 2
    assert f"expected a certificate in force, got {said}" in capsys.readouterr().err


def test_a_taken_port_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(command(made, "--port", str(port))) == 2
    error = capsys.readouterr().err
    assert f"127.0.0.1:{port}: expected an address to listen on, got" in error
