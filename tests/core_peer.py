"""What a core socket client meets in tests: a peer that says what the test wants, and an ear."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.protocol.errors import BadCertificate, PeerError
from umbel.server import core_wire
from umbel.strategies.server_rules import FedAvg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from umbel.server.core_client import CoreClient
    from umbel.server.remote_intake import RemoteIntake
    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.robust_rules import Robust

CTX = bytes(range(32))


class Peer:
    """Whatever a test wants to be found behind core.sock, for one connection."""

    def __init__(self, federation: DevFederation, folder: Path) -> None:
        """Listen; the answer to `open` is a good one unless the test changes it."""
        self.folder = folder
        (folder / "ca.pem").write_bytes(federation.ca.read_bytes())
        (folder / "core.json").write_text('{"federation": "tested"}')
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "core.sock"))
        self._listener.listen()
        self.answers: dict[str, Sequence[bytes | None]] = {}
        """What is sent when a command comes; None closes the connection."""
        self.got: list[core_wire.Message] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # the test is over
            self._stream, _ = self._listener.accept()
            self._answer()

    def _answer(self) -> None:
        reader = core_wire.Reader(core_wire.COMMANDS, "client")
        while True:
            count = self._stream.recv_into(reader.room())
            message = reader.filled(count)
            if not count:
                return
            if message is not None:
                self.got.append(message)
                for answer in self.answers.get(message.op, ()):
                    if answer is None:
                        self._stream.close()
                        return
                    self._stream.sendall(answer)

    def say(self, *events: bytes) -> None:
        """Send something by itself."""
        self._stream.sendall(b"".join(events))

    def commands(self, count: int) -> list[core_wire.Message]:
        """Return the commands after `open` when so many have come."""
        end = time.monotonic() + 60
        while len(self.got) <= count:
            assert time.monotonic() < end, self.got
            time.sleep(0.005)
        return self.got[1:]

    def close(self) -> None:
        """End all."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        if hasattr(self, "_stream"):
            self._stream.close()


def opened(federation: DevFederation, **changes: object) -> bytes:
    """Return the answer to `open`."""
    root = x509.load_pem_x509_certificate(federation.ca.read_bytes())
    ca = sha256(root.public_bytes(Encoding.DER)).hexdigest()
    fields: dict[str, Any] = {"port": 443, "names": ["gw", "::1"], "ca": ca, **changes}
    return core_wire.head("opened", **fields)


def intake(
    client: CoreClient, *, secure: bool = True, ctx: bytes = CTX, robust: Robust | None = None
) -> RemoteIntake:
    """Open a sum of 64 bytes."""
    rule = FedAvg(robust=robust)
    manifest = SimpleNamespace(to_json=lambda: "[]")
    layout = SimpleNamespace(
        manifest=manifest, metrics={"eval.loss": 24}, phase="train", total_bytes=64, split=0
    )
    params = SimpleNamespace(value_range=0.5, weight_cap=40)
    plan: Any = SimpleNamespace(
        layout=layout, params=params, secure=secure, stall=2.5, budget=9.5, max_norm=None,
        rule=rule, robust=robust,
    )  # fmt: skip
    codec: Any = SimpleNamespace(members=5)
    return cast("RemoteIntake", client.intake(ctx, plan, codec))


class Told:
    """Takes what a coordinator would be told."""

    def __init__(self, *, known: bool = True, member: bool = True) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._known, self._member = known, member

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))

    def resume_session(self, der: bytes) -> None:
        """Refuse where the session is not known."""
        if not self._known:
            raise PeerError("node", "has no session")
        self.join(der)

    def join(self, der: bytes, *_: float | str) -> None:
        """Refuse who is no member."""
        if not self._member:
            raise BadCertificate("node", "expired")
        self.calls.append(("join", der))
