"""The description of a fleet, and recorded devices: files that somebody hands on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from umbel.protocol.errors import SettingsError
from umbel.simulation.fleet import toml
from umbel.simulation.fleet.traces import Availability, capacity
from umbel.tests.fuzz_files import TOML, folder, of
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from pathlib import Path

DESCRIBED = b"""seed = 7
[cohorts.phones]
share = 0.8
site = "north"
samples = { loguniform = [12, 90] }
speed = { lognormal = { median = 0.02, sigma = 0.6 }, most = 1.0 }
bandwidth = { choice = [1e5, 1e6], weights = [3, 1] }
jitter = 0.1
dropout = 0.02
crash = 0.01
[cohorts.phones.online]
hours = { normal = { mean = 8, deviation = 2 }, least = 1 }
from = { uniform = [0, 24] }
[cohorts.boxes]
share = 0.2
site = "south"
spread = 0.3
memory = { choice = [2e9, 4e9] }
power = 3.5
price = 0.02
line-price = 5.0
samples = 50
speed = 0.001
downlink = 1e8
uplink = 1e7
[sites.north]
outage = 0.01
correlation = 0.1
outage-hours = 12
[sites.south]
correlation = 1
[server]
overhead = 0.03
spread = 0.2
memory = 16e9
[prices]
currency = "EUR"
egress = 0.09
[pools.a100]
kind = "gpu"
count = 4
hourly = 2.5
reserve = 0.1
fold = 6e9
[expect]
refused = 0.001
drop = 0.05
"""
AVAILABLE = {
    "7": {"active": [12, 400], "inactive": [90, 700], "finish_time": 1000, "duration": 3},
    "9": {"active": [0], "inactive": [600], "finish_time": 600.5, "model": "x"},
}
CAPACITY = {"1": {"computation": 162.0, "communication": 5648.1}}


def _file(name: str) -> Path:
    return folder() / name


def _described() -> object:
    described = toml.read(_file("fleet.toml"))
    fleet = described.fleet(described.clients if described.clients is not None else 5, 1)
    fleet.fates(np.arange(fleet.clients), 1, 1e5)
    return described.seed


def _online() -> object:
    return Availability.read(_file("online.json")).period.tolist()


FLEET = (
    Parser(
        name="fleet.toml", form="toml", growth=TOML, errors=(SettingsError,),
        make=lambda: [DESCRIBED], parse=of(lambda: _file("fleet.toml"), _described),
    ),
    Parser(
        name="traces.Availability.read", form="json", errors=(SettingsError,),
        make=lambda: [json.dumps(AVAILABLE).encode()],
        parse=of(lambda: _file("online.json"), _online),
    ),
    Parser(
        name="traces.capacity", form="json", errors=(SettingsError,),
        make=lambda: [json.dumps(CAPACITY).encode()],
        parse=of(lambda: _file("capacity.json"), lambda: capacity(_file("capacity.json"))),
    ),
)  # fmt: skip
