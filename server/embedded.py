"""The aggregation core in the coordinator's own process: a world, and the run's model.

The same interface as the core service's (core_client.py); nothing is sent, and a model is published
by being the one in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.kept import Keeping
from .core.run_model import RunModel
from .ingest import Ingest, Shape
from .stepping import Stepped
from ..protocol.errors import RoundFailed

if TYPE_CHECKING:
    from .core.worlds import AnyWorld
    from .firewall import Firewall
    from .ingest import Intake
    from .invitation import Plan
    from .stepping import StepOrder
    from ..protocol.codec import Codec
    from ..protocol.layout import MessageLayout, Sums
    from ..protocol.manifest import Manifest


class Embedded:
    """Sums and the model of one run, in this process (ingest.py, AggregationCore)."""

    def __init__(self, world: AnyWorld, firewall: Firewall) -> None:
        """Open sums in `world`; unmasked updates are checked by `firewall`."""
        self._world, self._firewall = world, firewall
        self._model: RunModel | None = None

    @property
    def model(self) -> RunModel:
        """The run's model."""
        if self._model is None:
            raise RoundFailed("server step: no model is in force")
        return self._model

    @property
    def clean(self) -> bool:
        """Whether the moments are those of the model in force."""
        return self.model.clean

    def intake(self, ctx: bytes, plan: Plan, codec: Codec) -> Intake:
        """Open the sum of an attempt."""
        return EmbeddedIntake(self, self._world, ctx, plan, codec, self._firewall)

    def put(self, manifest: Manifest, digest: bytes, packed: bytearray) -> None:
        """Put a model in force that no step made."""
        self._model = RunModel(manifest, digest, packed, self._world.make)

    def publish(self, digest: bytes) -> None:
        """Put the model that was stepped last in force."""
        self.model.adopt(digest)


class EmbeddedIntake(Ingest):
    """The vectors of one attempt, and the step over their sum."""

    def __init__(
        self,
        core: Embedded,
        world: AnyWorld,
        ctx: bytes,
        plan: Plan,
        codec: Codec,
        firewall: Firewall,
    ) -> None:
        """Open the sum."""
        layout = plan.layout
        keeping = None if plan.robust is None else Keeping(plan.robust, codec)
        shape = Shape(
            layout.total_bytes, layout.split, plan.stall, plan.budget, codec.members, keeping
        )
        super().__init__(
            world, ctx, shape, lambda node, slot: firewall.check_message(node, slot, layout, codec)
        )
        self._core = core

    def read(self, layout: MessageLayout, survivors: int, codec: Codec) -> Sums:
        """Freeze the sum and return what it says beside the update; VoidRound if it is none."""
        sums = layout.read(self.sum.numbers(), survivors, codec)
        self.sum.check(codec.bound(survivors))
        return sums

    def step(self, order: StepOrder) -> Stepped:
        """Make the next model out of the frozen sum."""
        model = self._core.model
        digest = self.sum.step(model, order)
        memory = {**self.sum.memory, **model.memory}
        return Stepped(digest, model.stepped_packed, model.moments_packed, memory)
