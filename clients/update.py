"""Local training to one encoded message: train, clip, code, lay out.

    received model -> trainer -> delta -> L2 clip of the device's policy -> codec -> message

The result of the training is kept until the attempt ends, and encoded once: n, and with it
the code's width, is known only when the roster is frozen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..protocol import messages_pb2 as pb
from ..protocol.codec import Codec
from ..protocol.entropy import random_bytes, wipe
from ..protocol.errors import PeerError, Refused
from ..protocol.layout import MessageLayout, rounding_key
from ..protocol.manifest import Manifest
from ..protocol.plan import read
from ..strategies import counted
from ..strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .policy import Policy
    from ..protocol.context import Terms
    from ..protocol.entropy import Entropy
    from ..strategies.task import Site
    from ..strategies.trainer import Trainer, TrainResult


PHASES = ("train", "evaluate")
_NOTHING: Mapping[str, object] = {}


class PhaseLayout(NamedTuple):
    """The message of one phase, and the digest of it that enters ctx0."""

    message: MessageLayout
    digest: bytes

    @property
    def split(self) -> int:
        """Where the 64-bit section begins, in bytes."""
        return self.message.split


class Update:
    """One device's update of one attempt."""

    def __init__(
        self,
        trainer: Trainer,
        site: Site,
        policy: Policy,
        *,
        entropy: Entropy,
        seed: int | None = None,
    ) -> None:
        """Take the device's trainer and data; `seed` makes the rounding repeatable.

        Without a seed the rounding words are keyed from the OS, as on every real device.
        """
        self._trainer = trainer
        self._site = site
        self._policy = policy
        self._entropy = entropy
        self._seed = seed
        own = trainer.arrays()
        self._has_own = bool(own)
        self._agreed = ""
        self.manifest = Manifest.of(own)
        self._declared = {phase: trainer.declared(phase) for phase in PHASES}
        self._layouts = dict[tuple[str, ...], PhaseLayout]()
        self._lay_out()
        self._result: TrainResult | None = None

    def agree(self, manifest: str) -> None:
        """Compare a run's manifest with the task's own, or take it where the task has none.

        A wrapped Flower app has no `model()` to ask. Names, shapes and dtypes are in ctx0 through
        the layout, so a device that was told other ones than the rest is in no sum with them.

        Args:
            manifest: `Manifest.to_json()`; empty is no claim, and a task with a model needs none.

        Raises:
            Refused: It is no manifest, is missing, or differs from the task's own.
        """
        if manifest == self._agreed if manifest else self._has_own:
            return
        try:
            theirs = Manifest.from_json(manifest)
        except PeerError as error:
            raise Refused(pb.REASON_CTX_DIFFERS, f"{error}") from error
        if not self._has_own:
            self.manifest = theirs
            self._lay_out()
        elif theirs != self.manifest:
            raise Refused(pb.REASON_CTX_DIFFERS, _difference(self.manifest, theirs))
        self._agreed = manifest

    def interrupt(self, why: str) -> bool:
        """Stop what trains, from any thread, where it can be stopped; say whether it ran."""
        stop: Callable[[str], bool] | None = getattr(self._trainer, "interrupt", None)
        return stop is not None and stop(why)

    def layout(self, phase: str, config: Mapping[str, object] = _NOTHING) -> PhaseLayout:
        """Return the layout of a phase, computed on this device; by the round's `config`."""
        own = self._declared[phase]
        more = counted.names(phase, config, own)
        key = (phase, *more)
        if key not in self._layouts:
            metrics = {**own, **more}
            layout = MessageLayout(self.manifest, metrics, phase)
            self._layouts[key] = PhaseLayout(layout, self.manifest.layout_digest(metrics))
        return self._layouts[key]

    def compute(self, model: bytearray, terms: Terms) -> None:
        """Train or evaluate the received model, as the attempt's terms say.

        An update that cannot be encoded is found here, before this device is in a roster, where
        its absence would count as a loss.

        Raises:
            Refused: The bytes are no model of this layout, the task failed, or it handed back other
                arrays or a value that is not finite.
        """
        try:
            arrays = self.manifest.unpack(model)
        except PeerError as error:
            raise Refused(pb.REASON_CTX_DIFFERS, str(error)) from error
        site = replace(self._site, settings=_plain(terms.config))
        try:
            if terms.phase == "evaluate":
                result = self._trainer.evaluate(arrays, site)
            else:
                settings = Settings.of(terms.config)
                result = self._trainer.train(arrays, site, settings)
                self.manifest.check_deltas(result.deltas, "the task's update")
        except PeerError as error:  # the task's own fault, not the gateway's
            raise Refused(pb.REASON_TASK_FAILED, str(error)) from error
        for name, delta in result.deltas.items():
            if not np.isfinite(delta).all():
                raise Refused(pb.REASON_NOT_FINITE, f"the update of {name!r} is NaN or infinite")
        self._result = result

    def encode(self, members: int, terms: Terms) -> bytearray:
        """Return the message for a roster of `members`; the training's result is used up.

        Raises:
            Refused: Nothing was trained, a value is not finite, or a metric breaks its bound.
        """
        result, self._result = self._result, None
        if result is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "the update of this attempt was sent already")
        params = read(terms.params)
        codec = Codec(members, params.value_range, params.weight_cap)
        train = terms.phase == "train"
        deltas = clipped(result.deltas, self._policy.l2_clip) if train else None
        layout = self.layout(terms.phase, terms.config).message
        shortened = deltas is not None and deltas is not result.deltas
        more = counted.values(layout.metrics, result.metrics, clipped=shortened)
        key = self._rounding_key(terms)
        try:
            return layout.build(deltas, result.weight, {**result.metrics, **more}, codec, key)
        finally:
            wipe(key)

    def forget(self) -> None:
        """Drop a result that was not used."""
        self._result = None

    def _rounding_key(self, terms: Terms) -> bytearray:
        if self._seed is None:
            return random_bytes(32, self._entropy)
        return bytearray(rounding_key(self._seed, terms.round, self._site.index, terms.phase))

    def _lay_out(self) -> None:
        """Lay out anew what a round without further settings sends."""
        self._layouts.clear()
        for phase in PHASES:
            self.layout(phase)


def _plain(config: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return what of a round's config user code may see: everything but raw bytes."""
    return {k: v for k, v in config.items() if isinstance(v, bool | int | float | str)}


def _difference(own: Manifest, theirs: Manifest) -> str:
    """Return the first array in which two manifests differ, as words."""
    forms = [{e.name: f"{e.dtype} {list(e.shape)}" for e in m.entries} for m in (own, theirs)]
    for name in sorted(forms[0].keys() | forms[1].keys()):
        mine, yours = (form.get(name, "nothing") for form in forms)
        if mine != yours:
            return f"the model's array {name!r}: this app has {mine}, the run {yours}"
    return "the run lists the model's arrays in another order than this app"


def clipped(deltas: Mapping[str, NDArray[Any]], bound: float | None) -> Mapping[str, NDArray[Any]]:
    """Return the deltas scaled down to the L2 norm `bound` over all arrays, if they are longer.

    The norm is accumulated in float64; None leaves the deltas as they are.
    """
    if bound is None:
        return deltas
    squares = (float(np.sum(np.square(d, dtype=np.float64))) for d in deltas.values())
    norm = float(np.sqrt(sum(squares)))
    if norm <= bound:
        return deltas
    return {name: (delta * (bound / norm)).astype(delta.dtype) for name, delta in deltas.items()}
