"""`umbel core up`: the core service of one federation on this machine, until it is told to stop.

It needs the federation directory with `ca.pem`, `gateway.pem` and `gateway.key`, holds a lock on
it, and writes there `core.sock` (0600) and `core.json` once it listens. SIGTERM and SIGINT end
it: the listening ends, every session is told, socket and file go away.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from . import allocator, core_stderr, service
from .core.ranked_world import RankedWorld
from .core.segments import Shelf
from .core.supervisor import check_ranks
from .core.world import World
from .core_log import Lines, console
from .core_service import Core
from .core_socket import CoreSocket
from .core_watch import Watched, read_leaf, read_trust
from .federation_files import ISSUING, MEMBERS, leaf_names
from .hosts_cli import all_hosts, check_hosts, spread, wing
from ..host.whole_file import write_whole
from ..protocol.certificates import fingerprint
from ..protocol.errors import SettingsError, StateError
from ..protocol.membership import Membership
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .core.spread_world import SpreadWorld
    from .grpc_gateway import Gateway

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Run the core service of a federation; example: umbel core up --federation DIR",
)

SLOTS, RANKED_SLOTS = 4, 8
"""Vectors in flight for each sum; with ranks half of them may be a batch that is being folded."""
CONNECTIONS = 1500
"""Every member of a large federation; 50 KiB each before anybody knows whose a connection is."""
_TICK = 0.25
_NEARLY = 0.9
_MOVE = "`umbel up` makes a federation directory"


app.command(epilog="Example: torchrun … --no-python umbel core wing --ranks 4")(wing)


@app.command(epilog="Example: umbel core up --federation ~/.local/state/umbel/federations/dev")
def up(
    federation: Annotated[Path, typer.Option(help="Federation directory.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; :: is all, of IPv4 too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 0,
    slots: Annotated[
        int | None, typer.Option(help="Vectors in flight at once, for each sum [4; with ranks 8].")
    ] = None,
    ranks: Annotated[int, typer.Option(help="Processes that add up; 0: this one alone.")] = 0,
    connections: Annotated[int, typer.Option(help="Most connections at once.")] = CONNECTIONS,
    hosts: Annotated[
        int, typer.Option(help="Hosts that add up, started by torchrun; this is the first.")
    ] = 1,
) -> None:
    """Serve devices on one port and ServerApps on `core.sock`, until SIGTERM or Ctrl-C."""
    service.check_listening(port, connections)
    if slots is not None and slots < 1:
        raise SettingsError("--slots", "1 or more", slots)
    check_ranks(ranks)
    check_hosts(hosts)
    about = Federation.read(federation)
    service.raise_file_limit(connections)
    service.no_core_dumps()
    allocator.keep_frames()
    lines = Lines(_print, time.monotonic)
    os.environ["GRPC_VERBOSITY"] = core_stderr.VERBOSITY
    core_stderr.listen(lines.say)
    with _locked(federation), _world(ranks, slots, federation, lines, hosts) as world:
        asyncio.run(serve(about, service.address(host, port), world, connections, lines))


@contextlib.contextmanager
def _world(
    ranks: int, slots: int | None, folder: Path, lines: Lines, hosts: int = 1
) -> Iterator[World | RankedWorld | SpreadWorld]:
    """Make the world that is asked for; at the end its ranks end, and its memory has no name."""
    if hosts > 1:
        with spread(hosts, ranks, slots or RANKED_SLOTS, folder, lines.say) as spread_world:
            yield spread_world
        return
    with contextlib.closing(Shelf(folder, lines.say)) as shelf:
        if not ranks:
            yield World(slots or SLOTS, shelf.create)
            return
        made = RankedWorld(ranks, slots or RANKED_SLOTS, shelf, lines.say, freed=lambda: None)
        with contextlib.closing(made) as world:
            yield world


@dataclass(frozen=True)
class Federation:
    """What the core reads from a federation directory."""

    directory: Path
    name: str
    root: x509.Certificate
    root_pem: bytes
    chain: bytes
    key: bytes
    names: list[str]

    @classmethod
    def read(cls, directory: Path) -> Federation:
        """Read it.

        Raises:
            StateError: A file is missing, or is no certificate, or an expired one.
        """
        try:
            root_pem = (directory / "ca.pem").read_bytes()
            chain = (directory / "gateway.pem").read_bytes()
            key = (directory / "gateway.key").read_bytes()
            root = x509.load_pem_x509_certificate(root_pem)
            leaf = x509.load_pem_x509_certificate(chain)
            names = leaf_names(leaf)
            name = root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value
        except OSError as error:
            where = str(error.filename or directory)
            raise StateError(where, "a readable file", error.strerror, _MOVE) from error
        except (IndexError, *UNREADABLE) as error:
            raise StateError(str(directory), "certificates of a CA and a gateway", error) from error
        service.check_in_force(leaf, directory / "gateway.pem")
        return cls(directory, str(name), root, root_pem, chain, key, names)

    @property
    def ca(self) -> str:
        """SHA-256 of the root certificate, hex."""
        return fingerprint(self.root.public_bytes(Encoding.DER)).hex()


async def serve(
    about: Federation,
    address: str,
    world: World | RankedWorld | SpreadWorld,
    connections: int,
    lines: Lines,
) -> None:
    """Serve until a signal comes.

    Raises:
        StateError: The address or the socket is taken.
    """
    from . import grpc_gateway  # noqa: PLC0415 - grpc waits until it is needed

    core = Core(
        Membership(about.root, about.name),
        about.names[0],
        world,
        clock=time.monotonic,
        wall=lambda: datetime.now(UTC),
        say=lines.say,
        limit=connections,
    )
    if not isinstance(world, World):
        loop = asyncio.get_running_loop()
        world.freed = lambda: _in_loop(loop, core.tick)
    stop = service.told_to_stop()
    gateway, record = grpc_gateway.Gateway(core), about.directory / "core.json"
    try:
        port = await _bound(gateway, about, address, connections)
        files = _watched(about.directory, core, gateway)
        door = CoreSocket(core, about.directory, port, about.names, about.ca)
        listener = door.listen()
        _write_record(record, about, port)
        with suppress(OSError):  # its log is on a full disk: the record is written
            print(f"core service: listening on {address.rpartition(':')[0]}:{port}", flush=True)
        await _until(stop, door.serve(listener), _ticks(core, connections, files), all_hosts(world))
    finally:
        record.unlink(missing_ok=True)
        core.shut_down()
        await gateway.stop()


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Let a call be made in the loop's thread, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


async def _bound(gateway: Gateway, about: Federation, address: str, connections: int) -> int:
    """Let the gateway listen, and return its port."""
    try:
        return await gateway.start(address, (about.key, about.chain), about.root_pem, connections)
    except RuntimeError as error:
        move = "choose another --port"
        raise StateError(address, "an address to listen on", error, move) from error


async def _until(stop: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts until `stop`, or until one of them fails; then end them all."""
    tasks = [asyncio.create_task(part) for part in parts]
    told = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([told, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in [told, *tasks]:
        task.cancel()
    await asyncio.gather(told, *tasks, return_exceptions=True)
    for task in done:
        task.result()


def _watched(directory: Path, core: Core, gateway: Gateway) -> list[Watched]:
    """Return the files that count as they are written: who is a member, and the gateway's leaf."""
    trusted = directory / ISSUING, directory / MEMBERS
    leaf = directory / "gateway.pem", directory / "gateway.key"
    watched = [
        Watched(trusted, lambda: core.trust(read_trust(directory)), core.say),
        Watched(leaf, lambda: gateway.renew(read_leaf(directory, "gateway")), core.say),
    ]
    for files in watched:  # before anybody is let in
        files.look()
    return watched


async def _ticks(core: Core, connections: int, files: list[Watched]) -> None:
    """Let time pass, and say when the connections run out, and when they are free again."""
    at_rest, full = _open_files(), False
    while True:
        core.tick()
        for watched in files:
            watched.look()
        taken = _open_files() - at_rest
        if full is not (taken >= _NEARLY * connections):
            full = not full
            what = "more are closed at once" if full else "there is room again"
            known = f"{core.sessions.count()} sessions among them"
            core.say("connections", f"{taken} of {connections} connections, {known}: {what}")
        await asyncio.sleep(_TICK)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _write_record(path: Path, about: Federation, port: int) -> None:
    """Write core.json whole: whoever reads it finds a service that listens."""
    record = {
        "pid": os.getpid(),
        "port": port,
        "names": about.names,
        "ca_sha256": about.ca,
        "federation": about.name,
    }
    write_whole(path, f"{json.dumps(record)}\n".encode(), 0o644, lasting=False)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process alone."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StateError(
            str(directory), "no other core service", "one that runs", "`umbel down` ends it"
        ) from error
    finally:
        os.close(handle)


def _print(line: str) -> None:
    console(f"core: {line}")
