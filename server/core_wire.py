"""Messages between the ServerApp and the core service, over the Unix socket `core.sock`.

    u32 header bytes · u64 payload bytes · header (JSON object with `op`) · payload

Numbers are little-endian. One connection serves one run, and begins with `open`. Ids and
hashes are hex in headers. Byte counts: every event carries `bytes: {"up": n, "down": n}`, all
that has passed the gateway for this run since the connection opened it: messages, frames of
vectors, frames of models.

| command, ServerApp to core | payload | answer |
|---|---|---|
| `open {run, scheme}` | | `opened {port, names, ca}` |
| `tickets {nodes: [{id, tls_fingerprint}], seconds}` | | `tickets {tickets: {id: hex}}` |
| `put {digest, manifest}` | manifest, of so many bytes, and a model | |
| `publish {digest}` | | |
| `post {node}` | a ToClient | |
| `sum {ctx, total, split, stall, plain, budget?, members?}` | | |
| `expect {node, y_hash}` | | `whole` or `bad`, in time |
| `fold {node}`, `discard {node}` | | |
| `unmask {signs: [1, -1, …]}` | the keys, 32 bytes each | |
| `read {bound}` | | `numbers {void}`, the sum's uint64 words; `void` says what is wrong |
| `step {rule, t, survivors, weight, codec, state}` | | `stepped {…}`, or `void {why}` |
| `save {path}` | | `saved {digest}`: the sum is in a new file, on the disk |
| `load {path, digest, nodes}` | | `loaded {}`: the sum is what `save` wrote, of these nodes |
| `close_sum {}`, `goodbye {node?}` | | |

A connection that begins with `status {}` instead is answered with `status`, whose payload is JSON
(core_view.py), and ends: it serves whoever looks after the server.

`plain` is null where masks are on, else `{manifest, metrics, phase, members, value_range,
weight_cap, max_norm, rule}`: what the firewall needs, and a server step whose robust rule keeps
the messages, or null. Commands of one connection are done in order.

`put` puts a model in force that no step made, and lets members fetch it. `step` makes the next one
out of the open sum (stepping.py): `stepped {digest, path, moments: {name: path}, memory: {name:
bytes}}` names the files in shared memory where it and the step's moments lie, for this user to
map. `publish` puts it in force, and gives the one before up. No model passes the socket else.

| event, core to ServerApp | payload |
|---|---|
| `trust {}` | a Trust: who issues members, and whom it removed |
| `joined {node, resumed, version}` | the signing certificate, DER |
| `left {node}` | |
| `message {node}` | a ToServer |
| `whole {node, ctx}` | |
| `bad {node, ctx, why, attack}` | |
| `progress {ctx, left}`: an upload keeps pace for so many seconds yet | |
| `working {}`: a command takes its time | |
| `error {command, why}` | |

`ctx` is that of the sum: one that was closed meanwhile concerns nobody any more.
After `opened` comes `trust`, as it does whenever that changes, then a `joined` for every session
that is there already: a successor's view.
`error` says that a command was refused; the connection goes on.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ..protocol.documents import read_json
from ..protocol.errors import Malformed
from ..protocol.wire import MAX_ENVELOPE, MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEADER = 1 << 20
MAX_PAYLOAD = 1 << 36
_SIZES = struct.Struct("<IQ")
_FIRST, _GROWTH = 1 << 26, 4
"""Bytes of memory that an announced payload gets at once, and how much more as it comes. Keys are
fewer, so no copy of one is left behind."""
_TEXT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_YEAR = 366 * 86400
_TOGETHER = 1 << 16

COMMANDS: Mapping[str, int] = {
    **dict.fromkeys(("open", "tickets", "sum", "expect", "fold", "discard", "status"), 0),
    **dict.fromkeys(("publish", "read", "step", "save", "load", "close_sum", "goodbye"), 0),
    "put": MAX_PAYLOAD,
    "post": MAX_MESSAGE,
    "unmask": 32 << 20,
}
"""Every command, and the most bytes of payload that come with it."""
EVENTS: Mapping[str, int] = {
    **dict.fromkeys(("opened", "tickets", "left", "whole", "bad", "progress", "error"), 0),
    **dict.fromkeys(("stepped", "void", "saved", "loaded", "working"), 0),
    "status": 16 << 20,
    "joined": 4096,
    "trust": MAX_ENVELOPE,
    "message": MAX_MESSAGE,
    "numbers": 4096,
}
"""Every event and answer, and the most bytes of payload that come with it."""


class Message(NamedTuple):
    """One command or event."""

    op: str
    fields: Mapping[str, Any]
    payload: bytearray


def head(op: str, payload: int = 0, **fields: object) -> bytes:
    """Return what goes before `payload` bytes.

    Raises:
        Malformed: The fields take more than `MAX_HEADER` bytes, or the payload too many.
    """
    text = _TEXT.encode({"op": op, **fields}).encode()
    _check("own message", len(text), payload, MAX_PAYLOAD)
    return _SIZES.pack(len(text), payload) + text


def parts(
    start: bytes, payload: bytes | bytearray | memoryview
) -> tuple[bytes | bytearray | memoryview, ...]:
    """Return what is written, one call a part: each wakes the reader.

    A small payload goes with its head. One that is not `bytes` is not copied: it may hold keys,
    which its owner wipes.
    """
    if isinstance(payload, bytes) and len(payload) <= _TOGETHER:
        return (start + payload,)
    return (start, payload) if payload else (start,)


class Reader:
    """Messages out of a stream, with memory taken only for what the table allows.

        while message is None:
            message = reader.filled(receive_into(reader.room()))

    `room` is where the next bytes go, never beyond the message: one read may fill part of it.
    """

    def __init__(self, known: Mapping[str, int], peer: str) -> None:
        """Read `COMMANDS` or `EVENTS`; `peer` is named in errors."""
        self._known, self._peer = known, peer
        self._begin()

    def _begin(self) -> None:
        self._stage, self._sizes = 0, (0, 0)
        self._fields: dict[str, Any] = {}
        self._buffer, self._got, self._size = bytearray(_SIZES.size), 0, _SIZES.size

    def room(self) -> memoryview:
        """Return where the next bytes go; it is never empty."""
        return memoryview(self._buffer)[self._got :]

    @property
    def between(self) -> bool:
        """Say whether nothing of a next message has come: the stream may end here."""
        return self._stage == 0 and self._got == 0

    def filled(self, count: int) -> Message | None:
        """Note that `count` bytes were written to `room`; return a message that is complete.

        Raises:
            Malformed: A size beyond its limit, or a header that says no known thing.
        """
        self._got += count
        while self._got == len(self._buffer):
            if self._got < self._size:
                self._grow()
            elif self._stage == 0:
                header, payload = _SIZES.unpack(self._buffer)
                _check(self._peer, header, payload, MAX_PAYLOAD)
                self._next(header)
                self._sizes = header, payload
            elif self._stage == 1:
                self._fields = self._header()
                self._next(self._sizes[1])
            else:
                message = Message(self._fields.pop("op"), self._fields, self._buffer)
                self._begin()
                return message
        return None

    def _next(self, size: int) -> None:
        self._stage += 1
        self._buffer, self._got, self._size = bytearray(min(size, _FIRST)), 0, size

    def _grow(self) -> None:
        """Take more memory for what has come and what comes next, not for what was announced."""
        try:
            more = bytearray(min(self._size, _GROWTH * self._got))
        except MemoryError as error:
            raise Malformed(self._peer, "payload", "one with room", self._size) from error
        more[: self._got] = self._buffer
        self._buffer = more

    def _header(self) -> dict[str, Any]:
        try:
            fields = read_json(self._buffer)
        except ValueError as error:
            raise Malformed(self._peer, "header", "JSON", error) from error
        op = fields.get("op") if isinstance(fields, dict) else None
        if not isinstance(op, str) or op not in self._known:
            raise Malformed(self._peer, "op", f"one of {', '.join(self._known)}", repr(op)[:64])
        _check(self._peer, 0, self._sizes[1], self._known[op])
        return dict(fields)


def _check(peer: str, header: int, payload: int, limit: int) -> None:
    if header > MAX_HEADER:
        raise Malformed(peer, "header", f"at most {MAX_HEADER} bytes", header)
    if payload > limit:
        raise Malformed(peer, "payload", f"at most {limit} bytes", payload)


def text(message: Message, name: str, limit: int = 256) -> str:
    """Return a field that is text of 1 to `limit` characters.

    Raises:
        Malformed: It is none; so do the others below.
    """
    value = message.fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        raise Malformed("ServerApp", f"{message.op}.{name}", f"1..{limit} characters", _kind(value))
    return value


def octets(message: Message, name: str, length: int) -> bytes:
    """Return a field that is `length` bytes in hex."""
    return _octets(message.fields.get(name), f"{message.op}.{name}", length)


def _octets(value: object, where: str, length: int) -> bytes:
    try:
        found = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        found = b""
    if len(found) != length:
        raise Malformed("ServerApp", where, f"{length} bytes in hex", _kind(value))
    return found


def node(message: Message) -> str:
    """Return the field `node`, an id as 32 lower-case hex digits."""
    return octets(message, "node", 16).hex()


def count(message: Message, name: str, limit: int = MAX_PAYLOAD) -> int:
    """Return a field that is an integer of 0 to `limit`."""
    value = message.fields.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise Malformed("ServerApp", f"{message.op}.{name}", f"0..{limit}", _kind(value))
    return value


def seconds(message: Message, name: str) -> float:
    """Return a field that is a number of seconds, from 0 to a year."""
    value = message.fields.get(name)
    if isinstance(value, int | float) and 0 <= value <= _YEAR:
        return float(value)
    raise Malformed("ServerApp", f"{message.op}.{name}", "seconds up to a year", _kind(value))


def bearers(message: Message) -> list[tuple[bytes, bytes]]:
    """Return id and TLS fingerprint of each node that `tickets` names."""
    nodes = message.fields.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(item, dict) for item in nodes):
        raise Malformed("ServerApp", "tickets.nodes", "a list of objects", _kind(nodes))
    return [
        (
            _octets(item.get("id"), "tickets.nodes.id", 16),
            _octets(item.get("tls_fingerprint"), "tickets.nodes.tls_fingerprint", 32),
        )
        for item in nodes
    ]


def nodes(message: Message) -> list[str]:
    """Return the ids that `load` names, each once."""
    found = message.fields.get("nodes")
    if not isinstance(found, list) or len(set(map(str, found))) != len(found):
        raise Malformed("ServerApp", f"{message.op}.nodes", "a list of ids", _kind(found))
    return [_octets(item, f"{message.op}.nodes", 16).hex() for item in found]


def signs(message: Message) -> list[int]:
    """Return the signs of `unmask`, one for each 32 bytes of its payload."""
    found = message.fields.get("signs")
    if not isinstance(found, list) or not all(type(n) is int and n in {1, -1} for n in found):
        raise Malformed("ServerApp", "unmask.signs", "a list of 1 and -1", _kind(found))
    if 32 * len(found) != len(message.payload):
        raise Malformed("ServerApp", "unmask", f"{len(found)} keys", f"{len(message.payload)} B")
    return found


def _kind(value: object) -> str:
    """Say what came without repeating it: a header may hold a secret by mistake."""
    return f"{value}" if type(value) in {int, float} else type(value).__name__
