"""The core service's two doors, without a network: what a ServerApp and what a device may say.

A ServerApp's commands are played on a real core, all of one connection; so are a device's first
messages, frames and requests. Nothing but the declared errors may leave them: whatever else was
raised would end a connection with a traceback, or the service.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
import struct
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients.grpc_transfer import _offset
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.codec import Codec
from umbel.protocol.errors import Malformed, StateError
from umbel.protocol.frames import HEADER, Kind, frames
from umbel.protocol.membership import Membership
from umbel.server import core_wire
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.core_client import CoreClient
from umbel.server.core_commands import Commander
from umbel.server.core_service import Core
from umbel.server.endings import Turned
from umbel.server.served import Upload
from umbel.server.stepping import StepOrder
from umbel.strategies.server_rules import FedAdam
from umbel.tests.core_peer import Told
from umbel.tests.fuzz_protocol import LAYOUT, MANIFEST
from umbel.tests.fuzzing import Parser
from umbel.tests.wire_federation import FEDERATION, GATEWAY, KEY, RUN, Heard, Machine, bare

if TYPE_CHECKING:
    from collections.abc import Coroutine

CTX = bytes(range(32))
MODEL = bytes(range(256)) * 4
ORDER = StepOrder(FedAdam(), 1, LAYOUT, Codec(5, 0.5, 40), 1, 7)
LARGEST = 1 << 24
"""Bytes of the largest sum that is really opened here: a ServerApp may ask for memory."""


@cache
def authority() -> Authority:
    """Return the federation's CA."""
    return Authority.create(FEDERATION, datetime.now(UTC))


@cache
def machine() -> Machine:
    """Return a device."""
    return Machine(authority(), 7)


@cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop of this process's cores."""
    made = asyncio.new_event_loop()
    atexit.register(made.close)
    return made


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return loop().run_until_complete(work)


@cache
def _membership() -> Membership:
    return Membership(authority().certificate, FEDERATION)


def core() -> tuple[Core, Heard]:
    """Return a core that serves one run, and its ServerApp's ear."""
    made = Core(
        _membership(), GATEWAY, World(1), clock=lambda: 100.0, wall=lambda: datetime.now(UTC),
        say=lambda _kind, _line: None,
    )  # fmt: skip
    heard = Heard()
    made.open(RUN, KEY, heard)
    made.sessions.open(RUN, KEY)
    return made, heard


def entered(made: Core) -> Any:
    """Let the device in and return its stream."""
    hello = pb.Hello(run=RUN, ticket=machine().ticket(), certificate=machine().der)
    up = pb.Up(hello=hello).SerializeToString()
    return made.enter(made.peer(_pem()), up, lambda: None)


@cache
def _pem() -> bytes:
    return machine().tls.public_bytes(Encoding.PEM)


# ---- commands ------------------------------------------------------------------------------

PLAIN = {
    "manifest": MANIFEST.to_json(), "metrics": {"eval.loss": 24}, "phase": "train", "members": 5,
    "value_range": 0.5, "weight_cap": 40, "max_norm": 1.0,
}  # fmt: skip
NODE = "07" * 16
SUM = {"op": "sum", "ctx": CTX.hex(), "total": LAYOUT.total_bytes, "split": LAYOUT.split}
COMMANDS: list[dict[str, Any]] = [
    {"op": "tickets", "seconds": 9.5, "nodes": [{"id": NODE, "tls_fingerprint": "00" * 32}]},
    {"op": "put", "digest": sha256(MODEL).hexdigest(), "manifest": 64, "payload": 1024},
    {"op": "publish", "digest": sha256(MODEL).hexdigest()},
    {"op": "post", "node": NODE, "payload": 50},
    {**SUM, "stall": 5.0, "trip": 9.0, "plain": None},
    {"op": "expect", "node": NODE, "y_hash": "00" * 32},
    {"op": "fold", "node": NODE},
    {"op": "discard", "node": NODE},
    {"op": "unmask", "signs": [1, -1], "payload": 64},
    {"op": "read", "bound": 2**31 - 1},
    {"op": "step", **ORDER.described()},
    {"op": "close_sum"},
    {**SUM, "stall": 5.0, "trip": 9.0, "plain": PLAIN},
    {"op": "goodbye", "node": NODE},
    {"op": "goodbye"},
]


def packed(command: dict[str, Any]) -> bytes:
    """Return a command as the socket carries it; `payload` says how many bytes come with it."""
    fields = {name: value for name, value in command.items() if name != "payload"}
    header, size = json.dumps(fields).encode(), command.get("payload", 0)
    size = size if type(size) is int and 0 <= size < LARGEST else 0
    return struct.pack("<IQ", len(header), size) + header + bytes(size)


def _commands(data: bytes) -> tuple[str, ...]:
    """Play what a connection says, as `CoreSocket._serve` does after `open`."""
    made, heard = core()
    entered(made)
    served = made.served[RUN]
    served.put(RunModel(MANIFEST, CTX, bytes(MANIFEST.total_bytes)))
    commander = Commander(made, RUN, served)
    for message in read(core_wire.COMMANDS, data):
        if made.served.get(RUN) is not served:
            break
        total = message.fields.get("total")
        if type(total) is int and total > LARGEST:
            continue
        done(commander.do(message))
    return tuple(heard.ops())


def read(known: Any, data: bytes) -> list[core_wire.Message]:
    """Return the messages of a stream."""
    reader, found, view = core_wire.Reader(known, "ServerApp"), [], memoryview(data)
    while view:
        room = reader.room()
        count = min(len(room), len(view))
        room[:count] = view[:count]
        view = view[count:]
        message = reader.filled(count)
        if message is not None:
            found.append(message)
    return found


