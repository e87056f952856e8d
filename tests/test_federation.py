"""A whole federation: the same bits however user code runs, policies that hold, what is left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.clients.child import InProcess
from umbel.clients.policy import Policy
from umbel.protocol.certificates import Authority
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import Refused, StateError
from umbel.protocol.manifest import Manifest
from umbel.server.run_directory import RunDirectory
from umbel.simulation.federation import FEDERATION, Federation, node_id, own_policy
from umbel.simulation.run import plan
from umbel.strategies.app import AppRef
from umbel.tests.apps import naughty

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

psutil = pytest.importorskip("psutil")  # it has no types


def simulate(home: Path, what: str = "", **options: Any) -> umbel.Result:
    folder = home / "app"
    if not folder.exists():
        naughty(folder, what)
    fields: dict[str, Any] = {"rounds": 2, "home": home, "run": "r"} | options
    return umbel.simulate(folder, umbel.Options(**fields))


def bits(model: dict[str, NDArray[Any]]) -> bytes:
    return bytes(Manifest.of(model).pack(model))


# ---- the same bits ---------------------------------------------------------------------------


def test_child_process_and_here_and_masks_off_give_the_same_bits(tmp_path: Path) -> None:
    ways = [(here, secure) for secure in (True, False) for here in (False, True)]
    rows = {"hand-over": "rows"}  # sums are rounded otherwise
    runs = [
        simulate(tmp_path, run=f"r{i}", in_process=here, secure=secure, settings=rows)
        for i, (here, secure) in enumerate(ways)
    ]
    assert {run.failure for run in runs} == {None}
    assert len({bits(run.model) for run in runs}) == 1
    assert len({tuple(record.model for record in run.records) for run in runs}) == 1
    assert [run.security for run in runs] == ["on (development CA)"] * 2 + ["off"] * 2


def test_another_seed_gives_other_bits(tmp_path: Path) -> None:
    first, second = (simulate(tmp_path, run=f"r{i}", seed=i, in_process=True) for i in (0, 1))
    assert bits(first.model) != bits(second.model)
    assert first.names.keys().isdisjoint(second.names)


def test_a_child_that_dies_leaves_no_process_and_the_round_lives(tmp_path: Path) -> None:
    before = psutil.Process().children()
    result = simulate(tmp_path, "killed")
    assert result.failure is None
    assert [len(record.survivors) for record in result.records] == [4, 4, 4]
    assert all("was killed by SIGKILL" in line for line in result.refusals)
    assert psutil.Process().children() == before  # neither running nor dead


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("raise", "task failed: the task raised; its trace is above"),
        ("nan", "not finite: metric 'loss' is nan"),
        ("empty", "task failed: train_data(site) returned no examples"),
        ("labels", "task failed: labels: expected classes from 0 to 1, got '5 to 6'"),
        ("lengths", "task failed: task data: expected 32 targets, got 31"),
        ("pair", "task failed: the task raised; its trace is above"),
        ("huge", "undeclared metric: metric 'loss': expected"),
    ],
)
def test_one_clients_failure_is_named_and_the_round_lives(
    what: str, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = simulate(tmp_path, what, rounds=1)
    assert result.failure is None
    # Once in training, once in evaluation.
    assert [line.startswith(f"client 2: refused: {code}") for line in result.refusals] == [True] * 2
    for record in result.records:
        assert sorted(result.names[node] for node in record.survivors) == [0, 1, 3, 4]
    with RunDirectory.open(tmp_path, "r") as directory:
        events = [event for event in directory.ledger.events() if event.kind == "refused"]
    assert [result.names[event.node] for event in events] == [2, 2]
    assert not any("4711" in event.code for event in events)  # the trace is the device's own
    assert ("patient 4711" in capfd.readouterr().err) is (what == "raise")


def test_a_server_without_its_test_data_goes_on(tmp_path: Path) -> None:
    result = simulate(tmp_path, "test", rounds=1)
    assert (result.failure, result.accuracy) == (None, None)
    assert result.refusals == (
        "server: no test of the model: task failed: the task raised; its trace is above",
    )


@pytest.mark.parametrize("what", ["import", "model"])
@pytest.mark.parametrize("in_process", [False, True])
def test_an_app_that_cannot_be_loaded_leaves_no_run(
    what: str, in_process: bool, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="task failed: the task raised"):
        simulate(tmp_path, what, in_process=in_process)
    assert not (tmp_path / "runs").exists()


# ---- sizes and losses ------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [3, 4, 5, 10])
def test_without_a_loss(clients: int, tmp_path: Path) -> None:
    result = simulate(tmp_path, clients=clients, in_process=True)
    assert result.failure is None
    assert [len(record.survivors) for record in result.records] == [clients] * 3


@pytest.mark.parametrize("boundary", ["roster", "shares", "inbox", "upload"])
def test_four_with_a_loss_after_the_keys_end_in_the_named_abort(
    boundary: str, tmp_path: Path
) -> None:
    result = simulate(tmp_path, clients=4, drops=[f"{boundary}:1"], in_process=True)
    assert result.failure is not None
    assert "4 members tolerate 0 losses" in str(result.failure)
    assert "the model is that of round 1" in str(result.failure)


@pytest.mark.parametrize("secure", [True, False])
def test_a_loss_that_is_tolerated(secure: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 5, "in_process": True, "drops": ["upload:1"]}
    result = simulate(tmp_path, secure=secure, **options)
    assert result.failure is None
    assert [len(record.survivors) for record in result.records] == [5, 4, 4]


# ---- policies --------------------------------------------------------------------------------


def test_the_simulators_own_policy_is_no_wider_than_the_built_in_one() -> None:
    settings = plan(umbel.Task(), umbel.Options(settings={"weight-cap": 1 << 21})).settings
    own = own_policy(settings)
    assert (own.required, own.min_members, own.min_survivors) == (True, 3, 3)
    assert own.max_weight == Policy().max_weight == 1 << 20
    assert own.max_value_range == settings.params.value_range == 1.0
    assert own.rounds_per_day == 11
    assert (own.corrupt, own.dropout, own.metrics) == (0.1, 0.1, ())
    plain = plan(umbel.Task(), umbel.Options(secure=False)).settings
    assert not own_policy(plain).required


@pytest.mark.parametrize(
    ("policy", "secure", "words"),
    [
        ({"min_members": 10}, True, "policy: the run has 3, secure.min_members is 10"),
        ({"min_survivors": 5}, True, "policy: the run has 3, secure.min_survivors is 5"),
        ({"corrupt": 0.3}, True, "policy: the run has 0.1, secure.corrupt is 0.3"),
        ({"model_bytes": 10}, True, "limits: a model of"),
        ({"apps": ()}, True, "app not allowed: bundle"),
        ({}, False, "plain refused: secure.required is true in this device's own policy"),
    ],
)
def test_a_users_policy_holds(
    policy: dict[str, Any], secure: bool, words: str, tmp_path: Path
) -> None:
    own = Policy(**({"min_members": 3, "min_survivors": 3} | policy))
    result = simulate(tmp_path, policy=own, secure=secure, in_process=True)
    assert result.failure is not None
    assert "round 1 aborted: 0 members are ready, at least 3 are needed" in str(result.failure)
    heads = sorted(line[: len(f"client 0: refused: {words}")] for line in result.refusals)
    assert heads == [f"client {i}: refused: {words}" for i in range(5)]
    with RunDirectory.open(tmp_path, "r") as directory:
        assert directory.kept() == (0,)


def test_a_users_clip_bounds_every_update(tmp_path: Path) -> None:
    tiny = Policy(min_members=3, min_survivors=3, l2_clip=1e-6)
    before, after = (
        simulate(tmp_path, run=f"r{i}", rounds=1, policy=p, in_process=True)
        for i, p in enumerate((None, tiny))
    )
    with RunDirectory.open(tmp_path, "r1") as directory:
        start = directory.read_round(0)

    def moved(result: umbel.Result) -> float:
        return float(np.sqrt(sum(np.square(result.model[k] - start[k]).sum() for k in start)))

    assert moved(before) > 0.01
    assert moved(after) < 1e-5


# ---- what is left ----------------------------------------------------------------------------


def test_the_run_directory(tmp_path: Path) -> None:
    result = simulate(tmp_path, rounds=5, in_process=True)
    assert result.path == tmp_path / "runs" / "r"
    assert {path.name for path in result.path.iterdir()} == {"ledger.sqlite", "rounds"}
    with RunDirectory.open(tmp_path, "r") as directory:
        # The run, its initial model, its memory, an event for each of five badly chosen weight
        # caps, six records, when its clients answered beside each.
        assert directory.ledger.verify() == 1 + 1 + 1 + 5 + 6 + 6
        assert directory.latest() == 5
        assert set(directory.kept()) >= {3, 4, 5}
        stored = directory.read_round(5)  # hashes it against the manifest
        run = directory.ledger.run()
        records = directory.ledger.rounds()
    assert bits(stored) == bits(result.model)
    assert records == result.records
    assert result.records[4].model == model_digest(bits(result.model)).hex()
    assert records[0].metrics[f"version.{umbel.__version__}"] == 5
    assert run.security == result.security == "on (development CA)"
    assert json.loads(json.dumps(run.config))["clients"] == 5
    for folder in (result.path / "rounds").iterdir():
        assert {p.name for p in folder.iterdir()} == {
            "00000-of-00001.safetensors",
            "manifest.json",
        }


def test_no_masks_shares_or_updates_are_on_the_disk(tmp_path: Path) -> None:
    """No 32 bytes of what the devices sent are in the run's directory."""
    planned = plan(naughty(tmp_path / "app"), umbel.Options(rounds=1, home=tmp_path, run="r"))
    trainer = here(tmp_path)
    federation = Federation(trainer, planned.settings, clients=4, home=tmp_path)
    secrets: list[bytes] = []

    def tap(way: str, node: str, data: bytes) -> None:
        if way == "up" and len(data) > 150:
            secrets.extend(data[at : at + 32] for at in range(100, len(data) - 32, 64))

    federation.link.tap = tap
    result = federation.run()
    assert len(secrets) > 50
    stored = b"".join(p.read_bytes() for p in sorted(result.path.rglob("*")) if p.is_file())
    assert not any(secret in stored for secret in secrets if any(secret))


