"""What passes the front and what does not: over TLS, with a client that may send anything."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.certificates import Authority
from umbel.server import front
from umbel.tests.front_stage import PULL, Stage, answer, post, response, rest, staged, status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLANTED = "sesame-open-7391"
SIGNED = ["Flwr-Public-Key: UEs=", "Flwr-Signature: c2ln", "Flwr-Timestamp: 2030-01-01T00:00:00+00"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A front with the terms that it has by itself."""
    with staged(tmp_path_factory.mktemp("front") / "f") as stage:
        yield stage


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Stage]:
    """A front of this test's own, which may say everything."""
    with staged(tmp_path / "f") as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    """The same, its past forgotten."""
    shared.superlink.seen.clear()
    shared.superlink.said.clear()
    shared.log.clear()
    return shared


# ---- what passes -------------------------------------------------------------------------------


def test_a_request_goes_on_with_the_headers_of_the_fleet_api_and_no_other(stage: Stage) -> None:
    mine = ["X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "X-Forwarded-Proto: http",
            "Cookie: a=b", "Authorization: Bearer x", "Flwr-Task-Token: t", "TE: trailers",
            "Connection: keep-alive, x-own", "X-Own: 1", "User-Agent: me"]  # fmt: skip
    body = bytes(range(256))
    kept = [*SIGNED, "Content-Type: application/protobuf", "Flwr-Package-Version: 1.42.0"]
    assert stage.status(post(PULL, body, *mine, *kept)) == 200
    (seen,) = stage.superlink.seen
    assert seen.head.startswith(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
    assert seen.body == body
    assert seen.headers == sorted([
        ("content-length", "256"), ("content-type", "application/protobuf"),
        ("flwr-package-version", "1.42.0"), ("flwr-public-key", "UEs="),
        ("flwr-signature", "c2ln"), ("flwr-timestamp", "2030-01-01T00:00:00+00"),
        ("host", f"127.0.0.1:{stage.behind}"),
    ])  # fmt: skip


def test_an_answer_comes_back_without_what_is_about_the_one_connection(stage: Stage) -> None:
    stage.superlink.said[PULL] = answer(
        b"gone", "Content-Type: application/json", "Flwr-Version-Incompatibility-Message: old",
        "Server: uvicorn", "Keep-Alive: timeout=5", "Connection: keep-alive, x-hop", "X-Hop: 1",
        status=412,
    )  # fmt: skip
    with stage.connect() as line:
        line.sendall(post())
        head, _, body = response(line).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].startswith(b"HTTP/1.1 412 ")
    assert sorted(head.split(b"\r\n")[1:]) == sorted([
        b"content-type: application/json", b"flwr-version-incompatibility-message: old",
        b"content-length: 4",
    ])  # fmt: skip
    assert body == b"gone"


def test_a_body_of_unknown_length_goes_on_as_one(stage: Stage) -> None:
    chunks = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    assert stage.status(post(PULL, chunks, "Transfer-Encoding: chunked")) == 200
    assert [seen.body for seen in stage.superlink.seen] == [b"hello world"]


def test_requests_follow_each_other_on_one_connection(stage: Stage) -> None:
    with stage.connect() as line:
        for number in range(3):
            line.sendall(post(f"/v1/fleet/n{number}", b"x" * number))
            assert response(line).endswith(f"/v1/fleet/n{number}\n".encode())
    assert [seen.body for seen in stage.superlink.seen[:3]] == [b"", b"x", b"xx"]


def test_a_large_body_and_a_large_answer_arrive_whole(stage: Stage) -> None:
    data = random.Random(7).randbytes(5 << 20)  # noqa: S311 - any bytes
    stage.superlink.said["/v1/fleet/pull-object"] = answer(data)
    with stage.connect() as line:
        line.sendall(post("/v1/fleet/pull-object", data[::-1]))
        got = response(line).partition(b"\r\n\r\n")[2]
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    assert stage.superlink.seen[0].body == data[::-1]
    stage.until(lambda: stage.front.places.held == 0, "the front to let go")


def test_no_body_is_held(stage: Stage) -> None:
    stage.do(stage.superlink.reads.clear)
    sent, size = 0, 60 << 20
    with stage.connect() as line:
        line.sendall(post(PULL, b"", f"Content-Length: {size}"))
        line.settimeout(0.4)
        with suppress(TimeoutError):  # nobody reads: soon it cannot go on
            while sent < size:
                sent += line.send(bytes(1 << 16))
    stage.do(stage.superlink.reads.set)
    assert sent < size // 2  # what the system's own buffers hold
    stage.until(lambda: stage.front.places.held == 0, "the front to let go")


# ---- what does not -----------------------------------------------------------------------------

