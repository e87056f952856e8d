"""The command `flwr-clientapp` of a device: checks the bundle before one line of it runs.

SuperExec starts `flwr-clientapp` by its bare name, so ours is put first on the PATH of a SuperNode
(`write_launcher`). It does what Flower's does, with these differences:

    first              flwr is 1.42, else it ends with one line; no core dumps; `memory` of
                       device.toml and `limits.data_roots` bound the process (confined.py)
    $FLWR_HOME         an empty directory of the task's own, removed at its end: Flower uses a
                       folder of the right name unread, and names it by 8 digits of the hash
    dependencies       none is installed at run time, whatever the SuperNode was told
    before installing  the bundle may run here (apps.py); the app is told its SHA-256, computed
                       here, as `UMBEL_APP_SHA256`, and by which rule as `UMBEL_APP_RULE`
    after loading      secure aggregation required: the app is of `client_app` or `secure`
    replying           secure aggregation required: no array, no metric, no text of an exception

The one file that knows the private names of flwr 1.42 for this. Nothing a bundle, a message or a
run's configuration says can change what is checked: the policy is the device's own file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .apps import OPEN, Apps
from .bundle import MAX_UNPACKED, Bundle
from .confined import confine
from .device_files import DeviceFiles, device_files, limit_memory, no_core_dumps
from .limits import TASKS, limits_of
from .policy import Policy
from .refusals import keep_refusal
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Malformed, Refused, SettingsError, StateError, UmbelError, reason_text

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "flwr-clientapp"
FLOWER = "1.42."
APP, RULE = "UMBEL_APP_SHA256", "UMBEL_APP_RULE"
INVITE, SESSION = "umbel.invite", "umbel.session"
"""Record of a train message: run, gateway, ca-sha256, ticket, lease. And the one record of its
answer: rounds, bytes-up, bytes-down, code."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "GRPC_VERBOSITY": "ERROR",
}
INSTALL = "--allow-runtime-dependency-installation"
_HOMES = "umbel-task-"
_JUST_MADE_S = 1.0


def main() -> int:
    """Run one task of the SuperNode; returns the exit status where Flower's own is not reached."""
    try:
        if not version("flwr").startswith(FLOWER):
            found = version("flwr")
            raise SettingsError("flwr", f"version {FLOWER}x", found, "install umbel's own")
        no_core_dumps()
        files = device_files()
        if files is not None:
            confine(files)
            if files.memory is not None:
                limit_memory(files.memory)
        for name in (APP, RULE):
            os.environ.pop(name, None)
        place = files.directory / TASKS if files else Path(tempfile.gettempdir())
        bounded = files is not None and (files.policy.disk or files.policy.data_roots is not None)
        with _own_home(place, temporary=bool(bounded)):
            return _run(files)
    except UmbelError as error:
        _say(str(error))
        keep_refusal(error, _say)
        return 1


def _say(line: str) -> None:
    print(f"{COMMAND}: {line}", file=sys.stderr, flush=True)


def write_launcher(directory: Path, python: str = sys.executable) -> Path:
    """Write an executable `flwr-clientapp` into a directory that is to come first on PATH.

    Args:
        directory: Made with mode 0700 if it is absent.
        python: The interpreter with umbel and flwr.

    Raises:
        SettingsError: The interpreter's path cannot stand in a shell script.
    """
    if "'" in python or "\n" in python:
        raise SettingsError("python", "a path without quotes", python)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / COMMAND
    file.write_text(f"#!/bin/sh\nexec '{python}' -P -m {__spec__.name} \"$@\"\n", encoding="utf-8")
    file.chmod(stat.S_IRWXU)
    return file


def _run(files: DeviceFiles | None) -> int:
    """Hand over to Flower, whose functions ask the guard."""
    os.environ.update(QUIET)
    from flwr.supernode.cli import flwr_clientapp  # noqa: PLC0415 - the version came first
    from flwr.supernode.runtime import run_clientapp as flower  # noqa: PLC0415

    if INSTALL in sys.argv:  # no pin covers what it would fetch
        sys.argv.remove(INSTALL)
        print(f"{COMMAND}: {INSTALL} is ignored on this device", file=sys.stderr, flush=True)
    Guard(files).stand(flower)
    flwr_clientapp()
    return 0


