"""The plan that a run is started with: what its server needs of a file of format `umbel-plan/1`.

`umbel plan` writes the file (docs/planning.md); here it is read with suspicion. Its digest is
compared, and what is used must have its type and lie in its range. A run keeps the used part in its
record, so that it goes on, and its pages are drawn, without the file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .watch_terms import Band, Expected
from ..protocol.documents import read_json
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .ledger import RunRecord
    from .settings import RunSettings
    from ..protocol.manifest import Manifest

FORMAT = "umbel-plan/1"
MOST_BYTES = 16 << 20
"""Of a plan's file."""
KEYS = frozenset(
    (
        *("format", "umbel", "seed", "certainty", "digest", "fleet", "model", "app", "settings"),
        *("measured", "round", "total", "quorum", "secure", "deadline", "clients", "sites"),
        *("bytes", "energy", "money", "server", "bottleneck", "sensitivity", "expect", "first"),
        *("then", "lines", "asynchronous"),
    )
)
"""What a plan's file says; nothing else."""
KEPT = "plan"
"""Key of a run's record that has what it keeps of its plan."""
_USED = (
    *("digest", "fleet", "model", "settings", "round", "quorum", "clients", "bytes", "expect"),
)
"""What of it a run keeps."""
_QUANTILES = 4096
_NAMES = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What a run was planned to be."""

    digest: str
    """SHA-256, hex, of the plan."""
    fleet: str
    """Digest of the fleet's files, hex."""
    clients: int
    cohort: int | None
    buffer: int | None
    """Updates that make a version, of an asynchronous run; 0: it has rounds; None: not said."""
    secure: bool | None
    """Whether it was planned with masks; None where the plan does not say."""
    parameters: int | None
    """Values of the model."""
    model: str | None
    """Digest of the first model, hex, where it was known."""
    quantiles: tuple[tuple[float, float], ...]
    """Share of the rounds, and seconds within which they are done; both ascend."""
    sites: Mapping[str, str]
    """The site of each cohort, by name."""
    expected: Expected
    kept: Mapping[str, Any] = field(repr=False)
    """What the run's record has of it, as JSON can hold it; `of_record` reads it again."""

    @classmethod
    def read(cls, path: Path) -> RunPlan:
        """Read a plan's file.

        Raises:
            SettingsError: It is none, or was changed after it was written.
        """
        where = f"plan {path}"
        move = "`umbel plan FLEET.toml -o FILE` makes one"
        try:
            size = path.stat().st_size if path.is_file() else -1
            if size < 0:
                raise SettingsError(where, "a plan's file", "none", move)
            if size > MOST_BYTES:
                raise SettingsError(where, f"at most {MOST_BYTES} bytes", size, move)
            with path.open("rb") as file:
                data = file.read(size)
        except OSError as error:
            raise SettingsError(where, "a plan's file", error.strerror, move) from error
        try:
            document = read_json(data)
        except ValueError as error:
            raise SettingsError(where, "JSON", str(error), move) from error
        at = _At(where)
        at.check(document, "", dict)
        if document.get("format") != FORMAT:
            raise SettingsError(f"{where}: format", FORMAT, document.get("format"))
        if unknown := sorted(document.keys() - KEYS):
            raise SettingsError(where, f"the keys of {FORMAT}", unknown[0])
        if document.get("digest") != digest_of(document):
            move = "make the plan anew; it is not to be edited"
            raise SettingsError(
                f"{where}: digest", digest_of(document), document.get("digest"), move
            )
        return cls._made(document, at)

    @classmethod
    def of_record(cls, kept: object, run: str) -> RunPlan:
        """Read what a run's record keeps.

        Raises:
            SettingsError: It is nothing that a run keeps.
        """
        return cls._made(kept, _At(f"run {run}: {KEPT}"))

    @classmethod
    def kept_by(cls, record: RunRecord) -> RunPlan | None:
        """Return the plan of a run; None where it has none."""
        found = record.config.get(KEPT)
        return None if found is None else cls.of_record(found, record.run)

    def check(self, settings: RunSettings, clients: int, buffer: int) -> None:
        """Compare with the settings of the run that it is for.

        Args:
            settings: The run's.
            clients: How many it has.
            buffer: Updates that make a version; 0: it has rounds.

        Raises:
            SettingsError: It was made for another one.
        """
        secure = settings.scheme == "A"
        cohort = settings.cohort or clients
        for key, planned, now in (
            ("secure", self.secure, secure),
            ("clients", self.clients, clients),
            ("cohort", self.cohort, cohort),
            ("buffer", self.buffer, buffer),
        ):
            if planned is not None and planned != now:
                move = "plan the run as it is: umbel plan"
                if key == "secure":
                    move += f" --secure {'on' if now else 'off'}"
                if key == "clients":
                    move = f"umbel plan --clients {now}, or a run of {planned} clients"
                raise SettingsError(f"plan: {key}", f"that of the run, {now}", planned, move)

    def check_model(self, manifest: Manifest) -> None:
        """Compare with the run's model.

        Raises:
            SettingsError: The plan is about one of another size.
        """
        parameters = sum(entry.size for entry in manifest.entries)
        if self.parameters not in {None, parameters}:
            expected, move = (
                f"those of the run's model, {parameters}",
                "plan this model: umbel plan",
            )
            raise SettingsError("plan: parameters", expected, self.parameters, move)

    @classmethod
    def _made(cls, document: Any, at: _At) -> RunPlan:
        fleet, model, settings = (at.table(document, key) for key in ("fleet", "model", "settings"))
        rows = at.list(document, "clients", _NAMES)
        names = [at.of(row, "cohort", str) for row in rows]
        return cls(
            digest=at.of(document, "digest", str),
            fleet=at.of(fleet, "digest", str),
            clients=at.count(fleet, "clients") or 0,
            cohort=at.count(settings, "cohort", null=True),
            buffer=at.maybe(settings, "buffer", int),
            secure=at.maybe(settings, "secure", bool),
            parameters=at.count(model, "parameters", null=True),
            model=at.maybe(model, "digest", str),
            quantiles=_quantiles(at.table(document, "round"), at),
            sites={
                name: at.maybe(row, "site", str) or ""
                for name, row in zip(names, rows, strict=True)
            },
            expected=_expected(document, rows, at),
            kept={key: document[key] for key in _USED},
        )


