"""The guards of a device that joins a federation, or renews its certificates (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import off, out

GRANTED = "clients/granted.py"
GUARDS = [
    off(
        "_joining::test_a_root_that_is_not_the_tokens_is_not_pinned",
        "clients/front_line.py",
        "if found != digest:",
    ),
    off(
        "_joining::test_an_answer_with_another_nodes_certificates_is_not_taken",
        GRANTED,
        "if not own:",
    ),
    off(
        "_joining::test_an_answer_under_another_id_is_not_taken",
        GRANTED,
        "if node is not None and answer.id != node:",
    ),
    out(
        "_joining::test_an_answer_under_another_id_is_not_taken",
        GRANTED,
        (", now, claimed=answer.id)", ", now)"),
        (
            "if known.verifier.peer(tls.public_bytes(Encoding.PEM), now).id != answer.id:",
            "if False:",
        ),
    ),
    off(
        "_joining::test_an_answer_of_another_federation_is_not_taken",
        GRANTED,
        "if answer.federation != federation:",
    ),
    out(
        "_joining::test_a_member_list_that_is_older_or_has_ended_is_not_taken",
        GRANTED,
        ("        known.recall(newest, now)", "        pass"),
    ),
    off(
        "_joining::test_a_gateway_outside_its_names_is_not_dialled",
        GRANTED,
        "if host(answer.gateway) not in answer.gateways:",
    ),
    off(
        "_joining::test_a_gateway_outside_its_names_is_not_dialled",
        "clients/renew.py",
        "if moved and host(asked[key]) not in (files.policy.gateways or ()):",
    ),
    off(
        "_joining::test_a_token_takes_no_device_from_its_owner",
        "clients/enrol.py",
        "if (directory / DEVICE).exists():",
        "if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):",
    ),
    off(
        "_joining::test_a_folder_that_others_can_write_does_not_become_a_device",
        "clients/enrol.py",
        "if about.st_uid != os.geteuid() or about.st_mode & _OTHERS:",
    ),
]
