"""The ServerApp's end of `core.sock`: commands out, events in, and the intake of vectors.

One connection serves one run (core_wire.py). The coordinator stays what it is: `post` and
`publish` send commands, remote_intake.py stands where the embedded core's intake would, and every
event of the socket becomes one call of the coordinator. Vectors never come here, nor do models: the
one that the core has stepped is mapped, read-only, from where it lies in shared memory.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from . import core_wire
from .core.run_model import block_bytes
from .core.segments import Segment
from .core_events import Event
from .remote_intake import RemoteIntake
from .stepping import Stepped
from ..protocol.documents import read_json
from ..protocol.errors import Malformed, PeerError, Refused, StateError, VoidRound
from ..protocol.manifest import Manifest
from ..protocol.membership import Membership
from ..protocol.verification import UNREADABLE
from ..protocol.wire import parse_trust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ingest import Intake
    from .invitation import Plan
    from .stepping import StepOrder
    from ..protocol.codec import Codec

SOCKET = "core.sock"
ANSWER_S = 60.0
"""How long the core may say nothing while a command that asks something is done, or inside of a
message; one that works says so."""
_PIECE = 64 << 20
"""Bytes of a model that must have left within that time."""
WORDS = 512
"""Most characters of what the core says of a sum that are taken over."""
_WHO = "core"
_MOVE = "start the core service: `umbel core up`, or `umbel up`"


class CoreLost(StateError):
    """The connection to the core service broke; another one may be there soon."""


class CoreClient:
    """The open connection of one run."""

    clean = False
    """What the core's moments are worth is known there."""

    def __init__(self, connection: socket.socket, root: x509.Certificate, name: str) -> None:
        """Made by `open`, for the federation `name` with this root."""
        self._socket = connection
        self._reader = core_wire.Reader(core_wire.EVENTS, _WHO)
        self._events: deque[core_wire.Message] = deque()
        self._up = self._down = 0
        self._counted = (0, 0)
        self.open_sum: RemoteIntake | None = None
        """Where the vectors of the attempt in progress go, from `intake` until its `close`."""
        self.elsewhere: dict[str, str] = {}
        """Node ids, hex, with the other run of which each had a session when its last ticket was
        made; nothing where it had none."""
        self.run = self.gateway = ""
        self._manifest = Manifest(())
        self.ca = sha256(root.public_bytes(Encoding.DER)).digest()
        self._membership = Membership(root, name)
        self.verifier = self._membership.verifier

    @classmethod
    def open(cls, federation: Path, run: str, scheme: str) -> Self:
        """Connect and open the run at the core.

        Raises:
            StateError: No core service listens there, it has another CA, or refuses the run.
            Malformed: Its answer is none.
        """
        root, name = _root_of(federation), _federation_of(federation)
        path = federation / SOCKET
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise StateError(str(path), "the core service", error.strerror, _MOVE) from error
        client = cls(connection, root, name)
        try:
            client._begin(run, scheme, path)
        except BaseException:
            connection.close()
            raise
        return client

    def _begin(self, run: str, scheme: str, path: Path) -> None:
        opened = self._ask(("opened",), "open", run=run, scheme=scheme).fields
        names, port = opened.get("names"), opened.get("port")
        name = names[0] if isinstance(names, list) and names else None
        if not isinstance(name, str) or type(port) is not int:
            raise Malformed(_WHO, "opened", "names and port of the gateway", "others")
        if opened.get("ca") != self.ca.hex():
            move = "restart the core service: the federation's CA was made anew"
            raise StateError(str(path), f"CA {self.ca.hex()[:16]}", opened.get("ca"), move)
        self.run, self.gateway = run, f"{name}:{port}"

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connection; without `goodbye` the sessions wait for a successor."""
        self._socket.close()

    # -- commands ---------------------------------------------------------------------------

    def post(self, node: str, data: bytes) -> None:
        """Send a message to a node."""
        self._send("post", data, node=node)

    def put(self, manifest: Manifest, digest: bytes, packed: bytearray) -> None:
        """Put a model in force that no step made, and let members fetch it."""
        about = manifest.to_json().encode()
        self._manifest = manifest
        self._send("put", about, packed, digest=digest.hex(), manifest=len(about))

    def publish(self, digest: bytes) -> None:
        """Put the model that was stepped last in force, and let members fetch it."""
        self._send("publish", digest=digest.hex())

    def read(self, bound: int) -> tuple[bytearray, str]:
        """Freeze the open sum; return its numbers, and what is wrong with its codes if anything."""
        answer = self._ask(("numbers",), "read", bound=bound)
        return answer.payload, str(answer.fields.get("void", ""))[:WORDS]

    def step(self, order: StepOrder) -> Stepped:
        """Let the core make the next model out of the open sum, and map it.

        Raises:
            VoidRound: It cannot; the model in force is what it was.
        """
        answer = self._ask(("stepped", "void"), "step", **order.described())
        fields = answer.fields
        if answer.op == "void":
            raise VoidRound(str(fields.get("why"))[:WORDS])
        digest, moments, memory = (fields.get(key) for key in ("digest", "moments", "memory"))
        if not isinstance(moments, dict) or set(moments) != set(order.rule.moments):
            raise Malformed(_WHO, "stepped.moments", f"{order.rule.moments}", "others")
        return Stepped(
            _hash("stepped.digest", digest),
            self._mapped(fields.get("path")),
            {name: self._mapped(path) for name, path in moments.items()},
            dict(memory) if isinstance(memory, dict) else {},
        )

    def _mapped(self, path: object) -> memoryview:
        """Map what the core has in shared memory; it is let go of with the last view of it."""
        if not isinstance(path, str) or not path.startswith("/"):
            raise Malformed(_WHO, "stepped", "paths of shared memory", type(path).__name__)
        segment = Segment.attach(Path(path), block_bytes(self._manifest), write=False)
        return segment.view[: self._manifest.total_bytes]

    def tickets(self, bearers: Sequence[tuple[str, str]], seconds: float) -> dict[str, bytes]:
        """Return a ticket for each (node id, TLS fingerprint), both hex.

        Raises:
            Malformed: The core answers with others.
        """
        nodes = [{"id": node, "tls_fingerprint": print_} for node, print_ in bearers]
        answer = self._ask(("tickets",), "tickets", nodes=nodes, seconds=seconds)
        found: Any = answer.fields.get("tickets")
        try:
            made = {node: bytes.fromhex(found[node]) for node, _ in bearers}
        except (KeyError, TypeError, ValueError) as error:
            raise Malformed(_WHO, "tickets", "one for each node, in hex", "others") from error
        self.elsewhere |= dict.fromkeys(made, "") | _busy(answer.fields.get("busy", {}))
        return made

    def goodbye(self, node: str | None = None) -> None:
        """End every session of the run, or one node's, after what was posted before."""
        self._send("goodbye", node=node)

    def intake(self, ctx: bytes, plan: Plan, codec: Codec) -> Intake:
        """Open an attempt's sum at the core."""
        layout, params = plan.layout, plan.params
        plain = None
        if not plan.secure:
            plain = {
                "manifest": layout.manifest.to_json(),
                "metrics": dict(layout.metrics),
                "phase": layout.phase,
                "members": codec.members,
                "value_range": params.value_range,
                "weight_cap": params.weight_cap,
                "max_norm": plan.max_norm,
                "rule": plan.rule.described() if plan.rule and plan.robust else None,
            }
        self._send(
            "sum",
            ctx=ctx.hex(),
            total=layout.total_bytes,
            split=layout.split,
            stall=plan.stall,
            budget=plan.budget,
            members=codec.members,
            plain=plain,
        )
        self.open_sum = RemoteIntake(self, ctx)
        return self.open_sum

    # -- events -----------------------------------------------------------------------------

    def events(self, seconds: float) -> list[Event]:
        """Return the events that have come, waiting up to `seconds` for the first.

        Raises:
            StateError: The core service has gone away, or refused a command.
            Malformed: It sent something else than an event.
        """
        if not self._events:
            self._read(seconds)
        found = [Event(message, self) for message in self._events]
        self._events.clear()
        return found

    def traffic(self) -> tuple[int, int]:
        """Return the bytes up and down that passed the gateway since the last call."""
        up, down = self._up - self._counted[0], self._down - self._counted[1]
        self._counted = self._up, self._down
        return up, down

    def _read(self, seconds: float) -> None:
        """Read what is there, waiting for the first bytes only."""
        deadline = time.monotonic() + seconds
        while not self._events or not self._reader.between:
            left = deadline - time.monotonic()
            self._socket.settimeout(max(left, 1e-4) if self._reader.between else ANSWER_S)
            try:
                count = self._socket.recv_into(self._reader.room())
            except TimeoutError as error:
                if self._reader.between:
                    return
                rest = f"the rest of a message in {ANSWER_S:.0f} s"
                raise CoreLost(SOCKET, rest, "nothing", _MOVE) from error
            except OSError as error:
                raise CoreLost(SOCKET, "the core service", error.strerror, _MOVE) from error
            if count == 0:
                raise CoreLost(SOCKET, "the core service", "its connection closed", _MOVE)
            message = self._reader.filled(count)
            if message is not None:
                self._keep(message)
                deadline = min(deadline, time.monotonic())

    def _keep(self, message: core_wire.Message) -> None:
        count = message.fields.get("bytes")
        if count is not None:
            up, down = (count.get("up"), count.get("down")) if isinstance(count, dict) else (-1, -1)
            if type(up) is not int or type(down) is not int or min(up, down) < 0:
                raise Malformed(_WHO, "bytes", "counts up and down", "others")
            self._up, self._down = up, down
        if message.op == "error":
            why = message.fields.get("why")
            command = message.fields.get("command")
            raise StateError(f"core: {command}", "to be done", why, "see the core's log")
        if message.op == "trust":
            self._trust(bytes(message.payload))
        else:
            self._events.append(message)

    def _trust(self, data: bytes) -> None:
        """Go by what the core relays; a list that has expired since is in its log, not in ours."""
        trust = parse_trust(data, _WHO)
        self._membership.learn(trust.issuing)
        if trust.members:
            with suppress(Refused):
                self._membership.take(trust.members, datetime.now(UTC))

    def _send(self, op: str, *payload: bytes | bytearray, **fields: object) -> None:
        self._socket.settimeout(ANSWER_S)
        try:
            head = core_wire.head(op, sum(map(len, payload)), **fields)
            first, *rest = payload or (b"",)
            for part in (*core_wire.parts(head, first), *rest):
                for start in range(0, len(part), _PIECE):
                    self._socket.sendall(memoryview(part)[start : start + _PIECE])
        except OSError as error:
            raise CoreLost(SOCKET, "the core service", str(error), _MOVE) from error

    def _ask(self, answers: tuple[str, ...], op: str, **fields: object) -> core_wire.Message:
        """Send a command and return its answer; events that come meanwhile are kept."""
        self._send(op, **fields)
        deadline = time.monotonic() + ANSWER_S
        kept: list[core_wire.Message] = list(self._events)
        self._events.clear()
        while time.monotonic() < deadline:
            self._read(1.0)
            while self._events:
                message = self._events.popleft()
                if message.op == "working":
                    deadline = time.monotonic() + ANSWER_S
                    continue
                if message.op in answers:
                    self._events.extendleft(reversed(kept))
                    return message
                kept.append(message)
        raise CoreLost(SOCKET, f"an answer to `{op}` in {ANSWER_S:.0f} s", "none", _MOVE)

    def save(self, path: Path) -> bytes:
        """Let the core write the open sum to a new file; return its SHA-256.

        Raises:
            StateError: The disk takes no more.
        """
        digest = self._ask(("saved",), "save", path=str(path)).fields.get("digest")
        return _hash("saved.digest", digest)

    def load(self, path: Path, digest: bytes, nodes: Sequence[str]) -> None:
        """Let the core take the sum of these nodes from a file.

        Raises:
            PeerError: It is not there, or is another.
        """
        try:
            self._ask(("loaded",), "load", path=str(path), digest=digest.hex(), nodes=list(nodes))
        except CoreLost:
            raise
        except StateError as error:
            raise PeerError(_WHO, f"cannot take a sum up again: {error}") from error

    def command(self, op: str, payload: bytes | bytearray = b"", **fields: object) -> None:
        """Send a command of the open sum."""
        self._send(op, payload, **fields)


def _hash(where: str, said: object) -> bytes:
    """Return a hash that the core says in hex."""
    try:
        return bytes.fromhex(said if isinstance(said, str) else "?")
    except ValueError as error:
        raise Malformed(_WHO, where, "a hash in hex", type(said).__name__) from error


def _busy(found: object) -> dict[str, str]:
    """Return which node has a session of which other run.

    Raises:
        Malformed: The core says something else.
    """
    if not isinstance(found, dict) or not all(isinstance(run, str) for run in found.values()):
        raise Malformed(_WHO, "busy", "runs by node", "others")
    return found


def _root_of(directory: Path) -> x509.Certificate:
    """Return the federation's root certificate."""
    path = directory / "ca.pem"
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise StateError(str(path), "the federation's root certificate", error, _MOVE) from error


def _federation_of(directory: Path) -> str:
    """Return the federation's name, as its certificates carry it."""
    path = directory / "core.json"
    try:
        return str(read_json(path.read_bytes())["federation"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(str(path), "what the core service wrote", error, _MOVE) from error
