"""The guards of a server's backup and of what leaves it for a bug report (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import off, out

ARCHIVE = "server/archive.py"
SEALING = "server/sealing.py"
RESTORE = "server/restore.py"

BUNDLE = "host/bundle.py"
SUPPORT = "server/support.py"

GUARDS = [
    off(
        "_support::test_a_secret_that_came_in_by_an_open_door_ends_it[cause]",
        BUNDLE,
        "if found := self._secrets.found_in(data):",
    ),
    out(
        "_support::test_planted_secrets_are_in_no_part",
        BUNDLE,
        ("LEFT_OUT if self._secrets.found_in(line) else line", "line"),
        ('self._secrets.without(b"\\n".join(kept), LEFT_OUT)', 'b"\\n".join(kept)'),
        ("if found := self._secrets.found_in(data):", "if found := False:"),
    ),
    out(
        "_support::test_planted_secrets_are_in_no_part",
        SUPPORT,
        ("settings = {key: config[key] for key in SETTINGS if key in config}", "settings = config"),
    ),
    out(
        "_archive::test_a_name_that_leads_elsewhere_is_written_nowhere",
        ARCHIVE,
        ("if not known(name) or name in names:", "if name in names:"),
    ),
    out(
        "_archive::test_a_second_file_of_a_name_takes_not_the_firsts_place",
        ARCHIVE,
        ("if not known(name) or name in names:", "if not known(name):"),
    ),
    off("_archive::test_a_member_that_was_exchanged_is_named", ARCHIVE, "if should != member:"),
    off("_archive::test_a_manifest_without_end_is_not_read", ARCHIVE, "if length > MOST_MANIFEST:"),
    out(
        "_archive::test_a_sealed_backup_that_was_cut_between_two_pieces_is_no_shorter_one",
        SEALING,
        ("bytes((last, 0, 0, 0))", "bytes(4)"),
    ),
    out(
        "_archive::test_a_sealed_backup_asks_for_no_more_memory_than_its_own_would",
        SEALING,
        ("<= MOST_COST", "<= 255"),
    ),
    out(
        "_archive::test_a_key_of_another_ca_is_found",
        RESTORE,
        ("    authority(folder)  # the key belongs to a certificate", "    pass"),
    ),
    out(
        "_archive::test_the_member_list_never_goes_back",
        RESTORE,
        ('db.execute("UPDATE members SET issued = 0")', "pass"),
    ),
    out(
        "_archive::test_a_token_is_not_used_twice_by_way_of_a_backup",
        RESTORE,
        ("""db.execute("UPDATE token SET state = 'revoked' WHERE state = 'open'")""", "pass"),
    ),
    off(
        "_archive::test_a_plain_backup_does_not_take_a_sealed_ones_place",
        ARCHIVE,
        "elif passphrase is not None:",
    ),
]
