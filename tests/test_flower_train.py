"""`umbel.train` over a real core: a Grid in memory whose nodes are devices with real sessions."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import umbel
from umbel.clients.child import InProcess
from umbel.clients.device_files import DeviceFiles
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import RoundFailed, SettingsError, StateError, TooFewMembers
from umbel.protocol.plan import Params
from umbel.server import gathering
from umbel.server.flower_train import train
from umbel.server.run_directory import RunDirectory
from umbel.server.settings import RunSettings
from umbel.simulation.federation import Federation
from umbel.strategies.metrics import Count, Sum
from umbel.tests import damage
from umbel.tests.federations import APP, DeviceThread, addressed, core, made
from umbel.tests.flower_grid import Desk, identified
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.dev_federation import DevFederation

METRICS = {"eval.loss": Sum(100.0)}


class Halves(umbel.Task):
    """Points in eight dimensions, labelled by the sign of the first; sites of different size."""

    def model(self) -> Any:
        """Return a small network."""
        return umbel.MLP(8, 6, 3)

    def train_data(self, site: umbel.Site) -> Any:
        """Return 24 points and one more for each index."""
        return _points(site.index, 24 + site.index)

    def test_data(self) -> Any:
        """Return 60 points."""
        return _points(999, 60)


def _points(seed: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


class Wrapped(Numbers):
    """What a wrapped app's trainer declares for METRICS: the examples are counted anyway."""

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return loss and examples."""
        counted = {"train.examples": 0} if phase == "train" else {}
        return {**counted, "eval.loss": 24, "eval.examples": 0}

    def train(self, arrays: Any, site: Any, settings: Any) -> Any:
        """Return the numbers of the table."""
        result = super().train(arrays, site, settings)
        counted = {"train.examples": self.weight, "eval.examples": self.weight}
        return replace(result, metrics={**result.metrics, **counted})

    def evaluate(self, arrays: Any, site: Any) -> Any:
        """Return a loss over two examples."""
        result = super().evaluate(arrays, site)
        return replace(result, metrics={**result.metrics, "eval.examples": 2})


class Nodes(Desk):
    """Nodes whose ClientApp is a device in a thread; one that refuses answers with its code."""

    def __init__(self, federation: DevFederation, trainer: Callable[[], Any]) -> None:
        """Let all be online."""
        super().__init__(federation)
        self.federation, self.trainer = federation, trainer
        self.devices: list[tuple[Message, DeviceThread]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start the ClientApp of each node that is invited."""
        given = list(messages)
        ids = list(super().push_messages(given))
        for message in given:
            place = message.metadata.dst_node_id - 101
            invite: Any = message.content["umbel.invite"]
            files = DeviceFiles.read(self.federation.device(f"edge-{place}"))
            device = DeviceThread(files, self.trainer(), place)
            self.devices.append((message, device.start(invite["run"], invite["ticket"])))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers of the sessions that have ended."""
        found = []
        for message, device in list(self.devices):
            if device.outcome is not None and message.metadata.message_id in set(message_ids):
                record = ConfigRecord({"code": int(device.outcome.reason)})
                found.append(Message(RecordDict({"umbel.session": record}), reply_to=message))
        return found

    def ends(self) -> list[int]:
        """Return how the sessions ended."""
        return [int(device.join().reason) for _, device in self.devices]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """Three devices and a core."""
    found = made(tmp_path_factory.mktemp("federation"))
    with core(found) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture
def home(federation: DevFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a ServerApp, and where runs are kept."""
    identified(monkeypatch)
    for name in ("UMBEL_SETTINGS", "UMBEL_SECURE", "UMBEL_RUN", "UMBEL_INIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UMBEL_FEDERATION", str(federation.folder))
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    return tmp_path


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Read a ledger."""
    base = sqlite3.connect(f"file:{path / 'ledger.sqlite'}?mode=ro", uri=True)
    try:
        return base.execute(query).fetchall()
    finally:
        base.close()


# ---- runs ----------------------------------------------------------------------------------------


def test_a_task_is_learned_as_the_simulator_learns_it(
    federation: DevFederation, home: Path
) -> None:
    grid = Nodes(federation, lambda: InProcess(Halves()))
    config = {"clients": 3, "rounds": 3, "lr": 0.3, "seed": 5, "weight-cap": 40}
    result = train(grid, umbel.FedAvg(), task=Halves(), config=config)
    assert grid.ends() == [pb.REASON_GOODBYE] * 3
    phases = [(r.round, r.phase, r.outcome, len(r.survivors)) for r in result.records]
    assert phases == [
        *((n, "train", "finished", 3) for n in (1, 2, 3)), (3, "evaluate", "finished", 3)
    ]  # fmt: skip
    assert all(0 < r.bytes_up < 100_000 for r in result.records)
    linked = _simulated(home)
    for name, array in linked.model.items():  # rounding is random on a device
        np.testing.assert_allclose(result.model[name], array, atol=1e-5)
        np.testing.assert_array_equal(result.arrays[name].numpy(), result.model[name])
    here, there = (r.records[2].metrics["test.accuracy"] for r in (result, linked))
    assert here == there  # the last one; models in between may have been passed over
    assert result.path == home / "runs" / result.run
    assert result.run.startswith("small-")


def _simulated(home: Path) -> Any:
    settings = RunSettings(
        run="linked", rounds=3, seed=5, config={"lr": 0.3, "seed": 5},
        params=Params(min_members=3, min_survivors=3, value_range=1.0, weight_cap=40),
    )  # fmt: skip
    return Federation(InProcess(Halves()), settings, clients=3, home=home).run()


def test_the_ledger_says_what_the_run_was(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "named")
    monkeypatch.setenv("UMBEL_SETTINGS", '{"rounds": 1, "width": 7}')
    monkeypatch.setenv("UMBEL_STARTED", '{"app": "/apps/x"}')
    config = {"clients": 3, "rounds": 9, "weight-cap": 40}
    grid = Nodes(federation, Wrapped)
    result = train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS, config=config)
    assert result.run == "named"
    ((run, security, described),) = rows(result.path, "SELECT run, security, config FROM run")
    assert (run, security) == ("named", "on (development CA)")
    found = json.loads(described)
    assert (found["scheme"], found["federation"], found["flower-run"]) == ("A", "tested", "77")
    assert found["started"] == {"app": "/apps/x", "config": {}, "bundle": APP.hex()}
    assert found["config"] == {"width": 7, "seed": 0}  # the environment's, over the app's
    outcomes = rows(result.path, "SELECT round, phase, outcome FROM round ORDER BY seq")
    assert outcomes == [(1, "train", "finished"), (1, "evaluate", "finished")]
    invited: Any = grid.pushed[0].content["config"]
    assert dict(invited) == {"width": 7, "seed": 0}


def start() -> dict[str, NDArray[Any]]:
    """Return the initial model of `Numbers`."""
    return Numbers().arrays()


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 0.52), (0.5, 0.51)])
def test_a_wrapped_app_brings_arrays_metrics_and_the_servers_test(
    federation: DevFederation, home: Path, rate: float, expected: float
) -> None:
    seen: list[float] = []

    def evaluate(arrays: Any) -> dict[str, float]:
        seen.append(float(arrays["w"][0]))
        return {"loss": 0.125}

    record = ArrayRecord({name: Array(array) for name, array in start().items()})
    result = train(
        Nodes(federation, Wrapped), umbel.FedAvg(), initial_arrays=record, metrics=METRICS,
        evaluate=evaluate,
        config={"clients": 3, "rounds": 1, "weight-cap": 40, "server-learning-rate": rate},
    )  # fmt: skip
    # Deltas 0.01, 0.02, 0.03 with equal weights; each round moves by their mean times the rate.
    np.testing.assert_allclose(result.model["w"], np.full(40, expected), atol=1e-5)
    assert seen == pytest.approx([expected], abs=1e-5)
    first, last = result.records
    assert first.metrics["test.loss"] == 0.125
    assert first.metrics["eval.loss"] == 0.5  # 0.5 * 7 over 7 examples
    assert last.metrics["eval.loss"] == 0.125  # 0.25 over 2


def test_the_seed_of_the_settings_draws_the_first_model(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_SETTINGS", '{"seed": 6}')
    config = {"clients": 3, "rounds": 1, "seed": 5, "weight-cap": 40}
    result = train(
        Nodes(federation, lambda: InProcess(Halves())), umbel.FedAvg(), task=Halves(), config=config
    )
    with RunDirectory.open(home, result.run) as directory:
        first = directory.read_round(0)
    wanted = InProcess(Halves()).arrays(6)
    assert all((first[name] == wanted[name]).all() for name in wanted)


# ---- runs that fail ------------------------------------------------------------------------------


def test_too_few_nodes_end_the_run_and_those_who_came_go_home(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "START_S", 1.5)
    grid = Nodes(federation, Wrapped)
    grid.nodes[103].status = "offline"
    with pytest.raises(TooFewMembers, match="2 nodes joined in 2 s, 3 are needed"):
        train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS,
              config={"clients": 3, "weight-cap": 40})  # fmt: skip
    assert grid.ends() == [pb.REASON_GOODBYE] * 2


def test_a_serverapp_that_is_told_to_end_ends_its_round_first(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "stopped")
    told = []

    class Telling(Wrapped):
        """Tells this process to end in the middle of the second round's training."""

        def train(self, arrays: Any, site: Any, settings: Any) -> Any:
            """Return the numbers of the table."""
            told.append(settings)
            if len(told) == 4:  # of three clients
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train(arrays, site, settings)

    grid = Nodes(federation, Telling)
    found = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RoundFailed, match=r"stopped by SIGTERM.*`umbel runs resume stopped`"):
        train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS,
              config={"clients": 3, "rounds": 50, "weight-cap": 40})  # fmt: skip
    assert signal.getsignal(signal.SIGTERM) is found
    assert grid.ends() == [pb.REASON_GOODBYE] * 3
    query = "SELECT round, outcome FROM round ORDER BY seq"
    assert rows(home / "runs" / "stopped", query) == [(1, "finished"), (2, "finished")]
    events = rows(home / "runs" / "stopped", "SELECT kind, code FROM event WHERE kind = 'stopped'")
    assert events == [("stopped", "SIGTERM")]


