"""What a ServerApp may ask of the core service: one small function for each command.

The table `COMMANDS` is the list of core_wire.py. Commands of one connection are done one after
another; work on large buffers goes to a thread, so that other runs and all sessions live on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import core_wire as wire
from .core.kept import Keeping
from .core.run_model import RunModel
from .core_sum import CoreSum
from .firewall import Firewall
from .ingest import Shape
from .moment_file import STATE_FILE
from .open_round import SUFFIX, SUM
from .stepping import in_words, order_of
from ..protocol import tickets
from ..protocol.codec import Codec
from ..protocol.entropy import os_entropy, random_bytes, wipe
from ..protocol.errors import (
    Malformed,
    PeerError,
    RoundFailed,
    SettingsError,
    StateError,
    UmbelError,
)
from ..protocol.layout import MessageLayout
from ..protocol.manifest import MAX_JSON, Manifest
from ..strategies.robust_rules import kernels
from ..strategies.server_rules import rule_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .core_service import Core
    from .served import Served

HEAVY = 8 << 20
"""Bytes from which arithmetic on a buffer is done in a thread."""
WORKING_S = 10.0
"""A ServerApp that waits for an answer hears that often that there will be one."""
MOST_CODE = 2**31 - 1
T = TypeVar("T")
_WHO = "ServerApp"


class Commander:
    """The commands of one connection, for one run."""

    def __init__(self, core: Core, run: str, served: Served) -> None:
        """Act on `served`, which is what the core holds for `run`."""
        self.core, self.run, self.served = core, run, served
        self._outlet = served.outlet

    async def do(self, message: wire.Message) -> None:
        """Do one command; what is wrong with it is answered with `error`."""
        try:
            await _DO[message.op](self, message)
        except UmbelError as error:
            self._answer("error", command=message.op, why=str(error))
        self.served.pump(self.core.clock())

    async def tickets(self, message: wire.Message) -> None:
        """Mint a ticket for each certificate that is named."""
        lives = wire.seconds(message, "seconds")
        expires = int(self.core.steady().timestamp() + lives)
        minted = {}
        for node_id, fingerprint in wire.bearers(message):
            ticket = tickets.Ticket(
                run=self.run,
                node_id=node_id,
                tls_fingerprint=fingerprint,
                gateway=self.core.gateway,
                expires=expires,
                nonce=bytes(random_bytes(tickets.NONCE_BYTES, os_entropy)),
            )
            minted[node_id.hex()] = tickets.mint(self.served.key, ticket).hex()
            self.core.sessions.welcome_back(self.run, node_id.hex())
        busy = {node: self.core.sessions.elsewhere(self.run, node) for node in minted}
        self._answer("tickets", tickets=minted, busy={n: run for n, run in busy.items() if run})

    async def put(self, message: wire.Message) -> None:
        """Put a model in force that no step made."""
        digest, payload = wire.octets(message, "digest", 32), memoryview(message.payload)
        end = wire.count(message, "manifest", min(MAX_JSON, len(payload)))
        manifest, packed = Manifest.from_json(bytes(payload[:end]), _WHO), payload[end:]
        if len(packed) != manifest.total_bytes:
            raise Malformed(_WHO, "put", f"{manifest.total_bytes} bytes", len(packed))
        made = await self._meanwhile(
            asyncio.to_thread, RunModel, manifest, digest, packed, self.core.world.make
        )
        if self.current:
            self.served.put(made)
        else:
            made.close()

    async def publish(self, message: wire.Message) -> None:
        """Put the model that was stepped in force."""
        self._model().adopt(wire.octets(message, "digest", 32))

    async def post(self, message: wire.Message) -> None:
        """Send a message to a node."""
        node, payload = wire.node(message), bytes(message.payload)
        self.served.posted(payload)
        self.core.sessions.post(self.run, node, payload)

    async def sum(self, message: wire.Message) -> None:
        """Open a sum; one that is open is closed."""
        ctx = wire.octets(message, "ctx", 32)
        shape = Shape(
            wire.count(message, "total"),
            wire.count(message, "split"),
            wire.seconds(message, "stall"),
            wire.seconds(message, "budget") if "budget" in message.fields else 0.0,
            wire.count(message, "members") if "members" in message.fields else 1,
        )
        plain = message.fields.get("plain")
        check = None if plain is None else plain_check(plain, shape)
        if plain is not None and shape.split:
            shape = shape._replace(keeping=plain_keeping(plain))
        if shape.keeping is not None:
            self.core.say_once("robust", kernels(1)[1])
        self.core.close_sum(self.served)
        try:
            self.served.sum = CoreSum(self.core.world, ctx, shape, check, self._answer)
        except MemoryError as error:
            raise StateError("core", f"memory for sums of {shape.total} bytes", "less") from error

    async def expect(self, message: wire.Message) -> None:
        """Let a node upload."""
        self._sum().expect(wire.node(message), wire.octets(message, "y_hash", 32))

    async def fold(self, message: wire.Message) -> None:
        """Add a whole vector to the sum."""
        found, node = self._sum(), wire.node(message)
        if (
            found.shape.total < HEAVY and found.shape.keeping is None
        ):  # else it may be compiled first
            found.fold(node)
        else:
            await self._done(found, found.fold, node)

    async def discard(self, message: wire.Message) -> None:
        """Forget a node."""
        if self.served.sum is not None:
            self.served.sum.discard(wire.node(message))

    async def unmask(self, message: wire.Message) -> None:
        """Take the masks off the sum; the keys are wiped."""
        found, keys = self._sum(), message.payload
        streams = [
            (keys[32 * place : 32 * place + 32], sign)
            for place, sign in enumerate(wire.signs(message))
        ]
        found.frozen = True  # before the thread begins: no frame comes in beside it
        try:
            await self._done(found, found.unmask, streams)
        finally:
            wipe(keys, *(key for key, _ in streams))

    async def read(self, message: wire.Message) -> None:
        """Answer with what the frozen sum says beside the update."""
        found, bound = self._sum(), wire.count(message, "bound", MOST_CODE)
        found.frozen = True
        why = await self._done(found, found.wrong, bound)
        self._answer("numbers", found.numbers(), void=why)

    async def step(self, message: wire.Message) -> None:
        """Make the next model out of the frozen sum."""
        found, model = self._sum(), self._model()
        order = order_of(message.fields, model.manifest, _WHO)
        if order.layout.split != found.shape.split:
            raise Malformed(_WHO, "step", f"{order.layout.split} bytes of codes", found.shape.split)
        keeping = found.shape.keeping
        if order.rule.robust != (None if keeping is None else keeping.robust):
            raise Malformed(_WHO, "step.rule", "the robust rule of the open sum", "another")
        if order.state is not None:
            _state_file(order.state.path)
        try:
            digest = await self._done(found, found.step, model, order)
        except RoundFailed as error:
            self._answer("void", why=str(error))
            return
        self._answer(
            "stepped",
            digest=digest.hex(),
            path=str(model.made.path),
            moments={name: str(block.path) for name, block in model.moments.items()},
            memory=(memory := self.served.memory()),
        )
        if memory != self.served.told:
            self.served.told = memory
            self.core.say("memory", f"run {self.run}: {in_words(memory)}")

    async def save(self, message: wire.Message) -> None:
        """Write the frozen sum to a new file in the folder of an open round."""
        found, path = self._sum(), _sum_file(message)
        try:
            digest = await self._done(found, found.save, path)
        except OSError as error:
            raise StateError(str(path), "a sum on the disk", error.strerror) from error
        self._answer("saved", digest=digest.hex())

    async def load(self, message: wire.Message) -> None:
        """Go on with the sum that an earlier core service wrote."""
        found, path = self._sum(), _sum_file(message)
        digest, nodes = wire.octets(message, "digest", 32), wire.nodes(message)
        await self._done(found, found.load, path, digest, nodes)
        self._answer("loaded")

    async def close_sum(self, _: wire.Message) -> None:
        """Give the slots back."""
        self.core.close_sum(self.served)

    async def goodbye(self, message: wire.Message) -> None:
        """Dismiss one node, or everybody: then the run is over."""
        if message.fields.get("node") is None:
            self.core.end_run(self.run)
        else:
            self.core.sessions.goodbye(self.run, self.core.clock(), wire.node(message))

    async def open(self, _: wire.Message) -> None:
        """Refuse: a connection serves one run, from its first command on."""
        raise Malformed(_WHO, "open", "once a connection", "again")

    async def status(self, _: wire.Message) -> None:
        """Refuse: who only looks has a connection of his own."""
        raise Malformed(_WHO, "status", "on a connection of its own", "within a run's")

    @property
    def current(self) -> bool:
        """Whether this connection is still the run's: a successor gets no answer to its commands.

        A command that works in a thread may end after another ServerApp has taken the run over.
        """
        here = self.core.served.get(self.run) is self.served
        return here and self.served.outlet is self._outlet

    def _answer(self, op: str, payload: bytes | memoryview = b"", **fields: object) -> None:
        if self.current:
            self.core.emit(self.run, op, payload, **fields)

    async def _done(self, found: CoreSum, work: Callable[..., T], *arguments: object) -> T:
        """Do arithmetic on a sum in a thread."""
        return await self._meanwhile(found.in_thread, work, *arguments)

    async def _meanwhile(self, work: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Do what takes its time, saying now and then that it goes on."""
        beating = asyncio.create_task(self._beat())
        try:
            return await work(*arguments)
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(WORKING_S)
            self._answer("working")

    def _model(self) -> RunModel:
        if self.served.model is None:
            raise PeerError(_WHO, "has put no model in force")
        return self.served.model

    def _sum(self) -> CoreSum:
        if self.served.sum is None:
            raise PeerError(_WHO, "no sum is open")
        return self.served.sum


