"""The one masked message of a round: section 32 with the update, section 64 with the numbers.

    section 32   uint32 words: the float arrays in manifest order, one word a value; each array
                 from a multiple of 16 words, gaps zero, filled up to a multiple of 64 bytes.
                 Empty in the phase `evaluate`, where every weight is 1.
    section 64   uint64 words: 1, w, saturated, the metrics by the bytes of their names, 1

All words are little-endian; sums are modulo 2^32 and 2^64. A metric is a sum: a real one in
fixed point with 24 fractional bits, a count unscaled; both two's complement and at most
2^(38 - ceil(log2 n)) in magnitude, so that n of them stay within 64 bits.

The two ones tell whether all masks are gone: over |U| survivors each sums to |U|, and any mask
left in the sum makes both random. A round whose sum breaks a rule is void.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import masks
from . import messages_pb2 as pb
from .canonical import lp
from .entropy import wipe
from .errors import Refused, SettingsError, VoidRound, said
from .manifest import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .codec import Codec
    from .manifest import Manifest

REAL = 24
"""Fractional bits of a real metric."""
COUNT = 0
"""Fractional bits of a count."""

METRIC_BITS = 38
"""A metric of one client is at most 2^(METRIC_BITS - ceil(log2 n)) in magnitude."""
_ALIGN_WORDS = 16
_MAX_METRICS = 256
_PHASES = ("train", "evaluate")


class Sums(NamedTuple):
    """What the survivors' messages add up to."""

    weight: int
    saturated: int
    metrics: dict[str, float | int]


