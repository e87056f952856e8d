"""From C++ to a library in this process: a compiler from PATH, a cache, ctypes.

Compiled and linked in two steps: `-ffast-math` at the link of a shared object has g++ before 13
add code that turns on flush-to-zero in the thread that loads it, numpy's arithmetic included.
An object is good only for the CPU and the compiler that made it, so both are part of its name, as
the macros that the compiler defines for this machine. Several processes may build the same one:
each under a name of its own, and the last rename wins.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .net import Unsupported
from ...host.places import umbel_home
from ...protocol.errors import StateError

COMPILERS = ("g++", "clang++", "c++")
COMPILE = ("-std=c++20", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC")
LINK = ("-shared", "-pthread")
LIMIT_S = 300
"""A compiler that takes longer hangs."""
ADVICE = "install g++ or clang, or let another tier train"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler and what it makes for this machine."""

    path: str
    macros: str
    """What it defines with `-march=native`: its version and the CPU's features."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vectors in use."""
        if all(f"#define __AVX512{part}__ 1" in self.macros for part in ("F", "DQ", "VL", "BW")):
            return 64
        return 32 if "#define __AVX2__ 1" in self.macros else 16


def compiler() -> Compiler:
    """Return the first compiler on PATH that knows C++20.

    Raises:
        Unsupported: There is none.
    """
    return _asked(os.environ.get("PATH", ""))


@cache
def _asked(path: str) -> Compiler:
    """Return the compiler that this PATH leads to."""
    for name in COMPILERS:
        if found := shutil.which(name, path=path):
            done = _run([found, *COMPILE, "-dM", "-E", "-x", "c++", os.devnull])
            if done.returncode == 0:
                return Compiler(found, done.stdout)
    raise Unsupported("compiler", f"one of {', '.join(COMPILERS)} on PATH", "none", ADVICE)


def library(source: str, made_by: Compiler) -> ctypes.CDLL:
    """Return the library of a program, out of the cache or compiled now.

    Raises:
        Unsupported: The compiler failed.
        StateError: The cache cannot be written.
    """
    known = "\n".join((source, made_by.path, made_by.macros, *COMPILE, *LINK))
    folder = _folder()
    path = folder / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as made:
            built = _built(source, made_by, Path(made))
            built.replace(path)
    return ctypes.CDLL(str(path))


def _folder() -> Path:
    """Return the cache, which only this user writes: what lies in it is run."""
    folder = umbel_home() / "cache" / "native"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise StateError(str(folder), "a folder for compiled kernels", error.strerror) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        move = f"chmod go-w {folder}, or remove it"
        raise StateError(str(folder), "a folder that only this user writes", "others may", move)
    return folder


def _built(source: str, made_by: Compiler, folder: Path) -> Path:
    """Compile and link in a folder; return the library."""
    page, part, whole = folder / "net.cpp", folder / "net.o", folder / "net.so"
    page.write_text(source, "utf-8")
    for command in (
        [made_by.path, *COMPILE, "-c", str(page), "-o", str(part)],
        [made_by.path, *LINK, str(part), "-o", str(whole)],
    ):
        done = _run(command)
        if done.returncode:
            first = next((x for x in done.stderr.splitlines() if "error" in x), "no message")
            raise Unsupported("compiler", "the model's kernels compiled", first, ADVICE)
    return whole


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler."""
    try:
        return subprocess.run(  # noqa: S603 - the compiler, on our own source
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported("compiler", f"{command[0]} to answer", str(error), ADVICE) from None