class Guard:
    """What is asked before a bundle is installed, after it is loaded, and before a reply leaves."""

    def __init__(self, files: DeviceFiles | None) -> None:
        """Take the device's own directory; None is the built-in policy."""
        self._files, self._policy = files, files.policy if files else Policy()
        self._message: Any = None
        self._refused: Refused | None = None
        self._app = ""

    def stand(self, flower: Any) -> None:
        """Put this guard in the way of Flower's `run_clientapp` module."""
        install, load, log = flower.install_from_fab, flower.get_load_client_app_fn, flower.log

        def checked_install(content: bytes, *args: Any, **kwargs: Any) -> Path:
            with self._noted(pb.REASON_LIMITS):
                self.allow()
            with self._noted(pb.REASON_APP_NOT_ALLOWED):
                self.admit(content)
            path: Path = install(content, *args, **kwargs)
            return path

        def checked_load(*args: Any, **kwargs: Any) -> Any:
            loaded = load(*args, **kwargs)

            def checked(*names: Any) -> Any:
                found = loaded(*names)
                with self._noted(pb.REASON_POLICY):
                    return self.loaded(found)

            return checked

        def brief(level: int, message: str, *args: Any, exc_info: Any = None) -> None:
            if isinstance(exc_info, UmbelError):
                log(level, "%s", exc_info)
            else:
                log(level, message, *args, exc_info=exc_info)

        flower.install_from_fab = checked_install
        flower.get_load_client_app_fn = checked_load
        flower.log = brief
        if self._policy.required:
            self._silence(flower)
        self._answer(flower)

    def allow(self) -> None:
        """Refuse any task outside of the policy's operating limits.

        Raises:
            Refused: `limits`, with the key.
            SettingsError: A hook cannot be run.
            StateError: The account of what was used is damaged.
        """
        if self._files is not None:
            limits_of(self._files).check()

    def admit(self, content: bytes) -> None:
        """Refuse a bundle that may not run here, and tell the app its own digest.

        Raises:
            Refused: `app not allowed`, or `limits` where it takes too much of the disk.
            StateError: What this device keeps of bundles cannot be trusted.
        """
        self._app = sha256(content).hexdigest()
        if self._policy.disk is not None:
            _check_size(content, self._policy.disk)
        files = self._files
        rule = OPEN if files is None else Apps(files.directory).admit(self._policy, content)
        os.environ[APP], os.environ[RULE] = self._app, rule

    def loaded(self, app: Any) -> Any:
        """Return the app; where secure aggregation is required it must be one of ours.

        Raises:
            Refused: `plain refused`.
        """
        from .flower_client_app import SessionApp  # noqa: PLC0415 - imports flwr

        if self._policy.required and not isinstance(app, SessionApp):
            detail = (
                "this app answers with plain updates and secure.required is true in this "
                "device's own policy; its author can write app = umbel.secure(app)"
            )
            raise Refused(pb.REASON_PLAIN_REFUSED, detail, "secure.required")
        return app

    @contextmanager
    def _noted(self, reason: pb.Reason) -> Iterator[None]:
        """Keep a refusal: its code is the answer, `reason` where something cannot be looked up."""
        try:
            yield
        except Refused as error:
            self._refused = error
            keep_refusal(error, _say, app=self._app)
            raise
        except (StateError, SettingsError) as error:
            self._refused = Refused(reason, str(error))
            keep_refusal(self._refused, _say, app=self._app)
            raise self._refused from error

    def _answer(self, flower: Any) -> None:
        """Let a refusal of this guard reach the server as its code, and no more of it."""
        pull, push, output = flower.pull_task_input, flower.push_message, flower.push_task_output

        def kept_pull(*args: Any) -> Any:
            found = pull(*args)
            self._message = found[0]
            return found

        def coded_push(client: Any, message: Any, context: Any) -> None:
            if self._refused is not None:
                message = refusing(self._message, message, self._refused.reason)
            push(client, message, context)

        def coded_output(client: Any, context: Any, sub_status: str, details: str) -> None:
            details = details if self._refused is None else ""
            output(client=client, context=context, sub_status=sub_status, details=details)

        flower.pull_task_input = kept_pull
        flower.push_message = coded_push
        flower.push_task_output = coded_output

    def _silence(self, flower: Any) -> None:
        """Let no reason, array or metric out, whatever made them."""
        error, push, output = flower.Error, flower.push_message, flower.push_task_output

        def blank(code: int, reason: str | None = None) -> Any:
            del reason
            return error(code=code, reason="")

        def checked_push(client: Any, message: Any, context: Any) -> None:
            push(client, silenced(message, error), context)

        def brief_output(client: Any, context: Any, sub_status: str, details: str) -> None:
            del details
            output(client=client, context=context, sub_status=sub_status, details="")

        flower.Error = blank
        flower.push_message = checked_push
        flower.push_task_output = brief_output