def test_a_run_that_exists_is_not_written_over(tmp_path: Path) -> None:
    first = simulate(tmp_path, rounds=1, in_process=True)
    before = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    with pytest.raises(StateError, match="expected a new run, got one that exists; choose another"):
        simulate(tmp_path, rounds=1, in_process=True, seed=5)
    assert before == {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}


def test_every_simulation_has_a_ca_and_a_certificate_of_its_own(tmp_path: Path) -> None:
    planned = plan(naughty(tmp_path / "app"))
    roots = []
    for i in (1, 2):
        federation = Federation(here(tmp_path), planned.settings, clients=3, home=tmp_path / str(i))
        assert isinstance(federation.authority, Authority)
        roots.append(federation.authority.certificate.public_key())
        prints = {session._device.identity.fingerprint for session in federation.sessions}
        assert len(prints) == 3
        assert {d.identity.id for d in (s._device for s in federation.sessions)} == {
            node_id(0, index) for index in range(3)
        }
        federation.directory.close()
    assert roots[0] != roots[1]
    assert FEDERATION == "simulation"


def test_warnings_are_in_the_result(tmp_path: Path) -> None:
    result = simulate(tmp_path, rounds=1, in_process=True)
    assert result.warnings == (
        "weight-cap 1024 is more than 16 times the mean weight 32; lower it",
    )
    capped = simulate(tmp_path, rounds=1, run="s", in_process=True, settings={"weight-cap": 64})
    assert capped.warnings == ()


def here(folder: Path) -> InProcess:
    return InProcess(AppRef.read(folder / "app"))
