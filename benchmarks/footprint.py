"""What a device needs beside the user's code: memory and start-up time, beside Flower's.

    base/import    seconds of `import umbel` and of what a device's session with a numpy task needs
    base/rss       resident memory of that process afterwards
    torch/…        the same with a torch task
    base/disk      files of a base installation, with all that it requires (install_size.py)
    node/pss       a device between two rounds: the session's process and the child with the task;
                   shared pages count in shares (PSS)
    agent/pss      a device of which nothing is wanted: agent, SuperNode and SuperExec, which run
                   for months (flower_agent.py)
    agent/own      of that the agent alone
    agent/cpu      processor time of the three in an hour; 36 s are 1 % of a core

Every figure is of a fresh process with a warm file cache. The peer is `import flwr.clientapp`, and
for the node and the agent Flower's idle SuperNode with its SuperExec. The limit is what the needed
libraries cost alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from . import flower_agent as idle
from . import flower_footprint as flower
from .install_size import install_mib
from .process_memory import MIB, proportional
from .record import Measurement, interleave
from ..protocol.errors import SettingsError, StateError
from ..simulation.new import Kind, create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BASE = (
    "umbel",
    "umbel.clients.session",
    "umbel.clients.update",
    "umbel.clients.policy",
    "umbel.clients.journal",
    "umbel.strategies.trainer",
    "umbel.strategies.numpy_task",
)
TORCH = (*BASE, "umbel.strategies.torch_task")
FRAMEWORK = "torch"
LIBRARIES = (
    "numpy",
    "cryptography.x509.verification",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "google.protobuf.message",
)
_PROGRAM = """
import importlib, json, sys, time
start = time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.perf_counter() - start
status = open("/proc/self/status").read()
print(json.dumps([seconds, int(status.partition("VmRSS:")[2].split()[0]) * 1024]))
"""


class Fresh(NamedTuple):
    """A new process after its imports."""

    seconds: float
    resident: int


def run(
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
    supernode: Annotated[
        bool, typer.Option(help="Start Flower's SuperNode too, as the node's peer.")
    ] = True,
    agent: Annotated[
        bool, typer.Option(help="Measure an agent before a real server too; 45 s a run.")
    ] = True,
) -> Iterator[Measurement]:
    """Yield every case."""
    if runs < 1:
        raise SettingsError("--runs", "1 or more", runs)
    yield from _imports("base", BASE, (flower.CLIENT,), LIBRARIES, runs)
    if find_spec(FRAMEWORK) is None:
        reason = "torch is not installed; `pip install umbel[torch]`"
        yield Measurement(bench="footprint", case="torch/rss", unit="MiB", absent=reason)
        yield Measurement(bench="footprint", case="torch/import", unit="s", absent=reason)
    else:
        peer, least = (flower.CLIENT, FRAMEWORK), (*LIBRARIES, FRAMEWORK)
        yield from _imports("torch", TORCH, peer, least, runs)
    yield _disk()
    yield _node(runs, supernode)
    if agent and flower.AVAILABLE:
        yield from _agent(runs, supernode)


def _disk() -> Measurement:
    """Return `base/disk`."""
    return Measurement(
        bench="footprint",
        case="base/disk",
        unit="MiB",
        samples=[install_mib("umbel")],
        peer=[install_mib("flwr")],
        peer_name=f"{flower.NAME} and what it requires",
    )


def _agent(runs: int, supernode: bool) -> Iterator[Measurement]:
    """Yield the cases of an agent."""
    _say(f"agent: {runs} idle devices before a server")
    with idle.server() as (up, device):
        calls: dict[str, Callable[[], idle.Idle | int]] = {
            "own": lambda: idle.idle_agent(up, device)
        }
        if supernode:
            calls["peer"] = flower.idle_supernode
        found = interleave(calls, runs)
    own = [one for one in found["own"] if isinstance(one, idle.Idle)]
    peer = [one / MIB for one in found.get("peer", []) if isinstance(one, int)]
    yield Measurement(
        bench="footprint",
        case="agent/pss",
        unit="MiB",
        samples=[one.total / MIB for one in own],
        peer=peer,
        peer_name=f"{flower.NAME}: idle SuperNode and SuperExec" if peer else None,
    )
    for case, unit, samples in (
        ("agent/own", "MiB", [one.own / MIB for one in own]),
        ("agent/cpu", "s", [one.cpu for one in own]),
    ):
        yield Measurement(bench="footprint", case=case, unit=unit, samples=samples)


def _imports(
    name: str, own: Sequence[str], peer: Sequence[str], least: Sequence[str], runs: int
) -> Iterator[Measurement]:
    """Yield `name/rss` and `name/import`."""
    _say(f"{name}: {3 * (runs + 1)} fresh processes")
    calls: dict[str, Callable[[], Fresh]] = {
        "own": lambda: fresh(own),
        "peer": lambda: fresh(peer),
        "least": lambda: fresh(least),
    }
    interleave(calls, 1)  # brings the files into the cache
    found = interleave(calls, runs)
    about = {"bench": "footprint", "peer_name": f"{flower.NAME}: import {', '.join(peer)}"}
    yield Measurement(
        **about,
        case=f"{name}/rss",
        unit="MiB",
        samples=[one.resident / MIB for one in found["own"]],
        peer=[one.resident / MIB for one in found["peer"]],
        limit=statistics.median(one.resident / MIB for one in found["least"]),
        limit_name="the libraries alone",
    )
    yield Measurement(
        **about,
        case=f"{name}/import",
        unit="s",
        samples=[one.seconds for one in found["own"]],
        peer=[one.seconds for one in found["peer"]],
        limit=statistics.median(one.seconds for one in found["least"]),
        limit_name="the libraries alone",
    )


def fresh(modules: Sequence[str]) -> Fresh:
    """Import modules in a new process, away from this checkout's folder.

    Raises:
        StateError: The process failed; what it said is on stderr.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM, *modules]
    with tempfile.TemporaryDirectory() as where:
        done = subprocess.run(  # noqa: S603 - our own program
            command, cwd=where, stdout=subprocess.PIPE, check=False
        )
    if done.returncode:
        raise StateError(" ".join(modules), "modules that import", f"status {done.returncode}")
    seconds, resident = json.loads(done.stdout)
    return Fresh(seconds, resident)


