"""Removal and renewal for real: an issuer, a core service in a process, devices with mTLS sessions.

Leaves of some seconds are an argument of the issuer. Who invites is `umbel.train` itself, over a
Grid in memory; a device reads its directory anew for each invitation, as a ClientApp does.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import umbel
from umbel.clients import member_file
from umbel.clients.device_files import DeviceFiles
from umbel.clients.policy import Policy
from umbel.host.whole_file import write_whole
from umbel.protocol import messages_pb2 as pb
from umbel.server import registry
from umbel.server.federation_init import make
from umbel.server.flower_train import train
from umbel.server.issuer import Issuer
from umbel.server.token_terms import Terms
from umbel.simulation.dev_federation import DevFederation
from umbel.tests.federations import APP, DeviceThread, core
from umbel.tests.flower_grid import Desk, identified
from umbel.tests.gateway import Numbers
from umbel.tests.issuing import Keys, SuperLink, said, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from flwr.app import Message

    from umbel.protocol.enrolment import EnrolAnswer
