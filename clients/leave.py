"""The end of a device's membership, by its owner: stopped, said, and its keys gone.

    1  a pause               the session ends, after the round in progress unless told otherwise
    2  `left`                written, with a request that the node's key has signed: from here on
                             agent and session take part in nothing, whatever becomes of this
    3  the agent ends        by itself: it obeys that file; journal and renewal are locked
    4  POST /v1/leave        the CA removes the node; where the server is away the operator must,
                             or this command when it is called again: the signed request is kept
    5  keys                  overwritten, unlinked; then the certificates
    6  `left` once more      with what was done

Each step may be done again, so a command that was killed anywhere is called again. What stays:
device.toml, policy, root, record, journal. The journal stays because who enrols anew must not vote
a second time: enrolment moves this directory aside, and takes the journal over.

Overwriting reaches the blocks that the file has. A disk that writes elsewhere (flash, snapshots,
copy on write) and backups may keep old ones. Once the CA has removed the node they are of no use.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from .doctor_files import Known
from .front_line import Front
from .pause import LEFT, Pause, paused, remove_pause, write_pause
from .policy_file import read_owned
from .status_file import read_session, read_small
from ..host.whole_file import sync_directory, write_whole
from ..protocol.documents import read_json
from ..protocol.enrolment import Declined, LeaveRequest
from ..protocol.errors import SettingsError, StateError, UmbelError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = ("signing.key", "tls.key", "flower")
PUBLIC = (
    "signing.pem", "tls.pem", "issuing.pem", "flower.pub", "flower.node", "members.list",
    "agent.json", "session.json",
)  # fmt: skip
"""What else goes: it is of no use without the keys."""
LOOK_S = 0.5
AGENT_S = 60.0
"""How long the agent may take to end after it was told."""
_ROUTE = "/v1/leave"
_LONGEST = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What `left` says."""

    since: float
    """Seconds since 1970 by the device's own clock."""
    federation: str = ""
    node: str = ""
    front: str = ""
    request: str = ""
    """The signed request, as JSON; empty where the key could not be read."""
    told: bool = False
    """Whether the CA has removed the node, or knows it no more."""
    wiped: bool = False
    """Whether the keys are gone."""


def read_left(directory: Path) -> Left | None:
    """Return what `left` says; None where the device has not left.

    Raises:
        StateError: The file is none of ours; the device takes part in nothing all the same.
    """
    path = directory / LEFT
    data = read_small(path)
    if data is None:
        return None
    try:
        values = read_json(data)
        texts = ("federation", "node", "front", "request")
        good = values.keys() == set(Left.__slots__)
        good = good and all(isinstance(values[t], str) for t in texts)
        good = good and all(len(values[t]) <= _LONGEST for t in texts)
        good = good and all(values[t].isprintable() for t in texts)
        good = good and isinstance(values["told"], bool) and isinstance(values["wiped"], bool)
        good = good and type(values["since"]) in (int, float) and values["since"] >= 0
    except (ValueError, AttributeError, KeyError, TypeError):
        good = False
    if not good:
        move = "call `umbel client leave` again after removing it"
        raise StateError(str(path), "what `umbel client leave` wrote", "something else", move)
    return Left(**values)


def stop(directory: Path, say: Callable[[str], None], *, now: bool) -> None:
    """Step 1: pause the device and wait until it is in no session.

    Raises:
        KeyboardInterrupt: It was not waited for; the pause that this wrote is taken back.
    """
    before = paused(directory)
    write_pause(directory, Pause(since=time.time(), now=now))
    said = False
    try:
        while (held := _lock(directory / "journal")) is None:
            if not said:
                say(f"waiting for {_at_work(directory)} to end{'' if now else '; --now does not'}")
                said = True
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        remove_pause(directory)
        if before is not None:
            write_pause(directory, before)
        raise
    os.close(held)


def leave(directory: Path, say: Callable[[str], None]) -> Left:
    """Steps 2 to 6, for a device that is in no session.

    Raises:
        StateError: The agent does not end, a file cannot be written, or a key not be removed.
    """
    try:
        left = read_left(directory)
    except StateError as error:
        say(f"{error}; it is written anew")
        left = None
    if left is None or (not left.request and not left.wiped):
        left = _signed(directory, say)
        _write(directory, left)
    with ExitStack() as held:
        for name in ("agent/agent.lock", "journal", "renew.lock"):
            held.callback(os.close, _waited(directory / name))
        if not left.told:
            left = replace(left, told=_tell(directory, left, say))
            _write(directory, left)
        wipe(directory)
        remove_pause(directory)
        left = replace(left, wiped=True)
        _write(directory, left)
    return left


