"""Whoever stands where a doctor looks: a server that is another, a proxy, a member that measures.

A doctor goes where no session would: it looks at servers that are wrong. It must trust none of them
for it, say no secret, and let nothing that they show steer the terminal of whoever reads.
"""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from umbel.clients import doctor_line, doctor_state
from umbel.clients.doctor_files import Known
from umbel.clients.grpc_measure import Speed, speed
from umbel.host import doctor_dial, doctor_front, doctor_tls
from umbel.host.doctor_dial import Proxy
from umbel.protocol.certificates import Authority
from umbel.protocol.members import MemberList
from umbel.server.grpc_measure import MOST, PIECE
from umbel.tests.doctor_stage import NOW, Stage, hang, page, proxying
from umbel.tests.federations import made
from umbel.tests.test_doctor_tls import ended_with, expected, met
from umbel.tests.test_grpc_measure import files
from umbel.tests.wire_federation import METHOD, Device, Federation, Machine, pem

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

DAY = timedelta(days=1)
CLEAR = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made_ = Stage(tmp_path / "stage")
    yield made_
    made_.close()


def played(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(play, 60))


def test_a_server_of_another_federation_hears_nothing(stage: Stage) -> None:
    came: list[bytes] = []

    def answer(line: ssl.SSLSocket) -> None:
        came.append(line.recv(4096))

    port = stage.tls(stage.context(by=Authority.create("south", NOW)), answer)
    findings, secure = met(expected(stage), port)
    assert secure is None
    assert [one.id for one in findings] == ["tls.federation"]
    assert not any(came)


def test_a_server_under_another_name_hears_nothing(stage: Stage) -> None:
    findings, secure = met(expected(stage), stage.tls(stage.context(["evil.example"]), hang))
    assert secure is None
    assert [one.id for one in findings] == ["tls.name"]


def test_of_a_certificate_out_of_force_only_the_dates_are_forgiven(stage: Stage) -> None:
    """Where the clock may be wrong a stranger is a stranger, and another name another name."""
    other = Authority.create("south", NOW - 400 * DAY)
    for context in (
        stage.context(by=other, begins=-100 * DAY),
        stage.context(["evil.example"], begins=-100 * DAY),
        stage.context(by=other, begins=100 * DAY),
    ):
        findings, secure = met(expected(stage), stage.tls(context, hang))
        assert secure is None, [one.id for one in findings]
        assert "tls.ok" not in {one.id for one in findings}


def test_who_answers_the_second_time_is_judged_like_the_first(stage: Stage) -> None:
    """In front of a server whose certificate has ended somebody else may take the next call."""
    ended = stage.tls(stage.context(begins=-100 * DAY), hang)
    key = ec.generate_private_key(ec.SECP256R1())
    other = Authority.create("south", NOW).issue_gateway(key.public_key(), ["localhost"], NOW)
    for context in (stage.with_leaf(other, key), stage.context(["evil.example"])):
        stranger = partial(socket.create_connection, ("127.0.0.1", stage.tls(context, hang)), 5)
        first = socket.create_connection(("127.0.0.1", ended), 5)
        _, secure = ended_with(doctor_tls.checked(expected(stage), first, stranger))
        assert secure is None


def test_a_member_list_by_a_ca_for_which_the_root_does_not_vouch_is_none(tmp_path: Path) -> None:
    device = made(tmp_path / "federation", 1).device("edge-0")
    stranger = Authority.create("tested", NOW)
    known = Known.read(device)
    wanted = MemberList("tested", 7, NOW, NOW + 7 * DAY, frozenset({known.id}))
    for name, content in (
        ("members.list", wanted.sign(stranger)),
        ("issuing.pem", pem(stranger.certificate)),
    ):
        (device / name).write_bytes(content)
        (device / name).chmod(0o600)
    found = list(doctor_state.members(Known.read(device), datetime.now(UTC)))
    assert [one.id for one in found] == ["list.bad"]


def test_a_proxys_password_is_in_no_finding(stage: Stage) -> None:
    host, port = "127.0.0.1", stage.serve(proxying("407 who are you"))
    for scheme in ("http", "socks5"):
        proxy = Proxy(host, port, "https_proxy", scheme, "me:secret")
        findings, line = doctor_dial.taken(
            doctor_dial.reached("front", "localhost:443", proxy, bound=5.0)
        )
        assert line is None
        assert findings
        assert "secret" not in str(findings)


def steering() -> tuple[x509.Certificate, Any]:
    """Return a certificate whose names would steer a terminal, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"root{CLEAR}")])
    san = x509.SubjectAlternativeName([x509.DNSName("evil.example")])
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who)
    builder = builder.public_key(key.public_key()).serial_number(7).add_extension(san, False)
    dated = builder.not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
    return dated.sign(key, hashes.SHA256()), key


def test_nothing_that_a_server_shows_steers_a_terminal(stage: Stage) -> None:
    findings, _ = met(expected(stage), stage.tls(stage.with_leaf(*steering()), hang))
    ugly = {"/healthz": page("ok\n"), "/readyz": page(f"{CLEAR} away", status=503)}
    _, secure = met(expected(stage), stage.pages(stage.context(), ugly))
    assert secure is not None
    with secure:
        findings += doctor_front.pages(secure, "front localhost:1")
    headers = {"umbel-version": f"9.{CLEAR}", "umbel-protocol": CLEAR}
    findings += doctor_line.versions(Known.read(stage.folder), headers)
    proxy = Proxy("127.0.0.1", stage.serve(proxying(f"500 {CLEAR}")), "https_proxy", "http", "")
    findings += doctor_dial.taken(doctor_dial.reached("front", "localhost:443", proxy))[0]
    ids = {one.id for one in findings}
    assert ids >= {"tls.stranger", "front.superlink", "versions.server", "proxy.refused"}
    assert all((one.line + one.fix).isprintable() for one in findings)


def test_who_was_removed_measures_nothing() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            there.core._verifier.revoke([machine.id])
            found = await asyncio.to_thread(speed, f"localhost:{there.port}", files(there, machine))
            assert found == Speed(refused="this node was removed from the federation")

    played(play())


@pytest.mark.parametrize(
    ("sent", "asked"),
    [(MOST + 1, "0"), (0, str(MOST + 1)), (0, "-1"), (0, "all"), (0, "9" * 400)],
)
def test_a_member_measures_no_more_than_there_is_to_measure(sent: int, asked: str) -> None:
    async def play() -> None:
        async with Federation() as there, Device(there, Machine(there.authority, 1)) as device:
            pieces = [bytes(min(PIECE, sent - at)) for at in range(0, sent, PIECE)]
            method: Any = device.channel.stream_stream(METHOD + "Measure")
            call = method(iter(pieces), metadata=(("umbel-bytes", asked),), timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                [piece async for piece in call]
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    played(play())


def test_a_page_without_an_end_is_cut(stage: Stage) -> None:
    sent = [0]

    def answer(line: ssl.SSLSocket) -> None:
        line.recv(4096)
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent[0] < 2_000_000:
            line.sendall(bytes(65536))
            sent[0] += 65536

    _, secure = met(expected(stage), stage.tls(stage.context(), answer))
    assert secure is not None
    with secure:
        got = doctor_tls.page(secure, "localhost", "/healthz")
    assert got is not None
    assert len(got.body) < 100_000
