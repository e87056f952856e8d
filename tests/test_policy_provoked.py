"""Each key of a device's policy has a test in which it refuses, or bounds, in the real place.

The place is the launcher, a session with its messages, the training child, or the directory that
is read before any of them.
"""

from __future__ import annotations

import ast
from pathlib import Path

from umbel.clients import policy

TESTS = Path(__file__).resolve().parent
PROVOKED = {
    "trust.federation": "device_files::test_a_wrong_device_toml_names_its_line",
    "trust.ca": "grpc_session::test_a_gateway_of_another_ca_is_not_spoken_to",
    "trust.gateways": "flower_client_app::test_a_wrong_invitation_gets_a_code_and_no_session",
    "trust.apps": "flower_launcher::test_an_unapproved_bundle_leaves_no_marker",
    "trust.publishers": "flower_launcher::"
    "test_a_publishers_signature_admits_and_a_changed_file_does_not",
    "trust.approve": "flower_launcher::"
    "test_a_new_bundle_waits_one_changed_byte_waits_again_and_nothing_of_either_ran",
    "trust.min_protocol": "attacks_session::"
    "test_a_server_that_asks_for_a_weaker_mode_or_another_model_is_refused",
    "secure.required": "flower_launcher::test_a_plain_app_does_not_answer_where_secure_is_required",
    "secure.schemes": "attacks_session::"
    "test_a_server_that_asks_for_a_weaker_mode_or_another_model_is_refused",
    "secure.corrupt": "attacks_session::"
    "test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only",
    "secure.corrupt_min": "attacks_session::"
    "test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only",
    "secure.max_corrupt_members": "attacks_roster::"
    "test_a_server_that_outnumbers_the_bound_on_corrupt_members_gets_no_shares",
    "secure.dropout": "attacks_roster::"
    "test_a_server_that_allows_more_losses_than_the_policy_gets_no_shares",
    "secure.min_members": "attacks_roster::"
    "test_a_server_whose_roster_is_weaker_than_the_policy_gets_no_shares",
    "secure.min_survivors": "attacks_roster::"
    "test_a_server_with_fewer_survivors_or_sites_than_the_policy_gets_no_vote",
    "secure.min_difference": "attacks_session::"
    "test_a_server_that_leaves_one_out_of_the_next_sum_meets_min_difference",
    "secure.min_sites": "attacks_roster::"
    "test_a_server_with_fewer_survivors_or_sites_than_the_policy_gets_no_vote",
    "update.max_weight": "attacks_session::"
    "test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only",
    "update.max_value_range": "attacks_session::"
    "test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only",
    "update.l2_clip": "update::test_the_policys_clip_is_applied_whatever_the_run_says",
    "update.histogram": "session_refusals::test_terms_that_this_device_does_not_accept",
    "clear.metrics": "session_refusals::test_an_undeclared_metric_never_leaves",
    "limits.model_bytes": "attacks_session::"
    "test_a_server_that_asks_for_a_weaker_mode_or_another_model_is_refused",
    "limits.rounds_per_day": "attacks_session::"
    "test_a_server_that_opens_more_rounds_a_day_than_allowed_is_refused",
    "limits.hours": "limits_network::test_a_device_whose_hours_end_leaves_between_rounds",
    "limits.bytes_per_day": "limits_network::"
    "test_a_device_whose_bytes_are_used_up_leaves_between_rounds_and_stays_away",
    "limits.metered_bytes_per_day": "limits_network::"
    "test_on_a_metered_link_a_device_without_bytes_for_it_does_not_join",
    "limits.metered_interfaces": "limits_network::"
    "test_on_a_metered_link_a_device_without_bytes_for_it_does_not_join",
    "limits.metered_hook": "limits_network::"
    "test_on_a_link_that_the_owner_calls_metered_a_device_does_not_join",
    "limits.ready_hook": "limits_network::"
    "test_a_device_that_is_needed_elsewhere_leaves_between_rounds",
    "limits.memory": "confined::test_a_child_has_no_more_memory_than_it_may",
    "limits.threads": "confined::test_a_child_has_so_many_processors_and_threads",
    "limits.disk": "confined::test_a_child_that_writes_too_much_is_ended",
    "limits.data_roots": "flower_launcher::"
    "test_a_bundle_reads_the_data_roots_and_nothing_beside_them",
}
"""By file, without `test_`, and test."""


def test_every_key_of_the_policy_is_provoked() -> None:
    assert PROVOKED.keys() == policy._KEYS.keys()
    for key, where in PROVOKED.items():
        file, _, name = where.partition("::")
        tree = ast.parse((TESTS / f"test_{file}.py").read_text("utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{key}: {where}"