class Broken(Desk):
    """Nodes whose ClientApp cannot be imported; each says so a moment after it was asked."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take them, and let them fail."""
        given = list(messages)
        ids = list(super().push_messages(given))
        for message in given:
            self.fail(message, 2)
        return ids


def test_a_run_whose_clients_all_fail_ends_at_once_and_names_them(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "START_S", 1e9)
    grid = Broken(federation)
    with pytest.raises(TooFewMembers) as caught:
        train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS,
              config={"clients": 3, "weight-cap": 40})  # fmt: skip
    assert str(caught.value) == (
        "edge-0 its ClientApp failed, code 2; edge-1 its ClientApp failed, code 2; "
        "edge-2 its ClientApp failed, code 2: "
        "0 of the nodes could still join, 3 are needed"
    )
    assert len(grid.pushed) == 6  # each had a second chance


def test_a_plain_run_that_no_device_allows_fails_with_their_reason(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_SECURE", "off")
    monkeypatch.setenv("UMBEL_RUN", "plainly")
    grid = Nodes(federation, Wrapped)
    with pytest.raises(RoundFailed, match=r"refused: 3 x plain refused.*model is that of round 0"):
        train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS,
              config={"clients": 3, "weight-cap": 40})  # fmt: skip
    assert grid.ends() == [pb.REASON_GOODBYE] * 3
    ((security,),) = rows(home / "runs" / "plainly", "SELECT security FROM run")
    assert security == "off"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"UMBEL_SETTINGS": "{"}, "UMBEL_SETTINGS: expected a JSON object"),
        ({"UMBEL_SETTINGS": "[3]"}, "UMBEL_SETTINGS: expected a JSON object"),
        ({"UMBEL_SETTINGS": '{"lr": [1]}'}, "UMBEL_SETTINGS: expected a JSON object"),
        ({"UMBEL_SETTINGS": '{"rounds": 0}'}, "rounds: expected 1 or more"),
        ({"UMBEL_SETTINGS": '{"clients": 2}'}, "clients: expected at least 3"),
        ({"UMBEL_SETTINGS": '{"trip": 200.0}'}, "deadline: expected more than 4 trips"),
        ({"UMBEL_FEDERATION": ""}, "UMBEL_FEDERATION: expected the federation's directory"),
        ({"UMBEL_RUN": "no/such name"}, "run: expected letters"),
    ],
)
def test_a_wrong_setting_ends_before_anything_is_opened(
    federation: DevFederation,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    names: str,
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    grid = Desk(federation)
    with pytest.raises(SettingsError, match=names):
        train(grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS, config={"clients": 3})
    assert (grid.looks, list(home.iterdir())) == (0, [])


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "umbel.train: expected a task, or initial_arrays"),
        ({"initial_arrays": start(), "metrics": {"loss": Sum(1.0)}}, "metrics: loss"),
        ({"initial_arrays": start(), "metrics": {"train.examples": Count(9)}}, "train.examples"),
    ],
)
def test_what_is_learned_must_be_given(
    federation: DevFederation, home: Path, given: dict[str, Any], names: str
) -> None:
    with pytest.raises(SettingsError, match=names):
        train(Desk(federation), umbel.FedAvg(), **given, config={"clients": 3})
    assert list(home.iterdir()) == []


def test_a_run_that_exists_is_not_written_over(
    federation: DevFederation, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "before")
    damage.made(home, 1, "before")
    grid = Desk(federation)
    learned: Callable[[], object] = lambda: train(  # noqa: E731
        grid, umbel.FedAvg(), initial_arrays=start(), metrics=METRICS, config={"clients": 3}
    )
    with pytest.raises(StateError, match="expected a new run, got one that exists"):
        learned()
    assert grid.pushed == []


def test_without_a_core_one_line_says_what_to_start(
    federation: DevFederation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = made(tmp_path / "other")
    monkeypatch.setenv("UMBEL_FEDERATION", str(other.folder))
    with pytest.raises(StateError, match="start the core service") as caught:
        train(Desk(federation), umbel.FedAvg(), initial_arrays=start(), config={"clients": 3})
    assert "\n" not in str(caught.value)
    assert not (home / "runs").exists()