class MessageLayout:
    """Where everything stands in the message of one phase."""

    def __init__(self, manifest: Manifest, metrics: Mapping[str, int], phase: str) -> None:
        """Lay out the message.

        Args:
            manifest: The model.
            metrics: Declared metrics, each with its fractional bits: 24, or 0 for a count.
            phase: `train` or `evaluate`.

        Raises:
            SettingsError: A metric's name or bits, or the phase, is none of these.
        """
        if phase not in _PHASES:
            raise SettingsError("phase", " or ".join(_PHASES), phase)
        if len(metrics) > _MAX_METRICS:
            raise SettingsError("metrics", f"at most {_MAX_METRICS}", len(metrics))
        for name, bits in metrics.items():
            check_name(name, "metric name")
            if bits not in {REAL, COUNT}:
                raise SettingsError(f"metric {name}", f"{REAL} or {COUNT} fractional bits", bits)
        self.manifest = manifest
        self.phase = phase
        self.metrics = dict(sorted(metrics.items(), key=lambda item: item[0].encode()))
        self.places: dict[str, slice] = {}
        """Words of each array in section 32, in manifest order; empty in `evaluate`."""
        end = 0
        for entry in manifest.averaged if phase == "train" else ():
            self.places[entry.name] = slice(end, end + entry.size)
            end += -(-entry.size // _ALIGN_WORDS) * _ALIGN_WORDS
        self.words32 = end

    @property
    def split(self) -> int:
        """Bytes of section 32, a multiple of 64: where section 64 starts."""
        return 4 * self.words32

    @property
    def total_bytes(self) -> int:
        """Bytes of the message."""
        return self.split + 8 * (4 + len(self.metrics))

    def build(
        self,
        deltas: Mapping[str, NDArray[Any]] | None,
        weight: int,
        metrics: Mapping[str, float | int],
        codec: Codec,
        rounding_key: bytes | bytearray,
    ) -> bytearray:
        """Return the message of one client, not yet masked.

        Args:
            deltas: Local minus global, one float array for each averaged array; None in
                `evaluate`.
            weight: Positive; capped by the codec, and 1 in `evaluate`.
            metrics: A value for each declared metric.
            codec: The code of the round.
            rounding_key: 32 bytes, used for this message only. Word i of section 32 is rounded
                by word i of its ChaCha20 stream.

        Raises:
            Refused: A value is not finite or too large, a metric is not declared, or the task
                gave none for one that is.
            BadUpdate: The deltas are not those of the manifest.
        """
        numbers = self._numbers(metrics, codec)
        buffer = bytearray(self.total_bytes)
        if self.phase == "train":
            capped = codec.capped(weight)
            saturated = self._encode(deltas or {}, capped, buffer, codec, rounding_key)
        else:
            if weight != 1 or deltas:
                raise Refused(pb.REASON_TASK_FAILED, "an evaluation has weight 1 and no deltas")
            capped, saturated = 1, 0
        section = np.frombuffer(buffer, "<u8", offset=self.split)
        section[:] = np.array([1, capped, saturated, *numbers, 1], dtype=np.uint64)
        return buffer

    def _encode(
        self,
        deltas: Mapping[str, NDArray[Any]],
        weight: int,
        buffer: bytearray,
        codec: Codec,
        rounding_key: bytes | bytearray,
    ) -> int:
        """Fill section 32 and return how many values were clamped."""
        self.manifest.check_deltas(deltas, "own update")
        if not self.split:
            return 0
        # The rounding words start out where the codes will stand: no second buffer.
        masks.write(memoryview(buffer)[: self.split], rounding_key)
        words = np.frombuffer(buffer, "<u4", self.words32)
        saturated, end = 0, 0
        try:
            for name, place in self.places.items():
                words[end : place.start] = 0
                part = words[place]
                saturated += codec.encode(deltas[name].reshape(-1), weight, part, part)
                end = place.stop
            words[end:] = 0
        except Refused:
            wipe(words)
            raise
        return saturated

    def _numbers(self, metrics: Mapping[str, float | int], codec: Codec) -> list[int]:
        """Return the metrics as words modulo 2^64, in the order of the layout."""
        for name in metrics:
            if name not in self.metrics:
                raise Refused(
                    pb.REASON_UNDECLARED_METRIC, f"metric {said(name, repr)} is not declared"
                )
        for name in self.metrics:
            if name not in metrics:
                raise Refused(pb.REASON_TASK_FAILED, f"metric {name!r} is declared, not given")
        bound = 2.0 ** (METRIC_BITS - codec.log_members)
        return [_fixed(name, metrics[name], bits, bound) for name, bits in self.metrics.items()]

    def read(self, numbers: bytes | bytearray | memoryview, survivors: int, codec: Codec) -> Sums:
        """Return the sums in section 64 of an unmasked total, or say that the round is void.

        Whether section 32 is one of so many codes is `codec.check_sum`'s.

        Args:
            numbers: Section 64 of the sum of the survivors' messages.
            survivors: |U|, 1..members, from the agreed bitmap.
            codec: The code of the round.

        Raises:
            VoidRound: A rule is broken; nothing of the sum may be published.
            ValueError: It has another length, or `survivors` is out of range.
        """
        view = memoryview(numbers).cast("B")
        if len(view) != (size := self.total_bytes - self.split):
            raise ValueError(f"a sum has {size} bytes of numbers, got {len(view)}")
        if not 1 <= survivors <= codec.members:
            raise ValueError(f"survivors lie in 1..{codec.members}, got {survivors}")
        first, weight, saturated, *values, last = np.frombuffer(view, "<u8").tolist()
        if (first, last) != (survivors, survivors):
            raise VoidRound(f"masks did not cancel: the ones do not sum to {survivors}")
        cap = codec.weight_cap if self.phase == "train" else 1
        if not survivors <= weight <= survivors * cap:
            raise VoidRound(
                f"masks did not cancel: the weights do not sum to {survivors}..{survivors * cap}"
            )
        metrics = {
            name: _real(number, bits)
            for (name, bits), number in zip(self.metrics.items(), values, strict=True)
        }
        return Sums(weight, saturated, metrics)


def rounding_key(seed: int, round_number: int, client: int, phase: str) -> bytes:
    """Return the key of a client's rounding words in a reproducible run, 32 bytes.

    It follows from seed, purpose, round and the client's index, not from the run's id: two
    runs of one seed have equal bits. Outside such runs the key comes from the OS.
    """
    fields = (b"umbel/rounding/1", str(seed), str(round_number), str(client), phase)
    parts = (f if isinstance(f, bytes) else f.encode() for f in fields)
    return hashlib.sha256(lp(*parts)).digest()


def _fixed(name: str, value: float, bits: int, bound: float) -> int:
    """Return a metric as a word modulo 2^64."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(pb.REASON_TASK_FAILED, f"metric {name!r} is no number")
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(pb.REASON_NOT_FINITE, f"metric {name!r} is NaN or infinite")
    if bits == COUNT and not isinstance(value, int):
        raise Refused(pb.REASON_TASK_FAILED, f"metric {name!r} is a count, and no integer")
    if abs(value) > bound:
        raise Refused(pb.REASON_LIMITS, f"metric {name!r} is beyond {bound:.0f}", name)
    # A power of two scales a float exactly; round() then ties to even.
    return round(math.ldexp(value, bits)) % 2**64


def _real(number: int, bits: int) -> float | int:
    """Return what a summed word says: an integer count, or a float."""
    signed = number - 2**64 if number >= 2**63 else number
    return signed if bits == COUNT else signed / 2**bits
