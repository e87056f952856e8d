"""What the doctors read: a federation's own files, and what a server shows them.

They raise nothing, whatever it is: what is broken is a finding. A device's files are in
fuzz_files.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.host import doctor_tls
from umbel.server import doctor_files, doctor_live
from umbel.tests.fuzz_files import TOML, folder, of, pem
from umbel.tests.fuzzing import Parser
from umbel.tests.issuing import NOW, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from umbel.host.doctor import Finding

    Look = Callable[[doctor_files.Place], Iterable[Finding]]


@cache
def stage() -> Stage:
    """Return a federation with a token and a member list."""
    made = Stage(folder() / "doctored")
    made.token()
    made.issuer.refresh()
    return made


def _file(name: str) -> Callable[[], Path]:
    return lambda: stage().folder / name


def _whole(name: str) -> Callable[[], list[bytes]]:
    return lambda: [_file(name)().read_bytes()]


def _leaf() -> list[bytes]:
    leaf = x509.load_pem_x509_certificate(_file("front.pem")().read_bytes())
    return [leaf.public_bytes(Encoding.DER)]


def _looked(look: Look) -> Callable[[], None]:
    def read() -> None:
        for finding in look(doctor_files.Place.read(stage().folder)):
            assert "PRIVATE KEY" not in finding.line

    return read


def _shown(data: bytes) -> None:
    leaf = doctor_tls.loaded(data)
    doctor_tls.federation_of(leaf)
    if leaf is not None:
        doctor_tls.names_of(leaf)


def _parser(what: str, name: str, look: Look, **own: Any) -> Parser:
    values = {"make": _whole(name), "growth": TOML, "errors": (),
              "parse": of(_file(name), _looked(look))}  # fmt: skip
    return Parser(name=f"server doctor, {what}", **(values | own))  # type: ignore[arg-type]


DOCTOR = (
    _parser("server.toml", "server.toml", doctor_files.directory, form="toml"),
    _parser(
        "certificate", "front.pem", lambda place: doctor_files.servers(place, NOW), form="der",
        make=_leaf, seal=pem("CERTIFICATE"),
    ),
    _parser("member list", "members.list", lambda place: doctor_files.members(place, NOW)),
    _parser(
        "database", "issuer.sqlite", lambda place: doctor_files.books(place, NOW), spare=16 << 20
    ),
    _parser(
        "core.json", "core.json", lambda place: doctor_live.core(place.folder), form="json",
        make=lambda: [b'{"pid": 7, "port": 1}'],
    ),
    Parser(name="doctor_tls, certificate", form="der", errors=(), make=_leaf, parse=_shown),
    Parser(
        name="doctor_tls, page", errors=(), parse=doctor_tls.parsed,
        make=lambda: [b"HTTP/1.1 200 OK\r\ndate: Tue, 01 Dec 2026 06:00:00 GMT\r\n\r\nok\n"],
    ),
)  # fmt: skip
