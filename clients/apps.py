"""Which bundles may run on a device, and those that wait for its owner's word.

    DEVICE/apps/            0700
        SHA.fab             0600  a bundle as it came: waiting, approved, or let in by another rule
        index.json          0600  {"version": 1, "apps": {SHA: {state, app, release, at}}}

A bundle may run if the owner has not rejected it, and

    listed      its SHA-256 is in `trust.apps`, or
    approved    `trust.approve` is set and the owner has approved this SHA-256, or
    signed      a signature in it by a key of `trust.publishers` holds, or
    open        the policy sets none of the three keys

With `trust.approve` any other is kept, and waits. Nothing of it runs: it is read (bundle.py), never
unpacked. `MOST_WAITING` wait at most, `MOST_BYTES` bytes are kept at most: the oldest that waits
makes room. What was let in by another rule is kept for comparison only and has no say.

Whoever can write here is the owner or root, as with the policy: what others could have written is
refused. A launcher and the owner's command may be here at once; `lock` takes turns.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from .bundle import Bundle
from .policy_file import read_owned
from ..host.whole_file import write_whole
from ..protocol import messages_pb2 as pb
from ..protocol.documents import read_json
from ..protocol.errors import Malformed, Refused, SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .policy import Policy

FOLDER = "apps"
MOST_WAITING = 8
MOST_BYTES = 128 << 20
"""Of all bundles that are kept."""
MOST_KNOWN = 512
"""Lines of the index; the oldest that neither waits nor is approved goes first."""
WAITING, APPROVED, REJECTED, LISTED, SIGNED = "waiting", "approved", "rejected", "listed", "signed"
STATES = (WAITING, APPROVED, REJECTED, LISTED, SIGNED)
OPEN = "open"
_INDEX = "index.json"
_FORMS = {"state": "|".join(STATES), "app": ".{3,201}", "release": ".{1,100}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """One line of the index."""

    state: str
    app: str
    """`publisher/name`, as the bundle calls itself."""
    release: str
    """Its version, as it says."""
    at: int
    """When it came into this state, seconds since 1970."""


class Apps:
    """The bundles of one device."""

    def __init__(self, device: Path) -> None:
        """Take a device's directory; nothing is read or made yet."""
        self.folder = device / FOLDER

    def known(self) -> dict[str, Known]:
        """Return every bundle that this device has heard of, by its SHA-256 in hex.

        Raises:
            StateError: The index is damaged, or others could have written it.
        """
        file = self.folder / _INDEX
        if not os.path.lexists(file):
            return {}
        try:
            return parse(read_owned(file))
        except (ValueError, SettingsError) as error:
            move = "move the folder away: bundles wait anew for their approval"
            raise StateError(str(file), "an index of bundles", error, move) from error

    def read(self, sha: str) -> bytes:
        """Return the bytes of a kept bundle.

        Raises:
            StateError: It cannot be read, or is not what its name says.
        """
        file = self.folder / f"{sha}.fab"
        try:
            content = file.read_bytes()
        except OSError as error:
            raise StateError(str(file), "a kept bundle", error.strerror or error) from error
        if sha256(content).hexdigest() != sha:
            move = "remove the file: the bundle is kept anew when it comes again"
            raise StateError(str(file), "the bytes that its name says", "others", move)
        return content

    def admit(self, policy: Policy, content: bytes) -> str:
        """Return by which rule a bundle may run; one that may not, and may wait, is kept.

        Raises:
            Refused: `app not allowed`.
            StateError: What is kept here cannot be trusted.
        """
        digest = sha256(content).digest()
        sha = digest.hex()
        known = self.known().get(sha)
        if known is not None and known.state == REJECTED:
            raise _refusal(sha, "was rejected by this device's owner")
        if not policy.pinned:
            return OPEN
        if policy.apps is not None and digest in policy.apps:
            if policy.approve:
                self._compare_with_later(content, LISTED)
            return LISTED
        if policy.approve and known is not None and known.state == APPROVED:
            return APPROVED
        try:
            bundle = Bundle.read(content)
            signed = bundle.signers() & set(policy.publishers or ())
        except Malformed as error:
            raise _refusal(sha, f"is none that can be read: {error}") from error
        if signed:
            self._compare_with_later(content, SIGNED)
            return f"{SIGNED} {min(signed).hex()}"
        if not policy.approve:
            raise _refusal(sha, "is not in trust.apps, nor signed by one of trust.publishers")
        self._keep(bundle, content, WAITING)
        move = f"waits for approval: `umbel client apps diff {sha[:16]}`, then `... approve`"
        raise _refusal(sha, f"of {bundle.app} {bundle.version} {move}")

    def still(self, policy: Policy, sha: str, rule: str) -> bool:
        """Say whether a rule by which the launcher let a bundle in is one of this policy."""
        word, _, key = rule.partition(" ")
        return (
            not policy.pinned
            or bytes.fromhex(sha) in (policy.apps or ())
            or (word == SIGNED and key in {own.hex() for own in policy.publishers or ()})
            or (policy.approve and sha in self.known() and self.known()[sha].state == APPROVED)
        )

    def decide(self, sha: str, state: str) -> Known:
        """Write down the owner's word, `APPROVED` or `REJECTED`; a rejected one is not kept.

        Raises:
            StateError: There is no such bundle to approve, or this cannot be written.
        """
        with self._lock():
            index = self.known()
            if state == APPROVED:
                self.read(sha)  # what the owner looked at
            known = index.get(sha, Known(state=state, app="?/?", release="?", at=0))
            made = replace(known, state=state, at=int(time.time()))
            if sha not in index and len(index) >= MOST_KNOWN:
                raise StateError(str(self.folder), f"{MOST_KNOWN} bundles at most", len(index))
            self._write(index | {sha: made})
            if state == REJECTED:
                (self.folder / f"{sha}.fab").unlink(missing_ok=True)
        return made

    def before(self, sha: str) -> str | None:
        """Return the bundle that ran last under the same publisher and name, if one is kept."""
        index = self.known()
        app = index[sha].app if sha in index else ""
        found = [
            (known.at, other)
            for other, known in index.items()
            if other != sha and known.app == app and known.state not in {WAITING, REJECTED}
        ]
        kept = [other for _, other in sorted(found) if (self.folder / f"{other}.fab").exists()]
        return kept[-1] if kept else None

    # -- keeping ----------------------------------------------------------------------------

    def _compare_with_later(self, content: bytes, state: str) -> None:
        """Keep what runs by another rule, so that its next version can be compared with it."""
        sha = sha256(content).hexdigest()
        if sha in self.known():
            return
        try:
            self._keep(Bundle.read(content), content, state)
        except (Malformed, StateError):  # it runs all the same
            return

    def _keep(self, bundle: Bundle, content: bytes, state: str) -> None:
        sha = bundle.digest.hex()
        with self._lock():
            index = self.known()
            if sha in index and (self.folder / f"{sha}.fab").exists():
                return
            made = Known(state=state, app=bundle.app, release=bundle.version, at=int(time.time()))
            goes = self._too_many(index, len(content), state)
            self._put(f"{sha}.fab", content)
            self._write({s: k for s, k in index.items() if s not in goes} | {sha: made})
            for other in goes:
                (self.folder / f"{other}.fab").unlink(missing_ok=True)

    def _too_many(self, index: dict[str, Known], wanted: int, state: str) -> list[str]:
        """Return who makes room: the oldest that wait, then those kept for comparison.

        Raises:
            StateError: What the owner has approved leaves no room.
        """
        goes: list[str] = []
        waiting = sum(known.state == WAITING for known in index.values())
        size = sum(self._size(sha) for sha in index)
        order = {WAITING: 0, LISTED: 1, SIGNED: 1, REJECTED: 2}
        may_go = sorted(
            (order[known.state], known.at, sha)
            for sha, known in index.items()
            if known.state in order
        )
        for _, _, sha in may_go:
            crowded = state == WAITING and waiting >= MOST_WAITING
            if not crowded and size + wanted <= MOST_BYTES and len(index) - len(goes) < MOST_KNOWN:
                break
            goes.append(sha)
            waiting -= index[sha].state == WAITING
            size -= self._size(sha)
        if size + wanted > MOST_BYTES or len(index) - len(goes) >= MOST_KNOWN:
            move = "reject approved bundles that are not needed"
            raise StateError(str(self.folder), f"{MOST_BYTES} bytes of bundles at most", size, move)
        return goes

    def _size(self, sha: str) -> int:
        try:
            return (self.folder / f"{sha}.fab").stat().st_size
        except FileNotFoundError:
            return 0

    def _write(self, index: dict[str, Known]) -> None:
        apps = {sha: asdict(known) for sha, known in index.items()}
        text = json.dumps({"version": 1, "apps": apps}, indent=1) + "\n"
        self._put(_INDEX, text.encode())

    def _put(self, name: str, content: bytes) -> None:
        try:
            write_whole(self.folder / name, content)
        except OSError as error:
            got = error.strerror or error
            raise StateError(str(self.folder / name), "room to write", got) from error

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            held = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise StateError(str(self.folder), "a folder", error.strerror or error) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)


