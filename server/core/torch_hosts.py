"""The processes of several hosts: how they meet, and how one tells another what to do.

    frame = LE32 bytes of the head | head | raw parts, of the sizes that the head names

torchrun starts one process a host; they meet by the variables that it sets (RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT) in a gloo group of torch.distributed. What they say to one another goes by
send and recv: every part of a frame is a tensor of bytes, straight out of and into the memory where
they lie. The head is a JSON object. No object collective is used: those pickle.

Process 0 asks, the others answer, one question at a time; who works longer on an answer says so
every `WORKING_S`, and whoever hears nothing for `SILENCE_S` takes the other for lost. A connection
that closes is a loss at once, and a lost one never comes back.

gloo and the store by which they meet neither encrypt nor know whom they talk to: loopback or a
private network only, and `join` refuses others. Not here: what is said (spread_world.py, wing.py).
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import torch
import torch.distributed as dist

from ...protocol.errors import SettingsError, StateError, VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SILENCE_S = 60.0
"""Seconds without a word after which another host is lost; in so many all must have come."""
WORKING_S = 10.0
"""Seconds between two words of a host that works, and between two of one that has no work."""
MAX_HEAD = 1 << 20
"""Bytes."""
PIECE = 64 << 20
"""Bytes of the largest tensor that is sent: each has `SILENCE_S` to get there."""
_SIZE = struct.Struct("<I")
_INTERFACE = "GLOO_SOCKET_IFNAME"
_MOVE = "start it by torchrun, one process a host"


class Link:
    """One other host."""

    def __init__(
        self, peer: int, lost: Callable[[StateError], None] = lambda _error: None, move: str = ""
    ) -> None:
        """Talk to process `peer`; `lost` is told once when that is over, `move` is what helps."""
        self.peer, self._move = peer, move
        self._lost = lost
        self._failure: StateError | None = None
        self._asking, self._sending = threading.Lock(), threading.Lock()

    def ask(
        self,
        head: dict[str, Any],
        parts: Sequence[memoryview | bytearray] = (),
        into: Sequence[memoryview] = (),
    ) -> dict[str, Any]:
        """Let the other host do something, and return its answer.

        Args:
            head: The command.
            parts: Bytes with it.
            into: What the bytes of the answer are written to, if it has any.

        Raises:
            VoidRound: It says so.
            StateError: It could not do it, or is lost.
        """
        with self._asking:
            self.say(head, parts)
            while (answer := self.hear())["op"] == "working":
                pass
            if answer["sizes"]:
                self.take(answer, into)
        if answer["op"] == "void":
            raise VoidRound(answer["why"])
        if answer["op"] != "done":
            raise StateError(f"host {self.peer}", f"{head['op']} done", answer["why"])
        return answer

    def try_ask(self, head: dict[str, Any]) -> None:
        """Ask, and let it be if the other host is lost: whoever owns the link is told."""
        with suppress(StateError):
            self.ask(head)

    def end(self) -> None:
        """Say that there is nothing more to be asked."""
        with self._asking, suppress(StateError):
            self.say({"op": "bye"})

    def say(self, head: dict[str, Any], parts: Sequence[memoryview | bytearray] = ()) -> None:
        """Send a frame.

        Raises:
            StateError: The other host is lost, or the head is too large.
        """
        data = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
        if len(data) > MAX_HEAD:
            raise StateError(f"host {self.peer}", f"a head of at most {MAX_HEAD} bytes", len(data))
        with self._sending, self._or_lost():
            for part in (bytearray(_SIZE.pack(len(data))), bytearray(data), *parts):
                for piece in _pieces(memoryview(part)):
                    dist.send(_tensor(piece), self.peer)

    def hear(self) -> dict[str, Any]:
        """Return the head of the next frame; `take` must take its parts, if it has any.

        Raises:
            StateError: The other host is lost, or says what is no frame.
        """
        with self._or_lost():
            data = bytearray(_SIZE.size)
            dist.recv(_tensor(memoryview(data)), self.peer)
            (size,) = _SIZE.unpack(data)
            if not 0 < size <= MAX_HEAD:
                raise ValueError("no frame")
            data = bytearray(size)
            dist.recv(_tensor(memoryview(data)), self.peer)
            head: dict[str, Any] = json.loads(data)
        return head

    def take(self, head: dict[str, Any], into: Sequence[memoryview]) -> None:
        """Write the parts of the frame with this head to memory of the caller.

        Raises:
            StateError: The other host is lost, or its parts have other sizes.
        """
        with self._or_lost():
            if head["sizes"] != [len(view) for view in into]:
                raise ValueError("parts of other sizes")
            for view in into:
                for piece in _pieces(view):
                    dist.recv(_tensor(piece), self.peer)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Say every `WORKING_S` that an answer takes its time."""
        over = threading.Event()

        def say() -> None:
            with suppress(StateError):  # whoever hears next is told
                while not over.wait(WORKING_S):
                    self.say({"op": "working"})

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Take every error of the group for the other's end."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            why = _in_words(str(error))
            self._failure = StateError(f"host {self.peer}", "a host that answers", why, self._move)
            self._lost(self._failure)
            raise self._failure from error


