"""The files of a run: its ledger, the manifest and the arrays of a round, a first model.

What a checksum would keep from being looked at is summed again.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import cache
from hashlib import sha256
from pathlib import Path

from umbel.protocol.digest import model_digest
from umbel.protocol.documents import read_json
from umbel.protocol.errors import SettingsError, StateError
from umbel.server.initial import first_model
from umbel.server.ledger import Ledger, RoundRecord
from umbel.server.reviews import items
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_directory import RunDirectory
from umbel.server.run_plan import RunPlan, digest_of
from umbel.tests.fuzz_files import Spoilt, folder, of
from umbel.tests.fuzz_protocol import ARRAYS, MANIFEST
from umbel.tests.fuzzing import Parser

NODE = "aa" * 16


@cache
def run() -> RunDirectory:
    """Return a run with a round, open for reading."""
    made_here = RunDirectory.create(folder(), "run-1")
    made_here.ledger.create_run("run-1", "2030-01-01T00:00:00Z", {"lr": 0.1}, "on")
    digest = model_digest(MANIFEST.pack(ARRAYS))
    made_here.write_round(0, ARRAYS, MANIFEST, digest, {"best": 0})
    for event in ("joined", "late"):
        made_here.ledger.event(event, round=1, attempt=1, node=NODE, code="x", detail={"bytes": 1})
    made_here.ledger.commit_round(
        RoundRecord(
            round=1, attempt=1, phase="train", outcome="finished", roster=(NODE,), model="5e" * 32,
            survivors=(NODE,), metrics={"test.loss": 0.5}, seconds={"training": 1.0}, bytes_up=5,
        )
    )  # fmt: skip
    tested = {"test.loss": 0.5, "test.accuracy": 0.75}
    review: dict[str, float | str] = {
        "number": 1, "value": 0.0, "low": 5.0, "high": "inf", "cause": "x", "pauses": "yes"
    }  # fmt: skip
    made_here.ledger.event("review", round=1, attempt=0, code="site", detail=review)
    decision: dict[str, float | str] = {
        "number": 1, "review": made_here.ledger.head()[1], "by": "ann", "why": "x", "always": "no"
    }  # fmt: skip
    made_here.ledger.event("decision", round=1, attempt=0, code="approve", detail=decision)
    made_here.ledger.event("tested", round=1, attempt=0, code="5e" * 32, detail=tested)
    made_here.close()
    return RunDirectory.open(folder(), "run-1")


def _round() -> None:
    run().read(0)
    run().read_round(0)
    run().digest(0)
    run().stored_extra(0)


def _manifest_body() -> list[bytes]:
    body, _ = json.loads((run().round_path(0) / "manifest.json").read_bytes())
    return [json.dumps(body).encode()]


def _resummed(data: bytes) -> bytes:
    """Put a body's own hash behind it, as the writer does."""
    try:
        tree = json.loads(data)
        plain = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        plain = data
    return b"[" + plain + b',"' + sha256(plain).hexdigest().encode() + b'"]\n'


def _model() -> bytes:
    return (run().round_path(0) / MODEL_FILE).read_bytes()


def _model_header() -> list[bytes]:
    data = _model()
    return [data[8 : 8 + int.from_bytes(data[:8], "little")]]


def _with_payload(header: bytes) -> bytes:
    data = _model()
    return (
        len(header).to_bytes(8, "little") + header + data[8 + int.from_bytes(data[:8], "little") :]
    )


def _first(data: bytes) -> None:
    file = folder() / "init.safetensors"
    with Spoilt(file, data):
        first_model(ARRAYS, file)


def _ledger_of(run_id: str) -> Path:
    run()
    there = folder() / "runs" / run_id
    there.mkdir(parents=True, exist_ok=True)
    return there / "ledger.sqlite"


def _whole_ledger() -> bytes:
    """Return a ledger in one file."""
    file = _ledger_of("copied")
    with closing(sqlite3.connect(folder() / "runs" / "run-1" / "ledger.sqlite")) as source:
        if not file.exists():
            source.execute("VACUUM INTO ?", (str(file),))
    return file.read_bytes()


