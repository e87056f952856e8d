"""`umbel server issuer` before a real SuperLink: many devices at once; killed again and again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from umbel.host.programs import free_port
from umbel.protocol.enrolment import EnrolAnswer
from umbel.protocol.enrolment_token import Token
from umbel.server import registry
from umbel.server.federation_init import make
from umbel.server.flower_control import Control
from umbel.server.flower_programs import Place, issuer, superlink
from umbel.server.issuer_wire import ask, is_served, relay
from umbel.server.token_terms import Terms
from umbel.tests.issuing import Keys, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.host.programs import Program

pytestmark = pytest.mark.slow

DEVICES = 100
KILLS = 4


@contextmanager
def running(program: Program, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of the server, in a process group that ends with the test."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            program.command, env=os.environ | program.env, stdout=out, stderr=out, process_group=0
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the SuperLink waits for connections
        process.wait()


def until(what: str, ready: object) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 60
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Server:
    """A federation's directory, its SuperLink, and an issuer that is started as often as wanted."""

    def __init__(self, home: Path) -> None:
        """Make the directory."""
        self.place = Place(home=home, folder=home / "wards")
        self.address = f"127.0.0.1:{free_port()}"
        names = {"names": ("localhost",), "gateway": "localhost:1", "front": "localhost:2"}
        make(self.folder, settings(superlink=self.address, **names), datetime.now(UTC))

    @property
    def folder(self) -> Path:
        """The federation's directory."""
        return self.place.folder

    @contextmanager
    def superlink(self) -> Iterator[None]:
        """Run Flower's SuperLink; `control` speaks with it."""
        self.control = Control(self.address, self.folder / "ca.pem")
        with running(superlink(self.place, self.address), self.folder / "superlink.log"):
            until("the SuperLink does not answer", self.control.healthy)
            try:
                yield
            finally:
                self.control.close()

    @contextmanager
    def issuer(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the issuer."""
        with running(issuer(self.place), self.folder / "issuer.log") as process:
            until("the issuer does not listen", lambda: is_served(self.folder))
            yield process

    def tokens(self, count: int) -> list[Token]:
        """Make tokens, as the operator does."""
        terms = (Terms(name=f"n{i}", site="hall", seconds=3600).dumps() for i in range(count))
        return [Token.parse(ask(self.folder, "token", each)["token"]) for each in terms]


async def enrolled(server: Server, token: Token, keys: Keys) -> EnrolAnswer:
    """Enrol, and try again as a device does when the CA cannot answer."""
    body = keys.enrol(token).dumps()
    while (answer := await relay(server.folder, "enrol", body)).status == 503:
        await asyncio.sleep(0.1)
    return EnrolAnswer.parse(answer.body)


def test_a_hundred_devices_enrol_while_the_issuer_is_killed(tmp_path: Path) -> None:
    server, keys = Server(tmp_path), [Keys() for _ in range(DEVICES)]
    tokens = server.tokens(DEVICES)

    async def everybody() -> list[EnrolAnswer]:
        asking = [
            asyncio.create_task(enrolled(server, token, own))
            for token, own in zip(tokens, keys, strict=True)
        ]
        for number in range(KILLS + 1):
            loop = asyncio.get_running_loop()
            process = subprocess.Popen(
                issuer(server.place).command, stdout=subprocess.DEVNULL, process_group=0
            )
            await loop.run_in_executor(None, until, "no issuer", lambda: is_served(server.folder))
            if number < KILLS:
                done = sum(task.done() for task in asking)
                while sum(task.done() for task in asking) < min(done + 8, DEVICES):
                    await asyncio.sleep(0.01)
                process.kill()
                await loop.run_in_executor(None, process.wait)
        answers = await asyncio.gather(*asking)
        process.terminate()
        assert await loop.run_in_executor(None, process.wait) == 0
        return answers

    with server.superlink():
        answers = asyncio.run(everybody())
        again = asyncio.run(enrolled_all(server, tokens, keys))
        assert again == answers
        known = server.control.keys()
        nodes = registry.read(server.folder)
        assert {node.name for node in nodes.values()} == {f"n{i}" for i in range(DEVICES)}
        assert len({answer.id for answer in answers}) == len(known) == DEVICES
        assert {bytes.fromhex(key): by for key, by in by_flower(nodes, answers).items()} == known
        removed = ask(server.folder, "remove", "n7")
        assert removed["superlink"] is True
        assert answers[7].flower_node not in server.control.keys().values()
        assert len(server.control.nodes()) == DEVICES - 1


async def enrolled_all(server: Server, tokens: list[Token], keys: list[Keys]) -> list[EnrolAnswer]:
    """Ask once more for what everybody has: a process that begins, and nobody in its way."""
    with server.issuer():
        asking = (enrolled(server, *each) for each in zip(tokens, keys, strict=True))
        return await asyncio.gather(*asking)


def by_flower(nodes: dict[str, registry.Node], answers: list[EnrolAnswer]) -> dict[str, int]:
    """Return Flower's ids by Flower's keys, by way of our ids."""
    flower = {answer.id.hex(): answer.flower_node for answer in answers}
    return {key: flower[node.id] for key, node in nodes.items()}


def test_a_superlink_that_lost_its_database_learns_its_nodes_from_the_issuer(
    tmp_path: Path,
) -> None:
    server, keys = Server(tmp_path), [Keys(), Keys()]
    tokens = server.tokens(2)
    with server.superlink():
        asyncio.run(enrolled_all(server, tokens, keys))
        before = set(server.control.keys())
    (server.folder / "superlink.sqlite").unlink()
    with server.superlink():
        assert server.control.keys() == {}
        with server.issuer():
            until("the nodes are not known", lambda: set(server.control.keys()) == before)
        rows = json.loads((server.folder / "nodes.json").read_text())
        assert len(rows) == 2
