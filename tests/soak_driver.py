"""The ServerApp of a soak: `umbel.train` in a process of its own, over the real core service.

Flower is a folder of letters (soak_client.py): every registered node is online, an invitation is
a file, and so is its answer. All the rest is the real thing: invitations, core.sock, coordinator,
run directory, resume.

    python -m umbel.tests.soak_driver FOLDER '{"clients": 6, "rounds": 30, ...}'

`FOLDER/mail` is the mailbox; `UMBEL_FEDERATION`, `UMBEL_HOME` and `UMBEL_RUN` are as `umbel up`
sets them. Where `FOLDER/kills.json` stands, chaos_moment.py kills at the moments it names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import umbel
from umbel.protocol.errors import UmbelError
from umbel.server import registry
from umbel.server.flower_train import train
from umbel.simulation.dev_federation import DevFederation
from umbel.tests import chaos_moment, soak_client
from umbel.tests.flower_grid import SUPERLINK, Desk
from umbel.tests.soak_task import METRICS, MOMENTUM, Table

if TYPE_CHECKING:
    from collections.abc import Iterable


class Mail(Desk):
    """Flower's Grid, as letters in a folder."""

    def __init__(self, federation: DevFederation, folder: Path) -> None:
        """Take the mailbox."""
        super().__init__(federation)
        self._folder = folder
        self._names = {101 + place: node.name for place, node in enumerate(federation.nodes)}
        self._open: dict[int, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Write each invitation into the box of its node."""
        found = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"{time.time_ns()}"
            message.metadata.__dict__["_message_id"] = name
            invite: Any = message.content["umbel.invite"]
            letter = {"id": name, "run": invite["run"], "ticket": invite["ticket"].hex()}
            soak_client.write(self._folder / self._names[node], letter)
            self._open[node] = message
            found.append(name)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have come, once."""
        wanted, found = set(message_ids), []
        for node, message in list(self._open.items()):
            answer = soak_client.read(self._folder / f"{self._names[node]}.answer")
            if answer.get("id") == message.metadata.message_id and answer["id"] in wanted:
                record = ConfigRecord({"code": answer["code"]})
                found.append(Message(RecordDict({"umbel.session": record}), reply_to=message))
                del self._open[node]
        return found


def main(folder: Path, config: dict[str, Any]) -> None:
    """Go through the run; the end of it is one line on stdout."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, SUPERLINK)  # what Flower's launcher gives
    directory = Path(os.environ["UMBEL_FEDERATION"])
    if (folder / chaos_moment.PLAN).exists():
        chaos_moment.watch(folder, directory / "core.json")
    nodes = tuple(sorted(registry.read(directory).values(), key=lambda node: node.name))
    federation = DevFederation(folder=directory, name="tested", nodes=nodes)
    try:
        result = train(
            Mail(federation, folder / "mail"), umbel.FedAvgM(server_momentum=MOMENTUM),
            initial_arrays=Table().arrays(), metrics=METRICS, config=config,
        )  # fmt: skip
    except UmbelError as error:
        print(f"failed: {error}", flush=True)
        raise SystemExit(1) from error
    print(f"over: {len(result.records)} records", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
