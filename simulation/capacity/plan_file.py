"""A plan as a file: the format `umbel-plan/1`, one JSON object, written here and read elsewhere.

| key | holds |
|---|---|
| format, umbel, seed, certainty | `umbel-plan/1`, the version that made it, and what was asked |
| digest | SHA-256, hex, of the rest: its JSON with sorted keys, no spaces, ASCII |
| fleet | `file`, `digest` of what was read, `clients` |
| model | `parameters`, `bytes` of a message, `dtype`, `digest` of the first model, or null |
| app, settings | the app's directory, or null; the run's settings by key |
| measured | null, or `runs`, `rounds` and `moved`: `what`, `before`, `after`, `factor` |
| round | seconds of one round: `p50`, `p90`, `p99`, `quantiles` (pairs of share and seconds), |
| | `wait` until enough are online, `by_hour`: `hour`, `p50`, `p90`, `miss`, share `online` |
| total | seconds of the run: `p50`, `p90`, `p99` |
| quorum | updates `needed`, how likely a round has fewer (`miss`), what independence would claim |
| | (`independent`), how likely the run is lost by it (`run_lost`); how many to ask for all |
| | `wanted` updates with the `certainty` (`invite`, `invite_independent`), how likely fewer than |
| | these come of so many asked (`by_asked`: number, share, the independent one); a `line` |
| secure | null, or `n`, `k`, `t`, `d`, `q`, how many are `lost` behind the roster, and how likely |
| | a round is `void` |
| asynchronous | null, or how many are `at_work`, the `buffer`, how many versions old updates are |
| | (`staleness`: `rule`, `mean`, `p50`, `p90`, `p99`, what one `counts` on average, `shares`: |
| | pairs of age and share), whose they are (`updates` by cohort, those of the `fastest` and the |
| | `slowest` tenth of the devices), and both in words (`lines`). A round is a version then |
| deadline | seconds `set` and `suggested`, and a `line` |
| clients | one for each cohort: `cohort`, `site`, `share` of the fleet, and of those `asked` the |
| | shares `used`, `late`, `lost`, `offline`, `crashed` |
| sites | for each the `share` of those that are asked, and how many updates a round is `expected` |
| | to have of it |
| bytes, energy, money | of the run (costs.py) |
| server | bytes of `memory`, its `terms`, what it has (`limit`), `ranks`, `pool` or null, and the |
| | seconds of `work` a round by one process |
| bottleneck | which `cohort` and `part` closes which `share` of the rounds, a `line`, and all |
| | that close them (`shares`) |
| sensitivity | one for each assumption: `name`, `change`, and by which share `round_p90`, |
| | `total_p50`, `money` grow, `miss` in absolute terms; the largest first |
| expect | what a run is compared with: seconds of a round (`duration`: p5 and p95 as `low`, |
| | `high`, p0.05 and p99.95 as `low3`, `high3`); in the same form, by cohort, its share of a |
| | round's updates (`participation`), and the share of updates that the firewall refuses |
| | (`rejections`); how far a metric may fall below its best (`drop`); which part of an hour |
| | a round takes where rounds of one hour go together, else null (`hourly`) |
| first, then | what to change first, and a list of what to change after that |
| lines | warnings, one each |

What never happens, or cannot be said, is null, and a line says why.
"""

from __future__ import annotations

import json
import math
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...host.whole_file import write_whole
from ...protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .sample import Sample

FORMAT = "umbel-plan/1"
_PERCENT = tuple(k / 100 for k in range(1, 100))
SHARES = (0.0005, 0.001, 0.005, *_PERCENT, 0.995, 0.999, 0.9995)
"""Of which a round's quantiles are written."""


def quantiles(found: Sample) -> list[list[float]]:
    """Return pairs of share and value; see `SHARES`."""
    return [[share, found.at(share)] for share in SHARES]


def percentiles(found: Sample) -> dict[str, float]:
    """Return p50, p90 and p99."""
    return {"p50": found.at(0.5), "p90": found.at(0.9), "p99": found.at(0.99)}


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's object: what JSON has no number for is null, and the digest is there."""
    rest = {"format": FORMAT, "umbel": __version__, **_plain(content)}
    return {**rest, "digest": digest_of(rest)}


def digest_of(plan: Mapping[str, Any]) -> str:
    """Return the digest that a plan must name."""
    rest = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode("ascii")).hexdigest()


def write(path: Path, plan: Mapping[str, Any]) -> None:
    """Write a plan's object to a file.

    Raises:
        StateError: It cannot be written.
    """
    written(path, (json.dumps(plan, indent=1, allow_nan=False) + "\n").encode("ascii"))


def written(path: Path, content: bytes) -> None:
    """Write a file that people may read.

    Raises:
        StateError: It cannot be written.
    """
    try:
        write_whole(path, content, 0o644)
    except OSError as error:
        raise StateError(str(path), "a file that can be written", error.strerror) from error


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
