"""How devices join by the front: before a real issuer on its socket, over TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.enrolment import MAX_REQUEST, Declined, EnrolAnswer, LeaveRequest
from umbel.server import front as front_module
from umbel.server.front_body import Terms
from umbel.server.front_pages import BURST, PER_SECOND, Allowance
from umbel.tests.front_stage import post, response, rest, staged, status
from umbel.tests.issuing import NOW, Keys, Stage, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.tests import front_stage

OTHER = "127.0.0.2"


@pytest.fixture
def federation(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "wards")


@pytest.fixture
def front(federation: Stage, tmp_path: Path) -> Iterator[front_stage.Stage]:
    with staged(tmp_path / "f", devices=federation.folder) as stage:
        yield stage


def asked(front: front_stage.Stage, page: str, body: bytes, source: str = "127.0.0.1") -> bytes:
    """Return the whole answer to a request for a page."""
    with front.connect(source=source) as line:
        line.sendall(post(f"/v1/{page}", body))
        return response(line)


def body(raw: bytes) -> bytes:
    return raw.partition(b"\r\n\r\n")[2]


def declined(raw: bytes) -> tuple[int, str]:
    return status(raw), Declined.parse(body(raw)).code


def test_a_device_joins_renews_and_leaves(front: front_stage.Stage, federation: Stage) -> None:
    keys, token = Keys(), federation.token()
    with served(federation):
        made = asked(front, "enrol", keys.enrol(token).dumps())
        node = EnrolAnswer.parse(body(made))
        renewed = asked(front, "renew", keys.renew(node.id).dumps())
        going = LeaveRequest.sign("wards", node.id, int(NOW.timestamp()), keys.signing)
        left = asked(front, "leave", going.dumps())
        gone = asked(front, "renew", keys.renew(node.id).dumps())
    assert (status(made), status(renewed), status(left)) == (200, 200, 200)
    assert node.name == "press-17"
    assert declined(gone) == (410, "removed")
    assert front.superlink.seen == []  # nothing of it went there
    assert front.log == ["410 to 127.0.0.1: renew: removed"]


def test_the_root_comes_whether_or_not_there_is_an_issuer(
    front: front_stage.Stage, federation: Stage
) -> None:
    with front.connect() as line:
        line.sendall(post("/v1/ca", method="GET"))
        assert body(response(line)) == (federation.folder / "ca.pem").read_bytes()


def test_while_the_issuer_is_away_the_answer_is_one_line_and_another_try_is_worth_it(
    front: front_stage.Stage, federation: Stage
) -> None:
    keys, token = Keys(), federation.token()
    for page, sent in (("enrol", keys.enrol(token)), ("renew", keys.renew(bytes(16)))):
        assert declined(asked(front, page, sent.dumps())) == (503, "unavailable")
    with served(federation), front.connect() as line:  # and it is found again, on one connection
        for _ in range(2):
            line.sendall(post("/v1/enrol", keys.enrol(token).dumps()))
            assert status(response(line)) == 200


def test_a_token_that_will_not_do_is_refused_in_one_line(
    front: front_stage.Stage, federation: Stage
) -> None:
    revoked, expired = federation.token("a"), federation.token("b", seconds=60)
    used, other = federation.token("c"), federation.token("d")
    federation.issuer.revoke_token("a")
    federation.issuer.enrol(Keys().enrol(used))
    federation.clock.now = NOW.replace(hour=13)
    with served(federation):
        found = [
            declined(asked(front, "enrol", request.dumps()))
            for request in (
                Keys().enrol(revoked), Keys().enrol(expired), Keys().enrol(used),
                Keys().enrol(other, secret=bytes(32)), Keys().enrol(other, federation="south"),
                Keys().enrol(other, tls="none"),
            )
        ]  # fmt: skip
    assert found == [
        (410, "token revoked"), (410, "token expired"), (409, "token used"),
        (403, "token unknown"), (403, "other federation"), (403, "not a csr"),
    ]  # fmt: skip
    assert not any(other.secret.hex() in line for line in front.log)


def test_nothing_else_is_a_page(front: front_stage.Stage, federation: Stage) -> None:
    with served(federation):
        for method, page in (
            ("GET", "enrol"), ("PUT", "enrol"), ("POST", "ca"), ("POST", "token"),
            ("POST", "remove"), ("POST", "enrol/"), ("POST", "%65nrol"), ("POST", "nodes"),
            ("POST", "revoke-token"), ("GET", "issuer"), ("POST", "enrol?a=1"),
        ):  # fmt: skip
            assert front.status(post(f"/v1/{page}", b"{}", method=method)) == 404, page


def test_a_request_that_is_too_large_or_comes_slowly_never_reaches_the_issuer(
    front: front_stage.Stage, federation: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bytes(MAX_REQUEST + 1)
    assert status(front.ask(post("/v1/enrol", large))) == 413
    chunk = b"%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
    assert status(front.ask(post("/v1/enrol", chunk, "Transfer-Encoding: chunked"))) == 413
    monkeypatch.setattr(front_module, "TERMS", Terms(largest=MAX_REQUEST, stall=0.2))
    with served(federation), front.connect() as line:
        line.sendall(post("/v1/enrol", b"{", "Content-Length: 2"))
        assert status(rest(line)) == 408


def test_an_address_that_asks_without_end_is_told_to_wait_and_no_other(
    front: front_stage.Stage, federation: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Allowance, "take", lambda _self, peer: peer != OTHER)
    keys, token = Keys(), federation.token()
    with served(federation):
        request = keys.enrol(token).dumps()
        refused = asked(front, "enrol", request, source=OTHER)
        assert declined(refused) == (503, "unavailable")
        assert b"too many requests from this address" in refused
        assert status(asked(front, "enrol", request)) == 200


def test_what_an_address_may_send_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, now = asyncio.get_running_loop(), [0.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])
        made = Allowance(BURST, PER_SECOND)
        assert [made.take("10.0.0.7") for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
        assert made.take("10.0.0.8")
        now[0] = 1.0
        assert [made.take("10.0.0.7") for _ in range(3)] == [True, True, False]
        for number in range(5000):  # the oldest are forgotten
            made.take(f"10.1.{number >> 8}.{number & 255}")
        assert len(made._left) == 4096

    asyncio.run(main())
