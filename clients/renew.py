"""Renewal: new certificates for a device's own keys, at any time while it is a node.

Also after they expired: the front is known by the pinned root, and who asks proves it by the keys.
Both leaves are asked for together, looked at (granted.py) and replaced one after the other; a kill
between the two leaves one that is older, and as good. Addresses follow what the CA says, within the
names that the device's own policy lets a gateway bear.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from . import granted, member_file
from .device_files import DeviceFiles, host
from .enrol import certificates
from .front_line import Front
from .policy_file import read_owned
from ..host.whole_file import write_whole
from ..protocol.enrolment import EnrolAnswer, RenewRequest, request_for
from ..protocol.errors import PeerError, SettingsError, StateError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIVED = 4 / 7
"""A certificate that has lived for more of its life is renewed: with 3 of 7 days left."""
LEAST_S, MOST_S = 60.0, 6 * 3600.0
"""The next look comes after so long at least, and at most: clocks are set, and devices sleep."""
_ROUTE = "/v1/renew"


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """What a device holds after a look at its certificates."""

    directory: Path
    renewed: bool
    """Whether the CA was asked; else they are young."""
    until: datetime
    """When the first of the two certificates ends."""
    next_s: float
    """Seconds until the next look."""


def renew(directory: Path, say: Callable[[str], None], *, due: bool = False) -> Renewed:
    """Renew a device's certificates.

    Args:
        directory: The device's own.
        say: Takes a line for the user of a terminal.
        due: Whether young certificates are left as they are.

    Raises:
        SettingsError: A file of the device is not what it should be.
        StateError: The front does not answer, or the disk does not take the files.
        PeerError: It is another server, or the CA does not grant it (`Declined`).
    """
    with _alone(directory):
        return _looked_at(DeviceFiles.read(directory), say, due=due)


def _looked_at(files: DeviceFiles, say: Callable[[str], None], *, due: bool) -> Renewed:
    directory = files.directory
    leaves = [_leaf(directory / name) for name in ("tls.pem", "signing.pem")]
    now = datetime.now(UTC)
    asked = not due or any(_is_old(leaf, now) for leaf in leaves)
    if asked:
        leaves = _renewed(files, say)
    until = min(leaf.not_valid_after_utc for leaf in leaves)
    begins = max(leaf.not_valid_before_utc for leaf in leaves)
    left = ((until - begins) * LIVED - (now - begins)).total_seconds()
    return Renewed(
        directory=directory, renewed=asked, until=until, next_s=min(max(left, LEAST_S), MOST_S)
    )


def _renewed(files: DeviceFiles, say: Callable[[str], None]) -> list[x509.Certificate]:
    """Ask the CA, write what it grants, and return the two leaves."""
    keys = _keys(files.directory)
    root = files.root()
    request = RenewRequest(
        federation=files.federation, id=files.id, tls=request_for(keys.tls),
        signing=request_for(keys.signing), about=granted.about(),
    )  # fmt: skip
    if not files.superlink:
        raise SettingsError(str(files.directory / "device.toml"), "the key superlink", "nothing")
    raw = Front(files.superlink, root, say).post(_ROUTE, request.dumps())
    answer = EnrolAnswer.parse(raw)
    now = datetime.now(UTC)
    newest = member_file.read(files.directory)
    granted.check(answer, root, files.federation, keys, now, files.id, newest)
    contents = certificates(answer) | _addresses(files, answer)
    member_file.keep(files.directory, answer.members)
    try:
        for name, content in contents.items():
            write_whole(files.directory / name, content)
    except OSError as error:
        where = str(files.directory)
        raise StateError(where, "a place that can be written", error.strerror) from error
    return [_leaf(files.directory / name) for name in ("tls.pem", "signing.pem")]


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Let one process at a time renew a device's certificates."""
    file = directory / "renew.lock"
    try:
        handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(str(file), "a place that can be written", error.strerror) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _addresses(files: DeviceFiles, answer: EnrolAnswer) -> dict[str, bytes]:
    """Return device.toml where the CA says other addresses; the owner's keys in it stay."""
    asked = {"gateway": answer.gateway, "superlink": answer.superlink}
    if asked == {"gateway": files.gateway, "superlink": files.superlink}:
        return {}
    for key, name in (("gateway", "gateway"), ("superlink", "front")):
        moved = asked[key] != getattr(files, key)
        if moved and host(asked[key]) not in (files.policy.gateways or ()):
            what = f"the {name} is {asked[key]} now, a name that is not in trust.gateways"
            raise PeerError(f"{files.federation}'s CA", f"{what}: add it there if that is right")
    file = files.directory / "device.toml"
    text = read_owned(file)
    for key, value in asked.items():
        text = re.sub(rf"(?m)^{key}\s*=.*$", f'{key} = "{value}"', text)
    return {file.name: text.encode()}


def _is_old(leaf: x509.Certificate, now: datetime) -> bool:
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return not begins <= now <= begins + (ends - begins) * LIVED


def _leaf(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_owned(file).encode())
    except UNREADABLE as error:
        raise SettingsError(str(file), "a PEM certificate", "something else") from error


def _keys(directory: Path) -> granted.Keys:
    """Return the device's own keys."""
    found = []
    for name in ("tls.key", "signing.key"):
        try:
            found.append(load_pem_private_key(read_owned(directory / name).encode(), None))
        except UNREADABLE as error:
            where = str(directory / name)
            raise SettingsError(where, "a PEM private key", "something else") from error
    tls, signing = found
    if not isinstance(tls, ec.EllipticCurvePrivateKey):
        raise SettingsError(str(directory / "tls.key"), "a P-256 key", type(tls).__name__)
    if not isinstance(signing, Ed25519PrivateKey):
        raise SettingsError(
            str(directory / "signing.key"), "an Ed25519 key", type(signing).__name__
        )
    return granted.Keys(tls, signing)
