"""The server step of a run out of its settings: which rule, by which numbers, over whose mean.

`strategy` names one of strategies/server_rules.py, `robust` one of strategies/robust_rules.py. A
ServerApp may bring a rule of its own; what the settings say stands above what it brings, key by
key, and what they do not say stays as it is there.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ..protocol.errors import SettingsError
from ..strategies.robust_rules import RULES as ROBUST
from ..strategies.robust_rules import Robust
from ..strategies.server_rules import RULES, FedAvg, rule_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from ..strategies.server_rules import Rule

    Value = bool | int | float | str

STEP: dict[str, tuple[str, Value]] = {
    "server-learning-rate": ("server_learning_rate", 1.0),
    "server-momentum": ("server_momentum", 0.0),
    "server-eta": ("eta", 0.0),
    "server-beta-1": ("beta_1", 0.9),
    "server-beta-2": ("beta_2", 0.99),
    "server-tau": ("tau", 1e-3),
    "server-form": ("form", "flower"),
    "server-weight-decay": ("weight_decay", 0.01),
}
"""Keys of the step's numbers with field and default; `server-eta` 0 is the strategy's own."""
MEAN: dict[str, tuple[str, Value]] = {
    "robust-byzantine": ("byzantine", 0),
    "robust-keep": ("keep", 0),
    "robust-cut": ("cut", 0.2),
    "robust-radius": ("radius", 0.0),
    "robust-iterations": ("iterations", 1),
}
"""Keys of a robust rule's numbers with field and default; `robust-keep` and `-radius` 0 is none."""
NONE = "none"
KEYS: dict[str, Value] = {
    "strategy": FedAvg().name,
    **{key: default for key, (_, default) in STEP.items()},
    "robust": NONE,
    **{key: default for key, (_, default) in MEAN.items()},
}


def chosen(table: Mapping[str, Value], said: Container[str], brought: Rule | None = None) -> Rule:
    """Return the rule of a run.

    Args:
        table: The run's settings (run_config.py), all of `KEYS` among them.
        said: The keys that an app or a caller named; the others of `table` are defaults.
        brought: The ServerApp's own rule.

    Raises:
        SettingsError: No such rule, a number outside its range, or one that the rule does not take.
    """
    rule = brought or FedAvg()
    if "strategy" in said and table["strategy"] != rule.name:
        if table["strategy"] not in RULES:
            raise SettingsError("strategy", f"one of {', '.join(RULES)}", table["strategy"])
        rule = RULES[str(table["strategy"])]()
    robust = _mean(table, said, brought.robust if brought is not None else None)
    described = rule.described() | {"robust": None if robust is None else asdict(robust)}
    for key, (name, default) in STEP.items():
        value = table[key]
        if key not in said or (key == "server-eta" and value == default):
            continue
        if name in described:
            described[name] = value
        elif value != default:
            takes = ", ".join(k for k, (field, _) in STEP.items() if field in described)
            move = f"leave it out, or choose a strategy that takes {key}"
            raise SettingsError(key, f"a number of {rule.name}: {takes}", value, move)
    return rule_of(described)


def _mean(
    table: Mapping[str, Value], said: Container[str], brought: Robust | None
) -> Robust | None:
    """Return how the mean is made; None for the weighted mean."""
    own = brought.rule if brought is not None else NONE
    name = str(table["robust"]) if "robust" in said else own
    if name == NONE:
        for key, (_, default) in MEAN.items():
            if key in said and table[key] != default:
                expected = f"its default, {default}, since robust is {NONE}"
                raise SettingsError(key, expected, table[key], "leave it out, or set robust")
        return None
    if name not in ROBUST or name == "fltrust":
        known = ", ".join([NONE, *(rule for rule in ROBUST if rule != "fltrust")])
        move = ""
        if name == "fltrust":
            move = "it needs the server's own update: use umbel.FLTrust(...).start(...)"
        raise SettingsError("robust", f"one of {known}", name, move)
    taken = {k: f for k, (f, _) in MEAN.items() if k in said or name != own}
    numbers: dict[str, Any] = {field: table[key] for key, field in taken.items()}
    for field in ("keep", "radius"):
        if field in numbers:
            numbers[field] = numbers[field] or None
    if brought is not None and name == own:
        return replace(brought, **numbers)
    return Robust(rule=name, **numbers)
