"""The probes of `umbel client doctor`: what is looked at on a device, and at once.

doctor_files.py looks at the device's directory, doctor_line.py at the way to front and gateway,
doctor_state.py at what its owner and its policy say now, host/doctor_machine.py at the machine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from . import doctor_files, doctor_line, doctor_state
from .. import __version__
from ..host import doctor_dial as dial
from ..host import doctor_front
from ..host import doctor_machine as machine
from ..host import doctor_tls as tls
from ..host.doctor import RUNNER, Probe

if TYPE_CHECKING:
    from pathlib import Path


TABLES = (
    RUNNER, dial.DIAL, tls.TLS, doctor_front.FRONT, machine.MACHINE, doctor_files.FILES,
    doctor_line.LINE, doctor_state.STATE,
)  # fmt: skip
"""Every finding that this doctor can make."""
TORCH_S = 60.0
"""Seconds for torch to say whether it sees a GPU: its first import on a small board takes long."""


LINE_S = 45.0
"""Seconds for one of the two servers, all steps together."""


def probes(directory: Path) -> list[Probe]:
    """Return what there is to look at for the device of a directory."""
    known = doctor_files.Known.read(directory)
    now = datetime.now(UTC)
    ddp = known.files.ddp if known.files else 0
    return [
        Probe("directory", partial(doctor_files.directory_of, known)),
        Probe("owner", partial(doctor_state.owner, directory)),
        Probe("certificates", partial(doctor_files.leaves, known, now)),
        Probe("member list", partial(doctor_state.members, known, now)),
        Probe("limits", partial(doctor_state.limits, known)),
        Probe("apps", partial(doctor_state.apps, directory)),
        Probe("agent", partial(doctor_state.agent, directory)),
        Probe("journal", partial(doctor_files.journal, directory)),
        Probe("proxies", partial(doctor_line.proxies, known)),
        Probe("front", partial(doctor_line.front, known), LINE_S),
        Probe("gateway", partial(doctor_line.gateway, known), LINE_S),
        Probe("platform", machine.platform_of),
        Probe("versions", partial(machine.versions, __version__)),
        Probe("wheels", machine.wheels),
        Probe("disk", partial(machine.disk, directory)),
        Probe(
            "memory", partial(machine.memory, known.policy.model_bytes, bound=known.policy.memory)
        ),
        Probe("GPU", partial(machine.gpu, ddp), TORCH_S),
    ]
