"""The guards of a device's policy on bundles, hours, bytes and files; see guards.py."""

from __future__ import annotations

from umbel.tests.guards import off, out

APPS = "clients/apps.py"
BUNDLE = "clients/bundle.py"
LIMITS = "clients/limits.py"
CHANGED = "_policy::test_a_server_that_changes_a_signed_bundle_runs_nothing"
STRANGER = "_policy::test_a_server_that_signs_a_bundle_itself_runs_nothing"
UNSEEN = "_policy::test_a_server_that_sends_a_bundle_which_the_owner_has_not_seen_runs_nothing"
REJECTED = "_policy::test_a_server_that_sends_what_was_rejected_again_runs_nothing"
ONLY = "_policy::test_a_server_that_had_a_bundle_approved_runs_that_one_only"
BYTES = "_policy::test_a_server_that_makes_a_device_restart_gets_no_more_bytes"

GUARDS = [
    out(
        CHANGED,
        "protocol/bundles.py",
        ("if _holds(key, signature, body)}", "}"),
    ),
    out(
        STRANGER,
        APPS,
        ("bundle.signers() & set(policy.publishers or ())", "bundle.signers()"),
    ),
    out(UNSEEN, APPS, ("if not policy.pinned:\n", "if True:\n")),
    out(
        UNSEEN,
        APPS,
        ("if policy.approve and known is not None and known.state == APPROVED:", "if known:"),
    ),
    off(REJECTED, APPS, "if known is not None and known.state == REJECTED:"),
    out(
        ONLY,
        APPS,
        ("or (policy.approve and sha in self.known()", "or (sha in self.known()"),
    ),
    off(
        "_policy::test_a_bundle_that_writes_outside_of_its_folder_is_not_unpacked",
        BUNDLE,
        "if not plain or not inside:",
    ),
    off(
        "_policy::test_a_bundle_that_is_a_zip_bomb_is_not_unpacked",
        BUNDLE,
        "if len(data) > left:",
    ),
    off(
        "_policy::test_a_server_that_invites_outside_of_the_hours_gets_a_code",
        LIMITS,
        "if hours is not None and not any(within(now, window) for window in hours):",
    ),
    out(
        BYTES,
        LIMITS,
        ("self._usage.about_to_use(Used(moves, moves if self._metered() else 0, 1))", "pass"),
    ),
    out(
        "_policy::test_a_server_that_makes_a_device_restart_gets_no_more_rounds",
        "clients/usage.py",
        ("return self._within(self._earlier)\n", "return Used()\n"),
    ),
    out(
        "_policy::test_a_bundle_that_reads_beside_its_data_roots_gets_nothing",
        "clients/confined.py",
        ("reads=policy.data_roots,\n", "reads=None,\n"),
    ),
    off(
        "_policy::test_a_bundle_with_data_roots_does_not_read_keys_that_lie_in_the_system",
        "clients/confined.py",
        "if device.resolve().is_relative_to(Path(place).resolve()):",
    ),
    out(
        "_policy::test_a_bundle_hides_no_statement_from_whoever_approves_it",
        "clients/app_view.py",
        ("yield one_line(_seen(line))", "yield one_line(line)"),
    ),
    out(
        "_policy::test_a_bundle_in_another_encoding_is_not_shown_as_what_it_is_not",
        "clients/app_view.py",
        ('not in {"utf-8", "utf-8-sig"}:', "is None:"),
    ),
]
