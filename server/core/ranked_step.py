"""The server step as the ranks do it: each moves its shard, and hashes its leaves of the result.

A rank that dies while it moves its shard leaves moments that are of no round; so the whole step is
done again, from the model in force and the moments of the last checkpoint (run_model.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .supervisor import Job
from .. import stepping
from ...protocol.digest import tree_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .run_model import Moving, RunModel
    from .supervisor import Supervisor
    from ..stepping import StepOrder

HASH = 32


def step(
    supervisor: Supervisor, model: RunModel, order: StepOrder, mean: Mapping[str, Any]
) -> bytes:
    """Make the next model; return its digest.

    Args:
        supervisor: Of the ranks.
        model: The run's, in memory that the ranks can map.
        order: What is to be done.
        mean: What tells a rank where the mean update comes from (torch_shard.py).

    Raises:
        VoidRound: A value would not be finite; the model in force is what it was.
        StateError: The moments cannot be restored, or the ranks not be kept alive.
    """
    try:
        tries = 1
        while not _begun(supervisor, model, order, mean):
            supervisor.bear(tries)
            tries += 1
        return model.stepped(digest(supervisor, model))
    except BaseException:
        model.drop_next()
        raise


def _begun(
    supervisor: Supervisor, model: RunModel, order: StepOrder, mean: Mapping[str, Any]
) -> bool:
    old, new, _ = model.begin(order)
    stepping.keep_rest(model.manifest, old, new)
    return moved(supervisor, model, order, mean)


def moved(supervisor: Supervisor, model: Moving, order: StepOrder, mean: Mapping[str, Any]) -> bool:
    """Let every rank move its shard, and say whether all have lived to its end.

    Raises:
        VoidRound, StateError: As `step`.
    """
    moments = {name: str(model.moments[name].path) for name in order.rule.moments}
    named = {"old": str(model.current.path), "new": str(model.made.path), "moments": moments}
    fields = {**named, "nbytes": model.nbytes, "order": order.described()}
    head = {"op": "step", **mean, **fields}
    manifest = model.manifest.to_json().encode()
    answers = supervisor.submit(Job(supervisor.ranks, head, manifest, once=True)).wait()
    return all(answer["op"] == "done" for answer, _ in answers)


def digest(supervisor: Supervisor, model: RunModel) -> bytes:
    """Return the digest of the next model: the root over leaves that every rank hashes some of."""
    head = {"op": "leaves", "path": str(model.made.path), "nbytes": model.nbytes}
    head["total"] = model.manifest.total_bytes
    answers = supervisor.submit(Job(supervisor.ranks, head)).wait()
    hashes = b"".join(bytes(body) for _, body in answers)
    return tree_root(hashes[at : at + HASH] for at in range(0, len(hashes), HASH))
