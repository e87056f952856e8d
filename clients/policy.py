"""The device's own policy: what this device agrees to, whatever a server says.

TOML in the device's own file, strict: an unknown table or key, a bad value or a file that
somebody else could have written is a refusal that names file, line and key. An absent key,
or no file at all, means the built-in value, which is the strict one. `_KEYS` below is the
table of keys; the defaults stand in `Policy`.

The server can only be stricter: `check_start` compares the parameters that went into ctx0
with this device's own, one by one, and `check_roster`, `check_survivors` (called by the rules
of scheme A) count members and survivors themselves. Every refusal carries a code, and the
name of the key where a key decided it; never a value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from .policy_file import (
    Key,
    command,
    digests,
    flag,
    integer,
    line_of,
    positive,
    read_owned,
    share,
    text,
    texts,
    windows,
)
from ..protocol import graph, plan
from ..protocol import messages_pb2 as pb
from ..protocol.certificates import FEDERATION
from ..protocol.documents import read_toml
from ..protocol.errors import Refused, SettingsError
from ..strategies.counted import HISTOGRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PLAIN = "plain"
_KEYS: dict[str, Key] = {
    "trust.federation": text(FEDERATION.pattern, "1 to 63 of a-z, 0-9 and -"),
    "trust.ca": text("/.+", "the absolute path of the pinned root"),
    "trust.gateways": texts(r"\S+", "DNS or IP names"),
    "trust.apps": digests(),
    "trust.publishers": digests("Ed25519 public keys"),
    "trust.approve": flag(),
    "trust.min_protocol": integer(1),
    "secure.required": flag(),
    "secure.schemes": texts("A", 'schemes; there is "A"'),
    "secure.corrupt": share(),
    "secure.corrupt_min": integer(1),
    "secure.max_corrupt_members": integer(0),
    "secure.dropout": share(),
    "secure.min_members": integer(graph.MIN_MEMBERS),
    "secure.min_survivors": integer(3),  # A + 2 with A = 1, the least that there is
    "secure.min_difference": integer(0),
    "secure.min_sites": integer(0),
    "update.max_weight": integer(1),
    "update.max_value_range": positive(),
    "update.l2_clip": positive(),
    "update.histogram": flag(),
    "clear.metrics": texts(r"\S+", "names of metrics"),
    "limits.model_bytes": integer(1),
    "limits.rounds_per_day": integer(1),
    "limits.hours": windows(),
    "limits.bytes_per_day": integer(1),
    "limits.metered_bytes_per_day": integer(0),
    "limits.metered_interfaces": texts(r"\S+", "names of network interfaces"),
    "limits.metered_hook": command(),
    "limits.ready_hook": command(),
    "limits.memory": integer(1 << 28),
    "limits.threads": integer(1),
    "limits.disk": integer(1 << 20),
    "limits.data_roots": texts("/.*", "absolute paths"),
}
_TABLES = tuple(dict.fromkeys(key.split(".")[0] for key in _KEYS))


_MAY_BE_ABSENT = frozenset(
    {
        *("federation", "ca", "gateways", "apps", "publishers", "max_corrupt_members", "l2_clip"),
        *("hours", "bytes_per_day", "metered_bytes_per_day", "metered_interfaces"),
        *("metered_hook", "ready_hook", "memory", "threads", "disk", "data_roots"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A policy; every field is the key of the same name, with its built-in value."""

    federation: str | None = None
    ca: str | None = None
    gateways: tuple[str, ...] | None = None
    apps: tuple[bytes, ...] | None = None
    publishers: tuple[bytes, ...] | None = None
    approve: bool = False
    min_protocol: int = 1
    required: bool = True
    schemes: tuple[str, ...] = ("A",)
    corrupt: float = 0.1
    corrupt_min: int = 1
    max_corrupt_members: int | None = None
    dropout: float = 0.1
    min_members: int = 5
    min_survivors: int = 4
    min_difference: int = 0
    min_sites: int = 0
    max_weight: int = 1048576
    max_value_range: float = 8.0
    l2_clip: float | None = None
    histogram: bool = False
    metrics: tuple[str, ...] = ()
    model_bytes: int = 4294967296
    rounds_per_day: int = 1000
    hours: tuple[str, ...] | None = None
    bytes_per_day: int | None = None
    metered_bytes_per_day: int | None = None
    metered_interfaces: tuple[str, ...] | None = None
    metered_hook: tuple[str, ...] | None = None
    ready_hook: tuple[str, ...] | None = None
    memory: int | None = None
    threads: int | None = None
    disk: int | None = None
    data_roots: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a value that a file could not hold either."""
        for key in _KEYS:
            value = getattr(self, _field(key))
            if value is not None or _field(key) not in _MAY_BE_ABSENT:
                _read(key, _plain(value), partial(str, f"policy: {key}"))
        told = self.metered_interfaces is not None or self.metered_hook is not None
        if self.metered_bytes_per_day is not None and not told:  # it would never count
            expected = "metered_interfaces or metered_hook beside it"
            raise SettingsError("policy: limits.metered_bytes_per_day", expected, "neither")

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read the file, which the user or root owns and nobody else may write.

        Raises:
            SettingsError: It cannot be read, others could have written it, or as `parse`.
        """
        return cls.parse(read_owned(path), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Policy:
        """Read TOML text; `where` names its file in messages.

        Raises:
            SettingsError: Naming `where`, the line and the key.
        """
        try:
            tables = read_toml(text)
        except ValueError as error:
            line = re.search(r"at line (\d+)", str(error))
            place = line[1] if line else text.count("\n") + 1
            raise SettingsError(f"{where}:{place}", "valid TOML", str(error)) from error
        values: dict[str, object] = {}
        for table, entries in tables.items():
            if table not in _TABLES or not isinstance(entries, dict):
                place = _place(where, text, table)
                raise SettingsError(place, f"one of the tables {', '.join(_TABLES)}", entries)
            for name, value in entries.items():
                key = f"{table}.{name}"
                values[name] = _read(key, value, partial(_place, where, text, key))
        return cls(**values)  # type: ignore[arg-type]

    def dumps(self) -> str:
        """Return TOML text that `parse` reads back as an equal policy; absent keys stay out."""
        written = self._written()
        blocks = []
        for table in _TABLES:
            keys = [key for key in written if key.startswith(f"{table}.")]
            lines = [f"{_field(key)} = {_toml(written[key])}" for key in keys]
            blocks.append("\n".join([f"[{table}]", *lines]) + "\n")
        return "\n".join(blocks)

    def remarks(self) -> tuple[str, ...]:
        """Return what this policy leaves open, for the device's console."""
        open_points = (
            (not self.pinned, "app: not pinned"),
            (self.max_corrupt_members is None, "corrupt members of the federation: not bounded"),
            (not self.required, "secure aggregation: not required"),
        )
        return tuple(text for holds, text in open_points if holds)

    @property
    def pinned(self) -> bool:
        """Whether a bundle needs a word of this policy, or of the owner, to run."""
        return self.apps is not None or self.publishers is not None or self.approve

    def admitting(self, app: bytes) -> Policy:
        """Return the policy of a process into which the launcher has let this one bundle."""
        return replace(self, apps=(app,)) if self.pinned else self

    def tolerated(self, n: int) -> int:
        """Return the device's own A(n): corrupt members that a roster of n must bear."""
        return graph.tolerated(n, self.corrupt, self._a_min())

    def losses(self, n: int) -> int | None:
        """Return the device's own D(n); None on the complete graph, where n and A give it."""
        return None if n <= graph.COMPLETE_UP_TO else graph.tolerated(n, self.dropout, 0)

    def check_start(
        self,
        scheme: str,
        protocol: int,
        params: Mapping[str, object],
        model_bytes: int,
        rounds_today: int,
        app: bytes,
    ) -> None:
        """Refuse an attempt whose terms this policy does not allow.

        Args:
            scheme: `A`, or `plain`.
            protocol: The version in ctx0.
            params: The table in ctx0, with the keys of protocol/plan.py.
            model_bytes: The announced size; refused before a byte is stored.
            rounds_today: Rounds that this device joined in the last 24 hours, without this one.
            app: SHA-256 of the app bundle, 32 zero bytes outside Flower.

        Raises:
            Refused: `protocol too old`, `app not allowed`, `plain refused`, `scheme`, `limits`
                or `policy`, with the key.
        """
        if protocol < self.min_protocol:
            detail = f"version {protocol}, this device speaks {self.min_protocol} and later"
            raise Refused(pb.REASON_PROTOCOL_TOO_OLD, detail, "trust.min_protocol")
        if self.pinned and app not in (self.apps or ()):
            detail = f"bundle {app.hex()} is not in trust.apps"
            raise Refused(pb.REASON_APP_NOT_ALLOWED, detail, "trust.apps")
        self._check_scheme(scheme)
        if model_bytes > self.model_bytes:
            detail = f"a model of {model_bytes} bytes, limits.model_bytes is {self.model_bytes}"
            raise Refused(pb.REASON_LIMITS, detail, "limits.model_bytes")
        if rounds_today >= self.rounds_per_day:
            detail = f"{rounds_today} rounds in 24 hours, limits.rounds_per_day is as many"
            raise Refused(pb.REASON_LIMITS, detail, "limits.rounds_per_day")
        self._check_params(params, secure=scheme != PLAIN)

    def check_config(self, config: Mapping[str, object]) -> None:
        """Refuse an attempt that asks for what this policy does not let its device count.

        Args:
            config: Of the round.

        Raises:
            Refused: `policy`, with the key.
        """
        if config.get(HISTOGRAM) and not self.histogram:
            detail = "the run asks for a histogram of accuracy, update.histogram is false"
            raise Refused(pb.REASON_POLICY, detail, "update.histogram")

    def check_roster(self, n: int, d: int) -> None:
        """Refuse a roster of n members, d of which may go missing.

        Raises:
            Refused: `roster` below min_members; `policy` where those who could be corrupt
                would outnumber the survivors but one.
        """
        if n < self.min_members:
            detail = f"{n} members, secure.min_members is {self.min_members}"
            raise Refused(pb.REASON_ROSTER, detail, "secure.min_members")
        bound = self.max_corrupt_members
        if bound is not None and n - d < bound + 2:
            detail = f"{n} members less {d} losses, secure.max_corrupt_members is {bound}"
            raise Refused(pb.REASON_POLICY, detail, "secure.max_corrupt_members")

    def check_survivors(self, count: int, a: int, difference: int, sites: int) -> None:
        """Refuse a survivor set U.

        Args:
            count: |U|.
            a: A of the round; U keeps two honest members at least.
            difference: |U xor U_previous|, the set that was voted for last; 0 if there is none.
            sites: Distinct `O=` among the certificates of U.

        Raises:
            Refused: `survivors` by size, `policy` with the key for the others.
        """
        floor = max(self.min_survivors, a + 2)
        if count < floor:
            detail = f"{count} survivors, at least {floor} are needed (A = {a})"
            raise Refused(pb.REASON_SURVIVORS, detail, "secure.min_survivors")
        if 0 < difference < self.min_difference:
            detail = f"{difference} members differ, secure.min_difference is {self.min_difference}"
            raise Refused(pb.REASON_POLICY, detail, "secure.min_difference")
        if sites < self.min_sites:
            detail = f"survivors of {sites} sites, secure.min_sites is {self.min_sites}"
            raise Refused(pb.REASON_POLICY, detail, "secure.min_sites")

    def _check_scheme(self, scheme: str) -> None:
        if scheme == PLAIN:
            if self.required:
                detail = "secure.required is true in this device's own policy"
                raise Refused(pb.REASON_PLAIN_REFUSED, detail, "secure.required")
        elif scheme not in self.schemes:
            detail = f"{scheme!r} is not in secure.schemes"
            raise Refused(pb.REASON_SCHEME, detail, "secure.schemes")

    def _check_params(self, params: Mapping[str, object], *, secure: bool) -> None:
        try:
            theirs = plan.read(params)
        except SettingsError as error:
            raise Refused(pb.REASON_POLICY, str(error), error.where) from error
        a_min = self._a_min()
        a_key = "corrupt_min" if a_min == self.corrupt_min else "max_corrupt_members"
        protected = (
            _at_least("secure.corrupt", theirs.alpha, self.corrupt),
            _at_least(f"secure.{a_key}", theirs.a_min, a_min),
            _at_most("secure.dropout", theirs.delta, self.dropout),
            _at_least("secure.min_members", theirs.min_members, self.min_members),
            _at_least("secure.min_survivors", theirs.min_survivors, self.min_survivors),
        )
        always = (
            _at_most("update.max_weight", theirs.weight_cap, self.max_weight),
            _at_most("update.max_value_range", theirs.value_range, self.max_value_range),
        )
        for key, holds, got, own in (*(protected if secure else ()), *always):
            if not holds:
                raise Refused(pb.REASON_POLICY, f"the run has {got}, {key} is {own}", key)

    def _a_min(self) -> int:
        return max(self.corrupt_min, self.max_corrupt_members or 0)

    def _written(self) -> dict[str, object]:
        """Return the keys that are present, as TOML values."""
        values = {key: getattr(self, _field(key)) for key in _KEYS}
        return {key: _plain(value) for key, value in values.items() if value is not None}


def _place(where: str, text: str, key: str) -> str:
    """Return file, line and key; to find the line takes a walk through the file."""
    return f"{where}:{line_of(text, key)}: {key}"


def _read(key: str, value: object, where: Callable[[], str]) -> object:
    """Return a TOML value as its field's value."""
    if key not in _KEYS:
        table = key.split(".", maxsplit=1)[0]
        known = [_field(name) for name in _KEYS if name.startswith(f"{table}.")]
        raise SettingsError(where(), f"one of the keys {', '.join(known)}", _field(key))
    try:
        return _KEYS[key].read(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingsError(where(), _KEYS[key].expected, value) from error


def _field(key: str) -> str:
    """Return the field of `table.name`, which is `name`."""
    return key.split(".", maxsplit=1)[1]


def _plain(value: object) -> object:
    """Return a field's value as TOML has it."""
    if isinstance(value, tuple):
        return [item.hex() if isinstance(item, bytes) else item for item in value]
    return value


def _toml(value: object) -> str:
    """Return a TOML value's text; printable strings and finite numbers look as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _at_least(key: str, got: float, own: float) -> tuple[str, bool, float, float]:
    return key, got >= own, got, own


def _at_most(key: str, got: float, own: float) -> tuple[str, bool, float, float]:
    return key, got <= own, got, own
