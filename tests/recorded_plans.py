"""Plans that were never made, for tests of the page: the shared example, and what may be in one."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

from umbel.tests.recorded_runs import HOSTILE


def example() -> dict[str, Any]:
    """Return the plan that all readers of the format share."""
    path = Path(__file__).parent / "vectors" / "plan.json"
    found: dict[str, Any] = json.loads(path.read_text("ascii"))
    return found


def rich() -> dict[str, Any]:
    """Return one that says all that a page can draw, with hostile names."""
    plan = copy.deepcopy(example())
    plan["app"] = f"examples/{HOSTILE}"
    plan["first"] = "Ask 141 clients in place of 130: a lost site takes 40 % of the devices."
    plan["lines"] = ["independence claims 99.9 % of rounds with quorum; the sites make it 94 %"]
    for told in plan["round"]["by_hour"]:
        night = math.cos((told["hour"] - 2) / 24 * 2 * math.pi)
        told["online"] = 0.35 + 0.3 * night
        told["p50"] = 60.0 - 20 * night
        told["p90"] = 90.0 - 40 * night
        told["miss"] = 0.02 * max(0.0, -night)
    plan["quorum"]["by_asked"] = [
        [n, 1 / (1 + math.exp((n - 112) / 6)), 1 / (1 + math.exp((n - 104) / 2))]
        for n in range(90, 171, 2)
    ]
    plan["bottleneck"]["shares"] = [
        {"cohort": "slow", "part": "up", "share": 0.61},
        {"cohort": "slow", "part": "train", "share": 0.2},
        {"cohort": "fast", "part": "train", "share": 0.11},
        {"cohort": "", "part": "deadline", "share": 0.08},
    ]
    plan["secure"] = {"n": 100, "k": 21, "t": 11, "d": 10, "q": 90, "void": 1.5e-7}
    plan["round"]["wait"] = {"p50": 0.0, "p90": 400.0, "p99": 3600.0}
    names = ("slow: uplink", "dropout", f"north: outage {HOSTILE}", "fast: seconds a sample")
    plan["sensitivity"] = [
        {
            "name": name,
            "change": change,
            "round_p90": sign * 0.08 / (i + 1),
            "total_p50": sign * 0.05 / (i + 1),
            "miss": sign * 0.004 * i,
            "money": 0.0,
        }
        for i, name in enumerate(names)
        for change, sign in (("-10 %", -1), ("+10 %", 1.3))
    ]
    plan["measured"] = {
        "runs": ["fleet-1", HOSTILE],
        "rounds": 20,
        "moved": [
            {"what": "slow: speed", "before": 0.02, "after": 0.031, "factor": 1.55},
            {"what": "dropout", "before": 0.05, "after": None, "factor": None},
        ],
    }
    return plan


def poor() -> dict[str, Any]:
    """Return one in which little can be said: rounds do not end, nothing was tried out."""
    plan = copy.deepcopy(example())
    for name in ("p50", "p90", "p99"):
        plan["round"][name] = plan["total"][name] = plan["round"]["wait"][name] = None
    plan["round"]["quantiles"] = [[share, None] for share, _ in plan["round"]["quantiles"]]
    plan["round"]["by_hour"] = []
    plan["quorum"] |= dict.fromkeys(("independent", "invite", "invite_independent"))
    plan["deadline"]["suggested"] = None
    plan["money"] = {"currency": "USD", "total": None, "parts": {"egress": 0.0}}
    plan["energy"] = {}
    plan["server"]["limit"] = None
    plan["sensitivity"] = []
    del plan["first"]
    return plan


def asynchronous() -> dict[str, Any]:
    """Return one of an asynchronous run, with hostile names, whose days are seen in part."""
    plan = rich()
    plan["secure"] = None
    plan["quorum"] |= {
        **dict.fromkeys(("independent", "invite", "invite_independent")),
        "needed": 20, "wanted": 20, "by_asked": [], "line": "none: the first that come are taken",
    }  # fmt: skip
    plan["deadline"]["suggested"] = None
    plan["bottleneck"] |= {"cohort": "", "part": "", "share": 0.0, "shares": [], "line": "nobody"}
    plan["round"]["wait"] = {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    for told in plan["round"]["by_hour"][3:]:
        told.update(dict.fromkeys(("p50", "p90", "miss")))
    shares = [[age, 0.3 * 0.7**age] for age in range(90)]
    plan["asynchronous"] = {
        "at_work": 100,
        "buffer": 20,
        "staleness": {
            "rule": "polynomial 0.5", "mean": 2.3, "p50": 1, "p90": 6, "p99": 12, "counts": 0.6,
            "shares": shares,
        },
        "updates": {told["cohort"]: 1 / len(plan["clients"]) for told in plan["clients"]},
        "fastest": 0.2,
        "slowest": 0.04,
        "lines": [f"2.3 versions on average, by {HOSTILE}", f"fast 50 %; {HOSTILE} 50 %"],
    }  # fmt: skip
    return plan
