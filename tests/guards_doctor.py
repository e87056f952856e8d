"""The guards of the doctors, and of what a gateway lets be measured (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import off, out

T = "host/doctor_tls.py"
MEASURE = "server/grpc_measure.py"
DATES = "_doctor::test_who_answers_the_second_time_is_judged_like_the_first"
MUCH = "_doctor::test_a_member_measures_no_more_than_there_is_to_measure"
STEERED = "_doctor::test_nothing_that_a_server_shows_steers_a_terminal"

GUARDS = [
    out(
        "_doctor::test_a_server_of_another_federation_hears_nothing",
        T,
        (
            "context.load_verify_locations(cadata=expected.root_pem)",
            "context.check_hostname, context.verify_mode = False, ssl.CERT_NONE",
        ),
    ),
    out(
        "_doctor::test_a_server_under_another_name_hears_nothing",
        T,
        (
            "context.load_verify_locations(cadata=expected.root_pem)",
            "context.load_verify_locations(cadata=expected.root_pem); "
            "context.check_hostname = False",
        ),
    ),
    out(
        DATES,
        T,
        (
            "    context.verify_flags |= flags\n",
            "    context.verify_flags |= flags\n"
            "    if flags:\n"
            "        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n",
        ),
    ),
    out(
        "_doctor::test_a_member_list_by_a_ca_for_which_the_root_does_not_vouch_is_none",
        "clients/doctor_state.py",
        ("if clock.issued(_der(ca), one)]", "if True]"),
    ),
    out(
        "_doctor::test_a_proxys_password_is_in_no_finding",
        "host/doctor_dial.py",
        (
            'return f"{self.host}:{self.port} ({self.variable})"',
            'return f"{self.secret}@{self.host}:{self.port} ({self.variable})"',
        ),
    ),
    out(
        STEERED,
        "host/doctor.py",
        ("one_line(line[:LONGEST]), one_line(fix)", "line[:LONGEST], fix"),
    ),
    off(MUCH, MEASURE, "if received > MOST:"),
    out(MUCH, MEASURE, ("and int(text) <= MOST", "")),
    out(
        "_doctor::test_a_page_without_an_end_is_cut",
        T,
        (" and len(raw) < _PAGE_BYTES and", " and"),
    ),
]  # fmt: skip
