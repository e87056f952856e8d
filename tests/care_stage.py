"""A server's directory for the tests of its care: members, tokens, keys, a run, no process."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

from umbel.server import backup_form as form
from umbel.server.restore import restore
from umbel.server.run_directory import RunDirectory
from umbel.tests.issuing import Keys, Stage
from umbel.tests.test_run_directory import commit, write

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.archive import Contents
    from umbel.server.restore import Restored


def made_server(home: Path) -> Stage:
    """Make a server with two members, a removed one, an open token, and a SuperLink's database."""
    (home / "federations").mkdir(parents=True, mode=0o700)
    made = Stage(home / "federations" / "wards")
    for name in ("press-1", "press-2", "press-3"):
        made.issuer.enrol(Keys().enrol(made.token(name)))
    made.issuer.remove("press-3")
    made.token("press-4")
    with closing(sqlite3.connect(made.folder / form.SUPERLINK)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE node (id INTEGER)")
        db.execute("INSERT INTO node VALUES (7)")
        db.commit()
    (made.folder / "tickets").mkdir(mode=0o700)
    (made.folder / "tickets" / "r-1.key").write_bytes(bytes(range(32)))
    for other in ("core.sock", "logs", "issuer.sock"):
        (made.folder / other).mkdir()
    return made


def run_of(home: Path, run: str = "r-1", federation: str = "wards", rounds: int = 2) -> None:
    with RunDirectory.create(home, run) as made:
        config = {"flower-run": "77", "federation": federation}
        made.ledger.create_run(run, "2027-03-01T12:00:00Z", config, "on")
        for number in range(rounds + 1):
            write(made, number)
            if number:
                commit(made, number)


def names(contents: Contents) -> set[str]:
    return {member.name for member in contents.members}


def restored(home: Path, file: Path, stage: Stage, *, secret: bytes | None = None) -> Restored:
    """Lose everything, and restore it an hour later."""
    shutil.rmtree(home)
    home.mkdir(mode=0o700)
    stage.clock.now += timedelta(hours=1)
    return restore(file, home, passphrase=secret, clock=stage.clock)