def silenced(message: Any, error: Any) -> Any:
    """Return a reply without arrays, metrics or words: the message itself, or an error instead.

    What an app of ours answers is one record of numbers; whatever else comes went another way.
    """
    from flwr.app import Message  # noqa: PLC0415 - after the version was looked at
    from flwr.common.constant import ErrorCode  # noqa: PLC0415

    code = ErrorCode.MOD_FAILED_PRECONDITION
    if message.has_error():
        code = message.error.code
    elif all(
        name == SESSION and all(type(value) is int for value in record.values())
        for name, record in message.content.items()
    ):
        return message
    made: Any = Message  # of its signatures only the private one copies a reply's metadata
    return made(error(code=code, reason=""), metadata=message.metadata)


def _check_size(content: bytes, bound: int) -> None:
    """Refuse a bundle that would be larger than the disk that tasks have."""
    try:
        Bundle.read(content, min(bound, MAX_UNPACKED))
    except Malformed as error:
        detail = f"{error}; limits.disk is {bound}"
        raise Refused(pb.REASON_LIMITS, detail, "limits.disk") from error


def refusing(asked: Any, reply: Any, reason: pb.Reason) -> Any:
    """Return the answer of a task that this guard refused: to an invitation a code, else an error.

    The error that Flower has made of it, `reply`, has the exception's text.
    """
    from flwr.app import ConfigRecord, Error, Message, RecordDict  # noqa: PLC0415 - as below
    from flwr.common.constant import ErrorCode  # noqa: PLC0415

    if asked.has_content() and INVITE in asked.content:
        nothing = {"rounds": 0, "bytes-up": 0, "bytes-down": 0}
        record = ConfigRecord({**nothing, "code": int(reason)})
        return Message(RecordDict({SESSION: record}), reply_to=asked)
    made: Any = Message
    error = Error(ErrorCode.MOD_FAILED_PRECONDITION, reason_text(reason))
    return made(error, metadata=reply.metadata)


@contextmanager
def _own_home(parent: Path, *, temporary: bool) -> Iterator[None]:
    """Give this task an empty `$FLWR_HOME`, removed at the end; `temporary` files go there too.

    What a killed task left is removed too: a directory is locked while its process lives.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_left(parent)
    home = Path(tempfile.mkdtemp(prefix=_HOMES, dir=parent))
    lock = _lock(home)
    os.environ["FLWR_HOME"] = str(home)
    if temporary:
        (home / "tmp").mkdir(mode=0o700)
        os.environ["TMPDIR"], tempfile.tempdir = str(home / "tmp"), None
    try:
        yield
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_left(parent: Path) -> int:
    """Remove what killed tasks left under `parent` and return how many they were.

    Flower notices after a minute that a ClientApp was killed; whoever asks here learns it at once.
    A directory that was made this second is left alone: its process may not have locked it yet.
    """
    found = 0
    for home in parent.glob(f"{_HOMES}*"):
        lock = _lock(home)
        if lock is None:
            continue
        if abs(time.time() - os.fstat(lock).st_mtime) > _JUST_MADE_S:  # clocks jump, back too
            shutil.rmtree(home, ignore_errors=True)
            found += 1
        os.close(lock)
    return found


def _lock(home: Path) -> int | None:
    """Lock a directory of our own; None where another process has it, or it is not ours."""
    try:
        found = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(found).st_uid == os.geteuid():
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return found
    except BlockingIOError:
        pass
    os.close(found)
    return None


if __name__ == "__main__":
    sys.exit(main())
