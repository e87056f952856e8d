"""Makes the agent a service: writes its unit, and asks systemd to start it now and at each boot."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .status_file import read_small
from .unit_file import Unit
from ..host.places import umbel_home
from ..host.whole_file import write_whole
from ..protocol.certificates import FEDERATION
from ..protocol.documents import read_toml
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SYSTEM = Path("/etc/systemd/system")
BOOTED = Path("/run/systemd/system")
"""Is there while systemd runs."""
LINGER = Path("/var/lib/systemd/linger")
CALL_S = 90.0
"""For a command of systemd's; it waits until the agent is up."""
_HOMES = ("/home", "/root", "/run/user")
_READABLE = 0o644


def unit_of(directory: Path, *, user: bool, memory: str, gpu: bool) -> Unit:
    """Return the unit of a device.

    Args:
        directory: The device's own.
        user: Whether it is a unit of this user; else of the system.
        memory: `2G`, or `80%` of this machine's.
        gpu: Whether a unit of the system may use graphics cards; a device that trains by torch
            (`ddp` of device.toml) always may.

    Raises:
        SettingsError: The device's files, its owner or a value will not do.
    """
    federation, ddp = said(directory)
    python, home = sys.executable, umbel_home(writes=False)
    account = "" if user else _account(directory)
    read = [directory, home, Path(python), Path(sys.prefix), Path(__file__).resolve()]
    if account:
        _check_reach(account, [directory, Path(python), Path(__file__).resolve()])
    homes = any(str(path).startswith(f"{top}/") for path in read for top in _HOMES)
    return Unit(
        federation=federation, directory=directory, home=home, python=python,
        account=account, memory=memory, gpu=gpu or ddp, homes=homes, proxies=_proxies(),
    )  # fmt: skip


def said(directory: Path) -> tuple[str, bool]:
    """Return a device's federation, and whether it trains by torch.

    Root may ask of another user's device, whose other files it would not trust.

    Raises:
        SettingsError: device.toml is not what enrolment wrote.
    """
    file = directory / "device.toml"
    try:
        values = read_toml((read_small(file) or b"").decode())
        federation, ddp = values["federation"], values.get("ddp", 0)
        good = isinstance(federation, str) and FEDERATION.fullmatch(federation) is not None
    except (ValueError, KeyError):
        good = False
    if not good:
        raise SettingsError(str(file), "what enrolment wrote", "something else", "enrol anew")
    return federation, ddp != 0


def _proxies() -> tuple[tuple[str, str], ...]:
    """Return the proxies of this shell that a service needs too, by the names of variables.

    One with a password in it stays out: everybody may read a unit.
    """
    names = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    found = ((name, os.environ.get(name, "")) for name in names)
    return tuple((name, text) for name, text in found if text.isprintable() and "@" not in text)


def place(name: str, *, user: bool) -> Path:
    """Return where a unit lies."""
    if not user:
        return SYSTEM / name
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    config = given if given.is_absolute() else Path.home() / ".config"
    return config / "systemd" / "user" / name


def install(unit: Unit, *, user: bool, say: Callable[[str], None]) -> Path:
    """Write the unit and start it; one that is there is replaced, and the agent started anew.

    Returns:
        The unit's file.

    Raises:
        SettingsError: This user may not.
        StateError: systemd is not there, or does not take it.
    """
    _check_systemd(user=user)
    file = place(unit.name, user=user)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, unit.text().encode(), _READABLE)
    except OSError as error:
        raise StateError(str(file), "a place that can be written", error.strerror) from error
    _systemctl(user, "daemon-reload")
    _systemctl(user, "enable", unit.name)
    _systemctl(user, "restart", unit.name)
    name = pwd.getpwuid(os.getuid()).pw_name
    if user and not (LINGER / name).exists():
        say(f"it runs while you are logged in; `loginctl enable-linger {name}` lets it run always")
    return file


def uninstall(name: str, *, user: bool) -> Path:
    """End the service and remove its unit; the device's directory stays.

    Raises:
        SettingsError: There is no such unit, or this user may not.
        StateError: systemd is not there, or does not take it.
    """
    file = place(name, user=user)
    if not file.exists():
        other = "" if user else "; --user removes that of a user"
        raise SettingsError(str(file), "a unit that `umbel client install` wrote", f"none{other}")
    _check_systemd(user=user)
    _systemctl(user, "disable", "--now", name)
    file.unlink(missing_ok=True)
    _systemctl(user, "daemon-reload")
    return file


def _check_systemd(*, user: bool) -> None:
    if not user and os.geteuid() != 0:
        raise SettingsError("install", "root", "another user", "sudo, or --user")
    if shutil.which("systemctl") is None or not BOOTED.is_dir():
        move = "let your own supervisor run `umbel client up`"
        raise StateError("systemd", "a running one", "none", move)


def _systemctl(user: bool, *words: str) -> None:
    command = ["systemctl", *(["--user"] if user else []), *words]
    try:
        done = subprocess.run(  # noqa: S603 - systemd's own command
            command, capture_output=True, text=True, check=False, timeout=CALL_S
        )
    except subprocess.TimeoutExpired as error:
        raise StateError(" ".join(command), "an answer", f"none within {CALL_S:.0f} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[0] if lines else f"status {done.returncode}"
        raise StateError(" ".join(command), "success", said, "`journalctl -e` says more")


def _account(directory: Path) -> str:
    """Return the account that owns a device's directory, under which its apps' code runs."""
    owner = directory.stat().st_uid
    move = (
        "an app's code would run as root: give it to an account of its own (docs/joining.md, "
        "section 4), or use --user"
    )
    if owner == 0:
        raise SettingsError(str(directory), "an owner other than root", "root", move)
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        raise SettingsError(str(directory), "an owner with an account", owner, move) from None


def _check_reach(account: str, paths: Iterable[Path]) -> None:
    """Refuse what the account could not reach, before systemd says `203/EXEC`."""
    entry = pwd.getpwnam(account)
    groups = {entry.pw_gid, *(g.gr_gid for g in grp.getgrall() if account in g.gr_mem)}
    for path in paths:
        for folder in reversed(path.parents):
            found = folder.stat()
            mode = found.st_mode
            allowed = mode & 0o001
            if found.st_gid in groups:
                allowed = mode & 0o010
            if found.st_uid == entry.pw_uid:
                allowed = mode & 0o100
            if not allowed:
                move = f"install umbel, and keep the device, where {account} can read"
                raise SettingsError(str(path), f"a path open to {account}", f"{folder} shut", move)
