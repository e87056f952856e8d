"""The server step out of a run's settings: what is said stands above what a ServerApp brings."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.server.flower_sittings import check_settings
from umbel.server.run_config import tables
from umbel.server.run_rule import MEAN, STEP, chosen
from umbel.server.settings import RunSettings
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import (
    RULES,
    FedAdam,
    FedAdamW,
    FedAvg,
    FedAvgM,
    FedYogi,
    Rule,
)

MEDIAN = Robust(rule="median", byzantine=1)


def _chosen(said: dict[str, Any], brought: Rule | None = None) -> Rule:
    table, config = tables({}, said)
    assert set(config) == {"seed"}  # none of the keys goes to the clients
    return chosen(table, said, brought)


@pytest.mark.parametrize(
    ("said", "brought", "expected"),
    [
        ({}, None, FedAvg()),
        ({"server-learning-rate": 0.5}, None, FedAvg(server_learning_rate=0.5)),
        ({"strategy": "fedyogi"}, None, FedYogi()),
        ({"strategy": "fedyogi", "server-eta": 0.0}, None, FedYogi(eta=0.01)),
        ({"strategy": "fedadam", "server-eta": 1, "server-form": "paper"}, None,
         FedAdam(eta=1.0, form="paper")),
        ({"strategy": "fedadamw", "server-weight-decay": 0.0, "server-beta-1": 0.0}, None,
         FedAdamW(weight_decay=0.0, beta_1=0.0)),
        # what a ServerApp brings, and what is said above it
        ({}, FedAdam(eta=0.5), FedAdam(eta=0.5)),
        ({"server-tau": 0.1}, FedAdam(eta=0.5), FedAdam(eta=0.5, tau=0.1)),
        ({"server-learning-rate": 1.0}, FedAvgM(server_learning_rate=0.5), FedAvgM()),
        ({"strategy": "fedadam"}, FedAdam(eta=0.5), FedAdam(eta=0.5)),
        ({"strategy": "fedadam"}, FedAvgM(server_momentum=0.5), FedAdam()),
        ({"strategy": "fedavg", "server-eta": 0.0}, FedAdam(eta=0.5), FedAvg()),
        # and how the mean is made
        ({"robust": "median"}, None, FedAvg(robust=Robust(rule="median"))),
        ({"robust": "multi-krum", "robust-byzantine": 2, "robust-keep": 3}, None,
         FedAvg(robust=Robust(rule="multi-krum", byzantine=2, keep=3))),
        ({"robust": "centred-clipping", "robust-radius": 2.5}, FedAvg(robust=MEDIAN),
         FedAvg(robust=Robust(rule="centred-clipping", radius=2.5))),
        ({"robust-byzantine": 3}, FedAvg(robust=MEDIAN),
         FedAvg(robust=Robust(rule="median", byzantine=3))),
        ({"robust": "none"}, FedAvg(robust=MEDIAN), FedAvg()),
        ({"strategy": "fedadam"}, FedAvg(robust=MEDIAN), FedAdam(robust=MEDIAN)),
    ],
)  # fmt: skip
def test_what_is_said_stands_above_what_is_brought(
    said: dict[str, Any], brought: Rule | None, expected: Rule
) -> None:
    assert _chosen(said, brought) == expected


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"strategy": "fedsgd"}, "strategy: expected one of fedavg, fedavgm"),
        ({"server-eta": 0.5}, "server-eta: expected a number of fedavg: server-learning-rate, got"),
        ({"strategy": "fedyogi", "server-form": "paper"}, "server-form: expected .*fedyogi"),
        ({"strategy": "fedadam", "server-form": "book"}, "server-form: expected flower or paper"),
        ({"strategy": "fedadam", "server-beta-2": 1.0}, "server-beta-2"),
        ({"robust": "mean"}, "robust: expected one of none, median"),
        ({"robust": "fltrust"}, "robust: .*server's own update"),
        ({"robust": "norm-bounding"}, "norm-bounding: radius"),
        (
            {"robust-byzantine": 1},
            "robust-byzantine: expected its default, 0, since",
        ),
    ],
)
def test_what_no_rule_takes_is_refused(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        _chosen(said)


def test_the_defaults_of_the_table_are_the_rules_own() -> None:
    fields = {field: default for field, default in STEP.values() if field != "eta"}
    for kind in RULES.values():
        own = kind().described()
        assert {key: own[key] for key in fields if key in own} == {
            key: fields[key] for key in fields if key in own
        }
    assert {field for kind in RULES.values() for field in kind().described()} == {
        "rule", "robust", *(field for field, _ in STEP.values()),
    }  # fmt: skip
    own = asdict(Robust(rule="median"))
    assert {field: own[field] or default for field, default in MEAN.values()} == dict(MEAN.values())


@pytest.mark.parametrize("rule", RULES)
def test_a_robust_rule_is_refused_with_secure_sums_before_anything_starts(rule: str) -> None:
    made = RULES[rule](robust=MEDIAN)
    with pytest.raises(SettingsError, match="median compares single updates"):
        RunSettings(run="r", rounds=1, scheme="A", rule=made)


def test_the_ledger_is_told_the_rule() -> None:
    settings = RunSettings(run="r", rounds=1, rule=FedAvg(server_learning_rate=0.5))
    assert settings.described()["strategy"] == {
        "rule": "fedavg", "robust": None, "server_learning_rate": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("now", "complaint"),
    [
        (FedAdam(eta=0.1), None),
        (FedAdam(eta=0.2), "strategy: eta: expected 0.1, got 0.2; resume the run with"),
        (FedAdam(eta=0.1, form="paper"), "strategy: form: expected flower, got 'paper'"),
        (FedYogi(eta=0.1), "strategy: form: expected flower"),
        (FedAdam(eta=0.1, robust=MEDIAN), "strategy: robust: expected None"),
    ],
)
def test_a_run_is_resumed_with_the_rule_that_it_began_with(
    now: Rule, complaint: str | None
) -> None:
    def made(rule: Rule) -> RunSettings:
        return RunSettings(run="r", rounds=2, rule=rule)

    recorded = json.loads(json.dumps(made(FedAdam(eta=0.1)).described()))
    settings = made(FedAdam(eta=0.1))
    object.__setattr__(settings, "rule", now)  # a robust one is refused before this
    if complaint is None:
        check_settings(recorded, settings)
        return
    with pytest.raises(SettingsError, match=complaint):
        check_settings(recorded, settings)
