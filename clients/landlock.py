"""Which files a process may read and write, enforced by the kernel: Landlock, through ctypes.

A process gives up rights for good, for itself and whatever it starts, also over `exec`; nobody can
give them back. It needs no privilege. Linux has it from 5.13, where it was not left out; the system
calls have the same numbers on every architecture (linux/landlock.h).

Paths only: what is open already stays open, and neither network nor other processes are limited.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGE = sum(1 << bit for bit in range(4, 13))
"""Remove, and make, files and folders of every kind."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_REFER_FROM, _TRUNCATE_FROM = 2, 3
"""The versions that have these two."""


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Return the version of Landlock that this kernel has; 0 is none."""
    return max(_call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0)


def restrict(reads: Iterable[str], writes: Iterable[str]) -> None:
    """Let this thread, and all that it starts, open nothing but what lies below these paths.

    What may be read may be executed; what may be written may be read. A path that does not exist is
    left out. Call it before there are other threads: they keep their rights.

    Raises:
        OSError: The kernel has no Landlock, or refuses.
    """
    known = version()
    if not known:
        raise OSError(0, "this kernel has no Landlock")
    every = _OF_FILES | _LIST | _CHANGE | _REFER
    every &= ~_REFER if known < _REFER_FROM else ~0
    every &= ~_TRUNCATE if known < _TRUNCATE_FROM else ~0
    handled = ctypes.c_uint64(every)
    rules = _checked(_CREATE, ctypes.byref(handled), ctypes.c_size_t(8), ctypes.c_uint32(0))
    try:
        for path in reads:
            _allow(rules, path, every & (_EXECUTE | _READ | _LIST))
        for path in writes:
            _allow(rules, path, every)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _checked(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= _OF_FILES
        rule = _Beneath(rights, place)
        kind = ctypes.c_int(_PATH_BENEATH)
        _checked(_ADD, ctypes.c_int(rules), kind, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(number), *arguments))


def _checked(number: int, *arguments: object) -> int:
    found = _call(number, *arguments)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return found
