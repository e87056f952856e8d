"""`umbel core up` as an operator meets it: files, lines, statuses, signals."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from umbel.cli import main
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.server import core_cli
from umbel.server.core import supervisor
from umbel.server.core_log import Lines
from umbel.tests.wire_federation import METHOD, RUN, Machine, der, key_pem, pem, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Directory:
    """A federation directory, as `umbel up` makes it, and its CA."""

    def __init__(self, path: Path) -> None:
        now = datetime.now(UTC)
        self.path = path
        self.authority = Authority.create("north", now)
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = self.authority.issue_gateway(key.public_key(), ["localhost", "127.0.0.1"], now)
        path.mkdir(mode=0o700, exist_ok=True)
        (path / "ca.pem").write_bytes(pem(self.authority.certificate))
        (path / "gateway.pem").write_bytes(pem(leaf))
        (path / "gateway.key").write_bytes(key_pem(key))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command."""
        command = [sys.executable, "-m", "umbel", "core", "up", "--federation", str(self.path)]
        return subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def record(self) -> dict[str, Any]:
        """What core.json says."""
        return dict(json.loads((self.path / "core.json").read_text("utf-8")))

    def hello(self, machine: Machine, root: bytes = b"") -> tuple[str, str]:
        """Say hello with the machine's certificate and return how that ends."""

        async def say() -> tuple[str, str]:
            credentials = grpc.ssl_channel_credentials(
                (self.path / "ca.pem").read_bytes(), key_pem(machine.key), pem(machine.tls)
            )
            address = f"localhost:{self.record['port']}"
            async with grpc.aio.secure_channel(address, credentials) as channel:
                call: Any = channel.unary_stream(METHOD + "Session")
                hello = pb.Hello(run=RUN, ticket=b"x", certificate=machine.der)
                data = pb.Up(hello=hello).SerializeToString()
                return await refused(call(data, timeout=10).read())

        return asyncio.run(say())


@pytest.fixture
def made(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "north")


@pytest.fixture
def running(made: Directory) -> Iterator[tuple[Directory, subprocess.Popen[str]]]:
    process = made.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line == f"core service: listening on 127.0.0.1:{made.record['port']}\n"
        yield made, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return status and stderr of a process that is to end by itself."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_it_says_where_it_listens_in_a_line_and_in_a_file(
    running: tuple[Directory, subprocess.Popen[str]],
) -> None:
    made, process = running
    assert made.record == {
        "pid": process.pid,
        "port": made.record["port"],
        "names": ["localhost", "127.0.0.1"],
        "ca_sha256": sha256(der(made.authority.certificate)).hexdigest(),
        "federation": "north",
    }
    assert stat.S_IMODE((made.path / "core.sock").stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as app:
        app.connect(str(made.path / "core.sock"))
    assert not list(made.path.glob("*.new"))


def test_a_models_memory_ends_with_the_service(tmp_path: Path) -> None:
    lines = Lines(lambda _line: None, time.monotonic)
    with core_cli._world(0, None, tmp_path, lines) as world:
        model = world.make(4096, "model")
        assert model.path is not None
        assert model.path.exists()
    assert not model.path.exists()


def test_ranks_without_torch_are_refused_at_once(
    made: Directory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "find_spec", lambda _name: None)
    assert main(["core", "up", "--federation", str(made.path), "--ranks", "2"]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "umbel: --ranks: expected torch, in which ranks compute, got 'none'; "
        "pip install 'umbel[torch]', or leave --ranks away\n"
    )


def test_ranks_end_with_it(made: Directory) -> None:
    process = made.start("--ranks", "1")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("core service: listening on ")
    (rank,) = psutil.Process(process.pid).children()
    assert "umbel.server.core.rank" in rank.cmdline()
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "")
    _, alive = psutil.wait_procs([rank], timeout=20)
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_nothing(
    running: tuple[Directory, subprocess.Popen[str]], number: signal.Signals
) -> None:
    made, process = running
    with socket.socket(socket.AF_UNIX) as app:
        app.connect(str(made.path / "core.sock"))
        process.send_signal(number)
        assert ended(process) == (0, "")
        assert app.recv(1) == b""
    assert {path.name for path in made.path.iterdir()} == {"ca.pem", "gateway.pem", "gateway.key"}


def test_a_second_one_is_refused_and_the_first_lives(
    running: tuple[Directory, subprocess.Popen[str]],
) -> None:
    made, process = running
    status, errors = ended(made.start())
    assert status == 2
    assert "no other core service" in errors
    assert errors.count("\n") == 1
    assert process.poll() is None
    assert made.record["pid"] == process.pid


