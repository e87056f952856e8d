"""A wrapped Flower app whose every step waits for the test, and whose every byte is kept.

`STAGE` is a folder that the app's processes and the test share:

    keep             while it is there, what devices send to the gateway is kept
    trace            a JSON line for each event that reached the ServerApp, and each training
    go-P             the round up to which partition P may train
    hold             the event at which the ServerApp stops until this file goes
    stall-NAME       device NAME stops in the middle of its upload until this file goes
    boom-P           partition P raises at its next training
    sent-NAME-WHAT   what a device's process has sent: session messages, upload frames, HTTP
    values           what each client knows: distinctive, to be looked for where it must not be,
                     and no part of the app's own bundle
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PARAMETERS = 2_000_000
WEIGHTS = (7919, 6007, 5003, 4001, 3001)
"""Examples of each partition."""
SCORE, SEEN = 155.5, 7_654_321
"""What partition 0 reports: a mean (times its weight: 1231404.5), and a count."""
TEXT = "patient Zacharias-4711"
PLACE = "/srv/ward-9/scan.dcm"
STEP = 1 / 64
"""How far partition P moves every parameter in a round: P + 1 times this; exact in the codec."""

_PYPROJECT = """
[project]
name = "staged"
version = "1.0.0"
description = "waits for its test"
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "staged.server_app:app"
clientapp = "staged.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 60
rogue = ""
"""

_HOOKS = """
import json, os, time
from pathlib import Path

import umbel

STAGE = Path({stage})
VALUES = json.loads((STAGE / "values").read_text())
METRICS = {{"train.score": umbel.Sum(1e8), "train.seen": umbel.Count(10**9)}}


def note(**what):
    with open(STAGE / "trace", "a") as file:
        file.write(json.dumps({{"at": time.time(), **what}}) + "\\n")


def keep(name, data):
    if (STAGE / "keep").exists() or name.endswith("-http"):
        with open(STAGE / f"sent-{{name}}", "ab") as file:
            file.write(len(data).to_bytes(4, "little") + data)


def wait_while(holds):
    while holds():
        time.sleep(0.01)


def allowed(name):
    try:
        return int((STAGE / name).read_text())
    except (OSError, ValueError):
        return 0
"""

_CLIENT = """
import os
from pathlib import Path

import httpx
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import umbel
from staged.hooks import METRICS, STAGE, VALUES, allowed, keep, note, wait_while
from umbel.clients import grpc_line, grpc_transfer

DEVICE = Path(os.environ["UMBEL_DEVICE"]).name if "UMBEL_DEVICE" in os.environ else ""
inner = ClientApp()


@inner.train()
def train(msg, context):
    p = int(context.node_config["partition-id"])
    number = int(msg.content["config"]["server-round"])
    note(op="training", node=DEVICE, round=number, pid=os.getpid())
    wait_while(lambda: allowed(f"go-{{p}}") < number)
    if (STAGE / f"boom-{{p}}").exists():
        (STAGE / f"boom-{{p}}").unlink()
        raise RuntimeError(VALUES["text"])
    arrays = [a + np.float32((p + 1) * {step}) for a in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({{name: of[p] for name, of in VALUES["metrics"].items()}})
    return Message(RecordDict({{"arrays": ArrayRecord(arrays), "metrics": metrics}}), reply_to=msg)


app = umbel.secure(inner, metrics=METRICS)

# From here on: instruments in the process that holds session and keys.
put, frames, send = grpc_line.Line._put, grpc_transfer._from, httpx.Client.send


def kept_put(self, up):
    keep(f"{{DEVICE}}-session", up.SerializeToString())
    put(self, up)


def stalled_frames(granted, action, transfer, done, pace):
    total, sent = len(action.buffer), 0
    for frame in frames(granted, action, transfer, done, pace):
        keep(f"{{DEVICE}}-upload", frame)
        sent += len(frame)
        if 2 * sent > total and (STAGE / f"stall-{{DEVICE}}").exists():
            note(op="half", node=DEVICE)
            wait_while((STAGE / f"stall-{{DEVICE}}").exists)
        yield frame


def kept_send(self, request, **how):
    request.read()
    keep(f"{{DEVICE}}-http", request.content)
    return send(self, request, **how)


grpc_line.Line._put = kept_put
grpc_transfer._from = stalled_frames
httpx.Client.send = kept_send
"""

_SERVER = """
import json, os, secrets

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

import umbel
from staged.hooks import METRICS, STAGE, note, wait_while
from umbel.protocol import messages_pb2 as pb
from umbel.server import core_client, flower_sittings

app = ServerApp()


class Staged(core_client.CoreClient):
    def events(self, seconds):
        found = super().events(seconds)
        for event in found:
            message = event.message
            what = {{"op": message.op, "node": str(message.fields.get("node", ""))}}
            if message.op == "message":
                parsed = pb.ToServer.FromString(bytes(message.payload))
                what["body"] = parsed.WhichOneof("body")
            note(**what)
            hold = STAGE / "hold"
            try:
                wanted = json.loads(hold.read_text())
            except (OSError, ValueError):
                continue
            if wanted.items() <= what.items():
                note(**what | {{"op": "held"}})
                wait_while(hold.exists)
        return found


flower_sittings.CoreClient = Staged


@app.main()
def main(grid, context):
    note(op="serverapp", node="", pid=os.getpid())
    rogue = str(context.run_config["rogue"])
    if rogue:
        return invite(grid, *rogue.split(" "))
    arrays = ArrayRecord([np.zeros({parameters}, np.float32)])
    config = {{"rounds": int(context.run_config["num-server-rounds"]), "weight-cap": 8192,
              "trip": 30.0, "deadline": 240.0, "rejoin": 0.0}}
    umbel.train(grid, umbel.FedAvg(), initial_arrays=arrays, metrics=METRICS, config=config)


def invite(grid, gateway, ca):
    record = ConfigRecord({{"run": "rogue", "gateway": gateway, "ca-sha256": ca,
                           "ticket": secrets.token_bytes(128), "lease": 60}})
    content = RecordDict({{"config": ConfigRecord({{}}), "umbel.invite": record}})
    nodes = list(grid.get_node_ids())
    asked = [Message(content, dst_node_id=n, message_type="train") for n in nodes]
    for reply in grid.send_and_receive(asked, timeout=60):
        code = dict(reply.content["umbel.session"]) if reply.has_content() else "error"
        note(op="answer", node=str(reply.metadata.src_node_id), said=code)
"""


def staged(folder: Path, stage: Path) -> Path:
    """Write the app into `folder`/staged and return that folder."""
    app = folder / "staged"
    (app / "staged").mkdir(parents=True)
    stage.mkdir()
    others = range(1, len(WEIGHTS))
    metrics = {
        "num-examples": WEIGHTS,
        "score": [SCORE, *(1.0 + p for p in others)],
        "seen": [SEEN, *(100 + p for p in others)],
    }
    (stage / "values").write_text(json.dumps({"text": f"{TEXT} in {PLACE}", "metrics": metrics}))
    values = {"stage": json.dumps(str(stage)), "step": STEP, "parameters": PARAMETERS}
    (app / "pyproject.toml").write_text(_PYPROJECT)
    (app / "staged" / "__init__.py").write_text("")
    for name, source in (("hooks", _HOOKS), ("client_app", _CLIENT), ("server_app", _SERVER)):
        (app / "staged" / f"{name}.py").write_text(source.format(**values))
    return app
