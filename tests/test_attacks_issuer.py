"""Attacks on the issuing CA: what is asked of it, and what happens to its machine meanwhile."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.protocol.enrolment import (
    Declined,
    EnrolRequest,
    LeaveRequest,
    RenewRequest,
    request_for,
)
from umbel.protocol.enrolment_token import Token
from umbel.protocol.errors import Malformed, SettingsError, StateError
from umbel.tests.issuing import DAY, NOW, Keys, Stage, declined

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "wards")


def _foreign(der: bytes, key: bytes) -> str:
    """Put another key of the same kind into a request, which its signature does not cover."""
    pem = x509.load_der_x509_csr(der)
    mine = pem.public_key().public_bytes_raw()  # type: ignore[union-attr]
    assert der.count(mine) == 1
    return x509.load_der_x509_csr(der.replace(mine, key)).public_bytes(Encoding.PEM).decode()


def _der(pem: str) -> bytes:
    return x509.load_pem_x509_csr(pem.encode()).public_bytes(Encoding.DER)


# ---- certificate requests -------------------------------------------------------------------


def test_a_request_for_a_key_that_somebody_else_holds_is_none(stage: Stage) -> None:
    token, keys, victim = stage.token(), Keys(), Keys()
    theirs = victim.signing.public_key().public_bytes_raw()
    forged = _foreign(_der(request_for(keys.signing)), theirs)
    with declined("not a csr"):
        stage.issuer.enrol(keys.enrol(token, signing=forged))
    for name, key in (("tls", victim.tls), ("flower", victim.flower)):
        der = _der(request_for(key))
        spoilt = der[:-1] + bytes([der[-1] ^ 1])
        pem = x509.load_der_x509_csr(spoilt).public_bytes(Encoding.PEM).decode()
        with declined("not a csr"):
            stage.issuer.enrol(keys.enrol(token, **{name: pem}))
    assert stage.issuer.nodes() == []
    assert stage.issuer.enrol(keys.enrol(token)).name == "press-17"


@pytest.mark.parametrize("field", ["tls", "signing", "flower"])
def test_a_key_of_another_kind_than_the_profiles_gets_no_certificate(
    stage: Stage, field: str
) -> None:
    token, keys = stage.token(), Keys()
    own = {"tls": "P-256", "signing": "Ed25519", "flower": "P-384"}
    others: dict[str, Any] = {
        "P-256": ec.generate_private_key(ec.SECP256R1()),
        "P-384": ec.generate_private_key(ec.SECP384R1()),
        "secp256k1": ec.generate_private_key(ec.SECP256K1()),
        "Ed25519": Ed25519PrivateKey.generate(),
        "RSA": rsa.generate_private_key(65537, 2048),
    }
    for kind, key in others.items():
        if kind != own[field]:
            with declined("not a csr"):
                stage.issuer.enrol(keys.enrol(token, **{field: request_for(key)}))
    for text in ("", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"):
        with declined("not a csr"):
            stage.issuer.enrol(keys.enrol(token, **{field: text}))


def test_a_request_of_another_form_is_refused_before_anything_is_looked_up(stage: Stage) -> None:
    good = json.loads(Keys().enrol(stage.token()).dumps())
    assert EnrolRequest.parse(json.dumps(good).encode()).federation == "wards"
    about = good["about"]
    wrong: list[Any] = [
        good | {"more": 1},
        {key: value for key, value in good.items() if key != "about"},
        good | {"version": 2},
        good | {"version": True},
        good | {"secret": "00"},
        good | {"secret": good["secret"].upper().replace("0", "A")},
        good | {"tls": ["x"]},
        good | {"tls": "x" * 9000},
        good | {"tls": "\u2028"},
        good | {"about": about | {"time": 1.0}},
        good | {"about": about | {"time": -1}},
        good | {"about": about | {"python": "3\x1b[2J"}},
        good | {"about": about | {"machine": "m" * 65}},
        [good],
        good | {"federation": "Wards"},
    ]
    for body in wrong:
        with pytest.raises(Malformed) as caught:
            EnrolRequest.parse(json.dumps(body).encode())
        assert good["secret"] not in str(caught.value)
    with pytest.raises(Malformed, match="at most 65536 bytes"):
        EnrolRequest.parse(json.dumps(good).encode() + b" " * 65536)
    with pytest.raises(Malformed, match="is no JSON"):
        EnrolRequest.parse(b"[" * 60000)


# ---- tokens -----------------------------------------------------------------------------------


def test_a_token_with_a_changed_character_is_a_mistyped_one(stage: Stage) -> None:
    line = stage.token().text
    wrong = [line[:-4], line + "AAAA", "", line.upper(), line.replace("umbel1", "umbel2")]
    for at in range(7, len(line) - 1):  # bits of the last one may say nothing
        wrong.append(line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :])
    for text in wrong:
        with pytest.raises(SettingsError, match="token: expected one line") as caught:
            Token.parse(text)
        assert line[40:60] not in str(caught.value)
    assert Token.parse(f"  {line}\n").text == line


def test_a_token_is_for_its_first_keys_and_for_its_time(stage: Stage) -> None:
    token, revoked, expired = stage.token(), stage.token("b"), stage.token("c", seconds=60)
    keys = Keys()
    node = stage.issuer.enrol(keys.enrol(token))
    stage.issuer.revoke_token("b")
    stage.clock.now += timedelta(seconds=60)
    for used, code in ((token, "used"), (revoked, "revoked"), (expired, "expired")):
        with declined(f"token {code}"):
            stage.issuer.enrol(Keys().enrol(used))
    with declined("other federation"):
        stage.issuer.enrol(keys.enrol(token, federation="beds"))
    assert stage.issuer.enrol(keys.enrol(token)) == node
    stage.clock.now += DAY
    with declined("token expired"):
        stage.issuer.enrol(keys.enrol(token))
    assert len(stage.issuer.nodes()) == 1


def test_a_removed_node_gets_nothing_more(stage: Stage) -> None:
    token, keys = stage.token(), Keys()
    node = stage.issuer.enrol(keys.enrol(token))
    stage.issuer.remove("press-17")
    assert stage.members().revoked == {node.id}
    with declined("removed"):
        stage.issuer.enrol(keys.enrol(token))
    with declined("removed"):
        stage.issuer.renew(keys.renew(node.id))


def test_a_secret_is_on_no_disk_and_in_no_message(stage: Stage) -> None:
    token = stage.token()
    stage.issuer.enrol(Keys().enrol(token))
    kept = b"".join(file.read_bytes() for file in stage.folder.rglob("*") if file.is_file())
    for form in (token.secret, token.secret.hex().encode(), token.text.encode()):
        assert form not in kept
    for text in (repr(token.secret), token.secret.hex()):
        assert text not in repr(token) + repr(Keys().enrol(token))
    assert token.secret not in repr(stage.issuer.tokens()).encode()


def test_a_clock_that_goes_back_opens_no_token_and_turns_no_epoch_back(stage: Stage) -> None:
    token = stage.token(seconds=3600)
    late = stage.token("late")
    stage.clock.now += timedelta(hours=2)
    stage.issuer.refresh()
    before = stage.members()
    stage.clock.now -= timedelta(hours=1, minutes=59)
    with declined("token expired"):
        stage.issuer.enrol(Keys().enrol(token))
    answer = stage.issuer.enrol(Keys().enrol(late))
    stage.issuer.remove(answer.id.hex())
    assert stage.members().epoch > before.epoch
    stage.clock.now = NOW + timedelta(hours=1)
    early = stage.token("early")
    stage.clock.now = NOW
    with declined("unavailable"):  # made an hour from now: one of the two times is wrong
        stage.issuer.enrol(Keys().enrol(early))


def test_nothing_is_signed_while_the_ca_is_not_in_force(stage: Stage) -> None:
    token, later, keys = stage.token("a"), stage.token("b"), Keys()
    node = stage.issuer.enrol(keys.enrol(token))
    for now in (NOW - timedelta(hours=1), NOW + 400 * DAY):
        stage.clock.now = now
        for ask in (
            lambda: stage.issuer.enrol(Keys().enrol(later)),
            lambda: stage.issuer.renew(keys.renew(node.id)),
            stage.issuer.refresh,
        ):
            with pytest.raises((StateError, Declined)):
                ask()
    assert len(stage.superlink.ever) == 1


# ---- nodes ------------------------------------------------------------------------------------


def test_keys_that_are_a_nodes_make_no_second_node(stage: Stage) -> None:
    keys = Keys()
    stage.issuer.enrol(keys.enrol(stage.token("a")))
    for index, mixed in enumerate(
        (
            Keys(tls=keys.tls), Keys(signing=keys.signing), Keys(flower=keys.flower), keys,
        )
    ):  # fmt: skip
        token = stage.token(f"b{index}")
        with declined("other keys"):
            stage.issuer.enrol(mixed.enrol(token))
    assert [row["name"] for row in stage.issuer.nodes()] == ["a"]


def test_a_node_is_renewed_by_both_its_keys_and_by_no_other_federation(stage: Stage) -> None:
    keys, other = Keys(), Keys()
    node = stage.issuer.enrol(keys.enrol(stage.token("a")))
    theirs = stage.issuer.enrol(other.enrol(stage.token("b")))
    for mixed, id_ in (
        (Keys(tls=keys.tls), node.id), (Keys(signing=keys.signing), node.id), (keys, theirs.id),
    ):  # fmt: skip
        with declined("other keys"):
            stage.issuer.renew(mixed.renew(id_))
    with declined("other federation"):
        stage.issuer.renew(keys.renew(node.id, "beds"))
    with declined("other federation"):
        stage.issuer.leave(LeaveRequest.sign("beds", node.id, 1, keys.signing))


def test_a_leave_is_of_the_node_and_the_time_that_were_signed(stage: Stage) -> None:
    keys, other = Keys(), Keys()
    node = stage.issuer.enrol(keys.enrol(stage.token("a")))
    theirs = stage.issuer.enrol(other.enrol(stage.token("b")))
    signed = LeaveRequest.sign("wards", theirs.id, 7, other.signing)
    for id_, time in ((node.id, 7), (theirs.id, 8)):
        forged = LeaveRequest(federation="wards", id=id_, time=time, signature=signed.signature)
        with declined("other keys"):
            stage.issuer.leave(forged)
    with declined("unknown node"):
        stage.issuer.leave(LeaveRequest.sign("wards", bytes(16), 7, other.signing))
    assert [row["state"] for row in stage.issuer.nodes()] == ["enrolled", "enrolled"]
    with pytest.raises(Malformed):
        LeaveRequest.parse(RenewRequest.dumps(other.renew(theirs.id)))


def test_a_node_that_is_removed_while_it_enrols_is_no_node(stage: Stage) -> None:
    token, keys = stage.token(), Keys()
    register = stage.superlink.register

    def meanwhile(public_key: bytes, name: str) -> int:
        stage.issuer.remove("press-17")
        return register(public_key, name)

    stage.superlink.register = meanwhile  # type: ignore[method-assign]
    with declined("removed"):
        stage.issuer.enrol(keys.enrol(token))
    assert stage.superlink.nodes == {}
    assert json.loads((stage.folder / "nodes.json").read_text()) == []
