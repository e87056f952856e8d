"""The files that are read: a device's own, an app's, a federation's.

All lie in one directory of this process. A file's owner can write anything into it, and so can a
disk that fails; the files of a run are in fuzz_runs.py.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from umbel.clients import doctor_files
from umbel.clients.device_files import DeviceFiles
from umbel.clients.journal import FileJournal
from umbel.clients.policy import Policy
from umbel.host.processes import read_state
from umbel.protocol.errors import BadCertificate, SettingsError, StateError
from umbel.server import registry
from umbel.server.core_cli import Federation
from umbel.server.core_client import _federation_of, _root_of
from umbel.server.core_socket import ticket_key
from umbel.server.flower_train import _given
from umbel.server.run_config import from_environment, run_settings, tables
from umbel.server.run_rule import chosen
from umbel.simulation.dev_federation import Client, DevFederation, prepare
from umbel.strategies.app import AppRef, read_tables
from umbel.tests.federations import made
from umbel.tests.fuzz_protocol import journals, summed
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = (SettingsError, BadCertificate)


@cache
def folder() -> Path:
    """Return the directory of this process."""
    where = Path(tempfile.mkdtemp(prefix="umbel-fuzz-"))
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    return where


@cache
def federation() -> DevFederation:
    """Return a federation of one device, whose files are all good."""
    return made(folder() / "federation", 1)


@cache
def device() -> Path:
    """Return the directory of its device."""
    return federation().device("edge-0")


@dataclass
class Spoilt:
    """A file that holds other bytes for the length of a `with`."""

    file: Path
    data: bytes

    def __enter__(self) -> None:
        self.before = self.file.read_bytes() if self.file.exists() else None
        self.file.write_bytes(self.data)
        self.file.chmod(0o600)

    def __exit__(self, *_: object) -> None:
        if self.before is None:
            self.file.unlink()
        else:
            self.file.write_bytes(self.before)


def of(file: Callable[[], Path], read: Callable[[], Any]) -> Callable[[bytes], Any]:
    """Return a parser's `parse`: `read`, with the bytes in `file`."""

    def parse(data: bytes) -> Any:
        with Spoilt(file(), data):
            return read()

    return parse


def pem(label: str) -> Callable[[bytes], bytes]:
    """Return what puts DER between lines of PEM."""
    return lambda data: (
        f"-----BEGIN {label}-----\n".encode()
        + b"".join(b64encode(data[i : i + 48]) + b"\n" for i in range(0, len(data), 48))
        + f"-----END {label}-----\n".encode()
    )


# ---- a device's ----------------------------------------------------------------------------


def _device_read() -> tuple[object, ...]:
    files = DeviceFiles.read(device())
    return files.federation, files.id, files.gateway, files.superlink, files.ddp, files.memory