def _node(runs: int, supernode: bool) -> Measurement:
    """Return `node/pss`."""
    _say(f"node: {runs} idle devices" + (" and SuperNodes" if supernode else ""))
    calls: dict[str, Callable[[], int]] = {"own": node}
    if supernode and flower.AVAILABLE:
        calls["peer"] = flower.idle_supernode
    elif supernode:
        _say("node/pss: no peer, flower-supernode is not beside this interpreter")
    found = interleave(calls, runs)
    return Measurement(
        bench="footprint",
        case="node/pss",
        unit="MiB",
        samples=[one / MIB for one in found["own"]],
        peer=[one / MIB for one in found.get("peer", [])],
        peer_name=f"{flower.NAME}: idle SuperNode, no app" if "peer" in found else None,
    )


def node() -> int:
    """Start a device, let it train once, and return the PSS of its processes in bytes."""
    with tempfile.TemporaryDirectory() as where:
        app = create("device", Kind.NUMPY, Path(where))
        command = [sys.executable, "-P", "-m", f"{__package__}.footprint_node", str(app)]
        with subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=where
        ) as process:
            if process.stdout is None:
                raise StateError("benchmark", "a pipe from the device", "none")
            line = process.stdout.readline()
            if not line:
                raise StateError("device", "its child's process id", "nothing")
            found = sum(proportional(pid) for pid in (process.pid, int(line)))
            process.communicate()  # closes its stdin: it leaves
    return found


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench footprint: {line}", file=sys.stderr, flush=True)
