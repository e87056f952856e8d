"""The issuer's process and what asks it: the socket, the commands, many at once."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.protocol.enrolment import Declined, EnrolAnswer
from umbel.protocol.enrolment_token import Token
from umbel.protocol.errors import SettingsError, StateError
from umbel.server import flower_registration, issuer_socket
from umbel.server.issuer_socket import ENROLMENTS, Service, listen
from umbel.server.issuer_wire import ask, relay
from umbel.server.token_terms import Terms
from umbel.tests.issuing import Clock, Keys, Stage, served

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.issuer_commands import Answer


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "wards")


def _closed(stream: socket.socket) -> bool:
    try:
        return not stream.recv(1)
    except ConnectionResetError:
        return True


def asked(stage: Stage, command: str, body: bytes) -> Answer:
    return asyncio.run(relay(stage.folder, command, body))


def test_the_front_gets_what_the_issuer_says_refusals_too(stage: Stage) -> None:
    keys, token = Keys(), stage.token()
    with served(stage):
        ca = asked(stage, "ca", b"")
        made = asked(stage, "enrol", keys.enrol(token).dumps())
        used = asked(stage, "enrol", Keys().enrol(token).dumps())
        renewed = asked(stage, "renew", keys.renew(EnrolAnswer.parse(made.body).id).dumps())
        unread = asked(stage, "enrol", b'{"secret": "open sesame"}')
    assert ca == (200, (stage.folder / "ca.pem").read_bytes())
    assert (made.status, renewed.status) == (200, 200)
    assert EnrolAnswer.parse(made.body).name == "press-17"
    assert (used.status, Declined.parse(used.body).code) == (409, "token used")
    assert (unread.status, Declined.parse(unread.body).code) == (400, "malformed")
    assert b"sesame" not in unread.body


def test_an_issuer_that_is_away_or_cannot_is_worth_another_try(stage: Stage) -> None:
    token, keys = stage.token(), Keys()
    said: list[str] = []
    away = asked(stage, "enrol", b"{}")
    stage.superlink.away = True
    with served(stage, said):
        first = asked(stage, "enrol", keys.enrol(token).dumps())
        (stage.folder / "issuing.key").rename(stage.folder / "hidden")
        second = asked(stage, "enrol", keys.enrol(token).dumps())
    for answer in (away, first, second):
        assert (answer.status, Declined.parse(answer.body).code) == (503, "unavailable")
    assert str(stage.folder).encode() not in second.body  # the device is told of no file
    assert "issuing.key" in said[-1]


def test_requests_that_are_too_long_or_of_no_form_are_turned_away(stage: Stage) -> None:
    for body in (b"x" * 65536, b"\xff", b"\x00" * 20000):
        answer = asked(stage, "enrol", body)
        assert (answer.status, Declined.parse(answer.body).code) == (400, "malformed")
    with served(stage):
        for line in (b"{}\n", b"[" * 60000 + b"\n", b'{"command": "\\ud800", "body": ""}\n'):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(10)
                stream.connect(str(stage.folder / "issuer.sock"))
                stream.sendall(line)
                found = json.loads(stream.makefile("rb").readline())
            assert found["status"] in {400, 404}
        with socket.socket(socket.AF_UNIX) as stream:  # without an end: hung up on
            stream.settimeout(10)
            stream.connect(str(stage.folder / "issuer.sock"))
            stream.sendall(b"x" * 140000)
            assert _closed(stream)
        assert asked(stage, "ca", b"").status == 200


def test_the_socket_is_the_owners_alone_and_serves_one_issuer(stage: Stage) -> None:
    with served(stage):
        mode = stat.S_IMODE((stage.folder / "issuer.sock").stat().st_mode)
        assert mode == 0o600
        with pytest.raises(StateError, match="no other issuer"):
            listen(stage.folder)
    listen(stage.folder).close()  # of one that is gone only the file is left


def test_a_hundred_devices_at_once_become_a_hundred_nodes(stage: Stage) -> None:
    names = [f"press-{i}" for i in range(100)]
    tokens = [stage.token(name) for name in names]
    keys = [Keys() for _ in names]

    async def enrolled(index: int) -> EnrolAnswer:
        body = keys[index].enrol(tokens[index]).dumps()
        answer = await relay(stage.folder, "enrol", body)
        return EnrolAnswer.parse(answer.body)

    async def everybody() -> list[EnrolAnswer]:
        return await asyncio.gather(*(enrolled(index) for index in range(len(names))))

    with served(stage):
        answers = asyncio.run(everybody())
    assert [answer.name for answer in answers] == names
    assert len({answer.id for answer in answers}) == len(stage.superlink.nodes) == 100
    rows = json.loads((stage.folder / "nodes.json").read_text())
    assert {row["name"] for row in rows} == set(names)


def test_a_superlink_that_hangs_holds_up_no_renewal_and_no_removal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys()
    answer = stage.issuer.enrol(keys.enrol(stage.token()))
    tokens = [stage.token(f"t{i}") for i in range(ENROLMENTS + 4)]
    monkeypatch.setattr(issuer_socket, "WAITING", 3)
    hung = threading.Event()
    stage.superlink.register = lambda *_: hung.wait(20) and 1  # type: ignore[method-assign]

    async def during() -> list[Any]:
        asking = [
            asyncio.create_task(relay(stage.folder, "enrol", Keys().enrol(token).dumps()))
            for token in tokens
        ]
        early, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        renewed = await relay(stage.folder, "renew", keys.renew(answer.id).dumps())
        hung.set()
        await asyncio.gather(*asking)
        return [next(iter(early)).result().status, renewed.status]

    with served(stage):
        assert asyncio.run(during()) == [503, 200]


def test_an_operator_gets_the_same_from_a_process_and_without_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "wards", Clock(datetime.now(UTC)))
    given = Terms(name="a", site="hall", seconds=3600).dumps()
    with served(stage):
        line = ask(stage.folder, "token", given)["token"]
        with pytest.raises(SettingsError, match="name that no open token has, got 'a'"):
            ask(stage.folder, "token", given)
        listed = ask(stage.folder, "tokens")
        with pytest.raises(SettingsError, match="name or id of an enrolled node, got 'b'"):
            ask(stage.folder, "remove", "b")
    assert Token.parse(line).federation == "wards"
    assert [(row["name"], row["state"]) for row in listed] == [("a", "open")]
    stage.issuer.enrol(Keys().enrol(Token.parse(line)))
    removed = ask(stage.folder, "remove", "a")  # no issuer runs, and no SuperLink
    assert (removed["name"], removed["superlink"]) == ("a", False)
    assert [row["state"] for row in ask(stage.folder, "nodes")] == ["removed"]
    with pytest.raises(SettingsError, match="enrolled node, got 'a'"):
        ask(stage.folder, "remove", "a")


def test_the_commands_make_a_federation_and_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    offline = tmp_path / "medium"
    offline.mkdir()

    def umbel(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["server", *arguments])
        return status, *capsys.readouterr()

    status, _, line = umbel("token", "--name", "a")
    assert (status, "`umbel server init` makes one" in line) == (2, True)
    flags = f"--name wards --names fl.example.org,::1 --offline-ca {offline}".split()
    status, out, _ = umbel("init", *flags)
    folder = tmp_path / "federations" / "wards"
    assert (status, f"take {offline} away" in out) == (0, True)
    assert stat.S_IMODE((offline / "ca.key").stat().st_mode) == 0o600
    assert not list(folder.rglob("ca.key"))
    assert umbel("init", "--name", "wards", "--names", "a")[0] == 2
    status, out, err = umbel("token", "--name", "press-17", "--expires", "30m", "--app", "ab" * 32)
    token = Token.parse(out)
    assert (token.address, token.apps) == ("fl.example.org:8443", (b"\xab" * 32,))
    assert token.secret.hex() not in err
    assert "press-17  until" in umbel("token", "list")[1]
    assert umbel("token", "revoke", "press-17")[1] == "revoked: press-17\n"
    found = json.loads(umbel("token", "list", "--format", "json")[1])
    assert [(row["state"], row["apps"]) for row in found] == [("revoked", ["ab" * 32])]
    for wrong in ("--name -x", "--name x --expires 90d", "--name x --app q"):
        status, out, err = umbel("token", *wrong.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
    status, _, err = umbel("roll-ca")
    assert (status, "`--offline-ca DIR`" in err) == (2, True)
    old = (folder / "issuing.pem").read_text()
    assert umbel("roll-ca", "--offline-ca", str(offline))[0] == 0
    assert (folder / "issuing.pem").read_text().endswith(old)


def test_who_comes_behind_a_superlink_that_hangs_waits_for_a_moment_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_registration, "TURN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as hung:  # takes connections and says nothing
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        registrar = flower_registration.SuperLinkRegistrar(address, stage.folder / "ca.pem")
        ended: list[StateError] = []

        def first() -> None:
            with pytest.raises(StateError) as caught:
                registrar.registered()
            ended.append(caught.value)

        thread = threading.Thread(target=first)
        thread.start()
        stream = hung.accept()[0]  # the first one asks
        with pytest.raises(StateError, match="none yet to those before"):
            registrar.unregister(1)
        stream.close()
        hung.close()
        thread.join(20)
        registrar.close()
    assert "SuperLink" in str(ended[0])


def test_what_is_wrong_for_long_is_said_once_and_again_when_it_comes_back(stage: Stage) -> None:
    said: list[str] = []

    async def refreshed() -> None:
        service = Service(stage.issuer, said.append)
        for away in (True, True, False, True):
            stage.superlink.away = away
            await service.refresh()
        await service.refresh(superlink=False)

    asyncio.run(refreshed())
    assert len(said) == 2
    assert said[0] == said[1]
    assert "the SuperLink's list of nodes is not up to date" in said[0]
