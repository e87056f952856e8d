"""gRPC's lines about handshakes, as they were recorded from gRPC 1.85.3."""

from __future__ import annotations

import subprocess
import sys

import pytest

from umbel.server.core_stderr import said

FAILED = (
    "I1130 21:07:10.619495   10076 ssl_transport_security.cc:2563] Handshake failed with error "
    "SSL_ERROR_SSL: error:{}:SSL routines:OPENSSL_internal:{}"
)
NO_CONTEXT = "Invalid certificate verification context"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (("1000009c", f"HTTP_REQUEST: {NO_CONTEXT}"), "no TLS, but plaintext or random bytes"),
        (("100000f7", f"WRONG_VERSION_NUMBER: {NO_CONTEXT}"), "no TLS, but plaintext"),
        (("100000c0", f"PEER_DID_NOT_RETURN_A_CERTIFICATE: {NO_CONTEXT}"), "no client certificate"),
        (
            ("1000007d", "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate"),
            "client certificate was refused: unable to get local issuer certificate",
        ),
        (
            ("1000007d", "CERTIFICATE_VERIFY_FAILED: certificate has expired"),
            "client certificate was refused: certificate has expired",
        ),
        (("100000e5", "UNKNOWN_CIPHER_RETURNED: x"), "TLS handshake (UNKNOWN_CIPHER_RETURNED)"),
        (("100000e5", "NO_SHARED_CIPHER"), "TLS handshake (NO_SHARED_CIPHER)"),
    ],
)
def test_each_failed_handshake_is_one_clear_line(error: tuple[str, str], words: str) -> None:
    found = said(FAILED.format(*error))
    assert found is not None
    assert found[0].startswith("tls")
    assert words in found[1]
    assert "OPENSSL" not in found[1]


@pytest.mark.parametrize(
    "line",
    [
        "W1130 21:07:10.610259   10069 log.cc:102] Log level INFO is not suitable for production. "
        "Prefer WARNING or ERROR.",
        "I1130 21:05:42.161515    9280 chttp2_transport.cc:1403] ipv4:127.0.0.1:35995: Got goaway",
    ],
)
def test_chatter_is_dropped(line: str) -> None:
    assert said(line) is None


def test_errors_of_grpc_are_kept() -> None:
    line = "E1130 21:05:42.161515    9280 server.cc:12] No address added out of total 1 resolved"
    assert said(line) == ("grpc", "gRPC (server.cc:12): No address added out of total 1 resolved")


def test_what_is_not_grpcs_passes_as_it_is() -> None:
    assert said("Fatal Python error: Aborted") == ("", "Fatal Python error: Aborted")


PROGRAM = """
import os, sys, time
from umbel.server import core_stderr
said = []
core_stderr.listen(lambda kind, line: said.append(kind))
os.write(2, b"somebody else's line\\n")
os.write(2, b"I1130 21:05:42.161515 9280 ssl_transport_security.cc:2563] Handshake failed with "
            b"error SSL_ERROR_SSL: error:1:SSL routines:OPENSSL_internal:HTTP_REQUEST: x\\n")
print("our own line", file=sys.stderr)
while not said:
    time.sleep(0.01)
print(said)
"""


def test_descriptor_2_is_read_and_what_is_not_grpcs_comes_out_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.stdout == "['tls']\n"
    assert sorted(done.stderr.splitlines()) == ["our own line", "somebody else's line"]


FULL = """
import os, sys
from umbel.server import core_stderr
from umbel.server.core_log import console
core_stderr.listen(lambda kind, line: None)
for _ in range(5000):
    os.write(2, b"x" * 99 + b"\\n")
    console("a line of our own")
os.write(2, b"y" * 1_000_000)
print("it goes on")
"""


def test_a_log_on_a_full_disk_stops_nobody() -> None:
    """More than a pipe holds: whoever writes to descriptor 2 would stand still, or fail."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=full, text=True,
            check=False, timeout=30,
        )  # fmt: skip
    assert done.stdout == "it goes on\n"
