"""The issuer: tokens make nodes, once; nodes renew, leave and are removed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from umbel.protocol.enrolment import LeaveRequest
from umbel.protocol.enrolment_token import Token
from umbel.protocol.errors import SettingsError, StateError
from umbel.protocol.members import MemberList
from umbel.protocol.verification import Verifier
from umbel.tests.issuing import DAY, NOW, Keys, Stage, declined

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.protocol.enrolment import EnrolAnswer


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "wards")


def verifier(stage: Stage) -> Verifier:
    """What a device builds of its pinned root and the issuing CAs that it was given."""
    root = x509.load_pem_x509_certificate((stage.folder / "ca.pem").read_bytes())
    above = x509.load_pem_x509_certificates((stage.folder / "issuing.pem").read_bytes())
    return Verifier(root, "wards", above)


def members(stage: Stage, answer: EnrolAnswer) -> MemberList:
    ca = x509.load_pem_x509_certificate(answer.issuing[0].encode())
    found = MemberList.open(answer.members, [ca.public_key()], "wards")  # type: ignore[list-item]
    found.check(stage.clock.now)
    return found


def nodes_json(stage: Stage) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((stage.folder / "nodes.json").read_text())
    return found


def test_a_token_makes_a_node_whose_certificates_the_pinned_root_vouches_for(stage: Stage) -> None:
    line = stage.token("press-17", "hall 3").text
    keys = Keys()
    answer = stage.issuer.enrol(keys.enrol(Token.parse(line)))
    judge = verifier(stage)
    signing = x509.load_pem_x509_certificate(answer.signing.encode())
    leaf, issuing = x509.load_pem_x509_certificates(answer.tls.encode())
    assert leaf.public_key() == keys.tls.public_key()
    assert signing.public_key() == keys.signing.public_key()
    der = signing.public_bytes(Encoding.DER)
    member = judge.member(der, NOW, claimed=answer.id)
    assert (member.site, signing.not_valid_after_utc) == ("hall 3", NOW + 7 * DAY)
    assert judge.peer(leaf.public_bytes(Encoding.PEM), NOW).id == answer.id
    assert issuing.public_bytes(Encoding.PEM).decode() == answer.issuing[0]
    assert members(stage, answer).revoked == frozenset()
    assert (answer.name, answer.gateway, answer.superlink) == (
        "press-17", "fl.example.org:8444", "fl.example.org:8443",
    )  # fmt: skip
    assert [row["id"] for row in nodes_json(stage)] == [answer.id.hex()]
    assert len(stage.superlink.nodes) == 1


def test_the_ca_takes_the_public_key_of_a_request_and_nothing_else(stage: Stage) -> None:
    keys = Keys()
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "another site")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("fl.example.org")]), False)
    )
    forged = builder.sign(keys.signing, None).public_bytes(Encoding.PEM)
    answer = stage.issuer.enrol(keys.enrol(stage.token(site="ward"), signing=forged.decode()))
    signing = x509.load_pem_x509_certificate(answer.signing.encode())
    assert not signing.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    der = signing.public_bytes(Encoding.DER)
    assert verifier(stage).member(der, NOW).site == "ward"


def test_a_token_is_used_once_but_the_same_keys_get_the_same_answer_again(stage: Stage) -> None:
    token, keys = stage.token(), Keys()
    first = stage.issuer.enrol(keys.enrol(token))
    assert stage.again().enrol(keys.enrol(token)) == first
    with declined("token used"):
        stage.issuer.enrol(Keys().enrol(token))
    with declined("token used"):  # one other key is another device
        stage.issuer.enrol(Keys(tls=keys.tls, signing=keys.signing).enrol(token))
    assert len(nodes_json(stage)) == len(stage.superlink.ever) == 1
    stage.clock.now += DAY
    with declined("token expired"):
        stage.issuer.enrol(keys.enrol(token))


def test_a_token_that_is_unknown_expired_or_revoked_makes_no_node(stage: Stage) -> None:
    revoked, expired = stage.token("a"), stage.token("b", seconds=60)
    stranger = Token(federation="wards", root=bytes(32), address="a:1", secret=bytes(32), expires=1)
    assert stage.issuer.revoke_token("a") == "a"
    stage.clock.now += timedelta(seconds=60)
    for token, code in (
        (revoked, "token revoked"), (expired, "token expired"), (stranger, "token unknown"),
    ):  # fmt: skip
        with declined(code):
            stage.issuer.enrol(Keys().enrol(token))
    with declined("other federation"):
        stage.issuer.enrol(Keys().enrol(stage.token("c"), federation="other"))
    assert stage.issuer.nodes() == []


def test_a_removed_node_is_in_the_next_list_and_gets_nothing_more(stage: Stage) -> None:
    token, keys = stage.token(), Keys()
    answer = stage.issuer.enrol(keys.enrol(token))
    other = stage.issuer.enrol(Keys().enrol(stage.token("other")))
    before = members(stage, answer)
    assert stage.issuer.remove("press-17")["id"] == answer.id.hex()
    after = members(stage, stage.issuer.enrol(Keys().enrol(stage.token("third"))))
    assert after.revoked == {answer.id}
    assert after.epoch > before.epoch
    assert (stage.folder / "members.list").read_bytes() != answer.members
    assert other.id.hex() in [row["id"] for row in nodes_json(stage)]
    assert answer.id.hex() not in [row["id"] for row in nodes_json(stage)]
    assert len(stage.superlink.nodes) == 2
    with declined("removed"):
        stage.issuer.enrol(keys.enrol(token))
    with declined("removed"):
        stage.issuer.renew(keys.renew(answer.id))
    token = stage.token()
    with declined("other keys"):  # a new token does not bring the old keys back
        stage.issuer.enrol(keys.enrol(token))
    fresh = stage.issuer.enrol(Keys().enrol(token))
    assert fresh.id != answer.id


def test_a_node_renews_by_its_own_keys_after_its_leaves_have_ended_too(stage: Stage) -> None:
    keys = Keys()
    first = stage.issuer.enrol(keys.enrol(stage.token()))
    again = stage.issuer.renew(keys.renew(first.id))
    assert (again.tls, again.signing) == (first.tls, first.signing)  # just made
    stage.clock.now += 8 * DAY
    late = stage.issuer.renew(keys.renew(first.id))
    ends = x509.load_pem_x509_certificate(late.tls.encode()).not_valid_after_utc
    assert ends == stage.clock.now + 7 * DAY
    assert late.id == first.id
    row = nodes_json(stage)[0]
    leaf = x509.load_pem_x509_certificate(late.tls.encode())
    assert row["tls_fingerprint"] == leaf.fingerprint(SHA256()).hex()
    with declined("other keys"):
        stage.issuer.renew(Keys().renew(first.id))
    with declined("unknown node"):
        stage.issuer.renew(keys.renew(bytes(16)))


def test_a_node_leaves_by_its_signature_and_nobody_else_for_it(stage: Stage) -> None:
    keys = Keys()
    answer = stage.issuer.enrol(keys.enrol(stage.token()))
    with declined("other keys"):
        stage.issuer.leave(LeaveRequest.sign("wards", answer.id, 1, Keys().signing))
    assert stage.issuer.nodes()[0]["state"] == "enrolled"
    stage.issuer.leave(LeaveRequest.sign("wards", answer.id, 1, keys.signing))
    stage.issuer.leave(LeaveRequest.sign("wards", answer.id, 1, keys.signing))
    assert stage.issuer.nodes()[0]["state"] == "left"
    assert stage.superlink.nodes == {}


def test_a_name_is_one_nodes_or_one_open_tokens(stage: Stage) -> None:
    token = stage.token("a")
    with pytest.raises(SettingsError, match="revoke a"):
        stage.token("a")
    stage.issuer.enrol(Keys().enrol(token))
    with pytest.raises(SettingsError, match="remove a"):
        stage.token("a")


def test_a_database_without_a_column_is_named(stage: Stage) -> None:
    """As a damaged page of its schema makes one."""
    stage.token("press-17")
    with closing(sqlite3.connect(stage.folder / "issuer.sqlite")) as db:
        db.execute("ALTER TABLE token RENAME COLUMN site TO s1te")
    with pytest.raises(StateError, match=r"issuer\.sqlite: expected the issuer's database"):
        stage.issuer.tokens()