ELSEWHERE = [
    "/", "/docs", "/openapi.json", "/health", "/metrics", "/v1/control/list-runs", "/v1/runtime",
    "/v1/control", "/v1/runtime/acquire-task", "/v1/fleet", "/v1/fleet/", "/v1/fleet//",
    "//v1/fleet/x", "/v1//fleet/x", "/v1/fleet/../control/list-runs", "/v1/fleet/./x",
    "/v1/fleet/..%2fcontrol/list-runs", "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/x/../../control/list-runs", "/v1/fleet/x%2f..%2f..%2fcontrol", "/v1/fleet/x/y",
    "/v1/fleet/%70ull-messages", "/v1/%66leet/x", "/V1/fleet/x", "/v1/fleet/X", "/v1/fleet/x;a=1",
    "/v1/fleet/x?y=1", "/v1/fleet/x#y", "/v1/fleet/x%00", "/v1/fleet/x%0d%0aA:b", "/v1/fleet/x\\y",
    "/v1/fleet\\..\\control", "\\v1\\fleet\\x", "/v1/fleet/-x", "/v1/fleet/x-", "v1/fleet/x", "*",
    "https://localhost/v1/fleet/x", "http://127.0.0.1/v1/control/list-runs", "localhost:443",
    "/v1/enrol", "/v1/renew", "/healthz", "/healthz/", "/readyz/../docs",
]  # fmt: skip


@pytest.mark.parametrize("target", ELSEWHERE)
def test_no_other_target_passes(stage: Stage, target: str) -> None:
    with stage.connect() as line:
        line.sendall(post(target, b"", "Flwr-Public-Key: UEs="))
        assert response(line).endswith(b"\r\n\r\nnot found\n")
    assert stage.superlink.seen == []


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "X"]
)
def test_no_other_method_passes(stage: Stage, method: str) -> None:
    assert stage.status(post(PULL, method=method)) == 404
    assert stage.superlink.seen == []


def test_no_other_protocol_is_spoken(stage: Stage) -> None:
    for protocol in ("websocket", "h2c", "TLS/1.0"):
        raw = post(PULL, b"", "Connection: Upgrade", f"Upgrade: {protocol}")
        assert stage.status(raw) == 404
    assert status(stage.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) == 404
    assert stage.superlink.seen == []