def _certificates(name: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        read = x509.load_pem_x509_certificate((device() / name).read_bytes())
        return [read.public_bytes(Encoding.DER)]

    return make


def _keys(name: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        key = load_pem_private_key((device() / name).read_bytes(), None)
        return [key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())]

    return make


def _tls() -> None:
    DeviceFiles.read(device()).tls(datetime.now(UTC))


def _identity() -> None:
    DeviceFiles.read(device()).identity(datetime.now(UTC))


def _device_toml() -> list[bytes]:
    return [(device() / "device.toml").read_bytes() + b"ddp = 2\nmemory = 999999999\n"]


def _doctored(data: bytes) -> None:
    """Look at a device's directory with other bytes in device.toml, or in a certificate."""
    name = "tls.pem" if data.startswith(b"-----BEGIN") else "device.toml"
    with Spoilt(device() / name, data):
        known = doctor_files.Known.read(device())
        looks = doctor_files.leaves(known, datetime.now(UTC)), doctor_files.directory_of(known)
        for finding in looks[name == "device.toml"]:
            assert "PRIVATE KEY" not in finding.line


def _journal() -> object:
    journal = FileJournal(device() / "journal")
    journal.close()
    return journal.history.last_vote


# ---- an app's ------------------------------------------------------------------------------

TOML = 200
"""Bytes for each digit of a number: the stack of tomllib's regular expression."""
APP = b"""[project]
name = "digits"
[tool.umbel]
task = "digits.task:Digits"
task-torch = "digits.task:Torch"
rounds = 3
deadline = 30.5
lr = 0.1
local-epochs = 2
own.value = "x"
[tool.flwr.app.config]
batch-size = 16
seed = 7
"""


def _app() -> object:
    declared, own = read_tables(folder() / "app")
    ref = AppRef.read(folder() / "app")
    table, config = tables(ref.settings, {})
    rule = chosen(table, ref.settings)
    settings = run_settings(table, config, run="r", secure=True, rule=rule)
    return declared, own, settings.described()


def _app_file() -> Path:
    (folder() / "app").mkdir(exist_ok=True)
    return folder() / "app" / "pyproject.toml"


def _given_settings(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape").replace("\0", "")
    before = os.environ.pop("UMBEL_SETTINGS", None)
    os.environ["UMBEL_SETTINGS"] = text
    try:
        given = _given()
        table, config = tables(given, {})
    finally:
        del os.environ["UMBEL_SETTINGS"]
        if before is not None:
            os.environ["UMBEL_SETTINGS"] = before
    rule = chosen(table, given)
    return run_settings(table, config, run="r", secure=False, rule=rule).described()


def _environment(data: bytes) -> object:
    lines = data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    pairs = (line.partition("=") for line in lines)
    given = from_environment({name: value for name, _, value in pairs})
    table, config = tables({}, given)
    rule = chosen(table, given)
    return run_settings(table, config, run="r", secure=True, rule=rule).described()


# ---- a federation's ------------------------------------------------------------------------


def _registered() -> list[bytes]:
    return [(federation().folder / "nodes.json").read_bytes()]


@cache
def renewed() -> DevFederation:
    """Return another federation: what is spoilt in this one is made anew."""
    return made(folder() / "renewed", 1)


def _prepared() -> None:
    prepare(renewed().folder, "tested", [Client(name="edge-0")], datetime.now(UTC))


def _up() -> list[bytes]:
    program = {
        "name": "core", "command": ["a", "b"], "env": {"A": "1"}, "tier": 1, "restart": True,
        "pause": 0.5,
    }  # fmt: skip
    state = {
        "mark": "m", "supervisor": {"pid": 4, "started": 1.5},
        "programs": [{"program": program, "pid": 5, "started": 2.5}],
    }  # fmt: skip
    return [json.dumps(state).encode()]


def _prepared_from(name: str) -> Parser:
    def file() -> Path:
        return renewed().folder / name

    return Parser(
        name=f"dev_federation.prepare, {name}",
        errors=(StateError,),
        make=lambda: [file().read_bytes()],
        parse=of(file, _prepared),
    )


FILES = (
    Parser(
        name="policy.load", form="toml", growth=TOML, errors=(SettingsError,),
        make=lambda: [(device() / "policy.toml").read_bytes(), Policy().dumps().encode()],
        parse=of(lambda: device() / "policy.toml", lambda: Policy.load(device() / "policy.toml")),
        again=lambda policy: policy.dumps().encode(),
    ),
    Parser(
        name="device_files.read", form="toml", growth=TOML, errors=(SettingsError,), parse=of(
            lambda: device() / "device.toml", _device_read,
        ),
        make=_device_toml,
    ),
    Parser(
        name="device_files.tls, certificate", form="der", errors=DEVICE,
        make=_certificates("tls.pem"), seal=pem("CERTIFICATE"),
        parse=of(lambda: device() / "tls.pem", _tls),
    ),
    Parser(
        name="device_files.tls, key", form="der", errors=DEVICE, make=_keys("tls.key"),
        seal=pem("PRIVATE KEY"), parse=of(lambda: device() / "tls.key", _tls),
    ),
    Parser(
        name="device_files.identity, certificate", form="der", errors=DEVICE,
        make=_certificates("signing.pem"), seal=pem("CERTIFICATE"),
        parse=of(lambda: device() / "signing.pem", _identity),
    ),
    Parser(
        name="device_files.identity, key", form="der", errors=DEVICE, make=_keys("signing.key"),
        seal=pem("PRIVATE KEY"), parse=of(lambda: device() / "signing.key", _identity),
    ),
    Parser(
        name="device_files.root", form="der", errors=DEVICE, make=_certificates("ca.pem"),
        seal=pem("CERTIFICATE"), parse=of(lambda: device() / "ca.pem", _identity),
    ),
    Parser(
        name="doctor_files, device.toml", form="toml", growth=TOML, errors=(), make=_device_toml,
        parse=_doctored,
    ),
    Parser(
        name="doctor_files, certificate", form="der", errors=(), make=_certificates("tls.pem"),
        seal=pem("CERTIFICATE"), parse=_doctored,
    ),
    Parser(
        name="journal file", form="lines", errors=(StateError,), make=journals, seal=summed,
        parse=of(lambda: device() / "journal", _journal),
    ),
    Parser(
        name="app.read_tables, run_config.tables", form="toml", growth=TOML,
        errors=(SettingsError,), make=lambda: [APP], parse=of(_app_file, _app),
    ),
    Parser(
        name="flower_train._given", form="json", errors=(SettingsError,), parse=_given_settings,
        make=lambda: [b'{"lr":0.1,"rounds":3,"deadline":4,"own":"x","flag":true,"seed":1}'],
    ),
    Parser(
        name="run_config.from_environment", form="lines", errors=(SettingsError,),
        parse=_environment,
        make=lambda: [b"UMBEL_ROUNDS=3\nUMBEL_DEADLINE=4\nUMBEL_VALUE_RANGE=1e3\nUMBEL_LR=0.5"],
    ),
    Parser(
        name="registry.read", form="json", errors=(StateError,), make=_registered, parse=of(
            lambda: federation().folder / "nodes.json", lambda: registry.read(federation().folder),
        ),
    ),
    Parser(
        name="core_client._federation_of", form="json", errors=(StateError,), parse=of(
            lambda: federation().folder / "core.json", lambda: _federation_of(federation().folder),
        ),
        make=lambda: [b'{"federation":"tested","port":1}'],
    ),
    Parser(
        name="core_client._root_of", form="der", errors=(StateError,), parse=of(
            lambda: federation().folder / "ca.pem", lambda: bool(_root_of(federation().folder)),
        ),
        make=_certificates("ca.pem"), seal=pem("CERTIFICATE"),
    ),
    Parser(
        name="core_cli.Federation.read, leaf", form="der", errors=(StateError,),
        make=_certificates("tls.pem"), seal=pem("CERTIFICATE"), parse=of(
            lambda: federation().folder / "gateway.pem",
            lambda: Federation.read(federation().folder).names,
        ),
    ),
    Parser(
        name="core_cli.Federation.read, root", form="der", errors=(StateError,),
        make=_certificates("ca.pem"), seal=pem("CERTIFICATE"), parse=of(
            lambda: federation().folder / "ca.pem",
            lambda: Federation.read(federation().folder).name,
        ),
    ),
    Parser(
        name="core_socket.ticket_key", errors=(StateError,), make=lambda: [bytes(range(32))],
        parse=of(lambda: folder() / "one.key", lambda: ticket_key(folder() / "one.key")),
        again=bytes,
    ),
    Parser(
        name="processes.read_state", form="json", errors=(StateError,), make=_up,
        parse=of(lambda: folder() / "up.json", lambda: read_state(folder())),
        again=lambda state: json.dumps(state).encode(),
    ),
    *map(_prepared_from, ("ca.key", "nodes/edge-0/tls.pem")),
)  # fmt: skip
