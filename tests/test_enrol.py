"""Enrolment and renewal against a real issuer, over real TLS."""

from __future__ import annotations

import io
import json
import stat
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.cli import main
from umbel.clients import enrol as enrolment
from umbel.clients import front_line
from umbel.clients.device_files import DeviceFiles
from umbel.clients.enrol import Enrolled, enrol
from umbel.clients.policy import Policy
from umbel.clients.renew import renew
from umbel.clients.renewals import Renewal, Renewals
from umbel.host import whole_file
from umbel.protocol.enrolment import Declined
from umbel.protocol.errors import PeerError, SettingsError, StateError
from umbel.server import federation_files
from umbel.tests.enrolling import Door, Proxy
from umbel.tests.issuing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.protocol.enrolment_token import Token
    from umbel.protocol.verification import Member

APP = bytes(range(32))


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    found = Door(tmp_path / "federation")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a second try here."""
    monkeypatch.setattr(front_line, "TRIES", 1)


def enrolled(token: Token, place: Path, policy: Policy | None = None) -> Enrolled:
    return enrol(token, place, policy or Policy(), lambda _line: None)


def member(files: DeviceFiles) -> Member:
    """Return whose signing certificate lies in a device's directory, by what else lies there."""
    known = files.membership(now())
    known.check(now())
    return known.verifier.member(files.identity(now()).certificate, now(), claimed=files.id)


def now() -> datetime:
    return datetime.now(UTC)


