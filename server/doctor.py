"""The probes of `umbel server doctor`: what is looked at on a federation's server, and at once.

doctor_files.py looks at the federation's directory, doctor_live.py at what runs,
host/doctor_machine.py at the machine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from . import doctor_files as files
from . import doctor_live as live
from .. import __version__
from ..host import doctor_dial as dial
from ..host import doctor_front
from ..host import doctor_machine as machine
from ..host import doctor_tls as tls
from ..host.doctor import RUNNER, Probe

if TYPE_CHECKING:
    from pathlib import Path

TABLES = (
    RUNNER, dial.DIAL, tls.TLS, doctor_front.FRONT, machine.MACHINE, files.FILES, live.LIVE,
)  # fmt: skip
"""Every finding that this doctor can make."""
LINE_S = 45.0
"""Seconds for one of the servers, all steps together."""


def probes(directory: Path) -> list[Probe]:
    """Return what there is to look at for the federation of a directory."""
    place, now = files.Place.read(directory), datetime.now(UTC)
    return [
        Probe("directory", partial(files.directory, place)),
        Probe("authorities", partial(files.authorities, place, now)),
        Probe("certificates", partial(files.servers, place, now)),
        Probe("members", partial(files.members, place, now)),
        Probe("database", partial(files.books, place, now)),
        Probe("ports", partial(live.ports, place)),
        Probe("core service", partial(live.core, directory)),
        Probe("issuer", partial(live.issuer, place)),
        Probe("front", partial(live.front, place), LINE_S),
        Probe("gateway", partial(live.gateway, place), LINE_S),
        Probe("SuperLink", partial(live.superlink, place), LINE_S),
        Probe("public addresses", partial(live.public, place), LINE_S),
        Probe("open files", live.limits),
        Probe("clock", live.clock),
        Probe("platform", machine.platform_of),
        Probe("versions", partial(machine.versions, __version__)),
        Probe("wheels", machine.wheels),
        Probe("disk", partial(machine.disk, directory)),
        Probe("memory", partial(machine.memory, 0)),
    ]
