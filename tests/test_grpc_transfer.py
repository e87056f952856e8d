"""Uploads and fetches against a scripted gateway: breaks, resumes, lies, and an end."""

from __future__ import annotations

import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from umbel.clients.grpc_transfer import Carriers, Transfer, fetching, uploading
from umbel.clients.session import Fetch, Upload
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import Assembly, Kind, frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CTX, DIGEST = bytes(range(32)), bytes(32)
WHOLE = bytearray(bytes(range(256)) * 4096 * 3)  # three full frames
WAIT = 60.0


class Scripted:
    """A gateway whose Upload and Fetch are a test's own functions."""

    def __init__(self) -> None:
        """Listen without TLS: a transfer gets an open channel."""
        self.upload: Callable[[Iterator[bytes], Any], bytes] = lambda _r, _c: b""
        self.fetch: Callable[[pb.FetchRequest, Any], Iterator[bytes]] = lambda _r, _c: iter(())
        self.calls = 0
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch),
        }
        self._server = grpc.server(ThreadPoolExecutor(4))
        generic = grpc.method_handlers_generic_handler("umbel.v1.Gateway", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def _upload(self, requests: Iterator[bytes], context: Any) -> bytes:
        self.calls += 1
        return self.upload(requests, context)

    def _fetch(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.calls += 1
        yield from self.fetch(pb.FetchRequest.FromString(request), context)

    def close(self) -> None:
        """Stop."""
        self.channel.close()
        self._server.stop(0).wait(5)


@pytest.fixture
def gateway() -> Iterator[Scripted]:
    """A gateway of the test's own."""
    found = Scripted()
    yield found
    found.close()


class Heard:
    """What a transfer tells its session."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        self.event = threading.Event()
        self.failed = ""
        self.frames: list[bytes] = []

    def done(self, _: Transfer) -> None:
        """The upload has left."""
        self.event.set()

    def fail(self, _: Transfer, why: str) -> None:
        """It was given up."""
        self.failed = why
        self.event.set()

    def take(self, _: Transfer, frame: bytes) -> None:
        """A frame has come."""
        self.frames.append(frame)


def sent(gateway: Scripted, heard: Heard) -> Transfer:
    action = Upload(CTX, WHOLE)
    return carried(uploading(gateway.channel, "run-1", action, heard.done), heard)


def carried(work: Callable[[Transfer], None], heard: Heard) -> Transfer:
    carriers, transfer = Carriers(), Transfer(work, None, heard.fail)
    carriers.carry(transfer)
    carriers.close()
    return transfer


def until_over(transfer: Transfer) -> None:
    assert transfer.over.wait(WAIT)


def granting(offset: int, context: Any) -> None:
    context.send_initial_metadata((("umbel-offset", str(offset)),))


def test_an_upload_goes_on_where_the_gateway_is(gateway: Scripted) -> None:
    got = bytearray(len(WHOLE))
    assembly = Assembly(Kind.UPLOAD, CTX, len(WHOLE), "device", got)
    metadata: list[dict[str, Any]] = []

    def upload(requests: Iterator[bytes], context: Any) -> bytes:
        metadata.append(dict(context.invocation_metadata()))
        granting(assembly.received, context)
        for frame in requests:
            if assembly.accept(frame):
                break
            if gateway.calls == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut after one frame")
        return struct.pack("<Q", assembly.received)

    gateway.upload, heard = upload, Heard()
    transfer = sent(gateway, heard)
    assert heard.event.wait(WAIT)
    until_over(transfer)
    assert (got, heard.failed, gateway.calls) == (WHOLE, "", 2)
    assert all((m["umbel-run"], m["umbel-ctx-bin"]) == ("run-1", CTX) for m in metadata)


def test_nothing_is_sent_before_a_slot_is_granted(gateway: Scripted) -> None:
    may, first = threading.Event(), threading.Event()

    def upload(requests: Iterator[bytes], context: Any) -> bytes:
        def read() -> None:
            next(requests)
            first.set()

        threading.Thread(target=read, daemon=True).start()
        assert not first.wait(0.5)
        granting(0, context)
        assert first.wait(WAIT)
        may.set()
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "seen enough")
        return b""

    gateway.upload, heard = upload, Heard()
    until_over(sent(gateway, heard))
    assert may.is_set()


def test_a_lost_answer_sends_nothing_again(gateway: Scripted) -> None:
    frames_seen = []

    def upload(requests: Iterator[bytes], context: Any) -> bytes:
        granting(0 if gateway.calls == 1 else len(WHOLE), context)
        frames_seen.append(len(list(requests)))
        if gateway.calls == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return struct.pack("<Q", len(WHOLE))

    gateway.upload, heard = upload, Heard()
    until_over(sent(gateway, heard))
    assert (frames_seen[0] > 2, frames_seen[1:], heard.failed) == (True, [0], "")
    assert heard.event.is_set()


@pytest.mark.parametrize("offset", ["-1", "x", str(len(WHOLE) + 1), "1" * 5000])
def test_an_offset_that_cannot_be_is_given_up(gateway: Scripted, offset: str) -> None:
    def upload(requests: Iterator[bytes], context: Any) -> bytes:
        context.send_initial_metadata((("umbel-offset", offset),))
        assert list(requests) == []
        return struct.pack("<Q", 0)

    gateway.upload, heard = upload, Heard()
    until_over(sent(gateway, heard))
    assert heard.failed.startswith("gateway: umbel-offset: expected 0..")


def test_a_refusal_ends_it(gateway: Scripted) -> None:
    def upload(_: Iterator[bytes], context: Any) -> bytes:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no session")
        return b""

    gateway.upload, heard = upload, Heard()
    until_over(sent(gateway, heard))
    assert (heard.failed, gateway.calls) == ("permission denied: no session", 1)


def test_a_stopped_upload_says_nothing_more(gateway: Scripted) -> None:
    asked, gone = threading.Event(), threading.Event()

    def upload(_: Iterator[bytes], context: Any) -> bytes:
        context.add_callback(gone.set)
        asked.set()
        gone.wait(WAIT)
        return b""

    gateway.upload, heard = upload, Heard()
    transfer = sent(gateway, heard)
    assert asked.wait(WAIT)
    transfer.stop()
    assert gone.wait(WAIT)
    until_over(transfer)
    assert (heard.failed, heard.event.is_set()) == ("", False)


def test_a_fetch_goes_on_where_it_was(gateway: Scripted) -> None:
    asked: list[tuple[str, bytes, int]] = []

    def fetch(request: pb.FetchRequest, context: Any) -> Iterator[bytes]:
        asked.append((request.run, request.digest, request.offset))
        for number, frame in enumerate(frames(Kind.MODEL, DIGEST, WHOLE, request.offset)):
            if gateway.calls < 3 and number == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            yield frame

    gateway.fetch, heard = fetch, Heard()
    action = Fetch(DIGEST, len(WHOLE))
    transfer = carried(fetching(gateway.channel, "r", action, heard.take), heard)
    until_over(transfer)
    got = bytearray(len(WHOLE))
    assembly = Assembly(Kind.MODEL, DIGEST, len(WHOLE), "gateway", got)
    assert [assembly.accept(frame) for frame in heard.frames] == [False, False, True]
    assert got == WHOLE
    assert asked == [("r", DIGEST, n << 20) for n in range(3)]
    assert transfer.bytes == sum(len(frame) for frame in heard.frames)


def test_a_model_that_is_not_published_is_given_up(gateway: Scripted) -> None:
    def fetch(_: pb.FetchRequest, context: Any) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        yield b""

    gateway.fetch, heard = fetch, Heard()
    action = Fetch(DIGEST, len(WHOLE))
    until_over(carried(fetching(gateway.channel, "r", action, heard.take), heard))
    assert heard.failed == "not found: no such model"


def _carried_by(carriers: Carriers, gate: threading.Event) -> tuple[Transfer, list[int]]:
    """Carry a transfer that waits at the gate and notes its thread."""
    seen: list[int] = []

    def work(_: Transfer) -> None:
        assert gate.wait(WAIT)
        seen.append(threading.get_ident())

    transfer = Transfer(work, None, Heard().fail)
    carriers.carry(transfer)
    return transfer, seen


def test_a_thread_carries_one_transfer_after_another_and_ends_with_the_session() -> None:
    carriers, opened, gate = Carriers(), threading.Event(), threading.Event()
    opened.set()
    threads: set[int | None] = set()
    for _ in range(5):
        transfer, seen = _carried_by(carriers, opened)
        until_over(transfer)
        _until(lambda: not carriers._idle.empty())
        threads |= set(seen)
    assert len(threads) == 1
    first, second = _carried_by(carriers, gate), _carried_by(carriers, gate)
    carriers.close()  # while both are on their way
    gate.set()
    for transfer, seen in (first, second):
        until_over(transfer)
        threads |= set(seen)
    assert len(threads) == 2
    _until(lambda: threads.isdisjoint(thread.ident for thread in threading.enumerate()))


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
