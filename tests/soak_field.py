"""A federation of bare clients for soak and chaos: core, driver and devices, each a process.

    core service    `umbel core up`, on a port that it keeps when it is started anew
    driver          soak_driver.py: `umbel.train`, with run directory, ledger and checkpoints
    nursery         process_host.py: imports everything once, each client is a fork of it
    client          soak_client.py, with its training child

A test starts, kills and restarts each by its name; nothing here is part of what is tested.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from umbel.server.ledger import RoundRecord, _round
from umbel.simulation.dev_federation import Client, prepare, write_devices
from umbel.tests import chaos_moment
from umbel.tests.federations import APP
from umbel.tests.process_host import Host
from umbel.tests.soak_task import Chain, write_app

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from umbel.tests.process_host import Child

RUN = "soak"
SETTINGS = {"value-range": 0.5, "weight-cap": 40, "seed": 0}
"""Of every run here; range and cap are those of integers.py."""


class Field:
    """Everything that takes part, until `close`."""

    def __init__(self, folder: Path, clients: int, config: Mapping[str, Any]) -> None:
        """Write a federation's files; nothing runs before `start`.

        Args:
            folder: For everything; a short path, for a socket's name.
            clients: How many.
            config: Of the run, beside `SETTINGS`.
        """
        self.folder, self.clients = folder, clients
        self.config = {"clients": clients, **SETTINGS, **config}
        self.home, self.mail = folder / "home", folder / "mail"
        self.home.mkdir()
        self.mail.mkdir()
        names = [Client(name=f"edge-{i:02}") for i in range(clients)]
        self.federation = prepare(folder / "federation", "tested", names, datetime.now(UTC))
        write_devices(
            self.federation, names, gateway="127.0.0.1:1", superlink="127.0.0.1:1", app=APP,
            secure=True, rounds=100_000,
        )  # fmt: skip
        self.index = {node.id: i for i, node in enumerate(self.federation.nodes)}
        self.app = write_app(folder / "app")
        self.port = 0
        self.core: subprocess.Popen[bytes] | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.host = Host(folder)
        self.devices: dict[int, Child] = {}

    def __enter__(self) -> Self:
        """Return the field."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.close()

    # -- processes ----------------------------------------------------------------------------

    def start_core(self) -> None:
        """Start the core service and wait until it listens."""
        command = [sys.executable, "-m", "umbel", "core", "up", "--port", str(self.port)]
        self.core = self._spawn([*command, "--federation", str(self.federation.folder)], "core")
        end = time.monotonic() + 60
        record = self.federation.folder / "core.json"
        while not record.exists() or json.loads(record.read_text())["pid"] != self.core.pid:
            assert self.core.poll() is None, self.log("core")
            assert time.monotonic() < end, "the core service does not listen"
            time.sleep(0.02)
        self.port = int(json.loads(record.read_text())["port"])

    def start_driver(self, *, resume: bool = False) -> None:
        """Start the ServerApp, of a new run or of the one that is there."""
        given = {"UMBEL_RESUME": "1"} if resume else {}
        command = [sys.executable, "-m", "umbel.tests.soak_driver", str(self.folder)]
        self.driver = self._spawn([*command, json.dumps(self.config)], "driver", **given)

    def start_client(self, index: int, gateway: str = "") -> None:
        """Start a client, the first or another."""
        node = self.federation.nodes[index]
        self.devices[index] = self.host.start(
            "client", directory=str(self.federation.device(node.name)), mail=str(self.mail),
            gateway=gateway or f"127.0.0.1:{self.port}", app=str(self.app), index=index,
            clients=self.clients,
        )  # fmt: skip
        pids = json.dumps([child.pid for child in self.devices.values()])
        (self.folder / chaos_moment.PIDS).write_text(pids)

    def _spawn(self, command: list[str], name: str, **given: str) -> subprocess.Popen[bytes]:
        own = {"UMBEL_FEDERATION": str(self.federation.folder), "UMBEL_HOME": str(self.home)}
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env = {k: v for k, v in os.environ.items() if not k.startswith("UMBEL_")}
        env |= {**own, **threads, "UMBEL_RUN": RUN, **given}
        with (self.folder / f"{name}.log").open("ab") as out:
            return subprocess.Popen(command, env=env, stdout=out, stderr=out, process_group=0)

    def log(self, name: str) -> str:
        """Return the end of what `core` or `driver` has said."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-4000:]

    def left(self) -> list[str]:
        """Return the command lines of processes that were started for this field, and run."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self.folder) in command and int(place.name) != os.getpid():
                    found.append(f"{place.name} {command[:120]}")
        return found

    def close(self) -> None:
        """Kill what is left; what ended in order is gone already."""
        self.host.close()
        for process in (self.driver, self.core):
            if process is not None:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait(20)

    def end_core(self) -> int:
        """Let the core service end in order; return its status."""
        assert self.core is not None
        self.core.send_signal(signal.SIGTERM)
        return self.core.wait(20)


class Ledger:
    """The run's record, read while it grows and checked row by row."""

    def __init__(self, field: Field) -> None:
        """Wait for the ledger's file."""
        self._path = field.home / "runs" / RUN / "ledger.sqlite"
        self._base: sqlite3.Connection | None = None
        self._seen = 0
        self.chain = Chain(field.index)
        self.records: list[RoundRecord] = []
        self.wrong: list[str] = []

    def poll(self) -> list[RoundRecord]:
        """Return the records that are new, each of them checked."""
        if self._base is None:
            if not self._path.exists():
                return []
            self._base = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10.0)
            self._base.row_factory = sqlite3.Row
        try:
            query = "SELECT * FROM round WHERE seq > ? ORDER BY seq"
            rows = self._base.execute(query, (self._seen,)).fetchall()
        except sqlite3.OperationalError:  # its tables are being made
            return []
        new = []
        for row in rows:
            fields = dict(row)
            self._seen = fields.pop("seq")
            fields.pop("hash")
            new.append(_round(fields))
            self.wrong += self.chain.take(new[-1])
        self.records += new
        return new

    def events(self) -> list[tuple[str, int, str]]:
        """Return kind, round and code of each event so far."""
        if self._base is None:
            return []
        rows = self._base.execute("SELECT kind, round, code FROM event ORDER BY seq").fetchall()
        return [tuple(row) for row in rows]

    def close(self) -> None:
        """Close the file."""
        if self._base is not None:
            self._base.close()


def waited(holds: Callable[[], Any], seconds: float, what: Callable[[], str]) -> Any:
    """Return what `holds` gives once it is true; fail with `what` after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, what()
        time.sleep(0.02)
    return found
