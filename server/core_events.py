"""An event of the core service, and the call of the coordinator that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..protocol.errors import BadCertificate, PeerError

if TYPE_CHECKING:
    from . import core_wire
    from .coordinator import Coordinator
    from .core_client import CoreClient


class Event(NamedTuple):
    """One event of the core."""

    message: core_wire.Message
    core: CoreClient

    def give(self, coordinator: Coordinator, now: float) -> None:
        """Tell the coordinator what happened; of a sum that is closed, nothing."""
        fields, payload = self.message.fields, bytes(self.message.payload)
        node = str(fields.get("node", ""))
        op = self.message.op
        if op == "joined":
            version = str(fields.get("version", ""))
            resumed = bool(fields.get("resumed"))
            _join(coordinator, payload, version, resumed=resumed, now=now)
        elif op == "left":
            coordinator.leave(node, now)
        elif op == "message":
            coordinator.message(node, payload, now)
        intake = self.core.open_sum
        if intake is None or fields.get("ctx") != intake.ctx.hex():
            return
        if op == "progress":
            intake.progress(fields.get("left"), now)
        elif op == "whole":
            coordinator.whole(node, intake.expected(node), now)
        elif op == "bad":
            coordinator.expel(node, str(fields.get("why", ""))[:256], now)


def _join(coordinator: Coordinator, der: bytes, version: str, *, resumed: bool, now: float) -> None:
    try:
        if resumed:
            coordinator.resume_session(der)
        else:
            coordinator.join(der, now, version)
    except BadCertificate as error:
        coordinator.note("refused", "", str(error))
    except PeerError:  # a session that this ServerApp has not seen: its predecessor's
        coordinator.join(der, now, version)