def _read_ledger(file: Path) -> None:
    with Ledger(file, read_only=True) as ledger:
        ledger.finished("train")
        ledger.head()
        for read in (ledger.run, ledger.rounds, ledger.events):
            read()
        items(ledger)
        ledger.verify()


def _ledger_bytes(data: bytes) -> None:
    file = _ledger_of("spoilt")
    with Spoilt(file, data):
        try:
            _read_ledger(file)
        finally:
            for left in ("-wal", "-shm", "-journal"):
                Path(f"{file}{left}").unlink(missing_ok=True)


CELLS = {
    "run.config": '{"lr":0.1}', "run.security": "on", "round.roster": "[]", "round.survivors": "[]",
    "round.metrics": '{"a":1.5}', "round.seconds": '{"training":2}', "round.round": 1,
    "round.bytes_up": 5, "round.outcome": "finished", "event.detail": '{"bytes":1}',
    "event.hash": "", "round.hash": "", "event.code": "x",
    "event.seq": 2, "event.at": "", "run.seq": 1, "run.run": "run-1",
}  # fmt: skip


def _ledger_cells(data: bytes) -> None:
    """Write values into the cells of a ledger, and read it."""
    try:
        cells = json.loads(data)
    except (ValueError, RecursionError):
        cells = None  # a monster
    file = _ledger_of("cells")
    file.write_bytes(_whole_ledger())
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for place in CELLS.keys() & cells.keys() if isinstance(cells, dict) else ():
            table, column = place.split(".")
            value = cells[place]
            text = value if isinstance(value, str | int | float | None) else json.dumps(value)
            try:
                db.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (text,))  # noqa: S608
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                continue
        db.commit()
    _read_ledger(file)


def _some_cells() -> list[bytes]:
    return [json.dumps(CELLS).encode(), *(json.dumps({k: CELLS[k]}).encode() for k in CELLS)]


PLAN = Path(__file__).parent / "vectors" / "plan.json"


def _plans() -> list[bytes]:
    """Return the shared example, and a shorter one."""
    plan = json.loads(PLAN.read_bytes())
    plan["round"]["quantiles"] = plan["round"]["quantiles"][:3]
    return [_sealed(json.dumps(plan).encode()), PLAN.read_bytes()]


def _sealed(data: bytes) -> bytes:
    """Write the digest of a plan's object into it, if it is one."""
    try:
        plan = read_json(data)
        return json.dumps(plan | {"digest": digest_of(plan)}).encode()
    except (ValueError, TypeError, AttributeError):
        return data


RUNS = (
    Parser(
        name="run_plan.read", form="json", errors=(SettingsError,), make=_plans, seal=_sealed,
        parse=of(
            lambda: folder() / "plan.json", lambda: RunPlan.read(folder() / "plan.json").digest
        ),
    ),
    Parser(
        name="run_directory.read_round, manifest", form="json", errors=(StateError,),
        make=_manifest_body, seal=_resummed,
        parse=of(lambda: run().round_path(0) / "manifest.json", _round),
    ),
    Parser(
        name="run_directory.read_round, bytes", errors=(StateError,), make=lambda: [_model()],
        parse=of(lambda: run().round_path(0) / MODEL_FILE, _round),
    ),
    Parser(
        name="initial.first_model, header", form="json", errors=(SettingsError,),
        make=_model_header, seal=_with_payload, parse=_first,
    ),
    Parser(
        name="initial.first_model, bytes", errors=(SettingsError,), make=lambda: [_model()],
        parse=_first,
    ),
    Parser(
        name="ledger, bytes", errors=(StateError,), make=lambda: [_whole_ledger()],
        parse=_ledger_bytes,
    ),
    Parser(
        name="ledger, cells", form="cells", errors=(StateError,), make=_some_cells,
        parse=_ledger_cells,
    ),
)  # fmt: skip
