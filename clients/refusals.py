"""What a refusal outside a session leaves behind: its code for the server, its words in the record.

Before a session there is no line to the gateway: the code goes the way that the question came, as
the answer to a Flower message.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .history import History
from .options import ENVIRONMENT, FILE
from ..protocol import messages_pb2 as pb
from ..protocol.errors import (
    BadCertificate,
    Refused,
    SettingsError,
    StateError,
    UmbelError,
    reason_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def code_of(error: UmbelError) -> pb.Reason:
    """Return the code that an error travels as."""
    if isinstance(error, Refused):
        return error.reason
    codes: tuple[tuple[type[UmbelError], pb.Reason], ...] = (
        (StateError, pb.REASON_JOURNAL),
        (SettingsError, pb.REASON_POLICY),
        (BadCertificate, pb.REASON_CERTIFICATE),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), pb.REASON_UNSPECIFIED)


def keep_refusal(
    error: UmbelError, log: Callable[[str], None], *, run: str = "", app: str = ""
) -> None:
    """Write a refusal into the record of the device that `$UMBEL_DEVICE` names, if it is one.

    Args:
        error: Why, in full.
        log: The device's own console.
        run: Umbel's run id, where it is known.
        app: SHA-256 of the bundle in hex, where it is known.
    """
    directory = Path(os.environ.get(ENVIRONMENT, "/nowhere"))
    if not (directory / FILE).is_file():
        return
    reason = code_of(error)
    code = "" if reason == pb.REASON_UNSPECIFIED else reason_text(reason)
    history = History(directory, log)
    key = error.key if isinstance(error, Refused) else ""
    history.refuse(code, key, str(error), run=run, app=app)
    history.close()