class _At:
    """Reads values out of a document, and names the place of one that is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where

    def check(self, value: object, key: str, kind: type) -> None:
        if type(value) is not kind:
            where = f"{self._where}: {key}" if key else self._where
            raise SettingsError(where, f"a value of type {kind.__name__}", value)

    def of(self, table: Any, key: str, kind: type) -> Any:
        """Return a table's value of exactly one type."""
        self.check(table, "an entry", dict)
        self.check(table.get(key), key, kind)
        return table[key]

    def table(self, table: Any, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self.of(table, key, dict)
        return found

    def list(self, table: Any, key: str, most: int) -> list[Any]:
        found: list[Any] = self.of(table, key, list)
        if len(found) > most:
            raise SettingsError(f"{self._where}: {key}", f"at most {most} entries", len(found))
        return found

    def number(self, table: Any, key: str, most: float = math.inf) -> float:
        """Return a finite number from 0 to `most`."""
        self.check(table, "an entry", dict)
        value = table.get(key)
        if type(value) not in {int, float} or not 0 <= value <= most or math.isinf(value):
            bounds = "a number of 0 or more" if math.isinf(most) else f"0 to {most:g}"
            raise self.wrong(key, bounds, value)
        return float(value)

    def count(self, table: Any, key: str, *, null: bool = False) -> int | None:
        """Return a whole number of 1 or more; None for null where that may be."""
        self.check(table, "an entry", dict)
        value = table.get(key)
        if null and value is None:
            return None
        if type(value) is not int or value < 1:
            raise self.wrong(key, "a whole number of 1 or more", value)
        return value

    def maybe(self, table: Any, key: str, kind: type) -> Any:
        """Return a table's value of one type; None where it says null, or nothing."""
        self.check(table, "an entry", dict)
        return None if table.get(key) is None else self.of(table, key, kind)

    def wrong(self, key: str, expected: str, got: object) -> SettingsError:
        return SettingsError(f"{self._where}: {key}", expected, got)


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the digest that a plan's object must name: of its other keys, as canonical JSON."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return sha256(
        json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()


def _quantiles(table: dict[str, Any], at: _At) -> tuple[tuple[float, float], ...]:
    """Return the pairs of a round's distribution; none where the plan says that it never ends."""
    found: list[tuple[float, float]] = []
    for pair in at.list(table, "quantiles", _QUANTILES):
        at.check(pair, "round.quantiles", list)
        if len(pair) != 2:  # noqa: PLR2004 - share and seconds
            raise at.wrong("round.quantiles", "pairs of share and seconds", pair)
        named = {"share": pair[0], "seconds": pair[1]}
        if pair[1] is not None:  # null: a round that never ends
            found.append((at.number(named, "share", 1.0), at.number(named, "seconds")))
    if found != sorted(found) or [s for _, s in found] != sorted(s for _, s in found):
        raise at.wrong("round.quantiles", "shares and seconds that ascend", "others")
    return tuple(found)


def _expected(document: dict[str, Any], rows: list[Any], at: _At) -> Expected:
    said, quorum = at.table(document, "expect"), at.table(document, "quorum")
    traffic = at.table(document, "bytes")
    shares = at.maybe(said, "participation", dict) or {}
    both = [_maybe(traffic, key, at) for key in ("round_down", "round_up")]
    return Expected(
        duration=_band(said, "duration", at),
        hourly=_maybe(said, "hourly", at),
        participation={
            name: band for name in shares if (band := _band(shares, name, at)) is not None
        },
        rejections=_band(said, "rejections", at),
        drop=at.number(said, "drop", 1.0),
        miss=_maybe(quorum, "miss", at, 1.0),
        losses=_losses(rows, at),
        traffic=None if None in both else sum(filter(None, both)),
    )


def _maybe(table: dict[str, Any], key: str, at: _At, most: float = math.inf) -> float | None:
    return None if table.get(key) is None else at.number(table, key, most)


def _band(table: dict[str, Any], key: str, at: _At) -> Band | None:
    """Return an interval; None where the plan has none, or a bound of it is null."""
    found = at.maybe(table, key, dict)
    names = ("low", "high", "low3", "high3")
    if found is None or any(found.get(name) is None for name in names):
        return None
    band = Band(*(at.number(found, name) for name in names))
    if not band.low3 <= band.low <= band.high <= band.high3:
        raise at.wrong(f"expect.{key}", "low3 <= low <= high <= high3", list(band))
    return band


def _losses(rows: list[Any], at: _At) -> dict[str, float]:
    """Return by site the share of those asked whose updates are not used."""
    asked, used = dict[str, float](), dict[str, float]()
    for row in rows:
        site = at.maybe(row, "site", str)
        count, share = at.number(row, "asked"), at.number(row, "used", 1.0)
        if site:
            asked[site] = asked.get(site, 0.0) + count
            used[site] = used.get(site, 0.0) + share * count
    return {site: 1 - used[site] / count for site, count in asked.items() if count}
