"""The peer of `umbel bench secure`: Flower 1.42's SecAgg+, by its own primitives.

flwr.common.secure_aggregation and flwr.supercore.primitives, called in the order of Flower's
`secaggplus_mod` (client) and `SecAggPlusWorkflow` (server): P-384 key pairs, Shamir shares of
seed and PEM, Fernet, quantisation, one MT19937 stream a mask, int64 arithmetic. Messages and
transport are left out, in Flower's favour, as they are on our side.

A client is timed whole. The server is timed on units and scaled, see `Server`.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = f"flwr {version('flwr')} SecAgg+"
CLIPPING, TARGET, MODULUS = 8.0, 1 << 22, 1 << 32
"""Defaults of Flower's workflow."""
MASKS, AGREEMENTS = 3, 4
"""Units of the server that are timed: masks of the whole model, and key agreements."""


class Shape(NamedTuple):
    """Sizes of a round in Flower's words."""

    params: int
    shares: int
    """Neighbours of a client, itself among them: it keeps a share of its own."""
    threshold: int
    survivors: int
    lost: int


class Sent(NamedTuple):
    """What a client's protection cost."""

    seconds: float
    """CPU seconds."""
    bytes: int
    """Bytes of keys, ciphertexts, masked arrays and shares."""


class Pair(NamedTuple):
    """A key pair, both halves in PEM."""

    private: bytes
    public: bytes


def pair() -> Pair:
    """Return a new key pair as Flower stores and sends it."""
    private, public = generate_key_pairs()
    return Pair(private_key_to_bytes(private), public_key_to_bytes(public))


class Client:
    """One client among its neighbours; its node id is 0, theirs count from 1."""

    def __init__(self, shape: Shape, values: NDArray[np.float32]) -> None:
        """Make the neighbours' keys, and the shares that one of them deals."""
        self._shape, self._values = shape, values
        around = range(1, shape.shares)
        self._masking = {node: pair() for node in around}
        self._sealing = {node: pair() for node in around}
        self._dealt = [
            create_shares(secret, shape.threshold, shape.shares)[0]
            for secret in (os.urandom(32), self._masking[1].private)
        ]

    def protect(self) -> Sent:
        """Do everything beyond training once."""
        start = time.process_time()
        masking, sealing = pair(), pair()
        seed = os.urandom(32)
        sealed, keys = self._deal(seed, masking, sealing)
        dealt = time.process_time() - start
        inbox = self._inbox(sealing)
        start = time.process_time()
        held = self._open(inbox, keys)
        masked = self._mask(seed, masking)
        vectors = [ndarray_to_bytes(array) for array in masked]
        cpu = dealt + time.process_time() - start
        released = [seed_share for seed_share, _ in held]
        said = [masking.public, sealing.public, *sealed, *vectors, *released]
        return Sent(cpu, sum(map(len, said)))

    def _deal(self, seed: bytes, masking: Pair, sealing: Pair) -> tuple[list[bytes], list[bytes]]:
        """Return the ciphertext for each neighbour and the key agreed with it."""
        shape = self._shape
        of_seed = create_shares(seed, shape.threshold, shape.shares)
        of_key = create_shares(masking.private, shape.threshold, shape.shares)
        sealed, keys = [], []
        for node, other in self._sealing.items():
            key = generate_shared_key(
                bytes_to_private_key(sealing.private), bytes_to_public_key(other.public)
            )
            text = share_keys_plaintext_concat(0, node, of_seed[node], of_key[node])
            keys.append(key)
            sealed.append(encrypt(key, text))
        return sealed, keys

    def _inbox(self, sealing: Pair) -> list[bytes]:
        """Return what the neighbours seal for this client; their work, so not timed."""
        mine = bytes_to_public_key(sealing.public)
        return [
            encrypt(
                generate_shared_key(bytes_to_private_key(other.private), mine),
                share_keys_plaintext_concat(node, 0, *self._dealt),
            )
            for node, other in self._sealing.items()
        ]

    def _open(self, inbox: list[bytes], keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        opened = (
            share_keys_plaintext_separate(decrypt(key, text))
            for key, text in zip(keys, inbox, strict=True)
        )
        return [(seed_share, key_share) for _, _, seed_share, key_share in opened]

    def _mask(self, seed: bytes, masking: Pair) -> list[NDArray[Any]]:
        """Quantise, then add the own mask and every pair mask."""
        values = arithmetic.parameters_multiply([self._values], 1.0)
        vector = arithmetic.factor_combine(TARGET, quantize(values, CLIPPING, TARGET))
        shapes = arithmetic.get_parameters_shape(vector)
        own = pseudo_rand_gen(seed, MODULUS, shapes)
        vector = arithmetic.parameters_addition(vector, own)
        for node, other in self._masking.items():
            key = generate_shared_key(
                bytes_to_private_key(masking.private), bytes_to_public_key(other.public)
            )
            mask = pseudo_rand_gen(key, MODULUS, shapes)
            add = node % 2  # Flower compares node ids; half of the neighbours are smaller
            join = arithmetic.parameters_addition if add else arithmetic.parameters_subtraction
            vector = join(vector, mask)
        return arithmetic.parameters_mod(vector, MODULUS)


class Server:
    """Flower's `unmask_stage`, one unit of each kind timed and multiplied.

        survivors x combine(seed) + lost x combine(key)
        + (survivors + lost * neighbours) x (mask + subtraction)
        + lost * neighbours x key agreement
        + one modulus and one dequantisation

    It combines all shares that came, and agrees and masks with dead neighbours too.
    """

    def __init__(self, shape: Shape) -> None:
        """Deal the shares of one seed and one private key."""
        self._shape = shape
        self._pairs = pair(), pair()
        kept = round(shape.shares * shape.survivors / (shape.survivors + shape.lost))
        self._came = [
            create_shares(secret, shape.threshold, shape.shares)[: max(kept, shape.threshold)]
            for secret in (os.urandom(32), self._pairs[0].private)
        ]
        self._vector = [np.zeros(1, np.int64), np.zeros(shape.params, np.int64)]

    def unmask(self) -> float:
        """Return the wall seconds of the whole stage."""
        shape = self._shape
        pairs = shape.lost * (shape.shares - 1)
        seeds, secrets = (_timed(lambda s=s: combine_shares(s)) for s in self._came)
        total = shape.survivors * seeds + _timed(self._finish)
        total += (shape.survivors + pairs) * _timed(self._masks) / MASKS
        if shape.lost:
            total += shape.lost * secrets + pairs * _timed(self._agreements) / AGREEMENTS
        return total

    def _masks(self) -> None:
        vector = self._vector
        for _ in range(MASKS):
            shapes = arithmetic.get_parameters_shape(vector)
            mask = pseudo_rand_gen(os.urandom(32), MODULUS, shapes)
            vector = arithmetic.parameters_subtraction(vector, mask)

    def _agreements(self) -> None:
        for _ in range(AGREEMENTS):
            private, public = self._pairs[0].private, self._pairs[1].public
            generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))

    def _finish(self) -> None:
        vector = arithmetic.parameters_mod(self._vector, MODULUS)
        dequantize(arithmetic.factor_extract(vector)[1], CLIPPING, TARGET)


def models(survivors: int) -> float:
    """Return the peak memory of Flower's server in models of 4 bytes a parameter, computed.

    Its `collect_masked_vectors_stage` holds every survivor's message with the int64 vector in
    it, and while it adds one: that vector decoded, the sum so far and the new sum. Each is two
    models. The model itself and the aggregate are left out.
    """
    return 2.0 * (survivors + 3)


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
