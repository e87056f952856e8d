"""The guards of what a device's owner says and sees (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import off, out

HISTORY = "clients/history.py"
PAUSE = "clients/pause.py"
LEAVE = "clients/leave.py"
APP = "clients/flower_client_app.py"
GUARDS = [
    out(
        "_owner::test_a_server_that_asks_again_and_again_does_not_push_the_record_out",
        HISTORY,
        ('same = " AND ".join(f"old.{name} = new.{name}" for name in _SAME)', 'same = "0"'),
    ),
    out(
        "_owner::test_a_pause_that_somebody_damaged_is_one_still",
        PAUSE,
        ("return Pause(since=0.0)", "return None"),
    ),
    off(
        "_owner::test_a_device_that_left_stays_out_whatever_else_its_files_say",
        PAUSE,
        "if has_left(directory):",
    ),
    off(
        "_owner::test_a_server_that_invites_a_paused_device_gets_no_session",
        APP,
        "if (halt := halted(files.directory)) is not None:",
    ),
    out(
        "_owner::test_a_server_gets_no_further_round_of_a_device_that_is_paused",
        "clients/grpc_session.py",
        ("over = over or self._halted() or self._limited()", "over = over or self._limited()"),
    ),
    out(
        "_owner::test_what_is_broken_off_says_so_and_no_more",
        "clients/session.py",
        ("refused = Refused(pb.REASON_PAUSED, self.halted) if self.halted else refused", "pass"),
    ),
    out(
        "_owner::test_who_finds_the_disk_of_a_device_that_left_finds_no_key",
        LEAVE,
        ("file.write(os.urandom(os.fstat(file.fileno()).st_size))", "pass"),
    ),
    out(
        "_owner::test_a_link_in_the_place_of_a_key_makes_nobody_elses_file_garbage",
        LEAVE,
        ("os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NONBLOCK"),
    ),
    out(
        "_owner::test_keys_are_not_taken_from_under_a_session",
        LEAVE,
        ("held.callback(os.close, _waited(directory / name))", "pass"),
    ),
    out(
        "_owner::test_a_new_name_does_not_forget_what_the_old_one_voted_for",
        LEAVE,
        ('write_whole(heir / "journal", (directory / "journal").read_bytes())', "pass"),
    ),
    off(
        "_owner::test_another_user_writes_nothing_that_the_agent_could_not_read",
        "clients/options.py",
        "if owner != os.geteuid():",
    ),
]