def test_a_token_makes_a_device_that_its_own_files_admit(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "devices" / "wards"
    done = enrolled(door.token(site="hall 4", apps=(APP,)), place, Policy(min_members=7))
    files = DeviceFiles.read(place)
    assert (files.id, files.federation) == (done.id, "wards")
    assert files.policy.min_members == 7
    assert (files.policy.apps, files.policy.required) == ((APP,), True)
    assert files.policy.gateways == ("fl.example.org", "192.0.2.7")
    assert member(files).site == "hall 4"
    assert files.tls(now()).chain.count(b"BEGIN CERTIFICATE") == 2
    assert files.ca() == done.root == door.token("other").root
    (node,) = door.stage.superlink.nodes
    assert (place / "flower.node").read_text() == f"{node}\n"
    kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert set(kept.values()) == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert kept.keys() == {
        *("ca.pem", "issuing.pem", "tls.pem", "tls.key", "signing.pem", "signing.key"),
        *("flower", "flower.pub", "flower.node", "device.toml", "policy.toml", "members.list"),
    }
    assert [path.name for path in place.parent.iterdir()] == ["wards"]


class _Killed(BaseException):
    """Ends the process there and then."""


def test_a_kill_at_any_write_leaves_no_device_or_the_same_one(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write in turn is the last; the next enrolment finishes it, with the same node."""
    written = whole_file.write_whole
    left = 0

    def mortal(path: Path, content: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Killed
        written(path, content)

    monkeypatch.setattr(enrolment, "write_whole", mortal)
    most = 0
    for most in range(100):
        place, token = tmp_path / "devices" / f"d{most}", door.token(f"press-{most}")
        left = most
        try:
            enrolled(token, place)
        except _Killed:
            assert not place.exists()
        else:
            break
        keys = place.with_name(f".{place.name}.enrolling") / "tls.key"
        before = keys.read_bytes() if most >= 4 else b""
        left = 1000
        enrolled(token, place)
        assert member(DeviceFiles.read(place))
        assert before in {b"", (place / "tls.key").read_bytes()}
    assert most >= 10
    named = [node["name"] for node in door.stage.issuer.nodes()]
    assert sorted(named) == sorted(f"press-{n}" for n in range(most + 1))


def test_a_lost_answer_is_asked_for_again_with_the_same_keys(door: Door, tmp_path: Path) -> None:
    token, place = door.token(), tmp_path / "device"
    door.lost = 1
    with pytest.raises(StateError, match="try again"):
        enrolled(token, place)
    assert not place.exists()
    assert enrolled(token, place).id.hex() == door.stage.issuer.nodes()[0]["id"]
    assert len(door.stage.superlink.ever) == 1


def test_another_token_makes_other_keys(door: Door, tmp_path: Path) -> None:
    """The keys of an enrolment that nobody finished are another node's."""
    place = tmp_path / "device"
    door.lost = 1
    with pytest.raises(StateError):
        enrolled(door.token("one"), place)
    assert enrolled(door.token("two"), place).name == "two"
    assert len(door.stage.issuer.nodes()) == 2


def test_an_enrolled_device_is_never_overwritten(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "device"
    enrolled(door.token(), place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    asked = len(door.seen)
    with pytest.raises(SettingsError, match=r"an enrolled one.*umbel client leave"):
        enrolled(door.token("two"), place)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_text("miau")
    with pytest.raises(SettingsError, match="empty or absent"):
        enrolled(door.token("three"), other)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert len(door.seen) == asked


def test_a_token_that_is_used_expired_revoked_or_of_another_server_is_one_line(
    door: Door, tmp_path: Path
) -> None:
    used, late, revoked = door.token("used"), door.token("late", seconds=60), door.token("gone")
    enrolled(used, tmp_path / "first")
    with pytest.raises(Declined, match="token used: other keys"):
        enrolled(used, tmp_path / "second")
    door.stage.issuer.revoke_token("gone")
    with pytest.raises(Declined, match="token revoked"):
        enrolled(revoked, tmp_path / "second")
    door.stage.clock.now += timedelta(minutes=2)
    with pytest.raises(Declined, match="token expired"):
        enrolled(late, tmp_path / "second")
    other = Stage(tmp_path / "other", door.stage.clock)
    stranger = other.token()
    door.seen.clear()
    with pytest.raises(PeerError, match="nothing secret was sent"):
        enrolled(replace(stranger, address=door.address), tmp_path / "second")
    assert door.seen == ["/v1/ca"]
    assert not (tmp_path / "second").exists()


def test_a_server_that_shows_the_root_but_has_no_leaf_of_it_gets_no_secret(
    door: Door, tmp_path: Path
) -> None:
    """The root is public: whoever stands between can show it, and then must end TLS itself."""
    wanted = Stage(tmp_path / "wanted", door.stage.clock)
    door.root = wanted.issuer.ca()
    token = replace(wanted.token(), address=door.address)
    with pytest.raises(PeerError, match="a certificate of this federation"):
        enrolled(token, tmp_path / "device")
    assert door.seen == ["/v1/ca"]


def test_the_dialled_name_must_be_in_the_certificate(door: Door, tmp_path: Path) -> None:
    token = replace(door.token(), address=f"127.0.0.2:{door.port}")
    door.close()
    with pytest.raises(StateError, match=r"127\.0\.0\.2"):
        enrolled(token, tmp_path / "device")
    everywhere = Door(tmp_path / "again", "0.0.0.0")  # noqa: S104 - a test of names
    token = replace(everywhere.token(), address=f"127.0.0.2:{everywhere.port}")
    try:
        with pytest.raises(PeerError, match=r"not valid for '127\.0\.0\.2'"):
            enrolled(token, tmp_path / "device")
    finally:
        everywhere.close()


def test_by_ipv6_and_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(tmp_path / "federation", "::1")
    try:
        assert enrolled(door.token(), tmp_path / "six").name == "press-17"
    finally:
        door.close()
    door = Door(tmp_path / "second")
    proxy = Proxy(door.port)
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    token = replace(door.token(), address="fl.example.org:443")
    try:
        enrolled(token, tmp_path / "proxied")
    finally:
        proxy.close()
        door.close()
    assert proxy.asked == ["CONNECT fl.example.org:443 HTTP/1.1"] * 2


@pytest.mark.parametrize("how", ["argument", "file", "stdin"])
def test_the_command_takes_the_token_and_says_what_it_pinned(
    door: Door,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    token, home = door.token(apps=(APP,)), tmp_path / "home"
    monkeypatch.setenv("UMBEL_HOME", str(home))
    monkeypatch.delenv("UMBEL_DEVICE", raising=False)
    arguments = {"argument": [token.text], "file": ["--token-file", str(tmp_path / "t")]}
    (tmp_path / "t").write_text(f"{token.text}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token.text}\n"))
    assert main(["client", "enrol", *arguments.get(how, [])]) == 0
    said = capsys.readouterr().out
    place = home / "devices" / "wards"
    assert (place / "device.toml").exists()
    for part in ("wards", "press-17", token.root.hex(), APP.hex(), str(place)):
        assert part in said
    assert token.secret.hex() not in said
    assert token.text not in said


def test_a_policy_file_is_taken_and_its_trust_is_not(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UMBEL_DEVICE", raising=False)
    policy = tmp_path / "policy.toml"
    policy.write_text('[trust]\nca = "/elsewhere.pem"\n')
    arguments = ["client", "enrol", door.token().text, "--policy", str(policy)]
    assert main(arguments) == 2
    assert "trust.ca" in capsys.readouterr().err
    policy.write_text("[secure]\nmin_members = 3\nmin_survivors = 3\n")
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["apps"], found["approve"]) == ([], True)
    own = DeviceFiles.read(tmp_path / "home" / "devices" / "wards").policy
    assert (own.min_members, own.apps, own.approve) == (3, None, True)


# ---- renewal -----------------------------------------------------------------------------------


def test_renewal_keeps_the_keys_and_works_after_the_end(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "device"
    door.front_is(door.address)
    enrolled(door.token(), place)
    keys = {name: (place / name).read_bytes() for name in ("tls.key", "signing.key", "flower")}
    first = DeviceFiles.read(place)
    old(door, place)
    with pytest.raises(PeerError, match="ended"):
        first.tls(now())
    door.stage.clock.now += timedelta(days=8)  # the CA's: its leaves are old, too
    with pytest.raises(PeerError, match=r"begins.*set it"):
        renew(place, lambda _line: None, due=True)
    door.stage.clock.now -= timedelta(days=8)
    door.stage.issuer = door.stage.again()
    done = renew(place, lambda _line: None, due=True)
    assert done.renewed
    assert done.until - now() > timedelta(days=6)
    files = DeviceFiles.read(place)
    assert member(files).id == first.id
    assert files.tls(now())
    assert {name: (place / name).read_bytes() for name in keys} == keys
    again = renew(place, lambda _line: None, due=True)
    assert not again.renewed
    assert again.next_s == 6 * 3600


def old(door: Door, place: Path) -> None:
    """Put a TLS certificate into a device's directory that ended yesterday."""
    leaf = x509.load_pem_x509_certificate((place / "tls.pem").read_bytes())
    public, node = leaf.public_key(), DeviceFiles.read(place).id
    assert isinstance(public, ec.EllipticCurvePublicKey)
    made = federation_files.authority(door.stage.folder).issue_tls(
        public, node, "press-17", now() - timedelta(days=8)
    )
    (place / "tls.pem").write_bytes(made.public_bytes(Encoding.PEM))


def test_renewal_follows_an_address_within_the_policy(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "device"
    door.front_is(door.address)
    enrolled(door.token(), place)
    with open(place / "device.toml", "a") as file:
        file.write("ddp = 2\n")
    door.front_is(f"localhost:{door.port}")
    with pytest.raises(PeerError, match=r"the front is localhost:.* not in trust\.gateways"):
        renew(place, lambda _line: None)
    text = (place / "policy.toml").read_text().replace('"fl.ex', '"localhost", "fl.ex')
    (place / "policy.toml").write_text(text)
    renew(place, lambda _line: None)
    files = DeviceFiles.read(place)
    assert (files.superlink, files.ddp) == (f"localhost:{door.port}", 2)
    text = text.replace('"fl.example.org"', '"old.example.org"')
    (place / "policy.toml").write_text(text)
    (place / "device.toml").write_text(
        (place / "device.toml").read_text().replace("fl.example.org", "old.example.org")
    )
    with pytest.raises(PeerError, match=r"the gateway is .* not in trust\.gateways"):
        renew(place, lambda _line: None)


def test_a_removed_node_is_told_so_and_keeps_its_files(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "device"
    door.front_is(door.address)
    enrolled(door.token(), place)
    before = (place / "tls.pem").read_bytes()
    door.stage.issuer.remove("press-17")
    with pytest.raises(Declined, match="removed"):
        renew(place, lambda _line: None)
    assert (place / "tls.pem").read_bytes() == before


def test_the_agents_child_says_when_to_look_and_that_a_node_is_gone(
    door: Door, tmp_path: Path
) -> None:
    """As the agent does it: a process of its own, never waited for."""
    place = tmp_path / "device"
    door.front_is(door.address)
    enrolled(door.token(), place)
    renewals = Renewals(place, tmp_path / "renew.log", 0.0)

    def looked(at: float) -> Renewal:
        end = time.monotonic() + 60
        while (found := renewals.look(at)) is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        return found

    assert renewals.look(0.0) is None
    assert looked(5.0) == Renewal("")
    assert renewals.look(5.0 + 1800) is None
    door.stage.issuer.remove("press-17")
    renewals.soon(2000.0)
    found = looked(2000.0)
    assert found.gone
    assert found.error.startswith("removed: this node was removed")
    assert door.seen == ["/v1/ca", "/v1/enrol", "/v1/renew"]
    assert renewals.look(2001.0) is None
    renewals.close()


def test_a_front_that_is_away_is_one_line(door: Door, tmp_path: Path) -> None:
    place = tmp_path / "device"
    door.front_is(door.address)
    enrolled(door.token(), place)
    door.close()
    with pytest.raises(StateError, match="HTTPS_PROXY"):
        renew(place, lambda _line: None)
