"""The probes of `umbel server doctor`: what is looked at on a federation's server, and at once.

host/doctor_machine.py looks at the machine.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import __version__
from ..host import doctor_machine as machine
from ..host.doctor import RUNNER, Probe

if TYPE_CHECKING:
    from pathlib import Path

TABLES = (RUNNER, machine.MACHINE)
"""Every finding that this doctor can make."""


def probes(directory: Path) -> list[Probe]:
    """Return what there is to look at for the federation of a directory."""
    return [
        Probe("platform", machine.platform_of),
        Probe("versions", partial(machine.versions, __version__)),
        Probe("wheels", machine.wheels),
        Probe("disk", partial(machine.disk, directory)),
        Probe("memory", partial(machine.memory, 0)),
    ]