_DO: Mapping[str, Callable[[Commander, wire.Message], Awaitable[None]]] = {
    op: getattr(Commander, op) for op in wire.COMMANDS
}


def _sum_file(message: wire.Message) -> Path:
    """Return the file that `save` and `load` name: in the folder of an open round, nowhere else."""
    path = Path(wire.text(message, "path", 4096))
    if not path.is_absolute() or path.parent.suffix != SUFFIX or path.name != SUM:
        raise Malformed(_WHO, f"{message.op}.path", f"/.../NAME{SUFFIX}/{SUM}", "another path")
    return path


def _state_file(path: Path) -> None:
    """Refuse a file of moments that is not in the folder of a round."""
    folder = path.parent
    if path.name != STATE_FILE or folder.parent.name != "rounds" or not folder.name.isdigit():
        raise Malformed(_WHO, "step.state", f"/.../rounds/NUMBER/{STATE_FILE}", "another path")


def plain_check(plain: Any, shape: Shape) -> Callable[[str, memoryview], None]:
    """Return the firewall's check of an unmasked vector, out of what `sum` says.

    Raises:
        Malformed, SettingsError: What it says is none, or does not fit the sizes.
    """
    if not isinstance(plain, dict):
        raise Malformed(_WHO, "sum.plain", "an object or null", type(plain).__name__)
    try:
        manifest = Manifest.from_json(plain["manifest"], _WHO)
        layout = MessageLayout(manifest, plain["metrics"], plain["phase"])
        codec = Codec(plain["members"], plain["value_range"], plain["weight_cap"])
        firewall = Firewall(
            manifest, max_norm=plain["max_norm"], weight_cap=int(plain["weight_cap"])
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(_WHO, f"sum.plain: {type(error).__name__} {error}") from error
    if (layout.total_bytes, layout.split) != shape[:2]:
        raise SettingsError("sum.plain", f"sizes {shape[:2]}", (layout.total_bytes, layout.split))
    return lambda node, slot: firewall.check_message(node, slot, layout, codec)


def plain_keeping(plain: Mapping[str, Any]) -> Keeping | None:
    """Return why messages are kept, out of a description that `plain_check` has passed.

    Raises:
        Malformed, SettingsError: Its rule is none.
    """
    said = plain.get("rule")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise Malformed(_WHO, "sum.plain.rule", "an object or null", type(said).__name__)
    robust = rule_of(said).robust
    if robust is None:
        return None
    return Keeping(robust, Codec(plain["members"], plain["value_range"], plain["weight_cap"]))