def _listed(data: bytes) -> tuple[str, ...]:
    """Play commands that a JSON text lists."""
    try:
        commands = json.loads(data)
    except (ValueError, RecursionError):
        commands = []  # a monster
    known = commands if isinstance(commands, list) else [commands]
    return _commands(b"".join(packed(item) for item in known if isinstance(item, dict)))


def _lists() -> list[bytes]:
    return [json.dumps(COMMANDS).encode(), *(json.dumps([c]).encode() for c in COMMANDS)]


# ---- events --------------------------------------------------------------------------------


def _events(data: bytes) -> int:
    """Read what a core says, and tell a coordinator's ear."""
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        sent = far.send(data) if data else 0
        far.shutdown(socket.SHUT_RDWR)
        client = CoreClient(near, authority().certificate, FEDERATION)
        told = Told()
        while sent:
            for event in client.events(0.0):
                event.give(told, 0.0)  # type: ignore[arg-type]
                sent = len(told.calls)
            if client._reader.between:
                return sent
    return 0


def _some_events() -> list[bytes]:
    counted: dict[str, Any] = {"bytes": {"up": 5, "down": 9}}
    heads = (
        core_wire.head("joined", len(machine().der), node=NODE, resumed=False, **counted)
        + machine().der,
        core_wire.head("message", 4, node=NODE, **counted) + b"abcd",
        core_wire.head("left", node=NODE, **counted),
        core_wire.head("whole", node=NODE, ctx=CTX.hex(), **counted),
        core_wire.head("bad", node=NODE, ctx=CTX.hex(), why="x", attack=True, **counted),
    )
    return [*heads, b"".join(heads)]


# ---- what devices say ----------------------------------------------------------------------


def _enter(data: bytes) -> int:
    made, _ = core()
    stream = made.enter(made.peer(_pem()), data, lambda: None)
    return sum(len(message) for message in stream.outgoing()) > 0


def _up(data: bytes) -> list[str]:
    made, heard = core()
    stream = entered(made)
    done(made.up(stream, data))
    done(made.up(stream, data))
    list(stream.outgoing())
    made.tick()
    return heard.ops()


def _fetch(data: bytes) -> tuple[bytes, int]:
    made, _ = core()
    entered(made)
    made.served[RUN].put(RunModel(bare(MODEL), CTX, MODEL))
    found = made.model(made.peer(_pem()), data)
    assert 0 <= found.offset <= len(found.model)
    return found.digest, found.offset


def _uploaded(data: bytes) -> int:
    """Send one frame of an upload that was granted."""
    made, _ = core()
    stream = entered(made)
    served = made.served[RUN]
    done(Commander(made, RUN, served).do(read(core_wire.COMMANDS, packed(COMMANDS[4]))[0]))
    assert served.sum is not None
    vector = bytes(LAYOUT.total_bytes)
    served.sum.expect(machine().node, sha256(vector).digest())
    upload = Upload(served, stream.session, served.sum, 0)
    served.uploads[machine().node] = upload
    made.frame(upload, data)
    return upload.received


def _some_frames() -> list[bytes]:
    whole = next(frames(Kind.UPLOAD, CTX, bytes(LAYOUT.total_bytes)))
    size = 64
    part = whole[:56] + size.to_bytes(4, "little") + bytes(4) + whole[HEADER : HEADER + size]
    return [whole, part]


def _hellos() -> list[bytes]:
    whole = pb.Hello(run=RUN, ticket=machine().ticket(), certificate=machine().der)
    again = pb.Hello(run=RUN, ticket=machine().ticket(), certificate=machine().der, resume=True)
    return [pb.Up(hello=hello).SerializeToString() for hello in (whole, again)]


def _ups() -> list[bytes]:
    body = pb.ToServer(ctx=CTX, ready=pb.Ready()).SerializeToString()
    ups = (pb.Up(seq=1, message=body), pb.Up(ack=0), pb.Up(seq=1, ack=1, message=b"x"))
    return [up.SerializeToString() for up in ups] + _hellos()


CORE = (
    Parser(
        name="core_wire commands, bytes", errors=(Malformed,), secrets=(KEY,), parse=_commands,
        spare=core_wire._FIRST,
        make=lambda: [packed(c) for c in COMMANDS] + [b"".join(packed(c) for c in COMMANDS)],
    ),
    Parser(
        name="core_commands", form="json", errors=(Malformed,), secrets=(KEY,), parse=_listed,
        make=_lists, spare=4 * LARGEST,
    ),
    Parser(
        name="core_wire events", errors=(Malformed, StateError), parse=_events, make=_some_events,
    ),
    Parser(
        name="core_service.enter", form="protobuf", errors=(Turned,), parse=_enter, make=_hellos,
        secrets=(KEY,),
    ),
    Parser(name="core_service.up", form="protobuf", errors=(Turned,), parse=_up, make=_ups),
    Parser(
        name="core_service.model", form="protobuf", errors=(Turned,), parse=_fetch,
        make=lambda: [pb.FetchRequest(run=RUN, digest=CTX, offset=100).SerializeToString()],
    ),
    Parser(
        name="core_service.frame", errors=(Turned,), parse=_uploaded, make=_some_frames,
    ),
    Parser(
        name="grpc_transfer._offset", errors=(Malformed,),
        make=lambda: [b"0", b"1048576", b"1" * 5000],
        parse=lambda data: _offset((("umbel-offset", data),), 1 << 20),
        again=lambda found: str(found).encode(),
    ),
)  # fmt: skip
