"""The private names of flwr 1.42 by which replies are read object by object, all in this file.

Flower's `HttpGrid.pull_messages` pulls every object of every reply that has come, confirms, and
builds arrays of them. Here the ServerApp asks the SuperLink's Runtime API itself, by the client
that the grid has: which replies are there, one object of one of them, and, when the caller has
used it, that a reply may be forgotten. Until then its objects stay in Flower's store.

`runtime` looks before anyone relies on it: the version of flwr and every name. What differs is
said in one line, and replies come by the public Grid then (flower_streaming.py).
"""

from __future__ import annotations

from importlib.metadata import version
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from ..protocol.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.serverapp import Grid

FLOWER = "1.42"
"""The version whose names these are."""
_UNAVAILABLE = 3
"""Flower's error code of a reply whose objects are not there."""

_log = getLogger("flwr")


class NotYet(Exception):
    """A client is still sending this object."""


class Listed(NamedTuple):
    """A reply of which the SuperLink knows."""

    reply_to: str
    message_id: str
    proto: Any

    @property
    def is_error(self) -> bool:
        """Whether it has an error in place of records."""
        return bool(self.proto.HasField("error"))


class Runtime:
    """What a ServerApp may ask of the SuperLink about replies."""

    def __init__(self, grid: Any) -> None:
        """Take the client of an `HttpGrid`.

        Raises:
            ImportError: A module or name of flwr is not where it was.
            AttributeError: So is one of the grid.
        """
        from flwr.app.message import make_message  # noqa: PLC0415 - looked for, not relied on
        from flwr.common import serde_utils  # noqa: PLC0415
        from flwr.proto import message_pb2, runtime_pb2  # noqa: PLC0415

        self._make = make_message
        self._metadata = serde_utils.metadata_from_proto
        self._error = serde_utils.error_from_proto
        self._pull_list = runtime_pb2.PullAppMessagesRequest
        self._pull, self._confirm = (
            message_pb2.PullObjectRequest,
            message_pb2.ConfirmMessageReceivedRequest,
        )
        self._client = grid._runtime_client
        self._where = {"node": grid.node, "run_id": grid.run.run_id}
        for method in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
            getattr(self._client, method)

    def replies(self, message_ids: Iterable[str]) -> list[Listed]:
        """Return the replies to these messages that are new; each is told of once."""
        found = self._client.PullMessages(self._pull_list(message_ids=message_ids)).messages_list
        return [Listed(m.metadata.reply_to_message_id, m.metadata.message_id, m) for m in found]

    def fetch(self, peer: str, object_id: str) -> bytes:
        """Return the bytes of an object.

        Raises:
            NotYet: It is on its way to the SuperLink.
            Malformed: The SuperLink does not have it.
        """
        answer = self._client.PullObject(self._pull(object_id=object_id, **self._where))
        if not answer.object_found:
            raise Malformed(peer, "reply", f"object {object_id[:16]}… in Flower's store", "none")
        if not answer.object_available:
            raise NotYet
        content: bytes = answer.object_content
        return content

    def confirm(self, listed: Listed) -> None:
        """Let the SuperLink forget a reply and its objects."""
        self._client.ConfirmMessageReceived(
            self._confirm(message_object_id=listed.message_id, **self._where)
        )

    def message(self, listed: Listed, content: RecordDict) -> Message:
        """Return a reply with this content."""
        return self._made(listed, content=content)

    def failed(self, listed: Listed, reason: str) -> Message:
        """Return a reply as an error: the one that it is, or `reason`."""
        if listed.is_error:
            return self._made(listed, error=self._error(listed.proto.error))
        return self._made(listed, error=Error(_UNAVAILABLE, reason))

    def _made(self, listed: Listed, **content: Any) -> Message:
        made: Message = self._make(metadata=self._metadata(listed.proto.metadata), **content)
        made.metadata.__dict__["_message_id"] = listed.message_id
        return made


def runtime(grid: Grid) -> Runtime | None:
    """Return what reads replies object by object, or None where this flwr is not that flwr."""
    if type(grid).__name__ != "HttpGrid":
        return None  # Flower's simulation has replies in memory, no objects
    found = version("flwr")
    if found.split(".")[:2] == FLOWER.split("."):
        try:
            return Runtime(grid)
        except (ImportError, AttributeError) as error:
            found = f"{found} without a name of it ({error})"
    _log.info(
        "umbel: replies are pulled whole by Flower's public API: expected flwr %s, got %s",
        FLOWER,
        found,
    )
    return None


def named(message: Message, node: int) -> Message:
    """Return a reply with the node that was asked as its source; Flower's errors are node 1's."""
    if message.has_error():
        message.metadata.__dict__["_src_node_id"] = node
    return message


def record(peer: str, kind: str, content: bytes) -> MetricRecord | ConfigRecord:
    """Return a record without arrays, by Flower's own reader.

    Raises:
        Malformed: It is none.
    """
    kinds: dict[str, type[MetricRecord | ConfigRecord]] = {
        "MetricRecord": MetricRecord,
        "ConfigRecord": ConfigRecord,
    }
    if kind not in kinds:
        raise Malformed(peer, "reply", "records of arrays, metrics or settings", kind)
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - with flwr, not with umbel

    try:
        return kinds[kind].inflate(content)
    except (DecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise Malformed(peer, f"{kind}: {error}") from error