INNER = post("/v1/control/list-runs")
SMUGGLED = {
    "two lengths": post(PULL, b"0\r\n\r\n" + INNER, "Content-Length: 5",
                        "Transfer-Encoding: chunked"),
    "two lengths, the other order": post(PULL, b"0\r\n\r\n" + INNER, "Transfer-Encoding: chunked",
                                         f"Content-Length: {5 + len(INNER)}"),
    "two numbers": post(PULL, INNER, "Content-Length: 0", f"Content-Length: {len(INNER)}"),
    "a list of numbers": post(PULL, INNER, f"Content-Length: 0, {len(INNER)}"),
    "a signed number": post(PULL, b"abc", "Content-Length: +3"),
    "a negative number": post(PULL, b"", "Content-Length: -1"),
    "another coding": post(PULL, b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked"),
    "a coding twice": post(PULL, b"0\r\n\r\n", "Transfer-Encoding: chunked",
                           "Transfer-Encoding: chunked"),
    "a hidden coding": post(PULL, b"0\r\n\r\n", "Transfer-Encoding: xchunked"),
    "a blank before the colon": post(PULL, b"0\r\n\r\n", "Transfer-Encoding : chunked",
                                     "Content-Length: 5"),
    "a bare line feed": post(PULL).replace(b"\r\n", b"\n", 1)[:-2] + b"X: \x00\r\n\r\n",
    "a wrong chunk": post(PULL, b"zz\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "no host": b"POST /v1/fleet/x HTTP/1.1\r\n\r\n",
    "two hosts": post(PULL, b"", "Host: elsewhere"),
    "a name that is none": post(PULL, b"", "Na me: x"),
}  # fmt: skip


@pytest.mark.parametrize("how", SMUGGLED)
def test_no_request_is_hidden_in_another(stage: Stage, how: str) -> None:
    assert status(stage.ask(SMUGGLED[how])) == 400  # and the connection is closed
    assert not any(seen.head.startswith(b"POST /v1/control") for seen in stage.superlink.seen)
    assert all(seen.cut for seen in stage.superlink.seen)  # nothing whole went on


def test_a_second_request_is_judged_as_the_first(stage: Stage) -> None:
    with stage.connect() as line:
        line.sendall(post(PULL, b"abc") + INNER)
        assert status(response(line)) == 200
        assert status(response(line)) == 404
    assert [seen.body for seen in stage.superlink.seen] == [b"abc"]


def test_the_log_has_a_line_for_each_refusal_and_nothing_of_a_client(fresh: Stage) -> None:
    last = "Connection: close"
    for raw in (
        post(f"/{PLANTED}", b"", last), post(PULL, b"", f"Upgrade: {PLANTED}", last),
        post(PULL, PLANTED.encode(), f"Cookie: {PLANTED}", "Transfer-Encoding: x"),
        PLANTED.encode() + b"\r\n\r\n", post(f"/v1/fleet/{PLANTED}", b"", last),
    ):  # fmt: skip
        fresh.ask(raw)
    assert fresh.log == [
        "404 to 127.0.0.1: not found", "404 to 127.0.0.1: not found",
        "Invalid HTTP request received.", "Invalid HTTP request received.",
    ]  # fmt: skip


def test_a_flood_of_refusals_is_a_few_lines(fresh: Stage) -> None:
    with fresh.connect() as line:
        for _ in range(60):
            line.sendall(post("/x"))
            assert status(response(line)) == 404
    assert 10 <= len(fresh.log) < 20


# ---- a SuperLink that is away ------------------------------------------------------------------


def test_while_the_superlink_is_away_the_answer_is_503(
    fresh: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "READY_LOOK_S", 0.0)
    health, ready = (post(f"/{page}", method="GET") for page in ("healthz", "readyz"))
    assert (fresh.status(health), fresh.status(ready), fresh.status(post())) == (200, 200, 200)
    fresh.away()
    with fresh.connect() as line:  # which stays
        for _ in range(3):
            line.sendall(post())
            got = response(line)
            assert status(got) == 503
            assert got.endswith(b"\r\n\r\nthe SuperLink is away; try again\n")
    assert (fresh.status(health), fresh.status(ready)) == (200, 503)
    fresh.back()
    assert (fresh.status(post()), fresh.status(ready)) == (200, 200)
    said = [line for line in fresh.log if line.startswith("SuperLink")]
    assert [line.split(":")[2][:5] for line in said[:1]] == [" Conn"]
    assert said[1:] == [f"SuperLink 127.0.0.1:{fresh.behind} answers again"]


def test_who_sends_much_to_a_superlink_that_is_away_hears_it(fresh: Stage) -> None:
    fresh.away()
    with fresh.connect() as line:
        for _ in range(2):
            line.sendall(post(PULL, bytes(5 << 20)))
            assert response(line).endswith(b"\r\n\r\nthe SuperLink is away; try again\n")
        fresh.back()
        line.sendall(post(PULL, b"abc"))  # on the same connection
        assert status(response(line)) == 200
    assert [seen.body for seen in fresh.superlink.seen] == [b"abc"]


def test_another_superlink_gets_nothing(fresh: Stage) -> None:
    fresh.issue("superlink", Authority.create("dev", datetime.now(UTC)))
    fresh.away()
    fresh.back()
    assert fresh.status(post(PULL, PLANTED.encode())) == 503
    assert fresh.superlink.seen == []
    assert "CERTIFICATE_VERIFY_FAILED" in fresh.log[0]


def test_a_superlink_that_dies_in_a_request_is_away(fresh: Stage) -> None:
    fresh.do(fresh.superlink.answers.clear)
    with fresh.connect() as line:
        line.sendall(post())
        fresh.until(lambda: fresh.superlink.seen, "the request")
        fresh.away()
        assert status(response(line)) == 503
        fresh.do(fresh.superlink.answers.set)
        fresh.back()
        line.sendall(post())
        assert status(response(line)) == 200


def test_strangers_cannot_ask_the_superlink_by_readyz_without_end(stage: Stage) -> None:
    with stage.connect() as line:
        for _ in range(30):
            line.sendall(post("/readyz", method="GET"))
            assert status(response(line)) == 200
    assert len(stage.superlink.seen) <= 2
    assert {seen.head.split(b"\r\n")[0] for seen in stage.superlink.seen} <= {
        b"GET /health HTTP/1.1"
    }


# ---- noise -------------------------------------------------------------------------------------


def test_spoilt_requests_reach_nothing_else_and_the_front_lives(stage: Stage) -> None:
    rng = random.Random(11)  # noqa: S311 - to be repeated
    seeds = [post(PULL, b"abc"), *list(SMUGGLED.values())[:4], post("/v1/fleet/../control/x")]
    for _ in range(150):
        raw = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(raw))
            match rng.randrange(3):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    del raw[at : at + rng.randint(1, 8)]
                case _:
                    raw[at:at] = rng.choice((b"\r\n", b"../", b"%2e", b"\0", bytes(raw[:40])))
        with stage.connect() as line:
            line.sendall(raw)
            line.settimeout(0.02)
            with suppress(TimeoutError):
                rest(line)
    for seen in stage.superlink.seen:
        assert front.FLEET.fullmatch(seen.head.split(b" ")[1]), seen.head
        assert seen.head.startswith(b"POST ")
    assert stage.status(post()) == 200
    assert not [line for line in stage.log if "Traceback" in line]
