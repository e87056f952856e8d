"""What a CA granted a device, looked at before a byte of it is written.

The pinned root has to vouch for all of it, by this device's own clock: both leaves are of this
federation, bear the id that was given and this device's own keys, and the member list is in force
and no older than the one that is known. A server that answers something else is named; the files
stay as they were.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .clock import misfit
from .device_files import host
from .. import __version__
from ..host.platforms import this_machine
from ..protocol.enrolment import About
from ..protocol.errors import BadCertificate, PeerError, Refused
from ..protocol.membership import Membership
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from datetime import datetime

    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ..protocol.enrolment import EnrolAnswer


class Keys(NamedTuple):
    """The two keys of a device that are certified."""

    tls: ec.EllipticCurvePrivateKey
    signing: Ed25519PrivateKey


def about() -> About:
    """Return what this device says of itself."""
    here = this_machine()
    return About(
        umbel=__version__, flwr=version("flwr"), python=here.version, system=here.system,
        machine=here.machine, time=int(time.time()),
    )  # fmt: skip


def check(
    answer: EnrolAnswer,
    root: x509.Certificate,
    federation: str,
    keys: Keys,
    now: datetime,
    node: bytes | None = None,
    newest: bytes | None = None,
) -> None:
    """Refuse an answer that gives this device no membership of its own federation.

    Args:
        answer: Of the CA.
        root: The pinned one.
        federation: The device's own.
        keys: For which certificates were asked.
        now: An aware datetime, this device's clock.
        node: The id that the device has; None when it gets one.
        newest: The member list that the device has kept, if any.

    Raises:
        PeerError: With what is wrong.
    """
    said = f"{federation}'s CA"
    if answer.federation != federation:
        raise PeerError(said, f"expected the federation {federation}, got {answer.federation}")
    if node is not None and answer.id != node:
        raise PeerError(said, f"expected node {node.hex()}, got {answer.id.hex()}")
    if host(answer.gateway) not in answer.gateways:
        names = ", ".join(answer.gateways)
        raise PeerError(said, f"expected a gateway with one of the names {names}")
    issuing, tls, signing = _leaves(answer, said, keys)
    for name, leaf in (("the TLS certificate", tls), ("the signing certificate", signing)):
        wrong = misfit(name, leaf, now)
        if wrong:
            raise PeerError(said, wrong)
    known = Membership(root, federation, issuing)
    if newest is not None:
        known.recall(newest, now)
    try:
        known.take(answer.members, now)
    except Refused as error:
        raise PeerError(said, str(error)) from error
    known.verifier.member(signing.public_bytes(Encoding.DER), now, claimed=answer.id)
    if known.verifier.peer(tls.public_bytes(Encoding.PEM), now).id != answer.id:
        raise BadCertificate(said, "the two certificates are of two nodes")


def _leaves(
    answer: EnrolAnswer, said: str, keys: Keys
) -> tuple[list[x509.Certificate], x509.Certificate, x509.Certificate]:
    """Return issuing CAs, TLS leaf and signing leaf, if the leaves are of this device's keys."""
    try:
        issuing = [x509.load_pem_x509_certificate(pem.encode()) for pem in answer.issuing]
        tls = x509.load_pem_x509_certificates(answer.tls.encode())[0]
        signing = x509.load_pem_x509_certificate(answer.signing.encode())
        own = _own(tls, keys.tls) and _own(signing, keys.signing)
    except (IndexError, *UNREADABLE):
        raise PeerError(said, "expected certificates in PEM, got something else") from None
    if not own:
        raise PeerError(said, "expected certificates of this device's keys, got those of others")
    return issuing, tls, signing


def _own(leaf: x509.Certificate, key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return leaf.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
