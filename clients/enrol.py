"""Enrolment: from a token to a device's directory, whole or not at all.

    1  devices/.NAME.enrolling/    0700: keys of this device's own making, the token's SHA-256
    2  GET /v1/ca                  the root, compared with the token's fingerprint and pinned
    3  POST /v1/enrol              over TLS that this root vouches for: secret, CSRs
    4  the rest of the files       written beside the keys, each on the disk
    5  devices/NAME/               the directory renamed

A device that is killed anywhere before 5 has a directory of no meaning; it enrols again with the
same token and the same keys, which the CA knows, and gets the same node. Another token makes other
keys. After 5 it is enrolled, and no second enrolment touches it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from . import granted, member_file
from .front_line import Front, pinned_root
from .leave import set_aside
from .pause import has_left
from ..host.whole_file import sync_directory, write_whole
from ..protocol.enrolment import EnrolAnswer, EnrolRequest, request_for
from ..protocol.errors import SettingsError, StateError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from cryptography import x509

    from .policy import Policy
    from ..protocol.enrolment_token import Token

DEVICE = "device.toml"
_TOKEN = "token.sha256"  # noqa: S105 - the name of a file
_ROUTE = "/v1/enrol"
_OTHERS = 0o077


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolled:
    """What an enrolment made."""

    directory: Path
    federation: str
    id: bytes
    name: str
    site: str
    root: bytes
    """SHA-256 of the pinned root's DER."""
    front: str
    gateway: str
    apps: tuple[bytes, ...]
    """SHA-256 of the bundles that may run."""
    approve: bool
    """Whether another bundle waits for the owner's approval."""


class _Made(NamedTuple):
    """The keys of a device."""

    tls: ec.EllipticCurvePrivateKey
    signing: Ed25519PrivateKey
    flower: ec.EllipticCurvePrivateKey


def enrol(token: Token, directory: Path, policy: Policy, say: Callable[[str], None]) -> Enrolled:
    """Make this machine a device of the token's federation.

    Args:
        token: The right to enrol once.
        directory: Of the device; it does not exist, or is empty.
        policy: What this device agrees to; its trust is written here.
        say: Takes a line for the user of a terminal.

    Raises:
        SettingsError: The directory is a device's already, or somebody's else.
        StateError: The front does not answer, or the disk does not take it.
        PeerError: It is another server, or does not grant it (`Declined`).
    """
    check_free(directory)
    staging = directory.with_name(f".{directory.name}.enrolling")
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _staged(staging, sha256(token.secret).hexdigest()) as keys:
            root = pinned_root(token.address, token.root, say)
            answer = _asked(token, root, keys, say)
            check_free(directory)
            own = _trusting(policy, token, directory, answer.gateways)
            _write(staging, keys, root, answer, own)
            set_aside(directory, staging)
            staging.rename(directory)
            sync_directory(directory.parent)
    except OSError as error:
        where = str(error.filename or directory)
        move = "the token can be used again"
        raise StateError(where, "a place that can be written", error.strerror, move) from error
    return Enrolled(
        directory=directory, federation=token.federation, id=answer.id, name=answer.name,
        site=answer.site, root=token.root, front=answer.superlink, gateway=answer.gateway,
        apps=own.apps or (), approve=own.approve,
    )  # fmt: skip


def _trusting(policy: Policy, token: Token, directory: Path, gateways: tuple[str, ...]) -> Policy:
    """Return the owner's policy with what enrolment pins.

    The token's bundles may run. Where the owner's own policy says nothing of bundles, any other
    one waits for approval.
    """
    apps = tuple(dict.fromkeys((*(policy.apps or ()), *token.apps)))
    return replace(
        policy,
        federation=token.federation,
        ca=str(directory / "ca.pem"),
        gateways=gateways,
        apps=apps or policy.apps,
        approve=policy.approve or not policy.pinned,
    )


def check_free(directory: Path) -> None:
    """Refuse a directory that holds something.

    Raises:
        SettingsError: With what it is.
    """
    if has_left(directory):
        return  # its keys are gone, or `set_aside` says that they are not
    if (directory / DEVICE).exists():
        move = "`umbel client leave` ends that; another --device DIR enrols beside it"
        raise SettingsError(str(directory), "no device yet", "an enrolled one", move)
    if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise SettingsError(str(directory), "a directory that is empty or absent", "another")


