"""One device between two rounds, for `umbel bench footprint`: `footprint_node APP`.

The session's process as it is: identity, policy, journal on disk, session, and the child that runs
the app's task. It trains once, says the child's process id, and waits until its stdin closes.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from .secure_cast import Cast
from ..clients.child import Child
from ..clients.journal import FileJournal
from ..clients.policy import Policy
from ..clients.session import Device, Session
from ..clients.update import Update
from ..protocol.entropy import os_entropy
from ..strategies.app import AppRef
from ..strategies.task import Site
from ..strategies.trainer import Settings


def main(app: Path) -> None:
    """Be an idle device."""
    cast, policy = Cast(1), Policy()
    site = Site(partition=0, partitions=1)
    with tempfile.TemporaryDirectory() as state, Child(AppRef.read(app)) as child:
        child.train(child.arrays(), site, Settings())
        journal = FileJournal(Path(state) / "journal")
        session = Session(
            Device(
                identity=cast.identities[0],
                policy=policy,
                membership=cast.membership,
                ca=cast.root_digest,
                journal=journal,
                update=Update(child, site, policy, entropy=os_entropy),
                clock=lambda: datetime.now(UTC),
                entropy=os_entropy,
                log=lambda line: print(line, file=sys.stderr),
            )
        )
        gc.collect()
        print(child.pid, flush=True)
        sys.stdin.read()
        session.close()
        journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
