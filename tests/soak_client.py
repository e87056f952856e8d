"""A bare client of a soak: a device's whole process without Flower, killed and started at will.

What Flower would carry lies in a mailbox, one file each way for a device:

    MAIL/edge-I           the newest invitation: {"id", "run", "ticket"}, written by soak_driver.py
    MAIL/edge-I.answer    how the session that came of it ended: {"id", "code"}

The process joins with the newest invitation, also one that its killed predecessor has used (a
ticket admits a node for any number of connections), answers when the session ends, waits for the
next one, and ends after a goodbye. User code runs in a real training child (clients/child.py);
the rounding has a seed, so that the sums can be computed by hand.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.clients.child import Child
from umbel.clients.device_files import DeviceFiles
from umbel.clients.grpc_session import GatewaySession, Invitation, Outcome
from umbel.clients.journal import FileJournal
from umbel.clients.update import Update
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import StateError, UmbelError
from umbel.strategies.app import AppRef
from umbel.strategies.task import Site
from umbel.tests.federations import APP
from umbel.tests.soak_task import COMPONENT

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK_S = 0.05


def write(path: Path, what: Mapping[str, Any]) -> None:
    """Put a letter into a mailbox, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(what))
    temporary.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Return the letter of a mailbox, empty where there is none."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def serve(order: Mapping[str, Any]) -> None:
    """Be the process of one device.

    Args:
        order: `directory` of the device, `gateway` that it dials, `mail`, `app` (the directory
            to import from), `index` and `clients`.
    """
    files = DeviceFiles.read(Path(order["directory"]))
    files = replace(files, gateway=order["gateway"])
    box, answered = Path(order["mail"]) / files.directory.name, ""
    trainer = Child(AppRef(Path(order["app"]), COMPONENT))
    journal = _journal(files)
    site = Site(partition=order["index"], partitions=order["clients"])
    update = Update(trainer, site, files.policy, entropy=os_entropy, seed=0)
    device = files.device(update, journal, APP, lambda line: print(line, flush=True))
    while True:
        letter = read(box)
        if letter.get("id", "") == answered:
            time.sleep(LOOK_S)
            continue
        invitation = Invitation(letter["run"], bytes.fromhex(letter["ticket"]))
        outcome = _session(files, device, invitation)
        print(f"session over: {outcome.detail}", flush=True)
        answered = letter["id"]
        write(box.with_suffix(".answer"), {"id": answered, "code": int(outcome.reason)})
        if outcome.reason == pb.REASON_GOODBYE:
            break
    journal.close()
    trainer.close()


def _session(files: DeviceFiles, device: Any, invitation: Invitation) -> Outcome:
    try:
        return GatewaySession(files, device, invitation).serve()
    except UmbelError as error:
        return Outcome(pb.REASON_UNSPECIFIED, detail=str(error))


def _journal(files: DeviceFiles) -> FileJournal:
    """Open the journal, whose lock a process that was just killed may hold for a moment."""
    end = time.monotonic() + 5.0
    while True:
        try:
            return FileJournal(files.journal)
        except StateError:
            if time.monotonic() > end:
                raise
            time.sleep(LOOK_S)
