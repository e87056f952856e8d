"""Front and gateway behind one port: docs/operations.md, with a proxy that chooses by the name.

The gateway asks for a client's certificate and the front does not; the proxy ends neither's TLS.
Names of a device are resolved here by the system, so the gateway's is `localhost`.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from umbel.tests import front_stage
from umbel.tests.core_stage import CoreStage
from umbel.tests.federations import addressed, core, made
from umbel.tests.front_stage import PULL, post, response, staged, status
from umbel.tests.process_host import Host
from umbel.tests.sni_proxy import routed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
FRONT, GATEWAY = "fl.example.org", "localhost"


def test_the_name_in_the_handshake_leads_to_the_front_or_to_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_stage, "NAMES", (FRONT, "127.0.0.1"))
    federation = made(tmp_path / "federation", 3)
    with (
        core(federation) as gateway, staged(tmp_path / "front") as front,
        routed({FRONT: front.port, GATEWAY: gateway}) as proxy, closing(Host(tmp_path)) as host,
    ):  # fmt: skip
        addressed(federation, f"{GATEWAY}:{proxy.port}")

        # Three devices go through a round, masks and uploads and all, by the gateway's name.
        stage = CoreStage(federation, host, tmp_path, "sni", members=(0, 1, 2), rounds=1)
        with closing(stage) as run:
            run.play()
            assert run.survivors(1) == (0, 1, 2)
        assert set(proxy.asked) == {GATEWAY}

        # The front is reached by its own, with its own certificate.
        def asked(name: str | None) -> int:
            trust = front.trust
            if name is None:
                trust = ssl.create_default_context(cafile=front.folder / "ca.pem")
                trust.check_hostname = False
            with (
                socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain,
                trust.wrap_socket(plain, server_hostname=name) as line,
            ):
                line.sendall(post(PULL, b"abc"))
                return status(response(line))

        assert asked(FRONT) == 200
        assert [seen.body for seen in front.superlink.seen] == [b"abc"]
        for stranger in ("other.example.org", None):  # and by no other, nor by none
            with pytest.raises((ssl.SSLError, ConnectionError)):
                asked(stranger)
        assert proxy.asked[-3:] == [FRONT, "other.example.org", None]
