"""Attacks on a federation's directory, and what time brings to it."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from umbel.host.programs import Program
from umbel.protocol.enrolment import (
    EnrolAnswer,
)
from umbel.protocol.errors import Malformed, SettingsError, StateError
from umbel.server.federation_init import make
from umbel.server.flower_programs import SUPERLINK, Place
from umbel.server.flower_up import ServerUp
from umbel.server.roll_ca import roll
from umbel.server.server_toml import ServerSettings
from umbel.tests.issuing import DAY, NOW, Clock, Keys, Stage, declined, settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "wards")


# ---- what time brings -------------------------------------------------------------------------


def test_the_list_is_signed_anew_every_day_and_is_never_out_of_force(stage: Stage) -> None:
    epochs = set()
    for hours in range(0, 240, 11):
        stage.clock.now = NOW + timedelta(hours=hours)
        stage.issuer.refresh()
        found = stage.members()
        assert found.expires - stage.clock.now > 5 * DAY
        epochs.add(found.epoch)
    assert 8 <= len(epochs) <= 11


def test_a_superlink_that_lost_its_database_learns_its_nodes_again(stage: Stage) -> None:
    keys = Keys()
    answer = stage.issuer.enrol(keys.enrol(stage.token("a")))
    stage.issuer.enrol(Keys().enrol(stage.token("b")))
    stage.superlink.away = True
    assert stage.issuer.remove("b")["superlink"] is False
    assert "is not up to date" in stage.issuer.refresh()[-1]
    stage.superlink.away = False
    stage.superlink.nodes.clear()
    stage.superlink.ever.clear()
    assert stage.issuer.refresh() == []
    assert list(stage.superlink.nodes.values()) == [answer_key(keys)]
    stage.superlink.nodes[5] = b"of somebody else"  # what the operator registered by hand stays
    assert stage.issuer.refresh() == []
    assert 5 in stage.superlink.nodes
    assert answer.name == "a"


def answer_key(keys: Keys) -> bytes:
    return keys.flower.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_key_that_the_superlink_refuses_holds_up_no_other(stage: Stage) -> None:
    keys = [Keys() for _ in range(3)]
    answers = [stage.issuer.enrol(own.enrol(stage.token(f"n{i}"))) for i, own in enumerate(keys)]
    register = stage.superlink.register

    def picky(public_key: bytes, name: str) -> int:
        if name == "n0":  # unregistered by hand, which is for good
            raise SettingsError("registration", "a key that was never here", "another")
        return register(public_key, name)

    stage.superlink.nodes.clear()
    stage.superlink.ever.clear()
    stage.superlink.register = picky  # type: ignore[method-assign]
    (line,) = stage.issuer.refresh()
    assert line.startswith("n0: the SuperLink does not take this node's Flower key")
    assert list(stage.superlink.nodes.values()) == [answer_key(own) for own in keys[1:]]
    rows = json.loads((stage.folder / "nodes.json").read_text())
    assert [row["name"] for row in rows] == [answer.name for answer in answers]


def test_a_removed_node_leaves_the_list_when_its_certificates_are_long_gone(stage: Stage) -> None:
    keys = Keys()
    node = stage.issuer.enrol(keys.enrol(stage.token()))
    stage.issuer.remove("press-17")
    for days, listed in ((29, {node.id}), (31, set())):
        stage.clock.now = NOW + days * DAY
        stage.issuer.refresh()
        assert stage.members().revoked == listed
    with declined("removed"):
        stage.issuer.renew(keys.renew(node.id))


def test_damage_to_a_servers_key_or_to_the_settings_is_one_line(stage: Stage) -> None:
    (stage.folder / "front.key").write_text("no key")
    with pytest.raises(StateError, match=r"front: expected certificate and key of a server"):
        stage.issuer.refresh()
    file = stage.folder / "server.toml"
    file.write_text(file.read_text().replace('"wards"', '"beds"'))
    with pytest.raises(SettingsError, match=r"server.toml: name: expected 'wards', as in ca.pem"):
        stage.again()


def test_the_servers_certificates_are_renewed_before_they_end(stage: Stage) -> None:
    file = stage.folder / "gateway.pem"
    first, key = file.read_bytes(), (stage.folder / "gateway.key").read_bytes()
    stage.clock.now += 59 * DAY
    assert stage.issuer.refresh() == []
    stage.clock.now += 2 * DAY
    assert stage.issuer.refresh() == [
        "gateway.pem is new",
        "front.pem is new",
        "superlink.pem is new",
    ]
    leaf, above = x509.load_pem_x509_certificates(file.read_bytes())
    assert leaf.not_valid_after_utc == stage.clock.now + 90 * DAY
    assert above.subject == leaf.issuer
    assert (file.read_bytes() != first, (stage.folder / "gateway.key").read_bytes()) == (True, key)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    stage.clock.now += 300 * DAY
    assert stage.issuer.refresh()[-1] == "the issuing CA ends in 4 days: `umbel server roll-ca`"


def test_a_new_issuing_ca_signs_and_what_the_old_one_signed_holds(stage: Stage) -> None:
    keys = Keys()
    before = stage.issuer.enrol(keys.enrol(stage.token()))
    stage.clock.now += 300 * DAY
    stage.issuer.refresh()  # the list is of now, and signed by the CA that will be the old one
    roll(stage.folder, stage.folder / "root" / "ca.key", stage.clock.now)
    stage.issuer.refresh()
    assert stage.members().issued == stage.clock.now
    after = stage.issuer.renew(keys.renew(before.id))
    assert len(after.issuing) == 2
    assert after.issuing[1:] == before.issuing
    leaf, above = x509.load_pem_x509_certificates(after.tls.encode())
    assert above.public_bytes(Encoding.PEM).decode() == after.issuing[0]
    leaf.verify_directly_issued_by(above)
    stage.clock.now += 70 * DAY
    roll(stage.folder, stage.folder / "root" / "ca.key", stage.clock.now)
    now_two = x509.load_pem_x509_certificates((stage.folder / "issuing.pem").read_bytes())
    assert len(now_two) == 2  # the first has ended
    assert now_two[1].public_bytes(Encoding.PEM).decode() == after.issuing[0]


def test_only_the_roots_key_rolls_the_ca(stage: Stage, tmp_path: Path) -> None:
    other = Stage(tmp_path / "other", Clock())
    before = (stage.folder / "issuing.pem").read_bytes()
    for key in (
        other.folder / "root/ca.key",
        stage.folder / "issuing.key",
        stage.folder / "ca.pem",
    ):
        with pytest.raises(SettingsError):
            roll(stage.folder, key, NOW)
    assert (stage.folder / "issuing.pem").read_bytes() == before


# ---- a federation's directory -----------------------------------------------------------------


def test_an_offline_root_leaves_no_key_on_the_server(tmp_path: Path) -> None:
    medium = tmp_path / "medium"
    medium.mkdir()
    folder = tmp_path / "wards"
    make(folder, settings(), NOW, medium)
    key = (medium / "ca.key").read_bytes()
    assert all(key not in file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert (medium / "ca.pem").read_bytes() == (folder / "ca.pem").read_bytes()
    for wrong in (medium, tmp_path / "none"):
        with pytest.raises(SettingsError, match="--offline-ca"):
            make(tmp_path / "b", settings(), NOW, wrong)
    with pytest.raises(SettingsError, match="not there yet"):
        make(folder, settings(), NOW)
    assert (medium / "ca.key").read_bytes() == key


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (('node_days = 7', 'node_days = 8'), "node_days"),
        (('node_days = 7', 'node_days = true'), "node_days"),
        (('name = "wards"', 'name = "Wards"'), "name"),
        (("node_days = 7\n", ""), "node_days"),
        (("node_days = 7\n", "node_days = 7\nextra = 1\n"), "extra"),
        (('"192.0.2.7"', '"fl.example.org"'), "names"),
        (('"192.0.2.7"', '"a b"'), "names"),
        (('"127.0.0.1:8000"', '"0.0.0.0:8000"'), "superlink"),
        (('gateway = "fl.example.org:', 'gateway = "gw.example.org:'), "gateway"),
        (('front = "fl.example.org:8443"', 'front = "fl.example.org:0"'), "front"),
        (("[listen]", "[listening]"), "listen"),
    ],
)  # fmt: skip
def test_settings_are_strict(stage: Stage, change: tuple[str, str], where: str) -> None:
    file = stage.folder / "server.toml"
    text = file.read_text()
    assert ServerSettings.read(stage.folder) == settings()
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(SettingsError) as caught:
        ServerSettings.read(stage.folder)
    assert f"{file}: {where}" in str(caught.value)


def test_an_answer_that_is_cut_or_widened_is_no_answer(stage: Stage) -> None:
    good = json.loads(stage.issuer.enrol(Keys().enrol(stage.token())).dumps())
    assert EnrolAnswer.parse(json.dumps(good).encode()).gateway == "fl.example.org:8444"
    for change in (
        {"gateway": "fl.example.org"}, {"gateway": "a b:1"}, {"superlink": "x:70000"},
        {"flower_node": -1}, {"flower_node": 2**64}, {"id": "00"}, {"members": "%"},
        {"name": ""}, {"site": "a\nb"}, {"gateways": "a"}, {"issuing": ["x"] * 17}, {"tls": ""},
    ):  # fmt: skip
        with pytest.raises(Malformed):
            EnrolAnswer.parse(json.dumps(good | change).encode())


def test_a_superlink_starts_anew_with_its_new_certificate(stage: Stage, tmp_path: Path) -> None:
    said: list[str] = []
    place = Place(home=tmp_path, folder=stage.folder)
    with ServerUp(place, ServerSettings.read(stage.folder), said.append) as server:
        command = (sys.executable, "-c", "import time; time.sleep(60)")
        server.supervisor.start(Program(name=SUPERLINK, command=command, restart=True))
        first = server.supervisor.pid(SUPERLINK)
        server.watch(0.0)
        assert said == []
        stage.clock.now += 61 * DAY
        stage.issuer.refresh()
        until = time.monotonic() + 20
        while server.supervisor.pid(SUPERLINK) == first:
            server.watch(until)
            assert time.monotonic() < until
    assert said[0] == "the SuperLink starts anew, with a new certificate"
