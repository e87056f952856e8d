"""The guards of the secure path, each with the attack that gets through where it is taken out.

A guard is a piece of source that occurs once in its file. `make mutants` (mutants.py) puts its
replacement there, in a copy, and the attack's test must fail. An `if` that refuses needs no
replacement of its own: its condition becomes False. Where two guards stand behind each other,
both are taken out: the table then names several pieces.

Here are those of the device; guards_server.py has those of the server, the keys and the bytes.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """One guard and its attack."""

    test: str
    """`FILE::TEST` after `tests/test_attacks`; in brackets the parameter, if only one shows it."""
    file: str
    pieces: tuple[tuple[str, str], ...]
    """Source, and what stands there when the guard is out."""


def off(test: str, file: str, *sources: str) -> Guard:
    """Return a guard of conditions (`if ...:`, `elif ...:`) that become False."""
    return Guard(test, file, tuple((s, f"{s.split(' ', maxsplit=1)[0]} False:") for s in sources))


def also(test: str, step: str, unwanted: str) -> Guard:
    """Return a guard of the transition table: `unwanted` is a step that it must not have."""
    return Guard(test, "protocol/scheme_a.py", ((step, f"{step}\n    {unwanted}"),))


def out(test: str, file: str, *pieces: tuple[str, str]) -> Guard:
    """Return a guard with its replacements."""
    return Guard(test, file, pieces)


R = "protocol/rules.py"
M = "protocol/member.py"
SESSION = "clients/session.py"
POLICY = "clients/policy.py"
JOURNAL = "protocol/journal.py"
PLAN = "protocol/plan.py"

TWICE = "_roster::test_a_server_that_lists_anything_twice_gets_no_shares"
FORGED = "_roster::test_a_server_with_forged_missing_or_surplus_key_signatures_gets_no_shares"
LENT = "_roster::test_a_server_that_lends_a_members_certificate_to_another_id_gets_no_shares"
WEAK = "_roster::test_a_server_whose_roster_is_weaker_than_the_policy_gets_no_shares"
FEW = "_roster::test_a_server_with_fewer_survivors_or_sites_than_the_policy_gets_no_vote"
MODE = "_session::test_a_server_that_asks_for_a_weaker_mode_or_another_model_is_refused"
TURN = "_session::test_a_journal_refuses_what_is_closed_and_what_is_not_its_turn"
SECOND = "_session::test_a_journal_refuses_each_second_step_also_after_a_restart"
AGAIN = "::test_a_server_that_asks_again_gets_the_same_bytes_and_for_another_set_nothing"
QUORUM = "::test_a_server_without_a_quorum_of_distinct_survivors_gets_no_share"
THIN = "::test_a_client_that_was_shown_a_thinner_u2_is_left_out_and_its_neighbours_abort"
HIDDEN = "::test_a_server_that_hides_the_header_of_a_thinned_client_gets_no_vote"
TAMPER = "_shares::test_a_tampered_blob_is_named_not_held_and_its_sender_still_masked_against"
MEMORY = "_secrets::test_whoever_reads_the_memory_of_a_device_after_its_attempt_finds_only_zeros"
PARAMS = "_session::test_a_server_whose_parameters_lie_outside_the_policy_gets_a_code_only"
DIFFERENCE = "_session::test_a_server_that_leaves_one_out_of_the_next_sum_meets_min_difference"
REPEAT = "_session::test_a_server_that_repeats_a_round_without_one_member_would_difference_it_out"

RULES = [
    off(TWICE, R, "if len(set(values)) != len(values):"),
    out(TWICE, R, (', ("a key", public)', "")),
    out(
        "_roster::test_a_member_that_is_listed_with_its_old_and_its_renewed_certificate_is_seen",
        R,
        ('("an id", ids), ', ""),
    ),
    off(
        "_roster::test_a_server_that_alters_a_members_own_entry_gets_no_shares[mask_pk]",
        R,
        "if len(places) != 1 or entries[places[0]] != own:",
    ),
    off(LENT, R, "if (member.fingerprint, member.id) != (entry.fingerprint, entry.id):"),
    out(
        FORGED,
        R,
        ("if len(signatures) != len(around):", "if False:"),
        ("zip(around, signatures, strict=True)", "zip(around, signatures, strict=False)"),
    ),
    off(FORGED, R, 'if not keys.verify(members[place].public, signature, "keys", *fields):'),
    off(REPEAT, R, "if voted is not None and frozenset(ids) != voted:"),
    off(
        "_shares::test_a_server_that_drops_share_senders_far_away_gets_no_vector",
        R,
        "if p.n - len(u2) > p.d:",
    ),
    off("::test_a_server_that_drops_too_many_share_senders_gets_no_vector", R, "if own not in u2:"),
    off("_shares::test_a_server_that_spoils_too_many_blobs_gets_no_vector", R, "if good < p.t:"),
    off(
        "::test_a_server_that_names_a_survivor_which_sent_no_shares_gets_no_vote",
        R,
        "if not set(u) <= set(u2):",
    ),
    off(
        "::test_a_server_that_declares_one_more_dead_than_tolerated_gets_no_vote",
        R,
        "if p.n - len(u) > p.d:",
    ),
    off(
        "::test_a_server_that_declares_a_victims_neighbours_dead_gets_no_share",
        R,
        "if p.n - len(u) > p.d:",
    ),
    off(
        "_roster::test_a_server_with_fewer_survivors_than_the_parameters_promise_gets_no_vote",
        R,
        "if len(u) < max(least, p.a + 2):",
    ),
    off(
        "_session::test_a_server_that_repeats_with_the_roster_and_loses_one_would_difference_it_out",
        R,
        "if voted is not None and len(u) != p.n:",
    ),
    out(
        HIDDEN,
        R,
        ("if len(headers) != len(expected):", "if False:"),
        ("zip(expected, headers, strict=True)", "zip(expected, headers, strict=False)"),
    ),
    off(THIN, R, "if header.u2_hash != u2_hash:"),
    off(
        HIDDEN, R, 'if not keys.verify(members[place].public, header.signature, "masked", *fields):'
    ),
    out(
        QUORUM,
        R,
        ("if place in seen:", "if False:"),
        ("if len(seen) < p.q:", "if len(votes) < p.q:"),
    ),
    off(
        QUORUM,
        R,
        'if not keys.verify(public[place], signature, "survivors", ctx, u2_hash, u_hash):',
    ),
    off(QUORUM, R, "if len(seen) < p.q:"),
    off(
        "::test_a_server_that_shows_two_halves_different_survivors_opens_at_most_one",
        R,
        "if len(seen) < p.q:",
    ),
]

MEMBER = [
    out(
        QUORUM,
        M,
        (
            "public = {i: self._members[i].public for i in self._u}",
            "public = dict(enumerate(one.public for one in self._members))",
        ),
    ),
    off(
        "::test_a_client_outside_the_survivors_neither_votes_nor_releases",
        M,
        "if self._own not in u:",
    ),
    out(
        "_shares::test_a_server_that_keeps_blobs_back_gets_no_vector",
        M,
        ("if len(message.blobs) != len(senders):", "if False:"),
        ("zip(senders, message.blobs, strict=True)", "zip(senders, message.blobs, strict=False)"),
    ),
    out(
        WEAK,
        M,
        ("graph.check(p, floors.tolerated(n), floors.losses(n))", "graph.check(p, 0, None)"),
    ),
    out(WEAK, M, ("floors.check_roster(n, p.d)", "pass")),
    out(FEW, M, ("self._at.floors.check_survivors(len(u), p.a, difference, sites)", "pass")),
    out(
        TAMPER,
        M,
        (
            "self._cover(vector, split, senders)",
            "self._cover(vector, split, [v for v in senders if v in self._held])",
        ),
    ),
    out(
        "_shares::test_the_folded_sum_shows_nothing_before_shares_are_released",
        M,
        ("streams = [(keys.self_key(self._seed, self.ctx, own), 1)]", "streams = []"),
    ),
    out(
        "_shares::test_every_pair_of_neighbours_masks_against_each_other",
        M,
        ("            for place in senders:", "            for place in senders[1:]:"),
    ),
    out(
        "::test_a_server_that_asks_for_both_secrets_of_one_owner_gets_one_of_them",
        M,
        ("bytes(seed_share if place in self._u else mask_share)", "bytes(seed_share)"),
    ),
    out(MEMORY, M, ("self.state = state\n        self.wipe()", "self.state = state")),
    out(MEMORY, M, ("            wipe(*(key for key, _ in streams))", "            pass")),
    out(
        MEMORY,
        M,
        ("        wipe(shared, key)\n        return pb.Sealed(", "        return pb.Sealed("),
    ),
    also(
        "::test_a_client_whose_vector_is_not_whole_never_votes_for_itself",
        "(M, State.SENT, Event.SURVIVORS): State.VOTED,",
        "(M, State.MASKED, Event.SURVIVORS): State.VOTED,",
    ),
    off(AGAIN, M, "if tuple(u) != self._u:"),
    out(AGAIN, M, ("            return Step(None, self._release)\n", "            pass\n")),
    out(AGAIN, M, ("            return Step(None, self._again(u))\n", "            pass\n")),
    out(
        "::test_a_server_that_asks_for_a_second_mask_or_other_keys_is_refused",
        M,
        ("state = self._next(Event.INBOX, pb.REASON_SHARES)", "state = State.MASKED"),
        (
            "wipe(*self._opening.values())\n        self._opening.clear()\n        self.state",
            "self.state",
        ),
    ),
    also(
        "::test_a_server_that_asks_for_a_second_mask_or_other_keys_is_refused",
        "(M, State.TRAINED, Event.BEGIN): State.KEYED,",
        "(M, State.MASKED, Event.BEGIN): State.KEYED,",
    ),
]

DEVICE = [
    out(SECOND, SESSION, ("self._device.journal.write(step.record)", "pass")),
    off(SECOND, JOURNAL, "if record.ctx in self._earlier:"),
    off(SECOND, JOURNAL, "if type(record) in done:"),
    off(TURN, JOURNAL, "if Closed in done:"),
    off(TURN, JOURNAL, "if before is not None and before not in done:"),
    off(
        "_session::test_a_server_that_sends_the_same_or_an_older_attempt_again_is_refused",
        SESSION,
        "if start.attempt <= self._attempts.get(key, -1):",
    ),
    off(
        "_session::test_a_server_that_sends_another_model_than_it_announced_gets_no_keys",
        SESSION,
        "if self._terms.model != start.model_digest:",
    ),
    off(
        "_session::test_a_server_that_dresses_the_same_model_as_another_one_gets_no_keys",
        "protocol/manifest.py",
        "if any(view[end : self.total_bytes]):",
    ),
    off(
        "_session::test_a_server_that_gives_one_client_another_model_gets_no_shares_from_anybody",
        SESSION,
        "if message.ctx != self._ctx:",
    ),
    out(
        "_session::test_a_server_that_sends_a_plain_roster_in_a_secure_attempt_gets_no_vector",
        SESSION,
        ("if terms.scheme == plain.NAME:", "if terms.scheme == plain.NAME or not roster.entries:"),
    ),
    out(
        "_session::test_a_device_whose_journal_cannot_be_written_says_nothing_more",
        SESSION,
        (
            "self._unfit = str(error)\n            refused",
            "self._unfit = ''\n            refused",
        ),
    ),
    out(REPEAT, SESSION, ("voted=voted,", "voted=None,")),
    out(
        DIFFERENCE, SESSION, ("previous=self._device.journal.history.last_vote,", "previous=None,")
    ),
    off(MODE, POLICY, "if self.required:"),
    off(MODE, POLICY, "elif scheme not in self.schemes:"),
    off(MODE, SESSION, "if start.protocol != VERSION:"),
    off(MODE, POLICY, "if model_bytes > self.model_bytes:"),
    off(MODE, SESSION, "if start.model_bytes != own:"),
    off(
        "_session::test_a_server_that_opens_more_rounds_a_day_than_allowed_is_refused",
        POLICY,
        "if rounds_today >= self.rounds_per_day:",
    ),
    out(PARAMS, POLICY, ('_at_least("secure.corrupt", theirs.alpha, self.corrupt),', "")),
    out(PARAMS, POLICY, ('_at_least(f"secure.{a_key}", theirs.a_min, a_min),', "")),
    out(PARAMS, POLICY, ('_at_most("secure.dropout", theirs.delta, self.dropout),', "")),
    out(
        PARAMS,
        POLICY,
        ('_at_least("secure.min_members", theirs.min_members, self.min_members),', ""),
    ),
    out(
        PARAMS,
        POLICY,
        ('_at_least("secure.min_survivors", theirs.min_survivors, self.min_survivors),', ""),
    ),
    out(PARAMS, POLICY, ('_at_most("update.max_weight", theirs.weight_cap, self.max_weight),', "")),
    out(
        PARAMS,
        POLICY,
        ('_at_most("update.max_value_range", theirs.value_range, self.max_value_range),', ""),
    ),
    off(PARAMS, PLAN, "if table[key] != value:"),
    off(PARAMS, PLAN, "if type(table[key]) is not KINDS[key]:"),
    off(
        "_roster::test_a_server_with_fewer_members_than_the_parameters_promise_gets_no_shares",
        PLAN,
        "if n < params.min_members:",
    ),
    off(WEAK, POLICY, "if n < self.min_members:"),
    out(
        WEAK,
        POLICY,
        ("return max(self.corrupt_min, self.max_corrupt_members or 0)", "return self.corrupt_min"),
    ),
    off(
        "_roster::test_a_server_that_outnumbers_the_bound_on_corrupt_members_gets_no_shares",
        POLICY,
        "if bound is not None and n - d < bound + 2:",
    ),
    off(FEW, POLICY, "if count < floor:"),
    off(FEW, POLICY, "if sites < self.min_sites:"),
    off(DIFFERENCE, POLICY, "if 0 < difference < self.min_difference:"),
    out(MEMORY, "clients/update.py", ("            wipe(key)", "            pass")),
    off(
        "_roster::test_a_server_that_lists_a_revoked_member_gets_no_shares",
        "protocol/verification.py",
        "if member.id in self.revoked:",
    ),
    out(
        "_roster::test_a_server_that_invents_a_member_without_a_valid_certificate_gets_no_shares",
        "protocol/verification.py",
        ("return verifier.verify(leaf, self._issuing).chain", "return [leaf]"),
    ),
]

GUARDS = [*RULES, *MEMBER, *DEVICE]