def _asked(
    token: Token, root: x509.Certificate, keys: _Made, say: Callable[[str], None]
) -> EnrolAnswer:
    request = EnrolRequest(
        federation=token.federation, secret=token.secret, tls=request_for(keys.tls),
        signing=request_for(keys.signing), flower=request_for(keys.flower), about=granted.about(),
    )  # fmt: skip
    raw = Front(token.address, root, say).post(_ROUTE, request.dumps())
    answer = EnrolAnswer.parse(raw)
    own = granted.Keys(keys.tls, keys.signing)
    granted.check(answer, root, token.federation, own, datetime.now(UTC))
    return answer


@contextmanager
def _staged(staging: Path, token: str) -> Iterator[_Made]:
    """Give the keys that a directory holds for this token, made anew for another one."""
    staging.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or about.st_mode & _OTHERS:  # it becomes the device's own
            got = f"user {about.st_uid} and mode {stat.S_IMODE(about.st_mode):04o}"
            move = "remove it, or enrol where nobody else can write"
            raise SettingsError(str(staging), "a folder of this user alone", got, move)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            where = str(staging)
            raise StateError(where, "no other enrolment", "one that is at work") from None
        keys = _kept(staging, token)
        if keys is None:
            for left in staging.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            keys = _new(staging, token)
        yield keys
    finally:
        os.close(handle)


def _new(staging: Path, token: str) -> _Made:
    """Make keys; the token's mark comes last, so that it stands for all of them."""
    p256, p384 = ec.SECP256R1(), ec.SECP384R1()
    keys = _Made(
        ec.generate_private_key(p256), Ed25519PrivateKey.generate(), ec.generate_private_key(p384)
    )
    for name, key in (("tls.key", keys.tls), ("signing.key", keys.signing)):
        write_whole(staging / name, _pem(key, PrivateFormat.PKCS8))
    write_whole(staging / "flower", _pem(keys.flower, PrivateFormat.OpenSSH))
    write_whole(staging / _TOKEN, token.encode())
    sync_directory(staging.parent)
    return keys


def _kept(staging: Path, token: str) -> _Made | None:
    """Return the keys that were made for this token, if a killed enrolment left them."""
    try:
        if (staging / _TOKEN).read_text("ascii") != token:
            return None
        tls, signing = (
            load_pem_private_key((staging / name).read_bytes(), None)
            for name in ("tls.key", "signing.key")
        )
        flower = load_ssh_private_key((staging / "flower").read_bytes(), None)
    except (FileNotFoundError, *UNREADABLE):
        return None
    if not isinstance(signing, Ed25519PrivateKey):
        return None
    both = (tls, flower)
    if not all(isinstance(key, ec.EllipticCurvePrivateKey) for key in both):
        return None
    return _Made(tls, signing, flower)  # type: ignore[arg-type]


def _write(
    staging: Path, keys: _Made, root: x509.Certificate, answer: EnrolAnswer, policy: Policy
) -> None:
    """Write what the keys are not; device.toml, which makes it a device, comes last."""
    from .flower_node import SUFFIX  # noqa: PLC0415 - imports flwr

    public = keys.flower.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    contents = {
        "ca.pem": root.public_bytes(Encoding.PEM),
        "flower.pub": public + b"\n",
        f"flower{SUFFIX}": f"{answer.flower_node}\n".encode(),
        "policy.toml": policy.dumps().encode(),
        member_file.FILE: answer.members,
        **certificates(answer),
        DEVICE: device_toml(answer).encode(),
    }
    for name, content in contents.items():
        write_whole(staging / name, content)
    (staging / _TOKEN).unlink()
    sync_directory(staging)


def certificates(answer: EnrolAnswer) -> dict[str, bytes]:
    """Return the files of a device's certificates, by name."""
    found = {"tls.pem": answer.tls.encode(), "signing.pem": answer.signing.encode()}
    return found | ({"issuing.pem": "".join(answer.issuing).encode()} if answer.issuing else {})


def device_toml(answer: EnrolAnswer) -> str:
    """Return device.toml of a device that was enrolled."""
    return (
        f'federation = "{answer.federation}"\nid = "{answer.id.hex()}"\n'
        f'gateway = "{answer.gateway}"\nsuperlink = "{answer.superlink}"\n'
    )


def _pem(key: Any, form: PrivateFormat) -> bytes:
    raw: bytes = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return raw
