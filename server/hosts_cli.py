"""Several hosts that add up for one core service: `umbel core up --hosts N` and `umbel core wing`.

torchrun starts one process a host, and never again (`--max-restarts 0`): the first is the core
service, the others are wings (core/wing.py). Each has its own ranks, or none. A wing ends when the
core service does; when a wing is lost, the core service ends with one line, for the sums that were
open are lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import service
from .core.ranked_world import RankedWorld
from .core.segments import Shelf
from .core.spread_world import SpreadWorld
from .core.supervisor import check_ranks
from .core.wing import Wing
from .core.world import World
from .core_log import Lines, console
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AT_ONCE = 2
"""Slots of a host's own part: one is filled while another is added."""
_TICK = 0.25


def check_hosts(hosts: int) -> None:
    """Refuse a number of hosts that is none, or more than one without torch.

    Raises:
        SettingsError: As it says.
    """
    if hosts < 1:
        raise SettingsError("--hosts", "1 or more", hosts)
    if hosts > 1 and find_spec("torch") is None:
        move = "pip install 'umbel[torch]', or leave --hosts away"
        raise SettingsError("--hosts", "torch, by which hosts talk", "none", move)


@contextlib.contextmanager
def spread(
    hosts: int, ranks: int, slots: int, folder: Path, say: Callable[[str, str], None]
) -> Iterator[SpreadWorld]:
    """Meet the wings and make the world of all hosts; at its end the wings end too.

    Raises:
        SettingsError: This is not the first process that torchrun started, or there are others
            than so many.
        StateError: They do not meet.
    """
    from .core import torch_hosts  # noqa: PLC0415 - torch is for several hosts only

    with ExitStack() as stack:
        local = stack.enter_context(_local(ranks, folder, say))
        if torch_hosts.join(hosts):
            raise SettingsError("RANK", "0: the core service is the first host's", "another")
        say("hosts", f"{hosts} hosts have met; {os.environ['GLOO_SOCKET_IFNAME']} is not encrypted")
        stack.callback(torch_hosts.leave)
        yield stack.enter_context(closing(SpreadWorld(local, slots, hosts - 1)))


async def all_hosts(world: object) -> None:
    """Wait until a host is lost.

    Raises:
        StateError: One is.
    """
    if not isinstance(world, SpreadWorld):
        await asyncio.Event().wait()
        return
    while world.failure is None:
        await asyncio.sleep(_TICK)
    raise world.failure


def wing(
    ranks: Annotated[int, typer.Option(help="Processes that add up; 0: this one alone.")] = 0,
) -> None:
    """Add up a part of every sum for a core service on another host, until that ends."""
    check_ranks(ranks)
    check_hosts(2)
    from .core import torch_hosts  # noqa: PLC0415 - torch is for several hosts only

    service.no_core_dumps()
    say = Lines(_print, time.monotonic).say
    over, errors = threading.Event(), [StateError("wing", "an end that is said", "another, above")]

    def stop(*_: object) -> None:
        errors.clear()
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="umbel-wing-"))
        local = stack.enter_context(_local(ranks, Path(folder), say))
        if not torch_hosts.join(0):
            raise SettingsError("RANK", "1 or more: 0 is `umbel core up --hosts N`", "0")
        work = Wing(local, torch_hosts.Link(0))
        say("hosts", "the core service is found")
        threading.Thread(target=_serve, args=(work, over, errors), daemon=True).start()
        over.wait()
    if errors:
        raise errors[-1]


def _serve(work: Wing, over: threading.Event, errors: list[StateError]) -> None:
    """Serve; leave no error where process 0 said that it ends."""
    try:
        work.serve()
        errors.clear()
    except StateError as error:
        errors.append(error)
    finally:
        over.set()


@contextlib.contextmanager
def _local(
    ranks: int, folder: Path, say: Callable[[str, str], None]
) -> Iterator[World | RankedWorld]:
    """Make the world of this host's part, in memory that others on this host can map."""
    with closing(Shelf(folder, say)) as shelf:
        if not ranks:
            yield World(_AT_ONCE, shelf.create)
            return
        with closing(RankedWorld(ranks, _AT_ONCE, shelf, say)) as world:
            yield world


def _print(line: str) -> None:
    console(f"wing: {line}")
