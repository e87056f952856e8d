"""A SuperNode's part in a test of the launcher: it gets one task, and its reply is written down.

`python -m umbel.tests.flower_task DIRECTORY` runs the launcher as SuperExec would, in a process of
its own. Only Flower's HTTP client is replaced: the task comes from `task.json` and `app.fab` of the
directory, what would be pushed goes to `reply.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp as flower

from umbel.clients import flower_launcher

PROJECT = """
[project]
name = "{name}"
version = "1.0.0"
description = "an app of a test"
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "{name}.client_app:app"
clientapp = "{name}.client_app:app"
"""


def bundle(folder: Path, code: str, name: str = "tiny", **modules: str) -> bytes:
    """Write an app with one ClientApp, as `flwr build` packs it."""
    package = folder / name
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name), "utf-8")
    (package / "__init__.py").write_text("", "utf-8")
    (package / "client_app.py").write_text(code, "utf-8")
    for module, text in modules.items():
        (package / f"{module}.py").write_text(text, "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's use of pathspec
        return build_fab_from_disk(folder)


def play(
    place: Path,
    fab: bytes,
    *,
    kind: str = "train",
    config: dict[str, Any] | None = None,
    invite: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> tuple[dict[str, Any], str]:
    """Run one task and return what was pushed, and what the device's console shows."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "app.fab").write_bytes(fab)
    task = {"kind": kind, "config": config or {}, "invite": invite or {}}
    (place / "task.json").write_text(json.dumps(task), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "umbel.tests.flower_task", str(place), *arguments],
        capture_output=True, text=True, check=False, env=environment, timeout=120,
    )  # fmt: skip
    reply = place / "reply.json"
    pushed = json.loads(reply.read_text("utf-8")) if reply.exists() else {}
    return pushed | {"status": done.returncode}, done.stdout + done.stderr


class _Client:
    """In place of Flower's HTTP client."""

    @classmethod
    def from_server_address(cls, **_: Any) -> _Client:
        return cls()

    def close(self) -> None:
        """Do nothing."""


class _Heart:
    is_running = False

    def __init__(self, *_: object) -> None:
        """Beat for nobody."""

    def start(self) -> None:
        """Do nothing."""


def _input(place: Path) -> tuple[Message, Context, Run, Fab]:
    task = json.loads((place / "task.json").read_text("utf-8"))
    content = (place / "app.fab").read_bytes()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    records: dict[str, Any] = {
        "arrays": ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
        "config": ConfigRecord(task["config"]),
    }
    if task["invite"]:
        invite = {**task["invite"], "ticket": bytes.fromhex(task["invite"]["ticket"])}
        records["umbel.invite"] = ConfigRecord(invite)
    message = Message(RecordDict(records), dst_node_id=3, message_type=task["kind"])
    run = Run.create_empty(2)
    run.fab_id, run.fab_version, run.fab_hash = "tests/tiny", "1.0.0", sha256(content).hexdigest()
    node_config: dict[str, bool | float | int | str] = {"partition-id": 0, "num-partitions": 1}
    context = Context(2, 3, node_config, RecordDict(), {})
    return message, context, run, Fab(run.fab_hash, content, {})


def _main(place: Path) -> None:
    pushed: dict[str, Any] = {}

    def push(_: object, message: Message, __: object) -> None:
        pushed["error"] = message.has_error()
        if message.has_error():
            pushed["code"], pushed["reason"] = message.error.code, message.error.reason
        else:
            pushed["records"] = {
                name: type(record).__name__ for name, record in message.content.items()
            }
            pushed["values"] = {
                name: dict(record) for name, record in message.content.config_records.items()
            }

    def output(client: object, context: object, sub_status: str, details: str) -> None:
        pushed["sub_status"], pushed["details"] = sub_status, details
        (place / "reply.json").write_text(json.dumps(pushed), "utf-8")

    names: Any = flower
    names.RuntimeHttpClient, names.HeartbeatSender = _Client, _Heart
    names.make_task_heartbeat_fn_http = lambda _: None
    names.pull_task_input = lambda _: _input(place)
    names.push_message, names.push_task_output = push, output
    more = sys.argv[2:]
    sys.argv = ["flwr-clientapp", "--runtime-api-address", "x:1", "--token", "t", "--insecure"]
    sys.argv += more
    sys.exit(flower_launcher.main())


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
