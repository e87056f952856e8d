"""The guards of membership: the member list at a device, and removal at the gateway (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import SESSION, off, out

VERIFICATION = "protocol/verification.py"
MEMBERS = "protocol/members.py"
MEMBERSHIP = "protocol/membership.py"

GUARDS = [
    out(
        "_lists::test_a_server_that_shows_no_list_gets_no_keys",
        SESSION,
        (
            "if start.scheme != plain.NAME:\n            self._others.listed()",
            "if start.scheme != plain.NAME:\n            pass",
        ),
    ),
    out(
        "_lists::test_a_server_that_waits_for_the_expiry_between_two_trips_gets_no_shares",
        SESSION,
        ("self._others.listed()\n        self._others.learn", "self._others.learn"),
    ),
    off(
        "_lists::test_a_server_that_shows_a_list_of_its_own_gets_no_keys",
        MEMBERS,
        "if not any(_verifies(issuer, signature, signed) for issuer in issuers):",
    ),
    out(
        "_lists::test_a_server_that_brings_its_own_issuing_ca_gets_no_keys",
        VERIFICATION,
        ('self._chain(authority, "issuing CA", now, _issuing_ca())\n', "pass\n"),
    ),
    out(
        "_lists::test_a_root_that_signs_members_has_nobody_below_it",
        VERIFICATION,
        (
            'return [_p256(self._root, "root")]\n        found = []',
            'pass\n        found = [_p256(self._root, "root")]',
        ),
    ),
    off(
        "_lists::test_a_server_that_shows_another_federations_list_gets_no_keys",
        MEMBERS,
        "if found.federation != federation:",
    ),
    out(
        "_lists::test_a_server_that_goes_back_to_an_older_list_is_not_followed",
        MEMBERS,
        ("(self.epoch < newest,", "(False,"),
    ),
    out(
        "_lists::test_a_server_that_goes_back_to_an_older_list_is_not_followed",
        MEMBERSHIP,
        ("            self._keep(raw)\n", ""),
    ),
    out(
        "_lists::test_a_server_that_withholds_the_next_list_gets_no_keys_after_the_expiry",
        MEMBERS,
        ("(now >= expires,", "(False,"),
    ),
    out(
        "_lists::test_a_server_that_puts_a_removed_node_into_a_roster_gets_no_shares",
        MEMBERSHIP,
        ("self.verifier.revoke(found.revoked)", "pass"),
    ),
    out(
        "_removal::test_a_stream_ends_by_name_the_server_app_hears_it_and_others_go_on",
        "server/core_service.py",
        ("        self.sessions.remove(node)\n", ""),
    ),
    out(
        "_removal::test_an_upload_that_waits_for_a_slot_ends",
        "server/calls.py",
        ("over.set_exception(why)", "pass"),
    ),
    off(
        "_removal::test_a_removed_node_is_let_in_no_more_with_any_ticket",
        VERIFICATION,
        "if known[0].id in self.revoked:",
    ),
]