def wipe(directory: Path) -> None:
    """Step 5: overwrite and unlink the keys and what a killed writer left of them.

    Raises:
        StateError: A key is still there; the others are gone.
    """
    failed: list[str] = []
    for name in KEYS:
        for path in (directory / name, directory / f".{name}.new"):
            try:
                _wipe(path)
            except OSError as error:
                failed.append(f"{path}: {error.strerror}")
    for name in PUBLIC:
        with suppress(OSError):
            (directory / name).unlink(missing_ok=True)
    with suppress(OSError):
        sync_directory(directory)
    if failed:
        move = "remove them by hand, then call `umbel client leave` again"
        raise StateError(str(directory), "no private key", "; ".join(failed), move)


def forget(directory: Path) -> None:
    """Remove the directory of a device that has left, record and policy too.

    device.toml goes last, so that a command that is killed here can be called again.

    Raises:
        StateError: Something of it cannot be removed.
    """
    try:
        for path in sorted(directory.iterdir(), key=lambda p: (p.name == "device.toml", p.name)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        directory.rmdir()
    except OSError as error:
        where = str(error.filename or directory)
        raise StateError(where, "what can be removed", error.strerror) from error


def set_aside(directory: Path, heir: Path) -> None:
    """Move the directory of a device that has left out of the way of `heir`, if it is one.

    The journal goes on in `heir`: the machine that votes is the same under its new name.

    Raises:
        StateError: Its keys are not gone yet.
    """
    left = read_left(directory)
    if left is None:
        return
    if not left.wiped:
        move = "call `umbel client leave` again first"
        raise StateError(str(directory), "a device that has left", "one that has begun to", move)
    number = 1
    while os.path.lexists(aside := directory.with_name(f".{directory.name}.left-{number}")):
        number += 1
    with suppress(FileNotFoundError):
        write_whole(heir / "journal", (directory / "journal").read_bytes())
    directory.rename(aside)


def _signed(directory: Path, say: Callable[[str], None]) -> Left:
    """Return what is said of a device that leaves now, signed where its key can be read."""
    known = Known.read(directory)
    left = Left(
        since=time.time(), federation=known.federation, node=known.id.hex(), front=known.superlink
    )
    file = directory / "signing.key"
    try:
        key = load_pem_private_key(read_owned(file).encode(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise SettingsError(str(file), "an Ed25519 key", type(key).__name__)  # noqa: TRY301
    except SettingsError as error:
        say(str(error))
    except UNREADABLE:
        say(f"{file}: no private key")
    else:
        request = LeaveRequest.sign(known.federation, known.id, int(left.since), key)
        left = replace(left, request=request.dumps().decode())
    return left


def _tell(directory: Path, left: Left, say: Callable[[str], None]) -> bool:
    """Step 4: return whether the CA has removed the node, or knows it no more."""
    root = Known.read(directory).root
    if not left.request or not left.front or root is None:
        say("the server cannot be told: a key, the root or the front's address is missing")
        return False
    try:
        Front(left.front, root, say).post(_ROUTE, left.request.encode())
    except Declined as declined:
        if declined.code in {"removed", "unknown node"}:
            return True
        say(f"{left.front}: {declined.line}")
        return False
    except (UmbelError, OSError) as error:
        say(str(error))
        return False
    return True


def _write(directory: Path, left: Left) -> None:
    path = directory / LEFT
    try:
        write_whole(path, json.dumps(asdict(left)).encode())
    except OSError as error:
        raise StateError(str(path), "a file that can be written", error.strerror) from error


def _wipe(path: Path) -> None:
    """Overwrite a file's bytes on the disk, then unlink it; of a link only the link goes."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:
        if not path.is_symlink():
            raise
    else:
        with open(handle, "wb") as file:
            _overwrite(file)
    path.unlink()


def _overwrite(file: IO[bytes]) -> None:
    file.write(os.urandom(os.fstat(file.fileno()).st_size))
    file.flush()
    os.fsync(file.fileno())


def _lock(path: Path) -> int | None:
    """Lock a file that another process of this device may hold; None while one does.

    A file that is not there is held by nobody: then this is a descriptor of something else.
    """
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return os.open(os.devnull, os.O_RDONLY)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        return None
    return found


def _waited(path: Path) -> int:
    """Lock a file when its holder, who obeys `left`, has ended."""
    until = time.monotonic() + AGENT_S
    while (found := _lock(path)) is None:
        if time.monotonic() > until:
            move = "end `umbel client up` and SuperNodes of this device, then call this again"
            raise StateError(str(path), "no process of this device", "one that goes on", move)
        time.sleep(LOOK_S)
    return found


def _at_work(directory: Path) -> str:
    """Return what a session says that it does."""
    with suppress(StateError):
        session = read_session(directory)
        if session is not None and session.round:
            return f"round {session.round} of run {session.run}"
    return "the session in progress"
