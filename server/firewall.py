"""The firewall: what an update must be before anything of it touches a sum.

Where updates arrive unmasked (float updates, and ring messages with the masks off) each is checked
alone, and a refusal names the node, the array or field, what was expected and what came; the round
lives on without that node while the quorum holds. In a secure round a single message is noise:
there ranges hold by construction on the device, and the sum is checked as a whole by the void
rules of protocol/layout.py. Nothing here changes what it looks at.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import BadUpdate, SettingsError
from ..protocol.layout import METRIC_BITS
from ..strategies.fedavg import TILE, finite_norm, tiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..protocol.codec import Codec
    from ..protocol.layout import MessageLayout
    from ..protocol.manifest import Manifest


class Firewall:
    """The checks of one run."""

    def __init__(self, manifest: Manifest, *, max_norm: float | None, weight_cap: int) -> None:
        """Set the bounds.

        Args:
            manifest: The model; its averaged arrays are what an update holds.
            max_norm: Largest L2 norm of one client's delta, or None for no bound.
            weight_cap: Largest weight, 1 or more.

        Raises:
            SettingsError: A bound is outside its range.
        """
        if max_norm is not None and not (math.isfinite(max_norm) and max_norm > 0.0):
            raise SettingsError("firewall.max-norm", "a finite number above 0", max_norm)
        if weight_cap < 1:
            raise SettingsError("firewall.weight-cap", "1 or more", weight_cap)
        self.manifest = manifest
        self.max_norm = max_norm
        self.weight_cap = weight_cap

    def check_arrays(self, node: str, arrays: Mapping[str, NDArray[Any]], weight: int) -> None:
        """Check a float update: one delta for each averaged array, and its weight.

        Raises:
            BadUpdate: Names, shapes, dtypes, a value, the norm or the weight is not allowed.
        """
        self._check_weight(node, weight, self.weight_cap)
        self.manifest.check_deltas(arrays, node)
        self._check_norm(node, finite_norm(node, arrays))

    def check_message(
        self,
        node: str,
        buffer: bytes | bytearray | memoryview,
        layout: MessageLayout,
        codec: Codec,
    ) -> None:
        """Check one client's ring message that carries no mask, as `MessageLayout.build` made it.

        Raises:
            BadUpdate: The length, a one, the weight, the saturated count, a metric, a gap word, a
                code or the norm of the decoded delta is not allowed.
        """
        if len(buffer) != layout.total_bytes:
            raise BadUpdate(node, "ring message", f"{layout.total_bytes} bytes", len(buffer))
        weight = self._check_numbers(node, buffer, layout, codec)
        codes = np.frombuffer(buffer, "<i4", layout.words32)
        squares, end = 0.0, 0
        for name, place in layout.places.items():
            _check_gap(node, codes[end : place.start])
            _check_codes(node, name, codes[place], codec.q_max)
            if self.max_norm is not None:
                squares += _squares(codes[place])
            end = place.stop
        _check_gap(node, codes[end:])
        self._check_norm(node, math.sqrt(squares) / (codec.scale * weight))

    def _check_numbers(
        self,
        node: str,
        buffer: bytes | bytearray | memoryview,
        layout: MessageLayout,
        codec: Codec,
    ) -> int:
        """Check section 64 and return the weight."""
        first, weight, saturated, *numbers, last = np.frombuffer(
            buffer, "<u8", offset=layout.split
        ).tolist()
        if (first, last) != (1, 1):
            raise BadUpdate(node, "the two ones", (1, 1), (first, last))
        training = layout.phase == "train"
        cap = min(self.weight_cap, codec.weight_cap) if training else 1
        self._check_weight(node, weight, cap)
        values = sum(entry.size for entry in layout.manifest.averaged) if training else 0
        if saturated > values:
            raise BadUpdate(node, "saturated count", f"at most {values}", saturated)
        for (name, bits), number in zip(layout.metrics.items(), numbers, strict=True):
            signed = number - 2**64 if number >= 2**63 else number
            bound = 2 ** max(METRIC_BITS - codec.log_members, 0)
            if abs(signed) > bound * 2**bits:
                raise BadUpdate(
                    node, f"metric {name!r}", f"at most {bound} in magnitude", signed / 2**bits
                )
        return int(weight)

    def _check_weight(self, node: str, weight: int, cap: int) -> None:
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= cap:
            raise BadUpdate(node, "weight", f"an integer in 1..{cap}", weight)

    def _check_norm(self, node: str, norm: float) -> None:
        if self.max_norm is not None and not norm <= self.max_norm:
            raise BadUpdate(node, "L2 norm of the delta", f"at most {self.max_norm}", norm)


def _check_gap(node: str, codes: NDArray[np.int32]) -> None:
    if codes.any():
        raise BadUpdate(node, "words between two arrays", "zeros", "others")


def _check_codes(node: str, name: str, codes: NDArray[np.int32], q_max: int) -> None:
    if codes.size == 0:
        return
    for extreme in (int(codes.max()), int(codes.min())):
        if abs(extreme) > q_max:
            raise BadUpdate(node, f"array {name!r}", f"codes of at most {q_max}", extreme)


def _squares(codes: NDArray[np.int32]) -> float:
    """Return the sum of the squares, in float64."""
    squares = 0.0
    wide = np.empty(min(TILE, codes.size), np.float64)
    for tile in tiles(codes.size):
        part = wide[: tile.stop - tile.start]
        np.copyto(part, codes[tile])
        squares += float(part @ part)
    return squares
