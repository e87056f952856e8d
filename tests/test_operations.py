"""docs/operations.md says what the code does, wherever a program can compare the two."""

from __future__ import annotations

import json
import re

from umbel import cli
from umbel.clients import device_files, flower_launcher, flower_trainer
from umbel.host import process_tree
from umbel.server import flower_programs, initial, sessions
from umbel.server.federation_files import place
from umbel.server.run_config import KEYS, SIMULATION
from umbel.simulation import up_plan
from umbel.tests import provoked
from umbel.tests.test_docs import ROOT, rows

PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")


def test_every_setting_is_listed_with_its_default() -> None:
    listed = [row[:2] for row in rows(PAGE, "## 5.") if row[0] in KEYS]
    assert listed == [[k, json.dumps(v)] for k, v in KEYS.items() if k not in SIMULATION]
    (rejoin,) = (row[2] for row in rows(PAGE, "## 5.") if row[0] == "rejoin")
    assert f"umbel up: {up_plan.REJOIN_S}" in rejoin


def test_every_setting_of_a_simulation_is_listed_with_its_default() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text("utf-8")
    listed = [row[:2] for row in rows(page, "## Settings") if row[0] in SIMULATION]
    assert listed == [[key, str(value)] for key, value in SIMULATION.items()]


def test_every_finding_of_the_doctors_is_listed() -> None:
    listed = [row[:3] for row in rows(PAGE, "## 10.")[2:]]
    said = [[n, k.severity, k.meaning.replace("`", "")] for n, k in provoked.KINDS.items()]
    assert listed == said


def test_every_exit_status_is_listed() -> None:
    listed = [int(row[0]) for row in rows(PAGE, "## 4.") if row[0].isdigit()]
    statuses = (cli.FAILED, cli.ROUND_FAILED, cli.INTERRUPTED, cli.PIPE_CLOSED)
    assert listed == [0, *sorted(statuses)]


def test_every_variable_of_ours_is_listed() -> None:
    listed = set(re.findall(r"`(UMBEL_[A-Z0-9_]*[A-Z0-9])`", PAGE))
    ours = {
        flower_programs.FEDERATION, flower_programs.RUN, flower_programs.SETTINGS,
        flower_programs.PLAIN, flower_programs.RESUME, flower_programs.STARTED, initial.INIT,
        device_files.ENVIRONMENT,
        flower_launcher.APP, flower_trainer.CONTEXT, process_tree.MARK, "UMBEL_HOME",
    }  # fmt: skip
    assert listed >= ours
    for variable in listed - ours:
        assert variable.removeprefix("UMBEL_").lower().replace("_", "-") in KEYS


def test_times_of_sessions() -> None:
    assert f"the gateway waits {sessions.GRACE:.0f} s" in PAGE
    assert f"sessions wait {sessions.SUCCESSOR:.0f} s for it" in PAGE


def test_the_folder_of_a_federation() -> None:
    folder = place(ROOT, "dev").relative_to(ROOT).as_posix()
    assert f"`{folder.replace('dev', 'NAME')}/ca.pem`" in PAGE