def test_after_a_crash_the_next_one_starts(
    running: tuple[Directory, subprocess.Popen[str]],
) -> None:
    made, process = running
    process.kill()
    process.wait()
    assert (made.path / "core.sock").exists()
    following = made.start()
    try:
        assert following.stdout is not None
        assert "listening" in following.stdout.readline()
        assert made.record["pid"] == following.pid
    finally:
        following.terminate()
        assert ended(following)[0] == 0


def test_whoever_is_turned_away_is_one_clear_line(
    running: tuple[Directory, subprocess.Popen[str]],
) -> None:
    made, process = running
    now = datetime.now(UTC)
    port = made.record["port"]
    noise = random.Random(0).randbytes(200)  # noqa: S311 - to be repeated
    for data in (b"GET / HTTP/1.1\r\n\r\n", noise):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(data)
            plain.settimeout(60)
            plain.recv(100)
    foreign = Machine(Authority.create("north", now), 3)
    expired = Machine(made.authority, 4, now - timedelta(days=8))
    member = Machine(made.authority, 5)
    assert made.hello(foreign)[0] == "UNAVAILABLE"
    assert made.hello(expired)[0] == "UNAVAILABLE"
    assert made.hello(member) == ("PERMISSION_DENIED", "no such run, or it is over")
    process.terminate()
    status, errors = ended(process)
    assert status == 0
    lines = errors.splitlines()
    for words in (
        "no TLS, but plaintext or random bytes",
        "client certificate was refused: certificate has expired",
        f"{member.node}: asks for run {RUN!r}, which is not served here",
    ):
        assert sum(words in line for line in lines) >= 1, errors
    assert sum("client certificate was refused: " in line for line in lines) >= 2
    assert all(line.startswith("core: ") for line in lines), errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "--port: expected 0 to 65535"),
        (["--connections", "0"], "--connections: expected 1 or more"),
        (["--connections", "100000000"], "--connections: expected at most"),
        (["--slots", "0"], "--slots: expected 1 or more"),
        (["--ranks", "-1"], "--ranks: expected 0 to 64, got -1"),
        (["--ranks", "65"], "--ranks: expected 0 to 64, got 65"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    made: Directory, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["core", "up", "--federation", str(made.path), *arguments]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


def test_a_port_that_is_taken_is_one_line_and_status_2(made: Directory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, errors = ended(made.start("--port", str(taken.getsockname()[1])))
    assert status == 2
    assert "choose another --port" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("missing", ["ca.pem", "gateway.pem", "gateway.key"])
def test_a_directory_that_is_none_is_one_line_and_status_2(
    made: Directory, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (made.path / missing).unlink()
    assert main(["core", "up", "--federation", str(made.path)]) == 2
    errors = capsys.readouterr().err
    assert missing in errors
    assert errors.count("\n") == 1


def test_a_file_that_is_no_certificate_is_one_line_and_status_2(
    made: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    (made.path / "gateway.pem").write_text("no certificate")
    assert main(["core", "up", "--federation", str(made.path)]) == 2
    assert "certificates of a CA and a gateway" in capsys.readouterr().err


def test_a_root_whose_name_cannot_be_read_is_one_line_and_status_2(
    made: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    """An O= that is a bit string: the library loads it, and raises TypeError for its name."""
    der = made.authority.der.replace(b"\x55\x04\x0a\x0c", b"\x55\x04\x0a\x03")
    text = b64encode(der)
    (made.path / "ca.pem").write_bytes(
        b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n"
    )
    assert main(["core", "up", "--federation", str(made.path)]) == 2
    assert "certificates of a CA and a gateway" in capsys.readouterr().err


def test_an_expired_gateway_certificate_is_said_before_it_listens(
    made: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    then = datetime.now(UTC) - timedelta(days=91)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = made.authority.issue_gateway(key.public_key(), ["localhost"], then, days=90)
    (made.path / "gateway.pem").write_bytes(pem(leaf))
    assert main(["core", "up", "--federation", str(made.path)]) == 2
    assert "expected a certificate in force" in capsys.readouterr().err


def test_a_key_that_does_not_fit_is_said_and_status_2(made: Directory) -> None:
    (made.path / "gateway.key").write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1())))
    status, errors = ended(made.start())
    assert status == 2
    assert "Traceback" not in errors
