"""What a server shows, judged by the pinned root and the dialled name, on real handshakes."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from umbel.host import doctor_tls as tls
from umbel.protocol.certificates import Authority
from umbel.tests.doctor_stage import NOW, SETTINGS, Stage, hang, inspecting, page
from umbel.tests.provoked import shown
from umbel.tests.wire_federation import pem

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from umbel.host.doctor import Finding

DAY = timedelta(days=1)
BOUND = 2.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()


def expected(stage: Stage, name: str = "localhost", **own: object) -> tls.Expected:
    root = stage.authority.certificate
    made = tls.Expected(f"front {name}", name, root, pem(root).decode(), "tested", bound=BOUND)
    return replace(made, **own)  # type: ignore[arg-type]


def met(wanted: tls.Expected, port: int) -> tuple[list[Finding], ssl.SSLSocket | None]:
    """Return what is found at a port, and the connection where there is one to trust."""

    def again() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), 5)

    return ended_with(tls.checked(wanted, again(), again))


def ended_with(
    steps: Generator[Finding, None, ssl.SSLSocket | None],
) -> tuple[list[Finding], ssl.SSLSocket | None]:
    findings = []
    while True:
        try:
            findings.append(next(steps))
        except StopIteration as end:
            return findings, end.value


def found(wanted: tls.Expected, port: int) -> list[Finding]:
    findings, secure = met(wanted, port)
    if secure is not None:
        secure.close()
    return findings


def shows(stage: Stage, context: ssl.SSLContext, **own: object) -> list[Finding]:
    return found(expected(stage, **own), stage.tls(context, hang))  # type: ignore[arg-type]


def plain_http(line: socket.socket) -> None:
    line.recv(4096)
    line.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def plain_h2(line: socket.socket) -> None:
    line.sendall(SETTINGS)
    hang(line)


def other_federation(stage: Stage) -> list[Finding]:
    return shows(stage, stage.context(by=Authority.create("south", NOW)))


def made_anew(stage: Stage) -> list[Finding]:
    return shows(stage, stage.context(by=Authority.create("tested", NOW)))


def stranger(stage: Stage) -> list[Finding]:
    return shows(stage, stage.with_leaf(*inspecting()))


def a_nodes(stage: Stage) -> list[Finding]:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = stage.authority.issue_tls(key.public_key(), bytes(16), "edge-0", NOW)
    return shows(stage, stage.with_leaf(leaf, key))


def old_tls(stage: Stage) -> list[Finding]:
    context = stage.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.set_ciphers("DEFAULT")
    wanted = expected(stage)

    def answer(line: socket.socket) -> None:  # an alert: handshake_failure
        line.recv(4096)
        line.sendall(bytes([21, 3, 3, 0, 2, 2, 40]))

    return found(wanted, stage.serve(answer))


def gateway_for_front(stage: Stage) -> list[Finding]:
    return shows(stage, stage.context(alpn="h2"))


def turned_down(stage: Stage) -> list[Finding]:
    """Show a node's certificate of another federation to a gateway."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = Authority.create("south", NOW).issue_tls(key.public_key(), bytes(16), "edge-0", NOW)
    return list(gateway(stage, stage.files(leaf, key)))


def gateway(stage: Stage, own: tuple[object, object] | None) -> Iterator[Finding]:
    """Yield what a gateway, which asks for a certificate, makes of one."""

    def speak(line: ssl.SSLSocket) -> None:
        line.sendall(SETTINGS)
        hang(line)

    wanted = expected(stage, h2=True, own=own)
    findings, secure = met(wanted, stage.tls(stage.context(alpn="h2", clients=True), speak))
    yield from findings
    assert secure is not None
    with secure:
        refused = tls.refused(wanted, secure)
    if refused:
        yield refused


