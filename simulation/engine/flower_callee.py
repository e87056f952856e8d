"""What a worker does for a Flower app: message and context are built, its ClientApp is called.

As Flower's own engine calls it: `app(message, context)`, mods and lifespan around it. `Context` is
made anew for each call; its `state` comes with the message and goes back where it has changed, so
it outlives this process. Private names of Flower: `Message(metadata=…)`, as in its own transports,
and `TaskIdentity`, without which a message cannot be made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from .flower_records import Blobs, decoded, encoded, same
from .isolation import alone, seed
from ...clients.child import boundary
from ...protocol.errors import SettingsError
from ...server.core.segments import Segment
from ...strategies.app import AppRef, load
from ...strategies.task import Site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import RecordDict

    from .flower_records import Content
    from .pool_worker import Answer, Me

PURPOSE = "global generators, Flower app"
PEER = "the pool"


def make(fields: Mapping[str, Any]) -> FlowerCallee:
    """Return the callee of an app's ClientApp.

    Raises:
        SettingsError: The component is something else.
    """
    found = load(AppRef(Path(fields["directory"]), fields["component"]))
    if not isinstance(found, ClientApp):
        expected = "a flwr.clientapp.ClientApp"
        raise SettingsError(f"clientapp {fields['component']}", expected, type(found).__name__)
    return FlowerCallee(found)


class FlowerCallee:
    """Calls a ClientApp."""

    def __init__(self, app: ClientApp) -> None:
        """Take the app."""
        self._app = app

    def begin(self, fields: Mapping[str, Any], blobs: Sequence[memoryview], me: Me) -> None:
        """Take what the messages of one step share."""
        self._fields = fields
        self._shared: dict[int, bytes] = {}
        self._segment = Segment.attach(Path(fields["shared"]), fields["nbytes"], write=False)
        TaskIdentity.task_id, TaskIdentity.run_id = fields["task"], fields["run"]

    def call(self, fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Answer:
        """Answer one message."""
        node = int(fields["node"])
        own = [bytes(blob) for blob in blobs]
        message = self._message(fields, own)
        state = [fields["state"], own[fields["inline"] :]]
        context = self._context(node, decoded(state[0], state[1].__getitem__, PEER))
        TaskIdentity.node_id = node
        site = Site(client=node, seed=self._fields["seed"], round=int(fields["number"]))
        alone()
        with boundary():
            seed(site, PURPOSE)
            reply = self._app(message, context)
            if not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned a {type(reply).__name__}, no Message")
            return self._answer(reply, context.state, *state)

    def _message(self, fields: Mapping[str, Any], own: Sequence[bytes]) -> Message:
        content = fields["content"]
        if isinstance(content, int):
            content = self._fields["contents"][content]
        made = decoded(
            content, lambda place: own[-1 - place] if place < 0 else self._bytes(place), PEER
        )
        return Message(metadata=Metadata(*fields["metadata"]), content=made)  # type: ignore[call-overload,no-any-return]

    def _context(self, node: int, state: RecordDict) -> Context:
        return Context(
            run_id=self._fields["run"],
            node_id=node,
            node_config={"partition-id": node, "num-partitions": self._fields["nodes"]},
            state=state,
            run_config=dict(self._fields["run_config"]),
        )

    def _bytes(self, place: int) -> bytes:
        """Return a shared blob, which this process copies once a step."""
        if place not in self._shared:
            start, size = self._fields["places"][place]
            self._shared[place] = bytes(self._segment.view[start : start + size])
        return self._shared[place]

    @staticmethod
    def _answer(
        reply: Message, state: RecordDict, before: Content, kept: Sequence[bytes]
    ) -> Answer:
        """Return a reply, and the state where the app has changed it."""
        blobs, states = Blobs(), Blobs()
        fields: dict[str, Any] = {"state": None}
        if reply.has_error():
            fields["error"] = [reply.error.code, reply.error.reason]
        else:
            fields["content"] = encoded(reply.content, blobs.place)
        after = encoded(state, states.place)
        if not same(after, states.data, before, kept):
            fields |= {"state": after, "inline": len(blobs.data)}
            return fields, [*blobs.data, *states.data]
        return fields, blobs.data
