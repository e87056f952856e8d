"""What opens an attempt: a message that members take, whatever the model."""

from __future__ import annotations

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import wire
from umbel.protocol.errors import SettingsError
from umbel.server.invitation import start_of
from umbel.tests.actors import agreed


def test_a_manifest_that_fits_no_message_is_refused_before_anybody_is_asked() -> None:
    bare = start_of(agreed(), 0).ByteSize()
    room = wire.MAX_MESSAGE - bare - 16 - 4  # a message around it, a tag and three bytes of length
    largest = start_of(agreed(), 0, "m" * (room - 1))
    data = pb.ToClient(start=largest).SerializeToString()
    assert wire.MAX_MESSAGE - 16 < len(data) <= wire.MAX_MESSAGE
    assert wire.parse_to_client(data).start == largest
    with pytest.raises(SettingsError, match=r"^model: expected names and shapes that fit"):
        start_of(agreed(), 0, "m" * (room + 1))
