"""The systemd unit of a device's agent: of the system, or of one user.

Both start the agent again whatever ended it, without a limit on how often, and end it when it says
nothing for a minute. Both bound its memory, with the ClientApps that it starts: a training that
takes more is killed alone, and named.

A unit of the system runs under the account that owns the device's directory, never under root. It
may write that directory and nothing else, has no device but the usual pseudo ones (`gpu` lets it
have the graphics cards), no capability, and of the system calls those of a service and the ones by
which a process locks itself in. Not set: MemoryDenyWriteExecute, because compilers of kernels (and
torch with them) need it; ProcSubset, because the agent knows its processes by /proc. A user's own
manager cannot make most of these walls: such a unit has those that need no privilege.

Keys are not handed over by LoadCredential: docs/decisions/0084.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = re.compile(r"[1-9][0-9]{0,14}[KMGT]?|[1-9][0-9]?%|100%")
WATCHDOG_S, RESTART_S, STOP_S = 60, 2, 30
"""Silence after which the agent is killed; pause before its next start; time that it has to end."""
_TASKS = 1024
_EVERYWHERE = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service seccomp
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallFilter=~@privileged @obsolete
SystemCallErrorNumber=EPERM
"""
_SYSTEM = """\
CapabilityBoundingSet=
AmbientCapabilities=
PrivateTmp=yes
PrivateUsers=yes
PrivateMounts=yes
ProtectSystem=strict
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RemoveIPC=yes
"""
_GPUS = ("char-nvidia", "char-nvidia-frontend", "char-nvidia-uvm", "char-nvidia-caps", "char-drm")


def unit_name(federation: str, directory: Path) -> str:
    """Return the name of a device's unit; two devices of one federation have two."""
    own = re.sub("[^A-Za-z0-9_.-]", "_", directory.name)[:100]
    return f"umbel-{federation}{'' if own == federation else f'-{own}'}.service"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit for one device."""

    federation: str
    directory: Path
    home: Path
    """$UMBEL_HOME of the agent."""
    python: str
    """Absolute path of the interpreter with umbel and flwr."""
    account: str = ""
    """Under which a unit of the system runs; empty for a unit of a user."""
    memory: str = "80%"
    gpu: bool = False
    homes: bool = True
    """Whether something that it reads is below /home, /root or /run/user."""

    proxies: tuple[tuple[str, str], ...] = ()
    """Variables that name proxies, with their values."""

    def __post_init__(self) -> None:
        """Refuse what cannot stand in a unit.

        Raises:
            SettingsError: With the value.
        """
        if MEMORY.fullmatch(self.memory) is None:
            raise SettingsError("--memory", "bytes as in 2G or 512M, or 80%", self.memory)
        values = [text for _, text in self.proxies]
        for text in (str(self.directory), str(self.home), self.python, *values):
            if not text.isprintable():
                raise SettingsError("install", "printable characters", text)

    @property
    def name(self) -> str:
        """The unit's name."""
        return unit_name(self.federation, self.directory)

    def text(self) -> str:
        """Return the unit file."""
        wanted = "multi-user.target" if self.account else "default.target"
        network = "After=network-online.target\nWants=network-online.target\n"
        return (
            "# Written by `umbel client install`; your own changes belong into\n"
            f"# `systemctl edit {self.name}`.\n"
            "[Unit]\n"
            f"Description=Umbel: this device's part in {self.federation}\n"
            f"{network if self.account else ''}"
            f"ConditionPathExists={_plain(self.directory / 'device.toml')}\n"
            f"ConditionPathExists=!{_plain(self.directory / 'left')}\n"
            "StartLimitIntervalSec=0\n"
            f"\n[Service]\n{self._service()}"
            f"\n[Install]\nWantedBy={wanted}\n"
        )

    def _service(self) -> str:
        command = [self.python, "-P", "-m", f"{__package__}.agent", str(self.directory)]
        variables = (("UMBEL_HOME", str(self.home)), *self.proxies)
        lines = [
            "Type=notify",
            "NotifyAccess=main",
            *(f"Environment={_variable(*pair)}" for pair in variables if pair[1]),
            f"ExecStart={' '.join(_quoted(word) for word in command)}",
            "Restart=always",
            f"RestartSec={RESTART_S}",
            f"WatchdogSec={WATCHDOG_S}",
            "TimeoutStartSec=120",
            f"TimeoutStopSec={STOP_S}",
            "KillMode=mixed",
            f"MemoryMax={self.memory}",
            f"TasksMax={_TASKS}",
            "OOMPolicy=continue",
            "LimitCORE=0",
            "UMask=0077",
        ]
        if self.account:
            lines[2:2] = [f"User={self.account}"]
        return "\n".join(lines) + "\n" + _EVERYWHERE + (self._walls() if self.account else "")

    def _walls(self) -> str:
        homes = "read-only" if self.homes else "yes"
        own = _quoted(str(self.directory), command=False)
        text = f"{_SYSTEM}ProtectHome={homes}\nReadWritePaths={own}\n"
        if not self.gpu:
            return f"{text}PrivateDevices=yes\n"
        allowed = "".join(f"DeviceAllow={name} rw\n" for name in _GPUS)
        return f"{text}DevicePolicy=closed\n{allowed}"


def _quoted(word: str, *, command: bool = True) -> str:
    """Return a word as systemd reads it back: no specifier, no variable, no end of the word."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if command else text}"'


def _variable(name: str, value: str) -> str:
    return _quoted(f"{name}={value}", command=False)


def _plain(path: Path) -> str:
    """Return a path for a setting that takes all of its line."""
    return str(path).replace("%", "%%")