def join(hosts: int) -> int:
    """Meet the processes of the other hosts and return this one's number.

    Args:
        hosts: How many there must be; 0 takes what torchrun says.

    Raises:
        SettingsError: torchrun has not said how, or says another number of hosts; or the hosts
            would meet in a network that is not private.
        StateError: They do not meet.
    """
    rank, world, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    address = os.environ.get("MASTER_ADDR", "")
    if world != (hosts or world) or not 0 <= rank < world or world < 2:  # noqa: PLR2004
        raise SettingsError("--hosts", f"{hosts or '2 or more'}, as torchrun says", world, _MOVE)
    os.environ[_INTERFACE] = private_interface(address, port, os.environ.get(_INTERFACE, ""))
    silence = timedelta(seconds=SILENCE_S)
    try:
        dist.init_process_group("cpu:gloo", timeout=silence)
    except (RuntimeError, ValueError) as error:
        raise StateError(f"{address}:{port}", f"{world} hosts", _in_words(str(error))) from error
    return rank


def leave() -> None:
    """Let the group go."""
    dist.destroy_process_group()


def private_interface(address: str, port: int, name: str = "") -> str:
    """Return the network interface by which hosts meet at `address`; `name` is the wanted one.

    Raises:
        SettingsError: It, or the address, is public, or not there.
    """
    try:
        family, kind, _, _, there = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing: it asks for the way
            here = probe.getsockname()[0]
    except (OSError, IndexError) as error:
        raise SettingsError("MASTER_ADDR", "an address that can be reached", address) from error
    _check_private("MASTER_ADDR", str(there[0]))
    found = psutil.net_if_addrs()
    by_way = [one for one, about in found.items() if here in {each.address for each in about}]
    interface = name or next(iter(by_way), "lo")
    own = [each.address for each in found.get(interface, []) if each.family == family]
    if not own:
        raise SettingsError(_INTERFACE, "an interface of this host", interface)
    for each in own:
        _check_private(_INTERFACE, each)
    return interface


def _check_private(what: str, address: str) -> None:
    about = ipaddress.ip_address(address.partition("%")[0])
    if not (about.is_private or about.is_loopback or about.is_link_local):
        why = "loopback or a private network: nothing is encrypted there"
        raise SettingsError(what, why, address)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not re.fullmatch(r"\d{1,6}", text):
        raise SettingsError(name, "a number that torchrun sets", text or "none", _MOVE)
    return int(text)


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), PIECE):
        yield view[start : start + PIECE]


def _tensor(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def _in_words(text: str) -> str:
    """Say what gloo says, without its places in the source."""
    lower = text.lower()
    if "closed" in lower or "reset" in lower or "refused" in lower:
        return "a connection that was closed"
    if "timed out" in lower:
        return f"silence for {SILENCE_S:.0f} s"
    return text.partition("\n")[0][:200]
