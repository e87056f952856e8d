"""What a doctor looks at on any machine: platform, programs, disk, memory, GPU.

Each function is a probe's body: it yields findings and changes nothing. What it judges it gets as
arguments or reads from `/proc` and `/sys` below `root`, so that each finding can be shown true.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from .disk_room import free_bytes
from .doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from .platforms import SUPPORTED, this_machine
from ..protocol.documents import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .doctor import Finding
    from .platforms import Platform

MIB = 1 << 20
FULL_BYTES, LOW_BYTES = 16 * MIB, 256 * MIB
"""Free bytes of a disk below which it counts as full, and as nearly so."""
MEMORY_BYTES = 256 * MIB
"""Free memory that SuperNode and ClientApp need beside the model."""
COPIES = 4
"""Copies of a model that a round takes on a device: model, update, message, what is in training."""
IMPORT_S = 15.0
"""Seconds in which compiled packages must import."""
FLOWER = (1, 42)
_NETWORK = ("nfs", "cifs", "smb", "9p", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs")
_IN_MEMORY = ("tmpfs", "ramfs")
_GPUS = ("dev/nvidia[0-9]*", "proc/driver/nvidia/gpus/*", "dev/kfd", "dev/nvhost-gpu")
_TRY = """
import importlib, json, sys
broken = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        broken[name] = f"{type(error).__name__}: {error}"[:300]
print(json.dumps(broken))
"""

MACHINE = Table({
    "platform.ok": Kind(OK, "this machine is a supported one"),
    "platform.unsupported": Kind(PROBLEM, "another system, processor or Python than supported"),
    "versions.ok": Kind(OK, "umbel, flwr and Python, and the wheels of this processor"),
    "versions.flower": Kind(PROBLEM, "another minor version of flwr than this umbel works with"),
    "wheels.broken": Kind(PROBLEM, "a compiled package is missing, or made for another processor, "
                          "C library or Python"),
    "user.other": Kind(PROBLEM, "the directory belongs to another user, as whom alone it can be "
                       "looked at; nothing else was"),
    "files.open": Kind(PROBLEM, "a key or a directory of keys can be read or changed by others"),
    "files.owner": Kind(PROBLEM, "a file belongs to another user"),
    "disk.ok": Kind(OK, "free bytes where state is kept"),
    "disk.full": Kind(PROBLEM, "less than 16 MiB free where state is kept"),
    "disk.low": Kind(WARNING, "less than 256 MiB free there"),
    "disk.network": Kind(PROBLEM, "state on a network file system: locks and fsync do not hold"),
    "disk.memory": Kind(WARNING, "state in memory: it is gone at the next start of the machine"),
    "memory.ok": Kind(OK, "free memory"),
    "memory.low": Kind(WARNING, "less than 256 MiB of memory free"),
    "memory.model": Kind(NOTE, "four copies of a model as large as `limits.model_bytes` allows "
                         "would not fit"),
    "gpu.unassigned": Kind(WARNING, "a GPU is there and nothing is set to use it"),
    "gpu.unusable": Kind(PROBLEM, "a GPU is there, and torch cannot use it"),
    "torch.missing": Kind(PROBLEM, "`ddp` in device.toml asks for torch, which is not there"),
})  # fmt: skip


def platform_of(found: Platform | None = None) -> Iterator[Finding]:
    """Look at the platform."""
    found = found or this_machine()
    if found.supported:
        yield MACHINE("platform.ok", str(found))
    else:
        line = f"this is {found}; supported is {SUPPORTED}"
        yield MACHINE("platform.unsupported", line, "use another machine")


def versions(umbel: str, flwr: str | None = None) -> Iterator[Finding]:
    """Look at versions; `flwr` is the installed one unless given."""
    found = flwr or _version("flwr")
    wanted = ".".join(map(str, FLOWER))
    if found.split(".")[:2] != wanted.split("."):
        line = f"flwr {found}, but umbel {umbel} works with {wanted}.x"
        yield MACHINE("versions.flower", line, f"pip install 'flwr=={wanted}.*'")
    else:
        line = f"umbel {umbel}, flwr {found}, Python {sys.version.split()[0]}"
        yield MACHINE("versions.ok", line)


def wheels(
    modules: Sequence[str] = ("numpy", "cryptography.x509", "grpc", "google.protobuf", "psutil"),
) -> Iterator[Finding]:
    """Import compiled packages in a process of their own: a wrong one may kill it."""
    command = [sys.executable, "-c", _TRY, *modules]
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            command, capture_output=True, timeout=IMPORT_S, check=False, stdin=subprocess.DEVNULL
        )
        broken = read_json(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        yield MACHINE("wheels.broken", f"packages did not import: {error}", _REINSTALL)
        return
    if not isinstance(broken, dict):
        what = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        names = ", ".join(modules)
        yield MACHINE("wheels.broken", f"importing {names} ended with {what}", _REINSTALL)
        return
    for name, why in broken.items():
        yield MACHINE("wheels.broken", f"{name} does not import: {why}", _REINSTALL)


_REINSTALL = "pip install --force-reinstall umbel, by the Python that runs it"


def other_user(folder: Path, command: str) -> Finding | None:
    """Return the finding that this is not the user of a directory: nothing there would be right."""
    owner = folder.stat().st_uid
    if owner == os.geteuid():
        return None
    line = f"{folder} belongs to user {owner}, and this is user {os.geteuid()}"
    fix = f"as root: setpriv --reuid={owner} --clear-groups {command} {folder}"
    return MACHINE("user.other", line, fix)


def private(*files: Path) -> Iterator[Finding]:
    """Look who else may get at files and directories that hold secrets; missing ones are none."""
    user = os.geteuid()
    for file in files:
        try:
            about = file.stat()
        except OSError:
            continue
        mode = stat.S_IMODE(about.st_mode)
        if about.st_uid != user:
            line = f"{file} belongs to user {about.st_uid}, and this is user {user}"
            yield MACHINE("files.owner", line, f"chown {user} {file}")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            wanted = "0700" if stat.S_ISDIR(about.st_mode) else "0600"
            line = f"{file} has mode {mode:04o}, others can get at it; expected {wanted}"
            yield MACHINE(
                "files.open", line, f"chmod {wanted} {file}; make a key anew that was read"
            )


def disk(folder: Path, root: Path = Path("/"), free: int | None = None) -> Iterator[Finding]:
    """Look at the disk of a directory that exists.

    Args:
        folder: Where state is kept.
        root: Where `proc` is.
        free: Bytes that count as free; those of the disk unless given.
    """
    kind = file_system(folder, root)
    if kind.startswith(_NETWORK):
        line = f"{folder} is on a network file system ({kind}): locks and fsync do not hold there"
        yield MACHINE("disk.network", line, "move it to a local disk: set UMBEL_HOME")
    elif kind in _IN_MEMORY:
        line = f"{folder} is in memory ({kind}): keys and journal are gone at the next start"
        yield MACHINE("disk.memory", line, "move it to a disk: set UMBEL_HOME")
    free = free_bytes(folder) if free is None else free
    line = f"{size(free)} free on the disk of {folder}"
    if free < FULL_BYTES:
        yield MACHINE("disk.full", line, f"free the disk: du -xh {folder} | sort -h | tail")
    elif free < LOW_BYTES:
        yield MACHINE("disk.low", line, f"free the disk: du -xh {folder} | sort -h | tail")
    else:
        yield MACHINE("disk.ok", line)


def memory(
    model_bytes: int, available: int | None = None, bound: int | None = None
) -> Iterator[Finding]:
    """Look at memory, for a model of so many bytes.

    Args:
        model_bytes: The largest that the policy allows; 0 for a server.
        available: Bytes that are free; those of the machine and its cgroup unless given.
        bound: Bytes that the policy lets a task have, if it says.
    """
    free = _available() if available is None else available
    if free < MEMORY_BYTES:
        line = f"{size(free)} of memory free, SuperNode and ClientApp need {size(MEMORY_BYTES)}"
        yield MACHINE("memory.low", line, "end other programs, or raise the unit's MemoryMax")
    else:
        yield MACHINE("memory.ok", f"{size(free)} of memory free")
    free = free if bound is None else min(free, bound)
    if COPIES * model_bytes > free:
        line = (
            f"a model of {size(model_bytes)}, as limits.model_bytes allows, takes about "
            f"{size(COPIES * model_bytes)} in a round; there are {size(free)} for it"
        )
        fits = max(1, free // COPIES)
        yield MACHINE("memory.model", line, f"policy.toml, [limits]: model_bytes = {fits}")


def gpu(
    ddp: int, root: Path = Path("/"), torch: tuple[str, ...] | None = None
) -> Iterator[Finding]:
    """Look for a GPU that nobody uses, and for torch where it is asked for.

    Args:
        ddp: Processes that train together by torch; 0 trains without.
        root: Where `dev` and `proc` are.
        torch: torch's version, its CUDA version (or an empty text) and the number of its devices;
            asked of torch itself unless given. Empty: there is no torch.
    """
    there = any(next(root.glob(pattern), None) for pattern in _GPUS)
    if not ddp:
        if there:
            line = "a GPU is there but not assigned: device.toml has no ddp, training is on cores"
            yield MACHINE("gpu.unassigned", line, "device.toml: ddp = 1 (one process a GPU)")
        return
    found = _torch() if torch is None else torch
    if not found:
        line = f"device.toml asks for {ddp} training processes by torch, which does not import"
        yield MACHINE("torch.missing", line, "pip install 'umbel[torch]', or remove ddp")
    elif there and found[2] == "0":
        why = f"made for CUDA {found[1]}" if found[1] else "made without CUDA"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = why if hidden is None else f"{why}; CUDA_VISIBLE_DEVICES={hidden!r}"
        line = f"a GPU is there, and torch {found[0]} ({why}) sees none: training is on cores"
        yield MACHINE("gpu.unusable", line, "install the driver and a torch that fit each other")


def file_system(folder: Path, root: Path = Path("/")) -> str:
    """Return the kind of file system that a directory is on; empty where that is not known."""
    best, kind = "", ""
    try:
        mounts = (root / "proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return ""
    place = str(folder.resolve())
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and after:  # noqa: PLR2004 - the mount point is the fifth
            point = fields[4].replace("\\040", " ")
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, after.split(" ")[0]
    return kind


def size(count: float) -> str:
    """Return bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _available() -> int:
    """Return the bytes of memory that are free for this process: the cgroup's if fewer."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        most = int((group / "memory.max").read_text("ascii"))
        return min(free, most - int((group / "memory.current").read_text("ascii")))
    except (OSError, ValueError):
        return free


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _torch() -> tuple[str, ...]:
    """Ask torch in a process of its own; nothing where it does not import in time."""
    code = "import torch as t; print(t.__version__, t.version.cuda or '-', t.cuda.device_count())"
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", code], capture_output=True, timeout=IMPORT_S, check=False,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ()
    said = done.stdout.split()
    if done.returncode or len(said) != 3:  # noqa: PLR2004
        return ()
    return said[0], "" if said[1] == "-" else said[1], said[2]