CASES: dict[str, Callable[[Stage], list[Finding]]] = {
    "tls.ok": lambda stage: shows(stage, stage.context()),
    "tls.plaintext": lambda stage: found(expected(stage), stage.serve(plain_http)),
    "tls.mute": lambda stage: found(expected(stage, bound=0.3), stage.serve(hang)),
    "tls.hangup": lambda stage: found(expected(stage), stage.serve(lambda line: line.close())),
    "tls.failed": old_tls,
    "tls.federation": other_federation,
    "tls.root": made_anew,
    "tls.stranger": stranger,
    "tls.purpose": a_nodes,
    "tls.name": lambda stage: shows(stage, stage.context(["fl.example.org", "10.0.0.1"])),
    "tls.ended": lambda stage: shows(stage, stage.context(begins=-100 * DAY)),
    "tls.future": lambda stage: shows(stage, stage.context(begins=DAY)),
    "tls.soon": lambda stage: shows(stage, stage.context(begins=-80 * DAY)),
    "tls.swapped": gateway_for_front,
    "tls.refused": turned_down,
    "clock.ok": lambda _: [tls.clock("front", timedelta(seconds=0.8), 0.6)],
    "clock.drift": lambda _: [tls.clock("front", timedelta(seconds=-200), 0.6)],
    "clock.skew": lambda _: [tls.clock("front", timedelta(seconds=6.4), 0.6)],
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, stage: Stage) -> None:
    shown(name, CASES[name](stage))


def test_http2_without_tls_is_plaintext_too(stage: Stage) -> None:
    shown("tls.plaintext", found(expected(stage), stage.serve(plain_h2)))


@pytest.mark.parametrize("dialled", ["127.0.0.1", "fl.example.net"])
def test_the_names_of_a_certificate_are_listed(dialled: str, stage: Stage) -> None:
    context = stage.context(["localhost", "fl.example.org", "10.0.0.1"])
    finding = shown("tls.name", shows(stage, context, name=dialled))
    assert f"does not bear '{dialled}', only localhost, fl.example.org, 10.0.0.1" in finding.line
    assert f"--names {dialled}" in finding.fix


def test_a_gateway_that_takes_the_certificate_has_no_finding(stage: Stage) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = stage.authority.issue_tls(key.public_key(), bytes(16), "edge-0", NOW)
    assert [one.id for one in gateway(stage, stage.files(leaf, key))] == ["tls.ok"]


def test_a_device_without_a_certificate_is_refused(stage: Stage) -> None:
    shown("tls.refused", gateway(stage, None))


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(0.0, "clock.ok"), (4.0, "clock.drift"), (90.0, "clock.skew"), (-100.0, "clock.ok"),
     (-250.0, "clock.drift"), (-400.0, "clock.skew")],
)  # fmt: skip
def test_the_difference_of_two_clocks_is_measured(ahead: float, said: str, stage: Stage) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=ahead), usegmt=True)
    port = stage.pages(stage.context(), {"/healthz": page("ok\n", f"Date: {date}")})
    _, secure = met(expected(stage), port)
    assert secure is not None
    with secure:
        answer = tls.page(secure, "localhost", "/healthz")
        again = tls.page(secure, "localhost", "/healthz")
    assert answer is not None
    assert again is not None
    assert answer.skew is not None
    assert (answer.status, answer.body) == (200, b"ok\n")
    assert abs(answer.skew.total_seconds() - ahead) <= 3.0
    assert tls.clock("front", answer.skew, answer.error_s).id == said


def test_a_clock_with_which_nothing_is_in_force_is_measured_all_the_same(stage: Stage) -> None:
    """A board that starts in the past sees a certificate that begins later."""
    at = NOW + 100 * DAY
    date = format_datetime(at, usegmt=True)
    context = stage.context(begins=99 * DAY)
    port = stage.pages(context, {"/healthz": page("ok\n", f"Date: {date}")})
    findings, secure = met(expected(stage), port)
    shown("tls.future", findings)
    assert secure is not None
    with secure:
        answer = tls.page(secure, "localhost", "/healthz")
    assert answer is not None
    assert answer.skew is not None
    assert answer.skew.days in {-100, -101}


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00\x01", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc X\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n",
     b"HTTP/1.1 200 X\r\nDate: never\r\nContent-Length: 0\r\n\r\n", b"A" * 200_000],
)  # fmt: skip
def test_an_answer_that_is_none_is_no_fault(raw: bytes, stage: Stage) -> None:
    def answer(line: ssl.SSLSocket) -> None:
        line.recv(4096)
        line.sendall(raw)

    _, secure = met(expected(stage), stage.tls(stage.context(), answer))
    assert secure is not None
    with secure:
        got = tls.page(secure, "localhost", "/healthz")
    assert got is None or got.skew is None
