"""Which trainer a device gets, and a federation of numpy clients and a torch group."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from umbel.clients import trainers
from umbel.clients.child import Child
from umbel.clients.trainers import TorchGroup, trainer_for
from umbel.protocol.errors import Refused, SettingsError
from umbel.protocol.manifest import Manifest
from umbel.server.run_config import run_settings, tables
from umbel.simulation.federation import Federation
from umbel.strategies.app import AppRef
from umbel.strategies.server_rules import FedAvg
from umbel.tests.ddp_app import NAME, write

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
ROUNDS = 8


def test_without_a_gpu_a_child_trains_the_task() -> None:
    app = AppRef.read(DIGITS)
    found = trainer_for(app, 0)
    assert type(found) is Child
    assert found.app == app


@pytest.mark.parametrize(("gpus", "sizes"), [(1, (2, 1)), (2, (2, 2)), (4, (4, 4))])
def test_with_gpus_a_group_trains_the_torch_task(gpus: int, sizes: tuple[int, int]) -> None:
    found = trainer_for(AppRef(DIGITS, "digits.task:Digits"), gpus)
    assert isinstance(found, TorchGroup)
    assert found.app == AppRef(DIGITS, "digits.task:TorchDigits")
    assert found._sizes == sizes


def test_an_app_without_a_torch_task_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.umbel]\ntask = "a.b:C"\n')
    with pytest.raises(SettingsError, match=r"tool\.umbel\.task-torch: expected 'package\.module:"):
        trainer_for(AppRef.read(tmp_path), 1)


def test_a_group_needs_torch_and_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    app = AppRef(DIGITS, "digits.task:TorchDigits")
    with pytest.raises(SettingsError, match="training group: expected at least one process, got 0"):
        TorchGroup(app, 0)
    monkeypatch.setattr(trainers, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"gpu: expected torch, got 'none'; pip install"):
        TorchGroup(app)


def test_a_task_of_another_framework_is_a_refusal(tmp_path: Path) -> None:
    with TorchGroup(AppRef(write(tmp_path), f"{NAME}:Plain"), 1) as group:
        pid = None
        for _ in range(2):
            with pytest.raises(Refused, match=r"task-torch: expected .* nn\.Module, got 'MLP'"):
                group.arrays()
            assert group.pid is not None
            assert group.pid == (pid or group.pid)
            pid = group.pid


def test_torch_stays_out_of_the_session_and_out_of_edge_clients() -> None:
    program = (
        "import sys; from pathlib import Path; sys.modules['torch'] = None\n"
        "from umbel.strategies.app import AppRef\n"
        "from umbel.clients.trainers import trainer_for\n"
        f"with trainer_for(AppRef.read(Path({str(DIGITS)!r})), 0) as child: child.arrays()\n"
        "import umbel.clients.torch_ddp_worker\n"
        "del sys.modules['torch']\n"
        f"trainer_for(AppRef.read(Path({str(DIGITS)!r})), 1)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_numpy_clients_and_a_torch_group_train_one_model(tmp_path: Path) -> None:
    app = AppRef.read(DIGITS)
    table, config = tables(dict(app.settings), {"clients": 4, "rounds": ROUNDS})
    settings = run_settings(table, config, run="mixed", secure=True, rule=FedAvg())
    with closing(trainer_for(app, 0)) as edge, closing(trainer_for(app, 1)) as silo:
        ours, theirs = (Manifest.of(trainer.arrays()) for trainer in (edge, silo))
        declared = edge.declared()
        assert declared == silo.declared()
        assert ours == theirs
        assert ours.layout_digest(declared) == theirs.layout_digest(declared)
        trainer = [edge, edge, edge, silo]
        result = Federation(trainer, settings, clients=4, home=tmp_path).run()
        assert result.failure is None
        assert result.refusals == ()
        assert result.security == "on (development CA)"
        for record in result.records:
            assert sorted(result.names[node] for node in record.survivors) == [0, 1, 2, 3]
        assert (result.accuracy or 0) >= 0.9
        # The group's own test of the final model is the numpy client's.
        tests = [trainer.test(result.model) for trainer in (edge, silo)]
        assert tests[0] == pytest.approx(tests[1], rel=1e-5)
        assert all(np.isfinite(array).all() for array in result.model.values())
