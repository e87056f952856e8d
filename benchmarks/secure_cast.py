"""Who takes part in the rounds of `umbel bench secure`, and what they send.

Members are enrolled by a throw-away CA. Every client sends the same update, which nobody
trained, under its own rounding and its own masks; the metrics are those of a classification.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ..clients.policy import Policy
from ..protocol.certificates import Authority
from ..protocol.members import LIFE, MemberList
from ..protocol.membership import Membership
from ..protocol.plan import Params
from ..protocol.standpoint import Identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..protocol.verification import Member

FEDERATION = "benchmark"
WEIGHT = 64
METRICS = {
    "eval.correct": 0,
    "eval.examples": 0,
    "eval.loss": 24,
    "train.examples": 0,
    "train.loss": 24,
}
"""Names and fractional bits, as a classification task declares them."""
VALUES: dict[str, int | float] = {n: 17.25 if bits else WEIGHT for n, bits in METRICS.items()}
PARAMS = Params(min_members=3, min_survivors=3, weight_cap=WEIGHT)
POLICY = Policy(min_members=3, min_survivors=3, max_weight=WEIGHT)


class Size(NamedTuple):
    """What a round is about: members, parameters, and how many are lost after trip 2."""

    clients: int
    params: int
    lost: int

    @property
    def gone(self) -> frozenset[int]:
        """Places of the lost, spread over the ring, which costs the server most."""
        return frozenset(1 + i * self.clients // self.lost for i in range(self.lost))


def model(params: int) -> dict[str, NDArray[Any]]:
    """Return the model that nobody trains: one float32 array."""
    return {"weight": np.zeros(params, np.float32)}


def update(params: int) -> dict[str, NDArray[Any]]:
    """Return the update of every client, well inside the value range."""
    values = np.random.default_rng(params).normal(0.0, 0.01, params)
    return {"weight": values.astype(np.float32)}


class Cast:
    """The members of all rounds, their certificates verified once and cached, as on a device."""

    def __init__(self, clients: int) -> None:
        """Enrol them."""
        self.now = datetime.now(UTC)
        authority = Authority.create(FEDERATION, self.now)
        self.root = authority.certificate.public_bytes(Encoding.DER)
        self.identities = [self._enrol(authority, index) for index in range(clients)]
        self.membership = Membership(authority.certificate, FEDERATION)
        listed = MemberList(FEDERATION, 1, self.now, self.now + LIFE).sign(authority)
        self.membership.take(listed, self.now)
        self.verifier = self.membership.verifier
        self.root_digest = sha256(self.root).digest()
        self._der = {one.fingerprint: one.certificate for one in self.identities}
        for fingerprint in self._der:
            self.resolve(fingerprint)

    def resolve(self, fingerprint: bytes) -> Member:
        """Return the verified member of a certificate."""
        return self.verifier.member(self._der[fingerprint], self.now)

    def _enrol(self, authority: Authority, index: int) -> Identity:
        signing = Ed25519PrivateKey.generate()
        node = sha256(b"%d" % index).digest()[:16]
        leaf = authority.issue_signing(signing.public_key(), node, f"site-{index}", self.now)
        return Identity(id=node, certificate=leaf.public_bytes(Encoding.DER), signing=signing)