def parse(text: str) -> dict[str, Known]:
    """Return the lines of an index.

    Raises:
        ValueError: It is none.
    """
    tree = read_json(text)
    if not isinstance(tree, dict) or tree.keys() != {"version", "apps"} or tree["version"] != 1:
        raise ValueError("expected version 1 and apps")
    if not isinstance(tree["apps"], dict) or len(tree["apps"]) > MOST_KNOWN:
        raise ValueError(f"apps: expected a table of at most {MOST_KNOWN}")
    return {_sha(sha): _known(row) for sha, row in tree["apps"].items()}


def _sha(text: str) -> str:
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise ValueError("expected SHA-256 digests in hex")
    return text


def _known(row: object) -> Known:
    if not isinstance(row, dict) or row.keys() != set(Known.__slots__):
        raise ValueError(f"expected {', '.join(Known.__slots__)}")
    for name, form in _FORMS.items():
        value = row[name]
        plain = isinstance(value, str) and value.isprintable()
        if not plain or re.fullmatch(form, value) is None:
            raise ValueError(f"{name}: expected other words")
    if type(row["at"]) is not int or not 0 <= row["at"] < 2**40:
        raise ValueError("at: expected seconds since 1970")
    return Known(**row)


def _refusal(sha: str, why: str) -> Refused:
    detail = f"bundle {sha} {why}; nothing of it was installed"
    return Refused(pb.REASON_APP_NOT_ALLOWED, detail, "trust.apps")
